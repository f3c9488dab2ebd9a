"""Answers of a model, with the weights that it has, to a few rows: for people who want to see what it has
learnt.

Rows with candidates are answered by the one with the highest score, as they are in an evaluation by the
same prior; otherwise the model writes what follows. This module knows neither updates nor when somebody
looks.
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
"""Tokens that a model writes: a sentence, or a few seconds of a CPU."""

BEGINNING = 12
"""Words of a plain text after which it is to go on."""

SHOWN, SHOWN_ANSWER = 400, 200
"""Characters of a row and of an answer that are kept; of a longer row the end, which the answer follows."""


class Answered(NamedTuple):
    """A row and a model's answer."""

    text: str
    right: str
    """The right answer, or how the text goes on."""
    said: str
    """The model's answer; in a reward run with what is wrong in it, if more can be said than that it is."""
    score: float
    """1 if the answer is right, else 0; in a reward run its reward."""


class Preference(NamedTuple):
    """The candidates for the answer to a row, and what a model makes of them."""

    names: tuple[str, ...]
    shares: tuple[float, ...]
    """Probabilities, which add up to 1."""

    @property
    def best(self) -> str:
        """The likeliest one."""
        return max(zip(self.shares, self.names, strict=True), key=lambda one: one[0])[1]


def answer(
    loaded: LoadedModel, task: Task, rows: Sequence[Row], forward: Forward, prior: Prior | None
) -> list[Answered]:
    """Return the model's answers to these rows, of which there are some; `prior` is subtracted from scores.

    Raises UserError DATA_MALFORMED for a row that does not fit the model.
    """
    texts = [render_row(task, row) for row in rows]
    if chooses(task):
        return _chosen(loaded, task, rows, forward, prior)
    asked = [_asked(loaded, text) for text in texts]
    written = complete(loaded, [prompt for _, prompt, _ in asked], WRITTEN)
    return [shown(beginning, right, said) for (beginning, _, right), said in zip(asked, written, strict=True)]


def chooses(task: Task) -> bool:
    """Return whether the answer is one of several, rather than written."""
    return task.labelled or task.kind == "choice"


def choices(
    loaded: LoadedModel, task: Task, rows: Sequence[Row], forward: Forward, prior: Prior | None
) -> list[Preference]:
    """Return what a model makes of each row's candidates, scores less the `prior`. Raises as `answer`."""
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
    """Return what people see of a row, the prompt, and what should follow."""
    if isinstance(text, Conversation):
        last = max(n for n, one in enumerate(text.messages) if n and one.role == ASSISTANT)
        before = text.messages[:last]
        return before[-1].content, chat.prompt(loaded.tokenizer, before), text.messages[last].content
    assert isinstance(text, Prompt)  # those of a classification are chosen from
    if text.prompt:
        return text.prompt, text.prompt, text.answers[0]
    words = text.answers[0].split(" ")
    count = min(BEGINNING, len(words) // 2)
    beginning = " ".join(words[:count])
    return beginning, beginning, " ".join(words[count:])


def shown(text: str, right: str, said: str, score: float | None = None, remark: str = "") -> Answered:
    """Return a row and an answer as people are shown them, with a remark on it, if there is one; without a
    score it is right if it is the right one."""
    text = text.removesuffix(ASKING)
    text, right, said = text if len(text) <= SHOWN else f"…{text[1 - SHOWN :]}", right.strip(), said.strip()
    behind = f" ({_cut(remark)})" if remark else ""
    return Answered(text, _cut(right), _cut(said) + behind, float(right == said) if score is None else score)


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN_ANSWER else f"{text[: SHOWN_ANSWER - 1]}…"
