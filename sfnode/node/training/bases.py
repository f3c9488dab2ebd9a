"""The published bases of one node: found or downloaded, used, and given to others.

They are files in the data folder, named by their digests. The manifest and, in an organised run, the
decisions so far say which bases are wanted: those of all begun subspaces and of the next one. Bases that were
replaced before their subspace began are removed, as no update uses them. If the organiser has published
unusable bases, the node reports them and waits for another decision.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from sfnode.errors import Code, UserError
from sfnode.logging import log
from sfnode.models import bases as files
from sfnode.modelshare.listed import Listed, one_file
from sfnode.modelshare.sharing import Sharing
from sfnode.node.disk_wait import DiskWait
from sfnode.node.run_context import RunContext
from sfnode.node.training.engine_thread import EngineThread
from sfnode.printable import size_text
from sfnode.store.disk_errors import disk_faults
from sfnode.transport.base import call_off
from sfprotocol.decisions import Bases
from sfprotocol.errors import RemoteProtocolError
from sfprotocol.model_listing import Listing, decode, hash_bases
from sfprotocol.run_state import RunState

LOOKED_FOR = 64
"""Maximum number of files that are looked for at a time: those that are needed first."""

LOOK_INTERVAL = 1.0
"""Seconds between two checks of the decisions, and of the folder for files that somebody put there."""


class PublishedBases:
    """The published bases of one run in this node. `run` finds, downloads and removes them until
    cancelled."""

    def __init__(
        self, context: RunContext, sharing: Sharing, disk: DiskWait, come: Callable[[], None]
    ) -> None:
        """Bases in the folder of the manifest file are used, too. `come()` is called when this node has got
        bases that were missing."""
        manifest, settings = context.manifest, context.settings
        self._targets, self._columns = manifest.model.parsed_targets(), manifest.basis_columns
        self._machine = context.machine
        self._folder = context.data_dir.bases
        self._beside = settings.run.parent if settings.run else None
        self._is_relay = settings.role == "relay"
        self._sharing, self._disk = sharing, disk
        self._fetches = not self._is_relay or sharing.gives
        """Whether missing bases are downloaded from peers."""
        self._come = come
        self._as_of: tuple[RunState | None, int, int] | None = None
        """Run state, number of decisions and subspace from which the following attributes are derived."""
        self._published = tuple[Bases, ...]()
        self._lacked = tuple[Bases, ...]()
        """The published bases that are missing here."""
        self._removed = 0
        """Number of replaced bases that were removed."""
        self._in_engine: tuple[Bases, ...] = ()
        """Bases that were last passed to the engine; empty if all bases must be passed to it again."""
        self._here: set[bytes] = set()
        """Digests of the checked files."""
        self._refused: set[tuple[Path, int]] = set()
        """Files with wrong content, with the times of their last changes."""
        self._fetching: asyncio.Task[None] | None = None
        self._fetched = b""
        """Digest of the file under download."""
        self._failed: dict[bytes, UserError] = {}
        """Errors of the last downloads that failed, keyed by the digest of the file."""

    @property
    def size(self) -> int:
        """Size, in bytes, of the bases of one subspace."""
        return files.size_of(self._targets, self._columns)

    def lacking(self) -> list[Bases]:
        """Return the missing bases without which this node makes no updates now; an empty list for a
        relay."""
        self._follow()
        subspace = self._machine.run.subspace_of(self._machine.epoch)
        return [] if self._is_relay else [one for one in self._lacked if one.subspace <= subspace]

    def problem(self) -> UserError | None:
        """Return the error with which the last download of currently needed bases failed; None if there was
        no error."""
        return next(filter(None, (self._failed.get(one.digest) for one in self.lacking())), None)

    def tell(self, engine: EngineThread) -> None:
        """Tell the engine which bases are published, if they or their files have changed."""
        self._follow()
        if self._published is not self._in_engine:
            self._in_engine = published = self._published
            engine.call(lambda engine: engine.use_bases(published))

    async def run(self) -> None:
        """Find, download and remove bases until cancelled. Raises UserError DATA_DIR_UNUSABLE."""
        await self._disk.patiently(self._make_folder)
        try:
            while True:
                self._follow()
                await self._remove_replaced()
                for one in self._lacked[:LOOKED_FOR]:
                    await self._disk.patiently(partial(self._look_here, one))
                self._look_among_peers()
                await asyncio.sleep(LOOK_INTERVAL)
        finally:
            await self._stop_fetching()

    async def _make_folder(self) -> None:
        with disk_faults(self._folder):
            self._folder.mkdir(exist_ok=True)

    def _follow(self) -> None:
        """Find out which bases are wanted. Does nothing if there is neither a new decision nor a new
        subspace."""
        run, run_state = self._machine.run, self._machine.frontier.run_state
        subspace = run.subspace_of(self._machine.epoch)
        as_of = run_state, run_state.decisions if run_state else 0, subspace
        if as_of == self._as_of:
            return
        if self._as_of and run_state is not self._as_of[0]:
            self._removed = 0  # the log's decisions were replaced
        self._as_of = as_of
        published = run_state.bases_upto(subspace + 1) if run_state else (Bases(0, run.bases),)
        if published != self._published:
            self._published = published
            self._compare()

    def _compare(self) -> None:
        self._lacked = tuple(one for one in self._published if one.digest not in self._here)

    async def _remove_replaced(self) -> None:
        """Remove the files of bases that were replaced before any update could use them."""
        run_state = self._machine.frontier.run_state
        replaced = run_state.replaced[self._removed :] if run_state else []
        if run_state is None or not replaced:
            return
        self._removed += len(replaced)
        gone = {one.digest for one in replaced} - {one.digest for one in run_state.bases}
        if self._fetching and self._fetched in gone:
            await self._stop_fetching()
        for digest in gone:
            self._sharing.listed.pop(digest, None)
            with disk_faults(self._folder):
                await asyncio.to_thread(files.remove, self._folder, digest.hex())
        self._here -= gone
        self._compare()

    async def _look_here(self, one: Bases) -> None:
        """Use the file of these bases if it is in the data folder or beside the manifest."""
        with disk_faults(self._folder):
            listed = await asyncio.to_thread(self._local, one.digest.hex())
        if listed:
            self._here.add(one.digest)
            self._compare()
            self._failed.pop(one.digest, None)
            self._sharing.listed[one.digest] = listed
            self._in_engine = ()
            self._come()

    def _look_among_peers(self) -> None:
        """Download missing files, one at a time. Files that failed before come last.

        Raises UserError DATA_DIR_UNUSABLE.
        """
        if self._fetching:
            if not self._fetching.done():
                return
            self._fetching.result()
        possible = [one for one in self._lacked if self._may_come(one)] if self._fetches else []
        first = min(possible, key=lambda one: (one.digest in self._failed, one.subspace), default=None)
        self._fetching = (
            asyncio.create_task(self._disk.patiently(partial(self._fetch, first))) if first else None
        )
        self._fetched = first.digest if first else b""

    async def _stop_fetching(self) -> None:
        if self._fetching:
            await call_off([self._fetching])
            self._fetching = None

    def _may_come(self, one: Bases) -> bool:
        """Return whether a download is worth trying: False if the file is known to be useless
        (BASES_UNUSABLE)."""
        known = self._failed.get(one.digest)
        return known is None or known.code != Code.BASES_UNUSABLE

    def _note(self, one: Bases, error: UserError) -> None:
        """Remember why a download failed. Raises the error if the fault is on this machine."""
        if error.code == Code.MODEL_NOT_FOUND:
            error = files.missing(
                f"no peer sends the directions of training number {one.subspace}, "
                f"{one.digest.hex()[:16]}... ({size_text(self.size)}), without which nothing is computed here"
            )
        elif error.code != Code.BASES_UNUSABLE:
            raise error
        self._failed[one.digest] = error
        log.warning("%s", error.what)

    def _local(self, digest: str) -> Listed | None:
        """Return the file with this digest from the data folder or from beside the manifest, if its content
        is right; else None. Remove a wrong file from the data folder."""
        for folder in filter(None, (self._folder, self._beside)):
            with suppress(FileNotFoundError):  # another program may remove the file
                if found := self._right(files.path_in(folder, digest), digest):
                    return found
        return None

    def _right(self, file: Path, digest: str) -> Listed | None:
        """Return a file if its content is right, else None. A right file is copied into the data folder
        unless it is there already. A wrong file in the data folder is removed. Raises OSError."""
        kept = files.path_in(self._folder, digest)
        if not file.is_file() or (seen := (file, file.stat().st_mtime_ns)) in self._refused:
            return None
        try:
            files.read(file, self._targets, self._columns, digest)
            if file != kept:
                files.keep(file, self._folder, self._targets, self._columns)
            return one_file(files.listing_of(kept), kept)
        except UserError as error:
            log.warning("%s", error.what)
            self._refused.add(seen)
            if file == kept:
                file.unlink()
            return None

    async def _fetch(self, one: Bases) -> None:
        """Download a file from peers. Raises UserError DISK_FULL, DATA_DIR_UNUSABLE."""
        digest = one.digest.hex()
        try:
            await self._sharing.fetch_file(
                "bases",
                one.digest,
                files.path_in(self._folder, digest),
                what=f"directions of training {one.subspace}",
                named=hash_bases,
                checked=self._checked,
                check=partial(files.read, targets=self._targets, columns=self._columns, digest=digest),
            )
            await self._look_here(one)
        except UserError as error:
            self._note(one, error)

    def _checked(self, encoded: bytes) -> Listing:
        """Decode a listing, and return it if it lists bases for this run. Raises UserError BASES_UNUSABLE
        (SPEC B8)."""
        try:
            listing = decode(encoded)
        except RemoteProtocolError as error:
            raise files.unusable("the listing that is named", f"cannot be read: {error.reason}") from error
        if not files.is_right(listing, self._targets, self._columns):
            raise files.unusable("what is named", f"is not one file of {self.size:,} bytes")
        return listing
