"""The rows on which a node trains, and the mini-batches that seeds draw from these rows (SPEC R8).

The daemon, the simulator and the baselines share this module. It knows rows and the task's loss; it knows no
model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfnode.errors import Code, UserError
from sfnode.manifest.task import Task
from sfnode.tasks import prompts
from sfnode.tasks.encoding import Encoded, encode
from sfnode.tasks.fitting import Fitting
from sfnode.tasks.prompts import Row, unanswered
from sfprotocol.seeds import balanced_rows, batch_rows, derive_key, stream

CENTRED = "centred"
"""Name of the loss for which mini-batches have equally many rows of each class, as far as possible (SPEC
T5)."""

REFERENCES = 4
"""Number of unlabelled rows that are added to a mini-batch if the shard has rows of one class only. Fewer
unlabelled rows would give a poor estimate of the prior. More rows would cost more time than they are worth
(docs/research-log.md). A usual mini-batch has 4 rows, too."""


class Shard:
    """The training rows of one node, from which seeds draw mini-batches. Any thread may call any method."""

    def __init__(
        self,
        task: Task,
        tokenizer: Any,
        rows: Sequence[Row],
        batch_size: int,
        public: Callable[[], Sequence[Row]] = list,
        secret: bytes = b"",
        *,
        each_once: bool = False,
    ) -> None:
        """Make a shard of `rows`. `public` returns rows of the run's public training data, of all classes. It
        is called only if the loss is centred and all rows of the shard are of one class. The labels of public
        rows are not used. With a `secret`, only who knows the secret can tell which rows a seed draws. With
        `each_once`, a mini-batch consists of all rows of the shard if these are no more than `batch_size`.
        With a `secret` and `each_once`, no mini-batch has a row twice, and rows that cannot be encoded are
        left out and not replaced. Raises UserError DATA_NEEDED if public rows are needed and there are
        none."""
        self._task, self._tokenizer = task, tokenizer
        self._rows, self._secret = rows, secret
        self._batch_size = min(batch_size, len(rows)) if each_once else batch_size
        self._whole = each_once and len(rows) <= batch_size
        self._apart = each_once and bool(secret)
        self._fitting = Fitting(task, tokenizer)
        self._fits: dict[int, bool] = {}
        """Whether a drawn row can be encoded, keyed by the row's index."""
        self._classes = _by_class(task, rows) if task.loss == CENTRED else []
        alone = sum(len(one) > 0 for one in self._classes) == 1
        self._public = [unanswered(task, row) for row in public()] if alone else []
        if alone and not self._public:
            raise UserError(
                Code.DATA_NEEDED,
                "all rows here are of one class, and the run's loss compares rows of different classes",
                "Give rows of another class too, or make a run with public training data, which serve such a "
                "node (docs/tasks.md).",
            )

    def mini_batch(self, seed: int) -> Encoded:
        """Return the mini-batch of the update with this seed. Raises UserError as `encode`."""
        return encode(self._task, self._tokenizer, *self.draw(seed))

    def draw(self, seed: int) -> tuple[list[Row], list[Row]]:
        """Return the labelled and the unlabelled rows of the mini-batch of the update with this seed."""
        seed = self._own(seed)
        references = batch_rows(seed, REFERENCES, len(self._public)).tolist() if self._public else []
        return [self._fitting_row(row) for row in self._drawn(seed).tolist()], [
            self._public[row] for row in references
        ]

    def numbers(self, seed: int) -> NDArray[np.int64]:
        """Return the indices of the rows that the seed of an update draws, (batch_size,) or fewer."""
        return self._drawn(self._own(seed))

    def encoded(self, together: int) -> Iterator[Encoded]:
        """Yield all rows of the shard in their order, encoded, `together` rows at a time. Raises UserError as
        `encode`."""
        for first in range(0, len(self._rows), together):
            numbers = range(first, min(first + together, len(self._rows)))
            yield encode(self._task, self._tokenizer, [self._fitting_row(number) for number in numbers])

    @property
    def size(self) -> int:
        """Number of rows."""
        return len(self._rows)

    @property
    def odds(self) -> tuple[int, int]:
        """Number of rows that a mini-batch draws from the class whose rows are drawn most often, and number
        of rows of this class. If mini-batches are not balanced between classes, all rows are regarded as one
        class."""
        sizes = [len(one) for one in self._classes if len(one)] or [len(self._rows)]
        return -(-self._batch_size // len(sizes)), min(sizes)

    def _fitting_row(self, number: int) -> Row:
        """Return the row with index `number` if it can be encoded, else the next row that can be (SPEC T3).
        If mini-batches are balanced, this is the next such row of the same class. Raises UserError as
        `Fitting.of`."""
        if not self._fits_at(number):
            everyone = np.arange(len(self._rows))
            pool = next((one for one in self._classes if number in one), everyone)
            after = np.roll(pool, -int(np.searchsorted(pool, number))).tolist()
            number = next(filter(self._fits_at, after), -1)
            if number < 0:
                raise self._fitting.none_fits()
        return self._rows[number]

    def _fits_at(self, number: int) -> bool:
        if number not in self._fits:
            self._fits[number] = self._fitting.fits(self._rows[number])
        return self._fits[number]

    def _own(self, seed: int) -> int:
        """Return the seed with which this node draws rows for the update with the public seed `seed`. With a
        secret, other nodes cannot compute the returned seed."""
        return derive_key(self._secret, seed.to_bytes(8, "big")) if self._secret else seed

    def _drawn(self, seed: int) -> NDArray[np.int64]:
        chosen = self._chosen(seed)
        if not self._apart:
            return chosen
        found = chosen[[self._fits_at(number) for number in chosen.tolist()]]
        if len(chosen) and not len(found):
            raise self._fitting.none_fits()
        return found

    def _chosen(self, seed: int) -> NDArray[np.int64]:
        if self._whole:
            return np.arange(len(self._rows))
        if self._apart:
            return np.argsort(stream(seed, 0, len(self._rows)))[: self._batch_size]
        if not self._classes:
            return batch_rows(seed, self._batch_size, len(self._rows))
        classes, places = balanced_rows(seed, self._batch_size, [len(one) for one in self._classes])
        chosen = [self._classes[one][place] for one, place in zip(classes, places, strict=True)]
        return np.array(chosen, np.int64)


def _by_class(task: Task, rows: Sequence[Row]) -> list[NDArray[np.int64]]:
    """Return the indices of the rows of each class, for the classes in the verbalizer's order."""
    labels = np.array([prompts.class_of(task, row) for row in rows], np.int64)
    return [np.flatnonzero(labels == one) for one in range(len(task.verbalizer))]
