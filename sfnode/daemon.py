"""One node of one run, started and stopped by any program with an event loop.

`Node` installs no signal handlers, ends no process and does not configure logging. These tasks are left to
the program, such as `sfnode.cli.join`. Stopping a node closes everything that starting it opened, in reverse
order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from sfnode.control import prometheus, server
from sfnode.loggers import opened
from sfnode.logging import begins
from sfnode.node import contacts_page, equipment, startup
from sfnode.node.outside import Outside
from sfnode.node.run_context import RunContext
from sfnode.node.running import RunningNode, answers_to_peers
from sfnode.node.state import describe
from sfnode.node.training.model import LoadEngine, load_trainer
from sfnode.store.data_folder import DataDir, control_socket_path, open_data_dir
from sfnode.transport.base import Transport
from sfnode.transport.libp2p.settings import HivemindSettings

if TYPE_CHECKING:
    from sfnode.manifest import Manifest
    from sfnode.schema.measurements import NodeEvaluation
    from sfnode.schema.status import CoreStatus, Status
    from sfnode.schema.views import Generated
    from sfnode.settings import Settings

LOG_GRACE = 0.5
"""Maximum time, in seconds, for which a node that ends waits for its loggers."""

MakeTransport = Callable[["Settings", DataDir, tuple[str, ...]], Transport]
"""Function that makes the transport from the settings, the data folder and bootstrap addresses."""

LIBP2P = "sfnode.transport.libp2p.transport"
"""Module of the default transport. It imports hivemind and torch, which takes seconds."""


class Node:
    """A node with these settings. Nothing happens before `start` (or `async with`).

    `make_transport` and `load_engine` replace libp2p and the model, above all in tests. `outside` replaces
    the clock, randomness and sensors of the system (`sfnode.node.outside`) in simulations. `passphrase`
    decrypts the organiser's key if `settings.organise` is on. A passphrase file in the settings has
    precedence.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        make_transport: MakeTransport | None = None,
        load_engine: LoadEngine = load_trainer,
        passphrase: bytes | None = None,
        outside: Outside | None = None,
    ) -> None:
        self.settings = settings
        self._outside = outside or Outside()
        self._passphrase = passphrase
        self._make_transport = make_transport
        self._load_engine = load_engine
        self._running: RunningNode | None = None
        self._life: asyncio.Task[None] | None = None

    # -- starting and stopping ---------------------------------------------------------------------

    async def start(self) -> None:
        """Join the run. Return once the node is on the network, while its model is still being loaded.

        Raises UserError for errors that the user can fix, and RuntimeError if `stop` is called meanwhile.
        After an error nothing is left running.
        """
        if self._life is not None:
            raise RuntimeError("a node is started once; make another for another start")
        joined = asyncio.get_running_loop().create_future()
        self._life = asyncio.create_task(self._live(joined), name="sfnode")
        try:
            await asyncio.wait([joined, self._life], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            call_off(self._life)
            await asyncio.wait([self._life])  # `stop` raises the error of this end, if there is one
            raise
        if joined.done():
            return
        if self._life.cancelled():
            raise RuntimeError("the node was stopped while it started")
        self._life.result()  # raises the error that kept the node from joining

    async def wait(self) -> None:
        """Wait for the node's end. Raises the error that ended the node.

        The node ends after `leave` or `finish`, called here or through the control socket. It also ends when
        it has done what its settings ask for, such as a number of `steps`. A cancelled start counts as an
        end, too.
        """
        if self._life is None:
            raise RuntimeError("the node was not started")
        await asyncio.wait([self._life])  # the cancelling of either side stays on that side
        if not self._life.cancelled():
            self._life.result()

    def leave(self) -> None:
        """End the node at once. `wait` returns within two seconds. A signal handler may call this."""
        self.running.stop()

    def finish(self) -> None:
        """Let the node complete the step in progress, hand its updates over to the neighbours, and end."""
        self.running.finish()

    async def stop(self) -> None:
        """Leave, and wait for the end. Does nothing to a node that has ended or was never started.

        Cancels a start that another task awaits. Raises the error that ended the node.
        """
        if self._life is None:
            return
        if self._running is None:
            call_off(self._life)
        else:
            self._running.stop()
        await self.wait()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop. Raises the error that ended the node, unless that error is being raised already."""
        try:
            await self.stop()
        except BaseException as fault:
            if fault is not error:
                raise

    async def _live(self, joined: asyncio.Future[None]) -> None:
        """Start the node's parts in order, and run. The exit stack closes them in reverse order."""
        settings = self.settings
        async with AsyncExitStack() as stack:
            data_dir = await startup.in_thread(
                lambda: stack.enter_context(open_data_dir(settings.data_dir))  # may wait for seconds
            )
            logger = await startup.in_thread(lambda: opened(settings.log_to, LOG_GRACE))
            stack.callback(logger.close)
            local = startup.local_manifest(settings, data_dir)
            settings = await startup.in_thread(lambda: equipment.equipped(self.settings, local, data_dir))
            settings = self.settings = await contacts_page.followed(settings, data_dir)
            bootstrap = () if data_dir.manifest.exists() else settings.peers
            startup.renew_copied_peer_id(local, data_dir)
            begins("starting the network")
            transport = await self._transport(data_dir, bootstrap)
            stack.push_async_callback(transport.stop)
            await transport.start()
            manifest = await startup.agree_on_manifest(
                settings, local, transport, data_dir, self._outside.random
            )
            if local is None:
                settings = self.settings = await startup.in_thread(
                    lambda: equipment.equipped(self.settings, manifest, data_dir)
                )
            update_log = stack.enter_context(self._outside.open_log(data_dir.log, manifest.run_id))
            draw = await stack.enter_async_context(
                startup.incarnations(settings, manifest, data_dir, update_log, self._outside.random)
            )
            clock = self._outside.clock or asyncio.get_running_loop().time
            machine = startup.open_machine(
                settings, manifest, data_dir, update_log, clock(), draw, self._outside
            )
            stack.enter_context(startup.organising(settings, manifest, machine, self._passphrase, clock()))
            running = RunningNode(
                RunContext(
                    settings, manifest, data_dir, update_log, transport, machine, clock, self._outside
                ),
                self._load_engine,
                logger,
                contacts_page.known_url(settings.contacts_url, update_log),
                describe,
            )
            transport.on_request(answers_to_peers(running.context))
            await running.limiter.start()
            if self._outside.listens:
                stack.push_async_callback(await server.serve(running, data_dir.control_socket))
            if settings.metrics and self._outside.listens:
                stack.push_async_callback(await prometheus.serve(running.status, *settings.metrics))
            self._running = running
            joined.set_result(None)
            await running.live()

    async def _transport(self, data_dir: DataDir, bootstrap: tuple[str, ...]) -> Transport:
        if self._make_transport is None:
            await asyncio.to_thread(import_module, LIBP2P)  # the loop has others to serve meanwhile
        return (self._make_transport or libp2p)(self.settings, data_dir, bootstrap)

    # -- questions ---------------------------------------------------------------------------------

    @property
    def running(self) -> RunningNode:
        """The node's parts. Raises RuntimeError before it has joined its run."""
        if self._running is None:
            raise RuntimeError("the node has not joined its run: `await node.start()` first")
        return self._running

    @property
    def manifest(self) -> Manifest:
        """The run's manifest."""
        return self.running.manifest

    @property
    def control_socket(self) -> Path:
        """Path at which `Client` finds this node. It is known before the node runs, and stays the same."""
        return control_socket_path(self.settings.data_dir)

    def addresses(self) -> list[str]:
        """Full addresses by which others can join through this node."""
        return self.running.transport.addresses()

    def status(self) -> Status:
        """Return the node's current status, which `sfnode status --json` prints."""
        return self.running.status()

    async def evaluate(
        self, *, base: bool = False, calibrated: bool = False, probe: bool = False, limit: int = 0
    ) -> NodeEvaluation:
        """Measure a model on the test rows: with `base` the base model, otherwise the model of the last seal
        (open run: the present model).

        With `calibrated`, the base model is calibrated first. `limit` is the number of rows. If it is 0, the
        manifest determines the number. With `probe`, a linear probe is measured, too, if only a linear head
        is trained. Waits for the model to be loaded. Raises UserError BAD_OPTION for a relay, PAUSED, and
        DATA_NEEDED for a run without test data.
        """
        return await self.running.evaluate(base, limit, calibrated, probe)

    async def generate(self, prompt: str, *, tokens: int = 32) -> Generated:
        """Continue `prompt` by at most `tokens` tokens, with the base model and with the model of the last
        seal (open run: the present model)."""
        return await self.running.generate(prompt, tokens)

    async def digest(self) -> CoreStatus:
        """Return the digests of the node's present state: of its updates (state digest) and of its cores
        (core digest)."""
        return await self.running.core_status()


def call_off(life: asyncio.Task[None]) -> None:
    """Cancel `life`, the task of a node that is starting, unless it was cancelled before. A second
    cancellation would interrupt the cleanup."""
    if not life.cancelling():
        life.cancel()


def libp2p(settings: Settings, data_dir: DataDir, bootstrap: tuple[str, ...]) -> Transport:
    """Make the libp2p transport for these settings. Imports hivemind, and with it torch."""
    from sfnode.transport.libp2p.transport import HivemindTransport

    chosen = settings.circuit_relay
    return HivemindTransport(
        HivemindSettings(
            identity_path=data_dir.libp2p_identity,
            ports_path=data_dir.ports,
            host_maddrs=settings.host_maddrs,
            announce_maddrs=settings.announce_maddrs,
            bootstrap=bootstrap,
            use_auto_relay=settings.auto_relay,
            trusted_relays=settings.trusted_relays or settings.peers,
            circuit_relay=settings.role == "relay" if chosen is None else chosen,
            client_mode=settings.client_mode,
        )
    )
