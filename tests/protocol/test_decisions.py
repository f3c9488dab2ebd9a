"""Decisions of an organiser and their one encoding (SPEC O2)."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import Any

import msgpack
import pytest

from sfprotocol import decisions
from sfprotocol.errors import RemoteProtocolError
from tests.protocol.vectors.organised import EXAMPLES
from tests.protocol.vectors.plain import packed

TAG, SALT, DIGEST = b"t" * decisions.TAG_BYTES, b"s" * 8, b"d" * 32

CLOSE = decisions.Close(1, SALT, (decisions.Move(0, 300, TAG), decisions.Move(64, 2, TAG, 1)))
SEAL = decisions.Seal(
    1,
    (0, 64),
    (decisions.Recount(0, 0), decisions.Recount(64, 0)),
    DIGEST,
    4096,
    (decisions.RateFrom(3, 7), decisions.RateFrom(4, 0)),
)
VOID = decisions.Void(0, 1, (0, 5))

EVERY_KIND = {msgpack.unpackb(decisions.encode(one))[0]: one for one, _ in EXAMPLES.values()}
"""A decision of each kind, from the vectors."""


def fields_of(decision: decisions.Decision) -> list[Any]:
    found: list[Any] = msgpack.unpackb(decisions.encode(decision), use_list=True)
    return found


def refused(data: bytes) -> str:
    """Return the reason why `data` is refused. As a record it changes nothing."""
    with pytest.raises(RemoteProtocolError) as refusal:
        decisions.decode(data)
    assert refusal.value.rule == "O2"
    assert not decisions.read(data).unsupported
    return refusal.value.reason


# -- one encoding ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", EVERY_KIND)
@pytest.mark.parametrize("change", ["a field more", "a field less", "no extensions"])
def test_every_kind_has_exactly_its_fields(kind: int, change: str) -> None:
    whole = fields_of(EVERY_KIND[kind])
    wrong = {
        "a field more": [*whole[:-1], 0, []],
        "a field less": [*whole[:-2], []] if len(whole) > 2 else [],
        "no extensions": whole[:-1],
    }
    refused(packed(*wrong[change]))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\xc1", "not MessagePack"),
        (decisions.encode(CLOSE) + b"\x00", "more than one value"),
        (b"\xdc\x00\x02\x12\x90", "not in canonical form"),  # the header of the array in three
        (b"\x93\x10\xcf" + (5).to_bytes(8, "big") + b"\x90", "not in canonical form"),
        (packed(), "begins with a kind"),
        (packed(b"\x12"), "unsigned"),
        (packed(True, []), "unsigned"),
        (packed(2**16, []), "unsigned"),
        (packed(18.0, []), "unsigned"),
        (b"\x12", "begins with a kind"),
        (b"\x80", "begins with a kind"),
        (b"\x92\x63\x81\x01\x01", "not MessagePack"),  # a map
        (b"\x92\x63\xd4\x01\x00", "not MessagePack"),  # an extension type of MessagePack
        (b"\x92\x63\xa1\xff", "not MessagePack"),  # no UTF-8
    ],
)
def test_what_is_refused(data: bytes, reason: str) -> None:
    assert reason in refused(data)


def other(decision: decisions.Decision, **fields: Any) -> bytes:
    """Return the encoding of a decision with other fields, valid or not."""
    changed = replace(decision, **fields)  # type: ignore[type-var]
    kind = next(kind for kind, known in EVERY_KIND.items() if type(known) is type(decision))
    values = [getattr(changed, name) for name in type(changed).__slots__]
    if isinstance(changed, decisions.Close) and isinstance(changed.moves, tuple):
        values[-1] = [move[:3] if len(move) == 4 and not move[3] else move for move in changed.moves]
    return packed(kind, *values, [])


@pytest.mark.parametrize(
    "data",
    [
        other(CLOSE, epoch=2**32),
        other(CLOSE, salt=b"s" * 7),
        other(CLOSE, salt="s" * 8),
        other(CLOSE, moves=(decisions.Move(2**31, 1, TAG),)),
        other(CLOSE, moves=(decisions.Move(0, 2**32, TAG),)),
        other(CLOSE, moves=(decisions.Move(0, 1, TAG[1:]),)),
        other(CLOSE, moves=((0, 1),)),
        other(CLOSE, moves=((0, 1, TAG, 0, 0),)),
        other(CLOSE, moves=7),
        other(SEAL, skipped=(64, 0)),
        other(SEAL, skipped=(0, 0)),
        other(SEAL, recounted=SEAL.recounted[::-1]),
        other(SEAL, recounted=SEAL.recounted[:1] * 2),
        other(SEAL, digest=DIGEST[1:]),
        other(SEAL, factor=2**16),
        other(SEAL, factor=-1),
        other(SEAL, rates=SEAL.rates[::-1]),
        other(SEAL, rates=(decisions.RateFrom(3, 2**32),)),
        other(VOID, members=(5, 0)),
        other(VOID, last=-1),
        other(EVERY_KIND[6], origin=DIGEST + b"d"),
        other(EVERY_KIND[16], updates=None),
        other(EVERY_KIND[1], text="x" * (decisions.MAX_TEXT + 1)),
        other(EVERY_KIND[1], text="東" * (decisions.MAX_TEXT // 3 + 1)),
        other(EVERY_KIND[1], text=b"bytes"),
        other(EVERY_KIND[1], text="\u202etxet"),
        other(EVERY_KIND[3], metric="m" * 65),
        other(EVERY_KIND[3], metric="a\nb"),
        other(EVERY_KIND[3], value=2**63),
        other(EVERY_KIND[3], rows=-1),
        packed(18, [[4, b""], [4, b""]]),
        packed(18, [[2**16, b""]]),
        packed(18, [[4, "text"]]),
        packed(18, [[4]]),
        packed(18, 4),
    ],
)
def test_fields_are_refused_out_of_range_or_order(data: bytes) -> None:
    refused(data)


def test_lists_ascend_strictly_recounts_by_feed_and_then_by_epoch() -> None:
    several = replace(
        SEAL, recounted=(decisions.Recount(0, 1), decisions.Recount(0, 2), decisions.Recount(1, 0))
    )
    assert decisions.decode(decisions.encode(several)).decision == several
    refused(other(SEAL, recounted=(decisions.Recount(0, 2), decisions.Recount(0, 1))))


@pytest.mark.parametrize(
    "decision",
    [
        decisions.Budget(2**32),
        decisions.Budget(2**70),
        decisions.Budget(-1),
        decisions.Announce("\ud800"),
        decisions.Announce("x" * (decisions.MAX_TEXT + 1)),
        replace(SEAL, skipped=(3, 2)),
        decisions.Unknown(4),
        decisions.Close(
            0, SALT, tuple(decisions.Move(number, 2**31, TAG) for number in range(2**16, 2**16 + 12_000))
        ),
    ],
)
def test_what_could_not_be_decoded_is_not_encoded(decision: decisions.Decision) -> None:
    with pytest.raises(RemoteProtocolError):
        decisions.encode(decision)


# -- what later versions may add ---------------------------------------------------------------------


def test_an_unknown_even_kind_leaves_the_state_unknown_and_an_odd_one_does_not() -> None:
    assert decisions.decode(packed(26, [1, "base"], [])) == decisions.Recorded(decisions.Unknown(26))
    assert decisions.decode(packed(26, [1, "base"], [])).unsupported
    assert decisions.decode(packed(65_534)).unsupported
    assert not decisions.decode(packed(13, None, 1.5)).unsupported
    assert not decisions.decode(packed(65_535)).unsupported


def test_an_unknown_kind_still_has_one_encoding() -> None:
    refused(b"\x92\xcd\x00\x14\x90")


@pytest.mark.parametrize("kind", [0, 1, 2, 3, 2**16 - 1, 2**16 - 2])
def test_extensions_of_even_kinds_leave_the_state_unknown_and_odd_ones_do_not(kind: int) -> None:
    extensions = (decisions.Extension(kind, b"data"),)
    recorded = decisions.decode(decisions.encode(SEAL, extensions))
    assert recorded == decisions.Recorded(SEAL, extensions)
    assert recorded.unsupported == (kind % 2 == 0)


def test_one_even_extension_among_odd_ones_is_enough() -> None:
    extensions = decisions.Extension(1, b""), decisions.Extension(2, b"")
    assert decisions.decode(decisions.encode(decisions.Finish(), extensions)).unsupported


def test_a_record_that_is_no_decision_changes_nothing_whatever_its_kind() -> None:
    for data in (b"", b"\xc1", packed(0), packed(2, "?"), packed(18, [], [])):
        refused(data)
        assert decisions.read(data) == decisions.Recorded(decisions.Unknown(1))


# -- bounds ------------------------------------------------------------------------------------------


def peak(data: bytes) -> int:
    """Return the peak memory, in bytes, for reading a record."""
    tracemalloc.start()
    try:
        decisions.read(data)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_decision_has_at_most_192_kib() -> None:
    within = packed(21, b"x" * (decisions.MAX_DECISION - 7))
    assert len(within) == decisions.MAX_DECISION
    assert decisions.decode(within) == decisions.Recorded(decisions.Unknown(21))
    assert "too long" in refused(within + b"x")


def test_a_close_that_moves_10000_feeds_fits() -> None:
    moves = tuple(decisions.Move(64 * number, 1000, TAG) for number in range(10_000))
    close = decisions.Close(65_535, SALT, moves)
    assert decisions.decode(decisions.encode(close)).decision == close


def test_a_list_has_at_most_16384_entries() -> None:
    most = decisions.Void(0, 0, tuple(range(decisions.MAX_MOVES)))
    assert decisions.decode(decisions.encode(most)).decision == most
    with pytest.raises(RemoteProtocolError):
        decisions.encode(decisions.Void(0, 0, (*most.members, decisions.MAX_MOVES)))


@pytest.mark.parametrize(
    "data",
    [
        b"\xdc\x40\x00" * 1000,  # arrays in arrays, each announcing 16,384 elements
        b"\xdc\x40\x00" * (decisions.MAX_DECISION // 3),
        b"\xdd\xff\xff\xff\xff",
        b"\x91" * decisions.MAX_DECISION,
        b"\x92\x14" + b"\x91" * 1500 + b"\x00",
        b"\xdc\x40\x00" + b"\xdc\x40\x00" * 10,
        b"\xc6\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
    ],
)
def test_a_record_that_announces_much_and_brings_little_costs_little(data: bytes) -> None:
    refused(data)
    assert peak(data) < 8 * len(data) + 2 * decisions.MAX_DECISION


def test_what_is_read_takes_at_most_80_times_its_length() -> None:
    moves = tuple(decisions.Move(64 * number, 1000, TAG) for number in range(10_000))
    for data in (decisions.encode(decisions.Close(1, SALT, moves)), packed(20, [[[]] * 3000] * 20)):
        assert peak(data) < 80 * len(data)


def test_deep_nesting_is_refused_or_read_and_never_fails() -> None:
    for depth in (2, 500, 511, 512, 600, 1000, 1022, 1023, 1024, 1025, 3000):
        data = b"\x92\x15" + b"\x91" * depth + b"\x00"
        assert decisions.read(data).decision in (decisions.Unknown(21), decisions.Unknown(1))
