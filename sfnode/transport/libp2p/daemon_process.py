"""p2pd, the libp2p daemon, as a child process. It never outlives this process, is watched, and stops within a
second.

This module knows p2pd's command line and output, and nothing else of libp2p.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import re
import socket
from asyncio.subprocess import PIPE, STDOUT, Process
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from sfnode import die_with_parent
from sfnode.errors import Code, UserError
from sfnode.settings import EVERYWHERE
from sfnode.transport.base import bad_address

START_DEADLINE = 15.0
"""Deadline, in seconds, for p2pd to print its peer id. It takes 0.2 s, or fifty times as long on a machine
that swaps."""

TERM_DEADLINE = 0.4
"""Pause, in seconds, between SIGTERM and SIGKILL. A healthy p2pd ends within 10 ms."""

PORT_PATIENCE = 2.0
"""Maximum time, in seconds, to wait for an earlier p2pd to release our port. A killed p2pd releases it within
milliseconds."""

CORES_EACH = 4
"""Divisor of the number of cores: p2pd may use a quarter of the machine's cores. It needs only a few percent
of one core. With many cores, p2pd would wake a thread on each for every stream. That would double its
processor time and disturb training."""

_PORT_POLL = 0.05
_TAIL_LINES = 20
_LINE_BYTES = 1000
_LISTEN = re.compile(r"/ip(4|6)/([0-9a-fA-F.:]+)/(tcp|udp)/(\d{1,5})(/.*)?")

log = logging.getLogger(__name__)


class Daemon:
    """One running p2pd, made by `start_daemon`."""

    def __init__(self, process: Process) -> None:
        self.pid = process.pid
        self.tail: deque[str] = deque(maxlen=_TAIL_LINES)
        """The last lines of the process's output."""
        self._process = process
        self._ready = asyncio.Event()
        self._reader = asyncio.create_task(self._read())

    @property
    def alive(self) -> bool:
        return self._process.returncode is None

    async def ended(self) -> None:
        """Wait until the process has ended."""
        await self._process.wait()

    def kill(self) -> None:
        """Kill the process at once. `stop` must still be called."""
        if self.alive:
            with suppress(ProcessLookupError):
                self._process.kill()

    async def wait_until_ready(self) -> bool:
        """Return True once the process has printed its peer id; False if it has ended, or START_DEADLINE has
        passed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(START_DEADLINE):
                await self._ready.wait()
                return self.alive and not self._reader.done()
        return False

    async def stop(self) -> None:
        """Stop the process with SIGTERM, or with SIGKILL if it hangs; idempotent."""
        if self.alive:
            with suppress(ProcessLookupError):
                self._process.terminate()
        try:
            async with asyncio.timeout(TERM_DEADLINE):
                await self._process.wait()
        except TimeoutError:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)

    async def _read(self) -> None:
        """Read all output, so that the process never blocks on a full pipe."""
        assert self._process.stdout is not None
        rest = b""
        try:
            while chunk := await self._process.stdout.read(4096):
                *lines, rest = (rest + chunk).split(b"\n")
                rest = rest[-_LINE_BYTES:]
                for line in lines:
                    self._note(line[:_LINE_BYTES].decode(errors="replace"))
        finally:
            self._ready.set()

    def _note(self, line: str) -> None:
        log.debug("p2pd: %s", line)
        self.tail.append(line)
        if line.startswith("Peer ID:"):
            self._ready.set()


async def start_daemon(program: Path, flags: Sequence[str]) -> Daemon:
    """Start p2pd and wait until it serves. Raises UserError PORT_IN_USE, BAD_ADDRESS or NETWORK_DAEMON."""
    command = die_with_parent.tied([str(program), *flags])
    cores = max(1, (os.cpu_count() or 1) // CORES_EACH)
    environment = {"GOLOG_LOG_LEVEL": "error", "GOMAXPROCS": str(cores), **os.environ}
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, stdout=PIPE, stderr=STDOUT, env=environment,
            start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise daemon_error(f"the network daemon cannot be started: {error.strerror}") from error
    daemon = Daemon(process)
    try:
        if not await daemon.wait_until_ready():
            raise _start_failure(daemon)
    except BaseException:
        await daemon.stop()
        raise
    return daemon


def _start_failure(daemon: Daemon) -> UserError:
    """Return the user error for a p2pd that did not start, according to the last lines that it printed."""
    words = " ".join(daemon.tail)
    if "address already in use" in words:
        return port_in_use(words)
    if "failed to listen on any addresses" in words:
        return bad_address(words, "this machine cannot listen there")
    return daemon_error(f"the network daemon p2pd did not start: {words or 'it printed nothing'}")


def daemon_error(what: str) -> UserError:
    """Return the error for a p2pd that does not work."""
    return UserError(
        Code.NETWORK_DAEMON, what, "Reinstalling hivemind restores p2pd; a debug log has all of its output."
    )


def port_in_use(where: str) -> UserError:
    """Return the error for a port that another program uses."""
    return UserError(
        Code.PORT_IN_USE,
        f"another program already listens on {where}",
        "Choose another port with --host-maddrs, or /tcp/0 for any free one; or stop the other program.",
    )


def peers_unreachable(addresses: Sequence[str]) -> UserError:
    """Return the error for bootstrap peers if none of them answers."""
    return UserError(
        Code.PEERS_UNREACHABLE,
        f"none of these peers answers: {', '.join(addresses)}",
        "Is this machine online? Ask whoever invited you for a new link (`sfnode invite` there makes one); "
        "`sfnode doctor --link LINK` shows how far each of its peers gets.",
    )


async def wait_for_ports(maddrs: Iterable[str]) -> None:
    """Wait until all these addresses can be listened on. Raises UserError PORT_IN_USE or BAD_ADDRESS.

    p2pd itself would not report these errors. If another p2pd uses the port, both share it (SO_REUSEPORT),
    and each gets half of the connections. If only one of several addresses works, p2pd starts all the same.
    """
    for maddr in maddrs:
        give_up = asyncio.get_running_loop().time() + PORT_PATIENCE
        while not port_is_free(maddr):
            if asyncio.get_running_loop().time() > give_up:
                raise port_in_use(maddr)
            await asyncio.sleep(_PORT_POLL)


def without_missing_ipv6(maddrs: Sequence[str]) -> tuple[str, ...]:
    """Return these addresses to listen on. If the kernel has no IPv6, leave out the default address for
    IPv6."""
    return tuple(one for one in maddrs if one != EVERYWHERE[1] or _has_ipv6())


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::", 0))
    except OSError:
        return False
    return True


def port_is_free(maddr: str) -> bool:
    """Return whether this address can be listened on now. Raises UserError BAD_ADDRESS if it never can."""
    match = _LISTEN.fullmatch(maddr)
    if match is None or int(match[4]) > 65_535:
        raise bad_address(maddr, "to listen, give something like /ip4/0.0.0.0/tcp/31337")
    family = socket.AF_INET if match[1] == "4" else socket.AF_INET6
    kind = socket.SOCK_STREAM if match[3] == "tcp" else socket.SOCK_DGRAM
    try:
        with socket.socket(family, kind) as probe:
            if kind == socket.SOCK_STREAM:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            probe.bind((match[2], int(match[4])))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return False
        raise bad_address(maddr, f"this machine cannot listen there ({error})") from error
    return True
