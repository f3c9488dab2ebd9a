"""Tests of archives: a run in one file that is verified whoever has had it."""

from __future__ import annotations

import hashlib
import io
import struct
import tarfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import msgpack
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from sfnode.errors import Code, UserError
from sfnode.schema.results import ArchiveStatement
from sfnode.store import archive
from sfnode.store.log import UpdateLog
from sfnode.store.verification import verify_log
from tests.node.helpers import manifest, record
from tests.refusals import fails_with
from tests.store.folders import Folder, organised

RUN = organised(manifest("archived", update_budget=1000, scalar_limit=1000))


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    with Folder(tmp_path / "a", RUN, "a", organises=True) as made:
        made.admit("a")
        made.make(5)
        made.close()
        made.seal()
        made.make(3)
        yield made


def archived(folder: Folder, file: Path) -> ArchiveStatement:
    return archive.write(folder.manifest, folder.log, folder.layout.bases, file, "0")


@pytest.fixture
def file(folder: Folder, tmp_path: Path) -> Path:
    archived(folder, tmp_path / "run.sfnode")
    return tmp_path / "run.sfnode"


def unpack(file: Path, folder: Path) -> archive.Unpacked:
    folder.mkdir()
    return archive.unpack(file, folder)


def test_an_archive_has_everything_and_says_what_it_comes_to(folder: Folder, tmp_path: Path) -> None:
    said = archived(folder, tmp_path / "run.sfnode")
    assert (said.updates, said.feeds, said.decisions, said.sealed) == (8, 1, 3, 1)
    assert said.digest == folder.digest
    found = unpack(tmp_path / "run.sfnode", tmp_path / "there")
    assert (found.manifest, found.statement) == (RUN, said)
    with UpdateLog.open(found.layout.log, RUN.run_id, read_only=True) as log:
        assert verify_log(RUN, log) == verify_log(RUN, folder.log)


def test_any_tar_can_list_it_and_no_key_is_in_it(folder: Folder, tmp_path: Path) -> None:
    (folder.path / "identity.pem").write_text("secret")
    archived(folder, tmp_path / "run.sfnode")
    with tarfile.open(tmp_path / "run.sfnode") as tar:
        assert tar.getnames() == [archive.STATEMENT, archive.MANIFEST, archive.LOG]
    assert b"secret" not in (tmp_path / "run.sfnode").read_bytes()


def test_the_signed_decisions_are_read_by_what_the_text_says_alone(file: Path) -> None:
    """The test reads the file by SPEC X1 to X3 alone, without the code that wrote it."""
    with tarfile.open(file) as tar:
        manifest_, log = (tar.extractfile(name).read() for name in ("manifest", "log"))  # type: ignore[union-attr]
    entries = []
    while log:
        length = int.from_bytes(log[:4], "big")
        entries.append(msgpack.unpackb(log[4 : 4 + length]))
        log = log[4 + length :]
    run_id = hashlib.blake2b(manifest_, digest_size=32, person=b"sfnode-manifest").digest()
    organiser = Ed25519PublicKey.from_public_bytes(
        bytes.fromhex(msgpack.unpackb(manifest_)["organised"]["organiser"])
    )
    chain = hashlib.blake2b(run_id, digest_size=32, person=b"sfnode-control").digest()
    decisions = [entry[1:] for entry in entries if entry[0] == 0]
    for position, (term, record_, signature) in enumerate(decisions):
        said = term.to_bytes(4, "big")
        chain = hashlib.blake2b(chain + said + record_, digest_size=32, person=b"sfnode-control").digest()
        stop = (position + 1).to_bytes(8, "big")
        organiser.verify(
            signature, b"sfnode-decision" + run_id + said + stop + chain
        )  # raises if it is wrong
    assert [msgpack.unpackb(record_)[0] for _, record_, _ in decisions] == [6, 0, 2]  # admit, close, seal
    scalars = []
    for _, _, _, _, body in (entry for entry in entries if entry[0] == 2):
        check, _, _, width, parts = struct.unpack_from("<I64s32sBI", body)
        assert check == zlib.crc32(body[4:])
        counts = [struct.unpack_from("<II", body, 105 + 8 * part)[1] for part in range(parts)]
        scalars += struct.unpack_from(f">{sum(counts)}{' bh'[width]}", body, 105 + 8 * parts)
    assert scalars == [7] * 8


def test_an_open_run_is_archived_as_well(tmp_path: Path) -> None:
    run = manifest("open", update_budget=1000, scalar_limit=1000)
    with Folder(tmp_path / "b", run) as made:
        made.log.append([record(run, "a", [1, 2, 3]), record(run, "b", [4] * 50)])
        said = archived(made, tmp_path / "run.sfnode")
    assert (said.updates, said.decisions, said.named_digest) == (53, 0, None)
    assert unpack(tmp_path / "run.sfnode", tmp_path / "there").statement == said


def test_a_file_that_exists_is_not_overwritten(folder: Folder, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("mine")
    with fails_with(Code.BAD_OPTION):
        archived(folder, tmp_path / "taken")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "taken"]


# -- hostile files -------------------------------------------------------------------------------------


def members(file: Path) -> list[tuple[tarfile.TarInfo, bytes]]:
    with tarfile.open(file) as tar:
        return [(info, tar.extractfile(info).read()) for info in tar]  # type: ignore[union-attr]


