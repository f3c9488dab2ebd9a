"""Many newcomers at one donor: all get the file, because pieces spread among them. Wrong pieces do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from sfnode.modelshare import serving
from sfnode.modelshare.listed import Listed, add_piece, has_piece, map_bytes
from sfnode.modelshare.serving import Part, Uplink
from sfprotocol.model_listing import PIECE, Piece
from sfprotocol.wire_codec import MAX_PART_BYTES
from tests.modelshare.crowd import crowd

NEWCOMERS, SIZE, UPLINK = 10, 8_000_000, 1_250_000.0
"""Number of newcomers, bytes of the file, and bytes per second of each uplink. A donor that served all of
them alone would take 64 s."""


def test_all_of_a_crowd_are_served_and_few_copies_leave_the_donor(tmp_path: Path) -> None:
    found = crowd(tmp_path, NEWCOMERS, SIZE, UPLINK)
    assert found.right
    assert max(found.seconds) < 0.38 * NEWCOMERS * SIZE / UPLINK
    assert found.copies < 3.2


def test_wrong_bytes_do_not_spread_through_a_crowd(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = crowd(tmp_path, 4, 3_000_000, 1e6, liars=2)
    assert found.right
    blamed = {record.message.split(": ")[1].split()[0] for record in caplog.records}
    assert blamed == {"liar1", "liar0"}


# -- what a node says that has some pieces -----------------------------------------------------------


def test_a_map_has_a_bit_for_each_piece(tmp_path: Path) -> None:
    pieces = [Piece("file", number * PIECE, PIECE, b"") for number in range(11)]
    held = bytearray(map_bytes(len(pieces)))
    some = Listed(b"listing", pieces, tmp_path, held)
    for part in (1, 8, 11):
        add_piece(held, part)
    assert held == b"\x81\x20"
    assert [part for part in range(1, 12) if has_piece(held, part)] == [1, 8, 11]
    sizes = [some.size(part) for part in range(14)]
    assert sizes == [7, PIECE, *[0] * 6, PIECE, 0, 0, PIECE, 2, 0]
    assert some.read(12, 1, 9) == b"\x20"
    whole = some._replace(held=None)
    assert [whole.size(part) for part in (0, 1, 2, 11, 12, 13)] == [7, *[PIECE] * 3, 0, 0]
    assert not has_piece(b"", 1)


# -- as much as the uplink carries -------------------------------------------------------------------


def part(peer: str, number: int = 1) -> Part:
    return Part(peer, b"listing", number)


def begin(line: Uplink, *peers: str, now: float = 0.0) -> list[bool]:
    """Return which of these may begin a piece now."""
    begun = []
    for peer in peers:
        begun.append(line.take(part(peer), MAX_PART_BYTES, now, ends=False))
        line.leave(part(peer), now)
    return begun


def test_no_more_is_sent_at_once_than_a_fast_uplink_needs_and_what_was_begun_goes_on() -> None:
    line = Uplink()
    assert begin(line, *"abcdef") == [True] * 4 + [False] * 2
    assert begin(line, "b", now=0.5) == [True]
    assert begin(line, "e", now=0.5) == [False]


@pytest.mark.parametrize(("rate", "at_once"), [(50_000, 1), (200_000, 2), (300_000, 3), (5_000_000, 4)])
def test_a_slow_uplink_sends_less_at_once(rate: float, at_once: int) -> None:
    line, now = Uplink(), 0.0
    for _ in range(serving.SAMPLES):
        assert begin(line, "a", now=now) == [True]
        now += MAX_PART_BYTES / rate
    line.take(part("a"), 1, now, ends=True)  # all that it asked for has come
    line.drop(part("a"))
    assert line.speed == pytest.approx(rate)
    assert sum(begin(line, *"bcdefg", now=now)) == at_once


def test_receivers_that_fall_silent_do_not_keep_their_place() -> None:
    line = Uplink()
    begin(line, *"abcd")
    assert begin(line, "e", now=serving.IDLE) == [False]
    assert begin(line, *"efgh", now=5 * serving.IDLE) == [True] * 4


def test_the_end_of_a_piece_makes_room_when_its_receiver_asks_for_another() -> None:
    line = Uplink()
    for peer in "abcd":
        line.take(part(peer), MAX_PART_BYTES, 0.0, ends=True)
        line.leave(part(peer), 0.0)
    assert not line.take(part("e"), MAX_PART_BYTES, 0.1, ends=False)
    assert line.take(part("a", 2), MAX_PART_BYTES, 0.1, ends=False)
