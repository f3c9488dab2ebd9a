"""The privacy of a running node's rows: its local noise, and what that is worth by now (`accounting`)."""

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
"""Seconds between two looks at how many updates there are."""

AHEAD = 1.1
"""Epsilon is worked out for so many times the updates that there are, and again once there are as many: it is
never too small."""


class Privacy:
    """The account of one node."""

    def __init__(self, node: NodeContext) -> None:
        """Raises UserError BAD_OPTION where there are no private rows, EXTRA_MISSING without the library."""
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
        """Found once the rows are read, where it follows from an epsilon."""
        self._settled = 0
        self._epsilon: float | None = None

    @property
    def updates(self) -> int:
        """The updates that this node's key has signed: all of them are taken for noisy, and groups for
        whole. (One that a restart divided was drawn twice: AHEAD has room for one in ten.)"""
        own, together = self._node.machine.own, self._node.manifest.training.batch_updates
        feeds = self._node.machine.frontier
        whole = (-(-state.next // together) for state in feeds if own and state.feed.origin == own.origin)
        return together * sum(whole)

    def left(self) -> float:
        """Return how many updates more the key may sign."""
        keeps = self._node.settings.noise_epsilon
        return max(0, accounting.most_updates(self._node.manifest) - self.updates) if keeps else math.inf

    def status(self) -> PrivacyStatus:
        """Return what is known."""
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
