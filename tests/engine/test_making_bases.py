"""Making bases: directions are those of the gradient, or of inputs and errors, and fit what is published."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from sfnode.cli.bases import words
from sfnode.engine import making_bases
from sfnode.engine.trainer import Trainer
from sfnode.errors import Code
from sfnode.manifest.training import PUBLISHED_UNIT, Training, units_of
from sfnode.models.cuts import hidden
from sfnode.models.quantized import QuantisedLinear
from sfnode.models.targets import Form, Selection, blocks_of, view
from sfnode.tasks.encoding import Encoded, encode
from tests.engine.helpers import ENCODERS, FAMILIES, ROWS, manifest, same, trainer, weights, whole_gradients
from tests.engine.test_estimator import loss
from tests.refusals import refused

RANK = 2
NUMBERS = Training(rank=RANK)


def batches(run: Trainer) -> list[Encoded]:
    task = run.manifest.task
    return [encode(task, run.loaded.tokenizer, rows) for rows in (ROWS[:2], ROWS[2:4], ROWS[1:3], ROWS[:4])]


def mean_gradients(run: Trainer) -> list[torch.Tensor]:
    return whole_gradients(run, lambda: sum((loss(run, batch) for batch in batches(run)), torch.zeros(())))


def orthonormal(columns: np.ndarray) -> torch.Tensor:
    return torch.linalg.qr(torch.from_numpy(columns).float())[0]


@pytest.mark.parametrize("family", [*FAMILIES, *ENCODERS])
def test_bases_hold_nearly_what_the_best_directions_hold(family: str) -> None:
    """Of the mean gradient, and of what inputs and errors say together."""
    run = trainer(manifest(family))
    made = making_bases.gradients(run.loaded, batches(run), NUMBERS)
    held = best = 0.0
    for gradient, (u, v) in zip(mean_gradients(run), made.pairs, strict=True):
        held += float((orthonormal(u).t() @ gradient @ orthonormal(v)).square().sum())
        best += float(torch.linalg.svdvals(gradient)[:RANK].square().sum())
    assert held >= 0.9 * best
    examples = sum(batch.examples for batch in batches(run))
    assert made.example_forwards == 3 * examples
    made = making_bases.errors(run.loaded, batches(run), NUMBERS)
    held = best = 0.0
    for product, (_, v) in zip(products_with_errors(run), made.pairs, strict=True):
        held += float((product @ orthonormal(v)).square().sum()) / float(product.square().sum())
        best += float(torch.linalg.svdvals(product)[:RANK].square().sum()) / float(product.square().sum())
    assert held >= 0.9 * best
    assert made.example_forwards == examples


def share(matrix: torch.Tensor) -> float:
    """What the best directions hold of a matrix."""
    values = torch.linalg.svdvals(matrix).square()
    return float(values[:RANK].sum() / values.sum())


def products_with_errors(run: Trainer) -> list[torch.Tensor]:
    """Of each target in a block what its inputs and the errors, less their means, say together: (hidden, in);
    of one behind the last block its mean gradient (out, in)."""
    parameters = [getattr(site.module, site.parameter) for site in run.loaded.sites]
    blocks = blocks_of(run.loaded.model)
    within = {module for block in blocks for module in block.modules()}
    behind = [site.module not in within for site in run.loaded.sites]
    for parameter in parameters:
        parameter.requires_grad_(True)
    inputs: dict[int, torch.Tensor] = {}
    states: list[torch.Tensor] = []

    def look(number: int) -> Any:
        return lambda module, given, output: inputs.update({number: given[0].detach()})

    def keep(module: Any, given: Any, output: Any) -> None:
        states[:] = [hidden(output)]
        states[0].retain_grad()

    handles = [site.module.register_forward_hook(look(n)) for n, site in enumerate(run.loaded.sites)]
    handles.append(blocks[-1].register_forward_hook(keep))
    found: list[torch.Tensor | float] = [0.0] * len(parameters)
    with torch.enable_grad():
        for batch in batches(run):
            loss(run, batch).backward()  # type: ignore[no-untyped-call]
            assert states[0].grad is not None
            told = states[0].grad.any(-1)  # (S, T)
            error = states[0].grad[told]
            assert len(error) == (len(batch.input_ids) if run.loaded.classifies else len(told.nonzero()))
            for number, given in inputs.items():
                if not behind[number]:
                    found[number] += (error - error.mean(0)).t() @ given.reshape(*told.shape, -1)[told]
    for handle in handles:
        handle.remove()
    for number, parameter in enumerate(parameters):
        if behind[number]:
            found[number] = view(parameter.grad, run.loaded.sites[number].form)
        parameter.requires_grad_(False)
        parameter.grad = None
    return [torch.as_tensor(one).cpu() for one in found]


def test_nothing_flows_back_through_the_blocks() -> None:
    """A pass of bases from errors keeps what inference keeps, and the states behind the last block."""
    run = trainer(manifest("llama"))
    asked = []
    handles = [
        block.register_forward_hook(lambda module, given, output: asked.append(hidden(output).requires_grad))
        for block in blocks_of(run.loaded.model)
    ]
    making_bases.errors(run.loaded, batches(run), NUMBERS)
    for handle in handles:
        handle.remove()
    assert asked
    assert not any(asked)


def test_of_long_texts_some_positions_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(making_bases, "POSITIONS", 3)
    run = trainer(manifest("llama"))
    (batch, *_) = batches(run)
    every = replace(
        batch,
        sequences=torch.arange(len(batch.input_ids)).repeat_interleave(batch.input_ids.shape[1]),
        columns=torch.arange(batch.input_ids.shape[1]).repeat(len(batch.input_ids)),
    )
    places, positions = making_bases._answered(run.loaded, every)
    assert len(set(places.tolist())) == len(places) == 3
    assert positions == batch.input_ids.numel()
    assert (places < positions).all()


def test_what_the_directions_hold_is_said_in_words() -> None:
    made = making_bases.Made([(np.ones((4, 2), np.int8),) * 2], (0.5, 0.25), 0.125, 1_128)
    for kind, what in (("gradients", "mean gradient"), ("errors", "inputs' share in the errors")):
        assert words(kind, made) == (
            f"2 directions of every layer hold 38% of its {what} in the mean over the layers, and 25% at "
            "least; two halves of the rows agree to 0.12 of 1; 1,128 example-forwards"
        )


def test_what_the_directions_hold_of_the_mean_gradient_and_how_far_mini_batches_agree_is_estimated() -> None:
    run = trainer(manifest("opt"))
    made = making_bases.gradients(run.loaded, batches(run), NUMBERS)
    shares = [share(one) for one in mean_gradients(run)]
    assert made.held == pytest.approx(shares, abs=0.3)
    assert np.mean(made.held) == pytest.approx(np.mean(shares), abs=0.05)
    same = making_bases.gradients(run.loaded, batches(run)[:1] * 2, NUMBERS)
    assert same.agreement == pytest.approx(1.0, abs=1e-3)
    assert made.agreement < same.agreement


@pytest.mark.parametrize("rank", [1, 4])
def test_columns_have_root_mean_square_one_in_units_of_what_is_published(rank: int) -> None:
    run, numbers = trainer(manifest("llama")), Training(rank=rank)
    for pairs in (
        making_bases.gradients(run.loaded, batches(run), numbers).pairs,
        making_bases.errors(run.loaded, batches(run), numbers).pairs,
    ):
        for target, pair in zip(run.manifest.model.parsed_targets(), pairs, strict=True):
            for side, rows in zip(pair, (target.out_features, target.in_features), strict=True):
                assert side.shape == (rows, rank)
                assert side.dtype == np.int8
                sizes = np.sqrt(np.mean((side * PUBLISHED_UNIT) ** 2, axis=0))
                assert np.all((np.abs(sizes - 1) < 0.1) | (np.abs(side).max(0) == making_bases.LARGEST_ENTRY))


def test_those_of_a_first_order_run_are_orthonormal_in_its_units() -> None:
    run = trainer(manifest("llama"))
    numbers = Training(rank=4, estimator="first-order", basis="published", bases="0" * 64, norm_limit=1)
    for target, pair in zip(
        run.manifest.model.parsed_targets(),
        making_bases.gradients(run.loaded, batches(run), numbers).pairs,
        strict=True,
    ):
        for side, unit in zip(pair, units_of(numbers, target), strict=True):
            columns = side * unit
            assert columns.T @ columns == pytest.approx(np.eye(4), abs=0.08)
            assert 5 < np.sqrt(np.mean(side.astype(float) ** 2)) < 12


def test_a_column_with_an_outlier_keeps_its_direction_and_is_scaled_down() -> None:
    column = torch.zeros(1024, 2)
    column[3, 0], column[:, 1] = 5.0, 1e-9
    found = making_bases.quantised(column, PUBLISHED_UNIT)
    assert found[3, 0] == making_bases.LARGEST_ENTRY
    assert np.count_nonzero(found[:, 0]) == 1
    assert (found[:, 1] == 1 / PUBLISHED_UNIT).all()
    assert not making_bases.quantised(torch.zeros(8, 1), PUBLISHED_UNIT).any()


def test_with_two_directions_every_pair_of_columns_has_a_share_in_the_gradient() -> None:
    run = trainer(manifest("opt"))
    gradient = mean_gradients(run)[0]
    u, v = making_bases.gradients(run.loaded, batches(run), NUMBERS).pairs[0]
    shares = (torch.from_numpy(u).float().t() @ gradient @ torch.from_numpy(v).float()).abs()
    assert float(shares.min()) > 0.05 * float(shares.max())


def test_targets_that_are_no_linear_layers_get_signs() -> None:
    run = trainer(manifest("opt", selection=Selection(embeddings=True, norms=True)))
    made = making_bases.gradients(run.loaded, batches(run), NUMBERS)
    others = [
        pair
        for site, pair in zip(run.loaded.sites, made.pairs, strict=True)
        if site.form in (Form.EMBEDDING, Form.VECTOR)
    ]
    assert others
    assert all((np.abs(side) == 1 / PUBLISHED_UNIT).all() for pair in others for side in pair)


def test_a_model_is_as_it_was_afterwards() -> None:
    run = trainer(manifest("opt"))
    before = weights(run)
    making_bases.gradients(run.loaded, batches(run), NUMBERS)
    assert same(before, weights(run))
    assert not any(parameter.requires_grad for parameter in run.loaded.model.parameters())
    assert all(parameter.grad is None for parameter in run.loaded.model.parameters())


def test_gradients_of_quantised_weights_have_the_directions_of_those_that_they_stand_for() -> None:
    narrow, run = trainer(manifest("opt"), dtype="int8"), trainer(manifest("opt"))
    for own, site in zip(narrow.loaded.sites, run.loaded.sites, strict=True):
        if isinstance(own.module, QuantisedLinear):
            site.module.weight.data = own.module.dense()
    found, wanted = (making_bases.gradients(one.loaded, batches(one), NUMBERS) for one in (narrow, run))
    for pair, expected in zip(found.pairs, wanted.pairs, strict=True):
        for side, exact in zip(pair, expected, strict=True):
            one, other = side.astype(float), exact.astype(float)
            cosines = (one * other).sum(0) / np.linalg.norm(one, axis=0) / np.linalg.norm(other, axis=0)
            assert np.abs(cosines).min() > 0.98


def test_what_is_not_finite_is_refused() -> None:
    run = trainer(manifest("opt"))
    getattr(run.loaded.sites[0].module, run.loaded.sites[0].parameter).data[0, 0] = torch.nan
    with refused(Code.BAD_OPTION):
        making_bases.gradients(run.loaded, batches(run), NUMBERS)
