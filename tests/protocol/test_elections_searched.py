"""An exhaustive search and random walks of small elections (SPEC O21 to O23).

There are three stand-ins and one member that only observes. The search tries every order of a few events,
with crashes before and after a statement is durable, and with statements that arrive at any time or never.
The code under test is the product's; each node has its own clock. Signatures are keyed hashes, as other tests
check signatures. `SFNODE_DEPTH` is the number of additional events; each doubles the number of walks.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from itertools import permutations
from pathlib import Path
from random import Random
from types import ModuleType
from typing import NamedTuple

import pytest

from sfprotocol import control_feed, decisions, elections
from sfprotocol.control_feed import ControlFeed
from sfprotocol.decisions import Announce, StandIn, StandIns
from sfprotocol.elections import BEAT, LEASE, SPREAD, Elections
from sfprotocol.events import Action, Counters, KeepStatement
from sfprotocol.link import Link
from sfprotocol.messages import ELECTED_TERMS, Authority, Entry, Statement

MORE = int(os.environ.get("SFNODE_DEPTH", "0"))
NAMES = "abcw"
KEYS = {name: name.encode() * 32 for name in NAMES}
AUTHORITY = Authority(bytes(32), KEYS["a"], (bytes(32),), 1, ELECTED_TERMS)
OFTEN = {"hears": 6, "folds": 2, "waits": 3, "is": 1, "decides": 2, "hands": 1}
"""Weight of each kind of event in a random walk."""

ROUNDS = 60
"""Number of rounds of five seconds, enough for two elections, after which there must be an organiser."""

LINK = Link(0, "peer", 0.0)


def mac(key: bytes, message: bytes) -> bytes:
    return hashlib.blake2b(message, key=key).digest()


@pytest.fixture(autouse=True)
def signatures_are_cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in control_feed, elections:
        monkeypatch.setattr(module, "signed_by", lambda key, message, told: told == mac(key, message))
    monkeypatch.setattr(elections, "STATEMENT_BURST", 1e12)  # of all branches together


class Wrong(AssertionError):  # noqa: N818
    """A violation of an invariant."""


@dataclass(slots=True)
class Site:
    """One node: its disk, its memory, its clock."""

    name: str
    feed: ControlFeed
    elections: Elections
    statement: Statement | None = None
    entries: tuple[Entry, ...] = ()
    now: float = 0.0

    def copied(self) -> Site:
        feed, made = self.feed.copy(), copy(self.elections)
        made._feed, made._heard, made._answered = feed, {**made._heard}, {**made._answered}
        made._votes = {**made._votes}
        site = replace(self, feed=feed, elections=made)
        made._grow = site.grow
        return site

    def grow(self, entries: tuple[Entry, ...]) -> list[Action]:
        self.feed.add(self.feed.stop, entries)
        return []


def never(*proof: object) -> list[Action]:
    raise Wrong(f"an honest node is said to have voted twice: {proof}")


def started(name: str, entries: tuple[Entry, ...], statement: Statement | None, now: float) -> Site:
    """Return a node that starts with the contents of its disk."""
    feed = ControlFeed(AUTHORITY)
    assert feed.add(0, entries) == len(entries)
    made = Elections(feed, {}, Counters(), grow=lambda _: [], prove=never, own=statement)
    site = Site(name, feed, made, statement, entries, now)
    site.elections._grow = site.grow
    if name != "w":
        site.elections.hold(KEYS[name], partial(mac, KEYS[name]), now)
    return site


class World(NamedTuple):
    """All nodes, the statements sent, and the facts observed so far."""

    sites: dict[str, Site]
    sent: dict[str, Statement]
    """The newest statement that each node has sent."""
    folded: tuple[bytes, ...]
    """Chain hashes of the longest sequence that any node has folded."""
    promised: frozenset[tuple[str, int, bytes]]
    """Votes: (stand-in, term, elected key)."""
    led: frozenset[tuple[int, str]]
    left: tuple[int, int]
    """Number of decisions and of crashes that may still happen."""


def after(world: World, name: str, do: Callable[[Site], list[Action]], crash: str = "") -> World:
    """Return the world after an event at one node, which may crash before it sends anything."""
    site = world.sites[name].copied()
    stop = site.feed.stop
    stated = [one.statement for one in do(site) if isinstance(one, KeepStatement)]
    if len(stated) > 4 or site.feed.stop < stop:
        raise Wrong(f"{name} takes something back, or says a lot")
    site.entries, site.statement = tuple(site.feed.entries), [site.statement, *stated][-1]
    sent, left = world.sent, world.left
    if crash:
        site, left = started(name, site.entries, site.statement, site.now), (left[0], left[1] - 1)
    elif stated:
        sent = {**sent, name: site.elections._told()}
    return looked_at(world._replace(sites={**world.sites, name: site}, sent=sent, left=left), site)


def looked_at(world: World, site: Site) -> World:
    """Return the world with the facts observed at a node. Raises Wrong if they contradict earlier facts."""
    longer = max(world.folded, tuple(site.feed.chains), key=len)
    if any(longer[: len(one)] != one for one in (world.folded, tuple(site.feed.chains))):
        raise Wrong("two have folded different decisions at one position")
    sites = {**world.sites, site.name: site}
    holding = [sites[name].elections._ahead().chains[len(longer) - 1 :][:1] for name in "abc"]
    if holding.count([longer[-1]]) < 2:
        raise Wrong("what somebody has folded is not held by more than half")
    own, promised, led = site.statement, world.promised, world.led
    if own and own.candidate:
        promised |= {(site.name, own.voted, own.candidate)}
    if len({(name, term) for name, term, _ in promised}) < len(promised):
        raise Wrong("somebody has elected two in one term")
    if site.elections.takes_part and site.elections._organises():
        led |= {(site.elections._ahead().term, site.name)}
    if len({term for term, _ in led}) < len(led):
        raise Wrong("two organise in one term")
    return world._replace(folded=longer, promised=promised, led=led)


# -- what may happen ---------------------------------------------------------------------------------


def hear(said: Statement, site: Site) -> list[Action]:
    return site.elections.heard(LINK, said, site.now)


def fold(entries: list[Entry], site: Site) -> list[Action]:
    site.feed.add(0, entries)
    return site.elections.review(site.now)


def wait(seconds: float, site: Site) -> list[Action]:
    """Advance a node's clock by `seconds`; 0 stands for its next deadline."""
    site.now = site.now + seconds if seconds else max(site.now, site.elections.deadline())
    return site.elections.review(site.now)


