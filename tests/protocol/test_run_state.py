"""The state of an organised run follows from its decisions in order (SPEC O5-O8, O10)."""

from __future__ import annotations

import hashlib
import os
import tracemalloc
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sfprotocol.checkpoints import Base, feeds_digest
from sfprotocol.decisions import (
    FACTOR_ONE,
    INCARNATIONS,
    MAX_MOVES,
    RATE_ONE,
    Amend,
    Announce,
    Bases,
    Budget,
    Checkpoint,
    Close,
    Decision,
    Evaluated,
    Extension,
    Finish,
    Invite,
    Move,
    Part,
    Recorded,
    Recount,
    Revoke,
    RevokeInvitation,
    Seal,
    Unknown,
    Validators,
    Void,
    Worth,
)
from sfprotocol.messages import Feed
from sfprotocol.run_state import MAX_MEMBERS, NEVER, NamedStop, RunState, Span, multiplier, named_digest
from tests.protocol.organised import DIGEST, SALT, Reference, admit, close, fold, origin, seal, tag

MORE = int(os.environ.get("SFNODE_DEPTH", "0"))
"""Number of times that the number of examples is doubled."""

ONE = FACTOR_ONE
MEMBERS = (admit(0), admit(1), admit(2))
A, B, C = 0, 64, 128
"""The first feeds of three members."""


def state(run_state: RunState) -> Any:
    """Return the answers of a RunState that a decision may change."""
    feeds = range((len(run_state.members) + 1) * INCARNATIONS)
    moved = [feed for feed in feeds if run_state.named(feed) or run_state.ended(feed) < NEVER]
    quotas, label = run_state.quotas, run_state.open_epoch
    return (
        (run_state.unsupported, run_state.open_epoch, run_state.sealed, run_state.counted),
        (run_state.budget, run_state.finished, run_state.complete),
        [run_state.rate(epoch) for epoch in range(run_state.open_epoch + 9)],
        [(member.origin, member.revoked) for member in run_state.members],
        [
            (quotas.quota(m, label), quotas.incarnation(m, label), quotas.own(m), run_state.credit(m))
            for m in range(len(run_state.members))
        ],
        [(invitation.key, invitation.uses, invitation.revoked) for invitation in run_state.invitations],
        [run_state.positions(epoch) for epoch in range(run_state.open_epoch + 1)],
        {feed: of_feed(run_state, feed) for feed in moved},
    )


def of_feed(run_state: RunState, feed: int) -> Any:
    """Return the answers about a feed; `apply` returns the feeds for which they change."""
    held = run_state.named(feed) + 3
    return (
        run_state.named(feed),
        run_state.ended(feed),
        list(run_state.named_stops(feed)),
        run_state.spans(feed, held),
    )


def changes(run_state: RunState, decision: Decision) -> bool:
    """Apply a decision; return whether it changed anything but the number of decisions."""
    before, number = state(run_state), run_state.decisions
    run_state.apply(Recorded(decision))
    assert run_state.decisions == number + 1
    return before != state(run_state)


# -- epochs: close, then seal ------------------------------------------------------------------------


def test_what_a_recount_would_come_to_can_be_told_before() -> None:
    run = fold(*MEMBERS, close(0, {A: 3, B: 2}), seal(0, skip=(B,)), close(1, {A: 1, B: 5}))
    assert run.spans(B, 7) == (Span(2, 0), Span(7, ONE))
    assert run.spans(B, 7, {0, 4}) == (Span(7, ONE),)


def test_a_new_run_has_an_open_epoch_and_nothing_else() -> None:
    run = fold(budget=5, rate=77)
    assert (run.open_epoch, run.sealed, run.counted, run.complete) == (0, 0, 0, False)
    assert (run.rate(0), run.rate(65_535)) == (77, 77)
    assert run.positions() == {}
    assert run.spans(A, 4) == (Span(4, ONE),)
    assert run.spans(A, 0) == ()


def test_the_last_step_of_a_feed_can_be_named() -> None:
    run = fold(*MEMBERS, close(0, {A: 3}), close(1, {A: 2**32 - 4}))
    assert run.named(A) == 2**32 - 1
    assert run.spans(A, 2**32 - 1) == (Span(2**32 - 1, ONE),)
    assert not changes(run, close(2, {A: 1}))


