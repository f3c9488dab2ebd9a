"""Exhaustive search of small organised runs (SPEC O3-O10).

The state of a node is a function of its arrivals. So one node is tried with every sequence of arrivals,
including losses and repetitions, in place of several nodes with all interleavings. It has finitely many
states. After all messages have arrived again, all these states become the same state.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import cache, partial, reduce
from itertools import chain as concatenate
from itertools import combinations, combinations_with_replacement, groupby, permutations, product
from typing import Any, TypeVar

import pytest

from sfprotocol import control_feed, signing, validation
from sfprotocol.checkpoints import Base
from sfprotocol.control_feed import ControlFeed
from sfprotocol.decisions import Decision, Recorded, Revoke, Void
from sfprotocol.messages import ControlFork, Entry, EpochScalars, Succession
from sfprotocol.run_state import RunState
from tests.protocol.feeds import origin_of
from tests.protocol.organised import admit, close, fold, seal
from tests.protocol.test_control_feed import AUTHORITY, History, chain_of, first, signed, succession

S = TypeVar("S", bound=Hashable)
Arrival = Callable[[S], S]


def everything_reachable(start: S, arrivals: Sequence[Arrival[S]]) -> set[S]:
    """Return all states that some sequence of arrivals leads to."""
    found, border = {start}, {start}
    while border:
        border = {arrival(state) for state in border for arrival in arrivals} - found
        found |= border
    return found


def in_turn(arrivals: Iterable[Arrival[S]], state: S) -> S:
    return reduce(lambda state, arrival: arrival(state), arrivals, state)


def settled(state: S, arrivals: Sequence[Arrival[S]]) -> S:
    """Return the state after all messages have arrived again until nothing changes."""
    for _ in range(10):
        before, state = state, in_turn(arrivals, state)
        if state == before:
            return state
    raise AssertionError("it does not settle")


# -- the sequence of the control feed ----------------------------------------------------------------


@pytest.fixture(autouse=True)
def signatures_are_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_feed, "signed_by", checked)


checked = cache(signing.signed_by)
sign_history = cache(signed)
SIGNERS = ("ann", "bob", "eve")

TRUNK = first(b"a")
HISTORIES: dict[str, tuple[History, tuple[str, ...]]] = {
    "abc": (first(b"a", b"b", b"c"), SIGNERS),
    "ab": (first(b"a", b"b"), SIGNERS),
    "abz": (first(b"a", b"b", b"z"), SIGNERS),
    "axy": (first(b"a", b"x", b"y"), SIGNERS),
    "a|de": ((*TRUNK, (1, b"d"), (1, b"e")), SIGNERS),
    "a|dz": ((*TRUNK, (1, b"d"), (1, b"z")), SIGNERS),
    "a|d by the other key": ((*TRUNK, (1, b"d"), (1, b"w")), ("ann", "cid", "eve")),
    "ax|f": ((*first(b"a", b"x"), (1, b"f")), ("ann", "cid", "eve")),
    "a|d|g": ((*TRUNK, (1, b"d"), (2, b"g")), SIGNERS),
    "axy|h": ((*first(b"a", b"x", b"y"), (2, b"h")), SIGNERS),
}
"""Signed histories: two sequences of the organiser, and some of its successors."""

SUCCESSIONS = {
    "1 keeps a": succession(1, TRUNK, "bob"),
    "1 keeps ax": succession(1, first(b"a", b"x"), "cid", ("dan", "dot")),
    "2 keeps a|d": succession(2, (*TRUNK, (1, b"d")), "eve"),
    "2 keeps axy": succession(2, first(b"a", b"x", b"y"), "eve", ("dee", "dot")),
}


def ranges(whole: tuple[Entry, ...]) -> Iterator[tuple[int, tuple[Entry, ...]]]:
    for start, stop in combinations(range(len(whole) + 1), 2):
        yield start, whole[start:stop]


def identity(feed: ControlFeed) -> Hashable:
    return feed.chain, feed.stop, tuple(feed.successions), tuple((t, f.stop) for t, f in feed.forks.items())


NOTHING = ControlFeed(AUTHORITY)
FEEDS = {identity(NOTHING): NOTHING}
"""One feed of each identity, which stands for all feeds that have it. So equal feeds of these tests are one
object."""


@cache
def received(message: Succession | tuple[int, tuple[Entry, ...]], feed: ControlFeed) -> ControlFeed:
    """Return the feed after an arrival. A fork that it shows is stored at once."""
    after = copied(feed)
    if isinstance(message, Succession):
        after.succeed(message)
    elif isinstance(result := after.add(message[0], list(message[1])), ControlFork):
        after.freeze(result)
    return FEEDS.setdefault(identity(after), after)


def copied(feed: ControlFeed) -> ControlFeed:
    after = copy.copy(feed)
    after.entries, after.chains, after._sizes = feed.entries[:], feed.chains[:], feed._sizes[:]
    after.forks = dict(feed.forks)
    return after


@cache
def agreement(feed: ControlFeed) -> tuple[bytes, bool, frozenset[bytes], bool]:
    """Return the state on which nodes must agree: everything except forks of earlier terms."""
    return feed.chain, feed.misses_decisions, frozenset(feed.successions), feed.frozen


def agreed(histories: list[tuple[History, tuple[str, ...]]], successions: list[Succession]) -> History | None:
    """Return the sequence that SPEC O4 derives from the set of all signed messages; None if it cannot be
    known."""
    terms = [one.term for one in successions]
    alone = [one for one in successions if terms.count(one.term) == 1]
    last = max(alone, key=lambda one: one.term, default=None)
    term, kept = (last.term, last.kept) if last else (0, 0)
    key = last.key if last else origin_of("ann")
    keys = {(0, origin_of("ann")), *((one.term, one.key) for one in successions)}
    bases = {
        history[:kept]
        for history, signers in histories
        if len(history) >= kept
        and (not last or chain_of(history[:kept]) == last.chain)
        and {(t, origin_of(signers[t])) for t, _ in history[:kept]} <= keys
    }
    if not bases:
        return None if kept else ()
    (base,) = bases
    grown = [
        history[:stop]
        for history, signers in histories
        for stop in range(kept + 1, len(history) + 1)
        if history[:kept] == base
        and {(t, origin_of(signers[t])) for t, _ in history[kept:stop]} == {(term, key)}
    ]
    disputed = [len(one) for one, other in combinations(grown, 2) if len(one) == len(other) and one != other]
    return max((h for h in grown if len(h) < min(disputed, default=99)), key=len, default=base)


SCENARIOS = [
    (histories, successions)
    for histories in concatenate.from_iterable(combinations(HISTORIES, n) for n in (1, 2))
    for successions in concatenate.from_iterable(combinations(SUCCESSIONS, n) for n in (0, 1, 2))
] + [
    (("abc", "abz", "axy"), ()),
    (("abc", "axy", "a|de"), ("1 keeps a",)),
    (("abc", "axy", "a|de", "a|dz"), ("1 keeps a",)),
    (("abc", "axy", "axy|h"), ("1 keeps a", "1 keeps ax", "2 keeps axy")),
    (("abc", "a|de", "a|d|g"), ("1 keeps a", "1 keeps ax", "2 keeps a|d")),
    (("a|de", "ax|f", "axy"), ("1 keeps a", "1 keeps ax")),
    (("a|de", "ax|f", "abc"), tuple(SUCCESSIONS)),
]


def play(histories: tuple[str, ...], successions: tuple[str, ...]) -> None:
    written = [HISTORIES[name] for name in histories]
    deputies = [SUCCESSIONS[name] for name in successions]
    entries = [tuple(sign_history(history, *signers)) for history, signers in written]
    pieces = {piece: partial(received, piece) for whole in entries for piece in ranges(whole)}
    wholes = [partial(received, (0, whole)) for whole in entries]
    votes = [partial(received, one) for one in deputies]
    states = everything_reachable(NOTHING, [*pieces.values(), *votes])
    expected = agreed(written, deputies)
    orders = [*votes, *wholes], [*wholes[::-1], *votes]
    if expected is None:
        for state, order in product(states, orders):
            assert in_turn(order * 3, state).misses_decisions, (
                "it has not what the deputies have kept, and knows"
            )
    else:
        ends = {agreement(settled(state, order)) for state, order in product(states, orders)}
        assert len(ends) == 1, (histories, successions)
        assert ends.pop()[:2] == (chain_of(expected), False), (histories, successions)


def test_all_who_have_received_the_same_have_the_same_sequence() -> None:
    for scenario in SCENARIOS:
        play(*scenario)


Three = tuple[ControlFeed, ControlFeed, ControlFeed]

KNOWN = (
    ("abc", ()),
    ("axy", ()),
    ("abz", ("1 keeps a",)),
    ("axy", ("2 keeps axy",)),
    ("a|de", ("1 keeps a",)),
    ("a|dz", ("1 keeps a", "1 keeps ax")),
    ("ax|f", ("1 keeps ax",)),
)


@cache
def told(what: str, source: ControlFeed, target: ControlFeed) -> ControlFeed:
    """Return a node after another has told it everything of one kind."""
    if what == "successions":
        return in_turn([partial(received, one) for one in source.successions.values()], target)
    if what == "decisions":
        return received((0, tuple(source.entries)), target)
    after = copied(target)
    for fork in source.forks.values():
        after.freeze(fork)
    return FEEDS.setdefault(identity(after), after)


def tell(what: str, source: int, target: int, nodes: Three) -> Three:
    """Return the nodes after one node has told another everything of one kind."""
    after = told(what, nodes[source], nodes[target])
    first, second, third = (after if place == target else node for place, node in enumerate(nodes))
    return first, second, third


def test_three_nodes_agree_on_whatever_links_work_in_whatever_order() -> None:
    kinds, pairs = ("successions", "forks", "decisions"), list(permutations(range(3), 2))
    tellings = [partial(tell, what, *pair) for pair in pairs for what in kinds]
    for known in combinations(KNOWN, 3):
        first, second, third = (knowing(*one) for one in known)
        states = everything_reachable((first, second, third), tellings)
        for nodes in {settled(state, tellings) for state in states}:
            assert len({agreement(node)[1:] for node in nodes}) == 1, known
            assert nodes[0].misses_decisions or len({node.chain for node in nodes}) == 1, known


def knowing(history: str, successions: tuple[str, ...]) -> ControlFeed:
    feed = in_turn([partial(received, SUCCESSIONS[name]) for name in successions], NOTHING)
    decisions, signers = HISTORIES[history]
    return received((0, tuple(sign_history(decisions, *signers))), feed)


@pytest.mark.parametrize(
    ("histories", "successions", "sequence"),
    [
        (["abc"], [], first(b"a", b"b", b"c")),
        (["abc", "axy"], [], TRUNK),
        (["abc", "axy"], ["1 keeps a"], TRUNK),
        (["abc", "axy"], ["1 keeps ax"], first(b"a", b"x")),
        (["abc", "axy"], ["2 keeps axy"], first(b"a", b"x", b"y")),
        (["abc"], ["2 keeps axy"], None),
        (["abc", "a|de"], ["1 keeps a"], (*TRUNK, (1, b"d"), (1, b"e"))),
        (["abc", "a|de", "a|dz"], ["1 keeps a"], (*TRUNK, (1, b"d"))),
        (["abc", "a|de"], ["1 keeps a", "1 keeps ax"], first(b"a", b"b", b"c")),
        (["a|de", "a|d|g"], ["2 keeps a|d"], None),  # whose key was that of term 1?
        (["a|de", "a|d|g"], ["1 keeps a", "2 keeps a|d"], (*TRUNK, (1, b"d"), (2, b"g"))),
        (["a|de", "a|d|g"], ["1 keeps a", "1 keeps ax", "2 keeps a|d"], (*TRUNK, (1, b"d"), (2, b"g"))),
    ],
)
def test_the_sequence_that_all_agree_on_is_this(
    histories: list[str], successions: list[str], sequence: History | None
) -> None:
    assert agreed([HISTORIES[h] for h in histories], [SUCCESSIONS[s] for s in successions]) == sequence


# -- what may be made, for every order of decisions --------------------------------------------------

A, B, A_AGAIN, B_AGAIN = 0, 64, 1, 65
"""The first and the second incarnations of two members."""

STORIES: tuple[tuple[Decision, ...], ...] = (
    (  # a stranger earns credit, loses its disk, and loses its credit
        admit(1, 0),
        close(0, {A: 1, B: 2}),
        seal(0),
        close(1, {B_AGAIN: 1}),
        seal(1, skip=(B_AGAIN,)),
        close(2, {A: 1}),
    ),
    (  # what moves nothing earns nothing; somebody vouches for the stranger
        admit(1, 0),
        close(0, {A: 2, B: 2}, {B: 2}),
        seal(0),
        admit(1, 7),
        close(1, {A_AGAIN: 1, B: 1}),
        seal(1, recount=((A, 0),)),
    ),
    (  # what has counted does not any more; two feeds of one member are named first at once
        admit(1, 0),
        close(0, {A_AGAIN: 1, B: 1, B_AGAIN: 1}),
        seal(0, skip=(A_AGAIN,)),
        Void(0, 0, ()),
        Revoke(1, 2),
        close(1, {A: 1}),
    ),
)


def steps(**run: Any) -> Iterator[tuple[bytes, Decision, bytes]]:
    """Yield every step of every order of the decisions of every story, after the organiser's admission, with
    the pickled states before and after it. Orders that come to one state go on as one."""
    begun = fold(admit(0, 3), epoch_updates=8, **run)
    for story in STORIES:
        border: set[tuple[bytes, tuple[Decision, ...]]] = {(pickle.dumps(begun), story)}
        while border:
            following = set()
            for before, left in border:
                for place, decision in enumerate(left):
                    state = pickle.loads(before)
                    state.apply(Recorded(decision))
                    yield before, decision, (after := pickle.dumps(state))
                    following.add((after, left[:place] + left[place + 1 :]))
            border = following


HISTORIES_OF_LABELS = [labels for n in (1, 2, 3) for labels in combinations_with_replacement(range(3), n)]


def test_what_may_be_held_once_may_be_held_for_good() -> None:
    """Only a revocation forbids updates that were allowed before."""
    for before, decision, after in steps(budget=9, rate=5):
        assert may_be_held(before) <= may_be_held(after), (decision, vars(pickle.loads(before)))


@cache
def may_be_held(state: bytes) -> set[tuple[int, tuple[int, ...]]]:
    run = pickle.loads(state)
    return {
        (feed, labels)
        for feed, labels in product((A, A_AGAIN, B, B_AGAIN), HISTORIES_OF_LABELS)
        if feed // 64 < len(run.members) and labels[-1] <= run.open_epoch
        if refusal(run, feed, labels) is None
    }


def refusal(run: RunState, feed: int, labels: tuple[int, ...]) -> Any:
    parts = [EpochScalars(label, (1,) * len(list(group))) for label, group in groupby(labels)]
    return validation.refused(run, feed, Base(run.feed(feed), 0, b"", 0, 0), parts, 0)


def test_what_members_hold_of_one_label_is_bounded_for_the_member() -> None:
    """All feeds of a member together have its quota, plus one update of each further feed."""
    for state in {after for _, _, after in steps()}:
        run = pickle.loads(state)
        for member, label in product(range(len(run.members)), range(run.open_epoch + 1)):
            quota = run.quotas.quota(member, label)
            most = [
                max(n for n in range(quota + 3) if refusal(run, 64 * member + i, (label,) * n) is None)
                for i in range(4)
            ]
            assert sum(max(0, n - 1) for n in most) <= max(0, quota - 1)
            assert max(most) <= quota
