"""Rows that a model's tokenizer cannot encode. `init` looks for such rows before a run begins. A node leaves
them out, and logs only the first one.

Only encoding shows whether a row fits: a chat template may refuse a conversation, or an answer may have more
tokens than a sequence may have (SPEC T3, T6). This module knows tokenizers; it knows no file and no model.
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
"""Codes of errors for a row that cannot be encoded: it is refused, is too long, or exceeds a bound."""

BROKEN = 3
"""Maximum number of rows that exceed a bound and are left out. If there are more, the model is taken for the
cause. Each such row takes seconds."""

SECONDS = 60.0
"""Maximum time in seconds for which `init` encodes rows: enough for 250,000 short texts, or 20,000
conversations of four answers, on one core."""


class Fitting:
    """Finds the rows that can be encoded, and leaves others out. Any thread may call any method."""

    def __init__(self, task: Task, tokenizer: Any) -> None:
        self.task, self.tokenizer = task, tokenizer
        self._broken = 0
        self._last: UserError | None = None
        self._lock = Lock()

    def problem(self, words: RowText) -> UserError | None:
        """Return the reason why the text of a row cannot be encoded, or None. Raises UserError MODEL_UNSAFE
        if more than BROKEN rows exceed a bound."""
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
        """Return whether a row can be encoded; log the reason for the first one that cannot. Raises as
        `problem`."""
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
        """Return the rows that fit. Raises UserError as `fits`, and as `none_fits`."""
        found = [row for row in rows if self.fits(row)]
        if rows and not found:
            raise self.none_fits()
        return found

    def none_fits(self) -> UserError:
        """Return the error to raise if no row fits: the error of the last row."""
        assert self._last is not None, "no row was left out"
        return self._last


class RowExamination:
    """Function that returns the reason why a row cannot be encoded. It encodes rows for SECONDS at most, and
    equal rows once."""

    def __init__(
        self,
        fitting: Fitting,
        advance: Callable[[int, int], None] = lambda done, total: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`advance` is called with the number of the row that was encoded, and the number of all rows."""
        self.fitting, self._advance, self._clock = fitting, advance, clock
        self._ends = clock() + SECONDS
        self._known: dict[RowText, str] = {}
        self._unread: set[RowText] = set()

    @property
    def unread(self) -> int:
        """Number of distinct rows for which there was no time."""
        return len(self._unread)

    def __call__(self, row: Row, number: int, total: int) -> str:
        """Return the reason why row `number` cannot be encoded; empty if it can, or if there was no time.
        Raises as `Fitting.problem`. Raises MODEL_UNSAFE, too, if it exceeds a bound and no earlier row could
        be encoded: the model is the cause."""
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
