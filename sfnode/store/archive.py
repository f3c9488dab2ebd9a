"""Archives: a run in one file, which can be verified without other files. It contains the run's manifest, log
and published bases, and a statement with counts and digests.

The file is a plain tar of files with these names, in this order, and nothing else; `tar` can list and extract
it. Nothing is compressed, so a small archive cannot unpack to a large folder.

    statement.json   counts and digests of the result
    manifest         canonical MessagePack (SPEC M2): the run id is its hash
    log              entries in MessagePack, each after its length (4 bytes, big-endian)
    DIGEST.bases     published bases, each file named by its digest

An archive contains nothing private to a node: no key, no address, no path. A reader trusts nothing in it. The
reader checks each header before it reads the content, and verifies the log from genesis, as `sfnode verify`
does. The result must equal the statement.
"""

from __future__ import annotations

import os
import shutil
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from io import BytesIO
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, NamedTuple

import msgpack

from sfnode.errors import Code, UserError
from sfnode.manifest import MAX_MANIFEST_BYTES, Manifest
from sfnode.models import bases
from sfnode.schema.results import ArchiveStatement, VerifyResult
from sfnode.store import segment_encoding
from sfnode.store.data_folder import Layout
from sfnode.store.disk_errors import disk_faults, sync_folder
from sfnode.store.log import CardRecord, CutRecord, Record, UpdateLog
from sfnode.store.replay import kept_control, run_state_of
from sfnode.store.verification import verify_log
from sfprotocol import seeds, wire_codec
from sfprotocol.errors import LocalProtocolError, RemoteProtocolError
from sfprotocol.events import KeepControl
from sfprotocol.host import cut_chain
from sfprotocol.messages import Card, Entry, Feed, HigherWord, Proof, RunParameters
from sfprotocol.signing import extend, genesis

FORMAT = 1
"""Version of the format."""

STATEMENT, MANIFEST, LOG = "statement.json", "manifest", "log"

BLOCK = tarfile.BLOCKSIZE
"""Size of a header, in bytes. The content of each member is padded with zeros to a multiple of this size."""

MAX_STATEMENT = 16_384
"""Maximum size of a statement, in bytes. All its fields have a bounded length."""

MAX_ENTRY = 1 << 20
"""Maximum size of an entry, in bytes: several times the size of the longest row or decision."""

BATCH = 64
"""Number of entries written to the log in one transaction. They take at most 64 MiB of memory."""

COPIED = 1 << 20
"""Number of bytes of a file that are copied at a time."""

_LENGTH = 4

_BOUNDS = {"max_array_len": 8, "max_map_len": 0, "max_ext_len": 0}


class EntryKind(IntEnum):
    """Kinds of entries in an archive's log. All entries of one kind come before those of the next kind in
    this list."""

    CONTROL = 0
    AUTHORITY = 1
    UPDATES = 2
    CUT = 3
    CARD = 4


_FIELDS = {
    EntryKind.CONTROL: 3,
    EntryKind.AUTHORITY: 1,
    EntryKind.UPDATES: 4,
    EntryKind.CUT: 3,
    EntryKind.CARD: 3,
}
"""Number of fields that follow the kind in an entry, keyed by kind."""


class Unpacked(NamedTuple):
    """The verified content of an archive, as a data folder."""

    manifest: Manifest
    statement: ArchiveStatement
    layout: Layout


# -- writing -------------------------------------------------------------------------------------------


def write(
    manifest: Manifest, update_log: UpdateLog, published: Path, out: Path, version: str
) -> ArchiveStatement:
    """Verify a log, and write the archive of its run to the new file `out`; return its statement.

    `published` is this node's folder of published bases. The archive includes those of the run's bases that
    are in the folder. Raises UserError as `verify_log`, HISTORY_GONE for a log whose beginning was pruned,
    BAD_OPTION if the file exists, DISK_FULL.
    """
    if update_log.bases():
        raise UserError(
            Code.HISTORY_GONE,
            f"{update_log.path.parent} keeps only what comes after a checkpoint, and an archive has all of "
            "a run",
            "Make it from the folder of a node that keeps all history, such as the organiser's.",
        )
    if out.exists():
        raise UserError(
            Code.BAD_OPTION, f"{out} exists already", "Name a new file, or remove that one first."
        )
    statement = _statement(verify_log(manifest, update_log), version)
    partial = out.with_name(f".{out.name}.{os.getpid()}.partial")
    with disk_faults(out):
        try:
            with partial.open("xb") as file:
                for name, content in _members(manifest, update_log, published, statement, partial):
                    _write_member(file, name, content)
                file.write(bytes(2 * BLOCK))
                file.flush()
                os.fsync(file.fileno())
            partial.replace(out)
            sync_folder(out.absolute().parent)
        finally:
            partial.unlink(missing_ok=True)
    return statement


