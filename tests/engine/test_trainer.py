"""A trainer measures, applies and evaluates; what it cannot do it says in words."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sfnode.engine import forward
from sfnode.engine.core import UpdateBatch
from sfnode.engine.losses import EVALUATION_BATCH
from sfnode.engine.trainer import Trainer
from sfnode.errors import Code, UserError
from sfnode.manifest import Manifest
from sfnode.manifest.sections import Data
from sfnode.manifest.task import PRIOR_ONE
from sfnode.preparing.scalars import Means, any_trainer, prior_of
from sfnode.tasks import public_files
from sfnode.tasks.encoding import evaluate
from sfnode.tasks.public_files import Places, typed
from sfprotocol.messages import Authority, RunParameters
from sfprotocol.seeds import update_seeds
from tests.engine.helpers import (
    DEVICE,
    ROWS,
    WORDS,
    data_file,
    manifest,
    model_folder,
    part,
    same,
    trainer,
    updates,
    weights,
)
from tests.refusals import refused


def test_a_step_repeats_itself_and_changes_nothing_until_it_is_applied(tmp_path: Path) -> None:
    run = trainer(manifest("opt"), data_file(tmp_path))
    nothing, before = run.core.digest(), weights(run)
    first = run.step([5, 6], 0)
    assert run.step([5, 6], 0) == first
    assert len(first.scalars) == 2
    assert run.core.digest() == nothing
    assert same(before, weights(run))
    run.apply(UpdateBatch(np.array([0, 0]), np.array([5, 6], np.uint64), np.array(first.scalars)))
    assert run.core.digest() != nothing


def test_a_measurement_that_is_no_number_is_counted_and_its_scalar_is_0(tmp_path: Path) -> None:
    run = trainer(manifest("llama", batch_size=1), data_file(tmp_path))
    seeds = list(range(20))
    sound = run.step(seeds, 0)
    words = run.loaded.model.get_input_embeddings()
    words.weight.data[WORDS.index("bright")] = torch.inf  # in one row of five, and in no other
    broken = run.step(seeds, 0)
    failed = [n for n in seeds if run.step([n], 0).failed]
    assert sound.failed == 0
    assert broken.failed == len(failed)
    assert 0 < len(failed) < len(seeds)
    assert broken.scalars == tuple(0 if n in failed else sound.scalars[n] for n in seeds)
    assert math.isfinite(broken.loss)
    assert math.isnan(run.step(failed, 0).loss)


def follow(run: Trainer, updates: int, epoch_updates: int) -> None:
    """Apply this many of its own updates, four of each step."""
    seeds = update_seeds(1, 0, updates)
    for n in range(0, updates, 4):
        own, epoch = seeds[n : n + 4], n // epoch_updates
        scalars = np.array(run.step(own.tolist(), epoch).scalars)
        run.apply(UpdateBatch(np.full(4, epoch), own, scalars))


@pytest.mark.parametrize("family", ["llama", "modernbert"])
def test_following_its_own_estimates_lowers_the_loss(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At 1e-3, the last bits of forward passes decided whether a model was destroyed: one of 20 was."""
    monkeypatch.chdir(tmp_path)  # a path of this test's own would be another run, with other directions
    file = data_file(tmp_path)
    run = trainer(manifest(family, file.name, learning_rate=5e-4, batch_size=5), file)
    follow(run, 600, 300)
    assert run.evaluate().loss < 0.8 * run.evaluate_base().loss


