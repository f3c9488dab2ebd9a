"""`sfnode verify`: replay a node's log and check all of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from sfnode.cli.data_folder import opened_run
from sfnode.cli.exit import warn
from sfnode.cli.options import as_of_now_option, data_dir_option, details_option, json_option, option
from sfnode.cli.output import echo
from sfnode.cli.progress import waiting
from sfnode.printable import command

if TYPE_CHECKING:
    from sfnode.manifest import Manifest
    from sfnode.schema.results import SealsResult
    from sfnode.store.log import UpdateLog


@click.command
@data_dir_option
@as_of_now_option
@option(
    "--from-checkpoint",
    is_flag=True,
    help="Begin with the newest signed checkpoint in the folder. Where the folder has no history before one, "
    "that is what happens anyway.",
)
@option(
    "--parent",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Recompute, too, that the base model is the state of another run that the manifest names, from a "
    "data folder or an archive of that run.",
)
@details_option
@json_option
def verify(
    data_dir: Path, as_of_now: bool, from_checkpoint: bool, parent: Path | None, details: bool, as_json: bool
) -> None:
    """Add up the log of a node's folder again, check every signature, and print the model's fingerprint.

    Equal fingerprints mean equal models, to the bit. In an organised run it covers the updates that count at
    the organiser's last decision.
    """
    from sfnode.store.data_folder import Layout
    from sfnode.store.verification import state_to_begin_with, verify_log

    with opened_run(data_dir) as (manifest, update_log), waiting("verifying the log"):
        state = None
        if from_checkpoint or update_log.bases():
            state = state_to_begin_with(manifest, update_log, Layout(data_dir).checkpoints)
        result = verify_log(manifest, update_log, state, as_of_now=as_of_now)
        bases = _bases(manifest, update_log, Layout(data_dir).bases)
    origin = _parent(manifest, data_dir, parent)
    if result.seals and not as_of_now:
        _warn(result.seals)
    if as_json:
        echo(result.model_dump_json(indent=2))
        return
    echo(
        f"{result.signatures:,} signatures and {result.updates:,} updates of {result.feeds:,} nodes verified"
    )
    if result.checkpoint is not None:
        echo(f"what came before is as the organiser has signed it after round {result.checkpoint}")
    if result.seals:
        echo(_seals_in_words(result.seals))
    for said in filter(None, (bases, origin)):
        echo(said)
    sealed = result.seals if result.seals and result.seals.named_digest and not as_of_now else None
    if sealed:
        echo(f"up to round {sealed.epoch} {sealed.updates:,} updates count")
    echo(f"fingerprint  {result.core_digest if sealed else result.digest}")
    if details:
        named = f"named digest {sealed.named_digest}" if sealed else f"digest       {result.digest}"
        echo(f"{named}\ncore digest  {result.core_digest}")


def _parent(manifest: Manifest, data_dir: Path, parent: Path | None) -> str:
    """Check that a fork's base model is its parent's state, if `parent` is given. Return the result in words,
    or an empty text for a run that is not a fork."""
    if parent is not None:
        from sfnode.cli.fork import check_parent

        return check_parent(manifest, data_dir, parent)
    from sfnode.cli.fork import ancestors

    found = ancestors(manifest)
    lines = [f"forked from {one}, not checked" for one in found]
    if found and found[0].folder:
        again = command("sfnode", "verify", "--data-dir", data_dir, "--parent", found[0].folder)
        lines.insert(1, f"`{again}` checks that")
    return "\n".join(lines)


def _bases(manifest: Manifest, update_log: UpdateLog, folder: Path) -> str:
    """Check the published bases that are stored here, and describe their number; empty for a run without
    published bases.

    Raises UserError BASES_UNUSABLE for bases with a wrong digest or size.
    """
    from sfnode.models import bases
    from sfnode.store.replay import run_state_of

    run, targets = manifest.parameters(), manifest.model.parsed_targets()
    published = run_state_of(run, update_log.control()).bases
    named = {one.digest.hex(): bases.path_in(folder, one.digest.hex()) for one in published}
    here = {digest: file for digest, file in named.items() if file.is_file()}
    for digest, file in here.items():
        bases.read(file, targets, manifest.basis_columns, digest)
    return f"{len(here)} of {len(named)} published directions are here, each as named" if named else ""


def _seals_in_words(seals: SealsResult) -> str:
    """Describe the checks of the organiser's decisions."""
    checked = f"{seals.decisions} decisions verified, and {seals.checked} of {seals.sealed} rounds added up"
    return f"{checked}; {seals.behind} updates that count are not here yet" if seals.behind else checked


def _warn(seals: SealsResult) -> None:
    """Warn on standard error about missing updates of the last seal."""
    from sfnode.store.checkout import warning

    if found := warning(seals.epoch, seals.sealed, seals.lacking):
        warn(found)
