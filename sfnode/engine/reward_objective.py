"""The objective of reward runs: answers that the model writes, and what a verifier gives them.

There are no slopes of such a loss by two forward passes: what asks for them is refused (`tasks.verifying`).
It knows a model, prompts and a verifier; it knows neither updates nor who asks.

An update measures the slope of mean rewards along its direction. The loss of an answer is 1 less its reward,
so that the rule by which updates lower a loss (DESIGN 3) raises rewards. Both points of a query write their
answers to the same prompts, and from the same draws.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from sfnode.engine import estimator, samples
from sfnode.engine.estimator import BOTH_SIDES, ONE_SIDE, Estimate, of_groups, of_pairs, representable
from sfnode.engine.forward import Perturb
from sfnode.engine.generation import CACHE_BYTES, AnswerPlan, AnswerRequest, Continuation, generate, positions
from sfnode.engine.objective import OWN, Held, KeepGoing, always, paused
from sfnode.errors import Code, UserError
from sfnode.manifest import Manifest
from sfnode.models.loader import LoadedModel
from sfnode.models.perturbation import Directions
from sfnode.schema.evaluation import EvaluationOfRows, PassAt
from sfnode.schema.metrics import PASS_AT_1
from sfnode.tasks import metrics, tokenization, verifying
from sfnode.tasks.mini_batches import Shard
from sfnode.tasks.prompts import Prompt, Row, render_row
from sfprotocol.seeds import derive_key, token_keys


class Question(NamedTuple):
    """A prompt, and the row of data that its answers are scored by."""

    prompt: Sequence[int]
    """Token ids."""
    row: Any


Scorer = Callable[[str, Any], float]
"""Returns the reward of an answer, 0 to 1, by its question's row."""


def written(
    loaded: LoadedModel,
    directions: Directions,
    seeds: Sequence[int],
    batches: Sequence[Sequence[Question]],
    plan: AnswerPlan,
    epsilon: float,
    group: int = 0,
) -> list[Continuation]:
    """Return answers at the points of each mini-batch, by mini-batch, point and question.

    In a group mini-batches are the same, and answers are drawn from the first one's seed. Raises UserError as
    `generation.generate`.
    """
    epsilon = representable(epsilon, directions)
    rows = []
    for number, batch in enumerate(batches):
        first = number - number % group if group else number
        keys = token_keys(seeds[first], len(batch)).tolist()
        # those of one direction together: rows that are written at once are then of few directions
        for side in _sides(group):
            rows += [
                AnswerRequest(question.prompt, number, side * epsilon, key)
                for question, key in zip(batch, keys, strict=True)
            ]
    return generate(loaded, rows, plan, directions) or []  # nothing breaks it off


def scored(
    answers: Sequence[Continuation],
    batches: Sequence[Sequence[Question]],
    score: Scorer,
    epsilon: float,
    group: int = 0,
) -> list[Estimate]:
    """Return what `written` answers tell of the slopes, at points that were held so far apart."""
    coming = iter(answers)
    losses = [
        [
            torch.tensor(
                [1 - score(next(coming).text, question.row) for question in batch], dtype=torch.float64
            )
            for _ in _sides(group)
        ]
        for batch in batches
    ]  # by query and side
    measured = [by_side[side] for side in range(len(_sides(group))) for by_side in losses]
    return of_groups(measured, group, epsilon) if group else of_pairs(measured, epsilon)


def _sides(group: int) -> Sequence[int]:
    return ONE_SIDE if group else BOTH_SIDES


RIGHT = 1 - 1e-8
"""Reward of an answer that passes: 1, but for the weights of a sum, which add up to it within 10^-9."""

SAMPLED_AT = 1.0
"""Temperature at which answers are drawn for pass@k in a run that takes the likeliest tokens."""


