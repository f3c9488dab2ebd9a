"""What a first-order run is given before it starts: bases, prior, unit, limit and rate."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sfnode.cli.fork import going_on
from sfnode.cli.join import told_first
from sfnode.engine.core import UpdateBatch
from sfnode.engine.trainer import Trainer
from sfnode.errors import Code, UserError
from sfnode.manifest import Manifest
from sfnode.manifest.sections import Parent
from sfnode.manifest.task import PRIOR_ONE
from sfnode.models import bases, model_files
from sfnode.preparing import first_order
from sfnode.preparing.first_order import LIMIT, STEP
from sfnode.preparing.manifest import build, forked, unsuited
from sfnode.preparing.measuring import prepare
from sfnode.preparing.scalars import Advance, Means, Prepared
from sfnode.store.run_keys import RunKeys
from sfnode.tasks import dataset
from sfnode.tasks.public_files import typed
from sfprotocol.decisions import RATE_ONE, RateFrom
from sfprotocol.seeds import update_seeds
from tests.refusals import refused

HEAD = {"kind": "sequence-classification", "template": "{text}"}
WORDS = {"kind": "classification", "template": "{text} it was"}
CLASSES = {"0": "bad", "1": "good"}


@contextmanager
def waiting(what: str, seconds: float = 0.0) -> Iterator[Advance]:
    last = [0]

    def advance(done: int, total: int) -> None:
        assert last[0] <= done <= total
        last[0] = done

    yield advance


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Reviews, in a file of one's own."""
    file = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    rows = dataset.rows_of("builtin:reviews:train", 160)
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return file


def begun(table: Path, **given: Any) -> Manifest:
    own = {"train": str(table), "model": "builtin:tiny", "verbalizer": CLASSES}
    return build(own | RunKeys.generate().options() | {"estimator": "first-order"} | given)


def prepared(table: Path, **given: Any) -> Prepared:
    run = begun(table, **given)
    return prepare(run, given, Means(bases=table.parent, places=typed(run.data)), waiting)


@pytest.fixture(scope="module")
def head(table: Path) -> Prepared:
    return prepared(table, **HEAD)


@pytest.fixture(scope="module")
def words(table: Path) -> Prepared:
    return prepared(table, **WORDS)


def node(run: Manifest, folder: Path) -> Trainer:
    return Trainer.load(run, bases=folder, places=typed(run.data))


def trained(node: Trainer, rounds: int, updates: int) -> None:
    """Train as an organised run in which every update counts with factor 1."""
    rate = RateFrom(0, round(node.manifest.training.learning_rate * RATE_ONE), limit=node.run.norm_limit)
    for number in range(rounds):
        seeds = update_seeds(number, 0, updates).tolist()
        found = node.step(seeds, 0, rate).scalars
        assert all(rate.moves(one) for one in found)
        weighed = np.array(found, np.int64) * rate.rate
        node.apply(UpdateBatch(np.zeros(updates, np.int64), np.array(seeds, np.uint64), weighed))
        node.rebuild()


def test_a_head_gets_whitened_coordinates_in_which_its_rounds_learn(table: Path, head: Prepared) -> None:
    run = head.manifest
    numbers = run.training
    assert Manifest.model_validate(run.model_dump()) == run
    assert (run.protocol, numbers.estimator, run.core_shape) == (4, "first-order", (1, 2, 64))
    assert (numbers.update_budget, numbers.epoch_updates, numbers.batch_size) == (256, 4, 4096)
    assert (run.organised.subspace_epochs, run.organised.quota, run.task.loss) == (64, 1, "plain")
    (pair,) = bases.read(
        *(bases.path_in(table.parent, numbers.bases), run.model.parsed_targets(), (2, 64), numbers.bases)
    )
    assert (pair.u == 64 * np.eye(2)).all()
    assert head.example_forwards == 160
    with node(run, table.parent) as learner:
        first = learner.gradients([1], 0)[0].loss
        trained(learner, numbers.epochs, numbers.epoch_updates)
        assert learner.gradients([1], 0)[0].loss < 0.9 * first


