"""Anti-entropy: Summaries of all feeds, and when to repeat them (SPEC A1-A3, A6).

Flooding is fast but may lose any message. Neighbours compare their digests, and send each other full
Summaries if the digests differ for long. If a Summary shows that updates are missing, pulls.py requests them.
So every update is delivered in the end.
"""

from __future__ import annotations

from sfprotocol.events import Action, Transmit
from sfprotocol.frontier import Frontier
from sfprotocol.link import Link
from sfprotocol.messages import Claim, Summary
from sfprotocol.plumtree import announce
from sfprotocol.wire_codec import MAX_ENTRIES

SYNC_INTERVAL = 1.0
"""Seconds between two Summaries, which go to one link after the other. With 6 links, each neighbour gets a
Summary every 6 s. If a node has no new updates, its Summaries take 50 bytes a second altogether."""

CLAIM_BYTES = 43
"""Typical size of a feed's entry in a Summary, in bytes."""

FULL_SUMMARY_BASE = 2.0
FULL_SUMMARY_PER_FEED = 0.02
"""Seconds between full Summaries on a link while the digests of both sides differ: FULL_SUMMARY_BASE, plus
FULL_SUMMARY_PER_FEED for each feed of the run. Full Summaries then cost less than 3 kB/s per link, with any
number of feeds."""

MOST_PATIENCE = 16.0
"""Maximum factor by which the interval between full Summaries on a link grows: it doubles each time until the
digests are equal. While new updates arrive, the digests of both sides seldom describe the same moment. They
then differ although no update is lost."""


def pages(frontier: Frontier, entries: list[Claim]) -> list[Summary]:
    """Return Summaries with these `entries`, which are in the order of feeds. All Summaries but the last have
    `more` set.

    Without entries, return one empty Summary.
    """
    cuts = range(0, max(len(entries), 1), MAX_ENTRIES)
    return [
        Summary(
            more=cut + MAX_ENTRIES < len(entries),
            known=frontier.known,
            digest=frontier.digest(),
            entries=tuple(entries[cut : cut + MAX_ENTRIES]),
        )
        for cut in cuts
    ]


def tell_all(link: Link, frontier: Frontier, now: float) -> list[Action]:
    """Send the peer Summaries of all feeds that we have, with their full names (SPEC A1)."""
    link.agreement.told_at = now
    link.outbox.changed.clear()
    link.names.known.update(state.feed for state in frontier)
    return [Transmit(link.id, page) for page in pages(frontier, frontier.claims())]


def tell(link: Link, frontier: Frontier, now: float) -> list[Action]:
    """Send the peer the changed feeds and the digest (SPEC A2), or all feeds if the digests have differed for
    long."""
    if not wants_full_summary(link, frontier, now):
        return [*announce(link, frontier), *(Transmit(link.id, page) for page in pages(frontier, []))]
    link.agreement.patience = min(2 * link.agreement.patience, MOST_PATIENCE)
    return tell_all(link, frontier, now)


def wants_full_summary(link: Link, frontier: Frontier, now: float) -> bool:
    """Return whether it is time for a full Summary: the digests have differed for so long that a message was
    probably lost (SPEC A6)."""
    agreement = link.agreement
    if agreement.differs_since is None:
        return False
    interval = (FULL_SUMMARY_BASE + FULL_SUMMARY_PER_FEED * len(frontier)) * agreement.patience
    return now - max(agreement.differs_since, agreement.told_at) >= interval


def compare(link: Link, digest: bytes, frontier: Frontier, now: float) -> None:
    """Note whether the peer's digest equals ours (SPEC A6)."""
    agreement = link.agreement
    agreement.agreed = digest == frontier.digest()
    if agreement.agreed:
        agreement.differs_since, agreement.patience = None, 1.0
    elif agreement.differs_since is None:
        agreement.differs_since = now


def note_known(link: Link, known: int, frontier: Frontier) -> None:
    """Note the number of updates that the peer knows, as told in its last Summary (`known`)."""
    link.informed = link.informed or known > link.known or 2 * known > frontier.known
    link.known = known
