"""The control feed is one signed sequence, in any order of arrival (SPEC O3, O4)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfprotocol import control_feed
from sfprotocol.control_feed import ControlFeed, decision_message, extend, genesis, succession_message
from sfprotocol.decisions import MAX_DECISION
from sfprotocol.errors import LocalProtocolError, RemoteProtocolError
from sfprotocol.messages import Authority, ControlFork, Entry, Succession, Vote
from tests.protocol.feeds import origin_of, signing_key

RUN_ID = bytes(range(32))
DEPUTIES = ("dee", "dan", "dot")
AUTHORITY = Authority(RUN_ID, origin_of("ann"), tuple(map(origin_of, DEPUTIES)), votes=2)

Records = tuple[bytes, ...]
History = tuple[tuple[int, bytes], ...]
"""Decisions: (term, record)."""


def chain_of(history: History) -> bytes:
    chain = genesis(RUN_ID)
    for term, record in history:
        chain = extend(chain, term, record)
    return chain


def signed(history: History, *signers: str) -> list[Entry]:
    """Return the decisions of a history; `signers` are those of terms 0, 1, ..."""
    entries = []
    for stop, (term, record) in enumerate(history, 1):
        message = decision_message(RUN_ID, term, stop, chain_of(history[:stop]))
        entries.append(Entry(term, record, signing_key(signers[term]).sign(message)))
    return entries


def first(*records: bytes) -> History:
    """Return a history of term 0."""
    return tuple((0, record) for record in records)


def succession(
    term: int, kept: History, key: str = "bob", votes: tuple[str, ...] = ("dee", "dan")
) -> Succession:
    unsigned = Succession(term, len(kept), chain_of(kept), origin_of(key), ())
    message = succession_message(RUN_ID, unsigned)
    signatures = tuple(Vote(DEPUTIES.index(name), signing_key(name).sign(message)) for name in votes)
    return Succession(term, len(kept), chain_of(kept), origin_of(key), tuple(sorted(signatures)))


def fork(one: History, other: History, *signers: str) -> ControlFork:
    entries = [signed(history, *signers)[-1] for history in (one, other)]
    chains, signatures = (chain_of(one), chain_of(other)), (entries[0].signature, entries[1].signature)
    return ControlFork(entries[0].term, len(one), chains, signatures)


def feed_with(*entries: Entry) -> ControlFeed:
    feed = ControlFeed(AUTHORITY)
    assert feed.add(0, entries) == len(entries)
    return feed


def records(feed: ControlFeed) -> Records:
    return tuple(entry.record for entry in feed.entries)


ABC = signed(first(b"a", b"b", b"c"), "ann")
AXY = signed(first(b"a", b"x", b"y"), "ann")
"""Another sequence that the organiser has signed."""


# -- decisions ---------------------------------------------------------------------------------------


def test_the_chain_commits_to_the_run_to_terms_and_to_records() -> None:
    assert chain_of(()) == genesis(RUN_ID) != genesis(bytes(32))
    assert len({chain_of(first(b"a")), chain_of(((1, b"a"),)), chain_of(first(b"b"))}) == 3


def test_decisions_are_taken_in_their_order_and_once() -> None:
    feed = ControlFeed(AUTHORITY)
    assert feed.add(1, ABC[1:]) == 0, "a gap"
    assert feed.add(0, ABC[:2]) == 2
    assert feed.add(0, ABC) == 1
    assert feed.add(0, ABC) == 0
    assert feed.add(2, ABC[2:]) == 0
    assert feed.add(3, []) == 0
    assert (records(feed), feed.stop, feed.chain) == (
        (b"a", b"b", b"c"),
        3,
        chain_of(first(b"a", b"b", b"c")),
    )


@pytest.mark.parametrize("signer", ["bob", "dee"])
def test_a_decision_that_the_organiser_has_not_signed_ends_what_is_taken(signer: str) -> None:
    feed = ControlFeed(AUTHORITY)
    forged = signed(first(b"a", b"b"), signer)[1]
    assert feed.add(0, [ABC[0], forged, ABC[2]]) == 1
    assert records(feed) == (b"a",)


def test_a_signature_is_of_one_run_one_position_and_one_past() -> None:
    feed = feed_with(*ABC[:1])
    assert feed.add(1, [ABC[2]]) == 0
    assert feed.add(1, [ABC[1]._replace(term=1)]) == 0
    assert ControlFeed(AUTHORITY._replace(run_id=bytes(32))).add(0, ABC) == 0


def test_decisions_of_another_history_bring_nothing_and_break_no_rule() -> None:
    """The sender may be honest: it must be asked for earlier decisions."""
    feed = feed_with(*ABC[:2])
    assert feed.add(2, AXY[2:]) == 0
    assert records(feed) == (b"a", b"b")


def test_a_record_that_is_too_long_is_not_taken() -> None:
    longest = signed(first(b"x" * MAX_DECISION, b"x" * (MAX_DECISION + 1)), "ann")
    assert ControlFeed(AUTHORITY).add(0, longest) == 1


def test_a_control_feed_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_feed, "MAX_CONTROL", 3 * (control_feed.ENTRY_COST + 1))
    feed = ControlFeed(AUTHORITY)
    assert feed.add(0, signed(first(b"a", b"b", b"c", b"d"), "ann")) == 3
    with pytest.raises(LocalProtocolError):
        feed.sign(b"", signing_key("ann").sign)
    assert feed.succeed(succession(1, first(b"a", b"b")))
    assert feed.add(2, [feed.sign(b"?", signing_key("bob").sign)]) == 1, "what was dropped makes room"


def test_a_decision_of_our_own_follows_those_that_are_here() -> None:
    feed = feed_with(*ABC[:2])
    assert feed.sign(b"c", signing_key("ann").sign) == ABC[2]


# -- forks -------------------------------------------------------------------------------------------


def test_two_decisions_at_one_position_are_a_fork() -> None:
    feed = feed_with(*ABC)
    proof = feed.add(0, AXY)
    assert proof == fork(first(b"a", b"b"), first(b"a", b"x"), "ann")
    assert isinstance(proof, ControlFork)
    assert not feed.frozen
    assert feed.freeze(proof)
    assert (records(feed), feed.frozen) == ((b"a",), True)


def test_a_fork_freezes_the_feed_before_the_lowest_position_that_is_disputed() -> None:
    feed = feed_with(*ABC)
    assert feed.freeze(fork(first(b"a", b"b", b"c"), first(b"a", b"b", b"z"), "ann"))
    assert records(feed) == (b"a", b"b")
    assert feed.freeze(fork(first(b"a", b"b"), first(b"a", b"x"), "ann"))
    assert not feed.freeze(fork(first(b"a", b"b", b"c"), first(b"a", b"b", b"z"), "ann"))
    assert not feed.freeze(fork(first(b"a", b"b"), first(b"a", b"x"), "ann"))
    assert records(feed) == (b"a",)
    assert feed.add(1, ABC[1:]) == 0
    assert feed.add(1, AXY[1:]) == 0


def test_a_fork_is_known_before_the_decisions_that_it_speaks_of() -> None:
    feed = ControlFeed(AUTHORITY)
    assert feed.freeze(fork(first(b"a", b"b"), first(b"a", b"x"), "ann"))
    assert feed.add(0, AXY) == 1


def test_nobody_signs_on_a_feed_that_is_frozen() -> None:
    feed = ControlFeed(AUTHORITY)
    feed.freeze(fork(first(b"a", b"b", b"c"), first(b"a", b"b", b"z"), "ann"))
    with pytest.raises(LocalProtocolError):
        feed.sign(b"?", signing_key("ann").sign)  # at a position where we may have signed something before


def test_a_fork_proves_something_or_breaks_a_rule() -> None:
    feed = feed_with(*ABC)
    same = fork(first(b"a", b"b"), first(b"a", b"b"), "ann")
    forged = fork(first(b"a", b"b"), first(b"a", b"x"), "bob")
    true = fork(first(b"a", b"b"), first(b"a", b"x"), "ann")
    elsewhere = ControlFork(0, 3, true.chains, true.signatures)
    for wrong in (same, forged, elsewhere):
        with pytest.raises(RemoteProtocolError) as refusal:
            feed.freeze(wrong)
        assert refusal.value.rule == "O4"
    assert feed.stop == 3


def test_a_fork_of_a_term_of_which_we_have_yet_to_hear_is_no_fault() -> None:
    later = fork(((1, b"a"),), ((1, b"x"),), "ann", "bob")
    feed = ControlFeed(AUTHORITY)
    assert not feed.freeze(later)
    feed.succeed(succession(1, ()))
    assert feed.freeze(later)
    assert feed.frozen


def test_the_fork_of_a_term_that_is_void_is_forgotten() -> None:
    later = fork(((1, b"a"),), ((1, b"x"),), "ann", "bob")
    one, other = succession(1, ()), succession(1, (), "cid")
    for order in ((one, later, other), (one, other, later)):
        feed = ControlFeed(AUTHORITY)
        for message in order:
            feed.freeze(message) if isinstance(message, ControlFork) else feed.succeed(message)
        assert feed.forks == {}


# -- successions -------------------------------------------------------------------------------------


def test_a_succession_keeps_a_prefix_and_gives_the_feed_to_another_key() -> None:
    feed = feed_with(*ABC)
    assert feed.succeed(succession(1, first(b"a", b"b")))
    assert (records(feed), feed.term, feed.misses_decisions) == ((b"a", b"b"), 1, False)
    assert feed.add(2, ABC[2:]) == 0, "the old key signs no more"
    entry = feed.sign(b"d", signing_key("bob").sign)
    assert feed.add(2, [entry]) == 1
    assert feed.add(3, signed((*first(b"a", b"b"), (1, b"d"), (0, b"e")), "ann", "bob")[3:]) == 0


def test_a_node_that_is_behind_takes_one_history_in_place_of_another_and_says_so() -> None:
    feed = feed_with(*ABC[:2])
    feed.succeed(succession(1, first(b"a", b"x", b"y")))
    before = feed.stop
    assert feed.add(1, AXY[1:2]) == 1
    assert feed.stop - 1 < before, "something that was here is gone"
    assert records(feed) == (b"a", b"x")


def test_a_history_is_not_taken_as_far_as_it_would_be_what_is_not_kept() -> None:
    feed = ControlFeed(AUTHORITY)
    feed.succeed(succession(1, first(b"a", b"x", b"y")))
    assert feed.add(0, ABC[:2]) == 2
    assert feed.add(2, ABC[2:]) == 0
    assert (records(feed), feed.misses_decisions) == ((b"a", b"b"), True)


def test_nobody_signs_on_a_feed_of_which_something_is_lacking() -> None:
    feed = feed_with(*ABC[:2])
    feed.succeed(succession(1, first(b"a", b"b", b"c")))
    with pytest.raises(LocalProtocolError):
        feed.sign(b"?", signing_key("bob").sign)


def test_the_same_succession_with_other_votes_is_the_same() -> None:
    feed = feed_with(*ABC)
    assert feed.succeed(succession(1, first(b"a"), votes=("dee", "dan")))
    assert not feed.succeed(succession(1, first(b"a"), votes=("dan", "dot")))
    assert feed.term == 1


@pytest.mark.parametrize(
    "wrong",
    [
        succession(1, first(b"a"), votes=("dee",)),
        succession(0, first(b"a")),
        Succession(1, 0, chain_of(first(b"a")), origin_of("bob"), succession(1, ()).votes),
        Succession(1, 1, chain_of(first(b"b")), origin_of("bob"), succession(1, first(b"a")).votes),
        Succession(1, 1, chain_of(first(b"a")), origin_of("eve"), succession(1, first(b"a")).votes),
        Succession(2, 1, chain_of(first(b"a")), origin_of("bob"), succession(1, first(b"a")).votes),
        Succession(1, 2, chain_of(first(b"a")), origin_of("bob"), succession(1, first(b"a")).votes),
        Succession(
            1, 1, chain_of(first(b"a")), origin_of("bob"), (*succession(1, first(b"a")).votes[:1],) * 2
        ),
        Succession(1, 1, chain_of(first(b"a")), origin_of("bob"), (Vote(3, bytes(64)), Vote(255, b""))),
    ],
)
def test_a_succession_without_the_votes_that_it_needs_breaks_a_rule(wrong: Succession) -> None:
    with pytest.raises(RemoteProtocolError) as refusal:
        feed_with(*ABC).succeed(wrong)
    assert refusal.value.rule == "O4"


def test_a_succession_that_keeps_nothing_keeps_the_empty_feed() -> None:
    empty = Succession(1, 0, chain_of(first(b"a")), origin_of("bob"), ())
    message = succession_message(RUN_ID, empty)
    votes = tuple(Vote(n, signing_key(name).sign(message)) for n, name in enumerate(DEPUTIES))
    with pytest.raises(RemoteProtocolError):
        ControlFeed(AUTHORITY).succeed(Succession(1, 0, empty.chain, empty.key, votes))


def test_a_signature_that_does_not_hold_is_no_vote_and_spoils_none() -> None:
    good = succession(1, first(b"a"))
    more = Succession(1, 1, good.chain, good.key, (*good.votes, Vote(2, bytes(64)), Vote(77, b"")))
    assert ControlFeed(AUTHORITY).succeed(more)


# -- bounds ------------------------------------------------------------------------------------------


def test_of_each_term_two_successions_are_kept_whatever_a_majority_signs() -> None:
    keys = ("bob", "cid", "eve", "fay", "gus")
    for order in (keys, keys[::-1], ("eve", "bob", "gus", "cid", "fay")):
        feed = ControlFeed(AUTHORITY)
        for key in order:
            feed.succeed(succession(1, (), key))
        kept = sorted(succession_message(RUN_ID, succession(1, (), key)) for key in keys)[:2]
        assert sorted(feed.successions) == kept
        assert feed.succession is None


def test_successions_of_the_highest_terms_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_feed, "MAX_TERMS", 2)
    for order in ((1, 2, 3, 4), (4, 3, 2, 1), (2, 4, 1, 3)):
        feed = ControlFeed(AUTHORITY)
        for term in order:
            feed.succeed(succession(term, ()))
        assert sorted(one.term for one in feed.successions.values()) == [3, 4]


# -- garbage -----------------------------------------------------------------------------------------

U32 = st.integers(0, 3) | st.integers(0, 2**32 - 1)
CHAINS = st.sampled_from([chain_of(first(*b)) for b in ((), (b"a",), (b"a", b"b"))]) | st.binary(
    min_size=32, max_size=32
)
SIGNATURES = st.sampled_from([entry.signature for entry in ABC + AXY]) | st.binary(min_size=64, max_size=64)
RECORDS = st.sampled_from((b"a", b"b", b"x")) | st.binary(max_size=9)
GOOD = (
    succession(1, first(b"a")),
    succession(1, first(b"x"), "cid"),
    succession(2, first(b"a", b"x"), "eve"),
)
OBJECTS = st.one_of(
    st.builds(Entry, U32, RECORDS, SIGNATURES),
    st.sampled_from(ABC + AXY),
    st.builds(ControlFork, U32, U32, st.tuples(CHAINS, CHAINS), st.tuples(SIGNATURES, SIGNATURES)),
    st.just(fork(first(b"a", b"b"), first(b"a", b"x"), "ann")),
    st.builds(
        Succession,
        U32,
        U32,
        CHAINS,
        st.sampled_from((origin_of("bob"), bytes(32))),
        st.lists(st.builds(Vote, st.integers(0, 255), SIGNATURES), max_size=3).map(tuple),
    ),
    st.sampled_from(GOOD),
)


@settings(max_examples=100)
@given(came=st.lists(st.tuples(U32, OBJECTS), max_size=15))
def test_garbage_breaks_a_rule_or_brings_nothing(
    came: list[tuple[int, Entry | ControlFork | Succession]],
) -> None:
    feed = ControlFeed(AUTHORITY)
    for position, one in came:
        try:
            match one:
                case Entry():
                    feed.add(position, [one])
                case ControlFork():
                    feed.freeze(one)
                case Succession():
                    feed.succeed(one)
        except RemoteProtocolError as error:
            assert error.rule == "O4"  # noqa: PT017
        assert_sound(feed)


def assert_sound(feed: ControlFeed) -> None:
    """Assert that the sequence is one chain with valid keys, and contains the decisions that must be kept."""
    assert len(feed.chains) == len(feed.entries) + 1
    history = tuple((entry.term, entry.record) for entry in feed.entries)
    assert feed.chain == chain_of(history)
    kept = feed.succession
    if kept and not feed.misses_decisions:
        assert feed.chains[kept.kept] == kept.chain
        assert {entry.term for entry in feed.entries[kept.kept :]} <= {kept.term}
    if feed.frozen and not feed.misses_decisions:
        assert feed.stop < feed.forks[feed.term].stop or (kept and feed.stop == kept.kept)
