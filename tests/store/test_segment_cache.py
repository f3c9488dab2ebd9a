"""Tests of the cache of recent segments and its bounds."""

from __future__ import annotations

from dataclasses import replace

from sfnode.store.known_feeds import MAX_SCALARS, SEGMENTS_PER_FEED, SegmentCache
from sfprotocol.messages import EpochScalars, Segment
from tests.store.helpers import Author


def test_the_cache_is_bounded_and_drops_silent_feeds_first() -> None:
    cache, authors = SegmentCache(), [Author(number) for number in range(1, 41)]
    size = MAX_SCALARS // 20
    for author in authors:
        cache.add(author.feed, Segment(author.key, 0, (EpochScalars(0, (1,) * size),), bytes(64)))
    kept = [author for author in authors if cache.since(author.feed, 0)]
    assert kept == authors[-20:]
    assert all(segment.count == size for author in kept for segment in cache.since(author.feed, 0))


def test_only_the_last_segments_of_a_feed_are_kept() -> None:
    cache, author = SegmentCache(), Author()
    for step in range(SEGMENTS_PER_FEED + 3):
        cache.add(author.feed, author.write([step]).segment)
    assert cache.since(author.feed, 2) == []
    assert [segment.first for segment in cache.since(author.feed, 3)] == list(range(3, SEGMENTS_PER_FEED + 3))


def test_another_history_takes_the_place_of_what_is_there() -> None:
    cache, old, new = SegmentCache(), Author(), Author()
    for _ in range(3):
        cache.add(old.feed, old.write([1] * 4).segment)
    new.write([1] * 4)
    inside = replace(new.write([2] * 2).segment, first=6)  # in the middle of what is there
    cache.add(old.feed, inside)
    assert cache.since(old.feed, 0) == []
    assert cache.since(old.feed, 6) == [inside]
    following = replace(inside, first=8)
    cache.add(old.feed, following)
    assert cache.since(old.feed, 6) == [inside, following]
    assert cache._size == 4
