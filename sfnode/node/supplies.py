"""Supplies of a node, which come from peers and are given on to others: the base model and the run's data.

Published bases, which a run may name anew while it lasts, are `sfnode.node.training.bases`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sfnode.modelshare.data import DataShare
from sfnode.modelshare.sharing import Sharing
from sfnode.node.joined import Joined
from sfnode.resources.bandwidth_limits import Bandwidth
from sfnode.settings import Settings


class Supplies:
    """Things that one node gets from peers, and gives them."""

    def __init__(self, joined: Joined, *, givers: Callable[[], list[str]], bandwidth: Bandwidth) -> None:
        """`givers()` are addresses of peers that may have what is lacking."""
        self._is_relay = joined.settings.role == "relay"
        self.sharing = Sharing(
            joined.settings,
            joined.manifest,
            joined.data_dir,
            joined.transport,
            peers=givers,
            bandwidth=bandwidth,
            clock=joined.clock,
        )
        self.data = DataShare(
            joined.settings,
            joined.manifest,
            joined.data_dir.data,
            self.sharing,
            request=joined.transport.request,
            peers=givers,
            rate_limit=bandwidth.download,
            clock=joined.clock,
        )
        """Files of the run's public data."""

    def gather(self) -> Settings:
        """Have the run's data and its base model here, on a thread that may wait; return the settings with
        the folder of the model. Raises as `DataShare.find` and `Sharing.find`."""
        self.data.find()
        return self.sharing.find()

    async def stock(self) -> None:
        """Get what a relay is to give to others; a trainer's engine thread asks for it."""
        if self._is_relay and self.sharing.gives:
            await asyncio.to_thread(self.gather)