def _statement(found: VerifyResult, version: str) -> ArchiveStatement:
    seals = found.seals
    return ArchiveStatement(
        format=FORMAT,
        version=version,
        run_id=found.run_id,
        feeds=found.feeds,
        updates=found.updates,
        decisions=seals.decisions if seals else 0,
        sealed=seals.sealed if seals else 0,
        digest=found.digest,
        core_digest=found.core_digest,
        named_digest=seals.named_digest if seals else None,
    )


def _members(
    manifest: Manifest, update_log: UpdateLog, published: Path, statement: ArchiveStatement, beside: Path
) -> Iterator[tuple[str, IO[bytes]]]:
    """Yield the name and the content of each member. The content is an open file, which is closed when the
    next member is requested.

    The log's entries are first written to a temporary file in the folder of the file `beside`, because a
    member's size comes before its content.
    """
    run = manifest.parameters()
    yield STATEMENT, BytesIO(statement.model_dump_json(indent=2).encode())
    yield MANIFEST, BytesIO(manifest.canonical())
    with TemporaryFile(dir=beside.absolute().parent) as log:
        for entry in _entries(run, update_log):
            data: bytes = msgpack.packb(entry, use_bin_type=True)
            log.write(len(data).to_bytes(_LENGTH, "big") + data)
        yield LOG, log
    for digest in _published(run, update_log):
        file = bases.path_in(published, digest)
        if file.is_file():
            bases.read(file, manifest.model.parsed_targets(), manifest.basis_columns, digest)
            with file.open("rb") as blob:
                yield file.name, blob


def _write_member(file: IO[bytes], name: str, content: IO[bytes]) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = content.seek(0, os.SEEK_END), 0o644
    file.write(info.tobuf(tarfile.USTAR_FORMAT))
    content.seek(0)
    shutil.copyfileobj(content, file, COPIED)
    file.write(bytes(-info.size % BLOCK))


def _entries(run: RunParameters, update_log: UpdateLog) -> Iterator[list[Any]]:
    """Yield the entries of an archive for a log. They contain everything in the log that other nodes may
    have."""
    kept = kept_control(update_log)
    for entry in kept.entries:
        yield [EntryKind.CONTROL, *entry]
    for message in kept.authority:
        yield [EntryKind.AUTHORITY, wire_codec.encode(message, *run.form)]
    for feed, segment, head in update_log.records():
        yield [EntryKind.UPDATES, *feed, segment.first, segment_encoding.encode(segment, head)]
    for cut in update_log.cuts():
        yield [EntryKind.CUT, *cut.feed, cut.proof]
    for feed in update_log.evicted():
        yield [EntryKind.CUT, *feed, b""]
    for card in update_log.cards():
        yield [EntryKind.CARD, *card.feed, card.frame]


def _published(run: RunParameters, update_log: UpdateLog) -> list[str]:
    """Return the digests of the bases that a run names, in hex."""
    named = run_state_of(run, update_log.control()).bases if run.organised else ()
    found = [run.bases.hex()] if run.bases else []
    return sorted({*found, *(one.digest.hex() for one in named)})


# -- reading -------------------------------------------------------------------------------------------


def unpack(archive: Path, folder: Path) -> Unpacked:
    """Unpack an archive into an empty folder, which becomes a data folder, and verify everything in the
    archive.

    The bounds on a manifest (SPEC M9) also bound the memory needed. The folder takes at most a few times the
    archive's size. The time grows with the size of the archive. Raises UserError NEWER_PROTOCOL,
    OLDER_PROTOCOL, DISK_FULL, and ARCHIVE_UNUSABLE for any other fault.
    """
    with _faults(archive), archive.open("rb") as file:
        members = _Members(file, os.fstat(file.fileno()).st_size)
        said = ArchiveStatement.model_validate_json(members.read(STATEMENT, MAX_STATEMENT), strict=True)
        if said.format != FORMAT:
            raise ValueError(f"it has format {said.format}, and this sfnode reads format {FORMAT}")
        manifest = Manifest.from_canonical(members.read(MANIFEST, MAX_MANIFEST_BYTES), str(archive))
        manifest = manifest.current(str(archive))
        run, layout = manifest.parameters(), Layout(folder)
        with UpdateLog.open(layout.log, run.run_id) as update_log:
            reader = _ArchiveReader(run, update_log)
            entries = _framed_in(members.content(LOG))
            while batch := list(islice(entries, BATCH)):
                reader.append(batch)
            _take_bases(members, manifest, _published(run, update_log), layout.bases)
            members.end()
            found = _statement(verify_log(manifest, update_log), said.version)
        if found != said:
            raise ValueError("its content does not match its statement")
        layout.manifest.write_text(manifest.to_toml(), encoding="utf-8")
        return Unpacked(manifest, said, layout)


