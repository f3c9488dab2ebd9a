"""First questions to peers: nodes send the manifest, and other peers lead to nodes."""

from __future__ import annotations

import asyncio
import logging
from random import Random

import msgpack
import pytest

from sfnode.errors import Code, UserError
from sfnode.manifest import Manifest, run_id_of
from sfnode.peers import introductions
from sfnode.transport.base import PeerRecord
from sfnode.transport.roster import pack_record
from sfprotocol import wire_codec
from sfprotocol.messages import Goodbye, ManifestReply
from tests.node.helpers import manifest
from tests.peers.inn import Inn, from_the_future, serving
from tests.refusals import fails_with

RUN = manifest()
OLD = RUN.model_copy(update={"protocol": 1})


async def asked(
    inn: Inn, peers: tuple[str, ...], run_id: str = "", *, known: bool = False
) -> Manifest | None:
    return await introductions.run_of(inn.asker, peers, run_id, known=known, random=Random(1))


@pytest.fixture
def inn() -> Inn:
    return Inn()


async def test_the_first_peer_that_answers_well_is_enough(inn: Inn) -> None:
    peers = await inn.open(
        garbage=b"\xc1",
        other=wire_codec.encode(Goodbye("no")),
        broken=wire_codec.encode(ManifestReply(b"x")),
        good=serving(RUN),
    )
    assert await asked(inn, ("/memory/gone/p2p/gone", *peers)) == RUN


async def test_when_nobody_answers_the_user_hears_why_of_each(inn: Inn) -> None:
    peers = await inn.open(garbage=b"\xc1", other=wire_codec.encode(Goodbye("no")), silent=None)
    with fails_with(Code.PEERS_UNREACHABLE) as refusal:
        await asked(inn, ("/memory/gone/p2p/gone", *peers))
    for name in ("gone", "garbage", "other", "silent"):
        assert f"/memory/{name}/" in refusal.value.what


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        (wire_codec.encode(ManifestReply(b"")), Code.BAD_MANIFEST),
        (wire_codec.encode(ManifestReply(b"\x81\xa1a\x01")), Code.BAD_MANIFEST),
        (wire_codec.encode(ManifestReply(msgpack.packb([[[]]]))), Code.BAD_MANIFEST),
        (wire_codec.encode(ManifestReply(b"\x91" * 60_000)), Code.BAD_MANIFEST),
        (wire_codec.encode(ManifestReply(bytes(200_000))), Code.BAD_MANIFEST),
        (wire_codec.encode(ManifestReply(b"\xdc\x00\x00" + RUN.canonical())), Code.BAD_MANIFEST),
        (from_the_future(RUN), Code.NEWER_PROTOCOL),
        (serving(OLD), Code.OLDER_PROTOCOL),
    ],
)
async def test_a_manifest_that_cannot_be_used_is_the_peers_fault_and_said_so(
    inn: Inn, reply: bytes, code: Code
) -> None:
    (peer,) = await inn.open(a=reply)
    with fails_with(code) as refusal:
        await asked(inn, (peer,))
    assert peer in refusal.value.what


async def test_an_address_that_is_none_is_the_users_to_correct(inn: Inn) -> None:
    await inn.open()
    with fails_with(Code.BAD_ADDRESS):
        await asked(inn, ("nonsense",))


# -- peers of Hivemind's DHT ---------------------------------------------------------------------------


def named(*peers: str) -> list[PeerRecord]:
    return [PeerRecord(peer, (f"/memory/{peer}/p2p/{peer}",), 0, 0) for peer in peers]


def roster(inn: Inn, run: Manifest, *peers: str) -> None:
    """Put records of these peers into the roster of `run`."""
    for record in named(*peers):
        inn.network.write(run.run_id, record.peer, float("inf"), pack_record(record))


async def test_a_mixed_list_leads_to_the_run_of_its_nodes_and_what_each_is_gets_said(
    inn: Inn, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    peers = (*await inn.open(plain="bare", node=serving(RUN)), "/memory/gone/p2p/gone")
    assert await asked(inn, peers) == RUN
    said = {line.partition(" ")[0]: line for line in caplog.messages if line.startswith("/memory")}
    assert "Hivemind's DHT and no node" in said[peers[0]]
    assert "relays nothing" in said[peers[0]]
    assert said[peers[1]].endswith("is a node")
    assert "no answer" in said[peers[2]]


async def test_where_all_are_nodes_or_away_nothing_is_said_of_each(
    inn: Inn, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    peers = await inn.open(node=serving(RUN))
    assert await asked(inn, (*peers, "/memory/gone/p2p/gone")) == RUN
    assert not [line for line in caplog.messages if line.startswith("/memory")]


async def test_a_run_that_is_known_here_needs_no_node(inn: Inn) -> None:
    peers = await inn.open(plain="bare", broken=wire_codec.encode(ManifestReply(b"x")))
    assert await asked(inn, peers, known=True) is None


@pytest.mark.parametrize("run_id", ["", RUN.run_id.hex()[:16], "z" * 64])
async def test_a_run_is_looked_for_by_its_whole_id_only(inn: Inn, run_id: str) -> None:
    peers = await inn.open(plain="bare")
    with pytest.raises(UserError, match="no node at /memory/bare/p2p/bare") as refusal:
        await asked(inn, peers, run_id)
    assert refusal.value.code is Code.BAD_OPTION
    assert "--run FILE" in refusal.value.fix


async def test_the_manifest_comes_from_whoever_has_the_very_one_in_a_poisoned_roster(inn: Inn) -> None:
    """The roster names hundreds of invented nodes. Some answer with another run or with nonsense."""
    liars = {f"liar{number}": serving(manifest(f"other{number}")) for number in range(20)}
    peers = await inn.open(plain="bare", **liars, broken=b"\xc1", mute=None, node=serving(RUN))
    roster(inn, RUN, *(f"ghost{number}" for number in range(300)), *liars, "broken", "mute", "bare", "node")
    assert await asked(inn, peers[:1], RUN.run_id.hex().upper()) == RUN


async def test_a_run_of_which_nobody_is_there_is_waited_for_and_said_so(
    inn: Inn, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(introductions, "FIRST", 0.01)
    caplog.set_level(logging.INFO)
    peers = await inn.open(plain="bare", node=serving(RUN))
    waiting = asyncio.create_task(asked(inn, peers[:1], RUN.run_id.hex()))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    (said,) = [line for line in caplog.messages if "waiting for one" in line]
    assert "a private run is in no DHT" in said
    roster(inn, RUN, "node")
    async with asyncio.timeout(5):
        assert await waiting == RUN


async def test_the_manifest_of_a_later_version_is_said_to_be_one(inn: Inn) -> None:
    reply = from_the_future(RUN)
    later = wire_codec.decode(reply)
    peers = await inn.open(plain="bare", node=reply)
    run_id = run_id_of(later.manifest)
    inn.network.write(run_id, "node", float("inf"), pack_record(named("node")[0]))
    with fails_with(Code.NEWER_PROTOCOL):
        await asked(inn, peers[:1], run_id.hex())
