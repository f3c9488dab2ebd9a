"""Published bases as a file: size, digest and range are checked before a number of it is used."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sfnode.errors import Code
from sfnode.manifest.sections import Target
from sfnode.models import bases
from sfprotocol.model_listing import PIECE, decode
from tests.refusals import refused

TARGETS = (
    Target(name="wide", out_features=3, in_features=7),
    Target(name="vector", out_features=5, in_features=1),
)
RANK = 2


def side(rows: int, sign: int) -> bases.I8:
    return np.arange(rows * RANK, dtype=np.int8).reshape(rows, RANK) * np.int8(sign) - np.int8(3)


def pairs() -> list[tuple[bases.I8, bases.I8]]:
    return [(side(one.out_features, 1), side(one.in_features, -1)) for one in TARGETS]


def test_a_file_holds_u_and_v_of_every_target_row_by_row(tmp_path: Path) -> None:
    digest = bases.write(tmp_path / "new", pairs())
    file = bases.path_in(tmp_path / "new", digest)
    assert file.read_bytes() == b"".join(side.tobytes() for pair in pairs() for side in pair)
    assert [one.name for one in file.parent.iterdir()] == [f"{digest}.bases"]
    assert file.stat().st_size == bases.size_of(TARGETS, (RANK, RANK)) == (3 + 7 + 5 + 1) * 2
    for found, wanted in zip(bases.read(file, TARGETS, (RANK, RANK), digest), pairs(), strict=True):
        assert all(np.array_equal(*sides) for sides in zip(found, wanted, strict=True))
        assert found.largest == np.abs(wanted[0]).max() * np.abs(wanted[1]).max()


def test_the_digest_is_that_of_the_listing_by_which_pieces_are_checked(tmp_path: Path) -> None:
    large = [(np.ones((PIECE, 1), np.int8), np.ones((1, 1), np.int8))]
    target = Target(name="large", out_features=PIECE, in_features=1)
    digest = bases.write(tmp_path, large)
    listing = decode(bases.listing_of(bases.path_in(tmp_path, digest)))
    assert bases.is_right(listing, [target], (1, 1))
    assert not bases.is_right(listing, [target], (2, 2))
    assert [piece.size for piece in listing.pieces()] == [PIECE, 1]


def test_a_file_of_another_size_is_refused(tmp_path: Path) -> None:
    digest = bases.write(tmp_path, pairs())
    with refused(Code.BASES_UNUSABLE, "32 bytes"):
        bases.read(bases.path_in(tmp_path, digest), TARGETS, (4, 4), digest)


def test_a_file_with_another_digest_is_refused(tmp_path: Path) -> None:
    digest = bases.write(tmp_path, pairs())
    file = bases.path_in(tmp_path, digest)
    file.write_bytes(file.read_bytes()[:-1] + b"\1")
    with refused(Code.BASES_UNUSABLE, "digest"):
        bases.read(file, TARGETS, (RANK, RANK), digest)


def test_minus_128_is_neither_written_nor_read(tmp_path: Path) -> None:
    wrong = pairs()
    wrong[1][0][2, 1] = -128
    with refused(Code.BASES_UNUSABLE):
        bases.write(tmp_path, wrong)
    assert not list(tmp_path.iterdir())
    file = tmp_path / "by hand"
    file.write_bytes(b"".join(side.tobytes() for pair in wrong for side in pair))
    with refused(Code.BASES_UNUSABLE, "-128 for vector"):
        bases.read(file, TARGETS, (RANK, RANK), bases.digest_of(file))


def test_other_numbers_than_int8_are_not_written(tmp_path: Path) -> None:
    with refused(Code.BASES_UNUSABLE, "int8"):
        bases.write(tmp_path, [(np.ones((3, 2)), np.ones((7, 2)))])  # type: ignore[list-item]


def test_a_file_that_is_not_here_is_said_to_be_missing(tmp_path: Path) -> None:
    with refused(Code.BASES_MISSING):
        bases.read(tmp_path / "none", TARGETS, (RANK, RANK), "00" * 32)