@contextmanager
def _faults(archive: Path) -> Iterator[None]:
    """Raise UserError for every fault of an archive that causes an error in the block."""
    try:
        with disk_faults(archive):
            yield
    except UserError as error:
        if error.code in (Code.NEWER_PROTOCOL, Code.OLDER_PROTOCOL, Code.DISK_FULL):
            raise
        raise unusable(archive, error.what) from error
    except (ValueError, RecursionError, LocalProtocolError, RemoteProtocolError) as error:
        raise unusable(archive, str(error).partition("\n")[0]) from error


def unusable(archive: Path, reason: str) -> UserError:
    """Return the error for a file that is no valid archive."""
    return UserError(
        Code.ARCHIVE_UNUSABLE,
        f"{archive} is no sound archive of a run: {reason}",
        "Nothing was taken from it. Copy it again, or make another: `sfnode history archive --out FILE`.",
    )


class _Members:
    """Reader of the members of a tar file, in order. It checks each header before it reads the content."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file = file
        self._left = size
        self._next: tarfile.TarInfo | None = None

    def read(self, name: str, most: int) -> bytes:
        """Return the content of the next member, which must have this name and at most this size."""
        return b"".join(self.content(name, most))

    def content(self, name: str, most: int | None = None) -> Iterator[bytes]:
        """Yield the content of the next member, which must have this name, in parts. The caller must consume
        all parts."""
        info = self.following()
        if info is None or info.name != name:
            raise ValueError(f"{name!r} is not where it should be")
        if info.size > (self._left if most is None else min(most, self._left)):
            raise ValueError(f"{name!r} is too long")
        self._next = None
        left = info.size
        while left:
            part = self._take(min(left, COPIED))
            left -= len(part)
            yield part
        self._take(-info.size % BLOCK)

    def following(self) -> tarfile.TarInfo | None:
        """Return the header of the next member, which must be a plain file; None at the end of the
        archive."""
        if self._next is None:
            block = self._take(BLOCK)
            if not any(block):
                return None
            try:
                info = tarfile.TarInfo.frombuf(block, "ascii", "strict")
            except (tarfile.HeaderError, UnicodeDecodeError) as error:
                raise ValueError("it is not a tar of sfnode") from error
            if info.type != tarfile.REGTYPE or info.size < 0:
                raise ValueError(f"{info.name!r} is not a plain file")
            self._next = info
        return self._next

    def end(self) -> None:
        """Check that only zeros follow. `tar` pads the last record of a file with zeros."""
        if self._next is not None or self._left > tarfile.RECORDSIZE or any(self._take(self._left)):
            raise ValueError("something comes after its end")

    def _take(self, count: int) -> bytes:
        data = self._file.read(count)
        self._left -= len(data)
        if len(data) < count:
            raise ValueError("it ends too early")
        return data


def _framed_in(content: Iterator[bytes]) -> Iterator[list[Any]]:
    """Yield the entries of an archive's log, whose encoded bytes come in the parts `content`."""
    buffer = bytearray()
    for part in content:
        buffer += part
        place = 0
        while len(buffer) - place >= _LENGTH:
            length = int.from_bytes(buffer[place : place + _LENGTH], "big")
            if length > MAX_ENTRY:
                raise ValueError("an entry of its log is too long")
            if len(buffer) - place - _LENGTH < length:
                break
            place += _LENGTH + length
            entry = msgpack.unpackb(
                bytes(buffer[place - length : place]), raw=False, use_list=True, **_BOUNDS
            )
            if not (isinstance(entry, list) and len(entry) > 1):
                raise ValueError("an entry of its log is no list of a kind and its fields")
            yield entry
        del buffer[:place]
    if buffer:
        raise ValueError("its log ends within an entry")


