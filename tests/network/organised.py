"""Helpers of these tests for organised runs: keys, arguments, and what strangers leave in a node's folder."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import NamedTuple

from sfnode.control.client import Client
from sfnode.manifest import Manifest
from sfnode.models.manifest_builder import build
from sfnode.store.data_folder import Layout
from sfnode.store.log import UpdateLog
from sfnode.store.replay import counting_of
from sfnode.store.run_keys import RunKeys
from sfprotocol import decisions
from sfprotocol.decisions import Finish
from tests.network.swarm import BUDGET
from tests.processes.helpers import LOOPBACK, Node, sfnode

QUOTA = 1024
BATCH = 16
"""Rows per update: an update takes a hundredth of a second, so that joined ones follow each other closely."""


def write_organised_run(home: Path, *, quota: int = QUOTA, **settings: object) -> Manifest:
    """Write a manifest and its keys; return the manifest. The run does not complete by itself."""
    keys = RunKeys.generate()
    numbers = {"batch_size": BATCH, "update_budget": BUDGET, "epoch_updates": QUOTA, "quota": quota}
    manifest = build(numbers | keys.options() | settings)
    keys.write(manifest.run_id, home / "keys")
    (home / "run.toml").write_text(manifest.to_toml())
    return manifest


def organising(home: Path) -> tuple[object, ...]:
    """Return the arguments of the node that organises the run."""
    return ("--run", home / "run.toml", "--organise", "--keys-dir", home / "keys", *LOOPBACK)


def invited(home: Path, through: Node) -> str:
    """Return a link by which one newcomer is admitted."""
    said = sfnode(home, "organise", "invite", "--data-dir", through.folder)
    assert said.returncode == 0, said.stderr
    return next(word for word in said.stdout.split() if word.startswith("sfnode:"))


def end_run(organiser: Node) -> None:
    """Let the owner end the run."""
    client = Client(Layout(organiser.folder).control_socket)
    result = asyncio.run(client.decide(decisions.encode(Finish())))
    assert result.signed, result


class Kept(NamedTuple):
    """What one node has on disk of others than the members of the run."""

    feeds: int
    proofs: int
    authority: int
    """Successions and forks of the control feed."""
    unsigned: int
    """Decisions that are not the organiser's."""


def kept_of_strangers(folder: Path, manifest: Manifest) -> Kept:
    """Count what strangers have left in a node's log."""
    with UpdateLog.open(Layout(folder).log, manifest.run_id, read_only=True) as log:
        entries = log.control()
        counting = counting_of(manifest.parameters(), entries)
        return Kept(
            feeds=sum(counting.member(tail.feed.origin) is None for tail in log.ends()),
            proofs=sum(counting.member(cut.feed.origin) is None for cut in log.cuts()),
            authority=len(log.authority()),
            unsigned=sum(isinstance(decisions.read(entry.record).decision, Finish) for entry in entries[:-1]),
        )
