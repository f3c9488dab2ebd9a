"""An engine of integers for simulated nodes, without torch.

Its scalars are a function of the seeds. In open runs it has no cores: it adds up a hash of each update's seed
and subspace, times the scalar. Equal sums mean equal sets of updates. This is independent of the machine's
chain hashes, so the two can be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from sfnode.engine.core import Core, UpdateBatch
from sfnode.manifest import Manifest
from sfnode.schema.measurements import Evaluation
from sfprotocol.decisions import RateFrom
from sfprotocol.fields import Values
from sfprotocol.messages import RunParameters
from sfprotocol.seeds import I64, mix64

RESULT = Evaluation(metric="accuracy", value=0.5, low=0.48, high=0.52, loss=1.0, count=100)
"""Result of every evaluation."""


class Result(NamedTuple):
    """Result of a step."""

    scalars: tuple[Values, ...]
    loss: float = 1.0
    failed: int = 0


class IntegerEngine:
    """Engine of one simulated node, from one start to the next."""

    devices = ()
    odds = (4, 1024)

    def __init__(self, run: Manifest, salt: int) -> None:
        """Engines with different `salt` measure different scalars for the same key, as real engines do."""
        self.mini_batches = self
        self.core = Core(*run.core_shape)
        self.made = 0
        """Number of updates that this engine evaluated."""
        self._salt = salt
        self._run = run.parameters()
        self._keeps_cores = self._run.organised is not None
        self._marks = np.zeros((), np.int64)

    @property
    def total(self) -> int | bytes:
        """Digest or sum of all applied updates, with their weights."""
        return self.core.digest() if self._keeps_cores else int(self._marks)

    def prepare(self, seeds: Sequence[int]) -> None:
        """Draw no mini-batches: there are no rows."""

    def begin(self, cores: Mapping[int, I64]) -> None:
        self.core.put(cores)

    def use_bases(self, published: Sequence[Any]) -> None:
        pass

    def apply(self, batch: UpdateBatch) -> None:
        if self._keeps_cores:
            self.core.add(batch)
            return
        marks = mix64(batch.seeds ^ mix64(batch.epochs.astype(np.uint64)))
        self._marks += (marks.astype(np.int64) * batch.scalars).sum()

    def step(self, seeds: Sequence[int], epoch: int, rate: RateFrom | None = None) -> Result:
        self.made += len(seeds)
        return Result(measured(seeds, self._run, self._salt))

    def evaluate(self, limit: int, go_on: Callable[[], bool], rows: str = "test") -> Evaluation:
        return RESULT

    def evaluate_base(
        self, limit: int, go_on: Callable[[], bool], rows: str = "test", *, calibrated: bool = False
    ) -> Evaluation:
        return RESULT.model_copy(update={"calibrated": calibrated})

    def cores(self) -> dict[int, I64]:
        return self.core.cores()

    def offload(self) -> None:
        pass

    def restore(self) -> None:
        pass

    def use_threads(self, count: int | None, most: int | None) -> None:
        pass


def measured(seeds: Sequence[int], run: RunParameters, salt: int) -> tuple[Values, ...]:
    """Return the measurements for these seeds: scalars or, in a first-order run, vectors.

    Scalars are never 0, because a 0 would not change a sum. Some vectors are too long or too short to change
    the weights.
    """
    if run.cells:
        return tuple(_vector(seed + salt, run.cells) for seed in seeds)
    limit = run.scalar_limit
    return tuple((seed + salt) % (2 * limit + 1) - limit or 1 for seed in seeds)


SIZES = (0, 5, 8, 8, 10, 13, 15, 30)
"""Maximum absolute scalars of vectors. If the limit of the root mean square is 16, vectors with maxima from 4
to 27 change the weights."""


def _vector(number: int, cells: int) -> tuple[int, ...]:
    size = SIZES[number % len(SIZES)]
    words = mix64(np.arange(cells, dtype=np.uint64) + np.uint64(number % (1 << 63)))
    found = (words % np.uint64(2 * size + 1)).astype(np.int64) - size
    return tuple(found.tolist())
