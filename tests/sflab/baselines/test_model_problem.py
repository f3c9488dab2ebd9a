"""A language model as a function of a vector: the built-in model on its reviews."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from sflab.baselines.model_problem import ModelProblem
from sfnode.engine import forward
from sfnode.errors import UserError
from sfnode.manifest.task import Task
from sfnode.models import loader
from sfnode.models.loader import LoadedModel
from sfnode.preparing.manifest import build
from sfnode.tasks import dataset
from sfnode.tasks.calibration import prior
from sfnode.tasks.encoding import evaluate
from tests.sflab.baselines.quadratic import made, ring, run

RUN = build({"loss": "plain"})
ROWS = dataset.load_rows("builtin:reviews:train", RUN.task, limit=40)


def model() -> LoadedModel:
    return loader.load(RUN, override=None, device=torch.device("cpu"))


CENTRED = RUN.task.model_copy(update={"loss": "centred"})


def problem(trained: Any, loaded: LoadedModel | None = None, task: Task = RUN.task) -> ModelProblem:
    shards = [ROWS[:20], ROWS[20:]]
    held_out = {"test": ROWS[:8]}
    return ModelProblem(loaded or model(), task, shards, held_out, 3, 1, trained, public=ROWS)


@pytest.mark.parametrize("task", [RUN.task, CENTRED], ids=["plain", "centred"])
@pytest.mark.parametrize("trained", ["full", "lora"])
def test_its_gradient_is_its_numerical_derivative(trained: Any, task: Task) -> None:
    of = problem(trained, task=task)
    made = torch.Generator().manual_seed(1)
    x = of.start() + 1e-2 * torch.randn(of.size, generator=made)  # away from where adapters are 0
    along = torch.randn(of.size, generator=made)
    along /= along.norm()
    loss, gradient = of.gradient(x, 1, 4)
    slope = float(gradient @ along)
    numerical = (of.loss(x + 1e-2 * along, 1, 4) - of.loss(x - 1e-2 * along, 1, 4)) / 2e-2
    assert of.loss(x, 1, 4) == pytest.approx(loss, abs=1e-6)
    assert slope == pytest.approx(numerical, rel=0.02, abs=1e-4)


@pytest.mark.parametrize("trained", ["full", "lora"])
def test_it_starts_at_the_base_model(trained: Any) -> None:
    loaded = model()
    base = evaluate(RUN.task, loaded.tokenizer, ROWS[:8], lambda e: forward.score_in_passes(loaded, e), 32)
    of = problem(trained, loaded)
    assert of.evaluate(of.start(), "test") == base
    assert of.evaluate(of.start() + 0.1, "test").loss != base.loss
    assert of.evaluate(of.start(), "test") == base


def test_with_a_centred_loss_it_is_measured_less_its_prior() -> None:
    loaded = model()
    of = problem("full", loaded, CENTRED)
    x = of.start() + 1e-3
    found = of.evaluate(x, "test")
    leaning = prior(RUN.task, loaded.tokenizer, ROWS, of.score, 32)
    assert found == evaluate(RUN.task, loaded.tokenizer, ROWS[:8], of.score, 32, leaning)


def test_its_parts_are_the_targets_or_two_factors_for_each_query_and_value() -> None:
    loaded = model()
    full = problem("full", loaded)
    assert [part.name for part in full.parts] == [site.target.name for site in loaded.sites]
    assert full.size == sum(site.target.in_features * site.target.out_features for site in loaded.sites)
    of = problem("lora")
    assert {part.shape[0] if part.name.endswith("A") else part.shape[1] for part in of.parts} == {8}
    assert {part.name.split(".")[-2] for part in of.parts} == {"q_proj", "v_proj"}


def test_a_mini_batch_follows_from_seed_client_and_step() -> None:
    first, second = problem("full"), problem("full")
    x = first.start()
    assert first.loss(x, 0, 0) == second.loss(x, 0, 0)
    assert len({first.loss(x, client, step) for client in (0, 1) for step in (0, 1)}) == 4


@pytest.mark.parametrize(("name", "rate"), [("dsgd", 0.02), ("dsgd-lora", 0.1)])
def test_methods_train_it(name: str, rate: float) -> None:
    of = problem("lora" if name.endswith("lora") else "full")
    method = made(name, 2, ring(2), problem=of, learning_rate=rate)
    before = method.evaluate("test").loss
    run(method, 0, 8)
    assert method.evaluate("test").loss < before


def test_weights_that_are_not_float32_are_refused() -> None:
    with pytest.raises(UserError, match="float32"):
        problem("full", replace(model(), dtype=torch.bfloat16))
