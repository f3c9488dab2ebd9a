"""Published bases: nodes get them from each other, need them for training, and give them to others."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sfnode.manifest import Manifest
from sfnode.models import bases
from sfnode.modelshare import download
from sfnode.node.training import bases as share
from sfnode.organising import organiser
from sfnode.schema.node_state import NodeState, Wait
from sfprotocol.decisions import Bases, Recorded
from sfprotocol.messages import PartReply, PartRequest
from sfprotocol.model_listing import PIECE
from tests.modelshare.test_modelshare import ask
from tests.node.fixtures import quicken_downloads, work_takes_no_time
from tests.node.helpers import Node, SmallEngine, SwarmOf, eventually, manifest, organised

RANK = 4
OUT = PIECE // RANK
"""Rows of a U that fills a piece."""


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share, "LOOK_INTERVAL", 0.05)
    quicken_downloads(monkeypatch)
    monkeypatch.setattr(organiser, "LOOK_INTERVAL", 0.05)


def made(folder: Path, fill: int = 1) -> str:
    """Write bases of three pieces; return their digest."""
    sizes = (OUT, 4), (OUT + 1, 8)
    pairs = [(np.full((out, RANK), fill, np.int8), np.ones((into, RANK), np.int8)) for out, into in sizes]
    return bases.write(folder, pairs)


def run_of(digest: str) -> Manifest:
    run = manifest(basis="published", bases=digest, update_budget=400)
    targets = f"a:{OUT}x4", f"b:{OUT + 1}x8"
    return run.model_copy(update={"model": run.model.model_copy(update={"targets": targets})})


def has(node: Node, digest: str) -> bool:
    return bases.path_in(node.layout.bases, digest).is_file()


async def test_a_late_node_gets_the_bases_from_a_peer_and_gives_them_on(
    swarm_of: SwarmOf, tmp_path: Path
) -> None:
    """The bases lie beside the manifest of the first node, which has left when the third node comes."""
    digest = made(tmp_path)
    swarm = swarm_of(run_of(digest))
    a = await swarm.first()
    b = await swarm.join("b")
    await b.until(lambda: b.machine.complete)
    assert has(a, digest)
    assert has(b, digest)
    assert bases.digest_of(bases.path_in(b.layout.bases, digest)) == digest
    assert [file.name for file in b.layout.bases.iterdir()] == [f"{digest}.bases"]
    await a.stop()
    c = await swarm.join("c", via="b")
    await eventually(lambda: has(c, digest))
    await c.until(lambda: c.digest == b.digest and c.node.model.loaded)
    cores = [await node.node.core_status() for node in (b, c)]
    assert cores[0].core_digest == cores[1].core_digest


async def test_a_node_without_bases_makes_no_updates_and_says_why(
    swarm_of: SwarmOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "PATIENCE", 0.3)
    digest = made(tmp_path / "elsewhere")
    a = await swarm_of(run_of(digest)).first()
    await a.until(lambda: a.node.status().alarms)
    said = a.node.status()
    assert (said.state, said.own_updates) == (NodeState.WAITING, 0)
    assert said.wait.reason is Wait.BASES
    assert [alarm.code for alarm in said.alarms] == ["SF081"]
    bases.path_in(tmp_path / "elsewhere", digest).replace(bases.path_in(a.layout.bases, digest))
    await a.until(lambda: a.machine.complete)
    assert not a.node.status().alarms
    assert a.engine.bases[-1] == (Bases(0, bytes.fromhex(digest)),)


async def test_a_damaged_file_is_got_anew(swarm_of: SwarmOf, tmp_path: Path) -> None:
    digest = made(tmp_path)
    swarm = swarm_of(run_of(digest))
    await swarm.first()
    b = swarm.node("b")
    b.layout.bases.mkdir(parents=True)
    bases.path_in(b.layout.bases, digest).write_bytes(bytes(3 * PIECE))
    await swarm.join("b")
    await b.until(lambda: b.machine.complete)
    assert bases.digest_of(bases.path_in(b.layout.bases, digest)) == digest


async def test_a_file_that_is_taken_away_while_it_is_read_ends_nothing(
    swarm_of: SwarmOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest, read = made(tmp_path), bases.read
    a = await swarm_of(run_of(digest)).first()
    await a.until(lambda: a.machine.complete)

    def taken_away(file: Path, *how: Any, **more: Any) -> list[bases.Pair]:
        file.unlink()
        return read(file, *how, **more)

    monkeypatch.setattr(bases, "read", taken_away)
    assert a.node.bases._local(digest) is None


async def test_bases_that_nobody_could_use_are_said_to_be_so_and_end_nothing(
    swarm_of: SwarmOf, tmp_path: Path
) -> None:
    """The run names the digest of a file of the wrong size."""
    wrong = bases.write(tmp_path, [(np.ones((3, RANK), np.int8), np.ones((4, RANK), np.int8))])
    swarm = swarm_of(run_of(wrong))
    a = await swarm.first()
    b = await swarm.join("b")
    # as it is not taken for the run's, nobody gives it: the listing comes from somebody who does
    listing = bases.listing_of(bases.path_in(tmp_path, wrong))
    a.node.sharing.listed[bytes.fromhex(wrong)] = share.Listed(listing, [], tmp_path)
    await b.until(lambda: b.node.status().alarms and b.node.status().state is NodeState.WAITING)
    assert [alarm.code for alarm in b.node.status().alarms] == ["SF082"]


async def test_an_entry_of_minus_128_is_found_before_anything_is_computed(
    swarm_of: SwarmOf, tmp_path: Path
) -> None:
    digest = made(tmp_path)
    file = bases.path_in(tmp_path, digest)
    with file.open("r+b") as opened:
        opened.write(b"\x80")
    swarm = swarm_of(run_of(bases.digest_of(file)))
    file.rename(bases.path_in(tmp_path, bases.digest_of(file)))
    a = await swarm.first()
    await a.until(lambda: a.node.status().state is NodeState.WAITING)
    assert not a.engine.epochs


@pytest.mark.parametrize(("role", "gives"), [("trainer", None), ("relay", True)])
async def test_who_gives_the_model_gives_bases(
    swarm_of: SwarmOf, tmp_path: Path, role: str, gives: bool | None
) -> None:
    digest = made(tmp_path)
    swarm = swarm_of(run_of(digest))
    swarm.node("a", make_engine=SmallEngine)
    a = await swarm.first(role=role, share_model=gives)
    await eventually(lambda: bytes.fromhex(digest) in a.node.sharing.listed)
    listing = bases.listing_of(bases.path_in(tmp_path, digest))
    wanted = bytes.fromhex(digest)
    assert await ask(a, PartRequest(wanted, 0, 0, 1000)) == PartReply(len(listing), listing)
    assert await ask(a, PartRequest(wanted, 1, 7, 2)) == PartReply(PIECE, b"\1\1")
    assert (await ask(a, PartRequest(wanted, 4, 0, 1))).size == 0


async def test_a_node_that_gives_no_model_gives_no_bases(swarm_of: SwarmOf, tmp_path: Path) -> None:
    digest = made(tmp_path)
    swarm = swarm_of(run_of(digest))
    swarm.node("a", make_engine=SmallEngine)
    a = await swarm.first(share_model=False)
    await a.until(lambda: a.node.model.loaded)
    assert await ask(a, PartRequest(bytes.fromhex(digest), 0, 0, 1000)) == PartReply(0, b"")


async def test_bases_of_a_later_subspace_are_fetched_before_it_begins(
    swarm_of: SwarmOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    work_takes_no_time(monkeypatch)
    first, second = made(tmp_path), made(tmp_path / "a" / "bases", 2)
    swarm = swarm_of(organised(run_of(first), tmp_path / "keys", subspace_epochs=2))
    a = await swarm.first(organise=True, keys_dir=tmp_path / "keys")
    await a.until(lambda: a.machine.may_compute)
    b = await swarm.join("b")
    subspace = a.machine.organised.run_state.next_subspace()
    assert await a.node.organising.decide(Bases(0, bytes.fromhex(second))) is not None
    assert await a.node.organising.decide(Bases(subspace, bytes.fromhex(second))) is None
    schedule = Bases(0, bytes.fromhex(first)), Bases(subspace, bytes.fromhex(second))
    await b.until(lambda: has(b, second))
    await a.until(lambda: a.machine.complete)
    await b.until(lambda: b.machine.complete and b.digest == a.digest)
    for node in (a, b):
        assert (await node.node.core_status()).core_digest
        assert node.engine.bases[-1] == schedule
        status = await node.client.organising()
        assert [one.digest for one in status.bases] == [first, second]
    assert f"new directions of training, {second[:16]}, are published" in caplog.text


async def test_bases_that_others_took_the_place_of_are_removed_and_those_of_later_ones_wait(
    swarm_of: SwarmOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run ends within its first subspace, so no update uses the later bases."""
    work_takes_no_time(monkeypatch)
    first, second, third, far = made(tmp_path), *(made(tmp_path / "a" / "bases", n) for n in (2, 3, 4))
    swarm = swarm_of(organised(run_of(first), tmp_path / "keys", subspace_epochs=1000))
    a = await swarm.first(organise=True, keys_dir=tmp_path / "keys")
    await a.until(lambda: a.machine.may_compute)
    b = await swarm.join("b")
    for subspace, digest in ((2, far), (1, second)):
        assert await a.node.organising.decide(Bases(subspace, bytes.fromhex(digest))) is None
    await b.until(lambda: has(b, second))
    assert await a.node.organising.decide(Bases(1, bytes.fromhex(third))) is None
    await b.until(lambda: has(b, third) and not has(b, second))
    await eventually(lambda: not has(a, second))
    assert bytes.fromhex(second) not in a.node.sharing.listed
    await b.until(lambda: b.machine.complete)
    assert [has(b, digest) for digest in (first, second, third, far)] == [True, False, True, False]
    assert has(a, far)
    assert b.engine.bases[-1] == (Bases(0, bytes.fromhex(first)), Bases(1, bytes.fromhex(third)))


async def test_many_bases_for_later_subspaces_are_neither_looked_for_nor_told_to_the_engine(
    swarm_of: SwarmOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(share, "LOOK_INTERVAL", 1000.0)
    first = made(tmp_path)
    a = await swarm_of(organised(run_of(first), tmp_path / "keys", subspace_epochs=1000)).first()
    await eventually(lambda: a.node.bases is not None and not a.node.bases.lacking())
    run_state, published, looked = a.machine.frontier.run_state, a.node.bases, list[Bases]()
    for subspace in range(1, 1000):
        run_state.apply(Recorded(Bases(subspace, subspace.to_bytes(32, "big"))))

    async def look(one: Bases) -> None:
        looked.append(one)

    monkeypatch.setattr(published, "_look_here", look)
    monkeypatch.setattr(published, "_look_among_peers", lambda: None)
    looking = asyncio.create_task(published.run())
    await eventually(lambda: bool(looked))
    looking.cancel()
    assert [one.subspace for one in looked] == [1]
    assert published.lacking() == []
