"""The address book: which peers it keeps, and when they may be dialled."""

from __future__ import annotations

from itertools import pairwise
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from sfnode.errors import Code
from sfnode.peers import address_book, faults
from sfnode.transport.base import PeerRecord
from sfnode.transport.roster import MAX_ADDRESSES
from tests.refusals import fails_with


def address(peer: str, number: int = 0) -> str:
    return f"/ip4/10.0.0.{number}/tcp/1/p2p/{peer}"


def record(peer: str, *addresses: str) -> PeerRecord:
    return PeerRecord(peer, addresses or (address(peer),), 0, 0)


def book(*given: str, remembered: tuple[str, ...] = ()) -> address_book.AddressBook:
    return address_book.AddressBook("me", map(address, given), remembered, Random(0))


def test_what_a_user_gives_must_be_an_address() -> None:
    with fails_with(Code.BAD_ADDRESS):
        address_book.AddressBook("me", ["somewhere"], (), Random(0))


def test_this_node_is_not_in_its_own_book() -> None:
    made = book("me", "a")
    made.note([record("me"), record("b")], ())
    assert sorted(made.candidates(0)) == ["a", "b"]


def test_all_addresses_of_a_peer_are_tried_the_newest_first_and_the_users_always() -> None:
    made = book("a")
    for number in range(1, 10):
        made.note([record("a", address("a", number))], ())
    assert made.addresses("a") == (*(address("a", number) for number in range(9, 3, -1)), address("a"))
    assert made.addresses("unheard of") == ()


def test_the_roster_displaces_neither_neighbours_nor_peers_known_otherwise() -> None:
    made = book("given", remembered=(address("old"),))
    made.note([record("linked")], ())
    for flood in range(3):
        made.note([record(f"x{flood}-{number}") for number in range(500)], {"linked"})
        assert len(made) == address_book.MAX_BOOK + 3
    assert all(made.addresses(peer) for peer in ("given", "old", "linked"))


def test_peers_that_could_not_be_reached_make_room_first() -> None:
    made = book()
    made.note([record(f"p{number:02}") for number in range(address_book.MAX_BOOK)], ())
    for number in range(10):
        made.failed(f"p{number:02}", 0)
    made.note([record(f"q{number}") for number in range(10)], ())
    assert len(made) == address_book.MAX_BOOK
    assert not any(made.addresses(f"p{number:02}") for number in range(10))


def test_a_peer_that_fails_is_left_alone_for_longer_and_longer_but_never_for_good() -> None:
    made, now, waits = book(), 0.0, []
    made.note([record("a")], ())
    longest = [
        min(1.2 * address_book.BACKOFF_FIRST * 2.0**doubled, 1.2 * address_book.BACKOFF_MOST)
        for doubled in range(12)
    ]
    for _ in range(2000):
        made.failed("a", now)
        assert made.candidates(now) == []
        waits.append(next(wait for wait in longest if made.candidates(now + wait)))
        now += waits[-1]
    assert waits[:7] == sorted(set(waits[:7]))
    assert 0.8 * address_book.BACKOFF_MOST <= waits[-1] <= 1.2 * address_book.BACKOFF_MOST
    made.succeeded("a")
    assert made.candidates(now) == ["a"]


def test_a_peer_that_the_user_gave_is_never_left_alone_for_long() -> None:
    """Among mute strangers this peer may be the only way to honest nodes (simulator: cold-boot, seed 20)."""
    made = book("given")
    made.note([record("stranger")], ())
    for _ in range(12):
        made.failed("given", 0)
        made.failed("stranger", 0)
    assert made.candidates(1.2 * address_book.BACKOFF_MOST_GIVEN) == ["given"]


def test_nobody_is_everybodys_first_choice() -> None:
    made = book("a", "b", "c")
    assert len({tuple(made.candidates(0)) for _ in range(50)}) == 6


def test_those_that_failed_least_are_dialled_first() -> None:
    made = book("a", "b", "c")
    made.failed("a", 0)
    made.failed("a", 0)
    made.failed("b", 0)
    assert made.candidates(1000) == ["c", "b", "a"]
    made.forget_failures()
    assert sorted(made.candidates(0)) == ["a", "b", "c"]


def test_the_users_peers_are_bootstrapped_from_first() -> None:
    made = book("given")
    made.note([record(f"p{number}") for number in range(20)], ())
    assert made.sample(3)[0] == address("given")
    assert len(set(made.sample(8))) == 8


def test_neighbours_are_remembered_first_and_a_bounded_number_in_all() -> None:
    made = book()
    made.note(
        [record(f"p{number:02}", *(address(f"p{number:02}", n) for n in range(6))) for number in range(64)],
        (),
    )
    made.note([record("z")], {"z"})
    kept = made.worth_keeping({"z"})
    assert address("z") in kept
    assert len(kept) <= address_book.MAX_BOOK * MAX_ADDRESSES
    assert kept == made.worth_keeping({"z"})
    again = book(remembered=tuple(kept))
    assert again.worth_keeping({"z"}) == kept


