"""The files of a run's public data on one node: finds the files that the manifest names, downloads missing
files from peers, and offers all of them to other nodes.

In the data folder the name of each file is its digest. The engine thread looks for the files and waits for
downloads, as it does for the model. This module does not read rows.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from sfnode.errors import Code, UserError
from sfnode.logging import log
from sfnode.manifest import Manifest
from sfnode.manifest.sections import Data, DataRole
from sfnode.modelshare.listed import one_file
from sfnode.modelshare.sharing import Sharing
from sfnode.printable import size_text
from sfnode.settings import Settings
from sfnode.store.data_folder import Layout
from sfnode.store.disk_errors import disk_faults
from sfnode.store.named_files import places_of
from sfnode.tasks import public_files as files
from sfnode.tasks.public_files import Places, with_run
from sfprotocol.errors import RemoteProtocolError
from sfprotocol.model_listing import MAX_DATA, Listing, decode, hash_data

NOT_OURS = frozenset({Code.DATA_NOT_FOUND, Code.DATA_DIFFERS, Code.DATA_TOO_LARGE, Code.BAD_MANIFEST})
"""Errors that are no fault of this machine. In files of held-out rows they do not stop the node, because
training needs no such rows."""


def find_data(settings: Settings, manifest: Manifest, layout: Layout, sharing: Sharing) -> None:
    """Put every file of the run's public data that this node needs into its data folder, and offer it to
    other nodes. Call it on another thread than the event loop's. A file is first looked for at the path that
    the owner has named, and in the folder of the manifest that the settings name.

    Raises UserError DATA_* for training data, DISK_FULL and DATA_DIR_UNUSABLE, and CancelledError if the node
    stops meanwhile. Errors of NOT_OURS in other data are only logged.
    """
    own = settings.data is not None and not settings.organise
    places = with_run(places_of(layout), settings.run)
    for role in files.ROLES:
        if role not in manifest.data.digests or (own and role == "train"):
            continue
        try:
            _find(manifest.data, role, places, sharing)
        except UserError as error:
            if role == "train" or error.code not in NOT_OURS:
                raise
            log.warning("%s; nothing is measured on them here", error.what)


def _find(data: Data, role: DataRole, places: Places, sharing: Sharing) -> None:
    """Put the data file of a role, such as the training rows, into the first folder of `places`. The file is
    found on this machine or downloaded from peers."""
    digest, kept = data.digests[role], files.path_in(places.folders[0], data, role)
    found = files.find(data, role, places)
    if found is None:
        _from_peers(files.missing(data, role, places), role, digest, kept, sharing)
    elif found != kept:
        with disk_faults(kept.parent):
            files.keep(found, kept, digest)
    with disk_faults(kept):
        sharing.listed[bytes.fromhex(digest)] = one_file(files.listing_of(kept), kept)


def _from_peers(lacking: UserError, role: DataRole, digest: str, kept: Path, sharing: Sharing) -> None:
    if not sharing.givers.peers():
        raise lacking
    if lacking.code is Code.DATA_DIFFERS:
        log.warning("%s", lacking.what)
    what = files.WORDS[role]
    checked = partial(_checked, what=what)
    try:
        sharing.wait_for(
            sharing.fetch_file(
                "data", bytes.fromhex(digest), kept, what=what, named=hash_data, checked=checked
            )
        )
    except UserError as error:
        if error.code is not Code.MODEL_NOT_FOUND:
            raise
        fix = f"Try again later: what has come is kept. {lacking.fix}"
        raise UserError(lacking.code, f"{error.what}: {lacking.what}", fix) from error


def _checked(encoded: bytes, what: str) -> Listing:
    """Decode the listing of a run's data and check its sizes. Its hash is that in the manifest, but the
    manifest may be hostile (SPEC B9). Raises UserError BAD_MANIFEST, DATA_TOO_LARGE."""
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
