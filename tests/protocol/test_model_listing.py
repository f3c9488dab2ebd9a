"""The listing of a base model has one encoding and no harmful file names (SPEC B1, B2)."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfprotocol import model_listing
from sfprotocol.errors import RemoteProtocolError
from sfprotocol.model_listing import MAX_FILES, PIECE, ListedFile
from tests.protocol.vectors.plain import load

VECTOR = load("sharing.json")
ENCODED = bytes.fromhex(VECTOR["listing"])


def test_the_vector_is_read_and_has_its_hash() -> None:
    assert model_listing.hash_listing(ENCODED).hex() == VECTOR["hash"]
    found = model_listing.decode(ENCODED)
    assert [(p.name, p.offset, p.size, p.hash.hex()) for p in found.pieces()] == [
        tuple(part.values()) for part in VECTOR["parts"]
    ]
    assert model_listing.encode(reversed(found.files)) == ENCODED
    assert found.size == sum(part["size"] for part in VECTOR["parts"])


def test_a_piece_is_hashed_as_the_vector_says() -> None:
    assert model_listing.hash_piece(b"the last piece").hex() == VECTOR["parts"][-1]["hash"]


FILES = st.dictionaries(
    st.from_regex(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,30}", fullmatch=True),
    st.integers(1, 5 * PIECE),
    min_size=1,
    max_size=5,
)


@given(FILES)
def test_every_listing_survives_its_encoding(sizes: dict[str, int]) -> None:
    files = [
        ListedFile(name, size, bytes(32 * model_listing.pieces_of(size))) for name, size in sizes.items()
    ]
    found = model_listing.decode(model_listing.encode(files))
    assert sorted(found.files) == sorted(files)
    pieces = found.pieces()
    assert sum(piece.size for piece in pieces) == found.size == sum(sizes.values())
    assert all(0 < piece.size <= PIECE for piece in pieces)


@pytest.mark.parametrize(
    "name", ["", ".hidden", "..", "a/b", "/etc/passwd", "a\\b", "a b", "a\0", "é", "a" * 201, 5, b"a", None]
)
def test_a_name_that_is_a_path_or_hides_is_refused(name: object) -> None:
    refused([[name, 1, bytes(32)]])


@pytest.mark.parametrize(
    "files",
    [
        [],
        {},
        "a",
        [["a", 1]],
        [["a", 0, bytes(32)]],
        [["a", -1, b""]],
        [["a", True, bytes(32)]],
        [["a", 1.0, bytes(32)]],
        [["a", 1 << 50, b""]],
        [["a", 1, bytes(31)]],
        [["a", 1, bytes(64)]],
        [["a", PIECE + 1, bytes(32)]],
        [["b", 1, bytes(32)], ["a", 1, bytes(32)]],
        [["a", 1, bytes(32)], ["a", 1, bytes(32)]],
        [[f"{n:04}", 1, bytes(32)] for n in range(MAX_FILES + 1)],
    ],
    ids=lambda files: str(files)[:40],
)
def test_bytes_that_are_no_listing_are_refused(files: object) -> None:
    refused(files)


def refused(files: object) -> None:
    with pytest.raises(RemoteProtocolError) as refusal:
        model_listing.decode(msgpack.packb(files, use_bin_type=True))
    assert refusal.value.rule == "B1"


def test_a_listing_has_one_encoding_only() -> None:
    with pytest.raises(RemoteProtocolError, match="B1"):
        model_listing.decode(b"\xdc\x00\x01" + msgpack.packb([["a", 1, bytes(32)]], use_bin_type=True)[1:])
    with pytest.raises(RemoteProtocolError, match="B1"):
        model_listing.decode(ENCODED + b"\0")