def decide(text: str, site: Site) -> list[Action]:
    return site.elections.decide(decisions.encode(Announce(text)), site.now)


def hand_over(key: bytes, site: Site) -> list[Action]:
    return site.elections.hand_over(key, site.now)


def nothing(site: Site) -> list[Action]:
    return []


Happening = tuple[str, str, Callable[[Site], list[Action]]]


def happenings(world: World) -> Iterator[Happening]:
    """Yield the possible next events, each as (name, node, action)."""
    sites = world.sites
    for name, site in sites.items():
        for other, theirs in sites.items():
            if other != name and theirs.feed.stop > site.feed.stop:
                yield f"{name} folds as {other}", name, partial(fold, theirs.feed.entries)
        if name == "w":
            continue
        for other in "abc".replace(name, ""):
            known = site.elections._heard.get(KEYS[other])
            for way, said in tellings(world, other, name):
                if not known or known.said.number < said.number:
                    yield f"{name} hears {other}{way}", name, partial(hear, said)
        yield f"{name} waits", name, partial(wait, 0.0)
        if site.now - site.elections._organiser_at < LEASE:
            yield f"{name} is alone", name, partial(wait, LEASE)
        if world.left[0] and site.elections.leads(site.now):
            yield f"{name} decides", name, partial(decide, f"{name}{world.left[0]}")
            for other in "abc".replace(name, ""):
                yield f"{name} hands over to {other}", name, partial(hand_over, KEYS[other])


def tellings(world: World, of: str, to: str) -> Iterator[tuple[str, Statement]]:
    """Yield the last statement of a stand-in, and the versions of it that others would tell a new
    neighbour."""
    if of in world.sent:
        yield "", world.sent[of]
    for name in "abc".replace(of, "").replace(to, ""):
        heard = world.sites[name].elections._heard.get(KEYS[of])
        if heard and heard.said is not world.sent.get(of):
            yield f" by {name}", heard.said