@pytest.mark.parametrize(("task", "rounds"), [(HEAD, 64), (WORDS, 32)])
def test_a_larger_budget_has_larger_rounds_and_not_more(
    task: dict[str, Any], rounds: int, table: Path
) -> None:
    numbers = begun(table, **task, update_budget=4_000).training
    assert numbers.epochs == pytest.approx(rounds, abs=1)


def test_bases_are_turned_until_gradients_vary_alike(table: Path, words: Prepared) -> None:
    run = words.manifest
    given = prepared(table, **WORDS, basis="published", bases=run.training.bases).manifest
    assert given.training.bases == run.training.bases, "those that are given stay"
    with node(run, table.parent) as learner:
        cores = first_order.usual(learner).reshape(-1, *run.core_shape)
    for side in (cores, cores.swapaxes(2, 3)):
        of_columns = (side**2).mean((0, 3))
        assert of_columns.std() < of_columns.mean(), "where bases are not turned it is 2.8 times"


def test_a_usual_gradient_fills_half_of_the_limit(table: Path, head: Prepared, words: Prepared) -> None:
    for run in (head.manifest, words.manifest):
        with node(run, table.parent) as learner:
            rate = RateFrom(0, 1, limit=run.training.norm_limit)
            norms = [np.linalg.norm(one) for one in learner.step(list(range(8)), 0, rate).scalars]
        assert 0.25 * rate.limit < np.median(norms) < 0.75 * rate.limit


def test_words_get_a_prior_and_bases_from_gradients(table: Path, words: Prepared) -> None:
    found, run = words, words.manifest
    assert Manifest.model_validate(run.model_dump()) == run
    assert (run.task.loss, len(run.task.prior), max(run.task.prior)) == ("calibrated", 2, 0)
    assert min(run.task.prior) > -40 * PRIOR_ONE
    numbers = run.training
    assert (numbers.rank, numbers.batch_size) == (4, 8)
    usual = numbers.scalar_delta * numbers.norm_limit / LIMIT
    assert numbers.learning_rate == pytest.approx(min(1.0, STEP / usual / 8), rel=0.01)
    assert (numbers.update_budget, numbers.epoch_updates) == (256, 8)
    assert (run.organised.subspace_epochs, run.organised.quota) == (32, 32)
    assert run.core_shape[1:] == (4, 4)
    assert numbers.bases
    assert found.example_forwards == 120 + 2 * 32 * 8 * 3
    assert found.seconds > 0
    with node(run, table.parent) as learner:
        first = np.mean([one.loss for one in learner.gradients(list(range(8)), 0)])
        trained(learner, 8, 4)
        assert np.mean([one.loss for one in learner.gradients(list(range(8)), 0)]) < first - 0.02


@pytest.mark.parametrize("cells", [8, 16])
def test_few_numbers_have_16_bits_and_many_have_8(cells: int, table: Path) -> None:
    run = begun(table, **WORDS, rank=4 if cells == 16 else 32)
    assert run.training.scalar_bits == (16 if run.dimensions < 1024 else 8)
    assert not run.training.norm_limit


def test_numbers_that_are_given_count(table: Path) -> None:
    given = {"learning_rate": 0.01, "update_budget": 40, "rank": 2, "quota": 5, "subspace_epochs": 3}
    run = prepared(table, **WORDS, **given).manifest
    numbers = run.training
    assert (numbers.learning_rate, numbers.update_budget, numbers.epoch_updates) == (0.01, 40, 2)
    assert (run.core_shape[1:], run.organised.quota, run.organised.subspace_epochs) == ((2, 2), 5, 3)


def test_a_budget_of_many_updates_keeps_its_quota_within_128_mib(table: Path) -> None:
    run = begun(table, **WORDS, update_budget=4_000_000)
    width = run.dimensions * run.training.scalar_bits // 8
    assert run.organised.quota == (128 << 20) // width < 4 * run.training.epoch_updates


