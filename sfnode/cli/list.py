"""`sfnode list`: the runs on this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from sfnode.cli.data_folder import running_node
from sfnode.cli.folders import known_folders
from sfnode.cli.options import json_option
from sfnode.cli.output import echo, table
from sfnode.documents import read_toml
from sfnode.errors import UserError
from sfnode.store.data_folder import Layout, holder

HEADS = ("folder", "run", "run id", "state", "your updates")


@click.command("list")
@json_option
def list_(as_json: bool) -> None:
    """List the runs on this machine: folder, name, run id, whether a node runs there, updates that it made.

    Looks into the default folder, those of --profile, and those in which `sfnode join` was run by this user.
    """
    found = [_described(folder) for folder in known_folders() if Layout(folder).manifest.exists()]
    if as_json:
        echo(json.dumps(found, indent=2, ensure_ascii=False))
        return
    if not found:
        echo("No run on this machine yet: `sfnode join LINK` joins one, `sfnode swarm` shows one.")
        return
    echo(table([HEADS, *(tuple(_words(value) for value in run.values()) for run in found)]))


def _described(folder: Path) -> dict[str, Any]:
    """Return what there is to say about the run in `folder`; its node is asked if one runs."""
    run: dict[str, Any] = {"folder": str(folder), "run_name": None, "run_id": None}
    if holder(folder) is not None:
        try:
            status = running_node(folder).status()
        except UserError:  # it starts or ends at this moment, or hangs
            return run | _kept(folder) | {"state": "not answering"}
        more = {"run_name": status.run_name, "run_id": status.run_id, "state": status.state}
        return run | more | {"contributed": status.contributed}
    return run | {"state": "not running"} | _kept(folder)


def _kept(folder: Path) -> dict[str, Any]:
    """Return what the files in `folder` say about its run."""
    from sfnode.node.startup import contributed
    from sfnode.store.log import UpdateLog

    layout = Layout(folder)
    kept: dict[str, Any] = {"contributed": None}
    try:
        kept["run_name"] = str(read_toml(layout.manifest.read_text("utf-8")).get("name", ""))
        with UpdateLog.open(layout.log, read_only=True) as log:
            kept |= {"run_id": log.run_id.hex(), "contributed": contributed(layout, log)}
    except (OSError, ValueError, UserError):  # it says so when it is used
        pass
    return kept


def _words(value: object) -> str:
    text = "?" if value is None else str(value)
    return text[:16] if len(text) == 64 and "/" not in text else text