def test_an_organised_run_has_its_rates_in_the_core_and_subspaces_that_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rate of 2^-8 in the core moves the weights as a learning rate of 2^-8 does."""
    file = data_file(tmp_path)
    plain = manifest("llama", str(file), learning_rate=2.0**-8)
    batch = updates(30, (1,))
    opened = trainer(plain, file)
    opened.apply(batch)
    open_step = opened.step([5, 6], 1)
    parameters = Manifest.parameters

    def organised(self: Manifest) -> RunParameters:
        authority = Authority(self.run_id, bytes(32), (), 1)
        return replace(parameters(self), organised=authority, rate=1 << 24, subspace_epochs=3)

    monkeypatch.setattr(Manifest, "parameters", organised)
    run = trainer(plain, file)
    run.apply(batch._replace(scalars=batch.scalars << 24))
    assert run.evaluate() == opened.evaluate()
    assert run.step([5, 6], 5) == run.step([5, 6], 3) == open_step
    assert run.step([5, 6], 2) != open_step


def test_a_trainer_that_begins_with_cores_is_as_one_with_all_updates(tmp_path: Path) -> None:
    file = data_file(tmp_path)
    run = manifest("llama", str(file), learning_rate=1e-3)
    whole, first, rest = trainer(run, file), trainer(run, file), trainer(run, file)
    batch = updates(40, (0, 1))
    whole.apply(batch)
    first.apply(part(batch, slice(25)))
    rest.begin(first.core.cores())
    rest.apply(part(batch, slice(25, None)))
    assert rest.core.digest() == whole.core.digest()
    assert rest.step([1], 1) == whole.step([1], 1)
    assert rest.evaluate() == whole.evaluate()
    only = trainer(run, file)
    only.begin(whole.core.cores())
    assert only.evaluate() == whole.evaluate()


def test_shards_share_out_the_rows(tmp_path: Path) -> None:
    file = data_file(tmp_path)

    def losses(shard: tuple[int, int] | None) -> set[float]:
        """One for every row of the shard, as batches of one row and enough seeds draw them all."""
        run = trainer(manifest("opt", batch_size=1, epsilon=1e-6), file, shard=shard)
        return {round(run.step([seed], 0).loss, 3) for seed in range(60)}

    first, second = losses((0, 2)), losses((1, 2))
    assert (len(first), len(second)) == (3, 2)
    assert first | second == losses(None)


def test_nobody_trains_on_validation_rows_and_the_model_can_be_measured_on_them(tmp_path: Path) -> None:
    file = data_file(tmp_path)
    data = Data(train=str(file), validation_limit=2)
    run = manifest("opt", batch_size=1, epsilon=1e-6).model_copy(update={"data": data})

    def losses(of: Manifest) -> set[float]:
        with Trainer.load(
            of, model_override=model_folder("opt"), device=DEVICE, places=typed(of.data)
        ) as node:
            return {round(node.step([seed], 0).loss, 3) for seed in range(60)}

    everything = run.model_copy(update={"data": Data(train=str(file))})
    assert len(losses(run)) == 3
    assert losses(run) < losses(everything)
    measured = trainer(run)
    assert measured.evaluate(rows="validation").count == 2
    assert measured.evaluate_base(rows="validation") == measured.evaluate(rows="validation")
    assert measured.evaluate(1, rows="validation").count == 1
    with refused(Code.DATA_NEEDED, "no test data"):
        measured.evaluate()


def test_a_run_on_private_data_asks_for_it() -> None:
    with refused(Code.DATA_NEEDED):
        Trainer.load(manifest("opt"))


def test_public_rows_are_those_that_the_manifest_names_wherever_they_lie(tmp_path: Path) -> None:
    file = data_file(tmp_path)
    digest = public_files.digest_of(file)
    data = Data(train=file.name, test=file.name, digests={"train": digest, "test": digest})
    run = manifest("opt").model_copy(update={"data": data})
    with Trainer.load(
        run, model_override=model_folder("opt"), device=DEVICE, places=Places((tmp_path,))
    ) as trained:
        assert trained.run_rows.training() == trained.run_rows.some_if_any() == ROWS
        assert trained.evaluate().count == len(ROWS)
    with trainer(run) as without:
        assert without.run_rows.some_if_any() == []
        with refused(Code.DATA_NOT_FOUND):
            without.evaluate()


def centred(run: Manifest, data: Data, **task: Any) -> Manifest:
    """The same run with a centred loss, on these data."""
    said = run.task.model_copy(update={"loss": "centred", **task})
    return run.model_copy(update={"task": said, "data": data})


def base_prior(run: Trainer) -> np.ndarray:
    with run.weights.at_base():
        return run.priors.measured()


def test_the_model_of_a_centred_run_is_measured_less_the_prior_that_it_has_now(tmp_path: Path) -> None:
    file = str(data_file(tmp_path))
    run = trainer(centred(manifest("opt", learning_rate=1e-3), Data(train=file, test=file)))
    before = run.prior()
    assert before.tolist() == base_prior(run).tolist()
    run.apply(updates(40))
    assert abs(run.prior() - before).max() > 1e-3
    found, task = run.evaluate(), run.manifest.task
    score = partial(forward.score_in_passes, run.loaded)
    expected = evaluate(task, run.loaded.tokenizer, ROWS, score, EVALUATION_BATCH, run.prior())
    assert found == expected
    assert found.calibrated
    assert base_prior(run).tolist() == before.tolist()


def test_the_base_model_is_measured_as_it_is_and_calibrated_and_only_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = str(data_file(tmp_path))
    run = trainer(
        manifest("opt", learning_rate=1e-3).model_copy(update={"data": Data(train=file, test=file)})
    )
    anew = [trainer(run.manifest).evaluate_base(calibrated=calibrated) for calibrated in (False, True)]
    passes: list[int] = []
    scored = run.objective._scored
    monkeypatch.setattr(run.objective, "_scored", lambda *of: passes.append(1) or scored(*of))
    first = [run.evaluate_base(calibrated=calibrated) for calibrated in (False, True)]
    assert (first, passes) == (anew, [1])
    assert [one.calibrated for one in first] == [False, True]
    assert first[0].loss != first[1].loss
    run.apply(updates(40))
    monkeypatch.setattr("sfnode.engine.losses.scorer", lambda *of: None)
    assert [run.evaluate_base(calibrated=calibrated) for calibrated in (False, True)] == first


def test_where_no_public_rows_are_to_be_had_the_prior_is_the_manifests(tmp_path: Path) -> None:
    file = str(data_file(tmp_path))
    held = manifest("opt")
    gone = Data(train="/nowhere/train.tsv", test=file)
    with pytest.raises(UserError, match="/nowhere"):
        trainer(centred(held, gone)).evaluate()
    run = trainer(centred(held, gone, prior=(0, -(3 << 15))))
    assert run.prior().tolist() == [0.0, -1.5]
    assert run.named_prior() == {"terrible": 0.0, "great .": -1.5}
    measured = trainer(centred(held, Data(train=file, test=file), prior=(0, -(3 << 15))))
    assert measured.prior().tolist() != [0.0, -1.5]


def test_following_centred_estimates_lowers_the_loss_of_the_calibrated_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a path of this test's own would be another run, with other directions
    file = data_file(tmp_path)
    data = Data(train=file.name, test=file.name)
    run = trainer(centred(manifest("llama", learning_rate=1e-3, batch_size=4), data), file)
    follow(run, 400, 400)
    assert run.evaluate().loss < 0.8 * run.evaluate_base(calibrated=True).loss


def test_the_prior_for_a_manifest_is_measured_on_test_rows_if_there_are_no_others(tmp_path: Path) -> None:
    file = str(data_file(tmp_path))

    def measured(data: Data) -> tuple[int, ...]:
        run = centred(manifest("opt"), data)
        found, reason = any_trainer(run, Means(DEVICE, model=model_folder("opt"), places=typed(run.data)))
        with found:
            return () if reason else prior_of(found)[0]

    trained = measured(Data(train=file))
    assert max(trained) == 0
    assert trained == measured(Data(test=file))
    expected = base_prior(trainer(centred(manifest("opt"), Data(train=file))))
    assert (np.array(trained) - trained[0]) / PRIOR_ONE == pytest.approx(expected - expected[0], abs=1e-4)
    assert measured(Data(train="/nowhere/train.tsv")) == measured(Data()) == ()
