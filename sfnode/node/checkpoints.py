"""Computes a node's checkpoints, compares them with the signed ones, stores them and gives them to others. It
also lets the node begin with a checkpoint, and prunes the log before a checkpoint.

The decisions alone say whether a checkpoint is usable (SPEC O14). A checkpoint's state is a file
(`store.checkpoint`). Long work runs on a thread, after its inputs were read on the event loop. The event
CheckpointKept tells the machine at which step each feed begins. Then the log is pruned to these steps.
"""

from __future__ import annotations

import asyncio

from sfnode.errors import Code, UserError
from sfnode.logging import log
from sfnode.modelshare.download import ModelDownload
from sfnode.node.context import NodeContext
from sfnode.node.startup import in_thread
from sfnode.store import checkpoint as states
from sfnode.store.checkpoint import CheckpointState
from sfprotocol.checkpoints import listing
from sfprotocol.decisions import Checkpoint
from sfprotocol.events import CheckpointKept
from sfprotocol.run_state import RunState

LOOK_INTERVAL = 1.0
"""Pause, in seconds, between two checks for a new checkpoint. The organiser signs one every few epochs."""

BEGINNING = 0.05
"""Pause, in seconds, between two checks whether the machine has begun with a checkpoint."""

RETRY = 10.0
"""Pause, in seconds, before another attempt to compute a checkpoint. An attempt fails while the log holds
another history of a feed than the one that the organiser's closes list."""

PATIENCE = 15.0
"""Maximum time, in seconds, for which a node that will begin with a checkpoint waits for all of the
organiser's decisions (SPEC O15). The time runs from the moment at which a neighbour first announces
decisions."""


