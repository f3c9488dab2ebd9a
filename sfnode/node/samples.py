"""Samples: how the base model and later ones answer a few test rows, recorded as the run goes.

The node's own engine answers them between two steps, after a seal has come, or, in an open run, when another
epoch begins. What they cost is bounded: the longer they take the more seldom they are taken. They are kept in
memory, for whoever looks (`sfnode.node.views`).
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from sfnode.errors import UserError
from sfnode.logging import log
from sfnode.node.engine_thread import Engine
from sfnode.schema.views import SampleMoment, SampleRow, Samples

if TYPE_CHECKING:
    from sfnode.node.running import RunningNode

LOOK_INTERVAL = 1.0
"""Seconds between looks at what is sealed."""

COST = 50
"""The next samples are taken no sooner than after this many times as long as the last ones took: they cost a
fiftieth of the engine's time at most, but for the base model's answers, which are computed once."""

MAX_MOMENTS = 64
"""Most moments that are kept; beyond, every second one is dropped."""


class Sampling:
    """The samples of one trainer; `run` takes them until cancelled."""

    def __init__(self, node: RunningNode) -> None:
        self._node = node
        self._rows: list[SampleRow] = []
        self._moments: list[SampleMoment] = []
        self._taken: int | None = None
        """Epoch at which the last ones were taken."""

    def view(self) -> Samples:
        """Return what was recorded so far."""
        return Samples(rows=self._rows, moments=self._moments)

    async def run(self) -> None:
        """Take samples until cancelled, or until that proves impossible."""
        while True:
            await asyncio.sleep(LOOK_INTERVAL)
            if not self._due():
                continue
            try:
                took = await self._take()
            except UserError as error:
                log.info("no samples of the model's answers are recorded: %s", error.what)
                return
            await asyncio.sleep(COST * took)

    def _epoch(self) -> int:
        organised = self._node.machine.organised
        return organised.counting.sealed if organised else self._node.machine.epoch

    def _due(self) -> bool:
        node = self._node
        return node.engine_loaded and not node.limiter.paused and self._epoch() != self._taken

    async def _take(self) -> float:
        """Record answers; return the seconds that the engine took for those of the later model."""
        rows, self._taken = self._node.settings.samples, self._epoch()

        def answers(engine: Engine) -> tuple[list[str], float]:
            if not self._rows:
                found = engine.answer(rows, base=True)
                self._rows = [SampleRow(text=one.text, right=one.right, base=one.said) for one in found]
            began = time.monotonic()
            return [one.said for one in engine.answer(rows, base=False)], time.monotonic() - began

        moment, (said, took) = await self._node.ask_of_model(answers)
        if moment.known == (self._moments[-1].known if self._moments else 0):
            return took  # nothing has been learnt that can be seen here yet
        self._moments.append(SampleMoment(epoch=moment.epoch, known=moment.known, answers=said))
        if len(self._moments) > MAX_MOMENTS:
            self._moments = self._moments[1::2]
        return took
