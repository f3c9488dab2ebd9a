"""Petitions: how a newcomer's request to be admitted reaches the organiser (SPEC O13).

A petition is passed on once, and only as long as its origin is not admitted. What a link may bring is bounded
by a token bucket, what is remembered by a table; a petition that is lost is sent again by its author.
"""

from __future__ import annotations

from sfprotocol.counting import Counting
from sfprotocol.events import Action, LinkId, Petitioned, Transmit
from sfprotocol.link import Link
from sfprotocol.messages import Petition
from sfprotocol.rate_limit import FORGERY_COST
from sfprotocol.signing import signed_by

PETITION_RATE, PETITION_BURST = 0.5, 32.0
"""Petitions that are passed on for one link, a second and at once: a class of students joins within a minute,
and a peer that invents keys costs every node 100 bytes a second."""

REPEAT_TIME = 60.0
"""Seconds after which the same origin's petition is passed on again."""

MAX_PETITIONS = 1024
"""Origins that are remembered, the oldest forgotten first."""

SEND_AGAIN = 30.0
"""Seconds after which a newcomer that has not been admitted sends its petition again."""

_PETITION = b"sfnode-petition"


def petition_message(run_id: bytes, petition: Petition) -> bytes:
    """Return what the origin of a petition signs."""
    numbers = petition.nonce.to_bytes(8, "big") + petition.invitation.to_bytes(4, "big")
    return b"".join((_PETITION, run_id, petition.origin, numbers, petition.voucher))


class Petitions:
    """The petitions that one machine has seen lately, and its own."""

    def __init__(self, run_id: bytes, links: dict[LinkId, Link]) -> None:
        self._run_id = run_id
        self._links = links
        self._seen: dict[bytes, float] = {}
        """The time, by origin, at which a petition was passed on; the oldest first."""
        self.own: Petition | None = None
        """Ours, until we are admitted."""
        self._send_at = float("inf")

    def deadline(self) -> float:
        """Return the time at which our own is to be sent again."""
        return self._send_at

    def petition(self, own: Petition, now: float) -> list[Action]:
        """Ask to be admitted, again and again."""
        self.own, self._send_at = own, now
        return self.wake(None, now)

    def wake(self, counting: Counting | None, now: float) -> list[Action]:
        """Send our own petition if it is due; stop once we are admitted."""
        if self.own is None or now < self._send_at:
            return []
        if counting is not None and counting.member(self.own.origin) is not None:
            self.own, self._send_at = None, float("inf")
            return []
        self._send_at = now + SEND_AGAIN
        told: list[Action] = [Petitioned(self.own, "")]
        return told + [Transmit(link.id, self.own) for link in self._links.values() if link.greeted]

    def introduce(self, link: Link) -> list[Action]:
        """Send our own petition to a new neighbour."""
        return [Transmit(link.id, self.own)] if self.own else []

    def heard(self, link: Link, petition: Petition, counting: Counting, now: float) -> list[Action]:
        """Pass a petition on, and show it to whoever organises here.

        Raises RemoteProtocolError (SPEC L8) when the sender has wasted too much.
        """
        bucket = link.control.petitions
        seen = self._seen.get(petition.origin, float("-inf"))
        if counting.member(petition.origin) is not None or now - seen < REPEAT_TIME:
            return []
        if not bucket.take(1.0, now, rate=PETITION_RATE, burst=PETITION_BURST):
            return []
        if not signed_by(petition.origin, petition_message(self._run_id, petition), petition.signature):
            link.waste.charge(FORGERY_COST, 0, now)
            return []
        self._seen.pop(petition.origin, None)
        self._seen[petition.origin] = now
        if len(self._seen) > MAX_PETITIONS:
            del self._seen[next(iter(self._seen))]
        others = [other for other in self._links.values() if other.greeted and other is not link]
        return [Petitioned(petition, link.peer), *(Transmit(other.id, petition) for other in others)]
