"""Asks peers the first questions: which of the given peers are nodes and, if none of them is, which other
peer has the run.

A peer of Hivemind's DHT that does not run sfnode is also a way in: it leads to the roster of the run. Every
peer that answers is a stranger. So after a search for a run id, only the manifest whose hash is that id is
accepted (SPEC M3). The caller decides which run to join.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from contextlib import suppress
from random import Random
from typing import NamedTuple

from sfnode.errors import Code, UserError
from sfnode.logging import begins, log
from sfnode.manifest import Manifest, run_id_of
from sfnode.peers.backoff import about, doubled
from sfnode.transport.base import NotSpoken, PeerRecord, Transport, TransportError, call_off, counted
from sfprotocol import wire_codec
from sfprotocol.errors import RemoteProtocolError
from sfprotocol.messages import ManifestReply, ManifestRequest

GRACE = 0.5
"""Time, in seconds, for the other peers to answer after the first usable manifest has come."""

ASKED = 16
"""Number of nodes of a roster that are asked at the same time: several, because most records of a roster may
be invented."""

ASK_DEADLINE = 10.0
"""Deadline, in seconds, for dialling one node and receiving its manifest."""

FIRST, MOST = 2.0, 30.0
"""First and maximum pause, in seconds, between two searches for a run of which no node is found yet. The
pause doubles each time."""

REMIND = 60.0
"""Seconds between two log messages which say that the node still waits."""


async def ask_manifest(transport: Transport, address: str) -> bytes:
    """Return the manifest that a peer sends, unparsed. Raises TransportError, RemoteProtocolError, and
    UserError BAD_ADDRESS."""
    reply = wire_codec.decode(await transport.request(address, wire_codec.encode(ManifestRequest())))
    if not isinstance(reply, ManifestReply):
        raise RemoteProtocolError("L6", "it sent something other than a manifest")
    return reply.manifest


class PeerAnswer(NamedTuple):
    """The outcome of asking one peer which run it serves."""

    address: str
    manifest: bytes | None = None
    """The manifest that the peer sent, unparsed; None if it sent none."""
    plain: bool = False
    """Whether the peer belongs to Hivemind's DHT but does not run sfnode."""
    reason: str = ""
    """The reason why `manifest` is missing; empty if there is a manifest."""


async def run_of(
    transport: Transport, addresses: Sequence[str], run_id: str, *, known: bool, random: Random
) -> Manifest | None:
    """Return the manifest of the run to which these peers lead: the first usable manifest that a node sends.

    Where only peers of Hivemind's DHT answer, returns None if the run is `known` here. Otherwise waits for a
    node in their DHT that has the run `run_id` (hex), and returns its manifest. Raises UserError
    PEERS_UNREACHABLE when nobody answers, NEWER_PROTOCOL, OLDER_PROTOCOL or BAD_MANIFEST when no manifest is
    usable, BAD_OPTION if `run_id` is needed and not complete, and BAD_ADDRESS.
    """
    begins("asking %s for the run", counted(addresses))
    answers = await _ask_all(transport, addresses)
    plain = [answer.address for answer in answers if answer.plain]
    for answer in answers if plain else ():
        log.info("%s", _what_it_is(answer))
    try:
        return _chosen(answers)
    except UserError:
        if not plain:
            raise
    if known:
        log.info("none of them is a node of the run: this node looks for others in the DHT")
        return None
    return await _search(transport, _whole(run_id, plain), plain, random)


def _what_it_is(answer: PeerAnswer) -> str:
    if answer.plain:
        what = (
            "is a peer of Hivemind's DHT and no node: it leads to nodes of the run, and relays nothing of it"
        )
    elif answer.manifest is not None:
        what = "is a node"
    else:
        what = f"gave no answer: {answer.reason}"
    return f"{answer.address} {what}"


def _whole(run_id: str, plain: Sequence[str]) -> bytes:
    """Return a run id from hex. Raises UserError BAD_OPTION unless it has all 64 digits."""
    if re.fullmatch("[0-9a-fA-F]{64}", run_id):
        return bytes.fromhex(run_id)
    raise UserError(
        Code.BAD_OPTION,
        f"there is no node at {counted(plain)}, only Hivemind's DHT, in which runs are found by their whole "
        f"id: {f'{run_id} is not one' if run_id else 'no run is named'}",
        "Add --run FILE, or --set run.id= with all 64 digits, which `sfnode status --json` shows on any "
        "node of the run.",
    )


