"""The base model of one node: finds its folder, downloads it from peers if need be, and serves it to others.

The engine thread calls `find` and waits there until the folder is complete; the event loop downloads
meanwhile and answers other nodes. Knows files and messages; does not look into models.

What it sends is shared out fairly: for every range of addresses, and within it for every peer. Ids cost
nothing and addresses of one range little (`peers.selection`), so those who ask are first counted by range: a
stranger with a thousand ids gets what one range gets. Who asks alone gets everything.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from sfnode.errors import Code, UserError
from sfnode.logging import log
from sfnode.manifest import Manifest
from sfnode.models import files as model_folder
from sfnode.models.files import list_model, read_piece
from sfnode.modelshare.download import Givers, ModelDownload, put_in_place
from sfnode.peers.selection import address_range
from sfnode.resources.bandwidth_limits import RateLimit
from sfnode.schema.status import FetchStatus
from sfnode.settings import Settings
from sfnode.store.data_folder import Layout
from sfnode.store.disk_errors import disk_faults, sync_file, sync_folder
from sfnode.store.named_files import model_of
from sfnode.transport.base import Asker
from sfprotocol.messages import PartReply, PartRequest
from sfprotocol.model_listing import Listing, Piece, decode, hash_listing
from sfprotocol.rate_limit import Bucket

ASKING_TIME = 20.0
"""Seconds after its last request for which somebody has a share; one who waits asks again every 8 s
(`download.MAX_PAUSE`)."""

MAX_RANGES, MAX_PEERS = 256, 64
"""Most ranges, and most peers of one range, whose shares are remembered; beyond that the one that has not
asked for longest is forgotten. All together take 5 MiB."""

Kind = Literal["data", "base model", "bases"]
KINDS: tuple[Kind, ...] = ("data", "base model", "bases")
"""Kinds of files, in the order in which a node waits for them."""

T = TypeVar("T")


class _Recent(Generic[T]):
    """Those who have asked lately, the last one at the end."""

    def __init__(self, most: int, make: Callable[[], T]) -> None:
        self._most = most
        self._make = make
        self._seen: dict[str, tuple[float, T]] = {}

    def __len__(self) -> int:
        return len(self._seen)

    def get(self, name: str, now: float) -> T:
        """Return what is kept of `name`, who asks now, after forgetting those who ask no longer."""
        _, kept = self._seen.pop(name, (now, None))
        self._seen[name] = now, self._make() if kept is None else kept
        while len(self._seen) > self._most or now - next(iter(self._seen.values()))[0] > ASKING_TIME:
            del self._seen[next(iter(self._seen))]
        return self._seen[name][1]


class _Range:
    """One range of addresses: its share, and those of its peers."""

    def __init__(self) -> None:
        self.bucket = _full()
        self.peers: _Recent[Bucket] = _Recent(MAX_PEERS, _full)


def _full() -> Bucket:
    return Bucket(float("inf"), 0.0)


class Shares:
    """A token bucket for all together, and one for everybody who asks: an equal part of the whole."""

    def __init__(self) -> None:
        self._all = _full()
        self._ranges: _Recent[_Range] = _Recent(MAX_RANGES, _Range)

    def take(self, asker: Asker, tokens: float, now: float, *, rate: float, burst: float) -> bool:
        """Take `tokens` if all three buckets allow it; otherwise take nothing and return False.

        A share may go into debt by one request, so that it works however small it is. Peers without a public
        address are one range.
        """
        where = self._ranges.get(address_range(asker.address) or "", now)
        peer = where.peers.get(asker.peer, now)
        of_range = len(self._ranges)
        of_peer = of_range * len(where.peers)
        parts = (self._all, 1), (where.bucket, of_range), (peer, of_peer)
        for bucket, of in parts:
            bucket.take(0.0, now, rate=rate / of, burst=burst / of)  # what has come back since
        if self._all.level < tokens or min(where.bucket.level, peer.level) <= 0:
            return False
        for bucket, of in parts:
            bucket.spend(tokens, now, rate=rate / of, burst=burst / of)
        return True


SHARE_BURST, SHARE_RATE = float(64 << 20), float(2 << 20)
"""Bytes of the model that a node sends to all others together, at once and per second (SPEC B6): a small
model goes at once, a large one at what a home line can spare. `shares` divides them."""

ANSWER_PATIENCE = 3.0
"""Seconds that an answer may wait for its turn on the uplink; then the peer is told to ask again."""

NOT_HERE, NOT_NOW = PartReply(0, b""), PartReply(1, b"")
"""Answers without data: this node does not have the part; it has it and is too busy (SPEC B3)."""


class Listed(NamedTuple):
    """Files that others may have, piece by piece."""

    listing: bytes
    """Encoded."""
    pieces: list[Piece]
    """Pieces of files under the names that these have in `folder`."""
    folder: Path


def one_file(listing: bytes, file: Path) -> Listed:
    """Return a listed file that has a name of its own on this disk."""
    pieces = [piece._replace(name=file.name) for piece in decode(listing).pieces()]
    return Listed(listing, pieces, file.parent)


class Sharing:
    """The base model's files, for the engine of this node and for other nodes.

    Methods are called on the event loop, except `find`.
    """

    def __init__(
        self, settings: Settings, manifest: Manifest, layout: Layout, givers: Givers, upload: RateLimit
    ) -> None:
        """`upload` limits what this node sends."""
        self.givers = givers
        self._settings = settings
        self._manifest = manifest
        self._wanted = bytes.fromhex(manifest.model.listing)
        self._layout = layout
        self._upload = upload
        self._loop = asyncio.get_running_loop()
        self._folder: Path | None = None
        self._downloading: Future[None] | None = None
        self._closed = False
        self._listing_task: asyncio.Task[None] | None = None
        self._shares = Shares()
        self._downloads: dict[Kind, ModelDownload] = {}
        self.files: dict[bytes, Path] = {}
        """Files that others may have besides the model: part 0 of a listing of their own."""
        self.listed: dict[bytes, Listed] = {}
        """Files that others may have by the hash of their listing; those of the model once it is listed."""

    @property
    def gives(self) -> bool:
        """Whether this node gives others the model, published bases, and the run's data."""
        chosen = self._settings.share_model
        return self._settings.role == "trainer" if chosen is None else chosen

    @property
    def progress(self) -> FetchStatus | None:
        """Progress of the download from peers that others wait for; None while there is none."""
        kind = next((kind for kind in KINDS if kind in self._downloads), None)
        return self._downloads[kind].progress(kind) if kind else None

    def close(self) -> None:
        """Stop: nobody waits for the model any longer."""
        self._closed = True
        for waited in (self._downloading, self._listing_task):
            if waited:
                waited.cancel()

    # -- for this node -----------------------------------------------------------------------------

    @property
    def folder(self) -> Path | None:
        """The folder of the base model; None until it was found."""
        return self._folder

    def find(self) -> Settings:
        """Return the node's settings with the folder of the base model in them.

        Call it on another thread than the event loop's: it waits until the model has been downloaded, if need
        be. Raises UserError MODEL_*, DISK_FULL, and CancelledError when the node stops meanwhile.
        """
        if not self._wanted:
            return self._settings
        self._folder = self._find_local() or self._from_peers()
        return self._settings.model_copy(update={"model": self._folder})

    def _find_local(self) -> Path | None:
        """Return the model's folder if it is on this machine or the hub has it."""
        wanted = self._manifest.model
        try:
            override = model_of(self._layout, self._settings.model)
            return model_folder.resolve(wanted.source, wanted.revision, override)
        except UserError as error:
            if error.code != Code.MODEL_NOT_FOUND or self._settings.model or not self.givers.peers():
                raise
            log.info("the base model is neither here nor on the hub; asking peers for it")
            return None

    def _from_peers(self) -> Path:
        self.wait_for(self._download_all())
        return self._layout.model

    def wait_for(self, downloading: Coroutine[Any, Any, None]) -> None:
        """Download on the event loop, from another thread; one thing at a time. Raises what the download
        raises, and CancelledError when the node stops meanwhile."""
        self._downloading = asyncio.run_coroutine_threadsafe(downloading, self._loop)
        if self._closed:
            self._downloading.cancel()
        self._downloading.result()

    async def _download_all(self) -> None:
        partial = self._layout.partial_model
        listing = await asyncio.to_thread(self._stored_listing)
        encoded = await self._run("base model", ModelDownload(self._wanted, partial, self.givers), listing)
        await asyncio.to_thread(self._accept, partial, encoded)

    async def _run(self, kind: Kind, download: ModelDownload, listing: bytes | None = None) -> bytes:
        self._downloads[kind] = download
        try:
            return await download.run(listing)
        finally:
            del self._downloads[kind]

    async def fetch_file(
        self,
        kind: Kind,
        digest: bytes,
        kept: Path,
        *,
        what: str,
        named: Callable[[bytes], bytes],
        checked: Callable[[bytes], Listing],
        check: Callable[[Path], object] = lambda _: None,
    ) -> None:
        """Get the one file that a listing names from peers, to where it is kept; `check` raises UserError for
        one that is not right. For the others see `ModelDownload`, and for what is raised."""
        arriving = kept.parent / f"{digest.hex()}.partial"
        log.info("%s %s: asking peers", what, digest.hex()[:16])
        download = ModelDownload(digest, arriving, self.givers, what=what, named=named, checked=checked)
        file = decode(await self._run(kind, download)).files[0]
        await asyncio.to_thread(put_in_place, arriving, file.name, kept, check)
        log.info("%s %s: complete, and what the run names", what, digest.hex()[:16])

    def _accept(self, partial: Path, encoded: bytes) -> None:
        """Move the download to its place. Its pieces are as listed; only now it shows whether the listing is
        the model's."""
        names = {file.name for file in decode(encoded).files}
        wanted = self._manifest.model.digest
        found = _digest(partial, names)
        with disk_faults(partial):
            if found != wanted:
                shutil.rmtree(partial)
                raise _another_model(found, wanted)
            for name in names:
                sync_file(partial / name)
            self._layout.listing.write_bytes(encoded)
            shutil.rmtree(self._layout.model, ignore_errors=True)
            os.replace(partial, self._layout.model)
            sync_folder(self._layout.path)
        log.info("base model: complete, and the one that the manifest names")

    def _stored_listing(self) -> bytes | None:
        """Return the listing that an earlier start has left, if its hash is right."""
        with suppress(OSError):
            encoded = self._layout.listing.read_bytes()
            if hash_listing(encoded) == self._wanted:
                return encoded
        return None

    # -- for others --------------------------------------------------------------------------------

    async def answer(self, question: PartRequest, asker: Asker) -> PartReply:
        """Return what this node sends of a part (SPEC B3)."""
        if file := self.files.get(question.listing):
            return await self._answer_from(file, question, asker)
        if not self.gives:
            return NOT_HERE
        if self._folder and question.listing == self._wanted and not await self._is_listed():
            return NOT_NOW
        found = self.listed.get(question.listing)
        if found is None or question.part > len(found.pieces):
            return NOT_HERE
        size = found.pieces[question.part - 1].size if question.part else len(found.listing)
        length = min(question.length, size - question.offset)
        if length <= 0:
            return NOT_HERE
        if not await self._may_send(length, asker):  # a request that gets no data uses up nobody's share
            return NOT_NOW
        if question.part == 0:
            return PartReply(size, found.listing[question.offset : question.offset + length])
        data = await asyncio.to_thread(_read, found, question)
        return PartReply(size, data) if data is not None else NOT_HERE

    async def _answer_from(self, file: Path, question: PartRequest, asker: Asker) -> PartReply:
        """Return what this node sends of a file that is one part."""
        try:
            size = (await asyncio.to_thread(file.stat)).st_size
            length = min(question.length, size - question.offset)
            if question.part or length <= 0 or self._settings.share_model is False:
                return NOT_HERE
            if not await self._may_send(length, asker):
                return NOT_NOW
            return PartReply(size, await asyncio.to_thread(_read_range, file, question.offset, length))
        except OSError as error:
            log.warning("cannot read %s: %s", file, error)
            return NOT_HERE

    async def _may_send(self, length: int, asker: Asker) -> bool:
        """Return whether the rate limits have room for an answer soon; then it is counted at once."""
        if length > self._upload.largest_bulk:
            return False
        try:
            async with asyncio.timeout(ANSWER_PATIENCE):
                await self._upload.ready_for_bulk()
        except TimeoutError:
            return False
        if not self._shares.take(asker, length, self.givers.clock(), rate=SHARE_RATE, burst=SHARE_BURST):
            return False
        self._upload.count(length)
        return True

    async def _is_listed(self) -> bool:
        """Return whether the model is listed, which takes as long as reading all of it."""
        if self._listing_task is None:
            self._listing_task = asyncio.create_task(self._list())
        await asyncio.wait([self._listing_task], timeout=ANSWER_PATIENCE)
        return self._listing_task.done()

    async def _list(self) -> None:
        folder = self._folder
        assert folder is not None
        encoded = await asyncio.to_thread(self._make_listing, folder)
        if encoded is not None:
            self.listed[self._wanted] = Listed(encoded, decode(encoded).pieces(), folder)

    def _make_listing(self, folder: Path) -> bytes | None:
        """Return the encoded listing of the model in `folder`; None if it cannot be shared."""
        try:
            encoded = self._stored_listing()
            if encoded is None or not _fits(folder, encoded):
                encoded = list_model(folder)
        except (OSError, UserError) as error:
            log.warning("the base model cannot be shared: %s", error)
            return None
        if hash_listing(encoded) != self._wanted:
            log.info("the base model here is split into other files than the run's; it is not shared")
            return None
        with suppress(OSError):
            self._layout.listing.write_bytes(encoded)
        return encoded


