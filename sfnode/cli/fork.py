"""`sfnode fork`: a new run whose base model is the state of another at one of its seals.

Its manifest names that run, the seal and the digest of its cores, so that the new run's id commits to them;
`sfnode verify --parent` recomputes that the base model is what it is said to be.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from sfnode.cli.data_folder import opened_run
from sfnode.cli.init import keys_folder, organising_options, write_manifest
from sfnode.cli.options import data_dir_option, device_option, epoch_argument, model_option, option
from sfnode.cli.output import echo
from sfnode.cli.passphrases import chosen, passphrase_file_option
from sfnode.cli.progress import waiting
from sfnode.cli.succession import keys_dir_option
from sfnode.errors import Code, UserError
from sfnode.printable import command

if TYPE_CHECKING:
    from sfnode.manifest import Manifest
    from sfnode.store.run_keys import RunKeys
    from sfprotocol.counting import Counting

MODEL, RUN = "model", "run.toml"
"""Names of what is written."""


@click.command
@epoch_argument("epoch")
@click.argument("out", type=click.Path(path_type=Path, file_okay=False))
@option("--name", metavar="NAME", help="Name of the new run.  [default: the old one's, with the epoch]")
@data_dir_option
@model_option
@device_option
@keys_dir_option
@option("--encrypt", is_flag=True, help="Encrypt the new run's keys with a passphrase.")
@passphrase_file_option
def fork(
    epoch: int,
    out: Path,
    name: str | None,
    data_dir: Path,
    model: Path | None,
    device: str,
    keys_dir: Path,
    encrypt: bool,
    passphrase_file: Path | None,
) -> None:
    """Write a new run to the new folder OUT that starts from the seal of EPOCH of this folder's run.

    Its base model is the exported one, each weight rounded once; its task, data and numbers are the same, and
    it goes on at the rate that the seal has left. You organise it with keys of its own, and nobody is a
    member of it yet.
    """
    from sfnode import preparing
    from sfnode.cli import init_output
    from sfnode.cli.trained_model import load
    from sfnode.store.data_folder import Layout
    from sfnode.store.disk_errors import disk_faults
    from sfnode.store.run_keys import RunKeys
    from sfnode.tasks import public_files

    if out.exists() and any(out.iterdir()):
        raise UserError(Code.BAD_OPTION, f"{out} is not empty", "Name a new folder, or remove what is in it.")
    keys, keys_dir = RunKeys.generate(), keys_folder(keys_dir, out / RUN)
    passphrase = chosen(passphrase_file) if encrypt else None
    trained = load(data_dir, model, device, "stored", epoch=epoch)
    with waiting("writing the model"):
        trained.trainer.export((out / MODEL).absolute(), "hf")
    with opened_run(data_dir) as (old, update_log):
        counting = _counting_at(old, update_log.control(), epoch)
        manifest = _forked(old, counting, epoch, trained.digest, (out / MODEL).absolute(), keys, name)
    with disk_faults(out):
        public_files.bring(manifest.data, Layout(data_dir).data, out)
    manifest = preparing.with_prior(manifest, preparing.Means(device, bases=out), waiting)
    said = []
    if manifest.training.bases:
        kept = preparing.keep_bases(_bases_file(data_dir, manifest), out, manifest)
        said.append(init_output.bases_words(*kept, out / RUN))
    said += init_output.keys_words(*keys.write(manifest.run_id, keys_dir, passphrase))
    write_manifest(out / RUN, manifest.to_toml())
    echo(f"wrote {out / RUN}: run {manifest.name}, id {manifest.run_id.hex()}")
    echo(f"forked from run {old.name} ({old.run_id.hex()[:16]}) at the {trained.moment}")
    echo(f"core digest there {trained.digest}")
    for note in said:
        echo(note)
    start = ("sfnode", "join", "--run", out / RUN, "--data-dir", "FOLDER", *organising_options(keys_dir))
    echo(f"{command(*start)}    starts it")


def _counting_at(old: Manifest, entries: Any, epoch: int) -> Counting:
    """Return the state of the old run when the epoch was sealed."""
    from sfnode.store.checkout import seal_of
    from sfnode.store.replay import counting_of

    run = old.parameters()
    return counting_of(run, entries[: seal_of(run, entries, epoch) + 1])


def _forked(
    old: Manifest, counting: Counting, epoch: int, digest: str, model: Path, keys: RunKeys, name: str | None
) -> Manifest:
    """Return the manifest of a run that begins with this model, the old run's at a seal."""
    from sfnode.manifest import Manifest
    from sfnode.models import files
    from sfnode.models.pieces import listing_hash
    from sfprotocol.decisions import RATE_ONE

    fields = old.model_dump()
    fields["name"] = name or f"{old.name[:50]}-from-{epoch}"
    fields["model"] |= {
        "source": str(model),
        "revision": "",
        "digest": files.digest(model),
        "listing": listing_hash(model),
        "parent": {"run_id": old.run_id.hex(), "epoch": epoch, "digest": digest},
    }
    fields["organised"] |= {**keys.options(), "votes": 1}
    fields["training"]["learning_rate"] = counting.rate(counting.open_epoch) / RATE_ONE
    if counting.bases:
        fields["training"]["bases"] = counting.bases[-1].digest.hex()
    return Manifest.model_validate(fields)


