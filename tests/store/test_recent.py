"""The memory of recent segments stays small."""

from __future__ import annotations

from store_helpers import Author

from sfnode.store.recent import MAX_UPDATES, SEGMENTS_PER_FEED, Recent
from sfprotocol.messages import EpochScalars, Segment


def test_the_memory_of_recent_segments_is_bounded_and_forgets_the_silent_feeds() -> None:
    recent, authors = Recent(), [Author(number) for number in range(1, 41)]
    size = MAX_UPDATES // 20
    for author in authors:
        recent.add(author.feed, Segment(author.key, 0, (EpochScalars(0, (1,) * size),), bytes(64)))
    kept = [author for author in authors if recent.since(author.feed, 0)]
    assert kept == authors[-20:]
    assert all(segment.count == size for author in kept for segment in recent.since(author.feed, 0))


def test_of_one_feed_only_the_last_segments_are_remembered() -> None:
    recent, author = Recent(), Author()
    for step in range(SEGMENTS_PER_FEED + 3):
        recent.add(author.feed, author.write([step]).segment)
    assert recent.since(author.feed, 2) == []
    assert [segment.first for segment in recent.since(author.feed, 3)] == list(
        range(3, SEGMENTS_PER_FEED + 3)
    )
