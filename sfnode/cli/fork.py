"""`sfnode history fork`: a new run whose base model is the state of another run at one of its seals.

The new manifest names the old run, the seal and the digest of its cores, so that the new run's id commits to
them. `sfnode verify --parent` recomputes the base model to check this claim.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from sfnode.cli import options
from sfnode.cli.data_folder import opened_run, runs_here
from sfnode.cli.init import check_bases, init, keys_folder, organising_options, published, write_manifest
from sfnode.cli.keys import Command
from sfnode.cli.output import echo
from sfnode.cli.passphrases import chosen, keys_dir_option, passphrase_file_option
from sfnode.cli.progress import waiting
from sfnode.errors import Code, UserError
from sfnode.manifest import Manifest
from sfnode.manifest.sections import Parent
from sfnode.printable import command
from sfnode.store.data_folder import Layout
from sfprotocol.decisions import RATE_ONE, UNIT_ONE, RateFrom

if TYPE_CHECKING:
    from sfnode.manifest import Manifest
    from sfprotocol.run_state import RunState


MODEL, RUN = "model", "run.toml"
"""Names of the model's folder and of the manifest, within the new run's folder."""


CHOICES = {
    *("target_modules", "train_embeddings", "train_biases", "train_norms"),
    *("rank", "bases", "made_of", "loss", "group", "batch_size", "decay"),
    *("epsilon", "learning_rate", "scalar_delta", "scalar_limit", "measure", "dtype"),
    *("epoch_updates", "update_budget", "subspace_epochs", "quota", "description"),
}
"""Parameter names of the options of `sfnode init` that a fork can set differently from the old run."""


def _options_of_init() -> list[click.Parameter]:
    """Return the options of `sfnode init` in CHOICES, without their defaults: the old run's values apply
    instead."""
    found = [copy(one) for one in init.params if one.name in CHOICES]
    for one in found:
        if isinstance(one, click.Option):
            one.help = (one.help or "").partition("  [default:")[0]
    return found


@click.command(cls=Command, params=_options_of_init())
@options.epoch_argument("epoch")
@options.out_option("FOLDER", "New folder for the run.")
@options.option(
    "--name", metavar="NAME", help="Name of the new run.  [default: the old one's, with the epoch]"
)
@options.data_dir_option
@options.model_option
@options.device_option
@keys_dir_option
@options.option("--encrypt", is_flag=True, help="Encrypt the new run's keys with a passphrase.")
@passphrase_file_option
def fork(
    epoch: int,
    out: Path,
    data_dir: Path,
    model: Path | None,
    device: str,
    dtype: str,
    keys_dir: Path,
    encrypt: bool,
    passphrase_file: Path | None,
    bases: Path | None,
    made_of: str | None,
    measure: bool,
    **given: Any,
) -> None:
    """Write a new run to a new folder, starting from the seal of EPOCH of this folder's run.

    The new run's base model is the old run's model at that seal, with each weight rounded once. Task, data
    and numbers stay the same unless you change them, and training continues with the learning rate of the
    seal. With other layers (you then name all of them), rank, bases, loss or groups, the new run gets new
    bases and numbers, as `sfnode init` finds them. You organise it with new keys, and it has no members yet.
    """
    from sfnode.cli import init_output
    from sfnode.cli.trained_model import load
    from sfnode.preparing.files import keep_bases
    from sfnode.preparing.manifest import REMEASURED, forked, unsuited
    from sfnode.preparing.measuring import prepare, with_prior
    from sfnode.preparing.scalars import Means
    from sfnode.store.run_keys import RunKeys
    from sfnode.tasks.public_files import beside

    if out.exists() and any(out.iterdir()):
        raise UserError(Code.BAD_OPTION, f"{out} is not empty", "Name a new folder, or remove what is in it.")
    given = {key: value for key, value in given.items() if value is not None}
    keys, keys_dir = RunKeys.generate(), keys_folder(keys_dir, out / RUN)
    passphrase = chosen(passphrase_file) if encrypt else None
    trained = load(data_dir, model, device, "stored", epoch=epoch)
    with waiting("writing the model"):
        trained.trainer.export((out / MODEL).absolute(), "hf")
    old, run_state = _old_run(data_dir, epoch, out)
    parent = Parent(run_id=old.run_id.hex(), epoch=epoch, digest=trained.digest)
    own: dict[str, Any] = {"name": f"{old.name[:50]}-from-{epoch}"} | keys.options() | {"votes": 1}
    check_bases(bases, made_of)
    anew = bool(made_of or bases or REMEASURED & given.keys())
    if anew:
        own |= unsuited(old.training)
    else:
        bases = _bases_file(data_dir, run_state, old.parameters().subspace_of(run_state.open_epoch))
        own |= going_on(old, run_state.rate_from(run_state.open_epoch))
    given |= published(bases) if bases else {}
    manifest, said = forked(old, parent, (out / MODEL).absolute(), own | given), []
    if bases:
        said.append(init_output.bases_words(*keep_bases(bases, out, manifest), out / RUN))
    means = Means(device, dtype, out, out / MODEL, beside(manifest.data, out))
    prepared = prepare(manifest, given, means, waiting, made_of, measure and anew)
    manifest = prepared.manifest if prepared.sample else with_prior(prepared.manifest, means, waiting)
    said += init_output.numbers_words(prepared, given) if anew else []
    said += init_output.keys_words(*keys.write(manifest.run_id, keys_dir, passphrase))
    write_manifest(out / RUN, manifest.to_toml())
    origin = f"run {old.name} ({old.run_id.hex()[:16]}) at the {trained.moment}"
    start = ("sfnode", "join", "--run", out / RUN, "--data-dir", "FOLDER", *organising_options(keys_dir))
    for line in (
        f"wrote {out / RUN}: run {manifest.name}, id {manifest.run_id.hex()}",
        f"forked from {origin}",
        f"core digest there {trained.digest}",
        *said,
        f"{command(*start)}    starts it",
    ):
        echo(line)


def _old_run(data_dir: Path, epoch: int, out: Path) -> tuple[Manifest, RunState]:
    """Copy the old run's data to `out`. Return the old run's manifest, and its state when the epoch was
    sealed."""
    from sfnode.store.checkout import seal_of
    from sfnode.store.disk_errors import disk_faults
    from sfnode.store.named_files import places_of
    from sfnode.store.replay import run_state_of
    from sfnode.tasks import public_files

    with opened_run(data_dir) as (old, update_log):
        run, entries = old.parameters(), update_log.control()
        run_state = run_state_of(run, entries[: seal_of(run, entries, epoch) + 1])
    with disk_faults(out):
        public_files.bring(old.data, places_of(Layout(data_dir)), out)
    return old, run_state


def going_on(old: Manifest, rate: RateFrom) -> dict[str, Any]:
    """Return the training options of a fork that continues with `rate`: the learning rate, and the unit and
    limit of updates, of one epoch of the old run."""
    found: dict[str, Any] = {"learning_rate": rate.rate / RATE_ONE}
    if old.training.is_first_order:
        delta = old.training.scalar_delta * rate.unit / UNIT_ONE
        found |= {"scalar_delta": delta, "norm_limit": rate.limit}
    return found


def _bases_file(data_dir: Path, run_state: RunState, subspace: int) -> Path | None:
    """Return the file with the published bases that `subspace` uses; None if they are random. Raises
    UserError BASES_MISSING."""
    from sfnode.models import bases

    if not (published := run_state.bases_upto(subspace)):
        return None
    file = bases.path_in(Layout(data_dir).bases, published[-1].digest.hex())
    if not file.is_file():
        raise bases.missing(f"the published bases {file.name} are not here")
    return file


# -- verifying -----------------------------------------------------------------------------------------


def check_parent(manifest: Manifest, data_dir: Path, parent: Path) -> str:
    """Recompute the base model of a run from its parent's state, and return the result in words.

    `parent` is a data folder of the parent run, or its archive. Raises UserError PARENT_DIFFERS and
    WRONG_RUN, and the errors of `trained_model.load` and `archive.unpack`.
    """
    from sfnode.cli.trained_model import load
    from sfnode.models import model_files
    from sfnode.store.named_files import model_of

    said = manifest.model.parent
    if said is None:
        raise UserError(
            Code.BAD_OPTION, f"the run {manifest.name} started from no other", "Leave out --parent."
        )
    base = model_files.resolve(
        manifest.model.source, manifest.model.revision, model_of(Layout(data_dir), None)
    )
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
        if model_files.digest(base) != manifest.model.digest:
            raise _differs(f"the model in {base} is not the one with which the run began")
        if problem := model_files.difference(base, Path(scratch) / MODEL):
            raise _differs(f"its base model is not that of the seal of epoch {said.epoch}: {problem}")
    return f"its base model is run {said.run_id[:16]} {trained.moment}, as it says"


@contextmanager
def _folder_of(parent: Path) -> Iterator[Path]:
    """Yield `parent` if it is a data folder. If it is an archive, yield a temporary folder with the archive's
    contents."""
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


# -- ancestors of a run ---------------------------------------------------------------------------------


class Ancestor(NamedTuple):
    """A run of which another run is a fork."""

    seal: Parent
    """The state with which the fork began."""
    run: Manifest | None
    """Manifest of the run; None if no data folder of this user has this run."""
    folder: Path | None

    def __str__(self) -> str:
        return f"{self.seal}{f' ({self.run.name})' if self.run else ''}"


def ancestors(manifest: Manifest) -> list[Ancestor]:
    """Return the ancestors of a run, its parent first, as far as this user's folders show."""
    here = runs_here()
    found: list[Ancestor] = []
    said = manifest.model.parent
    while said:  # ids are hashes over the parent's id, so there is no cycle
        run, folder = here.get(said.run_id, (None, None))
        found.append(Ancestor(said, run, folder))
        said = run.model.parent if run else None
    return found