def rewritten(file: Path, change: Callable[[list[tuple[tarfile.TarInfo, bytes]]], None]) -> None:
    content = members(file)
    change(content)
    with tarfile.open(file, "w", format=tarfile.USTAR_FORMAT) as tar:
        for info, data in content:
            info.size = len(data) if info.isreg() else 0
            tar.addfile(info, io.BytesIO(data))


def renamed(content: list[tuple[tarfile.TarInfo, bytes]], name: str) -> None:
    content.append((tarfile.TarInfo(name), b"data"))


def as_link(content: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    link = tarfile.TarInfo(archive.LOG)
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    content[2] = (link, b"")


def replace(
    number: int, before: bytes, after: bytes
) -> Callable[[list[tuple[tarfile.TarInfo, bytes]]], None]:
    def change(content: list[tuple[tarfile.TarInfo, bytes]]) -> None:
        info, data = content[number]
        assert before in data
        content[number] = (info, data.replace(before, after))

    return change


def without_its_end(content: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    """Return the entries without the last one."""
    info, data = content[2]
    starts, place = [0], 0
    while place < len(data):
        place += 4 + int.from_bytes(data[place : place + 4], "big")
        starts.append(place)
    content[2] = (info, data[: starts[-2]])


LARGE = RUN.model_copy(
    update={
        "model": RUN.model.model_copy(update={"targets": tuple(f"t{n}:1024x1024" for n in range(4096))}),
        "training": RUN.training.model_copy(update={"rank": 1024}),
    }
).canonical()
"""Change to a manifest with 4,096 matrices at rank 1,024."""

Change = Callable[[list[tuple[tarfile.TarInfo, bytes]]], None]

OUT_OF_PLACE, NOT_OF_THE_RUN = "is not where it should be", "does not belong to the run"
OTHERWISE = "does not match its statement"

HOSTILE: dict[str, tuple[Change, str]] = {
    "a path out of the folder": (lambda content: renamed(content, "../../evil"), NOT_OF_THE_RUN),
    "an absolute path": (lambda content: renamed(content, "/tmp/evil"), NOT_OF_THE_RUN),
    "a file that does not belong to it": (lambda content: renamed(content, "identity.pem"), NOT_OF_THE_RUN),
    "unknown bases": (lambda content: renamed(content, f"{'0' * 64}.bases"), NOT_OF_THE_RUN),
    "a link": (as_link, "is not a plain file"),
    "another order": (lambda content: content.reverse(), OUT_OF_PLACE),
    "one file less": (lambda content: content.__delitem__(2), OUT_OF_PLACE),
    "another digest": (replace(0, b'"digest": "', b'"digest": "0'), OTHERWISE),
    "another number of updates": (replace(0, b'"updates": 8', b'"updates": 9'), OTHERWISE),
    "a later format": (replace(0, b'"format": 1', b'"format": 2'), "this sfnode reads format 1"),
    "a statement that is none": (replace(0, b"{", b"["), "Invalid JSON|validation error"),
    "a core of 34 GB": (lambda content: content.__setitem__(1, (content[1][0], LARGE)), "134 MB is the most"),
    "another run": (replace(1, b"archived", b"archivee"), "the chain of a feed breaks"),
    "an update less": (without_its_end, OTHERWISE),
    "an entry that is none": (
        lambda content: content.__setitem__(2, (content[2][0], b"\0\0\0\x02\x91\x00")),
        "an entry of its log|ends within",
    ),
    "an entry that is too long": (
        lambda content: content.__setitem__(2, (content[2][0], b"\xff\0\0\0" + bytes(99))),
        "too long",
    ),
}


@pytest.mark.parametrize(("change", "why"), HOSTILE.values(), ids=HOSTILE)
def test_what_was_tampered_with_is_refused(change: Change, why: str, file: Path, tmp_path: Path) -> None:
    rewritten(file, lambda content: None)
    unpack(file, tmp_path / "sound")
    rewritten(file, change)
    with pytest.raises(UserError, match=why) as refused:
        unpack(file, tmp_path / "there")
    assert refused.value.code is Code.ARCHIVE_UNUSABLE
    assert not Path("/tmp/evil").exists()
    assert "evil" not in [path.name for path in tmp_path.rglob("*")]


def test_what_is_not_whole_is_refused_wherever_it_ends(file: Path, tmp_path: Path) -> None:
    whole = file.read_bytes()
    for length in [0, 1, 511, 512, 513, *range(1024, len(whole) - 1024, 700), len(whole) - 1023]:
        file.write_bytes(whole[:length])
        with pytest.raises(UserError) as refused:
            unpack(file, tmp_path / f"{length}")
        assert refused.value.code is Code.ARCHIVE_UNUSABLE, length


def test_every_byte_of_the_log_matters(file: Path, tmp_path: Path) -> None:
    whole = bytearray(file.read_bytes())
    with tarfile.open(file) as tar:
        info = tar.getmember(archive.LOG)
    places = range(info.offset_data, info.offset_data + info.size, 37)
    for place in places:
        whole[place] ^= 1
        file.write_bytes(whole)
        whole[place] ^= 1
        with pytest.raises(UserError) as refused:
            unpack(file, tmp_path / f"{place}")
        assert refused.value.code is Code.ARCHIVE_UNUSABLE, place


def test_a_size_beyond_the_file_allocates_nothing(file: Path, tmp_path: Path) -> None:
    info = tarfile.TarInfo(archive.STATEMENT)
    info.size = 1 << 32
    file.write_bytes(info.tobuf(tarfile.USTAR_FORMAT) + file.read_bytes()[512:])
    with pytest.raises(UserError, match="too long"):
        unpack(file, tmp_path / "there")
