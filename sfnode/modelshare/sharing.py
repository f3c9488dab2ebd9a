"""The base model of one node: finds its folder, downloads the model from peers if necessary, and serves it to
other nodes.

The engine thread calls `find`, which returns when the folder is complete. Meanwhile the event loop downloads
files and answers other nodes. This module knows files and messages, but not the contents of models.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from sfnode.errors import Code, UserError
from sfnode.logging import log
from sfnode.manifest import Manifest
from sfnode.models import model_files as model_folder
from sfnode.models.model_files import list_model
from sfnode.modelshare.download import Givers, ModelDownload, put_in_place
from sfnode.modelshare.listed import Listed
from sfnode.modelshare.serving import Part, Shares, Uplink
from sfnode.resources.bandwidth_limits import RateLimit
from sfnode.schema.status import FetchStatus
from sfnode.settings import Settings
from sfnode.store.data_folder import Layout
from sfnode.store.disk_errors import disk_faults, sync_file, sync_folder
from sfnode.store.named_files import model_of
from sfnode.transport.base import Asker
from sfprotocol.messages import PartReply, PartRequest
from sfprotocol.model_listing import Listing, decode, hash_listing

Kind = Literal["data", "base model", "bases"]
KINDS: tuple[Kind, ...] = ("data", "base model", "bases")
"""Kinds of files, in the order in which a node needs them."""

SHARE_BURST, SHARE_RATE = float(64 << 20), float(2 << 20)
"""Maximum bytes that a node sends to all others together: at once, and per second after that (SPEC B6). A
small model is thus sent at once, a large one at a rate that a home line can spare. `Shares` divides these
amounts among the peers that ask."""

ANSWER_PATIENCE = 3.0
"""Maximum time, in seconds, for which an answer waits until the owner's limit on sending allows it. After
that the peer must ask again."""

NOT_HERE, NOT_NOW = PartReply(0, b""), PartReply(1, b"")
"""Answers without data (SPEC B3). NOT_HERE: this node does not have the part. NOT_NOW: it has the part, but
is too busy to send it."""


class Sharing:
    """The base model and other shared files of a node, for its own engine and for other nodes.

    Methods are called on the event loop, except `find`.
    """

    def __init__(
        self, settings: Settings, manifest: Manifest, layout: Layout, givers: Givers, upload: RateLimit
    ) -> None:
        """`upload` limits the bytes that this node sends."""
        self.givers = givers
        self._settings = settings
        self._manifest = manifest
        self._wanted = bytes.fromhex(manifest.model.listing)
        self._layout = layout
        self._upload = upload
        self._loop = asyncio.get_running_loop()
        self.folder: Path | None = None
        """The folder of the base model; None until it was found."""
        self._downloading: Future[None] | None = None
        self._closed = False
        self._listing_task: asyncio.Task[None] | None = None
        self._shares, self._uplink = Shares(), Uplink()
        self._downloads: dict[Kind, ModelDownload] = {}
        self.files: dict[bytes, Path] = {}
        """Further files that this node offers to others, keyed by hash. A request for such a file has its
        hash in place of a listing's hash, and the part number 0."""
        self.listed: dict[bytes, Listed] = {}
        """Complete files that this node offers to others, keyed by the hash of their listing. The model is
        added at the first request for it."""

    @property
    def gives(self) -> bool:
        """Whether this node sends the model, published bases and the run's data to others."""
        chosen = self._settings.share_model
        return self._settings.role == "trainer" if chosen is None else chosen

    @property
    def progress(self) -> FetchStatus | None:
        """Progress of the running download that the node needs first; None without a running download."""
        kind = next((kind for kind in KINDS if kind in self._downloads), None)
        return self._downloads[kind].progress(kind) if kind else None

    def close(self) -> None:
        """Cancel the download that a thread waits for, and the task that makes the model's listing."""
        self._closed = True
        for waited in (self._downloading, self._listing_task):
            if waited:
                waited.cancel()

    # -- for this node -----------------------------------------------------------------------------

    def find(self) -> Settings:
        """Return the node's settings with the folder of the base model in them.

        Call this method on another thread than the event loop's, because it waits for a download of the
        model. Raises UserError MODEL_*, DISK_FULL, and CancelledError if the node stops meanwhile.
        """
        if not self._wanted:
            return self._settings
        self.folder = self._find_local()
        if self.folder is None:
            self.wait_for(self._download_all())
            self.folder = self._layout.model
        return self._settings.model_copy(update={"model": self.folder})

    def _find_local(self) -> Path | None:
        """Return the model's folder on this machine, after a download from the hub if necessary; None if it
        must be downloaded from peers. Raises UserError MODEL_*, DISK_FULL."""
        wanted = self._manifest.model
        try:
            override = model_of(self._layout, self._settings.model)
            return model_folder.resolve(wanted.source, wanted.revision, override)
        except UserError as error:
            if error.code != Code.MODEL_NOT_FOUND or self._settings.model or not self.givers.peers():
                raise
            log.info("the base model is neither here nor on the hub; asking peers for it")
            return None

    def wait_for(self, downloading: Coroutine[Any, Any, None]) -> None:
        """Run a download on the event loop, and wait for it on another thread. Only one thread may wait.
        Raises the errors of the download, and CancelledError if the node stops meanwhile."""
        self._downloading = asyncio.run_coroutine_threadsafe(downloading, self._loop)
        if self._closed:
            self._downloading.cancel()
        self._downloading.result()

    async def _download_all(self) -> None:
        partial = self._layout.partial_model
        listing = await asyncio.to_thread(self._stored_listing)
        download = ModelDownload(self._wanted, partial, self.givers)
        with self._shown(download, "base model"):
            encoded = await download.run(listing)
            await asyncio.to_thread(self._accept, partial, encoded)
        self.listed[self._wanted] = Listed(encoded, decode(encoded).pieces(), self._layout.model)

    @contextmanager
    def _shown(self, download: ModelDownload, kind: Kind) -> Iterator[None]:
        """During the block, show the progress of a download to the owner, and offer its pieces to others."""
        self._downloads[kind] = download
        try:
            yield
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
        """Download the single file of a listing from peers, and move it to `kept`. `check(file)` raises
        UserError if the file is wrong. For the other parameters and the errors see `ModelDownload`."""
        arriving = kept.parent / f"{digest.hex()}.partial"
        log.info("%s %s: asking peers", what, digest.hex()[:16])
        download = ModelDownload(digest, arriving, self.givers, what=what, named=named, checked=checked)
        with self._shown(download, kind):
            file = decode(await download.run()).files[0]
            await asyncio.to_thread(put_in_place, arriving, file.name, kept, check)
        log.info("%s %s: complete, and what the run names", what, digest.hex()[:16])

    def _accept(self, partial: Path, encoded: bytes) -> None:
        """Check the digest of a complete download, and move it to its place. The pieces match the listing,
        but the listing may be that of another model. In this case raises UserError MODEL_DIGEST."""
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
        """Return the encoded listing that an earlier start has stored; None if it is missing or its hash is
        wrong."""
        with suppress(OSError):
            encoded = self._layout.listing.read_bytes()
            if hash_listing(encoded) == self._wanted:
                return encoded
        return None

    # -- for others --------------------------------------------------------------------------------

    async def answer(self, question: PartRequest, asker: Asker) -> PartReply:
        """Return the reply to a request for bytes of a part (SPEC B3)."""
        if file := self.files.get(question.listing):
            return await self._answer_from(file, question, asker)
        if not self.gives:
            return NOT_HERE
        listed = question.listing in self.listed
        if self.folder and question.listing == self._wanted and not listed and not await self._is_listed():
            return NOT_NOW
        found = self.listed.get(question.listing) or self._arriving(question.listing)
        size = found.size(question.part) if found else 0
        if found is None or question.offset >= size:
            return NOT_HERE
        if not await self._may_send(question, size, asker):  # replies without data are not limited
            return NOT_NOW
        wanted = question.part, question.offset, question.length
        try:
            data = await asyncio.to_thread(found.read, *wanted)
        except OSError as error:
            # a download's files are moved once it is complete
            level = logging.WARNING if found.held is None else logging.DEBUG
            log.log(level, "cannot read part %d in %s: %s", question.part, found.folder, error)
            data = b""
        return PartReply(size, data) if data else NOT_HERE

    def _arriving(self, listing: bytes) -> Listed | None:
        """Return the files of a listing that this node is downloading; None if it is not downloading them."""
        downloads = (one for one in self._downloads.values() if one.wanted == listing)
        return next((one.listed for one in downloads), None)

    async def _answer_from(self, file: Path, question: PartRequest, asker: Asker) -> PartReply:
        """Return the reply to a request for bytes of a file that is one part."""
        try:
            size = (await asyncio.to_thread(file.stat)).st_size
            if question.part or question.offset >= size or self._settings.share_model is False:
                return NOT_HERE
            if not await self._may_send(question, size, asker):
                return NOT_NOW
            data = await asyncio.to_thread(_read_range, file, question.offset, question.length)
            return PartReply(size, data)
        except OSError as error:
            log.warning("cannot read %s: %s", file, error)
            return NOT_HERE

    async def _may_send(self, question: PartRequest, size: int, asker: Asker) -> bool:
        """Return whether the uplink and the limits allow an answer to be sent now; if so, count the answer.
        `size` is the size of the whole part, in bytes."""
        stop = min(question.offset + question.length, size)
        length, part = stop - question.offset, Part(asker.peer, question.listing, question.part)
        clock, uplink = self.givers.clock, self._uplink
        begun = uplink.is_sending(part, clock())
        if length > self._upload.largest_bulk or not uplink.take(part, length, clock(), ends=stop == size):
            return False
        allowed = await self._is_allowed() and self._shares.take(
            asker, length, clock(), rate=min(SHARE_RATE, uplink.speed), burst=SHARE_BURST, begun=begun
        )
        if not allowed:
            uplink.drop(part)
            return False
        self._upload.count(length)
        uplink.leave(part, clock())
        return True

    async def _is_allowed(self) -> bool:
        """Wait at most ANSWER_PATIENCE until the owner's limit on sending allows an answer. Return whether it
        does."""
        with suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_PATIENCE):
                await self._upload.ready_for_bulk()
                return True
        return False

    async def _is_listed(self) -> bool:
        """Return whether the model's listing is ready, after a wait of at most ANSWER_PATIENCE. Making it
        takes a while, as the whole model must be read."""
        if self._listing_task is None:
            self._listing_task = asyncio.create_task(self._list())
        await asyncio.wait([self._listing_task], timeout=ANSWER_PATIENCE)
        return self._listing_task.done()

    async def _list(self) -> None:
        folder = self.folder
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


def _read_range(file: Path, offset: int, length: int) -> bytes:
    with file.open("rb") as opened:
        opened.seek(offset)
        return opened.read(length)


def _fits(folder: Path, listing: bytes) -> bool:
    """Return whether a folder has files with the names and sizes of this listing. Hashes are left to the
    receivers to check."""
    files = ((folder / file.name, file.size) for file in decode(listing).files)
    return all(path.is_file() and path.stat().st_size == size for path, size in files)


def _digest(folder: Path, names: set[str]) -> str:
    """Remove all files from a folder except those with these `names`; return the digest of the folder."""
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
