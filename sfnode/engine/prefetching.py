"""The mini-batches of coming steps, tokenised in threads of their own while the engine computes.

The one part of an engine that threads other than its own may use. It knows neither rows nor tokenizers, only
what encodes the mini-batch of a seed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from threading import Lock
from typing import Any

PREPARED_STEPS = 4
"""Steps whose mini-batches are kept ready; those of steps that are never taken make room."""

Draw = Callable[[int], Any]
"""Encodes the mini-batch that a seed draws; called from several threads."""


class MiniBatches:
    """Draws and encodes mini-batches, ahead of time where a step was announced; any thread may call it."""

    def __init__(self, draw: Draw, executor: Executor, together: int = 1) -> None:
        """`together` consecutive seeds of a step share the mini-batch that the first of them draws."""
        self._draw = draw
        self._together = together
        self._executor = executor
        self._lock = Lock()
        self._prepared: OrderedDict[int, Future[Any]] = OrderedDict()
        """Mini-batches by the seeds that draw them: whoever takes a step may take it in pieces."""
        self._largest = 0
        """Mini-batches of the largest step that was prepared."""

    def prepare(self, seeds: Sequence[int]) -> None:
        """Have the mini-batches of a coming step encoded meanwhile; returns at once."""
        drawing = seeds[:: self._together]
        with self._lock:
            self._largest = max(self._largest, len(drawing))
            for seed in drawing:
                self._prepared[seed] = self._executor.submit(self._draw, seed)
            while len(self._prepared) > PREPARED_STEPS * self._largest:
                self._prepared.popitem(last=False)

    def take(self, seeds: Sequence[int]) -> list[Any]:
        """Return the mini-batch of each seed, waiting for those that are being prepared."""
        drawing = seeds[:: self._together]
        with self._lock:
            prepared = [self._prepared.pop(seed, None) for seed in drawing]
        drawn = [
            self._draw(seed) if coming is None else coming.result()
            for seed, coming in zip(drawing, prepared, strict=True)
        ]
        return [batch for batch in drawn for _ in range(self._together)]