texts = st.text(st.sampled_from("/ap2\n \t\x00"), max_size=12)
addresses = st.one_of(texts, texts.map(lambda text: f"/{text}/p2p/a"), st.just(address("a")))


@given(st.lists(addresses, max_size=8), st.lists(addresses, max_size=8))
def test_nothing_in_the_roster_or_on_the_disk_makes_a_book_that_cannot_be_kept(
    heard: list[str], remembered: list[str]
) -> None:
    made = address_book.AddressBook("me", (), remembered, Random(0))
    made.note([record("a", *heard)], ())
    words = " ".join(made.worth_keeping(())).split()
    assert words == made.worth_keeping(())
    again = address_book.AddressBook("me", (), words, Random(0))
    assert set(again.addresses("a")) == set(made.addresses("a")[:MAX_ADDRESSES])


# -- bootstrapping for ever ---------------------------------------------------------------------------


def test_given_and_remembered_peers_are_bootstrapped_from_for_ever_less_and_less_often() -> None:
    made, now, attempts = book("given", remembered=(address("old"),)), 0.0, []
    made.note([record("stranger")], ())
    assert made.due_for_bootstrap(0, (), 9) == [address("given"), address("old")]
    assert made.due_for_bootstrap(0, {"given"}, 9) == [address("old")]
    assert made.due_for_bootstrap(0, (), 1) == [address("given")]
    while now < 3600:
        if made.due_for_bootstrap(now, {"old"}, 9):
            assert not made.bootstrapped("given", False, now)
            attempts.append(now)
        now += 0.5
    waits = [after - before for before, after in pairwise(attempts)]
    assert 0.8 * address_book.BOOTSTRAP_FIRST <= waits[0] <= 1.2 * address_book.BOOTSTRAP_FIRST + 0.5
    assert all(
        0.8 * address_book.BOOTSTRAP_MOST <= wait <= 1.2 * address_book.BOOTSTRAP_MOST + 0.5
        for wait in waits[8:]
    )
    assert len(attempts) > 3600 / (1.2 * address_book.BOOTSTRAP_MOST)


def test_a_peer_that_answers_after_a_silence_is_back_once_and_may_be_dialled_at_once() -> None:
    made = book("given")
    assert not made.bootstrapped("given", True, 0)
    assert not made.bootstrapped("given", False, 100)
    made.failed("given", 100)
    assert made.candidates(100) == []
    assert made.bootstrapped("given", True, 101)
    assert made.candidates(101) == ["given"]
    assert not made.bootstrapped("given", True, 200)
    assert not made.bootstrapped("unheard of", True, 0)


def test_after_a_failure_of_our_own_transport_everybody_is_tried_at_once() -> None:
    made = book("given")
    made.bootstrapped("given", False, 0)
    made.failed("given", 0)
    assert made.due_for_bootstrap(0.1, (), 9) == made.candidates(0.1) == []
    made.forget_failures()
    assert made.due_for_bootstrap(0.1, (), 9) == [address("given")]
    assert made.candidates(0.1) == ["given"]


def test_looking_beyond_the_neighbours_spares_nobody_because_they_failed() -> None:
    made = book("a", "b", "c")
    for _ in range(20):
        made.failed("c", 0)
    seen = {found for _ in range(60) for found in made.strangers({"a"}, 1)}
    assert seen == {address("b"), address("c")}
    assert len(made.strangers((), 2)) == 2


# -- trust and faults --------------------------------------------------------------------------------


def test_a_flood_in_the_roster_does_not_displace_the_latest_peers_whose_links_were_of_use() -> None:
    made = book()
    friends = [f"f{number:02}" for number in range(address_book.MAX_MET + 8)]
    for friend in friends:
        made.note([record(friend)], {friend})
        made.succeeded(friend)
    for flood in range(3):
        made.note([record(f"x{flood}-{number}") for number in range(500)], ())
    assert all(made.trusted(friend) and made.addresses(friend) for friend in friends[8:])
    assert not any(made.trusted(friend) for friend in friends[:8])
    assert len(made) == address_book.MAX_BOOK + address_book.MAX_MET


def test_a_peer_that_broke_a_rule_is_refused_for_longer_each_time_but_never_for_good() -> None:
    made, now, waits = book("bad"), 0.0, []
    for _ in range(10):
        made.misbehaved("bad", now)
        assert made.refused("bad", now)
        assert made.candidates(now) == []
        wait = faults.FAULT_FIRST
        while made.refused("bad", now + wait):
            wait *= 2
        waits.append(wait)
        now += wait
        assert made.candidates(now) == ["bad"]
    assert waits[:3] == [faults.FAULT_FIRST, 2 * faults.FAULT_FIRST, 4 * faults.FAULT_FIRST]
    assert faults.FAULT_MOST <= waits[-1] <= 2 * faults.FAULT_MOST


