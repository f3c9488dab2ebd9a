"""Decay: what earlier subspaces brought counts less, in weights that follow from the cores alone."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sfnode.engine import merging
from sfnode.engine.core import Core, UpdateBatch
from sfnode.engine.line import Line, difference, line_to
from sfnode.engine.losses import line_batches
from sfnode.engine.merging import Decay, MergedWeights
from sfnode.engine.trainer import Trainer
from sfnode.manifest import Manifest
from sfnode.manifest.sections import Data
from sfnode.models.loader import matrix
from tests.engine.helpers import ROWS, data_file, manifest, negated, part, same, trainer, updates
from tests.engine.test_export import change

ORGANISER = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
SUBSPACES = (0, 1, 1, 4, 2)
GAMMA = 0.9


def decaying(decay: float = GAMMA, family: str = "opt", **data: Any) -> Manifest:
    """An organised run in which two epochs share a subspace; updates move a weight by about a percent."""
    plain = manifest(family, decay=1.0, learning_rate=1e-3).model_dump()
    organised = {"organiser": ORGANISER, "quota": 100, "subspace_epochs": 2}
    training = plain["training"] | {"decay": decay}
    changes = {"admission": "organised", "organised": organised, "training": training, "data": data}
    return Manifest.model_validate(plain | changes)


SHARED = decaying()


def counted(count: int = 60, subspaces: tuple[int, ...] = SUBSPACES, key: int = 1) -> UpdateBatch:
    """Updates with the weights of an organised run."""
    batch = updates(count, subspaces, key)
    return batch._replace(scalars=batch.scalars << 22)


def rebuilt(run: Trainer) -> list[torch.Tensor]:
    run.weights.rebuild()
    return [matrix(site).clone() for site in run.loaded.sites]


def by_hand(run: Trainer, gamma: float) -> list[torch.Tensor]:
    """O17 in float64, with powers by multiplication."""
    newest, found = max(run.core.epochs(), default=0), []
    for number in range(len(run.loaded.sites)):
        weight = run.loaded.base_weights.read(number).double()
        for subspace in run.core.epochs():
            power = 1.0
            for _ in range(subspace, newest):
                power *= gamma
            u, v = (side.double() for side in run.space.basis.matrices(subspace, number))
            a = torch.from_numpy(run.core.of(subspace)[number].copy()).double()
            weight = weight - (u @ a @ v.t()) * (run.scale(subspace) * power)
        found.append(weight.float())
    return found


@cache
def expected() -> list[torch.Tensor]:
    """The weights with `counted`, in one go."""
    run = trainer(SHARED)
    run.apply(counted())
    return rebuilt(run)


def test_powers_are_repeated_products() -> None:
    decay = Decay(0.99)
    assert [decay(age) for age in (-3, 0, 1, 2)] == [1.0, 1.0, 0.99, 0.99 * 0.99]
    product = 1.0
    for _ in range(1000):
        product *= 0.99
    assert decay(1000) == product
    assert Decay(0.5)(2000) == 0.0


def test_a_core_counts_less_with_each_subspace_since() -> None:
    run = trainer(decaying())
    run.apply(counted())
    assert same(rebuilt(run), by_hand(run, GAMMA))
    assert not same(rebuilt(run), by_hand(run, 1.0))


def test_a_decay_of_1_is_none_to_the_bit() -> None:
    plain = decaying(1.0)
    assert "decay" not in plain.fields()["training"]
    assert plain.run_id == decaying().model_copy(update={"training": plain.training}).run_id
    one, other = trainer(plain), trainer(plain)
    other.weights = MergedWeights(  # as it was before there were decays
        other.loaded, other.space, other.core, other.scale, lambda: 0.0
    )
    for run in (one, other):
        run.apply(counted())
    assert same(rebuilt(one), rebuilt(other))
    assert one.decay.faded(one.core.cores())[0].dtype == np.int64


@settings(max_examples=12, deadline=None)
@given(st.permutations(range(12)), st.lists(st.integers(0, 11), max_size=6), st.data())
def test_weights_are_a_function_of_what_counts_by_whatever_road_it_came(
    order: list[int], twice: list[int], data: st.DataObject
) -> None:
    """In any order, in pieces, with training in between, and with what came and was taken back."""
    run, whole = trainer(SHARED), counted()
    taken_back = counted(5, (6, 3), key=7)
    run.apply(taken_back)
    for number in order:
        run.apply(part(whole, slice(number * 5, number * 5 + 5)))
        if data.draw(st.booleans()):
            run.weights.follow(data.draw(st.integers(0, 5)))
        if number in twice:
            run.apply(taken_back)
            run.apply(negated(taken_back))
    run.apply(negated(taken_back))
    assert same(rebuilt(run), expected())


def test_a_checkpoint_stands_for_its_updates() -> None:
    run, other = trainer(SHARED), trainer(SHARED)
    first, rest = part(counted(), slice(0, 30)), part(counted(), slice(30, 60))
    run.apply(first)
    other.begin(run.cores())
    for one in (run, other):
        one.apply(rest)
    assert same(rebuilt(run), rebuilt(other))
    assert same(rebuilt(run), expected())


def test_cores_and_their_digest_know_nothing_of_it() -> None:
    runs = [trainer(decaying(gamma)) for gamma in (1.0, GAMMA)]
    for run in runs:
        run.apply(counted())
    assert runs[0].core.digest() == runs[1].core.digest()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_while_it_trains_a_new_subspace_has_every_target_rebuilt_once(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging, "REBUILD_REST", 0)
    run = trainer(decaying(), dtype=dtype)
    run.apply(counted(20, (0, 1)))
    run.weights.follow(1)
    found: list[int] = []
    real = run.weights._rebuild
    monkeypatch.setattr(run.weights, "_rebuild", lambda number: (found.append(number), real(number)))
    run.apply(counted(1, (2,), key=3))
    targets = len(run.loaded.sites)
    for _ in range(3 * targets):
        run.weights.follow(1)  # its own steps are in the subspace before
    assert found == list(range(targets))
    assert same([matrix(site).float() for site in run.loaded.sites], [w.float() for w in rebuilt(run)])


def test_a_line_leads_to_the_model_of_its_end_though_that_makes_the_rest_older(tmp_path: Path) -> None:
    run = decaying(validation=str(data_file(tmp_path)))
    one, other = trainer(run), trainer(run)
    for node in (one, other):
        node.apply(counted())
    other.apply(counted(20, (5,), key=9))
    there = one.evaluate_towards(other.cores(), 1.0, rows="validation")
    assert there.loss == pytest.approx(other.evaluate(rows="validation").loss, rel=1e-5)
    here = one.evaluate(rows="validation")
    assert one.evaluate_towards(other.cores(), 0.0, rows="validation") == here, "nothing new counts"
    assert same(rebuilt(one), by_hand(one, GAMMA))


def test_a_search_begins_where_what_came_before_is_as_old_as_at_its_end(tmp_path: Path) -> None:
    run = trainer(SHARED)
    run.apply(counted())
    after = run.cores() | {7: np.ones_like(run.core.of(0))}
    line = line_to(run, after)
    batches = line_batches(run.manifest.task, run.loaded.tokenizer, ROWS)
    older = trainer(SHARED)
    older.begin(run.cores())
    older.weights.rebuild(7)
    there = Line(older.loaded, older.space, older.weights.scale, {}).losses(batches, [0.0])
    assert (line.losses(batches, [0.0]) == there).all()
    assert not same([matrix(site) for site in run.loaded.sites], expected())
    assert difference(after, run.core.cores()).keys() == {7}


def test_an_adapter_has_it_too(tmp_path: Path) -> None:
    run = trainer(SHARED)
    run.apply(counted())
    run.export(tmp_path / "lora", "lora")
    found = change(tmp_path / "lora")
    for number, (site, weight) in enumerate(zip(run.loaded.sites, expected(), strict=True)):
        moved = weight - run.loaded.base_weights.read(number)
        torch.testing.assert_close(found[site.target.name], moved, rtol=1e-4, atol=1e-5)


def test_the_newest_subspace_is_the_last_one_of_which_something_is_left() -> None:
    core = Core(2, 4)
    assert core.newest() == 0
    batch = updates(3, (5,))
    core.add(updates(4, (2,)))
    core.add(batch)
    assert core.newest() == 5
    core.add(negated(batch))
    assert core.newest() == 2


def test_an_open_run_has_none_as_its_labels_are_anybodys() -> None:
    open_run = decaying().model_dump() | {"admission": "open", "organised": {}, "data": Data().model_dump()}
    with pytest.raises(ValueError, match="only an organised run has a decay"):
        Manifest.model_validate(open_run)