def _bases_file(data_dir: Path, manifest: Manifest) -> Path:
    """Return the file with the bases that the new run begins with. Raises UserError BASES_MISSING."""
    from sfnode.models import bases
    from sfnode.store.data_folder import Layout

    file = bases.path_in(Layout(data_dir).bases, manifest.training.bases)
    if not file.is_file():
        raise bases.missing(f"the published bases {file.name} are not here")
    return file


# -- verifying -----------------------------------------------------------------------------------------


def check_parent(manifest: Manifest, data_dir: Path, parent: Path) -> str:
    """Recompute that the base model of a run is the state of another, as its manifest says; `parent` is a
    data folder of that run, or its archive. Return what was found, in words.

    Raises UserError PARENT_DIFFERS, WRONG_RUN, and as `trained_model.load` and `archive.unpack`.
    """
    from sfnode.cli.trained_model import load
    from sfnode.models import files
    from sfnode.modelshare.sharing import model_of
    from sfnode.store.data_folder import Layout

    said = manifest.model.parent
    if said is None:
        raise UserError(
            Code.BAD_OPTION, f"the run {manifest.name} started from no other", "Leave out --parent."
        )
    base = files.resolve(manifest.model.source, manifest.model.revision, model_of(Layout(data_dir), None))
    with _folder_of(parent) as folder, TemporaryDirectory(prefix="sfnode-") as scratch:
        with opened_run(folder) as (old, _):
            if old.run_id.hex() != said.run_id:
                raise UserError(
                    Code.WRONG_RUN,
                    f"{parent} holds run {old.run_id.hex()[:16]} ({old.name}), and the parent is "
                    f"{said.run_id[:16]}",
                    "Name a folder or an archive of that run.",
                )
        trained = load(folder, None, "cpu", "stored", epoch=said.epoch)
        if trained.digest != said.digest:
            raise _differs(
                f"the seal of epoch {said.epoch} has the core digest {trained.digest[:16]}..., and "
                f"{said.digest[:16]}... is named"
            )
        trained.trainer.export(Path(scratch) / MODEL, "hf")
        if files.digest(base) != manifest.model.digest:
            raise _differs(f"the model in {base} is not the one with which the run began")
        if problem := files.difference(base, Path(scratch) / MODEL):
            raise _differs(f"its base model is not that of the seal of epoch {said.epoch}: {problem}")
    return f"its base model is run {said.run_id[:16]} at the {trained.moment}, as it says"


@contextmanager
def _folder_of(parent: Path) -> Iterator[Path]:
    """Yield the data folder itself, or one with what is in an archive."""
    if parent.is_dir():
        yield parent
        return
    from sfnode.store import archive

    with TemporaryDirectory(prefix="sfnode-") as folder:
        yield archive.unpack(parent, Path(folder)).layout.path


def _differs(what: str) -> UserError:
    return UserError(
        Code.PARENT_DIFFERS,
        f"the run does not start where its manifest says: {what}",
        "Do not trust where it says that it comes from; ask whoever made it.",
    )