def futures(world: World) -> Iterator[tuple[str, World]]:
    """Yield each possible next event with the world after it."""
    for what, name, do in happenings(world):
        spent = world
        if "decides" in what or "hands" in what:
            spent = world._replace(left=(world.left[0] - 1, world.left[1]))
        yield what, after(spent, name, do)
        if world.left[1]:
            fallen = after(spent, name, do, "unsent")
            if fallen.sites[name].statement is not world.sites[name].statement:
                yield f"{what}, and falls before it tells", fallen
    for name in "abc" if world.left[1] else "":
        yield f"{name} falls", after(world, name, nothing, "restart")


def identity(world: World) -> object:
    """Return the part of a world that determines its future. Numbers are replaced by their ranks, and
    times by the deadlines that have passed."""
    numbers = {said.number for said in world.sent.values()}
    for site in world.sites.values():
        numbers |= {one.said.number for one in site.elections._heard.values()}
        numbers |= {number for one in (site.statement,) if one for number in (one.number, one.heard)}
    ranks = {number: rank for rank, number in enumerate(sorted(numbers))}

    def brief(said: Statement | None) -> object:
        if said is None:
            return None
        numbers = (ranks[said.number], said.term, said.voted, said.decided, ranks.get(said.heard, -1))
        return numbers, said.candidate, said.ballot, said.chain, said.silent, len(said.entries)

    def ago(at: float | None, now: float) -> object:
        return at is None or sum(now - at >= one for one in (0.0, BEAT, 2 * BEAT + SPREAD, LEASE))

    def whole(site: Site) -> object:
        one, now = site.elections, site.now
        times = (one._organiser_at, one._stand_at, one._beat_at)
        return (
            (site.feed.chain, brief(site.statement), one._ahead().chain, *(ago(at, now) for at in times)),
            tuple(sorted((key, brief(heard.said), ago(heard.at, now)) for key, heard in one._heard.items())),
            tuple(sorted((key, ago(at, now)) for key, at in one._answered.items())),
        )

    sites = tuple(whole(site) for site in world.sites.values())
    return sites, tuple(brief(said) for said in world.sent.values()), world.left


def search(start: World, depth: int) -> list[World]:
    """Return all worlds after `depth` events. Raises Wrong with the events that led to a violation."""
    seen = {identity(start)}
    border: list[tuple[World, tuple[str, ...]]] = [(start, ())]
    for _ in range(depth):
        following: list[tuple[World, tuple[str, ...]]] = []
        for world, past in border:
            try:
                for what, then in futures(world):
                    if (name := identity(then)) not in seen:
                        seen.add(name)
                        following.append((then, (*past, what)))
            except Wrong as wrong:
                raise Wrong(f"{wrong}, after {'; '.join(past)}") from wrong
        border = following
    return [world for world, _ in border]


def told(world: World, story: str) -> World:
    """Return the world after the events in `story`, with the names that `futures` gives them."""
    for what in story.split("; "):
        world = dict(futures(world))[what]
    return world


def beginning(decisions_left: int = 2, crashes_left: int = 1) -> World:
    """Return three stand-ins that have heard each other; the first one organises."""
    feed = ControlFeed(AUTHORITY)
    named = StandIns(tuple(StandIn(place, KEYS[name]) for place, name in enumerate("abc")))
    feed.add(0, [feed.sign(decisions.encode(named), partial(mac, KEYS["a"]))])
    sites = {name: started(name, tuple(feed.entries), None, 0.0) for name in NAMES}
    left = decisions_left, crashes_left
    return calm(World(sites, {}, tuple(feed.chains), frozenset(), frozenset(), left), 4)


def calm(world: World, rounds: int, up: str = "abc") -> World:
    """Return the world after some rounds of five seconds in which all nodes in `up` tell each other
    everything."""
    for _ in range(rounds):
        for name in up:
            world = after(world, name, later)
        for name, other in permutations(up, 2):
            if other in world.sent:
                world = after(world, name, partial(hear, world.sent[other]))
            world = after(world, name, partial(fold, world.sites[other].feed.entries))
    return world


def later(site: Site) -> list[Action]:
    """Let five seconds pass."""
    site.now += 5.0
    return site.elections.review(site.now) if site.now >= site.elections.deadline() else []


