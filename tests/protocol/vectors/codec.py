"""The contents of codec.json: messages of every type, small and at their limits, and invalid bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sfprotocol import messages, wire_codec
from sfprotocol.decisions import Part
from tests.protocol.vectors.plain import packed, plain

RUN_ID = bytes(range(32))
ORIGINS = (b"\x01" * 32, b"\xfe" * 32)
MEASURED = (Part(0, 300, 41_250_000, 5_250), Part(2**31 - 1, 1, -(2**63), -1_000))
PARTS = (
    messages.EpochScalars(0, (5, -7, 32767)),
    messages.EpochScalars(1, (0, -32767)),
    messages.EpochScalars(9, (1,)),
)


def valid_messages() -> list[tuple[str, messages.Message, int]]:
    """Return messages of every type, small and at their limits, with the width of scalars."""
    key, signature = 2**64 - 1, bytes(range(64))
    feeds = sorted(messages.Feed(origin, number) for origin in ORIGINS for number in (0, 300))
    entries = tuple(messages.Position(feed, 2**32 - 1 - index) for index, feed in enumerate(feeds))
    claims = tuple(messages.Claim(*entry, bytes([index] * 4)) for index, entry in enumerate(entries))
    branches = (messages.Branch(PARTS, signature), messages.Branch(PARTS[1:], signature[::-1]))
    return [
        ("hello of a trainer", messages.Hello(1, RUN_ID, 0, 0), 2),
        ("hello of a relay that knows much", messages.Hello(2**32 - 1, RUN_ID, 1, 2**64 - 1), 2),
        ("segment of one update", messages.Segment(0, 0, (messages.EpochScalars(0, (0,)),), signature), 2),
        (
            "segment at the limits",
            messages.Segment(key, 2**32 - 2, (messages.EpochScalars(65535, (-32768,)),), signature, 255),
            2,
        ),
        ("segment over three epochs", messages.Segment(key, 127, PARTS, signature, 15), 2),
        (
            "segment of 8-bit scalars",
            messages.Segment(key, 128, (messages.EpochScalars(200, (-128, 0, 127)),), signature),
            1,
        ),
        ("empty summary", messages.Summary(False, 0, bytes(32), ()), 2),
        ("page of a summary", messages.Summary(True, 2**32, RUN_ID, claims), 2),
        (
            "summary that teaches a name",
            messages.Summary(False, 128, RUN_ID, (messages.Claim(feeds[0], 0, bytes(4)),)),
            2,
        ),
        ("want", messages.Want(entries[:2]), 2),
        ("want of nothing", messages.Want(()), 2),
        (
            "have",
            messages.Have((messages.Ahead(0, 1), messages.Ahead(300, 2**32 - 1), messages.Ahead(key, 128))),
            2,
        ),
        ("prune", messages.Prune((0, 2**32, key)), 2),
        ("proof of a fork", messages.Proof(feeds[1], 3, (RUN_ID, RUN_ID), branches), 2),
        (
            "proof of two histories with nothing in common",
            messages.Proof(
                feeds[2], 2**32 - 1, (RUN_ID, bytes(32)), (branches[0], messages.Branch((), signature))
            ),
            2,
        ),
        ("manifest request", messages.ManifestRequest(), 2),
        ("manifest reply", messages.ManifestReply(b"\x80"), 2),
        ("part request", messages.PartRequest(RUN_ID, 0, 0, 1), 2),
        ("part request at the limits", messages.PartRequest(RUN_ID, 2**32 - 1, 2**32 - 1, 192 * 1024), 2),
        ("part reply", messages.PartReply(300, b"part"), 2),
        ("part reply: not now", messages.PartReply(1 << 20, b""), 2),
        ("part reply: not here", messages.PartReply(0, b""), 2),
        ("card", messages.Card(feeds[1], 1, "Ann", "Zürich 東", signature), 2),
        ("card without names", messages.Card(feeds[2], 2**32 - 1, "", "", signature), 2),
        ("goodbye", messages.Goodbye("another run"), 2),
        ("goodbye without a reason", messages.Goodbye(""), 2),
        ("control head", messages.ControlHead(1, 2**32 - 1, RUN_ID), 2),
        ("control want", messages.ControlWant(70000), 2),
        (
            "two decisions",
            messages.Control(
                127, (messages.Entry(0, b"\x92\x12\x90", signature), messages.Entry(1, b"", signature))
            ),
            2,
        ),
        ("no decisions", messages.Control(0, ()), 2),
        (
            "succession",
            messages.Succession(
                1, 300, RUN_ID, ORIGINS[0], (messages.Vote(0, signature), messages.Vote(63, signature))
            ),
            2,
        ),
        ("fork of the control feed", messages.ControlFork(0, 5, ORIGINS, (signature, signature[::-1])), 2),
        ("petition with work", messages.JoinRequest(ORIGINS[0], 2**64 - 1, 0, b"", signature), 2),
        ("petition with an invitation", messages.JoinRequest(ORIGINS[1], 0, 3, signature, signature), 2),
        ("offer", messages.Offer(ORIGINS[0], RUN_ID, (signature, signature[::-1])), 2),
        ("statement", _said(signature), 2),
        (
            "statement of an organiser",
            replace(_said(signature), entries=(messages.Entry(5, b"\x92\x12\x90", signature),)),
            2,
        ),
        (
            "votes for two",
            messages.DoubleVote(
                (_said(signature), replace(_said(signature), candidate=RUN_ID)), (RUN_ID, bytes(32))
            ),
            2,
        ),
        ("floor", messages.Floor(1001), 2),
        ("commitment", messages.Commitment(65_535, ORIGINS[0], RUN_ID, signature), 2),
        ("finding", messages.Finding(3, ORIGINS[1], 2**64 - 1, 64, MEASURED), 2),
        ("finding about nothing", messages.Finding(0, ORIGINS[0], 0, 2**32 - 1, ()), 2),
    ]


def _said(signature: bytes) -> messages.Statement:
    return messages.Statement(
        ORIGINS[0], 2**64 - 1, 5, 5, ORIGINS[1], signature, 3, 4, 5, RUN_ID, 70000, True, (), signature
    )


def bad_encodings() -> list[tuple[str, str, bytes]]:
    """Return bytes that a node whose run has 16-bit scalars must refuse, with the reasons."""
    return [*_bad_shapes(), *_bad_forms(), *_bad_fields(), *_bad_segments(), *_bad_entries()]


def _bad_shapes() -> list[tuple[str, str, bytes]]:
    return [
        ("no bytes", "C2", b""),
        ("a truncated message", "C2", packed(6, "bye")[:-1]),
        ("a byte after the message", "C2", packed(4) + b"\x00"),
        ("a map", "C2", b"\x81\x00\x04"),
        ("an extension type", "C2", b"\x91\xd4\x01\x00"),
        ("text that is not UTF-8", "C2", b"\x92\x06\xa1\xff"),
        ("an array that announces more elements than allowed", "C2", b"\xdc\x10\x01"),
        ("an integer alone", "C3", b"\x04"),
        ("nil", "C3", b"\xc0"),
        ("an empty array", "C3", b"\x90"),
        ("an unknown type", "C3", packed(127)),
        ("a type alone that has fields", "C3", packed(13)),
        ("a boolean as type", "C3", packed(True, 1, RUN_ID, 0, 0)),
        ("a float as type", "C3", packed(4.0)),
        ("a field too many", "C3", packed(4, 0)),
        ("a field too few", "C3", packed(0, 1, RUN_ID, 0)),
    ]


def _bad_forms() -> list[tuple[str, str, bytes]]:
    return [
        ("a type in two bytes", "C4", b"\x91\xcc\x04"),
        ("an integer in two bytes that fits one", "C4", b"\x95\x00\xcc\x01\xc4\x20" + RUN_ID + b"\x00\x00"),
        ("an integer in signed form", "C4", b"\x95\x00\xd0\x01\xc4\x20" + RUN_ID + b"\x00\x00"),
        ("an array header of three bytes", "C4", b"\xdc\x00\x01\x04"),
        ("a bin header of three bytes", "C4", b"\x95\x00\x01\xc5\x00\x20" + RUN_ID + b"\x00\x00"),
        ("a str header of two bytes", "C4", b"\x92\x06\xd9\x01a"),
    ]


def _bad_fields() -> list[tuple[str, str, bytes]]:
    return [
        ("a version as float", "C5", packed(0, 1.0, RUN_ID, 0, 0)),
        ("a version as boolean", "C5", packed(0, True, RUN_ID, 0, 0)),
        ("nil as version", "C5", packed(0, None, RUN_ID, 0, 0)),
        ("a negative version", "C5", packed(0, -1, RUN_ID, 0, 0)),
        ("a version beyond 32 bits", "C5", packed(0, 2**32, RUN_ID, 0, 0)),
        ("a run id of 31 bytes", "C5", packed(0, 1, RUN_ID[1:], 0, 0)),
        ("a run id as text", "C5", packed(0, 1, "a" * 32, 0, 0)),
        ("a role beyond 8 bits", "C5", packed(0, 1, RUN_ID, 256, 0)),
        ("an integer as more", "C5", packed(2, 0, 0, RUN_ID, [])),
        ("a manifest as text", "C5", packed(5, "manifest")),
        ("a request for no bytes", "C5", packed(10, RUN_ID, 0, 0, 0)),
        ("a request for too many bytes", "C5", packed(10, RUN_ID, 0, 0, 192 * 1024 + 1)),
        ("a request for a part beyond 32 bits", "C5", packed(10, RUN_ID, 2**32, 0, 1)),
        ("a request by a listing of 31 bytes", "C5", packed(10, RUN_ID[1:], 0, 0, 1)),
        ("more bytes than the part has", "C5", packed(11, 3, b"part")),
        ("the bytes of a part as text", "C5", packed(11, 4, "part")),
        ("a reason of 201 bytes", "C5", packed(6, "é" * 100 + "a")),
        ("a reason as bytes", "C5", packed(6, b"bye")),
        ("a name of 33 bytes", "K2", _card("a" * 33)),
        ("a name that ends with a space", "K2", _card("Ann ")),
        ("a name that turns the direction of writing", "K2", _card("Ann\u202ennA")),
        ("a name with an escape sequence", "K2", _card("\x1b[2J")),
        ("a name as bytes", "K2", _card(b"Ann")),
    ]


def _card(name: Any) -> bytes:
    return packed(12, bytes(32), 0, 1, name, "", bytes(64))


def _bad_segments() -> list[tuple[str, str, bytes]]:
    def segment(parts: Any, signature: bytes = bytes(64), hops: int = 0, first: int = 0) -> bytes:
        return packed(1, hops, 0, first, parts, signature)

    return [
        ("hops beyond 8 bits", "C5", segment([[0, b"ab"]], hops=256)),
        ("a first step beyond 32 bits", "C5", segment([[0, b"ab"]], first=2**32)),
        ("a signature of 63 bytes", "C5", segment([[0, b"ab"]], signature=bytes(63))),
        ("a part of three fields", "C5", segment([[0, b"ab", 0]])),
        ("an epoch beyond 32 bits", "C5", segment([[2**32, b"ab"]])),
        ("scalars of odd length", "C6", segment([[0, b"abc"]])),
        ("scalars as text", "C6", segment([[0, "ab"]])),
        ("a part without scalars", "C6", segment([[0, b""]])),
        ("no parts", "C7", segment([])),
        ("equal epochs", "C7", segment([[3, b"ab"], [3, b"ab"]])),
        ("descending epochs", "C7", segment([[3, b"ab"], [2, b"ab"]])),
    ]


def _bad_entries() -> list[tuple[str, str, bytes]]:
    low, high = [bytes(32), 0, 1], [bytes(32), 1, 1]
    low_part = [0, 1, 1, 1]
    return [
        ("an entry of two fields", "C5", packed(3, [[bytes(32), 0]])),
        ("an origin of 33 bytes", "C5", packed(3, [[bytes(33), 0, 1]])),
        ("an incarnation beyond 32 bits", "C5", packed(3, [[bytes(32), 2**32, 1]])),
        ("entries that descend", "C8", packed(3, [high, low])),
        ("one feed twice", "C8", packed(2, False, 0, RUN_ID, [[*low, bytes(4)], [*low, bytes(4)]])),
        ("a tag of three bytes", "C5", packed(2, False, 0, RUN_ID, [[*low, bytes(3)]])),
        ("a claim without a tag", "C5", packed(2, False, 0, RUN_ID, [low])),
        ("announcements that descend", "C8", packed(7, [[2, 1], [1, 1]])),
        ("an announcement with a negative key", "C5", packed(7, [[-1, 1]])),
        ("one feed pruned twice", "C8", packed(8, [5, 5])),
        (
            "a proof with nil for parts",
            "C5",
            packed(9, bytes(32), 0, 0, RUN_ID, RUN_ID, [[None, bytes(64)], [[], bytes(64)]]),
        ),
        ("one feed measured twice", "C8", _finding([low_part, low_part])),
        ("a worth of 65 bits", "C5", _finding([[0, 1, 2**63, 0]])),
        ("a score that is a fraction", "C5", _finding([[0, 1, 0, 0.5]])),
        ("a finding about an epoch of 33 bits", "C5", _finding([], epoch=2**32)),
        ("a proof with one branch", "C5", packed(9, bytes(32), 0, 0, RUN_ID, RUN_ID, [[[], bytes(64)]])),
    ]


def _finding(parts: Any, epoch: int = 0) -> bytes:
    return packed(21, epoch, bytes(32), 0, 64, parts)


def vectors() -> dict[str, Any]:
    valid: list[dict[str, Any]] = []
    for name, message, scalar_bytes in valid_messages():
        encoding = wire_codec.encode(message, scalar_bytes).hex()
        valid.append(
            {"name": name, "scalar_bytes": scalar_bytes, "message": plain(message), "encoding": encoding}
        )
    invalid = [
        {"name": name, "rule": rule, "encoding": encoding.hex()} for name, rule, encoding in bad_encodings()
    ]
    return {"valid": valid, "invalid": invalid}
