"""The frontier describes a set of updates, independent of how it was reached (SPEC D1-D3)."""

from __future__ import annotations

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from sfprotocol.frontier import Frontier
from sfprotocol.messages import Feed
from tests.protocol.feeds import RUN

FEEDS = [Feed(bytes([origin]) * 32, incarnation) for origin in (1, 2, 3) for incarnation in (0, 9)]
POSITIONS = st.dictionaries(st.sampled_from(FEEDS), st.integers(1, 20), min_size=1)


def chain(feed: Feed, following: int) -> bytes:
    return hashlib.blake2b(repr((feed, following)).encode(), digest_size=32).digest()


def reached(positions: dict[Feed, int]) -> Frontier:
    frontier = Frontier(RUN)
    for feed, following in positions.items():
        frontier.advance(feed, following, chain(feed, following), 0)
    return frontier


def by_the_rule(frontier: Frontier) -> bytes:
    """Compute the digest from all records by SPEC D3."""
    lanes = [0] * 1024
    for state in frontier:
        if state.empty:
            continue
        output = hashlib.shake_128(state.record()).digest(2048)
        for lane in range(1024):
            lanes[lane] += int.from_bytes(output[2 * lane : 2 * lane + 2], "little")
    summed = b"".join((lane % (1 << 16)).to_bytes(2, "little") for lane in lanes)
    said = frontier.run.run_id + frontier.control + summed
    return hashlib.blake2b(said, digest_size=32, person=b"sfnode-state").digest()


MOVES = st.lists(
    st.tuples(st.sampled_from(FEEDS), st.sampled_from(["on", "back", "cut", "digest", "control"])),
    max_size=20,
)


@given(MOVES)
def test_the_digest_is_that_of_all_records_whatever_has_changed_since_it_was_last_wanted(
    moves: list[tuple[Feed, str]],
) -> None:
    frontier = Frontier(RUN)
    for feed, move in moves:
        at = frontier.next(feed)
        if move == "on":
            frontier.advance(feed, at + 2, chain(feed, at + 2), 0)
        elif move == "back":
            frontier.go_back(feed, at // 2, chain(feed, at // 2), 0, 0)
        elif move == "cut":
            frontier.cut(feed, at // 2, chain(feed, at // 2))
        elif move == "control":
            frontier.tell_control(chain(feed, at))
        else:
            assert frontier.digest() == by_the_rule(frontier)
    assert frontier.digest() == by_the_rule(frontier)
    for state in frontier:
        tag = hashlib.blake2b(state.record(), digest_size=4).digest()
        assert state.claim() == (state.feed, state.next, tag), "an entry that was told does not go stale"


def test_a_feed_of_which_nothing_counts_is_not_in_the_digest() -> None:
    # Nothing is what most nodes have of it, and they have no record. One that had only seen updates that do
    # not count had no record either, and failed when its digest was wanted.
    frontier = Frontier(RUN)
    nothing = frontier.digest()
    frontier.stop(FEEDS[0])
    assert frontier.digest() == nothing
    frontier.advance(FEEDS[1], 2, chain(FEEDS[1], 2), 0)
    frontier.go_back(FEEDS[1], 0, chain(FEEDS[1], 0), 0, 0)
    assert frontier.digest() == nothing


def test_asking_for_the_state_of_a_feed_does_not_add_it() -> None:
    frontier = Frontier(RUN)
    state = frontier.state(FEEDS[0])
    assert (state.next, state.epoch) == (0, 0)
    assert (FEEDS[0] in frontier, len(frontier), frontier.next(FEEDS[0])) == (False, 0, 0)
    assert frontier.keyed(state.key) == []


@given(POSITIONS)
def test_what_is_held_of_an_origin_is_of_all_its_incarnations(positions: dict[Feed, int]) -> None:
    frontier = reached(positions)
    for origin in {feed.origin for feed in FEEDS}:
        assert frontier.held(origin) == sum(n for feed, n in positions.items() if feed.origin == origin)


def test_admitted_feeds_are_found_by_their_key() -> None:
    frontier = reached(dict.fromkeys(FEEDS, 3))
    assert all(frontier.keyed(state.key) == [state.feed] for state in frontier)
    assert [claim[:2] for claim in frontier.claims()] == [(feed, 3) for feed in sorted(FEEDS)]
