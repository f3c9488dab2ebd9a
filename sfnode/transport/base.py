"""The road as everything above it sees it: links that carry frames, transports that open links.

A frame is opaque bytes here. This module refuses to know what a frame means, how libp2p works, and that
torch exists; the same two interfaces are met by real connections (hivemind) and by links inside one process
(memory), so that what runs in a test or a simulation is what runs in the world.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import ip_address
from typing import NamedTuple, Protocol

from sfnode.errors import Code, UserError

MAX_FRAME = 256 * 1024
"""Largest frame (SPEC F1): a manifest (192 KiB) fits, and a hundred links cost at most 25 MiB of buffers."""

LENGTH_BYTES = 3
"""A frame is preceded by its length, big-endian (SPEC F1)."""

CONNECT_DEADLINE = 10.0
"""Seconds to reach a peer, and again to open a stream: a relayed dial with its handshakes takes 2-4 s."""

SEND_DEADLINE = 20.0
"""Seconds for one frame to leave: the largest one over an uplink of 128 kbit/s takes 16."""

REQUEST_DEADLINE = 20.0
"""Seconds for a question and its answer together, dialling not included; as for SEND_DEADLINE."""

PEER_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""What an id looks like: base58 here, plain names in memory."""

log = logging.getLogger(__name__)


class TransportError(Exception):
    """Anything that went wrong on the road, whatever library said it. `reason` is one line of text."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class LinkClosed(TransportError):  # noqa: N818 (it is how every link ends, not an error)
    """The link has ended: closed here, closed there, broken, or stuck for longer than a deadline."""


class FramingFault(LinkClosed):
    """The link has ended because the peer broke a rule of framing (SPEC F2)."""


class Link(Protocol):
    """A connection to one neighbour that carries frames in both directions."""

    peer: str
    """Whom the transport has authenticated at the other end."""
    outbound: bool
    """Whether this side opened it."""
    address: str
    """Where the other end is seen to be, with or without /p2p/ID; "" if that is unknown."""
    bytes_sent: int
    bytes_received: int
    """Frames with their length prefixes."""

    async def send(self, frame: bytes) -> None:
        """Returns once the frame has left this process. Raises LinkClosed, and ValueError above MAX_FRAME."""

    async def receive(self) -> bytes:
        """The next frame. Raises LinkClosed at the end, and instead of reading a frame above MAX_FRAME."""

    async def close(self) -> None:
        """Idempotent; returns within a deadline whatever the other side does."""


class PeerRecord(NamedTuple):
    """One line of the roster of a run: who is there, how to reach them. Foreign data, hence only a hint."""

    peer: str
    addresses: tuple[str, ...]
    role: int
    """As in Hello (SPEC L2)."""
    known: int
    """How many updates the peer knew when it wrote this."""


LinkHandler = Callable[[Link], Awaitable[None]]
RequestHandler = Callable[[str, bytes], Awaitable[bytes]]


class Transport(Protocol):
    """Opens and accepts links, asks single questions, and keeps the roster of a run."""

    peer: str
    """This node's own id; known once started."""

    async def start(self) -> None:
        """Raises UserError: PORT_IN_USE, BAD_ADDRESS, PEERS_UNREACHABLE, NETWORK_DAEMON."""

    async def stop(self) -> None:
        """Idempotent; takes less than 1.5 s and leaves neither process nor task behind."""

    async def healthy(self) -> bool:
        """Whether everything underneath answers; takes at most 2 s."""

    async def broken(self) -> str:
        """Returns once what is underneath has died (at once) or hangs (within 2 s), or does not run: why."""

    async def restart(self) -> None:
        """Everything underneath anew under the same id, on the same ports if free. Links are lost, and calls
        under way fail at once. Raises UserError as `start` does; nobody is bootstrapped from."""

    def addresses(self) -> list[str]:
        """Full addresses (with /p2p/ID) under which others reach this node, best first: see `best_first`."""

    async def connect(self, peer: str, addresses: Sequence[str] = ()) -> Link:
        """Open a link. Without addresses the network is asked for them. Raises TransportError."""

    async def request(self, address: str, frame: bytes) -> bytes:
        """One question, one answer. Raises TransportError, and UserError BAD_ADDRESS."""

    def on_link(self, handler: LinkHandler) -> None:
        """Call `handler` for links that others open. The link is its own; it is closed if it raises."""

    def on_request(self, handler: RequestHandler) -> None:
        """Call `handler(peer, frame)` for questions of others."""

    async def announce(self, topic: bytes, record: PeerRecord, ttl: float) -> None:
        """Put this node's own record into the roster of `topic` for `ttl` seconds. Raises TransportError."""

    async def find(self, topic: bytes) -> list[PeerRecord]:
        """The roster of `topic`, sorted by peer, a bounded number of records, each checked."""

    async def bootstrap(self, addresses: Sequence[str]) -> int:
        """Dial these peers and join the roster's network through them; how many answered. Addresses that
        are malformed are passed over."""


def bad_address(address: str, why: str) -> UserError:
    """The error for an address that a user gave us."""
    return UserError(
        Code.BAD_ADDRESS,
        f"{address!r} is not a usable address: {why}",
        "One looks like /ip4/203.0.113.7/tcp/31337/p2p/QmPeerId; `sfnode status` on that node prints it.",
    )


def peer_of(address: str) -> str:
    """The peer id at the end of a full address. Raises UserError BAD_ADDRESS."""
    way, _, peer = address.rpartition("/p2p/")
    if not way.startswith("/"):
        raise bad_address(address, "it does not end in /p2p/ and the id of a peer")
    if not PEER_ID.fullmatch(peer):
        raise bad_address(address, f"{peer!r} is not the id of a peer")
    return peer


def best_first(addresses: Sequence[str]) -> list[str]:
    """Public addresses, then names, private ones, relayed ones, loopback last; equals keep their order."""
    return sorted(addresses, key=_remoteness)


def is_loopback(address: str) -> bool:
    """Whether an address leads to the machine itself, whichever that is."""
    return _remoteness(address) == 4


def is_private(address: str) -> bool:
    """Whether an address leads somewhere on a certain network only: a private one, or the machine itself."""
    return _remoteness(address) in (2, 4)


def _remoteness(address: str) -> int:
    kind, _, host = address.lstrip("/").partition("/")
    if "/p2p-circuit" in address:
        return 3
    if kind not in ("ip4", "ip6"):
        return 1 if kind.startswith("dns") else 3
    try:
        ip = ip_address(host.partition("/")[0])
    except ValueError:  # what strangers write into the roster need not be an address
        return 3
    return 4 if ip.is_loopback else 0 if ip.is_global else 2


async def serve_link(handler: LinkHandler | None, link: Link) -> None:
    """Run the handler of one inbound link; whatever it raises costs that link and nothing else."""
    try:
        if handler is not None:
            await handler(link)
            return
    except TransportError as error:
        log.debug("link from %s: %s", link.peer, error.reason)
    except Exception:
        log.exception("the handler of a link from %s failed", link.peer)
    await link.close()


async def answer(handler: RequestHandler | None, peer: str, frame: bytes) -> bytes | None:
    """The handler's answer to one question, or None when there is none to give."""
    if handler is None:
        return None
    try:
        reply = await handler(peer, frame)
        if len(reply) > MAX_FRAME:
            raise ValueError(f"an answer of {len(reply)} bytes is above the limit of {MAX_FRAME}")
        return reply
    except TransportError as error:
        log.debug("question of %s: %s", peer, error.reason)
    except Exception:
        log.exception("the handler of a question from %s failed", peer)
    return None
