"""The privacy of a running node's rows: its local noise, and what that is worth by now, as (epsilon, delta).

Google's dp-accounting works it out. Assumed is what `engine.estimator` and `tasks.mini_batches` do:
neighbours are shards in which one row is another one (of the same class, where mini-batches are balanced);
each update draws `drawn` of `rows` rows with replacement, in a way that nobody else knows, and one row
changes its clipped scalar by 2 clip at most, however often it was drawn. (In a first-order run, where each
row's own gradient is clipped, none is drawn twice.) The library knows no sampling with replacement. Its bound
for sampling without it (Wang, Balle and Kasiviswanathan 2019) holds here as well: its proof asks for the
chance that a row is drawn, at most drawn / rows, and for the sensitivity, which does not grow with the number
of copies. Updates compose.

Where every row is drawn, as by a head's gradients, all updates together are one Gaussian mechanism, whose
epsilon is known exactly (Balle and Wang 2018): 7 % less than by the bound. Of n rows one in the place of
another changes the mean of clipped gradients by 2 clip / n, and no less where the two are opposite.

The `together` updates of a group share the rows that are drawn, so that one row changes all of them: as a
vector by 2 clip times the root of their number. They count as one draw with noise that is smaller by as much.
"""

from __future__ import annotations

import asyncio
import math
from functools import partial
from typing import Any

from sfnode.errors import Code, UserError
from sfnode.node.context import NodeContext
from sfnode.node.training.engine_loading import clip_of
from sfnode.schema.status import PrivacyStatus

DELTA = 1e-5
"""The chance with which epsilon may not hold; for shards of up to some ten thousand rows."""


def library() -> Any:
    """Return dp_accounting. Raises UserError EXTRA_MISSING."""
    try:
        import dp_accounting.gaussian_mechanism
        import dp_accounting.rdp
    except ImportError as error:
        raise UserError(
            Code.EXTRA_MISSING,
            "local noise is accounted for by dp-accounting, which is not installed",
            'Install it: pip install "sfnode[privacy]".',
        ) from error
    return dp_accounting


def epsilon(
    multiplier: float, drawn: int, rows: int, updates: int, delta: float = DELTA, together: int = 1
) -> float:
    """Return epsilon after so many updates, of which `together` share a mini-batch; infinite without noise.
    Takes a quarter of a second.

    Raises UserError EXTRA_MISSING.
    """
    dp = library()
    if updates <= 0:
        return 0.0
    if multiplier <= 0:
        return float("inf")
    draws, multiplier = math.ceil(updates / together), multiplier / math.sqrt(together)
    if drawn >= rows:
        return float(dp.gaussian_mechanism.get_epsilon_gaussian(multiplier / math.sqrt(draws), delta))
    noisy = dp.GaussianDpEvent(multiplier)
    one = dp.SampledWithoutReplacementDpEvent(rows, drawn, noisy)
    accountant = dp.rdp.RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_ONE)
    accountant.compose(one, draws)
    return float(accountant.get_epsilon(delta))


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
                "Give your rows with --data, or leave out --set noise.multiplier.",
            )
        library()
        self._node = node
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

    def status(self) -> PrivacyStatus:
        """Return what is known."""
        return PrivacyStatus(
            noise=self._node.settings.noise,
            clip=clip_of(self._node.settings, self._node.manifest),
            updates=self._settled,
            epsilon=self._epsilon,
            delta=DELTA,
        )

    async def run(self) -> None:
        """Keep the account until cancelled."""
        while True:
            if self._node.model.loaded and self._node.model.thread and self.updates > self._settled:
                drawn, rows = await self._node.model.thread.call(lambda engine: engine.odds)
                settled = int(self.updates * AHEAD) + 1
                noise, together = self._node.settings.noise, self._node.manifest.training.batch_updates
                worth = partial(epsilon, noise, drawn, rows, settled, together=together)
                self._epsilon = await asyncio.to_thread(worth)
                self._settled = settled
            await asyncio.sleep(LOOK_INTERVAL)
