"""Shares of updates in a step: that of each is what it moves, and all together are what the step does."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
import torch

from sfnode.engine import line
from sfnode.engine.core import Core, UpdateBatch
from sfnode.engine.estimator import estimates
from sfnode.engine.line import Line, difference
from sfnode.engine.losses import Held, batches_of, line_rows
from sfnode.engine.trainer import Trainer
from sfnode.errors import Code
from sfnode.models.targets import DEFAULT, Selection
from sfnode.schema.measurements import StepShare
from sfnode.tasks.encoding import Encoded
from sfprotocol.seeds import I64
from tests.engine.helpers import EVERYTHING, ROWS, TASK, negated, same, trainer, updates, weights
from tests.engine.helpers import manifest as described
from tests.refusals import refused

manifest = partial(described, name="engine-2")

ORIGINS = [updates(30, (0, 1)), updates(40, (1, 2), key=2), updates(50, (0,), key=3)]
"""The updates of three origins. Those in the weights already are others."""


def begun(family: str, selection: Selection = DEFAULT, **options: str) -> Trainer:
    run = trainer(manifest(family, selection=selection, learning_rate=1e-4), **options)
    run.run_rows._held_out["validation", 0] = Held("validation", 0, ROWS)
    run.apply(updates(30, (0, 1), key=9))
    return run


def together(run: Trainer, batches: list[UpdateBatch]) -> dict[int, I64]:
    """The cores to which all of these updates lead."""
    after = Core(len(run.loaded.sites), run.space.columns_of[0])
    after.put(run.core.cores())
    for batch in batches:
        after.add(batch)
    return after.cores()


def shares(run: Trainer, batches: list[UpdateBatch], turn: int = 0) -> list[StepShare]:
    said = [(batch, np.ones(len(batch.seeds), np.int64)) for batch in batches]
    found, taken = run.shares(together(run, batches), said, 4, turn)
    assert taken in (4 * 4, 7 * 4)
    return found


def encoded(run: Trainer, turn: int = 0) -> list[Encoded]:
    task = run.manifest.task
    return batches_of(task, run.loaded.tokenizer, line_rows(task, ROWS), 4, turn)


def gain(run: Trainer, batches: list[UpdateBatch]) -> float:
    """By how much these updates lower the mean loss of the same rows."""
    run.weights.rebuild()
    step = difference(together(run, batches), run.core.cores())
    losses = Line(run.loaded, run.space, run.scale, step).losses(encoded(run), [0.0, 1.0])
    return float((losses[:, 0] - losses[:, 1]).mean())


@pytest.mark.parametrize(
    ("family", "selection"),
    [("opt", DEFAULT), ("gpt2", EVERYTHING), ("llama", EVERYTHING), ("modernbert", DEFAULT)],
)
def test_what_all_are_worth_adds_up_to_what_the_step_does(family: str, selection: Selection) -> None:
    run = begun(family, selection)
    helpful = ORIGINS if gain(run, ORIGINS) > 0 else [negated(batch) for batch in ORIGINS]
    found, wanted = shares(run, helpful), gain(run, helpful)
    worths = np.array([one.worth for one in found])
    assert worths.sum() == pytest.approx(wanted, abs=0.02 * abs(worths).max())
    assert abs(worths).max() > 1e-3, "the step leads somewhere"
    assert [one.updates for one in found] == [30, 40, 50]


@pytest.mark.parametrize("family", ["opt", "gpt2"])
def test_slopes_are_those_that_two_points_measure_on_the_same_rows(family: str) -> None:
    run = begun(family, EVERYTHING)
    run.weights.rebuild()
    some = updates(12, (1,), key=4)
    step = difference(together(run, [some]), run.core.cores())
    found = line.measure(run, step, encoded(run), 0.0)
    directions = run.space.directions(some.seeds.tolist(), 1)
    for rows, along in zip(encoded(run), found.along(some), strict=True):
        for number, slope in enumerate(along):
            alone = directions._replace(
                u=tuple(u[[number]] for u in directions.u), v=tuple(v[:, [number]] for v in directions.v)
            )
            (estimate,) = estimates(run.loaded, alone, [rows], 1e-4)
            assert slope == pytest.approx(estimate.alpha, rel=2e-2, abs=2e-2)


def test_scalars_that_follow_the_slopes_help_their_opposites_harm_and_signs_of_a_coin_do_neither() -> None:
    run = begun("opt")
    run.weights.rebuild()
    some = [updates(300, (0,), key=key) for key in (5, 6, 7)]
    step = {0: np.zeros((len(run.loaded.sites), run.space.columns_of[0], run.space.columns_of[0]), np.int64)}
    true = line.measure(run, step, encoded(run), 0.0)
    coin = np.random.default_rng(0).choice([-1, 1], 300)
    honest, flipped, random = (
        one._replace(scalars=np.rint(sign * 64 * true.along(one).mean(0)).astype(np.int64))
        for one, sign in zip(some, (1, -1, coin), strict=True)
    )
    good, bad, useless = shares(run, [honest, flipped, random])
    assert good.sum > 5 * good.squares**0.5
    assert bad.sum < -5 * bad.squares**0.5
    assert abs(useless.sum) < 3 * useless.squares**0.5
    assert good.worth > 0 > bad.worth
    assert abs(useless.worth) < good.worth / 3


def test_nothing_is_written_and_no_parameter_asks_for_gradients_afterwards() -> None:
    run = begun("gpt2", EVERYTHING)
    run.weights.rebuild()
    before, digest = weights(run), run.core.digest()
    shares(run, ORIGINS)
    assert same(before, weights(run))
    assert run.core.digest() == digest
    assert not any(parameter.requires_grad for parameter in run.loaded.model.parameters())


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_what_is_computed_in_fewer_bits_says_much_the_same(dtype: str) -> None:
    exact, found = (shares(begun("opt", dtype=kind), ORIGINS) for kind in ("float32", dtype))
    sizes = np.array([one.worth for one in exact])
    assert np.array([one.worth for one in found]) == pytest.approx(sizes, abs=0.15 * abs(sizes).max())


def test_a_backward_pass_through_packed_weights_does_not_keep_them_unpacked() -> None:
    run = begun("opt", dtype="int8")
    run.weights.rebuild()
    shapes = {(site.target.out_features, site.target.in_features) for site in run.loaded.sites}
    kept: list[tuple[int, ...]] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tuple(tensor.shape))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        shares(run, ORIGINS)
    assert kept
    assert not shapes & set(kept)
    assert not {shape[::-1] for shape in shapes} & set(kept)


def test_others_of_the_rows_are_taken_by_turns_with_as_many_of_each_class() -> None:
    rows = line_rows(TASK, [{"sentence": "film " * n, "label": "01"[n >= 16]} for n in range(40)])
    tokenizer = begun("opt").loaded.tokenizer
    taken = [batches_of(TASK, tokenizer, rows, 16, turn) for turn in range(3)]
    assert [[batch.examples for batch in batches] for batches in taken] == [[8, 8]] * 3
    assert all((batch.right.sum(0) == 4).all() for batches in taken for batch in batches)
    first, second, third = (torch.cat([batch.columns for batch in batches]).tolist() for batches in taken)
    assert first == third != second


def test_a_pause_and_a_loss_that_is_no_number_are_errors_of_their_own() -> None:
    run = begun("opt")
    said = [(ORIGINS[0], np.ones(30, np.int64))]
    with refused(Code.PAUSED):
        run.shares(together(run, ORIGINS[:1]), said, 4, 0, keep_going=lambda: False)
    run.loaded.model.get_input_embeddings().weight.data.fill_(math.nan)
    with refused(Code.LOSS_NOT_FINITE):
        run.shares(together(run, ORIGINS[:1]), said, 4, 0)


@pytest.mark.parametrize("power", [12, 40], ids=["far", "to no numbers"])
def test_who_ruins_the_model_does_not_choose_where_the_others_are_judged(power: int) -> None:
    run = begun("opt")
    alone = shares(run, ORIGINS[:2])
    ruinous = ORIGINS[2]._replace(scalars=ORIGINS[2].scalars << power)
    beside = shares(run, [*ORIGINS[:2], ruinous])
    assert gain(run, [*ORIGINS[:2], ruinous]) < 0 or power == 40
    size = max(abs(one.worth) for one in alone)
    for one, other in zip(alone, beside, strict=False):
        assert other.worth == pytest.approx(one.worth, abs=0.1 * size)


def test_no_updates_have_no_share_and_cost_nothing() -> None:
    assert begun("opt").shares({}, [], 4, 0) == ([], 0)