def test_earlier_faults_are_forgiven_by_a_link_of_use_and_by_time() -> None:
    made, first, memory = book("a"), faults.FAULT_FIRST, faults.FAULT_MEMORY
    made.misbehaved("a", 0.0)
    made.succeeded("a")
    made.misbehaved("a", 100.0)
    assert not made.refused("a", 100.0 + first)
    made.misbehaved("a", 100.0 + first + memory)
    assert made.refused("a", 100.0 + 2 * first + memory), "it was not long enough ago"
    later = 100.0 + 3 * first + memory + memory + 1.0
    made.misbehaved("a", later)
    assert not made.refused("a", later + first)


def test_a_stranger_that_was_mute_is_refused_and_a_trusted_peer_only_dialled_less() -> None:
    """A suspended node looks mute to its neighbours. They must let it in when it wakes."""
    made = book("given")
    made.note([record("stranger"), record("met")], ())
    made.succeeded("met")
    for peer in ("given", "met", "stranger"):
        made.was_mute(peer, 0.0)
    assert [peer for peer in ("given", "met", "stranger") if made.refused(peer, 1.0)] == ["stranger"]
    assert made.candidates(0.0) == []


def test_faults_of_peers_that_nobody_has_heard_of_take_a_bounded_room() -> None:
    made, first = book(), faults.FAULT_FIRST
    for number in range(faults.MAX_FAULTS + 100):
        made.misbehaved(f"p{number}", float(number))
    for peer, remembered in (("p100", True), ("p99", False)):
        made.misbehaved(peer, 500.0)
        assert made.refused(peer, 501.0 + first) == remembered, "a repetition is refused for longer"


def test_a_malformed_address_that_was_remembered_is_skipped() -> None:
    made = address_book.AddressBook("me", (), ["nonsense", "/p2p/", "/ip4/x", address("a")], Random(0))
    assert made.candidates(0) == ["a"]


# -- peers of Hivemind's DHT ---------------------------------------------------------------------------


def test_a_peer_that_is_no_node_is_dialled_rarely_and_bootstrapped_from_as_before() -> None:
    made = book("plain", "node")
    made.is_no_node("plain", 0)
    assert made.candidates(0) == ["node"]
    assert made.candidates(0.7 * address_book.BACKOFF_PLAIN) == ["node"]
    assert "plain" in made.candidates(1.3 * address_book.BACKOFF_PLAIN)
    assert address("plain") in made.due_for_bootstrap(0, (), 9)
    assert set(made.sample(9)) == {address("plain"), address("node")}
    assert made.nodes(9) == [address("node")]


def test_it_is_a_node_once_a_link_with_it_was_of_use() -> None:
    made = book("plain")
    made.is_no_node("plain", 0)
    made.succeeded("plain")
    assert made.candidates(0) == ["plain"]
    assert made.nodes(9) == [address("plain")]


def test_only_such_peers_are_known_while_no_given_one_has_been_a_neighbour() -> None:
    made = book("plain", "other")
    made.note([record("found")], ())
    assert not made.plain_only
    made.is_no_node("found", 0)
    assert not made.plain_only, "nobody has given it"
    made.is_no_node("plain", 0)
    made.succeeded("found")
    assert made.plain_only, "the other one may be away, or no node either"
    made.succeeded("other")
    assert not made.plain_only


def test_of_what_is_remembered_nodes_come_first() -> None:
    made = book("a", "b", "c")
    made.is_no_node("a", 0)
    assert made.worth_keeping(()) == [address("b"), address("c"), address("a")]


def test_a_node_of_before_that_does_not_answer_yet_is_dialled_again_soon() -> None:
    """A node listens before it answers. So after a restart of both, neither may wait ten minutes for the
    other."""
    made = book("given", remembered=(address("remembered"),))
    made.note([record("met")], ())
    made.succeeded("met")
    for peer in ("given", "remembered", "met"):
        made.is_no_node(peer, 0)
    assert {*made.dialable(2 * address_book.BACKOFF_FIRST)} == {"remembered", "met"}
    assert "given" not in {*made.dialable(address_book.BACKOFF_PLAIN / 2)}


def test_others_are_looked_for_beyond_this_machine_where_that_is_possible() -> None:
    made, local = book(), "/ip4/127.0.0.1/tcp/1/p2p/{}".format
    made.note([record("a", local("a"), address("a")), record("b", local("b"))], ())
    assert {one for _ in range(20) for one in made.sample(2)} == {address("a"), local("b")}
