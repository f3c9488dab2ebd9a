"""A model's forward pass: what it says of each target, and how a batch is cut into passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sfnode.engine import forward
from sfnode.engine.estimator import estimates
from sfnode.engine.trainer import Trainer
from sfnode.manifest.task import Task
from sfnode.models.loader import LoadedModel
from sfnode.tasks.encoding import Encoded, WrittenAnswer, encode, encode_written
from tests.engine.helpers import ENCODERS, FAMILIES, ROWS, data_file, in_float64, manifest, trainer

CPU = torch.device("cpu")
WIDTH = 3_072
"""Of the layers of OPT-125M's shape."""


def batch(run: Trainer) -> Encoded:
    """Sequences of several lengths."""
    found = encode(run.manifest.task, run.loaded.tokenizer, ROWS)
    assert len(set(found.attention_mask.sum(1).tolist())) > 2
    return found


def told_of_padding(run: Trainer, encoded: Encoded) -> torch.Tensor:
    """The log-probabilities (P, vocab) where a target is predicted, from all that a model can be told."""
    device = run.loaded.device
    with torch.inference_mode():
        logits = run.loaded.model(
            input_ids=encoded.input_ids.to(device), attention_mask=encoded.attention_mask.to(device)
        ).logits.cpu()
    where = (encoded.sequences,) if run.loaded.classifies else (encoded.sequences, encoded.columns)
    return torch.log_softmax(logits[where], -1)


@pytest.mark.parametrize("family", [*FAMILIES, *ENCODERS])
def test_a_score_is_the_models_own_log_probability_of_each_target(family: str) -> None:
    run = trainer(manifest(family))
    encoded = batch(run)
    wanted = told_of_padding(run, encoded)
    found = forward.score(run.loaded, encoded)
    torch.testing.assert_close(
        found.log_probs, wanted.gather(1, encoded.targets[:, None]).flatten(), rtol=1e-5, atol=1e-5
    )
    assert torch.equal(found.greedy, wanted.argmax(-1) == encoded.targets)
    assert found.log_probs.std() > 0.05


@pytest.mark.parametrize("family", FAMILIES)
def test_a_backward_pass_goes_through_what_texts_begin_with_too_which_is_read_once(family: str) -> None:
    run = trainer(manifest(family))
    prompts = [[4] * 20 + [token] for token in (5, 6, 7)]
    written = encode_written([WrittenAnswer(prompt, (8, 9), 0, 1.0) for prompt in prompts])
    weight = next(getattr(site.module, site.parameter) for site in run.loaded.sites)
    weight.requires_grad_(True)
    found = []
    for at_once in (False, True):
        loss = forward.mean_loss(run.loaded, written, at_once=at_once)
        (gradient,) = torch.autograd.grad(loss, [weight])
        found.append((float(loss.detach()), gradient))
    weight.requires_grad_(False)
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-5)
    torch.testing.assert_close(found[0][1], found[1][1], rtol=1e-3, atol=1e-6)
    assert found[0][1].abs().max() > 1e-4


@pytest.mark.parametrize("family", ["gemma3_text", "mistral", "bert"])
def test_what_stands_in_the_padding_does_not_matter(family: str) -> None:
    run = trainer(manifest(family))
    encoded = batch(run)
    before = forward.score(run.loaded, encoded).log_probs
    encoded.input_ids[encoded.attention_mask == 0] = 5
    torch.testing.assert_close(forward.score(run.loaded, encoded).log_probs, before)


