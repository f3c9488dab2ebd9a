"""The files of a run's public data on one node: finds those that the manifest names, gets them from peers,
and gives them on.

They lie in files of the data folder that their digests name. The engine thread calls `find` and waits there,
as it does for the model. Does not read rows.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from sfnode.errors import Code, UserError
from sfnode.logging import log
from sfnode.manifest import Manifest
from sfnode.manifest.sections import DataRole
from sfnode.modelshare.download import DownloadProgress, ModelDownload, put_in_place
from sfnode.modelshare.sharing import Sharing, one_file
from sfnode.settings import Settings
from sfnode.sizes import size_text
from sfnode.store.disk_errors import disk_faults
from sfnode.tasks import public_files as files
from sfprotocol.errors import RemoteProtocolError
from sfprotocol.model_listing import MAX_DATA, Listing, decode, hash_data

NOT_OURS = frozenset({Code.DATA_NOT_FOUND, Code.DATA_DIFFERS, Code.DATA_TOO_LARGE, Code.BAD_MANIFEST})
"""Errors that are no fault of this machine: without held-out rows a node trains all the same."""


class DataShare:
    """The public data of one run, here and among peers. `find` is for another thread than the loop's."""

    def __init__(
        self,
        settings: Settings,
        manifest: Manifest,
        folder: Path,
        sharing: Sharing,
    ) -> None:
        """Files are kept in `folder`, and taken from that of the manifest that the settings name if they are
        there."""
        self._data = manifest.data
        own = settings.data is not None and not settings.organise
        self._wanted = [
            role for role in files.ROLES if role in self._data.digests and not (own and role == "train")
        ]
        self._folder = folder
        self._folders = (folder, settings.run.parent) if settings.run else (folder,)
        self._sharing = sharing
        self._download: ModelDownload | None = None

    @property
    def progress(self) -> DownloadProgress | None:
        """Progress of the download from peers; None while there is none."""
        return self._download.progress if self._download else None

    def find(self) -> None:
        """Have every file here that this node needs, and list it for others.

        Raises UserError DATA_* for training data, DISK_FULL and DATA_DIR_UNUSABLE, and CancelledError when
        the node stops meanwhile. What is wrong with other data is logged.
        """
        for role in self._wanted:
            try:
                self._find(role)
            except UserError as error:
                if role == "train" or error.code not in NOT_OURS:
                    raise
                log.warning("%s; nothing is measured on them here", error.what)

    def _find(self, role: DataRole) -> None:
        digest, kept = self._data.digests[role], files.path_in(self._folder, self._data, role)
        found = files.find(self._data, role, self._folders)
        if found is None:
            self._from_peers(role)
        elif found != kept:
            with disk_faults(self._folder):
                files.keep(found, kept, digest)
        with disk_faults(kept):
            self._sharing.listed[bytes.fromhex(digest)] = one_file(files.listing_of(kept), kept)

    def _from_peers(self, role: DataRole) -> None:
        lacking = files.missing(self._data, role, self._folders)
        if not self._sharing.givers.peers():
            raise lacking
        if lacking.code is Code.DATA_DIFFERS:
            log.warning("%s", lacking.what)
        try:
            self._sharing.wait_for(self._fetch(role))
        except UserError as error:
            if error.code is not Code.MODEL_NOT_FOUND:
                raise
            fix = f"Try again later: what has come is kept. {lacking.fix}"
            raise UserError(lacking.code, f"{error.what}: {lacking.what}", fix) from error

    async def _fetch(self, role: DataRole) -> None:
        what, digest = files.WORDS[role], self._data.digests[role]
        log.info("%s %s: asking peers", what, digest[:16])
        arriving = self._folder / f"{digest}.partial"
        self._download = ModelDownload(
            bytes.fromhex(digest),
            arriving,
            self._sharing.givers,
            what=what,
            named=hash_data,
            checked=lambda encoded: _checked(encoded, what),
        )
        try:
            await self._download.run()
            kept = files.path_in(self._folder, self._data, role)
            await asyncio.to_thread(put_in_place, arriving, files.FILE, kept, lambda file: None)
            log.info("%s: complete, and what the manifest names", what)
        finally:
            self._download = None


def _checked(encoded: bytes, what: str) -> Listing:
    """Decode the listing of a run's data. The manifest vouches for its bytes, but may itself be hostile (SPEC
    B9): raises UserError BAD_MANIFEST, DATA_TOO_LARGE."""
    own = "Tell the person who started the run; or train on data of your own with --data FILE."
    try:
        listing = decode(encoded)
    except RemoteProtocolError as error:
        raise UserError(
            Code.BAD_MANIFEST, f"the {what} of the run are no file: {error.reason}", own
        ) from error
    if listing.size > MAX_DATA:
        sizes = f"{size_text(listing.size)}, where {size_text(MAX_DATA)} are allowed"
        raise UserError(Code.DATA_TOO_LARGE, f"the {what} of the run have {sizes}", own)
    if not files.is_right(listing):
        raise UserError(Code.BAD_MANIFEST, f"the digest of the run's {what} is of something else", own)
    return listing
