"""Join requests: how a newcomer's request reaches the organiser (SPEC O13).

A node forwards a join request once, and only while its origin is not admitted. A token bucket bounds the
requests of one link, and MAX_JOIN_REQUESTS bounds the memory. The newcomer repeats its request, because
requests may get lost.
"""

from __future__ import annotations

from sfprotocol.control_feed import ControlFeed
from sfprotocol.events import Action, JoinRequested, LinkId, Transmit
from sfprotocol.link import Link
from sfprotocol.messages import JoinRequest, Offer
from sfprotocol.rate_limit import FORGERY_COST
from sfprotocol.run_state import RunState
from sfprotocol.signing import signed_by

JOIN_REQUEST_RATE, JOIN_REQUEST_BURST = 0.5, 32.0
"""Maximum number of join requests forwarded for one link: on average per second, and in a burst. The burst of
32 lets a class of students join within a minute. At the rate of 0.5, the requests of a peer that invents keys
cost every node 100 bytes a second."""

REPEAT_TIME = 20.0
"""Minimum seconds between two forwarded join requests of the same origin. This time is shorter than
SEND_AGAIN, so that nodes forward the repeated request of a newcomer."""

MAX_JOIN_REQUESTS = 1024
"""Maximum number of origins for which the time of the last forwarded request is remembered; the oldest is
forgotten first."""

SEND_AGAIN = 30.0
"""Seconds after which a newcomer that is not admitted repeats its join request."""

_JOIN_REQUEST, _OFFER = b"sfnode-petition", b"sfnode-offer"


def join_request_message(run_id: bytes, join_request: JoinRequest) -> bytes:
    """Return the message that the origin of a join request signs."""
    numbers = join_request.nonce.to_bytes(8, "big") + join_request.invitation.to_bytes(4, "big")
    return b"".join((_JOIN_REQUEST, run_id, join_request.origin, numbers, join_request.voucher))


def offer_message(run_id: bytes, origin: bytes, key: bytes) -> bytes:
    """Return the message that a member signs to offer itself as a stand-in. The member signs the message
    twice: with the key of its origin, and with the key that it would use as a stand-in."""
    return b"".join((_OFFER, run_id, origin, key))


def _is_signed(run_id: bytes, told: JoinRequest | Offer) -> bool:
    if isinstance(told, JoinRequest):
        return signed_by(told.origin, join_request_message(run_id, told), told.signature)
    message = offer_message(run_id, told.origin, told.key)
    return all(
        signed_by(key, message, signature)
        for key, signature in zip((told.origin, told.key), told.signatures, strict=True)
    )


class JoinRequests:
    """The join requests and offers to stand in that one machine has forwarded recently, and its own."""

    def __init__(self, run_id: bytes, links: dict[LinkId, Link], control: ControlFeed) -> None:
        self._run_id = run_id
        self._links = links
        self._control = control
        self._seen: dict[tuple[type, bytes], float] = {}
        """Times at which a join request or an offer was last forwarded, keyed by (its type, its origin); the
        oldest first."""
        self._own: dict[type, JoinRequest | Offer] = {}
        """Our own join request and offer, keyed by type, until they are granted."""
        self._send_at = float("inf")

    def deadline(self) -> float:
        """Return the time at which to send our own join request and offer again; infinity without any."""
        return self._send_at

    def join_request(self, own: JoinRequest | Offer, run_state: RunState, now: float) -> list[Action]:
        """Send our own join request or offer to stand in, and repeat it until it is granted."""
        self._own[type(own)], self._send_at = own, now
        return self.wake(run_state, now)

    def wake(self, run_state: RunState, now: float) -> list[Action]:
        """Send our own join request and offer if they are due, unless they are granted."""
        if now < self._send_at:
            return []
        self._own = {kind: own for kind, own in self._own.items() if not self._is_granted(own, run_state)}
        self._send_at = now + SEND_AGAIN if self._own else float("inf")
        greeted = [link.id for link in self._links.values() if link.greeted]
        shown: list[Action] = [JoinRequested(own, "") for own in self._own.values()]
        return shown + [Transmit(link, own) for own in self._own.values() for link in greeted]

    def _is_granted(self, told: JoinRequest | Offer, run_state: RunState) -> bool:
        if isinstance(told, Offer):
            return told.key in self._control.stand_ins
        return run_state.member(told.origin) is not None

    def introduce(self, link: Link) -> list[Action]:
        """Send our own join request and offer to a new neighbour."""
        return [Transmit(link.id, own) for own in self._own.values()]

    def heard(self, link: Link, told: JoinRequest | Offer, run_state: RunState, now: float) -> list[Action]:
        """Forward a join request, or a member's offer to stand in. If this node is the organiser's, also show
        the message to the organiser.

        Raises RemoteProtocolError (SPEC L8) if the sender has wasted too much.
        """
        name = type(told), told.origin
        stranger = run_state.member(told.origin) is None
        if (
            stranger != isinstance(told, JoinRequest)
            or now - self._seen.get(name, float("-inf")) < REPEAT_TIME
        ):
            return []
        if not link.control.join_requests.take(1.0, now, rate=JOIN_REQUEST_RATE, burst=JOIN_REQUEST_BURST):
            return []
        if not _is_signed(self._run_id, told):
            link.waste.charge(FORGERY_COST, 0, now)
            return []
        self._seen.pop(name, None)
        self._seen[name] = now
        if len(self._seen) > MAX_JOIN_REQUESTS:
            del self._seen[next(iter(self._seen))]
        others = [other for other in self._links.values() if other.greeted and other is not link]
        return [JoinRequested(told, link.peer), *(Transmit(other.id, told) for other in others)]
