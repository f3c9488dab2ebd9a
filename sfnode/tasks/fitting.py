"""Finds rows that a model's tokenizer cannot encode. `sfnode init` looks for such rows before a run begins. A
node leaves them out of its training, and logs only the first one.

Whether a row can be encoded shows only when it is encoded: a chat template may refuse a conversation, or an
answer may have more tokens than a sequence may have (SPEC T3, T6). This module knows tokenizers; it knows no
file and no model.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any, TypeVar

from sfnode.errors import Code, UserError
from sfnode.logging import log
from sfnode.manifest.task import Task
from sfnode.printable import paragraph
from sfnode.tasks.prompts import Prompt, Row, RowText, render_row
from sfnode.tasks.tokenization import example, prompt_ids

R = TypeVar("R", bound=Row)

UNFIT = (Code.DATA_MALFORMED, Code.MODEL_UNSAFE)
"""Codes of errors for a row that cannot be encoded, because it is refused, is too long, or exceeds a bound on
time or memory."""

BROKEN = 3
"""Maximum number of rows that are left out because encoding them exceeds a bound on time or memory. If there
are more such rows, the model is regarded as the cause. Each such row takes seconds."""

SECONDS = 60.0
"""Maximum time in seconds for which `sfnode init` encodes rows. On one core it is enough for 250,000 short
texts, or for 20,000 conversations with four answers each."""


class Fitting:
    """Filter that passes the rows that can be encoded. Any thread may call any method."""

    def __init__(self, task: Task, tokenizer: Any) -> None:
        self.task, self.tokenizer = task, tokenizer
        self._broken = 0
        self._last: UserError | None = None
        self._lock = Lock()

    def problem(self, words: RowText) -> UserError | None:
        """Return the error that shows why the text of a row cannot be encoded; None if it can be encoded.
        Raises UserError MODEL_UNSAFE if more than BROKEN rows exceed a bound."""
        try:
            if self.task.is_rewarded and isinstance(words, Prompt):
                prompt_ids(self.tokenizer, words.prompt, self.task.max_tokens)
            else:
                example(self.tokenizer, words, self.task.max_tokens)
        except UserError as error:
            self._broken += error.code is Code.MODEL_UNSAFE
            if error.code not in UNFIT or self._broken > BROKEN:
                raise
            return error
        return None

    def fits(self, row: Row) -> bool:
        """Return whether a row can be encoded. For the first row that cannot, log the reason. Raises
        UserError as `problem`."""
        error = self.problem(render_row(self.task, row))
        if error is None:
            return True
        with self._lock:
            first, self._last = self._last is None, error
        if first:
            said = paragraph(f"a row is left out, and so are others like it: {error.what}")
            log.warning("%s", said)
        return False

    def of(self, rows: Sequence[R]) -> list[R]:
        """Return the rows that can be encoded. Raises UserError as `fits`, and the error of `none_fits` if
        there are none."""
        found = [row for row in rows if self.fits(row)]
        if rows and not found:
            raise self.none_fits()
        return found

    def none_fits(self) -> UserError:
        """Return the error to raise if no row can be encoded. It is the error for the row that was tried
        last."""
        assert self._last is not None, "no row was left out"
        return self._last


class RowExamination:
    """Callable that returns the reason why a row cannot be encoded. It encodes rows for at most SECONDS, and
    encodes equal rows only once."""

    def __init__(
        self,
        fitting: Fitting,
        advance: Callable[[int, int], None] = lambda done, total: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`advance` is called after each encoded row, with the number of the row and the number of all rows,
        to show progress."""
        self.fitting, self._advance, self._clock = fitting, advance, clock
        self._ends = clock() + SECONDS
        self._known: dict[RowText, str] = {}
        self._unread: set[RowText] = set()

    @property
    def unread(self) -> int:
        """Number of distinct rows that were not encoded because the time was up."""
        return len(self._unread)

    def __call__(self, row: Row, number: int, total: int) -> str:
        """Return the reason why row `number` cannot be encoded; an empty text if it can be encoded, or if the
        time is up. Raises UserError as `Fitting.problem`. Raises UserError MODEL_UNSAFE, too, if the row
        exceeds a bound and no earlier row could be encoded, because then the model is the cause."""
        words = render_row(self.fitting.task, row)
        if words not in self._known:
            if self._clock() >= self._ends:
                self._unread.add(words)
                return ""
            error = self.fitting.problem(words)
            if error and error.code is Code.MODEL_UNSAFE and all(self._known.values()):
                raise error
            self._known[words] = error.what if error else ""
            self._advance(number, total)
        return self._known[words]
