"""Runs that continue as another run: a node follows only if its owner asked for it, and only to a true
sequel."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from sfnode.manifest import Manifest
from sfnode.manifest.sections import Parent
from sfnode.node import following
from sfnode.organising.owner_decisions import announcement, link_in
from sfnode.store.data_folder import Layout
from sfnode.store.identity import Identity
from sfprotocol import invitation
from sfprotocol.decisions import Announce, Finish
from tests.node.helpers import Node, Swarm, SwarmOf, eventually, manifest, organised


def run_of(keys: Path, name: str, parent: Manifest | None = None) -> Manifest:
    """An organised run, whose organiser's key lies in a folder; it may have begun with another."""
    run = manifest(name)
    if parent:
        begun = Parent(run_id=parent.run_id.hex(), epoch=0, digest="0" * 64)
        run = run.model_copy(update={"model": run.model.model_copy(update={"parent": begun})})
    return organised(run, keys)


def link_to(node: Node, run: Manifest) -> str:
    return invitation.write(invitation.invite(run.protocol, run.run_id, [node.address]))


async def begun(swarm: Swarm, keys: Path, other: Manifest) -> tuple[Node, Node, Node]:
    """Return the organiser a and the following member b of one run, and the organiser n of another run."""
    options = {"organise": True, "keys_dir": keys}
    file = swarm.folder / "other.toml"
    file.write_text(other.to_toml())
    a = await swarm.first(**options)
    n = await swarm.node("n").start(file, **options)
    return a, await swarm.join("b", follow=True), n


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    return tmp_path / "keys"


async def test_a_node_follows_to_the_run_that_the_organiser_has_announced(
    swarm_of: SwarmOf, keys: Path
) -> None:
    """Here the old run has ended. In tests/processes/test_following it goes on."""
    old = run_of(keys, "old")
    new = run_of(keys, "new", parent=old)
    swarm = swarm_of(old)
    a, b, n = await begun(swarm, keys, new)
    c = await swarm.join("c")
    await a.node.organising.decide(Finish())
    link = link_to(n, new)
    await a.node.organising.decide(Announce(announcement(link)))
    await c.until(lambda: c.node.reports.sequel() == link)
    await b.ended()
    assert b.node.sequel == link
    told = c.node.status()
    assert link_in(told.organised.announced) == link, "who does not follow is told, and stays"
    await c.stop()
    assert c.node.sequel is None


async def test_a_run_that_did_not_begin_with_this_one_is_not_followed(
    swarm_of: SwarmOf, keys: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node stays, and still tries a later announcement of a true sequel."""
    monkeypatch.setattr(following, "RETRY_INTERVAL", 0.05)
    monkeypatch.setattr(following, "LOOK_INTERVAL", 0.05)
    caplog.set_level(logging.WARNING)
    old = run_of(keys, "old")
    stranger = run_of(keys, "new", parent=run_of(keys, "third"))
    a, b, n = await begun(swarm_of(old), keys, stranger)
    await a.node.organising.decide(Announce(announcement(link_to(n, stranger))))
    await eventually(lambda: "did not begin with a state of" in caplog.text)
    assert b.node.sequel is None
    assert not b.node.stopping.is_set()
    await n.stop()
    await a.node.organising.decide(Announce(announcement(link_to(n, run_of(keys, "absent", old)))))
    await eventually(lambda: "no peer sent the run's manifest" in caplog.text)
    assert not b.node.stopping.is_set()


async def test_a_node_that_its_owner_stops_goes_on_nowhere(swarm_of: SwarmOf, keys: Path) -> None:
    old = run_of(keys, "old")
    _, b, _ = await begun(swarm_of(old), keys, run_of(keys, "new", parent=old))
    b.node.continue_in("sfnode:x")
    await b.stop()
    assert b.node.sequel is None


def test_only_the_announcement_of_a_sequel_leads_anywhere() -> None:
    assert link_in(announcement("sfnode:AZ_-9")) == "sfnode:AZ_-9"
    assert link_in("see sfnode:AZ_-9") is None
    assert link_in(announcement("https://example.org/run.json")) is None
    assert link_in("I say: " + announcement("sfnode:AZ_-9")) is None


def test_the_next_folder_lies_beside_and_has_the_key(tmp_path: Path) -> None:
    own = Layout(tmp_path / "node")
    own.path.mkdir()
    key = Identity.generate()
    key.write(own.identity)
    first = following.next_folder(own.path, bytes.fromhex("12" * 32))
    assert first == tmp_path / "node-12121212"
    assert Identity.read(Layout(first).identity).public == key.public
    second = following.next_folder(first, bytes.fromhex("ab" * 32))
    assert second == tmp_path / "node-abababab", "the name does not grow from run to run"
    assert Identity.read(Layout(second).identity).public == key.public
    Layout(second).identity.unlink()
    Identity.generate().write(Layout(second).identity)
    again = following.next_folder(first, bytes.fromhex("ab" * 32))
    assert Identity.read(Layout(again).identity).public != key.public, "a key that is there stays"
