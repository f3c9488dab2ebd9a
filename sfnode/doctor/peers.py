"""The peers that were named, one by one and step by step: name, TCP, libp2p, manifest, version.

The first step that fails is the finding. Knows nothing of what becomes of the answers.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from sfnode.config import Manifest
from sfnode.doctor.case import in_thread
from sfnode.doctor.findings import Finding, Subject, milliseconds, ok, problem
from sfnode.errors import Code, UserError
from sfnode.runtime.compatibility import ask_manifest
from sfnode.transport.base import TransportError, bad_address, peer_of
from sfnode.transport.reach import KNOCK_DEADLINE, Door, Place, knock, look_up, place_of
from sfprotocol.errors import RemoteProtocolError

if TYPE_CHECKING:
    from sfnode.transport.hivemind import HivemindTransport

T = TypeVar("T")

NAME_DEADLINE = 3.0
HANDSHAKE_DEADLINE = 5.0
MANIFEST_DEADLINE = 4.0
"""Seconds: a relayed dial takes 2-4 s."""

_OTHER_KEY = re.compile(r"remote key matches (\w+)")
"""How libp2p says that somebody else answered."""

_ABOUT = {
    Code.BAD_ADDRESS: Subject.PEER,
    Code.BAD_MANIFEST: Subject.PEER_MANIFEST,
    Code.NEWER_PROTOCOL: Subject.VERSION,
    Code.NETWORK_DAEMON: Subject.NETWORK_DAEMON,
}
"""What an error that a step raises is about."""


class StepFailed(Exception):  # noqa: N818 (what a step says, caught where steps are taken)
    """Why a step failed, as a finding."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.what)
        self.finding = finding


@dataclass(slots=True)
class Visit:
    """What one peer has let us see."""

    address: str
    finding: Finding | None = None
    answers: bool = False
    """Whether it is there and speaks libp2p."""
    clock_ahead: float = 0.0
    """In seconds, if it answers."""
    manifest: Manifest | None = None
    times: list[str] = field(default_factory=list)


async def visit(
    address: str, guest: Callable[[], Awaitable[HivemindTransport]], expected: Manifest | None
) -> Visit:
    """All the steps, as far as they lead. `expected`: the manifest of the run that is meant to be joined."""
    seen = Visit(address)
    try:
        await _walk(seen, guest, expected)
    except StepFailed as failure:
        seen.finding = failure.finding
    except UserError as error:
        seen.finding = problem(_ABOUT.get(error.code, Subject.PEER), error.what, error.fix)
    return seen


async def _walk(
    seen: Visit, guest: Callable[[], Awaitable[HivemindTransport]], expected: Manifest | None
) -> None:
    peer_of(seen.address)
    place = place_of(seen.address)
    if place is not None:
        if place.port > 65_535:
            raise bad_address(seen.address, "there is no such port")
        doors = await _timed(seen, "name", _resolve(seen.address, place))
        await _timed(seen, "TCP", _connect(seen.address, doors))
    transport = await guest()
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


async def _resolve(address: str, place: Place) -> list[Door]:
    try:
        async with asyncio.timeout(NAME_DEADLINE):
            return await in_thread(lambda: look_up(place))
    except (OSError, ValueError) as error:  # TimeoutError is an OSError, UnicodeError a ValueError
        if not place.named:
            raise bad_address(address, f"{place.host} is not an address of its kind") from None
        reason = f"no answer within {NAME_DEADLINE:g} s" if isinstance(error, TimeoutError) else str(error)
        raise StepFailed(
            problem(
                Subject.PEER_NAME,
                f"{address}: the name {place.host} does not resolve: {reason}",
                "Check the spelling, and this machine's name server; or ask for the peer's /ip4/ address.",
            )
        ) from error


async def _connect(address: str, doors: Sequence[Door]) -> None:
    try:
        async with asyncio.timeout(KNOCK_DEADLINE):
            await knock(doors)
    except OSError as error:
        raise StepFailed(_no_tcp(address, error)) from error


def _no_tcp(address: str, error: OSError) -> Finding:
    if isinstance(error, ConnectionRefusedError):
        why = "the machine is there, but nothing listens on that port, or a firewall refuses"
        fix = (
            "The node there does not run, or has another port now: `sfnode status` there prints its address."
        )
    elif isinstance(error, TimeoutError):
        why = f"no answer within {KNOCK_DEADLINE:g} s: the machine is off, or a firewall drops what is sent"
        fix = "Check that the machine runs and that its firewall or router lets the port through."
    else:
        why = error.strerror or str(error)
        fix = "Check this machine's connection, and the address."
    return problem(Subject.PEER_TCP, f"{address}: {why}", fix)


async def _shake_hands(address: str, transport: HivemindTransport) -> float:
    """How far its clock is ahead."""
    try:
        async with asyncio.timeout(HANDSHAKE_DEADLINE):
            return await transport.clock_ahead(address)
    except (TransportError, TimeoutError) as error:
        raise StepFailed(_no_handshake(address, error)) from error


def _no_handshake(address: str, error: Exception) -> Finding:
    if other := _OTHER_KEY.search(str(error.__cause__)):
        return problem(
            Subject.PEER_HANDSHAKE,
            f"{address}: the node there has another key, by which it is {other[1]}",
            "Ask whoever runs it for its address of today (`sfnode status` there prints it): its key was "
            "replaced, or somebody else is there.",
        )
    why = error.reason if isinstance(error, TransportError) else f"silence for {HANDSHAKE_DEADLINE:g} s"
    return problem(
        Subject.PEER_HANDSHAKE,
        f"{address}: something listens there that is not this peer: {why}",
        "Another program has the port: `sfnode status` on the peer's machine prints the right address.",
    )


async def _ask(address: str, transport: HivemindTransport) -> Manifest:
    """Its run's manifest. Raises UserError BAD_MANIFEST or NEWER_PROTOCOL."""
    try:
        async with asyncio.timeout(MANIFEST_DEADLINE):
            manifest = await ask_manifest(transport, address)
    except (TransportError, RemoteProtocolError, TimeoutError) as error:
        why = str(error) or f"silence for {MANIFEST_DEADLINE:g} s"
        raise StepFailed(_no_manifest(address, why)) from error
    return Manifest.from_canonical(manifest, address)


def _no_manifest(address: str, why: str) -> Finding:
    return problem(
        Subject.PEER_MANIFEST,
        f"{address} speaks libp2p and does not say which run it serves: {why}",
        "It is not a node of sfnode, or one of another version: ask whoever runs it.",
    )