def comes_to_rest(world: World, up: str) -> None:
    """Raise Wrong unless the nodes in `up` soon have one organiser, and all get its next decision."""
    world = calm(world, ROUNDS, up)
    leading = [name for name in up if world.sites[name].elections.leads(world.sites[name].now)]
    if len(leading) != 1:
        raise Wrong(f"{leading} organise at last, of {up}")
    stop = world.sites[leading[0]].feed.stop
    world = calm(after(world, leading[0], partial(decide, "at last")), 4, up)
    if {world.sites[name].feed.stop for name in up} != {stop + 1}:
        raise Wrong(f"nothing is decided any more by {up}")


def walked(world: World, seed: int, steps: int = 40) -> tuple[World, list[str]]:
    """Return the world after random events, with the names of these events."""
    random, past = Random(seed), []
    for _ in range(steps):
        kinds: dict[str, list[Happening]] = {}
        for happening in happenings(world):
            kinds.setdefault(happening[0].split()[1], []).append(happening)
        (kind,) = random.choices(list(kinds), [OFTEN[kind] for kind in kinds])
        what, name, do = random.choice(kinds[kind])
        crash = "unsent" if world.left[1] and random.random() < 0.1 else ""
        past.append(f"{what}{', and falls' if crash else ''}")
        try:
            world = after(world, name, nothing if crash and random.random() < 0.5 else do, crash)
        except Wrong as wrong:
            raise Wrong(f"{wrong}, after {'; '.join(past)}") from wrong
    return world, past


# -- what must not be --------------------------------------------------------------------------------

STORIES = {
    "all is well": "a waits",
    "a decision is held": "a decides; c hears a; a hears c",
    "handed over": "a hands over to c; c hears a; b hears a",
    "the organiser is not heard": "b is alone; c is alone; b hears c; c hears b",
    "a candidate": "b is alone; c is alone; b hears c; c hears b; c waits",
}


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
def test_no_order_of_a_few_events_takes_back_what_was_folded_or_begins_a_term_twice(story: str) -> None:
    worlds = search(told(beginning(), story), 3 + MORE)
    assert len(worlds) > 300


@pytest.mark.parametrize("seed", range(16 << MORE))
def test_whatever_has_happened_any_two_of_three_go_on(seed: int) -> None:
    world, past = walked(beginning(5, 4), seed)
    for up in ("abc", "ab", "ac", "bc"):
        try:
            comes_to_rest(world, up)
        except Wrong as wrong:
            raise Wrong(f"{wrong}, after {'; '.join(past)}") from wrong


def test_what_was_answered_is_held_although_somebody_tells_what_was_said_before() -> None:
    """After a restart, a stand-in hears older statements of the organiser from its neighbours."""
    world = told(beginning(), "a decides; c hears a; a hears c; c falls; c hears a by b")
    assert world.sites["c"].elections._ahead().stop == world.sites["a"].feed.stop


def test_a_term_that_was_handed_to_one_is_taken_by_no_other() -> None:
    """Otherwise a voter of the successor would elect itself as well."""
    world = told(beginning(), f"{STORIES['a candidate']}; b hears c; a hands over to c; b hears a; b waits")
    assert sorted(term for name, term, _ in world.promised if name == "b") == [1, 2]


def test_an_organiser_goes_on_with_those_who_have_elected_somebody_that_fell() -> None:
    """It has no lease any more, and the voters of the later term do not answer it."""
    world = told(beginning(), f"{STORIES['a candidate']}; a is alone")
    comes_to_rest(told(world, "b hears c"), "ab")


def test_a_stand_in_that_tells_of_late_terms_makes_no_candidate_unheard_of() -> None:
    """A candidate chooses a term in which a majority can elect it, and not a term that a liar has made up."""
    world = told(beginning(), STORIES["the organiser is not heard"])
    late = world.sites["a"].elections._ahead().term + elections.LEAP
    said = replace(world.sent["a"], number=99, term=late, voted=late, candidate=KEYS["w"], signature=b"")
    lie = replace(said, signature=mac(KEYS["a"], control_feed.statement_message(bytes(32), said)))
    for name in "bc":
        world = after(world, name, partial(hear, lie))
    comes_to_rest(world, "bc")
    assert calm(world, ROUNDS, "bc").sites["b"].feed.term < elections.LEAP


