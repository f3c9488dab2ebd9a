"""Asking a peer where its history of a feed joins ours, when it does not continue ours (SPEC A7, A8).

The answers are ordinary segments; fork_resolution compares them with our log.
"""

from __future__ import annotations

from sfprotocol.counting import NEVER
from sfprotocol.events import Action, Transmit
from sfprotocol.frontier import FeedState
from sfprotocol.link import Inquiry, Link
from sfprotocol.messages import Position, Want

LOOK_BACK = (64, 4096, None)
"""Numbers of updates before our end from which the peer's history is asked for, one after the other, until it
joins ours; None: from the first step that both keep. Most forks are the few updates that a backup lacked."""

INQUIRY_TIME = 60.0
"""Seconds after which a peer may be asked again for another history of the same feed, and for what continues
ours. A peer with nothing but garbage then costs three questions a minute and feed."""

MAX_INQUIRIES = 64
"""Feeds under inquiry on one link: what a peer with garbage for many feeds can make us remember and ask."""


def under_way(link: Link, state: FeedState, now: float) -> bool:
    """Return whether what the link brings of this feed is an answer to an inquiry."""
    inquiry = link.inquiries.get(state.feed)
    return inquiry is not None and inquiry.until > now and inquiry.stage < len(LOOK_BACK)


def begin(link: Link, state: FeedState, least: int, now: float, *, whole: bool = False) -> list[Action]:
    """Ask for the peer's history, unless we have done so lately or ask this peer for too much already.

    `least` is the first step that both sides keep. `whole`: from there at once, where feeds share a key: a
    history that does not follow from our past may then be another feed's.
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
    return _ask(link, state, least)


def avoid(link: Link, state: FeedState, now: float) -> None:
    """Do not ask this peer for the feed for a while, nor for another history: we have none to compare."""
    begin(link, state, NEVER, now)
    if known := link.inquiries.get(state.feed):
        known.stage = len(LOOK_BACK)


def look_further_back(link: Link, state: FeedState, least: int, now: float) -> list[Action]:
    """Ask from an earlier step: what came did not follow from our past either."""
    inquiry = link.inquiries.get(state.feed)
    if inquiry is None:
        return begin(link, state, least, now)
    inquiry.stage += 1
    return _ask(link, state, least)


def _ask(link: Link, state: FeedState, least: int) -> list[Action]:
    stage = link.inquiries[state.feed].stage
    if stage >= len(LOOK_BACK) or least > state.next:
        return []
    back = LOOK_BACK[stage]
    start = least if back is None else max(least, state.next - back)
    return [Transmit(link.id, Want((Position(state.feed, start),)))]
