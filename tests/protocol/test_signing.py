"""Chains and signatures: signed updates verify in any cut, and no others do (SPEC S1-S6)."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from sfprotocol import signing, validation
from sfprotocol.frontier import FeedState, Frontier
from sfprotocol.messages import EpochScalars, Feed, RunParameters, Segment
from sfprotocol.segments import drop_updates
from sfprotocol.signing import extend, verifies
from tests.protocol.feeds import RUN, origin_of, signed

FEED = Feed(origin_of("ann"), 7)
PARTS = (EpochScalars(0, (5, -7, 1000)), EpochScalars(2, (0, -1000)))
SEGMENT = signed("ann", 7, 0, list(PARTS))


def empty(feed: Feed = FEED, run: RunParameters = RUN) -> FeedState:
    return Frontier(run).state(feed)


def accepted(segment: Segment, state: FeedState | None = None, run: RunParameters = RUN) -> bool:
    return validation.verify(run, state or empty(run=run), segment, verifies) is not None


def after(parts: tuple[EpochScalars, ...], feed: Feed = FEED) -> FeedState:
    """Return the state of a feed with these updates."""
    frontier = Frontier(RUN)
    count = sum(len(part.scalars) for part in parts)
    frontier.advance(feed, count, extend(empty(feed).chain, parts), parts[-1].epoch)
    return frontier.state(feed)


def test_segments_that_their_origin_signed_are_accepted() -> None:
    fresh, chain, *_ = validation.verify(RUN, empty(), SEGMENT, verifies) or pytest.fail("refused")
    assert fresh == SEGMENT
    assert chain == extend(empty().chain, PARTS)


@pytest.mark.parametrize(
    "forged",
    [
        replace(SEGMENT, parts=(EpochScalars(0, (5, -7, 999)), PARTS[1])),
        replace(SEGMENT, parts=(EpochScalars(1, (5, -7, 1000)), PARTS[1])),
        replace(SEGMENT, parts=(EpochScalars(0, (5, -7)), EpochScalars(2, (1000, 0, -1000)))),
        replace(SEGMENT, parts=PARTS[:1]),
        replace(SEGMENT, parts=(*PARTS, EpochScalars(3, (0,)))),
        replace(SEGMENT, signature=bytes(64)),
        replace(SEGMENT, signature=signed("bob", 7, 0, list(PARTS)).signature),
        replace(SEGMENT, signature=signed("ann", 8, 0, list(PARTS)).signature),
        replace(SEGMENT, signature=signed("ann", 7, 1, list(PARTS)).signature),
    ],
    ids=[
        "a scalar",
        "an epoch",
        "the border between epochs",
        "an update less",
        "an update more",
        "no signature",
        "another origin's",
        "another incarnation's",
        "another first step",
    ],
)
def test_altered_segments_are_refused(forged: Segment) -> None:
    assert not accepted(forged)


def test_a_segment_means_nothing_in_another_run_feed_or_incarnation() -> None:
    assert not accepted(SEGMENT, run=replace(RUN, run_id=bytes(32)))
    assert not accepted(SEGMENT, empty(Feed(origin_of("bob"), 7)))
    assert not accepted(SEGMENT, empty(Feed(origin_of("ann"), 8)))


def test_a_fork_does_not_continue_the_other_history() -> None:
    ours, theirs = (EpochScalars(0, (1, 2)),), [EpochScalars(0, (1, 3))]
    continuation = [EpochScalars(0, (4,))]
    assert accepted(signed("ann", 7, 2, continuation, list(ours)), after(ours))
    assert not accepted(signed("ann", 7, 2, continuation, theirs), after(ours))


def test_a_segment_that_overlaps_what_is_known_gives_the_rest() -> None:
    known = (EpochScalars(0, (5, -7)),)
    fresh, chain, *_ = validation.verify(RUN, after(known), SEGMENT, verifies) or pytest.fail("refused")
    assert (fresh.first, fresh.parts) == (2, (EpochScalars(0, (1000,)), PARTS[1]))
    assert chain == extend(empty().chain, PARTS)


@given(st.lists(st.integers(-1000, 1000), min_size=2, max_size=12), st.data())
def test_segments_verify_however_they_are_joined_and_shortened_in_front(
    scalars: list[int], data: st.DataObject
) -> None:
    everything = (EpochScalars(0, tuple(scalars)),)
    stop = data.draw(st.integers(1, len(scalars)))
    known = data.draw(st.integers(0, stop - 1))
    first = data.draw(st.integers(0, known))
    upto = (EpochScalars(0, tuple(scalars[:stop])),)
    signature = signed("ann", 7, 0, list(upto)).signature
    joined = Segment(empty().key, first, drop_updates(upto, first), signature)
    state = after((EpochScalars(0, tuple(scalars[:known])),)) if known else empty()
    fresh, chain, *_ = validation.verify(RUN, state, joined, verifies) or pytest.fail("refused")
    assert (fresh.first, fresh.count) == (known, stop - known)
    if stop == len(scalars):
        assert chain == extend(empty().chain, everything)


@pytest.mark.parametrize(
    ("parts", "rule"),
    [
        ([EpochScalars(0, (1001,))], "U3"),
        ([EpochScalars(0, (-1001,))], "U3"),
        ([EpochScalars(100, (1,))], "U5"),
        ([EpochScalars(0, (1,) * 4097)], "S4"),
        ([EpochScalars(3, (1,)), EpochScalars(2, (1,))], "S4"),
        ([EpochScalars(3, (1,)), EpochScalars(3, (1,))], "S4"),
        ([EpochScalars(0, ())], "S4"),
        ([], "S4"),
    ],
)
def test_a_valid_signature_does_not_excuse_a_broken_rule(parts: list[EpochScalars], rule: str) -> None:
    segment = signed("ann", 7, 0, parts)
    assert validation.fault(RUN, empty(), segment).startswith(rule)
    assert not accepted(segment)


def test_an_epoch_cannot_go_back_within_a_feed() -> None:
    known = (EpochScalars(5, (1,)),)
    assert not accepted(signed("ann", 7, 1, [EpochScalars(4, (1,))], list(known)), after(known))
    assert accepted(signed("ann", 7, 1, [EpochScalars(5, (1,))], list(known)), after(known))


def test_a_feed_may_fill_the_whole_budget_and_the_last_epoch() -> None:
    run = replace(RUN, epoch_updates=64, update_budget=4096)
    assert accepted(signed("ann", 7, 0, [EpochScalars(63, (1,) * 4096)]), run=run)


# -- keys --------------------------------------------------------------------------------------------

PRIME = 2**255 - 19
D = -121665 * pow(121666, -1, PRIME) % PRIME
Point = tuple[int, int]


def plus(one: Point, other: Point) -> Point:
    """Add two points of the curve -x^2 + y^2 = 1 + d x^2 y^2."""
    (x1, y1), (x2, y2) = one, other
    t = D * x1 * x2 * y1 * y2 % PRIME
    x = (x1 * y2 + x2 * y1) * pow(1 + t, -1, PRIME)
    y = (y1 * y2 + x1 * x2) * pow(1 - t, -1, PRIME)
    return x % PRIME, y % PRIME


def root(square: int) -> int | None:
    found = pow(square, (PRIME + 3) // 8, PRIME)
    if found * found % PRIME != square % PRIME:
        found = found * pow(2, (PRIME - 1) // 4, PRIME) % PRIME
    return found if found * found % PRIME == square % PRIME else None


def point_of_order_eight() -> Point:
    """Return a point whose double has y = 0: d y^4 + 2 y^2 = 1, and x^2 = -y^2."""
    half = root(1 + D)
    for sign in (1, -1):
        y = root((sign * half - 1) * pow(D, -1, PRIME)) if half else None
        x = root(-y * y) if y else None
        if x and y:
            return x, y
    raise AssertionError("the curve has such a point")


def test_keys_under_which_anybody_can_sign_are_refused() -> None:
    # Nobody knows their secret because there is none: every signature of some form verifies.
    generator = point = point_of_order_eight()
    for _ in range(8):
        for sign in (0, 1 << 255):
            assert not signing.sound((point[1] | sign).to_bytes(32, "little"))
        point = plus(point, generator)
    assert point == generator, "eight points, and round again"


def test_a_key_of_small_order_signs_nothing() -> None:
    weak = Feed((1).to_bytes(32, "little"), 0)  # the neutral element: R = [S]B fits every message
    forged = replace(signed("ann", 0, 0, [EpochScalars(0, (1,))]), signature=weak.origin + bytes(32))
    assert not accepted(forged, empty(weak))


@given(st.binary(min_size=32, max_size=32))
def test_the_keys_that_nodes_make_are_sound(secret: bytes) -> None:
    key = Ed25519PrivateKey.from_private_bytes(secret)
    assert signing.sound(key.public_key().public_bytes_raw())


# -- proofs of work --------------------------------------------------------------------------------


RUN_ID, ORIGIN = bytes(32), bytes([7]) * 32


def by_the_rule(number: int) -> int:
    named = RUN_ID + ORIGIN + number.to_bytes(8, "big")
    return int(hashlib.blake2b(named, digest_size=32, person=b"sfnode-work").hexdigest(), 16)


def test_solutions_are_the_numbers_whose_hash_is_below_the_bound_and_no_others() -> None:
    below = signing.work_bound(4)
    found = list(signing.solutions(RUN_ID, ORIGIN, below, range(2000)))
    assert found == [number for number in range(2000) if by_the_rule(number) < below]
    assert all(signing.work(RUN_ID, ORIGIN, number) == by_the_rule(number) for number in found)
    assert 60 < len(found) < 200, "one of 16, about"


def test_without_work_every_number_is_a_solution() -> None:
    assert list(signing.solutions(RUN_ID, ORIGIN, signing.work_bound(0), range(9))) == list(range(9))
