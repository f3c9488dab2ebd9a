"""The objective of reward runs: the model writes answers, and a verifier scores them. It knows a model,
prompts and a verifier, but neither earlier updates nor its callers.

Answers drawn at the current weights give the slope of the mean reward (REINFORCE, Williams 1992). It equals
the slope of the answers' log-probabilities, each weighted by the answer's reward minus the mean reward of the
other answers to the same prompt (Kool et al. 2019; Ahmadian et al. 2024, arXiv 2402.14740). One backward pass
over the answers gives the slope for every entry of the cores, and so for all directions of a group. If all
answers to a prompt get the same reward, the prompt contributes nothing and needs no backward pass.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sfnode.engine import samples
from sfnode.engine.estimator import Estimate, standing
from sfnode.engine.forward import KeepGoing, Perturb, always
from sfnode.engine.generation import AnswerPlan, AnswerRequest, Continuation, generate, positions
from sfnode.engine.gradients import Gradient, along, gradient
from sfnode.engine.losses import BATCH_ROWS, LEAST_BATCHES, OWN, Held, RowLosses
from sfnode.engine.subspace import Subspace
from sfnode.errors import Code, UserError
from sfnode.manifest import Manifest
from sfnode.manifest.task import ANSWERS
from sfnode.models.loader import LoadedModel
from sfnode.schema.measurements import EvaluationOfRows
from sfnode.schema.metrics import PASS_AT_1
from sfnode.tasks import metrics, tokenization, verifying
from sfnode.tasks.encoding import Encoded, WrittenAnswer, encode_written
from sfnode.tasks.mini_batches import Shard
from sfnode.tasks.prompts import Prompt, Row, render_row
from sfnode.tasks.templates import common_prefix
from sfprotocol.seeds import derive_key, stream, token_keys

ROUNDING = 1e-9
"""Maximum difference of rewards that counts as a rounding error."""


class Question(NamedTuple):
    """A prompt, and the row of data that its answers are scored against."""

    prompt: Sequence[int]
    """Token ids."""
    row: Any


class Drawn(NamedTuple):
    """Answers that were sampled from the model for some prompts."""

    questions: Sequence[Question]
    answers: Sequence[Continuation]
    """ANSWERS answers to each question, in the order of the questions."""
    rewards: NDArray[np.float64]
    """(questions, ANSWERS)."""

    @property
    def loss(self) -> float:
        """1 minus the mean reward."""
        return 1 - float(self.rewards.mean())

    @property
    def telling(self) -> NDArray[np.bool_]:
        """Whether each question has answers of unequal rewards, (questions,)."""
        spread: NDArray[np.float64] = np.ptp(self.rewards, axis=1)
        return spread > ROUNDING

    def parts(self, questions: int) -> list[Drawn]:
        """Return the same answers in parts of this many questions, in their order."""
        return [
            Drawn(
                self.questions[first : first + questions],
                self.answers[first * ANSWERS : (first + questions) * ANSWERS],
                self.rewards[first : first + questions],
            )
            for first in range(0, len(self.questions), questions)
        ]

    @property
    def above(self) -> NDArray[np.float64]:
        """Reward of each answer minus the mean reward of the other answers to its question, (answers,)."""
        shared = self.rewards.mean(1, keepdims=True)
        found = (self.rewards - shared) * (ANSWERS / (ANSWERS - 1))
        return np.where(np.abs(found) < ROUNDING, 0.0, found).flatten()

    @property
    def encoded(self) -> Encoded:
        """The answers as weighted examples, whose mean loss has the slopes of `loss`. Answers with weight 0
        are left out, except one answer if all have weight 0. Equal answers to a question are one example. The
        common beginning of a question's answers is not a target, because their weights add up to 0."""
        weights: dict[tuple[int, tuple[int, ...]], float] = {}
        for number, by in enumerate(self.above.tolist()):
            one = number // ANSWERS, tuple(self.answers[number].tokens)
            weights[one] = weights.get(one, 0.0) + by
        told = {one: by for one, by in weights.items() if abs(by) > ROUNDING}
        told = told or dict([next(iter(weights.items()))])
        share = len(told) / len(self.answers)
        found: list[WrittenAnswer] = []
        for question, same in groupby(told, key=lambda one: one[0]):
            answers = [answer for _, answer in same]
            alike = common_prefix(min(answers)[:-1], max(answers)[:-1])  # each has a target
            prompt = self.questions[question].prompt
            for answer in answers:
                found.append(WrittenAnswer(prompt, answer, alike, share * told[question, answer]))
        return encode_written(found)


