"""Drift: the distance of a model from its base, from cores and from answers."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import kl_div

from sfnode.engine import drift
from sfnode.engine.trainer import Trainer
from sfnode.models.loader import matrix
from sfnode.models.targets import DEFAULT, Selection
from sfnode.schema.metrics import drift_in_words
from tests.engine.helpers import EVERYTHING, manifest, trainer, updates, weights
from tests.engine.published import published

EPOCHS = (0, 2, 5, 7)


def moved(run: Trainer, epochs: tuple[int, ...] = EPOCHS) -> Trainer:
    run.apply(updates(60, epochs))
    run.weights.rebuild()
    return run


def changes(run: Trainer) -> list[torch.Tensor]:
    """What is written in the weights beyond the base, float64."""
    sites = enumerate(run.loaded.sites)
    return [matrix(site).double() - run.loaded.base_weights.read(n).double() for n, site in sites]


@pytest.mark.parametrize(("family", "selection"), [("opt", DEFAULT), ("gpt2", EVERYTHING)])
def test_the_distance_is_that_of_the_weights(family: str, selection: Selection) -> None:
    run = moved(trainer(manifest(family, selection=selection, learning_rate=1e-3)))
    found, written = run.drift(), changes(run)
    base = [run.loaded.base_weights.read(n).double().norm() for n in range(len(written))]
    assert found.norm == pytest.approx(math.hypot(*(float(one.norm()) for one in written)), rel=1e-5)
    assert found.distance == pytest.approx(found.norm / math.hypot(*map(float, base)), rel=1e-9)
    for layer, change, start, target in zip(found.layers, written, base, run.space.targets, strict=True):
        assert layer.name == target.name
        assert layer.norm == pytest.approx(float(change.norm()), rel=1e-3, abs=1e-6)
        if start:
            assert layer.distance == pytest.approx(layer.norm / float(start))


@pytest.mark.parametrize("epochs", [(3,), EPOCHS])
def test_both_ways_of_computing_it_agree(epochs: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """With few columns no matrix is made, with many it is: both with the products between subspaces."""
    run = moved(trainer(manifest("opt", rank=2, learning_rate=1e-3)), epochs)
    cores = run.core.cores()
    found = drift.norms(run.space, run.scale, cores)
    for number, target in enumerate(run.space.targets):
        whole = np.zeros((target.out_features, target.in_features))
        for subspace, core in cores.items():
            u, v = (side.double().numpy() for side in run.space.basis.matrices(subspace, number))
            whole += run.scale(subspace) * run.space.unit(number) * (u @ core[number] @ v.T)
        assert found[number] == pytest.approx(np.linalg.norm(whole), rel=1e-12)
    alone = [drift.norms(run.space, run.scale, {subspace: core}) for subspace, core in cores.items()]
    if len(epochs) > 1:
        assert not np.allclose(found, np.linalg.norm(alone, axis=0), rtol=1e-3), "terms are not orthogonal"


def test_subspaces_with_the_same_published_bases_are_one(tmp_path: Path) -> None:
    run = trainer(published("opt", tmp_path, learning_rate=1e-3), bases=tmp_path)
    moved(run)
    found = drift.norms(run.space, run.scale, run.core.cores())
    assert found == pytest.approx([float(one.norm()) for one in changes(run)], rel=1e-3)
    assert len(drift._by_bases(run.space, run.scale, run.core.cores())) == 1


def test_what_cancels_is_no_distance() -> None:
    run = trainer(manifest("opt"))
    core = run.core.of(0) + 5
    assert drift.norms(run.space, run.scale, {0: core - core}) == [0.0] * len(run.space.targets)
    assert drift.norms(run.space, run.scale, {}) == [0.0] * len(run.space.targets)


def test_a_base_model_has_not_drifted() -> None:
    found = trainer(manifest("opt")).drift()
    assert (found.norm, found.distance, found.kl) == (0.0, 0.0, 0.0)
    assert found.tokens > 100


def test_the_divergence_is_that_of_the_two_models_and_measuring_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run, base = moved(trainer(manifest("opt", learning_rate=1e-3))), trainer(manifest("opt"))
    before, digest = weights(run), run.core.digest()
    monkeypatch.setattr(drift, "NEUTRAL", "the film was bright .\n\n  a dull story about the sea  \n")
    found = run.drift()
    total = tokens = 0
    for line in ("the film was bright .", "a dull story about the sea"):
        start = [] if run.loaded.tokenizer.bos_token_id is None else [run.loaded.tokenizer.bos_token_id]
        ids = start + run.loaded.tokenizer(line, add_special_tokens=False).input_ids
        told = base.loaded.model.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=drift.WRITTEN)
        assert len(told[0]) > len(ids)
        ids = told[0].tolist()
        both = (one.loaded.model(torch.tensor([ids])).logits[0, :-1] for one in (run, base))
        now, then = (logits.double().log_softmax(-1) for logits in both)
        total += float(kl_div(now, then, reduction="sum", log_target=True))
        tokens += len(ids) - 1
    assert found.tokens == tokens
    assert found.kl == pytest.approx(total / tokens, rel=1e-4)
    assert found.kl > 1e-5
    assert all(torch.equal(*both) for both in zip(before, weights(run), strict=True))
    assert run.core.digest() == digest
    assert run.drift() == found


def test_a_model_that_says_nothing_has_drifted_as_far_as_can_be() -> None:
    run = moved(trainer(manifest("opt", learning_rate=1e-3)))
    run.drift()
    run.loaded.model.get_output_embeddings().weight.data.fill_(math.nan)
    assert run.drift().kl == math.inf


def test_a_long_text_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    run, other = trainer(manifest("opt")), trainer(manifest("opt"))
    monkeypatch.setattr(drift, "NEUTRAL", "some text . " * 50)
    monkeypatch.setattr(drift, "TOKENS", 20)
    assert run.drift().tokens == 20
    monkeypatch.setattr(drift, "TOKENS", 10**6)
    monkeypatch.setattr(drift, "KEPT_ENTRIES", 30 * run.loaded.model.config.vocab_size)
    assert other.drift().tokens == 30


def test_a_classifier_has_a_distance_alone() -> None:
    found = moved(trainer(manifest("roberta", learning_rate=1e-3))).drift()
    assert (found.kl, found.tokens) == (None, 0)
    assert found.distance > 0
    assert "KL" not in drift_in_words(found)
