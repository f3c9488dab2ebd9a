"""Keeps account of the privacy of a running node's rows: its local noise, and the present epsilon
(`accounting`)."""

from __future__ import annotations

import asyncio
import math
from functools import partial

from sfnode.errors import Code, UserError
from sfnode.node import accounting
from sfnode.node.context import NodeContext
from sfnode.node.training.model import clip_of
from sfnode.schema.status import PrivacyStatus

LOOK_INTERVAL = 10.0
"""Seconds between two checks of the number of updates."""

AHEAD = 1.1
"""Ratio of two numbers of updates: those for which epsilon is computed, and those that the node has made.
When the node has made more updates than epsilon was computed for, it is computed again. So the shown epsilon
is not too small."""


class Privacy:
    """The privacy account of one node."""

    def __init__(self, node: NodeContext) -> None:
        """Raises UserError BAD_OPTION if the node has no private rows, EXTRA_MISSING if the library is not
        installed."""
        if node.settings.data is None or node.settings.role == "relay":
            raise UserError(
                Code.BAD_OPTION,
                "noise protects rows of one's own, and this node trains on the run's public ones",
                "Give your rows with --data, or leave out --set noise.multiplier and noise.epsilon.",
            )
        if node.settings.noise and node.settings.noise_epsilon:
            raise UserError(
                Code.BAD_OPTION,
                "noise follows from an epsilon, and you give both",
                "Leave out --set noise.multiplier.",
            )
        accounting.library()
        self._node = node
        node.model.limits.append(self.left)
        self._multiplier = node.settings.noise
        """Noise multiplier. If the settings give an epsilon, the multiplier is computed once the rows are
        read."""
        self._settled = 0
        self._epsilon: float | None = None

    @property
    def updates(self) -> int:
        """Number of updates signed by this node's key. All of them count as noisy, and a partial group counts
        as a whole group. If a restart divides a group, its rows are drawn twice: AHEAD covers one such group
        in ten."""
        own, together = self._node.machine.own, self._node.manifest.training.batch_updates
        feeds = self._node.machine.frontier
        whole = (-(-state.next // together) for state in feeds if own and state.feed.origin == own.origin)
        return together * sum(whole)

    def left(self) -> float:
        """Return how many more updates the key may sign; infinity unless the settings give an epsilon."""
        keeps = self._node.settings.noise_epsilon
        return max(0, accounting.most_updates(self._node.manifest) - self.updates) if keeps else math.inf

    def status(self) -> PrivacyStatus:
        """Return the noise and the last computed epsilon."""
        return PrivacyStatus(
            noise=self._multiplier,
            clip=clip_of(self._node.settings, self._node.manifest),
            updates=self._settled,
            epsilon=self._epsilon,
            delta=accounting.DELTA,
        )

    async def run(self) -> None:
        """Keep the account until cancelled."""
        while True:
            if self._node.model.loaded and self._node.model.thread and self.updates > self._settled:
                settings, manifest = self._node.settings, self._node.manifest
                odds = await self._node.model.thread.call(lambda engine: engine.odds)
                self._multiplier = await asyncio.to_thread(accounting.multiplier_of, settings, manifest, odds)
                updates = self.updates
                settled = int(min(updates * AHEAD + 1, updates + self.left()))
                together = manifest.training.batch_updates
                worth = partial(accounting.epsilon, self._multiplier, *odds, settled, together=together)
                self._epsilon = await asyncio.to_thread(worth)
                self._settled = settled
            await asyncio.sleep(LOOK_INTERVAL)