RIGHT = 1 - 1e-8
"""Minimum reward of an answer that passes: 1, less a margin for rounding. The weights of a `sum` of verifiers
add up to 1 only within 10^-9."""

SAMPLED_AT = 1.0
"""Temperature of drawn answers in a run whose manifest gives the temperature 0. At 0 all answers to a prompt
would be equal, and teach nothing."""


def alike(drawn: Sequence[Drawn]) -> UserError:
    """Return the error, with advice, of a run in which no prompt has answers of unequal rewards."""
    rewards = np.concatenate([one.rewards for one in drawn])
    cut = sum(not answer.ended for one in drawn for answer in one.answers)
    count = rewards.size
    said = f"none of {len(rewards)} prompts got answers of which one is better than another"
    easier = (
        "Take easier prompts, reward parts of an answer (a `sum` of verifiers, docs/rewards.md), show the "
        "form of an answer in the prompt, or take a better base model."
    )
    if rewards.max() <= 0:
        off = f", and {cut} of them were cut off: raise answer_tokens" if cut else ""
        return UserError(Code.REWARDS_ALIKE, f"{said}: all {count} answers have the reward 0{off}", easier)
    if rewards.min() >= RIGHT:
        return UserError(
            Code.REWARDS_ALIKE,
            f"{said}: all {count} answers have the reward 1, and there is nothing to learn",
            "Take harder prompts, or a stricter verifier.",
        )
    return UserError(
        Code.REWARDS_ALIKE,
        f"{said} (mean reward {rewards.mean():.3f})",
        "Give a higher temperature, or reward parts of an answer (a `sum` of verifiers, docs/rewards.md).",
    )