def test_a_candidate_that_learns_of_decisions_is_elected_with_them() -> None:
    """Its own ballot covers the decisions that it has now, like the ballots of others."""
    world = told(beginning(), "b is alone; c is alone; c hears b; a decides; b hears a; a hears b; c waits")
    world = told(world, "c folds as a; c waits; c waits; b folds as a; b is alone; b hears c; c hears b")
    assert world.sites["c"].elections._organises()


def test_whom_an_undecided_decision_names_alone_does_not_elect_itself_alone() -> None:
    """Until the decision is decided, more than half of the present stand-ins must agree, too."""
    alone = decisions.encode(StandIns((StandIn(2, KEYS["c"]),)))
    world = after(beginning(), "a", lambda site: site.elections.decide(alone, site.now))
    world = told(world, "c hears a; c is alone")
    assert world.sites["c"].elections._ahead().stand_ins == (KEYS["c"],)
    for _ in range(9):
        world = told(world, "c waits")
    assert not world.sites["c"].elections._organises()


def test_an_organiser_that_hears_more_of_its_key_than_it_knows_decides_nothing() -> None:
    """It is an old copy, or a second node has its key. It may have signed other decisions already."""
    world = beginning()
    said = replace(world.sent["a"], number=99, signature=b"")
    told_by_a = replace(said, signature=mac(KEYS["a"], control_feed.statement_message(bytes(32), said)))
    world = after(
        world._replace(sites={**world.sites, "a": unheard(world.sites["a"])}), "a", partial(hear, told_by_a)
    )
    assert decide("again", world.sites["a"].copied()) == []


def unheard(site: Site) -> Site:
    """Return a node that has the answers of others, but has forgotten their statements."""
    site = site.copied()
    site.elections._heard.clear()
    return site


MUTATIONS: dict[str, tuple[str, str]] = {
    "who has handed over goes on": ("return said.voted > said.term", "return False"),
    "a term that was handed over is for everybody": (
        "term = handed or self._next_term(now)",
        "term = (self._handed_over() or (self._next_term(now), b''))[0]",
    ),
    "what was said before takes away what was answered": (
        "(said.term, said.number) < latest",
        "said.term < latest[0]",
    ),
    "whoever holds less is elected": (">= (_last(ahead), ahead.stop)", ">= (0, 0)"),
    "what is held need not be the same": (
        "(one.said.stop, one.said.chain) == (ahead.stop, ahead.chain)",
        "True",
    ),
    "half is enough": ("in with_us for key in group) >", "in with_us for key in group) + 2 >"),
    "two are elected in one term": ("> max(own.voted, own.term)\n", ">= own.term\n"),
    "ballots are not durable": (
        "KeepStatement(said)",
        "KeepStatement(replace(said, term=0, voted=0, candidate=b''))",
    ),
    "what is held is not durable": ("KeepStatement(said)", "KeepStatement(replace(said, entries=()))"),
}


FOUND_BY = {
    "who has handed over goes on": 522,
    "what was said before takes away what was answered": 336,
    "whoever holds less is elected": 124,
    "ballots are not durable": 133,
}
"""The first walk that finds a mutation, for those that take long; others begin with walk 0."""


@pytest.mark.parametrize("name", MUTATIONS)
def test_the_walks_find_what_would_be_wrong(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation = MUTATIONS[name]
    source = Path(elections.__file__).read_text()
    assert source.count(mutation[0]) == 1
    mutant = ModuleType("mutant")
    monkeypatch.setitem(sys.modules, "mutant", mutant)
    exec(compile(source.replace(*mutation), "mutant", "exec"), mutant.__dict__)
    mutant.__dict__.update(signed_by=vars(elections)["signed_by"], STATEMENT_BURST=1e12)
    monkeypatch.setitem(globals(), "Elections", mutant.Elections)
    with pytest.raises(Wrong):
        many_walks(FOUND_BY.get(name, 0))


def many_walks(first: int) -> None:
    scenes = [told(beginning(5, 4), story) for story in STORIES.values()]
    for seed in range(first, first + 10_000):
        walked(scenes[seed % len(scenes)], seed, 25)
