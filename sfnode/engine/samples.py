"""Answers of a model with its current weights to a few rows, for people who want to see what it has learnt.

A row with candidates is answered by the candidate with the highest score, after the prior is subtracted as in
an evaluation. For other rows the model writes the answer. This module knows neither updates nor who reads the
answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sfnode.engine.generation import complete
from sfnode.manifest.task import Task
from sfnode.models.loader import LoadedModel
from sfnode.tasks import chat
from sfnode.tasks.encoding import Forward, Prior, encode
from sfnode.tasks.prompts import ASSISTANT, Conversation, LabelledTexts, Prompt, Row, render_row
from sfnode.tasks.templates import ASKING

WRITTEN = 24
"""Number of tokens that a model writes: a sentence, or a few seconds on a CPU."""

BEGINNING = 12
"""Maximum number of first words of a plain text that the model is given to continue."""

SHOWN, SHOWN_ANSWER = 400, 200
"""Maximum characters of a row and of an answer that are shown. Of a longer row the end is shown, because the
answer follows it."""


class Answered(NamedTuple):
    """A row and a model's answer."""

    text: str
    right: str
    """Right answer, or the text's continuation."""
    said: str
    """The model's answer. In a reward run the verifier's remark follows, if there is one."""
    score: float
    """1 if the answer is right, else 0; in a reward run the answer's reward."""


class Preference(NamedTuple):
    """The candidates for the answer to a row, and the model's preference among them."""

    names: tuple[str, ...]
    shares: tuple[float, ...]
    """Probabilities, which add up to 1."""

    @property
    def best(self) -> str:
        """The likeliest candidate."""
        return max(zip(self.shares, self.names, strict=True), key=lambda one: one[0])[1]


def answer(
    loaded: LoadedModel, task: Task, rows: Sequence[Row], forward: Forward, prior: Prior | None
) -> list[Answered]:
    """Return the model's answers to these rows, of which there is at least one. `prior` is subtracted from
    scores.

    Raises UserError DATA_MALFORMED for a row that does not fit the model.
    """
    if chooses(task):
        return _chosen(loaded, task, rows, forward, prior)
    asked = [_asked(loaded, render_row(task, row)) for row in rows]
    written = complete(loaded, [prompt for _, prompt, _ in asked], WRITTEN)
    return [shown(beginning, right, said) for (beginning, _, right), said in zip(asked, written, strict=True)]


def chooses(task: Task) -> bool:
    """Return whether answers are chosen from candidates. Otherwise the model writes them."""
    return task.labelled or task.kind == "choice"


def choices(
    loaded: LoadedModel, task: Task, rows: Sequence[Row], forward: Forward, prior: Prior | None
) -> list[Preference]:
    """Return the model's preferences among each row's candidates. They follow from scores minus the `prior`.
    Raises as `answer`."""
    encoded = encode(task, loaded.tokenizer, rows, every_candidate=True)
    shares = encoded.scores(forward(encoded).log_probs, prior).double().softmax(1).tolist()  # (B, K)
    found = []
    for row, parts in zip(rows, shares, strict=True):
        text = render_row(task, row)
        names = text.answers if isinstance(text, Prompt) else tuple(task.verbalizer.values())
        found.append(Preference(names, tuple(parts[: len(names)])))  # others may have more candidates
    return found


def _chosen(
    loaded: LoadedModel, task: Task, rows: Sequence[Row], forward: Forward, prior: Prior | None
) -> list[Answered]:
    found = []
    for row, choice in zip(rows, choices(loaded, task, rows, forward, prior), strict=True):
        text = render_row(task, row)
        if isinstance(text, LabelledTexts):
            found.append(shown("\n".join(text.texts), choice.names[text.right], choice.best))
        elif isinstance(text, Prompt):
            found.append(shown(text.prompt, text.answers[text.right[0]], choice.best))
    return found


def _asked(loaded: LoadedModel, text: Prompt | LabelledTexts | Conversation) -> tuple[str, str, str]:
    """Return the row as people see it, the prompt, and the right continuation."""
    if isinstance(text, Conversation):
        last = max(n for n, one in enumerate(text.messages) if n and one.role == ASSISTANT)
        before = text.messages[:last]
        return before[-1].content, chat.prompt(loaded.tokenizer, before), text.messages[last].content
    assert isinstance(text, Prompt)  # candidates are chosen elsewhere
    if text.prompt:
        return text.prompt, text.prompt, text.answers[0]
    words = text.answers[0].split(" ")
    count = min(BEGINNING, len(words) // 2)
    beginning = " ".join(words[:count])
    return beginning, beginning, " ".join(words[count:])


def shown(text: str, right: str, said: str, score: float | None = None, remark: str = "") -> Answered:
    """Return a row and an answer as people see them, with the `remark` if there is one. If `score` is None,
    the answer is scored 1 if it equals `right`, else 0."""
    text = text.removesuffix(ASKING)
    text, right, said = text if len(text) <= SHOWN else f"…{text[1 - SHOWN :]}", right.strip(), said.strip()
    behind = f" ({_cut(remark)})" if remark else ""
    return Answered(text, _cut(right), _cut(said) + behind, float(right == said) if score is None else score)


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN_ANSWER else f"{text[: SHOWN_ANSWER - 1]}…"
