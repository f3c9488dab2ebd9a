"""Asking a peer where its history of a feed joins ours, when it does not continue ours (SPEC A7, A8).

The answers are ordinary segments; what they show is for forks to say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sfprotocol.events import Action, Transmit
from sfprotocol.frontier import FeedState
from sfprotocol.messages import Position, Want

if TYPE_CHECKING:
    from sfprotocol.flood import Link

LOOK_BACK = (64, 4096, None)
"""How many updates before our end the peer's history is asked for, until it joins ours; None: from step 0.
Most forks are the few updates that a backup lacked."""

INQUIRY_TIME = 60.0
"""Seconds after which a peer may be asked again for another history of the same feed, and for what continues
ours. A peer with nothing but garbage then costs three questions a minute and feed."""

MAX_INQUIRIES = 64
"""Feeds under inquiry on one link: what a peer with garbage for many feeds can make us remember and ask."""


@dataclass(slots=True)
class Inquiry:
    """One feed of which one peer is asked for its history."""

    until: float
    stage: int = 0
    """Index into LOOK_BACK; beyond it when there is nothing more to ask for."""


def under_way(link: Link, state: FeedState, now: float) -> bool:
    """Whether what the link brings of this feed is an answer."""
    inquiry = link.inquiries.get(state.feed)
    return inquiry is not None and inquiry.until > now and inquiry.stage < len(LOOK_BACK)


def begin(link: Link, state: FeedState, now: float, *, whole: bool = False) -> list[Action]:
    """Ask, unless we have done so lately or ask this peer for too much already.

    For the `whole` history where feeds share a key: what does not follow from our past may then be another's.
    """
    known = link.inquiries.get(state.feed)
    if known and known.until > now:
        return []
    if len(link.inquiries) >= MAX_INQUIRIES:
        for feed in [feed for feed, inquiry in link.inquiries.items() if inquiry.until <= now]:
            del link.inquiries[feed]
    if len(link.inquiries) >= MAX_INQUIRIES:
        return []
    link.inquiries[state.feed] = Inquiry(now + INQUIRY_TIME, len(LOOK_BACK) - 1 if whole else 0)
    return _ask(link, state)


def avoid(link: Link, state: FeedState, now: float) -> None:
    """Do not ask this peer for the feed for a while, nor for another history: we have none of our own."""
    begin(link, state, now)
    if known := link.inquiries.get(state.feed):
        known.stage = len(LOOK_BACK)


def look_further_back(link: Link, state: FeedState, now: float) -> list[Action]:
    """What came did not follow from our past either."""
    inquiry = link.inquiries.get(state.feed)
    if inquiry is None:
        return begin(link, state, now)
    inquiry.stage += 1
    return _ask(link, state)


def _ask(link: Link, state: FeedState) -> list[Action]:
    stage = link.inquiries[state.feed].stage
    if stage >= len(LOOK_BACK):
        return []
    back = LOOK_BACK[stage]
    start = 0 if back is None else max(0, state.next - back)
    return [Transmit(link.id, Want((Position(state.feed, start),)))]