class NodeCheckpoints:
    """The checkpoints of one node of an organised run."""

    def __init__(self, node: NodeContext) -> None:
        assert node.machine.organised is not None
        self._node = node
        node.model.doubts.append(self.doubt)
        self._organised = node.machine.organised
        self._folder = node.data_dir.checkpoints
        self._done: Checkpoint | None = None
        """The newest checkpoint that was compared with the state computed here; None before the first
        comparison."""
        self._retry_at = self._met_at = float("inf")
        self.differs: Checkpoint | None = None
        """A checkpoint that differs from the state computed here; None if no checkpoint differs."""
        self.begun = asyncio.Event()
        """Event that is set once it is decided at which step each feed begins in this log."""
        replacing = node.settings.from_checkpoint and self._organised.outdated
        if not (node.machine.frontier.waiting or replacing):
            self.begun.set()

    @property
    def _run_state(self) -> RunState:
        return self._organised.run_state

    async def run(self) -> None:
        """Compare and store checkpoints, and prune the log, until cancelled. Raises UserError LOG_CORRUPT,
        DATA_DIR_UNUSABLE."""
        self._give_all()
        while True:
            await asyncio.sleep(LOOK_INTERVAL)
            if not self.begun.is_set():
                await self._begin()
            else:
                await self._compare()
                await self._prune()

    # -- working them out --------------------------------------------------------------------------

    async def state_of(self, epoch: int) -> CheckpointState | None:
        """Compute the state up to `epoch` according to the present decisions, starting from the newest usable
        state that is stored here. Return None if that stored state or needed updates are missing here. Raises
        UserError LOG_CORRUPT."""
        node = self._node
        usable = [one for one in states.usable(self._folder, self._run_state) if one.epoch <= epoch]
        previous = await self._load(usable[-1]) if usable else None
        if usable and previous is None:
            return None
        planned = states.plan(self._run_state, epoch, previous)
        return await in_thread(lambda: states.compute(node.manifest, node.log, planned, previous))

    async def _load(self, stated: Checkpoint) -> CheckpointState | None:
        """Return the stored state of a checkpoint; None if its file is gone, or a decision has made the
        checkpoint unusable meanwhile. Raises the errors of `states.load`, except for an unusable checkpoint:
        its file may be sound, but is decoded according to the present decisions, which have changed."""
        node, run_state = self._node, self._run_state
        try:
            state = await in_thread(lambda: states.load(self._folder, node.manifest, run_state, stated))
        except UserError:
            if stated in self._run_state.checkpoints:
                raise
            return None
        return state if stated in self._run_state.checkpoints else None

    async def _compare(self) -> None:
        """Compute the state of the newest usable checkpoint, and store it if it has the digests that the
        organiser signed."""
        usable = self._run_state.checkpoints
        newest = usable[-1] if usable else None
        if newest is None or newest == self._done or self._organised.outdated:
            return
        if self._node.clock() < self._retry_at < float("inf") or not self._holds(newest.epoch):
            return
        state = await self.state_of(newest.epoch)
        if newest not in self._run_state.checkpoints:
            return
        if state is None:
            self._retry_at = self._node.clock() + RETRY
            return
        self._done, self._retry_at = newest, float("inf")
        if state.decision(self._node.manifest.run_id) != newest:
            self.differs = newest
            return
        self.differs = None
        await self._keep(state)

    async def _keep(self, state: CheckpointState) -> None:
        floor = self._node.machine.frontier.floor
        needed = [floor - 1] if floor else []
        run_id = self._node.manifest.run_id
        await self._node.driver.disk.patiently(
            lambda: in_thread(lambda: states.keep(self._folder, run_id, state, needed))
        )
        self._give_all()

    def _give_all(self) -> None:
        """Offer the stored states of usable checkpoints to peers."""
        self._node.sharing.files = {
            listing(one.feeds, one.cores): self._folder / states.name(one)
            for one in states.usable(self._folder, self._run_state)
        }

    # -- beginning with one ------------------------------------------------------------------------

    async def _begin(self) -> None:
        """Begin with the state of the newest checkpoint, once enough decisions have arrived. The state is
        downloaded if necessary. Without a usable checkpoint, begin with all updates."""
        heads = [link.control.theirs for link in self._node.machine.links.values() if link.control.theirs]
        now = self._node.clock()
        if heads:
            self._met_at = min(self._met_at, now)
        lacking = self._organised.control.feed.stop < max((head.stop for head in heads), default=0)
        if not heads or (lacking and now - self._met_at < PATIENCE):
            return
        if self._organised.outdated and not self._may_replace():
            return
        if not self._run_state.checkpoints:
            log.warning("the organiser has signed no state that can be used: beginning with all updates")
            await self._begin_with(CheckpointKept(None, ()))
            return
        newest = self._run_state.checkpoints[-1]
        if not self._organised.outdated and await self._is_here(newest):
            await self._begin_with(CheckpointKept(None, ()))
            return
        state = await self._fetch(newest)
        if state is not None and newest in self._run_state.checkpoints:
            await self._keep(state)
            log.info("beginning where the run was after round %d", newest.epoch)
            await self._begin_with(CheckpointKept(newest, tuple(state.bases.values())))

    async def _is_here(self, newest: Checkpoint) -> bool:
        """Return whether the log has all updates of a checkpoint."""
        if newest.epoch < self._node.machine.frontier.floor:
            return True
        return self._holds(newest.epoch) and await self.state_of(newest.epoch) is not None

    def _may_replace(self) -> bool:
        """Return whether the newest checkpoint can replace an unusable one. The newest checkpoint must not be
        earlier than the unusable one, because the log no longer has the updates before the unusable one."""
        newest = self._run_state.checkpoints[-1] if self._run_state.checkpoints else None
        late_enough = newest is not None and newest.epoch >= self._node.machine.frontier.floor - 1
        return newest is not None and late_enough and self._holds(newest.epoch)

    def _holds(self, epoch: int) -> bool:
        """Return whether this node has all updates that the closes up to `epoch` list."""
        held, run_state = self._node.machine.frontier.next, self._run_state
        return all(
            held(run_state.feed(number)) >= stop for number, stop in run_state.positions(epoch).items()
        )

    async def _begin_with(self, kept: CheckpointKept) -> None:
        """Tell the machine at which steps feeds begin, and return once the log begins at these steps, too."""
        self._node.driver.post(kept)
        frontier = self._node.machine.frontier
        while frontier.waiting or kept.checkpoint not in (None, frontier.checkpoint):  # noqa: ASYNC110
            await asyncio.sleep(BEGINNING)
        async with self._node.driver.between_rounds:
            self.begun.set()

    async def _fetch(self, wanted: Checkpoint) -> CheckpointState | None:
        """Download the state of a checkpoint from peers; None if no peer gives it."""
        node, run_state = self._node, self._run_state
        download = ModelDownload(
            listing(wanted.feeds, wanted.cores),
            self._folder,
            node.sharing.givers,
            what=f"state of round {wanted.epoch}",
        )

        def is_right(data: bytes) -> bool:
            try:
                return states.decode(node.manifest, run_state, data).decision(node.manifest.run_id) == wanted
            except UserError:
                return False

        most = states.most_bytes(node.manifest, run_state, wanted.epoch)
        try:
            data = await download.first_part(most, is_right)
        except UserError as error:
            if error.code != Code.MODEL_NOT_FOUND:
                raise
            log.warning("%s", error)
            return None
        return states.decode(node.manifest, run_state, data)

    # -- pruning -----------------------------------------------------------------------------------

    async def _prune(self) -> None:
        """Prune the log before the newest checkpoint that permits it (`states.prunable`), once the engine has
        applied all updates. Do nothing unless the setting `history` is "checkpoint"."""
        node, organised = self._node, self._organised
        if node.settings.history != "checkpoint" or organised.outdated:
            return
        stated = states.prunable(self._folder, self._run_state)
        if stated is None or stated.epoch < node.machine.frontier.floor:
            return
        state = await self._load(stated)
        if state is None or not await node.model.is_abreast():
            return
        bases = tuple(state.bases.values())
        here = all(node.machine.frontier.next(base.feed) >= base.step for base in bases)
        if stated in self._run_state.checkpoints and here:
            log.info(
                "letting go of what comes before round %d, of which the organiser has signed the state",
                stated.epoch,
            )
            node.driver.post(CheckpointKept(stated, bases))

    # -- problems ----------------------------------------------------------------------------------

    def problem(self) -> UserError | None:
        """Return a problem with checkpoints or history that the owner should know; None without a problem."""
        if doubt := self.doubt():
            return doubt
        if missing := self._organised.out_of_reach:
            return UserError(
                Code.HISTORY_GONE,
                f"no neighbour keeps {missing} updates that this node lacks",
                "Give the address of a node that keeps all history with --peers, or start this one again "
                "with --from-checkpoint.",
            )
        return None

    def doubt(self) -> UserError | None:
        """Return the problem that leaves this node unsure which updates count; None if there is no such
        problem. While there is such a problem, the node answers no questions about its model."""
        if self.differs:
            return UserError(
                Code.CHECKPOINT_DIFFERS,
                f"the state after round {self.differs.epoch} that the organiser has signed is not what this "
                "node's log has, though every signature is sound",
                "Do not trust the run's results: show this message to other participants, who can check with "
                "`sfnode verify`.",
            )
        if self._organised.outdated:
            return UserError(
                Code.CHECKPOINT_UNUSABLE,
                "the organiser has changed what counts before the checkpoint with which the log here begins",
                "Start the node again with --from-checkpoint once the organiser has signed a newer one, or "
                "join with an empty --data-dir.",
            )
        return None