class Rewards:
    """The objective of one trainer in a reward run."""

    reading: tuple[int, int] | None = None
    """Progress as in `Losses.reading`; always None, because nothing is read in advance."""

    def __init__(
        self, manifest: Manifest, loaded: LoadedModel, rows: Sequence[Row], secret: bytes = b""
    ) -> None:
        """`rows`: the rows that prompts are drawn from. `secret` is as for `Shard`.

        Raises UserError BAD_OPTION if the model has no positions left for a prompt.
        """
        task = manifest.task
        self._task, self._loaded = task, loaded
        self._group, self._together = manifest.training.group, manifest.training.batch_updates
        self._room = min(task.max_tokens, positions(loaded)) - task.answer_tokens
        if self._room < 1:
            raise UserError(
                Code.BAD_OPTION,
                f"the base model has {positions(loaded)} positions: none is left for a prompt beside answers "
                f"of {task.answer_tokens} tokens",
                "Make the run with fewer answer_tokens, or with a model of more positions.",
            )
        # The default limit of the cache does not depend on free memory, because a row's rounding depends on
        # the rows that are written with it.
        self.temperature = task.temperature or SAMPLED_AT
        self._plan = AnswerPlan(task.answer_tokens, self.temperature, task.stop)
        self._likeliest = self._plan._replace(temperature=0.0)
        self._score = verifying.score_of(task)
        size, once = manifest.training.batch_size, manifest.training.is_first_order
        self._shard = Shard(task, loaded.tokenizer, rows, size, secret=secret, each_once=once)
        self.odds = self._shard.odds

    def mini_batch(self, seed: int) -> list[Question]:
        """Return the prompts that a seed draws."""
        return self.questions(self._shard.draw(seed)[0])

    def questions(self, rows: Sequence[Row]) -> list[Question]:
        """Return rows with their prompts as tokens."""
        return [Question(self._prompt(row), row) for row in rows]

    def estimates(
        self,
        space: Subspace,
        subspace: int,
        seeds: Sequence[int],
        batches: Sequence[Sequence[Question]],
        distance: float,
    ) -> list[Estimate]:
        """Return slopes from the gradient of answers that are drawn once for each group. Losses are 1 minus
        the mean reward. `distance` is unused: no point away from the weights is measured."""
        found: list[Estimate] = []
        for first in range(0, len(seeds), self._together):
            one = self.gradient(space, subspace, seeds[first], batches[first])
            alphas = self.alphas(space, one, seeds[first : first + self._together])
            found += [Estimate(alpha, one.loss) for alpha in alphas.tolist()]
        return found

    def alphas(self, space: Subspace, found: Gradient, seeds: Sequence[int]) -> NDArray[np.float64]:
        """Return the slope of this gradient along the direction of each update, (n,). The seeds are those of
        one group, or of a single update. In a group, the mean slope of the other updates is subtracted from
        each slope."""
        derivatives = found.cells.reshape(1, len(space.targets), *space.columns_of)
        slopes: NDArray[np.float64] = along(derivatives, np.array(seeds, np.uint64))[0]
        if self._group:
            slopes = (slopes - slopes.mean()) * (self._group / (self._group - 1))  # less the others' mean
        return slopes

    def gradient(
        self, space: Subspace, subspace: int, seed: int, batch: Sequence[Question], longest: float = math.inf
    ) -> Gradient:
        """Return the gradient of 1 minus the mean reward, from answers drawn at the current weights. Its norm
        is limited to `longest` divided by the number of questions. Replacing one question then changes it no
        more than if the norm of each question's own gradient were limited to `longest`."""
        here = standing(space.whole(subspace)) if space.live else None
        drawn = self.draw(batch, seed, here)
        found = gradient(self._loaded, space, subspace, drawn.encoded)
        share = min(1.0, longest / len(batch) / max(float(np.linalg.norm(found.cells)), 1e-30))
        return Gradient(found.cells * share, drawn.loss)

    def draw(self, questions: Sequence[Question], seed: int, perturb: Perturb | None = None) -> Drawn:
        """Draw answers to a mini-batch's prompts. The seed and the weights determine the answers; `perturb`
        may perturb the weights."""
        keys = token_keys(seed, len(questions) * ANSWERS).tolist()
        prompts = [question.prompt for question in questions for _ in range(ANSWERS)]
        asked = [AnswerRequest(prompt, key) for prompt, key in zip(prompts, keys, strict=True)]
        answers = generate(self._loaded, asked, self._plan, perturb=perturb)
        rewards = [self._score(one.text, questions[n // ANSWERS].row) for n, one in enumerate(answers)]
        return Drawn(questions, answers, np.array(rewards).reshape(-1, ANSWERS))

    def evaluate(
        self, held: Held, of: bytes = OWN, keep_going: KeepGoing = always, perturb: Perturb | None = None
    ) -> EvaluationOfRows:
        """Measure the model by the rewards of its likeliest answer to each row, decoded greedily."""
        found = [reward for _, reward in self._judged(held.rows, keep_going, perturb)]
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
        """Measure the base model as `evaluate` does. Raises UserError BAD_OPTION with `calibrated`."""
        if calibrated:
            raise UserError(
                Code.BAD_OPTION,
                "answers that are written have no prior to be subtracted",
                "Leave out `calibrated`.",
            )
        return self.evaluate(held, keep_going=keep_going)

    def losses_of(self, rows: Sequence[Row]) -> RowLosses:
        """Return a function that measures 1 minus the reward of the likeliest answer to each of these
        rows."""

        def measure(perturb: Perturb, keep_going: KeepGoing) -> NDArray[np.float64]:
            return 1 - np.array([reward for _, reward in self._judged(rows, keep_going, perturb)])

        return measure

    def batches(self, rows: Sequence[Row], wanted: int, turn: int) -> list[Encoded]:
        """Draw about `wanted` answers at the current weights, and return them as batches whose mean loss has
        the slopes of 1 minus the mean reward. Each `turn` takes the next of these rows."""
        each = BATCH_ROWS // ANSWERS
        count = max(wanted // ANSWERS, each * LEAST_BATCHES)
        some = [rows[(turn * count + n) % len(rows)] for n in range(count)]
        (seed,) = stream(derive_key(b"sfnode worths"), turn, 1).tolist()
        return [part.encoded for part in self.draw(self.questions(some), seed).parts(each)]

    def answer(self, rows: Sequence[Row], of: bytes = OWN) -> list[samples.Answered]:
        """Return for each row the text that the model writes, the right answer, the reward, and the
        verifier's remark."""
        return [
            samples.shown(
                self._text(row),
                verifying.reference(self._task, row),
                said,
                1.0 if reward >= RIGHT else reward,
                verifying.remark(self._task, said, row),
            )
            for row, (said, reward) in zip(rows, self._judged(rows), strict=True)
        ]

    def _judged(
        self, rows: Sequence[Row], keep_going: KeepGoing = always, perturb: Perturb | None = None
    ) -> list[tuple[str, float]]:
        """Return the likeliest answer to each of these rows, and its reward."""
        asked = [AnswerRequest(self._prompt(row)) for row in rows]
        answers = generate(self._loaded, asked, self._likeliest, keep_going, perturb)
        return [
            (answer.text, self._score(answer.text, row)) for answer, row in zip(answers, rows, strict=True)
        ]

    def _text(self, row: Row) -> str:
        words = render_row(self._task, row)
        assert isinstance(words, Prompt)
        return words.prompt

    def _prompt(self, row: Row) -> list[int]:
        return tokenization.prompt_ids(self._loaded.tokenizer, self._text(row), self._room)
