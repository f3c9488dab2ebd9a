"""The base model of one node: where it lies, how it comes from peers, and what others are given of it.

The engine's thread asks `find` for the folder and waits until there is one; the event loop fetches meanwhile
and answers others. Knows files and messages; models it leaves to the engine.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path

from sfnode.config import Manifest, NodeSettings
from sfnode.engine import folder as model_folder
from sfnode.engine.listing import list_model, read_piece
from sfnode.errors import Code, UserError
from sfnode.observe import log
from sfnode.runtime.fetching import Fetch, Progress
from sfnode.runtime.throttle import Throttle
from sfnode.store.datadir import Layout
from sfnode.store.faults import disk_faults, sync_file, sync_folder
from sfnode.transport.base import Transport
from sfprotocol.budget import Bucket
from sfprotocol.listing import Piece, decode, hash_listing
from sfprotocol.messages import PartReply, PartRequest

SHARE_BURST, SHARE_RATE = float(64 << 20), float(2 << 20)
"""Bytes of the model that a node gives to all others together, at once and a second (SPEC B6): a small model
at once, of a large one what a home line can spare."""

ANSWER_PATIENCE = 3.0
"""Seconds that an answer may wait for its turn on the uplink; then the peer is told to come again."""

NOT_HERE, NOT_NOW = PartReply(0, b""), PartReply(1, b"")


class Sharing:
    """The base model's files, for the engine of this node and for others."""

    def __init__(
        self,
        settings: NodeSettings,
        manifest: Manifest,
        layout: Layout,
        transport: Transport,
        *,
        peers: Callable[[], Sequence[str]],
        throttle: Throttle,
        clock: Callable[[], float],
    ) -> None:
        """`peers()` are full addresses of those who may have the model."""
        self._settings = settings
        self._manifest = manifest
        self._wanted = bytes.fromhex(manifest.model.listing)
        self._layout = layout
        self._transport = transport
        self._peers = peers
        self._throttle = throttle
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._folder: Path | None = None
        self._fetch: Fetch | None = None
        self._fetching: Future[None] | None = None
        self._closed = False
        self._listing = b""
        self._pieces: list[Piece] = []
        self._listed: asyncio.Task[None] | None = None
        self._bucket = Bucket(SHARE_BURST, clock())

    @property
    def gives(self) -> bool:
        """Whether this node gives the model to others."""
        chosen = self._settings.share_model
        return bool(self._wanted) and (self._settings.role == "trainer" if chosen is None else chosen)

    @property
    def progress(self) -> Progress | None:
        """How far the fetch from peers is, while there is one."""
        return self._fetch.progress if self._fetch else None

    def close(self) -> None:
        """The node stops: whoever waits for the model waits no longer."""
        self._closed = True
        for waited in (self._fetching, self._listed):
            if waited:
                waited.cancel()

    async def run(self) -> None:
        """A relay that was asked to share the model gets it, as nobody else in it does."""
        if self._settings.role == "relay" and self.gives:
            await asyncio.to_thread(self.find)

    # -- for this node -----------------------------------------------------------------------------

    def find(self) -> NodeSettings:
        """The node's settings with the folder of the base model in them; called on another thread than the
        event loop's, and waits there until the model has come from peers if it must.

        Raises UserError MODEL_*, DISK_FULL, and CancelledError when the node stops meanwhile.
        """
        if not self._wanted:
            return self._settings
        self._folder = self._here() or self._from_peers()
        return self._settings.model_copy(update={"model": self._folder})

    def _here(self) -> Path | None:
        """The model's folder if it is on this machine or the hub has it."""
        wanted = self._manifest.model
        kept = self._layout.model if self._layout.model.is_dir() else None
        override = self._settings.model or (None if Path(wanted.source).is_dir() else kept)
        try:
            return model_folder.resolve(wanted.source, wanted.revision, override)
        except UserError as error:
            if error.code != Code.MODEL_NOT_FOUND or self._settings.model or not self._peers():
                raise
            log.info("the base model is neither here nor on the hub; asking peers for it")
            return None

    def _from_peers(self) -> Path:
        self._fetching = asyncio.run_coroutine_threadsafe(self._fetch_all(), self._loop)
        if self._closed:
            self._fetching.cancel()
        self._fetching.result()
        return self._layout.model

    async def _fetch_all(self) -> None:
        partial = self._layout.partial_model
        self._fetch = Fetch(
            self._wanted,
            partial,
            ask=self._transport.request,
            peers=self._peers,
            lane=self._throttle.download,
            clock=self._clock,
        )
        encoded = await self._fetch.run(self._kept_listing() or None)
        await asyncio.to_thread(self._settle, partial, encoded)
        self._fetch = None

    def _settle(self, partial: Path, encoded: bytes) -> None:
        """Every piece is as the listing says; whether the listing is the model's shows only now."""
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
        log.info("base model: complete and as the manifest says")

    def _kept_listing(self) -> bytes:
        """The listing as an earlier start left it; its hash is its proof."""
        with suppress(OSError):
            encoded = self._layout.listing.read_bytes()
            if hash_listing(encoded) == self._wanted:
                return encoded
        return b""

    # -- for others --------------------------------------------------------------------------------

    async def answer(self, question: PartRequest) -> PartReply:
        """What this node gives of a part (SPEC B3)."""
        if self._folder is None or question.listing != self._wanted or not self.gives:
            return NOT_HERE
        if not await self._is_listed():
            return NOT_NOW
        if not self._listing or question.part > len(self._pieces):
            return NOT_HERE
        size = self._pieces[question.part - 1].size if question.part else len(self._listing)
        length = min(question.length, size - question.offset)
        if length <= 0:
            return NOT_HERE
        if not await self._may_send(length):  # what is asked for in vain costs the others nothing
            return NOT_NOW
        data = await asyncio.to_thread(self._read, self._folder, question)
        return PartReply(size, data) if data else NOT_HERE

    def _read(self, folder: Path, question: PartRequest) -> bytes:
        start, length = question.offset, question.length
        if question.part == 0:
            return self._listing[start : start + length]
        try:
            return read_piece(folder, self._pieces[question.part - 1], start, length)
        except OSError as error:
            log.warning("cannot read the base model: %s", error)
            return b""

    async def _may_send(self, length: int) -> bool:
        """Whether the budget and the limits of this node have room for an answer within a moment; then it is
        counted, before anybody else looks."""
        upload = self._throttle.upload
        if length > upload.most:
            return False
        try:
            async with asyncio.timeout(ANSWER_PATIENCE):
                await upload.spare()
        except TimeoutError:
            return False
        if not self._bucket.take(length, self._clock(), rate=SHARE_RATE, burst=SHARE_BURST):
            return False
        upload.count(length)
        return True

    async def _is_listed(self) -> bool:
        """Whether the listing is there, which takes as long as reading all of the model."""
        if self._listed is None:
            self._listed = asyncio.create_task(self._list())
        await asyncio.wait([self._listed], timeout=ANSWER_PATIENCE)
        return self._listed.done()

    async def _list(self) -> None:
        folder = self._folder
        assert folder is not None
        try:
            encoded = self._kept_listing()
            if not (encoded and _fits(folder, encoded)):
                encoded = await asyncio.to_thread(list_model, folder)
        except (OSError, UserError) as error:
            log.warning("the base model cannot be shared: %s", error)
            return
        if hash_listing(encoded) != self._wanted:
            log.info("the base model here is cut into other files than the run's; it is not shared")
            return
        with suppress(OSError):
            self._layout.listing.write_bytes(encoded)
        self._listing, self._pieces = encoded, decode(encoded).pieces()


def model_of(layout: Layout, given: Path | None) -> Path | None:
    """Where a command finds the base model of a folder's run: where it was told, or what came from peers."""
    return given or (layout.model if layout.model.is_dir() else None)


def _fits(folder: Path, listing: bytes) -> bool:
    """Whether a folder seems to be cut as this listing says. What is in its files, who gets them will see."""
    files = ((folder / file.name, file.size) for file in decode(listing).files)
    return all(path.is_file() and path.stat().st_size == size for path, size in files)


def _digest(folder: Path, names: set[str]) -> str:
    """The digest of a folder that holds these files and nothing else."""
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
        f"what the manifest lists is not the base model that it names: its digest is {found[:16]}..., "
        f"the run started from {wanted[:16]}...",
        "The manifest contradicts itself: tell whoever started the run. Or get the model and name its folder "
        "with --model.",
    )