class _ArchiveReader:
    """Writes the entries of an archive to a log, in order. It recomputes chain heads and other values that
    follow from updates, and does not trust those in the archive."""

    def __init__(self, run: RunParameters, update_log: UpdateLog) -> None:
        self._run = run
        self._log = update_log
        self._kind = 0
        self._decisions = 0
        self._feed: Feed | None = None
        """Feed of the last row that was read. `_chain` is the chain head after this row."""
        self._chain = b""

    def append(self, entries: Iterable[list[Any]]) -> None:
        """Append entries in order. Consecutive entries of one kind are written together. Raises ValueError or
        an error of the protocol if an entry is invalid."""
        for kind, group in groupby(entries, key=itemgetter(0)):
            fields = [entry[1:] for entry in group]
            count = _FIELDS.get(kind) if type(kind) is int else None  # type: ignore[call-overload]
            if any(len(some) != count for some in fields):
                raise ValueError("an entry of its log is of an unknown kind, or lacks fields")
            if kind < self._kind:
                raise ValueError("the entries of its log are not in order")
            self._kind = kind
            self._write(EntryKind(kind), fields)

    def _write(self, kind: EntryKind, entries: Sequence[Sequence[Any]]) -> None:
        match kind:
            case EntryKind.CONTROL:
                decided = tuple(_entry(*fields) for fields in entries)
                self._log.append([], control=[KeepControl(self._decisions, decided)])
                self._decisions += len(decided)
            case EntryKind.AUTHORITY:
                said = [self._message(HigherWord, *fields)[1] for fields in entries]
                self._log.append([], authority=said)
            case EntryKind.UPDATES:
                self._log.append([self._row(*fields) for fields in entries])
            case EntryKind.CUT:
                self._log.append([], [self._cut(*fields) for fields in entries])
            case EntryKind.CARD:
                self._log.append([], cards=[self._card(*fields) for fields in entries])

    def _row(self, origin: Any, incarnation: Any, first: Any, body: Any) -> Record:
        """Return the decoded row. Raises ValueError if its chain head differs from the recomputed one."""
        feed, first = _feed(origin, incarnation), _number(first)
        if feed != self._feed:
            self._feed, self._chain = feed, genesis(self._run.run_id, feed)
        key = seeds.feed_key(self._run.run_id, *feed)
        row = segment_encoding.decode(feed, key, first, _bytes(body))
        self._chain = extend(self._chain, row.segment.parts)
        if not row.segment.count or row.chain != self._chain:
            raise ValueError(f"the chain of a feed breaks at step {first}")
        return row

    def _cut(self, origin: Any, incarnation: Any, frame: Any) -> CutRecord:
        feed = _feed(origin, incarnation)
        if frame == b"":
            return CutRecord(feed, 0, genesis(self._run.run_id, feed), b"")
        proof, frame = self._message(Proof, frame)
        if proof.feed != feed:
            raise ValueError("a proof of a fork is of another feed")
        return CutRecord(feed, proof.cut, cut_chain(self._run, proof), frame)

    def _card(self, origin: Any, incarnation: Any, frame: Any) -> CardRecord:
        feed = _feed(origin, incarnation)
        card, frame = self._message(Card, frame)
        if card.feed != feed or not self._log.stop(feed):
            raise ValueError("a card is of a feed without updates")
        return CardRecord(feed, frame)

    def _message(self, kind: Any, frame: Any) -> tuple[Any, bytes]:
        message = wire_codec.decode(_bytes(frame), *self._run.form)
        if not isinstance(message, kind):
            raise ValueError("a message of its log is of another kind")
        return message, frame


def _entry(term: Any, record: Any, signature: Any) -> Entry:
    return Entry(_number(term), _bytes(record), _bytes(signature))


def _feed(origin: Any, incarnation: Any) -> Feed:
    return Feed(_bytes(origin, 32), _number(incarnation))


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 32:
        raise ValueError("a number of its log is out of range")
    return value


def _bytes(value: Any, length: int | None = None) -> bytes:
    if not isinstance(value, bytes) or length not in (None, len(value)):
        raise ValueError("an entry of its log has a wrong number of bytes, or none")
    return value


def _take_bases(members: _Members, manifest: Manifest, named: list[str], folder: Path) -> None:
    """Check the remaining members of an archive, and write them to a folder. They must be the published bases
    with the digests `named`."""
    targets, columns = manifest.model.parsed_targets(), manifest.basis_columns
    allowed = {bases.path_in(folder, digest): digest for digest in named}
    while info := members.following():
        digest = allowed.pop(folder / info.name, None) if info.name == Path(info.name).name else None
        if digest is None:
            raise ValueError(f"{info.name!r} does not belong to the run")
        folder.mkdir(exist_ok=True)
        file = bases.path_in(folder, digest)
        with file.open("xb") as out:
            for part in members.content(info.name, bases.size_of(targets, columns)):
                out.write(part)
        bases.read(file, targets, columns, digest)