@pytest.mark.parametrize(
    ("given", "said"),
    [({"loss": "centred"}, "a loss that is centred compares rows"), ({"group": 4}, "no groups")],
    ids=["centred", "groups"],
)
def test_what_no_run_by_gradients_can_have_is_refused(given: dict[str, Any], said: str, table: Path) -> None:
    with refused(Code.BAD_OPTION, said):
        prepared(table, **WORDS, **given)


def test_unmeasured_it_has_no_bases_and_is_refused(table: Path) -> None:
    with pytest.raises(UserError, match=r"init\.measure"):
        prepare(begun(table, **HEAD), {}, Means(), waiting, measure=False)


def test_without_public_rows_it_says_what_to_do(table: Path, tmp_path: Path) -> None:
    gone = Path(shutil.copy(table, tmp_path))
    run = begun(gone, **HEAD)
    gone.unlink()
    with pytest.raises(UserError, match="no gradient can be taken before the run starts") as caught:
        prepare(run, {}, Means(bases=tmp_path, places=typed(run.data)), waiting)
    assert "training.estimator=zeroth-order" in caught.value.fix


@pytest.mark.parametrize(("size", "drawn"), [(160, 32), (20, 20)], ids=["many", "few"])
def test_own_rows_are_told_of_by_32_at_least_or_all(
    size: int, drawn: int, table: Path, words: Prepared, tmp_path: Path
) -> None:
    run, own = words.manifest, tmp_path / "own.jsonl"
    own.write_text("".join(f"{json.dumps(row)}\n" for row in dataset.rows_of("builtin:reviews:train", size)))
    given: dict[str, Any] = {"bases": table.parent, "places": typed(run.data)}
    with (
        Trainer.load(run, data_override=own, secret=b"mine", **given) as learner,
        Trainer.load(run, **given) as other,
    ):
        assert (learner.mini_batch(1).examples, other.mini_batch(1).examples) == (drawn, 8)


def test_who_joins_with_rows_of_their_own_is_told_what_others_could_learn(table: Path) -> None:
    run = begun(table, **WORDS)
    said = told_first(run, own_rows=True)
    assert "at least 32" in said
    assert "could find out whether a text that they know is among your rows" in said
    noisy = told_first(run, own_rows=True, noisy=True)
    assert "noise" in noisy
    assert "epsilon" in noisy
    assert told_first(run, own_rows=False) == told_first(first_order.begun(run), own_rows=True) == ""


PARENT = Parent(run_id="12" * 32, epoch=0, digest="34" * 32)


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    return Path(shutil.copytree(model_files.located("builtin:tiny", ""), tmp_path / "model"))


def test_a_fork_goes_on_at_the_unit_and_the_limit_of_the_seal(
    table: Path, exported: Path, words: Prepared
) -> None:
    old = words.manifest
    own = RunKeys.generate().options() | {"basis": "published", "bases": old.training.bases}
    own |= going_on(old, RateFrom(3, RATE_ONE // 64, unit=1 << 15, limit=700))
    run = forked(old, PARENT, exported, own)
    assert (run.training.learning_rate, run.training.norm_limit) == (1 / 64, 700)
    assert run.training.scalar_delta == old.training.scalar_delta / 2
    assert (run.training.bases, run.task.prior) == (old.training.bases, old.task.prior)
    assert prepare(run, {}, Means(bases=table.parent), waiting).manifest == run, "nothing is measured anew"


def test_a_fork_that_trains_the_body_behind_a_head_is_measured_anew(
    table: Path, exported: Path, head: Prepared
) -> None:
    old = head.manifest
    own = RunKeys.generate().options() | unsuited(old.training) | {"target_modules": ("all-linear",)}
    run = forked(old, PARENT, exported, own)
    assert (run.training.is_first_order, run.training.norm_limit, run.training.bases) == (True, 0, "")
    assert run.training.rank == 2, "which is what a head of two classes has among the targets"
    assert (run.training.update_budget, run.organised.subspace_epochs) == (256, 32)
    means = Means(bases=table.parent, model=exported, places=typed(run.data))
    found = prepare(run, {}, means, waiting).manifest
    assert found.training.norm_limit > 0
    assert Manifest.model_validate(found.model_dump()) == found
