"""This version of sfnode with the folder of the last release, beside peers of that release: nothing is
lost."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

import sfnode
from sfnode.errors import UserError
from sfnode.store.data_folder import Layout
from sfnode.store.identity import Identity
from sfnode.store.log import UpdateLog
from sfprotocol.messages import Feed
from tests.processes.helpers import LOOPBACK, Node, environment, nodes, until

pytestmark = [pytest.mark.processes, pytest.mark.timeout(400)]

LAST = "25f799ac"
"""Commit of version 0.2.0."""

MADE = "from sfnode.models.manifest_builder import build; print(build({'update_budget': 250_000}).to_toml())"
"""Script that prints the manifest of a run, in version 0.2.0."""


def of(folder: Path) -> str:
    """Return the PYTHONPATH of the version of sfnode in `folder`."""
    return os.pathsep.join(map(str, (folder, folder / "protocol")))


def last_release(folder: Path) -> Path:
    """Unpack the last release into a folder. Skips where git's history does not have it."""
    repository = Path(sfnode.__file__).parents[1]
    archive = subprocess.run(["git", "archive", LAST], cwd=repository, capture_output=True, check=False)
    if archive.returncode:
        pytest.skip("the commit of the last release is not here: a copy without git's history")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(folder, filter="data")
    return folder


def kept(node: Node) -> dict[Feed, int]:
    """Return the number of updates of each feed on the node's disk."""
    try:
        with UpdateLog.open(Layout(node.folder).log, read_only=True) as log:
            return {tail.feed: tail.next for tail in log.tails()}
    except UserError:
        return {}


def of_owner(node: Node, where: Node) -> dict[Feed, int]:
    """Return the number of updates on the disk of `where`, for each feed of `node`'s origin."""
    if not Layout(node.folder).identity.exists():
        return {}
    origin = Identity.read(Layout(node.folder).identity).public
    return {feed: stop for feed, stop in kept(where).items() if feed.origin == origin}


def upgraded(home: Path) -> float:
    """Start the new version on the folder of a node of the last release. Return the seconds from this start
    to its own next update at a peer. Raises AssertionError if an update is lost or a second feed begins."""
    last = last_release(home / "last")
    old = {"inside": (), "PYTHONPATH": of(last)}
    new = {"inside": (), "PYTHONPATH": of(Path(sfnode.__file__).parents[1])}
    surroundings = environment(home) | {"PYTHONPATH": of(last)}
    with (home / "run.toml").open("wb") as out:
        subprocess.run([sys.executable, "-c", MADE], env=surroundings, cwd=home, stdout=out, check=True)
    with nodes(home) as make:
        relay = make("relay", "--run", "run.toml", "--role", "relay", *LOOPBACK, **old).start()
        joining = ("--peers", relay.address(), *LOOPBACK)
        other = make("other", *joining, **old).start()
        node = make("node", *joining, **old).start()
        for one in (other, node):
            until("its updates have come", lambda one=one: of_owner(one, relay))  # type: ignore[misc]
        assert node.end() == 0
        before = kept(node)
        node = make("node", *joining, **new)
        begun = time.monotonic()
        node.start()
        own = {feed: stop for feed, stop in before.items() if feed in of_owner(node, relay)}
        (feed,) = own
        until("its next update has come", lambda: of_owner(node, relay)[feed] > own[feed])
        seconds = time.monotonic() - begun
        assert of_owner(node, relay).keys() == {feed}, "it continues its feed"
        theirs = of_owner(other, relay)
        until("it has what came meanwhile", lambda: _holds(node, theirs))
        assert _holds(node, before), "no update is lost"
        assert (node.end(), other.end(), relay.end()) == (0, 0, 0)
        assert "Traceback" not in node.output()
    return seconds


def _holds(node: Node, updates: dict[Feed, int]) -> bool:
    held = kept(node)
    return all(held.get(feed, 0) >= stop for feed, stop in updates.items())


def test_an_upgraded_node_goes_on_where_it_was_and_loses_nothing(tmp_path: Path) -> None:
    upgraded(tmp_path)  # benchmarks.upgrade has the limit of the seconds
