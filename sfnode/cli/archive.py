"""`sfnode archive` and `sfnode import`: a run in one file, and a file into a run."""

from __future__ import annotations

from pathlib import Path

import click

import sfnode
from sfnode.cli.data_folder import opened_run
from sfnode.cli.options import data_dir_option, json_option
from sfnode.cli.output import echo
from sfnode.cli.progress import waiting


@click.command
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE")
@data_dir_option
@json_option
def archive(file: Path, data_dir: Path, as_json: bool) -> None:
    """Verify the run in a node's folder and write it to FILE: manifest, log, decisions, published bases.

    It verifies itself wherever `sfnode import` takes it in. No key and no address of this node is in it, and
    neither is the base model (`join --model FOLDER`). Its node may be running.
    """
    from sfnode.store import archive as archives
    from sfnode.store.data_folder import Layout

    with opened_run(data_dir) as (manifest, update_log), waiting("verifying and writing the run"):
        said = archives.write(manifest, update_log, Layout(data_dir).bases, file, sfnode.__version__)
    if as_json:
        echo(said.model_dump_json(indent=2))
    else:
        decided = f", {said.decisions} decisions, {said.sealed} seals" if manifest.organised.organiser else ""
        echo(f"wrote {file}: {said.updates} updates of {said.feeds} feeds{decided}\ndigest {said.digest}")


@click.command("import")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE")
@data_dir_option
@json_option
def import_(file: Path, data_dir: Path, as_json: bool) -> None:
    """Verify the archive FILE and take it into a folder: a new one, or one of the same run, whose node is
    not running.

    Both together are then in the folder; of forks the organiser's decisions choose, as among peers. Nothing
    is written before all of the archive is found sound.
    """
    from sfnode.node.exchange import take_in

    with waiting("verifying and taking in the archive"):
        result = take_in(file, data_dir)
    if as_json:
        echo(result.model_dump_json(indent=2))
        return
    sealed = "" if result.sealed is None else f", {result.sealed} epochs are sealed"
    echo(f"{result.new_updates} updates and {result.new_decisions} decisions are new to {data_dir}")
    echo(f"run {result.run_name} ({result.run_id[:16]}): {result.updates} updates are here{sealed}")
    echo(f"digest {result.digest}{'' if result.same else ' (more is here than in the archive)'}")