class Rewards:
    """The objective of one trainer."""

    def __init__(
        self, manifest: Manifest, loaded: LoadedModel, rows: Sequence[Row], secret: bytes = b""
    ) -> None:
        """`rows` are those that prompts are drawn from; `secret` as for `Shard`.

        Raises UserError BAD_OPTION where the model has no positions for a prompt beside an answer.
        """
        task = manifest.task
        self._task, self._loaded = task, loaded
        self._epsilon, self._group = manifest.training.epsilon, manifest.training.group
        self._room = min(task.max_tokens, positions(loaded)) - task.answer_tokens
        if self._room < 1:
            raise UserError(
                Code.BAD_OPTION,
                f"the base model has {positions(loaded)} positions: none is left for a prompt beside answers "
                f"of {task.answer_tokens} tokens",
                "Make the run with fewer answer_tokens, or with a model of more positions.",
            )
        # bounded by a constant, whatever memory there is: rows that are written together round alike
        self._plan = AnswerPlan(task.answer_tokens, task.temperature, task.stop, cache_bytes=CACHE_BYTES)
        self._likeliest = self._plan._replace(temperature=0.0)
        self._score = verifying.score_of(task)
        self._shard = Shard(task, loaded.tokenizer, rows, manifest.training.batch_size, secret=secret)
        self.odds = self._shard.odds

    def mini_batch(self, seed: int) -> list[Question]:
        """Return the prompts that a seed draws."""
        rows, _ = self._shard.draw(seed)
        return [Question(self._prompt(row), row) for row in rows]

    def estimates(
        self,
        directions: Directions,
        seeds: Sequence[int],
        batches: Sequence[Sequence[Question]],
        distance: float,
    ) -> list[Estimate]:
        """Estimate slopes by the rewards of answers that the model writes (`engine.rewards`)."""
        return self.measured(directions, seeds, batches, distance)[1]

    def measured(
        self,
        directions: Directions,
        seeds: Sequence[int],
        batches: Sequence[Sequence[Question]],
        distance: float,
    ) -> tuple[list[Continuation], list[Estimate]]:
        """Return the same, and the answers before it."""
        answers = written(self._loaded, directions, seeds, batches, self._plan, distance, self._group)
        exact = estimator.representable(distance, directions)
        return answers, scored(answers, batches, self._score, exact, self._group)

    def evaluate(
        self, held: Held, of: bytes = OWN, keep_going: KeepGoing = always, perturb: Perturb | None = None
    ) -> EvaluationOfRows:
        """Measure the rewards of one answer to each row, of the likeliest tokens."""
        asked = [AnswerRequest(self._prompt(row)) for row in held.rows]
        found = self._rewards(held.rows, asked, self._likeliest, keep_going, perturb)
        mean, passed = sum(found) / len(found), sum(reward >= RIGHT for reward in found)
        return EvaluationOfRows(
            metric=PASS_AT_1,
            **metrics.share(passed, len(found))._asdict(),
            loss=1 - mean,
            count=len(found),
            losses=tuple(1 - reward for reward in found),
        )

    def evaluate_base(
        self, held: Held, keep_going: KeepGoing = always, *, calibrated: bool = False
    ) -> EvaluationOfRows:
        """Measure the base model in the same way."""
        if calibrated:
            raise UserError(
                Code.BAD_OPTION,
                "answers that are written have no prior to be subtracted",
                "Leave out `calibrated`.",
            )
        return self.evaluate(held, keep_going=keep_going)

    def pass_at(self, held: Held, k: int, count: int, keep_going: KeepGoing = always) -> PassAt:
        """Estimate how often one of `k` answers to a row is right, from `count` that are drawn for each.

        By everybody with the same draws. Raises UserError PAUSED.
        """
        plan = self._plan._replace(temperature=self._task.temperature or SAMPLED_AT)
        keys = token_keys(derive_key(b"sfnode pass at k"), count * len(held.rows)).tolist()
        rows = [row for row in held.rows for _ in range(count)]
        prompts = [self._prompt(row) for row in held.rows for _ in range(count)]
        asked = [AnswerRequest(prompt, key=key) for prompt, key in zip(prompts, keys, strict=True)]
        found = [reward >= RIGHT for reward in self._rewards(rows, asked, plan, keep_going)]
        right = [sum(found[start : start + count]) for start in range(0, len(found), count)]
        measured = metrics.pass_at(right, count, k)
        return PassAt(k=k, samples=count, temperature=plan.temperature, **measured._asdict())

    def answer(self, rows: Sequence[Row], of: bytes = OWN) -> list[samples.Answered]:
        """Return what the model writes, beside what the verifier compares it with, and the rewards."""
        answers = (
            generate(self._loaded, [AnswerRequest(self._prompt(row)) for row in rows], self._likeliest) or []
        )
        found = [self._score(answer.text, row) for answer, row in zip(answers, rows, strict=True)]
        return [
            samples.shown(
                self._text(row),
                verifying.reference(self._task, row),
                answer.text,
                1.0 if reward >= RIGHT else reward,
            )
            for row, answer, reward in zip(rows, answers, found, strict=True)
        ]

    def _rewards(
        self,
        rows: Sequence[Row],
        asked: Sequence[AnswerRequest],
        plan: AnswerPlan,
        keep_going: KeepGoing,
        perturb: Perturb | None = None,
    ) -> list[float]:
        answers = generate(self._loaded, asked, plan, keep_going=keep_going, perturb=perturb)
        if answers is None:
            raise paused()
        return [self._score(answer.text, row) for answer, row in zip(answers, rows, strict=True)]

    def _text(self, row: Row) -> str:
        words = render_row(self._task, row)
        assert isinstance(words, Prompt)
        return words.prompt

    def _prompt(self, row: Row) -> list[int]:
        return tokenization.prompt_ids(self._loaded.tokenizer, self._text(row), self._room)
