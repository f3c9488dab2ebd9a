"""Interfaces of the network: links that carry frames, and transports that open links.

A frame is opaque bytes. This module knows nothing of the meaning of frames, of libp2p and of torch. Real
connections (libp2p) and links inside one process (memory) implement the same two interfaces, so tests run the
code that ships.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from ipaddress import ip_address
from typing import Any, NamedTuple, Protocol

from sfnode.errors import Code, UserError
from sfprotocol.wire_codec import MAX_FRAME

CONNECT_DEADLINE = 10.0
"""Deadline, in seconds, for each of two steps: dialling a peer and opening a stream. A relayed dial with its
handshakes takes 2-4 s."""

SEND_DEADLINE = 20.0
"""Deadline, in seconds, for one frame to leave. The largest frame takes 16 s over an uplink of 128 kbit/s."""

REQUEST_DEADLINE = 20.0
"""Deadline, in seconds, for a request and its response together, without dialling. A large response takes as
long as a large frame (SEND_DEADLINE)."""

PEER_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""Pattern of a peer id: base58 with libp2p, a plain name with the memory transport."""

log = logging.getLogger(__name__)


class TransportError(Exception):
    """A failure of the network, whatever library reported it. `reason` is one line of text."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class NotSpoken(TransportError):  # noqa: N818 (an answer, if not the one that was hoped for)
    """The peer answers but does not speak our protocols: it runs another program than sfnode."""


class LinkClosed(TransportError):  # noqa: N818 (it is how every link ends, not an error)
    """The link has ended: closed by either side, broken, or stuck for longer than a deadline."""


class FramingFault(LinkClosed):
    """The link has ended because the peer broke a rule of framing (SPEC F2)."""


class Link(Protocol):
    """A connection to one neighbour, which carries frames in both directions."""

    peer: str
    """Id of the peer at the other end, authenticated by the transport."""
    outbound: bool
    """Whether this side opened the link."""
    address: str
    """Address of the other end as seen from here, with or without /p2p/ID; empty if unknown."""
    bytes_sent: int
    bytes_received: int
    """`bytes_sent` and `bytes_received` count the frames of this link so far, with their length prefixes."""

    async def send(self, frame: bytes) -> None:
        """Return once the frame has left this process. Raises LinkClosed, and ValueError above MAX_FRAME."""

    async def receive(self) -> bytes:
        """Return the next frame. Raises LinkClosed at the end, FramingFault for a frame above MAX_FRAME."""

    async def close(self) -> None:
        """Close the link; idempotent. Returns within a deadline, whatever the other side does."""


class PeerRecord(NamedTuple):
    """One entry of a run's roster: a peer and its addresses. Any stranger can write an entry, so it is only a
    hint."""

    peer: str
    addresses: tuple[str, ...]
    role: int
    """Role as in Hello (SPEC L2): 0 for a trainer, 1 for a relay."""
    known: int
    """Number of updates that the peer knew when it wrote the record."""


class Asker(NamedTuple):
    """The sender of a request."""

    peer: str
    """Id of the sender, authenticated by the transport."""
    address: str
    """Address of the sender as seen from here, with or without /p2p/ID; empty if unknown."""


LinkHandler = Callable[[Link], Awaitable[None]]
RequestHandler = Callable[[Asker, bytes], Awaitable[bytes]]


class Transport(Protocol):
    """Opens and accepts links, sends and answers single requests, and keeps the roster of a run."""

    peer: str
    """Id of this node; known once started."""

    async def start(self) -> None:
        """Connect to the network. Raises UserError: PORT_IN_USE, BAD_ADDRESS, PEERS_UNREACHABLE,
        NETWORK_DAEMON."""

    async def stop(self) -> None:
        """Disconnect within 1.5 s, leaving neither process nor task behind; idempotent."""

    async def healthy(self) -> bool:
        """Return, within 2 s, whether the software under this transport (for libp2p: its daemon) answers."""

    async def broken(self) -> str:
        """Wait until this transport needs a `restart`, and return the reason. The software under it has died
        (noticed at once) or hangs (noticed within 2 s; within 20 s if it still uses the processor), or this
        node can no longer be reached."""

    async def restart(self) -> None:
        """Restart the transport with the same id, and with the same ports if they are free. Links are lost,
        and calls under way fail at once. Bootstrap peers are not dialled. Raises UserError as `start`
        does."""

    def addresses(self) -> list[str]:
        """Return the full addresses (with /p2p/ID) of this node, best first: see `best_first`."""

    async def connect(self, peer: str, addresses: Sequence[str] = ()) -> Link:
        """Open a link. Without `addresses`, the network looks up the peer. Raises TransportError, or its
        subclass NotSpoken if the peer does not run sfnode."""

    async def request(self, address: str, frame: bytes) -> bytes:
        """Send one request and return its response. Raises UserError BAD_ADDRESS, and what `connect`
        raises."""

    def on_link(self, handler: LinkHandler) -> None:
        """Call `handler` for links that others open. The handler owns the link. If it raises, the link is
        closed."""

    def on_request(self, handler: RequestHandler) -> None:
        """Call `handler(asker, frame)` for requests of others."""

    def ask_for_relays(self, known: Callable[[], Sequence[str]]) -> None:
        """Set the function that a transport calls when it needs a relay. `known` returns the full addresses
        of peers that relay for others, the best known peers first."""

    async def announce(self, topic: bytes, record: PeerRecord, ttl: float) -> None:
        """Put this node's own record into the roster of `topic` for `ttl` seconds. Raises TransportError."""

    async def find(self, topic: bytes) -> list[PeerRecord]:
        """Return at most MAX_ROSTER checked records of `topic`, sorted by peer. This node's own record is
        included only if other peers store it. Raises TransportError."""

    async def clock_ahead(self, address: str) -> float:
        """Ask a peer for the time, and return the seconds by which its clock is ahead of ours. Raises
        TransportError, and UserError BAD_ADDRESS."""

    async def bootstrap(self, addresses: Sequence[str]) -> int:
        """Dial these peers, and join through them the network that stores rosters (the DHT). Return the
        number of peers that answered. Malformed addresses are skipped."""


