"""The published bases of a running node: which its run has now, and which it lacks for its next step.

Getting them here and giving them on is `sfnode.modelshare.bases`. A run with random bases has none of this.
"""

from __future__ import annotations

from collections.abc import Callable

from sfnode.errors import UserError
from sfnode.modelshare.bases import BasesShare
from sfnode.modelshare.download import Progress
from sfnode.modelshare.sharing import Sharing
from sfnode.node.run_context import RunContext
from sfnode.node.training.engine_thread import EngineThread
from sfnode.resources.bandwidth_limits import RateLimit
from sfprotocol.decisions import Bases


class PublishedBases:
    """The published bases of one node; `run` looks after them until cancelled."""

    def __init__(
        self,
        context: RunContext,
        sharing: Sharing,
        *,
        givers: Callable[[], list[str]],
        rate_limit: RateLimit,
        come: Callable[[], None],
    ) -> None:
        """`givers()` are addresses of peers that may have some; `come()` is called when some have come."""
        settings = context.settings
        self._machine = context.machine
        self._is_relay = settings.role == "relay"
        self._come = come
        self._told: tuple[Bases, ...] = ()
        """Those that the engine was told of, or has to be told of again if there are none."""
        self._share = BasesShare(
            context.manifest,
            context.data_dir.bases,
            settings.run.parent if settings.run else None,
            sharing,
            published=self._published,
            fetches=settings.role == "trainer" or sharing.gives,
            come=self._have_come,
            request=context.transport.request,
            peers=givers,
            rate_limit=rate_limit,
            clock=context.clock,
        )
        self.run = self._share.run

    @property
    def progress(self) -> Progress | None:
        """Progress of the download from peers; None while there is none."""
        return self._share.progress

    def lacking(self) -> list[Bases]:
        """Return those without which this node makes no updates now; a relay needs none."""
        if self._is_relay:
            return []
        return self._share.lacking(self._machine.run.subspace_of(self._machine.epoch))

    def problem(self) -> UserError | None:
        """Return what keeps these from being here, if it does not come right by itself."""
        return self._share.problem(self.lacking())

    def tell(self, engine: EngineThread) -> None:
        """Tell the engine of bases that are new or have come."""
        published = self._published()
        if published != self._told:
            self._told = published
            engine.call(lambda engine: engine.use_bases(published))

    def _published(self) -> tuple[Bases, ...]:
        """Return the published bases of the run as of now."""
        counting = self._machine.frontier.counting
        return counting.bases if counting else (Bases(0, self._machine.run.bases),)

    def _have_come(self) -> None:
        self._told = ()
        self._come()
