"""Visits the named peers step by step: name, TCP, libp2p, manifest, version.

The first step that fails becomes the finding.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from sfnode.daemon_thread import in_daemon_thread
from sfnode.doctor.findings import CheckFinding, Subject, milliseconds, note, ok, problem, refused
from sfnode.errors import Code, UserError
from sfnode.manifest import Manifest
from sfnode.peers.introductions import ask_manifest
from sfnode.transport.base import NotSpoken, TransportError, bad_address, peer_of
from sfnode.transport.libp2p.reachability import (
    TCP_DEADLINE,
    SocketAddress,
    TcpEndpoint,
    resolve,
    tcp_endpoint,
    try_connect,
)
from sfprotocol.errors import RemoteProtocolError

if TYPE_CHECKING:
    from sfnode.transport.libp2p.transport import HivemindTransport

T = TypeVar("T")

NAME_DEADLINE = 8.0
"""Deadline, in seconds, for looking up a name: enough for a resolver that asks its second server after 5
s."""

SLOW_NAME = 1.0
"""Threshold, in seconds, above which a name's lookup is worth a note: it delays each dial by name."""

HANDSHAKE_DEADLINE = 5.0
MANIFEST_DEADLINE = 4.0
"""Deadlines, in seconds, for the handshake and for the manifest. A relayed dial takes 2-4 s."""

_OTHER_KEY = re.compile(r"remote key matches (\w+)")
"""Pattern of the part of libp2p's error that names the peer that answered instead of the expected one."""

_ABOUT = {
    Code.BAD_ADDRESS: Subject.PEER,
    Code.BAD_MANIFEST: Subject.PEER_MANIFEST,
    Code.NEWER_PROTOCOL: Subject.VERSION,
    Code.OLDER_PROTOCOL: Subject.VERSION,
    Code.NETWORK_DAEMON: Subject.NETWORK_DAEMON,
}
"""Subject of the finding, keyed by the code of the error that a step raises."""


class StepFailed(Exception):  # noqa: N818 (caught by `visit`)
    """The failure of a step, with its finding."""

    def __init__(self, finding: CheckFinding) -> None:
        super().__init__(finding.what)
        self.finding = finding


@dataclass(slots=True)
class Visit:
    """The results of visiting one peer."""

    address: str
    finding: CheckFinding | None = None
    answers: bool = False
    """Whether the peer can be reached and speaks libp2p."""
    clock_ahead: float = 0.0
    """Seconds by which the peer's clock is ahead of ours; 0 if it does not answer."""
    manifest: Manifest | None = None
    times: list[str] = field(default_factory=list)
    slow_name: CheckFinding | None = None


async def visit(
    address: str, caller: Callable[[], Awaitable[HivemindTransport]], expected: Manifest | None
) -> Visit:
    """Visit a peer step by step until a step fails. `expected` is the manifest of the run to join, if it is
    known."""
    seen = Visit(address)
    try:
        await _take_steps(seen, caller, expected)
    except StepFailed as failure:
        seen.finding = failure.finding
    except UserError as error:
        seen.finding = refused(_ABOUT.get(error.code, Subject.PEER), error)
    return seen


async def _take_steps(
    seen: Visit, caller: Callable[[], Awaitable[HivemindTransport]], expected: Manifest | None
) -> None:
    peer_of(seen.address)
    endpoint = tcp_endpoint(seen.address)
    if endpoint is not None:
        if endpoint.port > 65_535:
            raise bad_address(seen.address, "there is no such port")
        begin = time.perf_counter()
        addresses = await _timed(seen, "name", _resolve(seen.address, endpoint))
        if (took := time.perf_counter() - begin) > SLOW_NAME:
            seen.slow_name = _slow_name(endpoint, took)
        await _timed(seen, "TCP", _connect(seen.address, addresses))
    transport = await caller()
    seen.clock_ahead = await _timed(seen, "libp2p", _shake_hands(seen.address, transport))
    seen.answers = True
    seen.manifest = await _timed(seen, "manifest", _ask(seen.address, transport))
    if expected and seen.manifest.run_id != expected.run_id:
        raise StepFailed(
            problem(
                Subject.PEER_RUN,
                f"{seen.address} serves run {_named(seen.manifest)}, not {_named(expected)}",
                "Check the address and the run with whoever invited you; one data folder serves one run.",
            )
        )
    seen.finding = ok(Subject.PEER, f"{seen.address} answers ({', '.join(seen.times)})")


def _named(manifest: Manifest) -> str:
    return f"{manifest.run_id.hex()[:16]} ({manifest.name})"