def _read(found: Listed, question: PartRequest) -> bytes | None:
    piece = found.pieces[question.part - 1]
    try:
        return read_piece(found.folder, piece, question.offset, question.length) or None
    except OSError as error:
        log.warning("cannot read %s: %s", found.folder / piece.name, error)
        return None


def _read_range(file: Path, offset: int, length: int) -> bytes:
    with file.open("rb") as opened:
        opened.seek(offset)
        return opened.read(length)


def _fits(folder: Path, listing: bytes) -> bool:
    """Return whether a folder has the files of this listing, by name and size; receivers check the rest."""
    files = ((folder / file.name, file.size) for file in decode(listing).files)
    return all(path.is_file() and path.stat().st_size == size for path, size in files)


def _digest(folder: Path, names: set[str]) -> str:
    """Return the digest of a folder, after removing everything that is not one of these files."""
    for stray in folder.iterdir():
        if stray.name not in names:
            _remove(stray)
    return model_folder.digest(folder)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _another_model(found: str, wanted: str) -> UserError:
    return UserError(
        Code.MODEL_DIGEST,
        f"the files that the manifest lists are not the base model that it names: their fingerprint is "
        f"{found[:16]}..., the run started from {wanted[:16]}...",
        "The manifest contradicts itself: tell the person who started the run, or get the model and name its "
        "folder with --model.",
    )