def test_decisions_open_more_epochs_than_a_manifest_may_plan() -> None:
    run = fold(*MEMBERS, *(close(epoch) for epoch in range(65_536)))
    assert run.open_epoch == 65_536
    assert not changes(run, Close(65_535, SALT, ()))


def test_the_last_feed_of_the_last_member_can_be_named() -> None:
    run = fold(*MEMBERS, close(0, {3 * 64 - 1: 1}))
    assert run.feed(3 * 64 - 1) == Feed(origin(2), 63)
    assert run.number(Feed(origin(2), 63)) == 3 * 64 - 1
    assert run.number(Feed(origin(2), 64)) is None
    assert run.number(Feed(origin(3), 0)) is None
    assert MAX_MEMBERS * INCARNATIONS <= 1 << 31, "numbers of feeds have 31 bits"


# -- rates -------------------------------------------------------------------------------------------


def test_the_rates_of_a_seal_take_the_place_of_all_later_ones() -> None:
    run = RunState(budget=1, rate=1)
    for epoch in range(40):
        first = 1000 + 16_000 * (epoch % 4)
        run.apply(Recorded(close(epoch)))
        run.apply(Recorded(seal(epoch, rates=tuple((first + n, n) for n in range(MAX_MOVES // 2)))))
    assert len(run._rates) == 1 + 4 * (MAX_MOVES // 2)
    assert run.rate(1001 + 48_000) == 1


def test_the_multiplier_is_an_integer_in_units_of_2_to_the_minus_32() -> None:
    assert multiplier(RATE_ONE - 1, ONE) == RATE_ONE - 1
    assert multiplier(RATE_ONE // 3, ONE // 2) == RATE_ONE // 3 // 2
    assert multiplier(1, ONE - 1) == 0
    assert multiplier(2**32 - 1, 2**16 - 1) == (2**32 - 1) * (2**16 - 1) // 4096


THREE = (*MEMBERS, close(0, {A: 3, B: 2}), close(1, {A: 4}), close(2, {A: 5, B: 1}))


# -- what changes nothing ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "silent",
    [
        Announce("hello"),
        Evaluated(0, "accuracy", 1, 0, 2, 3, 4),
        Checkpoint(0, DIGEST, DIGEST),
        Worth(0, 64, (Part(A, 3, 1, 1),)),
        Validators(()),
        Validators((0,)),
        Validators((999,)),
        Unknown(1),
        Unknown(9),
    ],
)
def test_odd_kinds_change_nothing(silent: Decision) -> None:
    assert not changes(fold(*THREE, seal(0)), silent)


@pytest.mark.parametrize(
    "beyond",
    [
        Recorded(Unknown(20)),
        Recorded(seal(1), (Extension(2, b""),)),
        Recorded(Unknown(7), (Extension(4, b""),)),
    ],
)
def test_what_is_beyond_this_version_ends_what_can_be_known(beyond: Recorded) -> None:
    run = fold(*THREE, seal(0))
    assert run.apply(beyond) == set()
    assert run.unsupported
    assert run.apply(Recorded(seal(1))) == set()
    assert (run.sealed, run.counted, run.decisions) == (1, 5, len(THREE) + 3)


# -- named_stops, and the digest of what was named -----------------------------------------------------


def test_landmarks_can_be_asked_for_within_bounds() -> None:
    run = fold(*THREE)
    assert [one.stop for one in run.named_stops(A)] == [3, 7, 12]
    assert [one.stop for one in run.named_stops(A, above=3, upto=11)] == [7]
    assert [one.stop for one in run.named_stops(A, above=2, upto=12)] == [3, 7, 12]
    assert list(run.named_stops(C)) == []
    last = [run.named_stop(A, held) for held in (2, 3, 6, 7, 100)]
    assert [one and one.stop for one in last] == [None, 3, 3, 7, 12]
    assert run.named_stop(C, 5) is None


def test_the_named_digest_is_a_hash_of_the_run_and_of_every_named_feed() -> None:
    run_id, chain = bytes(range(32)), bytes(32)
    said = run_id + b"\x00\x00\x00\x40" + b"\x00" * 7 + b"\x07" + chain
    digest = hashlib.blake2b(said, digest_size=32, person=b"sfnode-named").digest()
    assert named_digest(run_id, [(64, 7, chain)]) == digest
    assert named_digest(run_id, []) != digest


# -- against the reference ---------------------------------------------------------------------------

EPOCHS = st.integers(0, 5) | st.just(2**32 - 1)
FEEDS = st.sampled_from((0, 1, 63, 64, 128, 192, 2**31 - 1))
FEW_FEEDS = st.lists(FEEDS, max_size=3, unique=True).map(sorted)
NUMBERS = st.integers(0, 3)


MOVED = (0, 1, 63, 64, 128)
STEPS = st.integers(1, 3)


def some_of(entries: Iterable[Any]) -> st.SearchStrategy[list[Any]]:
    """Draw at most two of these entries, in ascending order."""
    known = sorted(set(entries))
    return st.lists(st.sampled_from(known), max_size=2, unique=True).map(sorted) if known else st.just([])


@st.composite
def courses(draw: st.DrawFn) -> list[Decision]:
    """Draw decisions of which nine tenths are valid at their positions."""
    found: list[Decision] = [admit(0), admit(1), Invite(DIGEST, 1)]
    closes: list[dict[int, int]] = []
    skipped: list[tuple[int, int]] = []
    sealed = 0
    for _ in range(draw(st.integers(0, 30))):
        fits = draw(st.integers(0, 9)) > 0
        kind = draw(st.sampled_from(("close", "close", "seal", "seal", "undo", "who", "other")))
        if kind == "close":
            feeds = st.sampled_from(MOVED[:4] if fits else MOVED)
            moves = draw(st.dictionaries(feeds, STEPS if fits else st.integers(0, 3), max_size=3))
            zeros = {feed: draw(st.integers(0, steps)) for feed, steps in moves.items()}
            found.append(close(len(closes) if fits else draw(EPOCHS), moves, zeros))
            closes += [moves] if fits else []
        elif kind == "seal" and fits and sealed < len(closes):
            skip, again = draw(some_of(closes[sealed])), draw(some_of(skipped))
            late = draw(st.integers(0, 9)) == 0  # rates from the open epoch on do not fit
            found.append(draw(seals(sealed, skip, again, len(closes) + (not late))))
            skipped = [one for one in skipped if one not in again] + [(feed, sealed) for feed in skip]
            sealed += 1
        elif kind == "seal":
            again = draw(some_of((feed, epoch) for feed in (0, 1, 64) for epoch in range(6)))
            found.append(draw(seals(sealed if fits else draw(EPOCHS), draw(FEW_FEEDS), again, len(closes))))
        elif kind == "undo" and fits and sealed:
            first = draw(st.integers(0, sealed - 1))
            void = st.builds(Void, st.just(first), st.integers(first, sealed), MEMBERS_OR_ALL)
            found.append(draw(void | st.builds(Amend, st.sampled_from(MOVED[:4]), st.integers(0, sealed))))
        else:
            found.append(draw(WHO if kind == "who" else OTHERS))
    return found


MEMBERS_OR_ALL = st.lists(NUMBERS, max_size=2, unique=True).map(sorted).map(tuple)


@st.composite
def seals(draw: st.DrawFn, epoch: int, skip: list[int], again: list[tuple[int, int]], first: int) -> Seal:
    """Draw the seal of an epoch with rates, if any, from epochs `first` and later on."""
    rate = st.integers(0, 9)
    whole = st.one_of(st.tuples(rate), st.tuples(rate, STEPS, STEPS))
    rates = draw(st.one_of(st.just({}), st.dictionaries(st.integers(first, first + 4), whole, max_size=2)))
    said = tuple((epoch, *rate) for epoch, rate in sorted(rates.items()))
    factor = draw(st.sampled_from((0, 1, ONE, ONE, 65_535)))
    return seal(epoch, skip=tuple(skip), recount=tuple(again), factor=factor, rates=said)


WHO: st.SearchStrategy[Decision] = st.one_of(
    st.builds(admit, NUMBERS, st.integers(0, 9), st.integers(0, 2)),
    st.builds(Invite, st.just(DIGEST), st.integers(0, 2)),
    st.builds(Revoke, st.integers(0, 2), EPOCHS),
    st.builds(RevokeInvitation, st.integers(0, 1), EPOCHS),
)
OTHERS: st.SearchStrategy[Decision] = st.one_of(
    st.builds(Amend, FEEDS, EPOCHS),
    st.builds(Void, EPOCHS, EPOCHS, MEMBERS_OR_ALL),
    st.builds(Budget, st.integers(0, 20) | st.just(2**32 - 1)),
    st.builds(Bases, st.integers(0, 4), st.sampled_from((DIGEST, bytes(32)))),
    st.sampled_from((Announce("hello"), Unknown(3), Finish())),
)


INVITED = (Invite(DIGEST, 2), admit(2, 5, 1), RevokeInvitation(0, 5), RevokeInvitation(0, 6), admit(3, 5, 1))
"""A revoked invitation revokes its members from the earlier of two epochs, and admits nobody."""

SKIPPED = (seal(0, skip=(B,)), close(1, {A: 1}))
TAKEN_BACK = (*SKIPPED, Void(0, 1, ()), Void(0, 0, (1,)), seal(1, recount=((B, 0),)))
"""Steps without a seal are not voided. Skipped steps that are void are not recounted."""


@settings(max_examples=100 << MORE, deadline=None)
@example(said=[*MEMBERS[:2], *INVITED, Revoke(1, 3), Revoke(1, 4)], limit=0)
@example(said=[*MEMBERS, close(0, {A: 3, B: 2}), seal(0, rates=((1, 5),)), *TAKEN_BACK], limit=0)
@given(said=courses(), limit=st.sampled_from((0, 78)))
def test_the_state_is_that_of_the_reference_after_every_decision(said: list[Decision], limit: int) -> None:
    run = RunState(budget=9, rate=5, norm_limit=limit, bases=DIGEST, subspace_epochs=2, epoch_updates=8)
    reference = Reference(9, 5, 8, bases={0: DIGEST}, norm_limit=limit)
    for decision in said:
        before = {feed: of_feed(run, feed) for feed in MOVED}
        changed = run.apply(Recorded(decision))
        assert {feed for feed in MOVED if of_feed(run, feed) != before[feed]} <= changed
        reference.apply(decision)
        assert [(one.subspace, one.digest) for one in run.bases] == sorted(reference.bases.items())
        assert (run.open_epoch, run.sealed) == (len(reference.closes), len(reference.seals))
        assert (run.counted, run.complete) == (reference.counted, reference.complete)
    assert [run.rate_from(epoch)[1:] for epoch in range(12)] == [reference.rate(epoch) for epoch in range(12)]
    assert [(m.origin, m.revoked) for m in run.members] == [
        (m, reference.revoked_from(m)) for m in reference.members
    ]
    shared_out(run, reference)
    assert [invitation.uses for invitation in run.invitations] == reference.uses
    for epoch, moved in enumerate(reference.closes):
        assert run.moved(epoch) == tuple(sorted(moved))
        ends = {feed: reference.stop(feed, epoch) for feed in MOVED}
        assert run.positions(epoch) == {feed: stop for feed, stop in ends.items() if stop}
        for feed, steps in moved.items():
            counts = {step for step in steps & reference.factors.keys() if reference.factor(step)}
            assert run.counts(feed, epoch) == len(counts - reference.zeros)
            assert run.is_skipped(Recount(feed, epoch)) == (steps <= reference.skipped)
    for feed in MOVED:
        named = reference.named(feed)
        assert run.named(feed) == len(named)
        moves = [epoch for epoch, moved in enumerate(reference.closes) if feed in moved]
        stops = [NamedStop(reference.stop(feed, epoch), SALT, tag(epoch, feed)) for epoch in moves]
        assert list(run.named_stops(feed)) == stops
        assert (run.ended(feed) < NEVER) == (feed in reference.ended)
        for held in range(len(named) + 3):
            assert run.spans(feed, held) == reference.spans(feed, held)
            if feed // 64 < len(run.members):
                assert run.live(feed, held) == reference.live(feed, held)


def shared_out(run: RunState, reference: Reference) -> None:
    """Assert that quotas, incarnations and credits equal those of the reference."""
    for number, member in enumerate(reference.members):
        assert run.quotas.own(number) == reference.own_quotas[member] or member in reference.out
        assert run.credit(number) == reference.credit(number)
        for label in range(run.open_epoch + 1):
            if label >= run.members[number].revoked:
                continue
            assert run.quotas.quota(number, label) == reference.quotas.get((member, label), 0)
            if (member, label) in reference.feeds:
                assert run.quotas.incarnation(number, label) == reference.feeds[member, label]


# -- published bases ---------------------------------------------------------------------------------

FIRST, SECOND, THIRD = (bytes([number]) * 32 for number in (1, 2, 3))


def test_what_serves_up_to_a_subspace_and_what_never_did() -> None:
    """Bases of a subspace that has begun are never replaced, as updates depend on them."""
    said = Bases(3, SECOND), Bases(1, THIRD), Bases(3, THIRD), Bases(3, THIRD), Bases(1, SECOND)
    run = fold(*said, close(0), close(1), Bases(1, FIRST), bases=FIRST)
    assert run.next_subspace() == 2
    assert run.replaced == [Bases(3, SECOND), Bases(1, THIRD)]
    assert [run.bases_upto(subspace) for subspace in (0, 1, 2)] == [
        (Bases(0, FIRST),), (Bases(0, FIRST), Bases(1, SECOND)), (Bases(0, FIRST), Bases(1, SECOND)),
    ]  # fmt: skip
    assert [run.own_bases(subspace) for subspace in range(5)] == [FIRST, SECOND, None, THIRD, None]


def test_bases_of_a_run_that_has_random_ones_change_nothing() -> None:
    assert fold(Bases(1, SECOND)).bases == ()


def test_bases_are_of_subspaces_that_a_run_can_have() -> None:
    last = (1 << 31) - 1
    assert fold(Bases(last, SECOND), bases=FIRST).bases[1:] == (Bases(last, SECOND),)
    assert fold(Bases(last + 1, SECOND), bases=FIRST).bases[1:] == ()
    run = RunState(budget=9, rate=5, bases=FIRST, subspace_epochs=2, last_subspace=7)
    for subspace in (7, 8):
        run.apply(Recorded(Bases(subspace, SECOND)))
    assert run.bases[1:] == (Bases(7, SECOND),)


# -- checkpoints -------------------------------------------------------------------------------------


def checkpoint(epoch: int, cores: bytes = DIGEST) -> Checkpoint:
    return Checkpoint(epoch, DIGEST, cores)


SEALED = (*THREE, seal(0, skip=(B,)), seal(1))
"""Epochs 0 and 1 are sealed; the seal of epoch 0 has skipped B."""


def usable(*later: Decision) -> list[int]:
    """Return the epochs of the usable checkpoints, out of 0 and 1, after the decisions `later`."""
    return [one.epoch for one in fold(*SEALED, checkpoint(0), checkpoint(1), *later).checkpoints]


def test_a_checkpoint_is_of_a_sealed_epoch() -> None:
    assert fold(*SEALED, checkpoint(1)).checkpoints == [checkpoint(1)]
    assert fold(*SEALED, checkpoint(2)).checkpoints == []


def test_a_checkpoint_takes_the_place_of_another_one_of_its_epoch() -> None:
    other = checkpoint(0, cores=SALT * 4)
    assert fold(*SEALED, checkpoint(1), checkpoint(0), other).checkpoints == [other, checkpoint(1)]


@pytest.mark.parametrize(
    ("later", "left"),
    [
        (seal(2), [0, 1]),
        (seal(2, recount=((B, 0),)), []),
        (seal(2, recount=((B, 0),), factor=0), []),  # nothing of it counts now either, but it was judged
        (Void(1, 1, ()), [0]),
        (Void(0, 1, (0,)), []),
        (Void(0, 1, (2,)), [0, 1]),
        (Void(0, 1, (1,)), [0, 1]),  # of what was skipped, nothing has counted
        (Amend(A, 2), [0, 1]),
        (Amend(A, 1), [0]),
        (Amend(B, 0), []),
        (Revoke(0, 0), [0, 1]),
        (Finish(), [0, 1]),
    ],
)
def test_a_checkpoint_is_usable_until_something_else_counts_of_what_it_is_about(
    later: Decision, left: list[int]
) -> None:
    assert usable(later) == left


def test_a_void_of_what_counts_with_factor_0_ends_a_checkpoint() -> None:
    run = fold(*THREE, seal(0), seal(1, factor=0), checkpoint(0), checkpoint(1))
    run.apply(Recorded(Void(1, 1, ())))
    assert run.checkpoints == [checkpoint(0)]


def test_a_void_that_reaches_further_back_than_a_feed_leaves_earlier_checkpoints() -> None:
    run = fold(*THREE, seal(0), seal(1), seal(2), checkpoint(0), checkpoint(1), checkpoint(2))
    run.apply(Recorded(Void(1, 2, (1,))))  # of its feeds only epochs 0 and 2 have something
    assert [one.epoch for one in run.checkpoints] == [0, 1]


@settings(max_examples=60 << MORE, deadline=None)
@given(said=courses(), data=st.data())
def test_what_a_usable_checkpoint_is_about_has_not_changed_since(
    said: list[Decision], data: st.DataObject
) -> None:
    run = RunState(budget=9, rate=5)
    about: dict[int, Any] = {}
    for decision in said:
        run.apply(Recorded(decision))
        now = {one.epoch: counts_up_to(run, one.epoch) for one in run.checkpoints}
        assert now == {epoch: about[epoch] for epoch in now}
        if run.sealed:
            epoch = data.draw(st.integers(0, run.sealed - 1))
            run.apply(Recorded(checkpoint(epoch)))
            about[epoch] = counts_up_to(run, epoch)


def counts_up_to(run: RunState, epoch: int) -> Any:
    """Return the factors of all steps that closes up to `epoch` list."""
    return {feed: run.spans(feed, stop) for feed, stop in run.positions(epoch).items()}


def test_the_feeds_digest_is_a_hash_of_the_run_and_of_what_continues_every_feed() -> None:
    run_id, chain = bytes(range(32)), bytes(32)
    said = run_id + b"\x00\x00\x00\x40" + b"\x00" * 7 + b"\x07" + chain + b"\x00\x00\x00\x05\x00\x00\x00\x02"
    digest = hashlib.blake2b(said, digest_size=32, person=b"sfnode-feeds").digest()
    base = Base(Feed(origin(1), 0), step=7, chain=chain, epoch=5, labelled=2)
    assert feeds_digest(run_id, [(64, base)]) == digest
    assert feeds_digest(run_id, [(64, base._replace(labelled=3))]) != digest
    assert feeds_digest(run_id, []) != digest


# -- what an organiser's key can cost others ---------------------------------------------------------


def busy(epochs: int, feeds: int) -> RunState:
    """Return a run in which every close lists one step of each of these feeds."""
    moves = {INCARNATIONS * number: 1 for number in range(feeds)}
    said = (one for epoch in range(epochs) for one in (close(epoch, moves), seal(epoch)))
    return fold(*(admit(number) for number in range(feeds)), *said, budget=2**32 - 1)


def test_a_move_takes_20_bytes() -> None:
    moves = tuple(Move(INCARNATIONS * number, 1, bytes(8)) for number in range(1000))
    run = fold(*(admit(number) for number in range(1000)), Close(0, SALT, moves))
    tracemalloc.start()
    try:
        for epoch in range(1, 51):
            run.apply(Recorded(Close(epoch, SALT, moves)))
        assert tracemalloc.get_traced_memory()[0] < 50 * 1000 * 40, "lists grow in steps"
    finally:
        tracemalloc.stop()


def test_decisions_that_change_nothing_more_are_cheap_however_much_they_speak_of() -> None:
    """Each decision would take hours in total if it looked at a million moves again."""
    run = busy(epochs=100, feeds=200)
    for _ in range(20_000):
        run.apply(Recorded(Void(0, 99, ())))
        run.apply(Recorded(Amend(0, 0)))
        run.apply(Recorded(Revoke(0, 0)))
    for _ in range(100):
        run.apply(Recorded(Void(0, 99, tuple(range(200)))))
    assert run.counted == 0


def test_revoking_an_invitation_by_which_many_came_is_cheap_however_often_it_is_said() -> None:
    run = fold(Invite(DIGEST, 2**32 - 1), *(admit(number, 1, 1) for number in range(5000)))
    for epoch in reversed(range(20_000)):
        assert run.apply(Recorded(RevokeInvitation(0, epoch))) == set()
    assert {member.revoked for member in run.members} == {0}