def _chosen(answers: Sequence[PeerAnswer]) -> Manifest:
    """Return the first usable manifest. Raises UserError as `run_of` does."""
    unusable: UserError | None = None
    for answer in answers:
        try:
            if answer.manifest is not None:
                return _read(answer.manifest, answer.address)
        except UserError as error:
            unusable = unusable or error
    raise unusable or UserError(
        Code.PEERS_UNREACHABLE,
        "no peer sent the run's manifest: " + "; ".join(f"{one.address}: {one.reason}" for one in answers),
        "Ask whoever invited you for a new link (`sfnode invite` makes one there); `sfnode doctor --link "
        "LINK` shows how far each of its peers gets.",
    )


def _read(manifest: bytes, source: str) -> Manifest:
    """Return the manifest in these bytes. Raises UserError BAD_MANIFEST, NEWER_PROTOCOL and
    OLDER_PROTOCOL."""
    return Manifest.from_canonical(manifest, source).current(source)


async def _ask_all(transport: Transport, addresses: Sequence[str]) -> list[PeerAnswer]:
    """Ask all peers, and return their answers: when all have answered, but at most GRACE seconds after the
    first usable manifest."""
    asking = [asyncio.create_task(_ask(transport, address)) for address in addresses]
    try:
        for done in asyncio.as_completed(asking):
            answer = await done
            with suppress(UserError):
                if answer.manifest is not None and _read(answer.manifest, answer.address):
                    await asyncio.wait(asking, timeout=GRACE)
                    break
    finally:
        await call_off(asking)
    return [
        PeerAnswer(address, reason="it is slower than others") if task.cancelled() else task.result()
        for address, task in zip(addresses, asking, strict=True)
    ]


async def _ask(transport: Transport, address: str) -> PeerAnswer:
    try:
        return PeerAnswer(address, await ask_manifest(transport, address))
    except NotSpoken as error:
        with suppress(TransportError):
            await transport.clock_ahead(address)  # every peer of Hivemind's DHT answers this
            return PeerAnswer(address, plain=True, reason=error.reason)
        return PeerAnswer(address, reason=f"{error.reason}, and there is no Hivemind DHT either")
    except (TransportError, RemoteProtocolError) as error:
        return PeerAnswer(address, reason=str(error))


# -- a run that only a DHT leads to --------------------------------------------------------------------


async def _search(transport: Transport, run_id: bytes, plain: Sequence[str], random: Random) -> Manifest:
    """Wait for a node in the roster of a run, and return the manifest that it sends.

    Raises UserError NEWER_PROTOCOL, OLDER_PROTOCOL and BAD_MANIFEST if the manifest of that run is not
    usable.
    """
    begins("looking for a node of run %s through %s", run_id.hex()[:16], counted(plain))
    time, said_at, searches = asyncio.get_running_loop().time, float("-inf"), 0
    while True:
        records: list[PeerRecord] = []
        with suppress(TransportError):
            records = await transport.find(run_id)
        random.shuffle(records)
        if found := await _who_has(transport, records, run_id):
            return _read(*found)
        if time() - said_at > REMIND:
            said_at = time()
            said = f"none of {len(records)} nodes answers" if records else "no node of the run is there"
            private = "a private run is in no DHT, and needs --run FILE and the address of a node"
            log.info("%s: waiting for one; %s", said, private)
        await asyncio.sleep(about(doubled(FIRST, searches, MOST), random))
        await transport.bootstrap(plain)  # an absent peer may be back, and know others
        searches += 1


async def _who_has(
    transport: Transport, records: Sequence[PeerRecord], run_id: bytes
) -> tuple[bytes, str] | None:
    """Return the manifest of this run and the address of the first node that sent it; None if no node has it.
    Asks ASKED nodes at a time."""
    for start in range(0, len(records), ASKED):
        some = records[start : start + ASKED]
        asking = [asyncio.create_task(_ask_record(transport, record)) for record in some]
        try:
            for done in asyncio.as_completed(asking):
                answer = await done
                if answer.manifest is not None and run_id_of(answer.manifest) == run_id:
                    return answer.manifest, answer.address
        finally:
            await call_off(asking)
    return None


async def _ask_record(transport: Transport, record: PeerRecord) -> PeerAnswer:
    """Ask a node for its manifest, at one address after the other. A failure is returned as an answer without
    a manifest."""
    answer = PeerAnswer("")
    with suppress(TimeoutError, UserError):
        async with asyncio.timeout(ASK_DEADLINE):
            for address in record.addresses:
                answer = await _ask(transport, address)
                if answer.manifest is not None:
                    break
    return answer