def bad_address(address: str, why: str) -> UserError:
    """Return the error for a malformed address that a user has given."""
    return UserError(
        Code.BAD_ADDRESS,
        f"{address!r} is not a usable address: {why}",
        "One looks like /ip4/203.0.113.7/tcp/31337/p2p/QmPeerId; `sfnode status` on that node prints it.",
    )


def peer_of(address: str) -> str:
    """Return the peer id at the end of a full address. Raises UserError BAD_ADDRESS."""
    start, _, peer = address.rpartition("/p2p/")
    if not start.startswith("/"):
        raise bad_address(address, "it does not end in /p2p/ and the id of a peer")
    if not PEER_ID.fullmatch(peer):
        raise bad_address(address, f"{peer!r} is not the id of a peer")
    return peer


def counted(addresses: Sequence[str]) -> str:
    """Return a phrase for a message: the address if there is only one, else the number of addresses."""
    return addresses[0] if len(addresses) == 1 else f"{len(addresses)} addresses of peers"


def best_first(addresses: Sequence[str]) -> list[str]:
    """Sort addresses by kind: public, DNS name, private, relayed, loopback. Addresses of one kind keep their
    order."""
    return sorted(addresses, key=_remoteness)


def is_loopback(address: str) -> bool:
    """Return whether an address is a loopback address."""
    return _remoteness(address) == 4


def is_private(address: str) -> bool:
    """Return whether an address is private or loopback, and so of use on one network only."""
    return _remoteness(address) in (2, 4)


def _remoteness(address: str) -> int:
    kind, _, host = address.lstrip("/").partition("/")
    if "/p2p-circuit" in address:
        return 3
    if kind not in ("ip4", "ip6"):
        return 1 if kind.startswith("dns") else 3
    try:
        ip = ip_address(host.partition("/")[0])
    except ValueError:  # strangers may write anything into the roster
        return 3
    return 4 if ip.is_loopback else 0 if ip.is_global else 2


async def call_off(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks, wait until all have ended, and ignore their errors."""
    ending = list(tasks)
    for task in ending:
        task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)


async def serve_link(handler: LinkHandler | None, link: Link) -> None:
    """Run the handler of a link. Whatever the handler raises ends that link and nothing else."""
    try:
        if handler is not None:
            await handler(link)
            return
    except TransportError as error:
        log.debug("link from %s: %s", link.peer, error.reason)
    except Exception:
        log.exception("the handler of a link from %s failed", link.peer)
    await link.close()


async def answer(handler: RequestHandler | None, asker: Asker, frame: bytes) -> bytes | None:
    """Return the handler's response to one request; None without a handler or a response."""
    if handler is None:
        return None
    try:
        reply = await handler(asker, frame)
        if len(reply) > MAX_FRAME:
            raise ValueError(f"a response of {len(reply)} bytes is above the limit of {MAX_FRAME}")
        return reply
    except TransportError as error:
        log.debug("request of %s: %s", asker.peer, error.reason)
    except Exception:
        log.exception("the handler of a request from %s failed", asker.peer)
    return None
