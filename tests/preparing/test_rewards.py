"""A trial of a reward run: numbers follow from the answers, and a run that cannot learn is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sfnode.engine.estimator import quantise
from sfnode.engine.generation import Continuation
from sfnode.engine.gradients import Gradient
from sfnode.engine.reward_objective import Drawn, Question, Rewards, alike
from sfnode.engine.trainer import Trainer
from sfnode.errors import Code
from sfnode.manifest.task import ANSWERS
from sfnode.preparing import rewards
from sfnode.preparing.manifest import build
from sfnode.preparing.rewards import MOVE, run
from sfnode.preparing.scalars import seeds_of
from sfprotocol.decisions import RATE_ONE
from tests.engine.test_estimator import hand_moved, written_directions
from tests.engine.test_reward_objective import log_prob
from tests.refusals import refused
from tests.verifiers.test_specs import summed

LONGER = summed(*({"kind": "length", "least": 3 * n} for n in range(1, 9)))
"""Likes longer answers better."""


HALF = summed({"kind": "length"}, {"kind": "format", "begins": "####"})
"""Gives every answer half of what there is."""

UPDATES = 8


@pytest.fixture(autouse=True)
def few_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewards, "UPDATES", UPDATES)


@pytest.fixture
def reward_run(tmp_path: Path) -> Any:
    """Make a trainer of a reward run on the built-in model and its reviews."""

    def make(verifier: dict[str, Any] = LONGER, **given: Any) -> Trainer:
        file = tmp_path / "verifier.json"
        file.write_text(json.dumps(verifier))
        options = {"template": "{text} it was", "verifier": str(file), "answer_tokens": 6, "batch_size": 4}
        data = {"train": "builtin:reviews:train", "train_limit": 40, "temperature": 1.0}
        return Trainer.load(build(options | data | given))

    return make


@pytest.mark.parametrize("group", [0, 4])
def test_numbers_follow_from_answers_that_are_drawn(reward_run: Any, group: int) -> None:
    trainer = reward_run(group=group)
    far: list[tuple[int, int]] = []
    chosen, sample = run(trainer, advance=lambda done, total: far.append((done, total)))
    assert far == sorted(far)
    assert far[-1][0] == far[-1][1] == len(far)
    assert 8 <= sample.spread / chosen["scalar_delta"] <= 128


def test_an_update_moves_what_the_model_writes_by_as_much_as_it_may(reward_run: Any) -> None:
    """By weights moved by hand: half the mean square of the changes of log-probabilities, which is the
    divergence of the answers that are read."""
    trainer = reward_run(group=UPDATES)
    (chosen, sample), seeds = run(trainer), seeds_of(trainer, UPDATES)
    objective = trainer.objective
    assert isinstance(objective, Rewards)
    drawn = objective.draw(trainer.mini_batch(seeds[0]), seeds[0])
    steps = [-chosen["learning_rate"] * alpha for alpha in sample.slopes]
    each = [written_directions(trainer, seed, 0) for seed in seeds]
    moves = [
        torch.stack([step * one for step, one in zip(steps, layer, strict=True)]).sum(0)
        for layer in zip(*each, strict=True)
    ]
    changes = []
    batch = drawn.encoded
    for number, size in enumerate(batch.tokens[:, 0].int().tolist()):
        told = batch.targets[batch.sequences == number].tolist()
        read = batch.input_ids[number, : int(batch.attention_mask[number].sum())].tolist()
        answer = read[: len(read) - size + 1], told  # from where answers to its prompt part
        before = log_prob(trainer, *answer)
        with hand_moved(trainer, moves, 0.1):  # as far as slopes reach
            changes.append((log_prob(trainer, *answer) - before) / 0.1)
    signal = UPDATES / (UPDATES + trainer.manifest.dimensions)
    assert np.mean(np.square(changes)) / 2 == pytest.approx(MOVE * signal, rel=0.15)


def test_slopes_are_the_scalars_that_a_node_tells(reward_run: Any) -> None:
    trainer = reward_run(group=4)
    (_, sample), seeds = run(trainer), seeds_of(trainer, UPDATES)
    numbers = trainer.manifest.training
    told = [quantise(one, numbers.scalar_delta, numbers.scalar_limit) for one in sample.slopes]
    assert trainer.step(seeds, 0).scalars == tuple(told)


def test_a_run_in_which_no_update_has_a_slope_is_refused(
    reward_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in half precision where losses overflow."""
    measured = rewards.gradient

    def overflowing(*how: Any) -> Gradient:
        return Gradient(measured(*how).cells * math.nan, math.nan)

    monkeypatch.setattr(rewards, "gradient", overflowing)
    with refused(Code.LOSS_FLAT):
        run(reward_run())


def test_the_rate_is_one_that_a_manifest_can_have(reward_run: Any) -> None:
    manifest = reward_run().manifest
    assert rewards._rate(manifest, 1e30) * RATE_ONE == 1
    assert rewards._rate(manifest, 1e-30) == 0.5


@pytest.mark.parametrize(
    ("verifier", "what", "fix"),
    [
        ({"kind": "format", "begins": "####"}, "have the reward 0, and", "easier prompts"),
        ({"kind": "length"}, "have the reward 1", "harder prompts"),
        (HALF, "(mean reward 0.500)", "temperature"),
    ],
    ids=["nothing is right", "all is right", "all is alike"],
)
def test_a_run_in_which_no_answer_is_better_than_another_is_refused_with_advice(
    reward_run: Any, verifier: dict[str, Any], what: str, fix: str
) -> None:
    with refused(Code.REWARDS_ALIKE, what, fix=fix):
        run(reward_run(verifier))


def test_answers_that_were_cut_off_may_be_why_none_is_right() -> None:
    def drawn(cut: int) -> Drawn:
        answers = [Continuation((7,), "no", ended=number >= cut) for number in range(8 * ANSWERS)]
        return Drawn([Question((1,), {})] * 8, answers, np.zeros((8, ANSWERS)))

    assert "cut off" not in alike([drawn(0)]).what
    assert "30 of them were cut off: raise answer_tokens" in alike([drawn(30)]).what
