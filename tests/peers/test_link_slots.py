"""Selection of links: newcomers find room, and attackers cannot take all of it."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfnode.peers import link_slots
from sfnode.peers.address_book import AddressBook
from sfnode.peers.faults import FAULT_FIRST
from sfnode.peers.link_slots import (
    BLANK_TIME,
    HALF_LIFE,
    MAX_INBOUND,
    MAX_INBOUND_OF_RANGE,
    MAX_LINKS,
    MAX_OUTBOUND_OF_RANGE,
    MIN_OUTBOUND,
    OLDEST_KEPT,
    SETTLE_TIME,
    TARGET_LINKS,
    WANTED_OUTBOUND,
    InboundVerdict,
    LinkFacts,
    address_range,
    whom_to_dial,
    whom_to_give_up,
    whom_to_let_go,
    whom_to_let_in,
    whom_to_probe,
)
from sfnode.transport.base import PeerRecord

NOW = 1_000.0


def address(peer: str, host: str = "10.0.0.1") -> str:
    return f"/ip4/{host}/tcp/1/p2p/{peer}"


def book(*strangers: str, given: tuple[str, ...] = (), hosts: dict[str, str] | None = None) -> AddressBook:
    made = AddressBook("me", map(address, given), (), Random(0))
    where = hosts or {}
    made.note([PeerRecord(p, (address(p, where.get(p, "10.0.0.1")),), 0, 0) for p in strangers], ())
    return made


def names(count: int, letter: str = "p") -> list[str]:
    return [f"{letter}{number:02}" for number in range(count)]


def inbound(count: int, since: float = 0.0) -> list[LinkFacts]:
    return [LinkFacts(peer, False, since + n) for n, peer in enumerate(names(count, "i"))]


def outbound(count: int, since: float = 0.0) -> list[LinkFacts]:
    return [LinkFacts(peer, True, since + n) for n, peer in enumerate(names(count, "o"))]


links_lists = st.lists(
    st.builds(
        LinkFacts,
        peer=st.sampled_from(names(40)),
        outbound=st.booleans(),
        since=st.floats(0, NOW),
        range=st.sampled_from([None, "0102", "0304"]),
        useful=st.floats(0, 1e6),
    ),
    max_size=MAX_LINKS,
    unique_by=lambda link: link.peer,
)
newcomers = st.builds(
    LinkFacts,
    peer=st.just("new"),
    outbound=st.just(False),
    since=st.just(NOW),
    range=st.sampled_from([None, "0102", "0304"]),
)

# -- dialling ----------------------------------------------------------------------------------------


def test_links_of_others_making_do_not_keep_a_node_from_choosing_some_itself() -> None:
    assert len(whom_to_dial(inbound(MAX_INBOUND), [], book(*names(20)), NOW)) == WANTED_OUTBOUND
    assert MIN_OUTBOUND < WANTED_OUTBOUND
    links = [*inbound(MAX_INBOUND), *outbound(WANTED_OUTBOUND)]
    assert whom_to_dial(links, [], book(*names(20)), NOW) == []


def test_neighbours_and_peers_that_are_being_dialled_are_not_dialled() -> None:
    links = outbound(2)
    known = book("o00", "o01", *names(3))
    assert sorted(whom_to_dial(links, ["p00"], known, NOW)) == ["p01", "p02"]
    assert len(whom_to_dial(links, ["x", "y", "z"], known, NOW)) == TARGET_LINKS - 2 - 3


def test_however_many_strangers_the_roster_names_every_other_peer_is_one_known_otherwise() -> None:
    known = book(*names(60), given=("given0", "given1", "given2", "given3"))
    chosen = whom_to_dial([], [], known, NOW)
    assert sum(peer.startswith("given") for peer in chosen) == TARGET_LINKS / 2


def test_a_single_missing_link_goes_to_a_friend_or_a_stranger_whoever_are_fewer() -> None:
    known = book(*names(9), given=("friend0", "friend1", "friend2"))
    links = [*inbound(5), LinkFacts("p00", True, 0), LinkFacts("p01", True, 0)]
    (chosen,) = whom_to_dial(links, [], known, NOW)
    assert chosen.startswith("friend")
    links = [*inbound(5), LinkFacts("friend0", True, 0), LinkFacts("friend1", True, 0)]
    (chosen,) = whom_to_dial(links, [], known, NOW)
    assert chosen.startswith("p")


def test_a_range_of_public_addresses_gets_a_few_of_our_links_and_the_rest_go_elsewhere() -> None:
    hosts = {peer: f"5.6.{n}.1" for n, peer in enumerate(names(30))} | {
        peer: f"7.{n}.0.1" for n, peer in enumerate(names(4, "q"))
    }
    known = book(*hosts, hosts=hosts)
    chosen = whom_to_dial([], [], known, NOW)
    assert sum(peer.startswith("p") for peer in chosen) == MAX_OUTBOUND_OF_RANGE
    assert sum(peer.startswith("q") for peer in chosen) == 4
    one = [LinkFacts("x", True, 0, address_range("/ip4/5.6.99.1/tcp/1"))]
    assert sum(peer.startswith("p") for peer in whom_to_dial(one, [], known, NOW)) == 1
    assert not any(peer.startswith("p") for peer in whom_to_dial(one, ["p00"], known, NOW))


def test_a_laboratory_behind_private_addresses_is_one_range_without_a_limit() -> None:
    for host in ("192.168.1.5", "10.1.2.3", "127.0.0.1", "172.16.9.9", "100.64.3.4", "169.254.1.1"):
        known = book(*names(20), hosts=dict.fromkeys(names(20), host))
        assert len(whom_to_dial([], [], known, NOW)) == TARGET_LINKS


def test_an_address_that_a_record_kept_quiet_about_is_judged_when_it_is_found() -> None:
    crowded = [LinkFacts(f"o{n}", True, 0, "0506") for n in range(MAX_OUTBOUND_OF_RANGE)]
    assert not link_slots.may_keep(LinkFacts("new", True, NOW, "0506"), crowded)
    assert link_slots.may_keep(LinkFacts("new", True, NOW, "0708"), crowded)
    assert link_slots.may_keep(LinkFacts("new", True, NOW, None), crowded)


@given(links_lists, st.integers(0, 20))
def test_dialling_never_leads_beyond_the_most_links(links: list[LinkFacts], dialling: int) -> None:
    busy = names(dialling, "d")
    chosen = whom_to_dial(links, busy, book(*names(40)), NOW)
    assert len(chosen) == len(set(chosen))
    assert not {link.peer for link in links} & set(chosen)
    assert not chosen or len(links) + len(busy) + len(chosen) <= MAX_LINKS


# -- newcomers ---------------------------------------------------------------------------------------


def test_inbound_links_never_take_the_room_of_those_that_we_want_to_choose() -> None:
    newcomer = LinkFacts("new", False, NOW)
    for count in range(MAX_INBOUND):
        assert whom_to_let_in(newcomer, inbound(count, NOW - 1), book(), NOW) == InboundVerdict(True)
    assert not whom_to_let_in(newcomer, inbound(MAX_INBOUND, NOW - 10), book(), NOW).accept
    assert MAX_LINKS - MAX_INBOUND > WANTED_OUTBOUND  # one more, for a probe


def test_a_range_of_public_addresses_gets_a_few_inbound_links() -> None:
    links = [link._replace(range="0506") for link in inbound(MAX_INBOUND_OF_RANGE)]
    assert not whom_to_let_in(LinkFacts("new", False, NOW, "0506"), links, book(), NOW).accept
    assert whom_to_let_in(LinkFacts("new", False, NOW, "0708"), links, book(), NOW).accept
    private = [link._replace(range=None) for link in inbound(MAX_INBOUND_OF_RANGE)]
    assert whom_to_let_in(LinkFacts("new", False, NOW, None), private, book(), NOW).accept


def test_peers_that_have_nothing_to_say_make_room_however_long_and_whoever_they_are() -> None:
    mute = [LinkFacts(f"m{index}", False, NOW - BLANK_TIME, blank=True) for index in range(MAX_INBOUND)]
    assert whom_to_let_in(LinkFacts("n", False, NOW), mute, book(), NOW) == (True, "m0")
    young = [link._replace(since=NOW - BLANK_TIME / 2) for link in mute]
    assert not whom_to_let_in(LinkFacts("n", False, NOW), young, book(), NOW).accept
    chosen = [*outbound(2), LinkFacts("m", True, NOW - BLANK_TIME, blank=True)]
    assert whom_to_let_go(chosen, [], book(), NOW) == ["m"]
    assert whom_to_let_go([link._replace(outbound=False) for link in chosen], [], book(), NOW) == []


def test_the_last_links_of_our_own_choice_stay_though_mute_unless_there_are_others_to_dial() -> None:
    mute = [LinkFacts(f"m{index}", True, NOW - BLANK_TIME, blank=True) for index in range(MIN_OUTBOUND + 1)]
    assert whom_to_let_go(mute, [], book(), NOW) == ["m0"]
    assert whom_to_let_go(mute, [], book("m0", "m1", "m2"), NOW) == ["m0"]  # they are no others
    assert whom_to_let_go(mute, ["p"], book("p"), NOW) == ["m0"]  # nor is one that is being dialled
    assert whom_to_let_go(mute, [], book("p"), NOW) == ["m0", "m1"]
    assert whom_to_let_go(mute, [], book("p", "q"), NOW) == ["m0", "m1", "m2"]
    refusing = book("p", "q")
    refusing.failed("p", NOW)
    assert whom_to_let_go(mute, [], refusing, NOW) == ["m0", "m1"]


def test_a_peer_that_broke_a_rule_is_not_let_in_before_its_time() -> None:
    known = book("bad")
    known.misbehaved("bad", NOW)
    assert not whom_to_let_in(LinkFacts("bad", False, NOW), [], known, NOW).accept
    assert whom_to_dial([], [], known, NOW) == []
    assert whom_to_let_in(LinkFacts("bad", False, NOW), [], known, NOW + FAULT_FIRST).accept


@given(links_lists, newcomers)
def test_a_newcomer_takes_no_place_that_is_protected(links: list[LinkFacts], newcomer: LinkFacts) -> None:
    verdict = whom_to_let_in(newcomer, links, book(), NOW)
    after = [link for link in links if link.peer != verdict.instead_of]
    if not verdict.accept:
        assert verdict.instead_of is None
        return
    assert len(after) + 1 <= MAX_LINKS
    if verdict.instead_of is not None:
        (victim,) = set(links) - set(after)
        assert not victim.outbound
        if victim.blank:
            assert NOW - victim.since >= BLANK_TIME
            return
        assert NOW - victim.since >= SETTLE_TIME
        assert sum(link.since <= victim.since for link in links) > OLDEST_KEPT
        assert all(
            victim.useful <= link.useful or link.outbound or link in _protected(links) for link in links
        )
    if newcomer.range:
        assert (
            sum(not link.outbound and link.range == newcomer.range for link in after) < MAX_INBOUND_OF_RANGE
        )


def _protected(links: list[LinkFacts]) -> set[LinkFacts]:
    oldest = sorted(links, key=lambda link: (link.since, link.peer))[:OLDEST_KEPT]
    return {link for link in links if NOW - link.since < SETTLE_TIME} | set(oldest)


@given(st.integers(0, 2**32), st.integers(1, 200))
def test_a_flood_of_newcomers_never_displaces_old_friends_or_our_own_choices(seed: int, flood: int) -> None:
    """A stranger connects every second. Three old inbound links and all outbound ones survive."""
    draw = Random(seed)
    links = [*outbound(3), *inbound(3, since=10.0)]
    friends = {link.peer for link in links}
    for number in range(flood):
        now = NOW + number
        verdict = whom_to_let_in(LinkFacts(f"s{number}", False, now), links, book(), now)
        if verdict.accept:
            links = [link for link in links if link.peer != verdict.instead_of]
            links.append(LinkFacts(f"s{number}", False, now, useful=draw.uniform(0, 5)))
    assert {link.peer for link in links if link.outbound} == {"o00", "o01", "o02"}
    assert sum(not link.outbound for link in links) <= MAX_INBOUND
    oldest = sorted(links, key=lambda link: link.since)[:OLDEST_KEPT]
    assert {link.peer for link in oldest} <= friends


# -- giving up and probing ---------------------------------------------------------------------------


def test_of_more_links_than_wanted_the_least_useful_of_our_own_goes() -> None:
    links = [link._replace(useful=float(n)) for n, link in enumerate(outbound(TARGET_LINKS + 1))]
    assert whom_to_give_up(links, NOW) == f"o{OLDEST_KEPT:02}"
    assert whom_to_give_up(links[:-1], NOW) is None
    assert whom_to_give_up([*inbound(MAX_INBOUND), *outbound(WANTED_OUTBOUND)], NOW) is None


@given(links_lists)
def test_giving_up_leaves_enough(links: list[LinkFacts]) -> None:
    peer = whom_to_give_up(links, NOW)
    left = [link for link in links if link.peer != peer]
    if peer is not None:
        assert len(left) >= TARGET_LINKS
        assert sum(link.outbound for link in left) >= WANTED_OUTBOUND
        assert sum(not link.outbound for link in left) == sum(not link.outbound for link in links)


def test_a_probe_goes_beyond_the_target_to_somebody_new_but_not_beyond_the_most() -> None:
    known = book(*names(3), "o00")
    (probed,) = whom_to_probe(outbound(TARGET_LINKS), [], known, NOW)
    assert probed in names(3)
    assert whom_to_probe(outbound(MAX_LINKS), [], known, NOW) == []
    mixed = book(*names(3), given=("friend0", "friend1", "friend2"))
    probed_ones = {whom_to_probe(outbound(TARGET_LINKS), [], mixed, NOW)[0] for _ in range(60)}
    assert len(probed_ones) == 6  # friends and strangers
    assert whom_to_probe(outbound(TARGET_LINKS), [], book("o00"), NOW) == []


def test_what_a_link_brought_long_ago_counts_less() -> None:
    assert link_slots.decayed(8.0, HALF_LIFE) == pytest.approx(4.0)
    assert link_slots.decayed(8.0, 0.0) == 8.0
    assert link_slots.decayed(8.0, 10 * HALF_LIFE) < 0.01


# -- ranges ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ("/ip4/8.8.4.4/tcp/1/p2p/Qm", "0808"),
        ("/ip4/8.8.200.200/udp/4001/quic", "0808"),
        ("/ip6/2a00:1450:4001::1/tcp/1", "2a001450"),
        ("/ip6/::ffff:8.8.4.4/tcp/1", "0808"),
        ("/dns4/Node.example.org/tcp/1/p2p/Qm", "node.example.org"),
        ("/ip4/8.8.4.4/tcp/1/p2p/QmRelay/p2p-circuit/p2p/Qm", "0808"),
        ("/p2p/QmRelay/p2p-circuit", "QmRelay"),
        ("/ip4/10.1.2.3/tcp/1", None),
        ("/ip4/127.0.0.1/tcp/1", None),
        ("/ip6/::1/tcp/1", None),
        ("/ip6/fe80::1%eth0/tcp/1", None),
        ("/dns4/", None),
        ("/memory/a/p2p/a", None),
        ("/ip4/nonsense/tcp/1", None),
        ("", None),
    ],
)
def test_a_range_is_what_has_most_likely_one_owner(found: str, expected: str | None) -> None:
    assert address_range(found) == expected


@given(st.text(st.sampled_from("/ip46dnstcp2.:1f%-"), max_size=30))
def test_no_address_is_too_strange_to_be_judged(found: str) -> None:
    where = address_range(found)
    assert where is None or where
