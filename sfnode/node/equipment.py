"""Checks that this machine has what a node needs. `sfnode join` makes the checks before it uses the network,
and `sfnode doctor` reports their results. Each check raises a UserError if something is missing."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from sfnode.defaults import SPARE_BYTES
from sfnode.errors import Code, UserError
from sfnode.logging import log
from sfnode.manifest import Manifest
from sfnode.manifest.sections import is_file
from sfnode.printable import size_text
from sfnode.settings import Settings
from sfnode.store.data_folder import DataDir, Layout
from sfnode.store.named_files import NamedFiles
from sfnode.tasks import public_files, row_files, verifying
from sfnode.tasks.public_files import Places, with_run

CPU = "cpu"
"""Name of the CPU as a device."""


def equipped(settings: Settings, manifest: Manifest | None, data_dir: DataDir) -> Settings:
    """Check that this machine has what its node needs, before the network is used. Without a `manifest`,
    check only what every run needs.

    Return the settings with the files that the owner has named at this start, or at an earlier start with
    this data folder. The names are stored once the checks have passed. A node that may not run the run's
    verifier becomes a relay. Raises UserError as the checks do.
    """
    require_room(data_dir.path)
    try:
        for check in checks(settings, manifest, data_dir):
            check()
    except UserError as error:
        if error.code is not Code.VERIFIER_NOT_ALLOWED:
            raise
        log.warning("SF%03d: %s. %s", error.code, error.what, error.fix)
        log.warning("this node takes part without training: it relays updates, and evaluates nothing")
        settings = settings.model_copy(update={"role": "relay"})
    if manifest is None:
        return settings
    before, named = NamedFiles.read(data_dir), named_files(settings, manifest, data_dir)
    for name in ("data", "model"):
        if getattr(settings, name) is None and (file := getattr(before, name)):
            log.info("%s is as before: %s", name, file)
    named.keep(data_dir)
    return named.in_settings(settings)


def checks(settings: Settings, manifest: Manifest | None, layout: Layout) -> Iterator[Callable[[], object]]:
    """Yield the checks of what a trainer needs; without a `manifest`, only the check of its devices. A check
    raises UserError: VERIFIER_NOT_ALLOWED for a plug-in that this machine may not run, or the errors of the
    `require_` functions below."""
    if settings.role != "trainer":
        return
    if manifest:
        yield partial(verifying.permit, manifest.task, settings.verifier)
    yield partial(require_devices, settings.devices, settings.dtype)
    if manifest:
        named = named_files(settings, manifest, layout)
        settings = named.in_settings(settings)
        yield partial(require_rows, settings, manifest, named.places(layout), layout.log.exists())
        yield partial(require_model, settings, manifest)


def named_files(settings: Settings, manifest: Manifest, layout: Layout) -> NamedFiles:
    """Return the files that the owner of this machine has named: in the settings, at an earlier start, or by
    placing them beside the manifest that the settings name. Raises UserError DATA_DIR_UNUSABLE."""
    named = NamedFiles.read(layout).and_of(settings)
    return named.and_beside(manifest, settings.run.parent) if settings.run else named


def require_room(folder: Path, log_bytes: int = 0) -> int:
    """Return the free bytes on a folder's disk. Raises UserError DISK_FULL unless there is room for a node
    and for an update log of `log_bytes`."""
    needed, free = SPARE_BYTES + log_bytes, shutil.disk_usage(folder).free
    if free < needed:
        raise UserError(
            Code.DISK_FULL,
            f"{size_text(free)} are free where {folder} is, and a node needs {size_text(needed)}",
            "Make room, or name a folder on another disk with --data-dir.",
        )
    return free


def require_devices(devices: Sequence[str], dtype: str) -> None:
    """Try out a trainer's devices and its number format. This imports torch, unless all devices are the CPU.
    Raises UserError DEVICE."""
    if any(name != CPU for name in devices):
        from sfnode.engine.loading import usable_device

        for name in devices:
            usable_device(name)
    if dtype == "nf4":
        from sfnode.models.quantized import bitsandbytes

        bitsandbytes()


def require_rows(settings: Settings, manifest: Manifest, places: Places, began: bool) -> None:
    """Check that a trainer has rows to train on, as far as that is known before a download. `began` is
    whether this node has taken part before.

    Raises UserError DATA_NEEDED, DATA_NOT_NAMED, DATA_NOT_FOUND, DATA_DIFFERS, DATA_MALFORMED, EXTRA_MISSING.
    """
    data = manifest.data
    row_files.require("" if settings.data else data.train, data.validation if settings.organise else "")
    shared = "train" in data.digests
    own = settings.data or ("" if shared or not data.train else public_files.local(data, "train", places))
    if settings.data or is_file(str(own)) or not data.train:
        from sfnode.tasks import dataset  # takes a second to import

        if not own:
            raise dataset.needed(manifest.task)
        if settings.data:
            dataset.own_rows(str(own), manifest.task, skip_bad=settings.skip_bad_rows)
        else:
            dataset.load_rows(str(own), manifest.task)  # every node reads all rows of the run's data
    elif shared and not (settings.peers or settings.contacts_url or began):
        places = with_run(places, settings.run)
        if public_files.find(data, "train", places) is None:  # and no peer could have the rows
            raise public_files.missing(data, "train", places)


def require_model(settings: Settings, manifest: Manifest) -> None:
    """Check that a named folder holds the run's base model. Raises UserError MODEL_*."""
    if settings.model:
        from sfnode.models import model_files  # takes half a second to import

        wanted = manifest.model
        model_files.check_digest(
            model_files.resolve(wanted.source, wanted.revision, settings.model), wanted.digest
        )