@pytest.mark.parametrize("entries", [1, 40, 100])
def test_reducing_logits_block_by_block_changes_nothing(
    entries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trainer(manifest("opt"))
    whole = forward.score(run.loaded, batch(run))
    monkeypatch.setattr(forward, "LOGITS_AT_A_TIME", entries)
    parts = forward.score(run.loaded, batch(run))
    assert torch.equal(parts.log_probs, whole.log_probs)
    assert torch.equal(parts.greedy, whole.greedy)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8"])
def test_log_probabilities_are_in_float32_whatever_the_model_computes_in(dtype: str) -> None:
    run = trainer(manifest("opt"), dtype=dtype)
    assert forward.score(run.loaded, batch(run)).log_probs.dtype is torch.float32


def test_a_float64_model_says_float64() -> None:
    run = in_float64(trainer(manifest("opt")))
    found = forward.score(run.loaded, batch(run)).log_probs
    wanted = told_of_padding(run, batch(run)).gather(1, batch(run).targets[:, None]).flatten()
    assert found.dtype is torch.float64
    torch.testing.assert_close(found, wanted, rtol=1e-13, atol=1e-13)
    assert batch(run).losses(found).dtype is torch.float64


def cut(lengths: list[int]) -> list[list[int]]:
    """The lengths in each group."""
    array = np.array(lengths)
    return [array[group].tolist() for group in forward.groups(array, WIDTH, CPU, 0 * array)]


LIMIT = forward.CPU_PASS_ENTRIES // WIDTH
"""Tokens of a pass."""

OVERHEAD = forward.READING + forward.INTERPRETING / WIDTH
"""Tokens that take as long as what a pass costs whatever its size."""

lists_of_lengths = st.lists(st.integers(1, 700), min_size=1, max_size=80)


@given(lengths=lists_of_lengths)
def test_every_sequence_is_in_exactly_one_group_beside_those_of_like_length(lengths: list[int]) -> None:
    groups = forward.groups(np.array(lengths), WIDTH, CPU, np.zeros(len(lengths), np.int64))
    assert sorted(np.concatenate(groups).tolist()) == list(range(len(lengths)))
    assert [length for group in cut(lengths) for length in group] == sorted(lengths, reverse=True)
    assert all(len(group) for group in groups)


@given(lengths=lists_of_lengths)
def test_a_group_passes_the_limit_by_less_than_one_sequence(lengths: list[int]) -> None:
    assert all(len(group) * max(group) < LIMIT + max(group) for group in cut(lengths))


@given(length=st.integers(1, 200), count=st.integers(1, 80))
def test_equal_lengths_are_cut_into_as_few_and_as_equal_parts_as_can_be(length: int, count: int) -> None:
    sizes = [len(group) for group in cut([length] * count)]
    assert max(sizes) - min(sizes) <= 1
    assert len(sizes) == min(count, -(-length * count // LIMIT))


def price(groups: Sequence[Sequence[int]]) -> float:
    """Padded tokens, and what passes cost whatever their size."""
    return sum(len(group) * max(group) + OVERHEAD for group in groups)


@given(lengths=st.lists(st.integers(1, 80), min_size=1, max_size=6))
def test_padding_is_cut_off_where_it_costs_more_than_another_pass(lengths: list[int]) -> None:
    """Few enough that the limit does not matter: every way to cut them is tried."""
    descending = sorted(lengths, reverse=True)
    ways = product([False, True], repeat=len(lengths) - 1)
    prices = []
    for way in ways:
        edges = [0, *(place + 1 for place, here in enumerate(way) if here), len(lengths)]
        prices.append(price([descending[first:last] for first, last in pairwise(edges)]))
    assert price(cut(lengths)) == pytest.approx(min(prices))


def test_an_accelerator_takes_lengths_as_different_as_these_in_one_pass() -> None:
    """Reckoned as on a CPU, it would launch its kernels once for nearly every length."""
    lengths = np.array([16, 40, 80, 128, 200, 333] * 4)
    assert len(forward.groups(lengths, WIDTH, CPU, 0 * lengths)) > 4
    assert len(forward.groups(lengths, WIDTH, torch.device("cuda"), 0 * lengths)) == 1


def test_an_accelerator_too_cuts_off_what_is_padding_for_the_most_part() -> None:
    lengths = np.array([1000] * 2 + [20] * 100)
    groups = forward.groups(lengths, WIDTH, torch.device("cuda"), 0 * lengths)
    assert [len(group) for group in groups] == [2, 100]


TEXT = Task(kind="text", template="{sentence}")
"""Every token of a row is predicted."""


def by_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CPU_PASS_ENTRIES", "LEAST_PASS_TOKENS", "OTHER_PASS_TOKENS"):
        monkeypatch.setattr(forward, name, 8)


def by_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward, "pass_bytes", lambda device: 800)


@pytest.mark.parametrize("cut", [by_tokens, by_logits])
def test_cutting_into_passes_changes_no_estimate(
    cut: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trainer(manifest("llama"))
    directions = run.space.directions([1, 2], 0)
    rows = encode(TEXT, run.loaded.tokenizer, ROWS)
    whole = estimates(run.loaded, directions, [rows] * 2, 1e-2)
    passes, log_probs = [], forward.log_probs

    def counted(loaded: LoadedModel, this: forward.Pass, *moved: Any) -> torch.Tensor:
        passes.append(len(this.targets))
        return log_probs(loaded, this, *moved)

    monkeypatch.setattr(forward, "log_probs", counted)
    cut(monkeypatch)
    parts = estimates(run.loaded, directions, [rows] * 2, 1e-2)
    assert len(passes) > 2
    for one, other in zip(whole, parts, strict=True):
        assert one.alpha == pytest.approx(other.alpha, rel=1e-3)
        assert one.loss == pytest.approx(other.loss, rel=1e-6)


@pytest.mark.parametrize("family", ["gemma3_text", "opt", "bert"])
def test_an_evaluation_in_passes_scores_as_one_pass_does(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trainer(manifest(family))
    task = run.manifest.task if run.loaded.classifies else TEXT
    encoded = encode(task, run.loaded.tokenizer, ROWS)
    whole = forward.score(run.loaded, encoded)
    by_tokens(monkeypatch)
    parts = forward.score_in_passes(run.loaded, encoded)
    torch.testing.assert_close(parts.log_probs, whole.log_probs, rtol=1e-5, atol=1e-5)
    assert torch.equal(parts.greedy, whole.greedy)


def test_no_pass_of_an_evaluation_has_more_logits_than_fit_but_for_one_sequence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that trains comfortably on texts was killed when it evaluated: all logits were there at once."""
    run = manifest("llama", str(data_file(tmp_path))).model_copy(update={"task": TEXT})
    node = trainer(run)
    wanted = node.evaluate()
    entries = []
    logits = forward.logits

    def watched(loaded: LoadedModel, this: forward.Pass) -> torch.Tensor:
        found = logits(loaded, this)
        entries.append((found.numel(), found.shape[1] * int(this.rows.bincount().max())))
        return found

    monkeypatch.setattr(forward, "logits", watched)
    monkeypatch.setattr(forward, "pass_bytes", lambda device: 800)
    found = node.evaluate()
    assert found.value == pytest.approx(wanted.value, rel=1e-5)
    assert found.loss == pytest.approx(wanted.loss, rel=1e-5)
    assert len(entries) > 1
    assert all(total < 200 + longest for total, longest in entries)


@given(
    rows=st.lists(st.tuples(st.integers(1, 700), st.integers(0, 700)), min_size=1, max_size=80),
    place=st.sampled_from(["cpu", "cuda"]),
)
def test_a_group_passes_the_limit_of_logits_by_less_than_one_sequence(
    rows: list[tuple[int, int]], place: str
) -> None:
    lengths, targets = np.array(rows).T
    device = torch.device(place)
    most = forward.pass_logits(device)
    logits = targets * (most // 1000)
    for group in forward.groups(lengths, WIDTH, device, logits):
        assert logits[group].sum() < most + logits[group].max()


def test_a_pass_is_no_wider_than_its_longest_sequence_and_keeps_each_target_at_its_place() -> None:
    node = trainer(manifest("opt"))
    encoded = batch(node)
    lengths = encoded.attention_mask.sum(1)
    shortest = lengths.argsort().tolist()[:2]
    whole = forward.batch_of(encoded)
    targets = np.flatnonzero(np.isin(whole.sequences, shortest))
    this = forward.take(node.loaded, whole, np.array(shortest[::-1]), targets)
    assert this.input_ids.shape == (2, int(lengths[shortest].max()))
    assert torch.equal(this.targets, encoded.targets[targets])
    for row, column, target in zip(this.rows, this.columns, targets, strict=True):
        wanted = encoded.input_ids[encoded.sequences[target], encoded.columns[target]]
        assert this.input_ids[row, column] == wanted
