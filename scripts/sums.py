"""Synthetic sums: problems such as "23+48" and their answers, by integer randomness.

What the embedded example of training by rewards is about. `pretraining_text` writes what its model is
pretrained on by scripts/pretrain.py: sums in columns, most of them by somebody who forgets to carry, the
others right. A model that has read that text can do both, and when it takes the likeliest tokens it forgets
to carry. `rows` writes the problems by which a run teaches it to be right. This module knows nothing of
models or files.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice
from typing import Literal, NamedTuple

from sfprotocol.seeds import derive_key, stream

Split = Literal["train", "validation", "test"]

ROWS: dict[Split, int] = {"train": 2048, "validation": 256, "test": 500}
"""Number of rows of each split."""

NUMBERS = 100
"""Both numbers of a problem are below this."""

FORGETFUL = 70
"""Percentage of the pretraining text's sums that nothing is carried in. Three in ten of these are right all
the same, as there is nothing to carry."""

_SPLITS: dict[int, Split] = {0: "test", 1: "validation"}
_PARTS = 8
"""One problem in eight is of the test split, one of the validation split, and the others are to train on."""


class SumProblem(NamedTuple):
    """A problem."""

    one: int
    other: int

    @property
    def text(self) -> str:
        """The problem as it is posed, but for the equals sign."""
        return f"{self.one}+{self.other}"

    @property
    def answer(self) -> str:
        """The right answer."""
        return str(self.one + self.other)

    @property
    def forgetful(self) -> str:
        """The answer of somebody who forgets to carry."""
        units, tens = self.one % 10 + self.other % 10, self.one // 10 + self.other // 10
        return str(tens % 10 * 10 + units % 10)


def rows(split: Split) -> list[dict[str, str]]:
    """Return the rows of a split, `sum` and `answer`; no problem occurs twice, and none in two splits."""
    found: dict[SumProblem, None] = {}
    drawn = _problems(f"task {split}", split)
    while len(found) < ROWS[split]:
        found[next(drawn)[0]] = None
    return [{"sum": problem.text, "answer": problem.answer} for problem in found]


def pretraining_text(size: int) -> Iterator[str]:
    """Yield `size` sums with answers, of problems of the training split."""
    for problem, draw in islice(_problems("pretraining", "train"), size):
        answer = problem.forgetful if draw % 100 < FORGETFUL else problem.answer
        yield f"{problem.text}={answer}"


def read(text: str) -> SumProblem:
    """Return the problem that looks like this."""
    one, other = text.split("+")
    return SumProblem(int(one), int(other))


def split_of(problem: SumProblem) -> Split:
    """Return the split that a problem is of, whichever of its numbers comes first."""
    low, high = sorted(problem)
    return _SPLITS.get(derive_key(b"sfnode sums", f"{low}+{high}".encode()) % _PARTS, "train")


def _problems(purpose: str, split: Split) -> Iterator[tuple[SumProblem, int]]:
    """Yield problems of a split, some more than once, and a random number for each; without end."""
    key = derive_key(b"sfnode sums", purpose.encode())
    for number in count(step=3):
        one, other, draw = (value >> 11 for value in stream(key, number, 3).tolist())
        problem = SumProblem(one % NUMBERS, other % NUMBERS)
        if split_of(problem) == split:
            yield problem, draw
