"""The address book: what a node believes of what it hears about others."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfnode.errors import Code, UserError
from sfnode.runtime import book as book_module
from sfnode.runtime.book import BACKOFF_MOST, MAX_BOOK, MAX_WAYS, AddressBook
from sfnode.transport.base import PeerRecord


def way(peer: str, number: int = 0) -> str:
    return f"/ip4/10.0.0.{number}/tcp/1/p2p/{peer}"


def record(peer: str, *ways: str) -> PeerRecord:
    return PeerRecord(peer, ways or (way(peer),), 0, 0)


def book(*given: str, remembered: tuple[str, ...] = ()) -> AddressBook:
    return AddressBook("me", map(way, given), remembered, Random(0))


def test_what_a_user_gives_must_be_an_address() -> None:
    with pytest.raises(UserError) as refusal:
        AddressBook("me", ["somewhere"], (), Random(0))
    assert refusal.value.code == Code.BAD_ADDRESS


def test_this_node_is_not_in_its_own_book() -> None:
    made = book("me", "a")
    made.note([record("me"), record("b")], ())
    assert sorted(made.candidates(0)) == ["a", "b"]


def test_all_addresses_of_a_peer_are_tried_the_newest_first_and_the_users_always() -> None:
    made = book("a")
    for number in range(1, 10):
        made.note([record("a", way("a", number))], ())
    assert made.ways("a") == (*(way("a", number) for number in range(9, 3, -1)), way("a"))
    assert made.ways("unheard of") == ()


def test_the_roster_displaces_neither_neighbours_nor_peers_known_otherwise() -> None:
    made = book("given", remembered=(way("old"),))
    made.note([record("linked")], ())
    for flood in range(3):
        made.note([record(f"x{flood}-{number}") for number in range(500)], {"linked"})
        assert len(made) == MAX_BOOK + 3
    assert all(made.ways(peer) for peer in ("given", "old", "linked"))


def test_peers_that_could_not_be_reached_make_room_first() -> None:
    made = book()
    made.note([record(f"p{number:02}") for number in range(MAX_BOOK)], ())
    for number in range(10):
        made.failed(f"p{number:02}", 0)
    made.note([record(f"q{number}") for number in range(10)], ())
    assert len(made) == MAX_BOOK
    assert not any(made.ways(f"p{number:02}") for number in range(10))


def test_a_peer_that_fails_is_left_alone_for_longer_and_longer_but_never_for_good() -> None:
    made, now, waits = book("a"), 0.0, []
    longest = [
        min(1.2 * book_module.BACKOFF_FIRST * 2.0**doubled, 1.2 * BACKOFF_MOST) for doubled in range(12)
    ]
    for _ in range(2000):
        made.failed("a", now)
        assert made.candidates(now) == []
        waits.append(next(wait for wait in longest if made.candidates(now + wait)))
        now += waits[-1]
    assert waits[:10] == sorted(set(waits[:10]))
    assert 0.8 * BACKOFF_MOST <= waits[-1] <= 1.2 * BACKOFF_MOST
    made.succeeded("a")
    assert made.candidates(now) == ["a"]


def test_nobody_is_everybodys_first_choice() -> None:
    made = book("a", "b", "c")
    assert len({tuple(made.candidates(0)) for _ in range(50)}) == 6


def test_those_that_failed_least_are_dialled_first() -> None:
    made = book("a", "b", "c")
    made.failed("a", 0)
    made.failed("a", 0)
    made.failed("b", 0)
    assert made.candidates(1000) == ["c", "b", "a"]
    made.forgive()
    assert sorted(made.candidates(0)) == ["a", "b", "c"]


def test_the_users_peers_are_asked_first_for_the_way_back() -> None:
    made = book("given")
    made.note([record(f"p{number}") for number in range(20)], ())
    assert made.sample(3)[0] == way("given")
    assert len(set(made.sample(8))) == 8


def test_neighbours_are_remembered_first_and_a_bounded_number_in_all() -> None:
    made = book()
    made.note(
        [record(f"p{number:02}", *(way(f"p{number:02}", n) for n in range(6))) for number in range(64)], ()
    )
    made.note([record("z")], {"z"})
    kept = made.worth_keeping({"z"})
    assert way("z") in kept
    assert len(kept) <= MAX_BOOK * MAX_WAYS
    assert kept == made.worth_keeping({"z"})
    again = book(remembered=tuple(kept))
    assert again.worth_keeping({"z"}) == kept


texts = st.text(st.sampled_from("/ap2\n \t\x00"), max_size=12)
addresses = st.one_of(texts, texts.map(lambda text: f"/{text}/p2p/a"), st.just(way("a")))


@given(st.lists(addresses, max_size=8), st.lists(addresses, max_size=8))
def test_nothing_in_the_roster_or_on_the_disk_makes_a_book_that_cannot_be_kept(
    heard: list[str], remembered: list[str]
) -> None:
    made = AddressBook("me", (), remembered, Random(0))
    made.note([record("a", *heard)], ())
    words = " ".join(made.worth_keeping(())).split()
    assert words == made.worth_keeping(())
    again = AddressBook("me", (), words, Random(0))
    assert set(again.ways("a")) == set(made.ways("a")[:MAX_WAYS])