async def _timed(seen: Visit, step: str, work: Awaitable[T]) -> T:
    begin = time.perf_counter()
    result = await work
    seen.times.append(f"{step} {milliseconds(time.perf_counter() - begin)}")
    return result


async def _resolve(address: str, endpoint: TcpEndpoint) -> list[SocketAddress]:
    try:
        async with asyncio.timeout(NAME_DEADLINE):
            return await in_daemon_thread(lambda: resolve(endpoint))
    except (OSError, ValueError) as error:  # TimeoutError is an OSError, UnicodeError a ValueError
        if not endpoint.named:
            raise bad_address(address, f"{endpoint.host} is not an address of its kind") from None
        reason = f"no answer within {NAME_DEADLINE:g} s" if isinstance(error, TimeoutError) else str(error)
        raise StepFailed(
            problem(
                Subject.PEER_NAME,
                f"{address}: the name {endpoint.host} does not resolve: {reason}",
                "Check the spelling, and this machine's name server; or ask for the peer's /ip4/ address.",
            )
        ) from error


def _slow_name(endpoint: TcpEndpoint, seconds: float) -> CheckFinding:
    return note(
        Subject.PEER_NAME,
        f"the name {endpoint.host} took {seconds:.1f} s to resolve, and each dial by it takes as long",
        "Check this machine's name servers: the first one may be dead. Or use the peer's /ip4/ address.",
    )


async def _connect(address: str, addresses: Sequence[SocketAddress]) -> None:
    try:
        async with asyncio.timeout(TCP_DEADLINE):
            await try_connect(addresses)
    except OSError as error:
        raise StepFailed(_no_tcp(address, error)) from error


def _no_tcp(address: str, error: OSError) -> CheckFinding:
    if isinstance(error, ConnectionRefusedError):
        why = "the machine is there, but nothing listens on that port, or a firewall refuses connections"
        fix = (
            "The node there does not run, or has another port now: `sfnode status` there prints its address."
        )
    elif isinstance(error, TimeoutError):
        why = f"no answer within {TCP_DEADLINE:g} s: the machine is off, or a firewall drops packets"
        fix = "Check that the machine runs and that its firewall or router lets the port through."
    else:
        why = error.strerror or str(error)
        fix = "Check this machine's connection, and the address."
    return problem(Subject.PEER_TCP, f"{address}: {why}", fix)


async def _shake_hands(address: str, transport: HivemindTransport) -> float:
    """Dial a peer, and return the seconds by which its clock is ahead of ours."""
    try:
        async with asyncio.timeout(HANDSHAKE_DEADLINE):
            return await transport.clock_ahead(address)
    except (TransportError, TimeoutError) as error:
        raise StepFailed(_no_handshake(address, error)) from error


def _no_handshake(address: str, error: Exception) -> CheckFinding:
    if other := _OTHER_KEY.search(str(error.__cause__)):
        return problem(
            Subject.PEER_HANDSHAKE,
            f"{address}: the node there has another key, by which it is {other[1]}",
            "Ask its owner for its present address (`sfnode status` there prints it): its key was replaced, "
            "or another node runs there.",
        )
    why = error.reason if isinstance(error, TransportError) else f"silence for {HANDSHAKE_DEADLINE:g} s"
    return problem(
        Subject.PEER_HANDSHAKE,
        f"{address}: something listens there that is not this peer: {why}",
        "Another program has the port: `sfnode status` on the peer's machine prints the right address.",
    )


async def _ask(address: str, transport: HivemindTransport) -> Manifest:
    """Ask a peer for its run's manifest. Raises UserError BAD_MANIFEST, NEWER_PROTOCOL or OLDER_PROTOCOL."""
    try:
        async with asyncio.timeout(MANIFEST_DEADLINE):
            manifest = await ask_manifest(transport, address)
    except NotSpoken as error:
        raise StepFailed(_no_node(address)) from error
    except (TransportError, RemoteProtocolError, TimeoutError) as error:
        why = str(error) or f"silence for {MANIFEST_DEADLINE:g} s"
        raise StepFailed(_no_manifest(address, why)) from error
    return Manifest.from_canonical(manifest, address).current(address)


def _no_node(address: str) -> CheckFinding:
    return note(
        Subject.PEER,
        f"{address} is a peer of Hivemind's DHT and no node: it leads to nodes of a run, and relays nothing",
        "Join through it with --run FILE, or --set run.id= and all 64 digits.",
    )


def _no_manifest(address: str, why: str) -> CheckFinding:
    return problem(
        Subject.PEER_MANIFEST,
        f"{address} speaks libp2p and does not say which run it serves: {why}",
        "It is not a node of sfnode, or one of another version: ask whoever runs it.",
    )
