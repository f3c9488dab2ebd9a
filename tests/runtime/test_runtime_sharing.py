"""The base model from peers: several at once, each piece checked, resumed, within what a node may give."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from runtime_helpers import Node, SmallEngine, Swarm, eventually, manifest

from sfnode.config import Manifest
from sfnode.engine import folder, listing
from sfnode.errors import Code, UserError
from sfnode.runtime import fetching, sharing
from sfnode.runtime.throttle import LONGEST_HOLD, Throttle
from sfnode.transport.base import TransportError
from sfnode.transport.memory import MemoryTransport
from sfprotocol import codec
from sfprotocol.listing import PIECE, ListedFile, decode, encode, hash_listing
from sfprotocol.messages import PartReply, PartRequest

SwarmOf = Callable[..., Swarm]

PADDING = 5 * PIECE + 4321
"""Bytes of a file that makes the smallest model worth fetching in pieces."""


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(fetching, "LOOK_INTERVAL", 0.05)
    monkeypatch.setattr(fetching, "PAUSE_FIRST", 0.02)
    monkeypatch.setattr(fetching, "PAUSE_MOST", 0.1)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base model of seven pieces, five of them in one file."""
    made = Path(shutil.copytree(folder.EMBEDDED / "tiny", tmp_path_factory.mktemp("models") / "model"))
    (made / "vocab.bpe").write_bytes(os.urandom(PADDING))
    (made / "vocab.txt").write_bytes(b"")
    return made


def run_of(model: Path, **fields: Any) -> Manifest:
    """A run whose base model is nowhere but with its nodes."""
    found = {"source": "/nowhere/model", "digest": folder.digest(model), "listing": listing.hash_of(model)}
    run = manifest()
    return run.model_copy(update={"model": run.model.model_copy(update=found | fields)})


def resting(swarm: Swarm, *names: str) -> None:
    """Nodes that will make no updates, and leave their time to what is looked at here."""
    for name in names:
        swarm.node(name, make_engine=SmallEngine)


def pieces(model: Path) -> int:
    return len(decode(listing.list_model(model)).pieces())


Twist = Callable[[PartRequest, PartReply], PartReply]
"""What becomes of an honest answer."""


def whole_piece(model: Path) -> int:
    """The number of a part that is as large as one may be."""
    parts = decode(listing.list_model(model)).pieces()
    return next(number for number, part in enumerate(parts, start=1) if part.size == PIECE)


class Stranger:
    """A peer that has the model and answers in its own way."""

    def __init__(self, swarm: Swarm, model: Path, twist: Twist, name: str = "stranger") -> None:
        self.asked: list[int] = []
        """Parts that it was asked for."""
        self.address = f"/memory/{name}/p2p/{name}"
        self.transport = MemoryTransport(swarm.network, name)
        self._model = model
        self._listing = listing.list_model(model)
        self._pieces = decode(self._listing).pieces()
        self._twist = twist

    async def start(self) -> Stranger:
        await self.transport.start()
        self.transport.on_request(self._answer)
        return self

    async def _answer(self, _: str, frame: bytes) -> bytes:
        question = codec.decode(frame)
        assert isinstance(question, PartRequest)
        self.asked.append(question.part)
        return codec.encode(self._twist(question, self._honest(question)))

    def _honest(self, question: PartRequest) -> PartReply:
        start, length = question.offset, question.length
        if question.part == 0:
            return PartReply(len(self._listing), self._listing[start : start + length])
        piece = self._pieces[question.part - 1]
        return PartReply(piece.size, listing.read_piece(self._model, piece, start, length))


def garbage(question: PartRequest, honest: PartReply) -> PartReply:
    """Bytes of the right number, and nothing else."""
    return PartReply(honest.size, bytes(len(honest.data))) if question.part else honest


def stalling(question: PartRequest, honest: PartReply) -> PartReply:
    """Begins to send, and then always says that there will be more."""
    if question.offset == 0:
        return PartReply(max(honest.size, question.length + 1), honest.data.ljust(question.length))
    return sharing.NOT_NOW


def stalling_with_pieces(question: PartRequest, honest: PartReply) -> PartReply:
    return stalling(question, honest) if question.part else honest


def too_large(question: PartRequest, honest: PartReply) -> PartReply:
    return PartReply((1 << 32) - 1, honest.data.ljust(question.length))


def too_small(question: PartRequest, honest: PartReply) -> PartReply:
    return PartReply(1, b"x")


def growing(question: PartRequest, honest: PartReply) -> PartReply:
    """Says of every part that it is a little longer than what was asked for until now."""
    return PartReply(question.offset + question.length + 1, bytes(question.length))


def same(one: Path, other: Path) -> bool:
    names = sorted(file.name for file in listing.files_of(one))
    return names == sorted(file.name for file in other.iterdir()) and all(
        (one / name).read_bytes() == (other / name).read_bytes() for name in names
    )


async def test_a_newcomer_gets_the_model_from_peers_of_which_one_sends_garbage(
    swarm_of: SwarmOf, model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    swarm = swarm_of(run_of(model))
    resting(swarm, "a", "b", "c", "r", "i")
    a = await swarm.first(model=model)
    b = await swarm.join("b", model=model)
    liar = await Stranger(swarm, model, garbage, "liar").start()
    await asyncio.gather(*(node.until(lambda n=node: n.node.engine_loaded) for node in (a, b)))
    c = swarm.nodes["c"]
    await c.start(peers=(a.address, b.address, liar.address))
    await c.until(lambda: c.node.engine_loaded)
    assert same(model, c.layout.model)
    assert not c.layout.partial_model.exists()
    assert c.settings.model == c.layout.model
    assert 0 < len(liar.asked) <= fetching.AT_A_TIME * -(-PIECE // codec.MAX_PART_BYTES) + 1
    assert "liar sends something else" in caplog.text


@pytest.mark.parametrize("twist", [stalling, stalling_with_pieces, too_large, too_small, growing, garbage])
async def test_two_peers_that_mean_harm_do_not_keep_the_model_from_a_newcomer(
    swarm_of: SwarmOf, model: Path, twist: Twist, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "SLOW", 0.3)
    swarm = swarm_of(run_of(model))
    resting(swarm, "a", "b")
    a = await swarm.first(model=model)
    await a.until(lambda: a.node.engine_loaded)
    strangers = [await Stranger(swarm, model, twist, name).start() for name in ("one", "two")]
    b = swarm.nodes["b"]
    await b.start(peers=(a.address, *(stranger.address for stranger in strangers)))
    await b.until(lambda: b.node.engine_loaded)
    assert same(model, b.layout.model)
    assert all(stranger.asked for stranger in strangers)


async def test_what_has_come_is_not_fetched_again_after_a_stop(
    swarm_of: SwarmOf, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharing, "SHARE_BURST", 3.0 * PIECE)
    monkeypatch.setattr(sharing, "SHARE_RATE", 0.0)
    swarm = swarm_of(run_of(model))
    resting(swarm, "a", "b", "c", "r", "i")
    a = await swarm.first(model=model)
    await a.until(lambda: a.node.engine_loaded)
    b = await swarm.join("b")
    await b.until(lambda: b.node.sharing.progress and b.node.sharing.progress.done >= PIECE)
    before = b.node.sharing.progress
    assert before is not None
    assert before.done < before.total == sum(file.stat().st_size for file in listing.files_of(model))
    assert not b.node.engine_loaded
    status = await b.client.status()
    assert status.state == "starting"
    assert status.fetch
    assert (status.fetch.total, status.fetch.peers) == (before.total, 1)
    assert before.done <= status.fetch.done < before.total
    await b.stop()
    assert not b.layout.model.exists()
    await a.stop()
    monkeypatch.setattr(sharing, "SHARE_BURST", float(before.total - before.done) + PIECE)
    await swarm.first(model=model)  # its budget has just enough for the rest
    await swarm.join("b")
    await b.until(lambda: b.node.engine_loaded)
    assert same(model, b.layout.model)


async def test_a_damaged_piece_of_an_earlier_attempt_is_fetched_again(swarm_of: SwarmOf, model: Path) -> None:
    swarm = swarm_of(run_of(model))
    resting(swarm, "a", "b", "c", "r", "i")
    a = await swarm.first(model=model)
    await a.until(lambda: a.node.engine_loaded)
    b = swarm.nodes["b"]
    shutil.copytree(model, b.layout.partial_model)
    (b.layout.partial_model / "model.py").write_text("evil")
    with (b.layout.partial_model / "vocab.bpe").open("r+b") as file:
        file.write(b"not what it was")
        file.truncate(4 * PIECE)
    await swarm.join("b")
    await b.until(lambda: b.node.engine_loaded)
    assert same(model, b.layout.model)


async def test_a_relay_that_shares_the_model_fetches_it_and_gives_it_on(
    swarm_of: SwarmOf, model: Path
) -> None:
    swarm = swarm_of(run_of(model))
    resting(swarm, "a", "b", "c", "r", "i")
    a = await swarm.first(model=model)
    await a.until(lambda: a.node.engine_loaded)
    relay = await swarm.join("r", role="relay", share_model=True)
    await eventually(relay.layout.model.exists)
    idle = await swarm.join("i", role="relay")
    await a.stop()
    b = await swarm.join("b", via="r")
    await b.until(lambda: b.node.engine_loaded)
    assert same(model, b.layout.model)
    assert not idle.layout.model.exists()


async def test_a_node_started_again_takes_the_model_that_it_has(swarm_of: SwarmOf, model: Path) -> None:
    swarm = swarm_of(run_of(model))
    resting(swarm, "a", "b", "c", "r", "i")
    a = await swarm.first(model=model)
    b = await swarm.join("b")
    await b.until(lambda: b.node.engine_loaded)
    await b.stop()
    await a.stop()
    await b.start()
    await b.until(lambda: b.node.engine_loaded)
    assert b.settings.model == b.layout.model


async def test_a_listing_of_another_model_is_found_out_before_anything_is_loaded(
    swarm_of: SwarmOf, model: Path
) -> None:
    swarm = swarm_of(run_of(model, digest="ab" * 32))
    resting(swarm, "a", "b")
    a = await swarm.first(model=model)
    await a.until(lambda: a.node.engine_loaded)
    b = await swarm.join("b")
    with pytest.raises(UserError) as refusal:
        await b.ended()
    assert refusal.value.code == Code.MODEL_DIGEST
    assert b.engine is None
    assert not b.layout.model.exists()
    assert not b.layout.partial_model.exists()


async def test_a_model_that_nobody_shares_is_not_to_be_had(
    swarm_of: SwarmOf, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "PATIENCE", 0.3)
    swarm = swarm_of(run_of(model))
    resting(swarm, "a", "b", "c", "r", "i")
    a = await swarm.first(model=model, share_model=False)
    await a.until(lambda: a.node.engine_loaded)
    b = await swarm.join("b")
    with pytest.raises(UserError) as refusal:
        await b.ended()
    assert refusal.value.code == Code.MODEL_NOT_FOUND
    assert "not to be had from peers" in refusal.value.what


async def test_a_node_that_starts_a_run_without_its_model_says_so_at_once(
    swarm_of: SwarmOf, model: Path
) -> None:
    a = await swarm_of(run_of(model)).first()
    with pytest.raises(UserError) as refusal:
        await a.ended()
    assert refusal.value.code == Code.MODEL_NOT_FOUND
    assert "/nowhere/model" in refusal.value.what


async def test_stopping_at_any_moment_of_a_fetch_is_clean(swarm_of: SwarmOf, model: Path) -> None:
    swarm = swarm_of(run_of(model))
    resting(swarm, "a", "b", "c", "r", "i")
    a = await swarm.first(model=model)
    await a.until(lambda: a.node.engine_loaded)
    for ticks in range(0, 60, 7):
        b = await swarm.join("b")
        for _ in range(ticks):
            await asyncio.sleep(0)
        await b.stop()
    await swarm.join("b")
    await b.until(lambda: b.node.engine_loaded)


# -- what a node answers -----------------------------------------------------------------------------


async def ask(node: Node, question: PartRequest) -> PartReply:
    asker = MemoryTransport(node.network, "asker")
    await asker.start()
    reply = codec.decode(await asker.request(node.address, codec.encode(question)))
    await asker.stop()
    assert isinstance(reply, PartReply)
    return reply


async def test_a_node_gives_exactly_what_was_asked_for(swarm_of: SwarmOf, model: Path) -> None:
    run = run_of(model)
    wanted, encoded = bytes.fromhex(run.model.listing), listing.list_model(model)
    swarm = swarm_of(run)
    resting(swarm, "a")
    a = await swarm.first(model=model)
    await a.until(lambda: a.node.engine_loaded)
    assert await ask(a, PartRequest(wanted, 0, 0, 190_000)) == PartReply(len(encoded), encoded)
    assert await ask(a, PartRequest(wanted, 0, 10, 5)) == PartReply(len(encoded), encoded[10:15])
    *_, last = decode(encoded).pieces()
    content = (model / last.name).read_bytes()[last.offset :]
    assert await ask(a, PartRequest(wanted, pieces(model), 7, 9)) == PartReply(last.size, content[7:16])
    for part, offset in ((0, len(encoded)), (pieces(model), last.size), (pieces(model) + 1, 0)):
        assert await ask(a, PartRequest(wanted, part, offset, 1)) == sharing.NOT_HERE
    assert await ask(a, PartRequest(bytes(32), 0, 0, 1)) == sharing.NOT_HERE


@pytest.fixture
async def sparing(swarm_of: SwarmOf, model: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    """A node that has the model and gives a quarter of a megabyte of it, once."""
    monkeypatch.setattr(sharing, "SHARE_BURST", 250_000.0)
    monkeypatch.setattr(sharing, "SHARE_RATE", 0.0)
    swarm = swarm_of(run_of(model))
    resting(swarm, "a")
    a = await swarm.first(model=model)
    await a.until(lambda: a.node.engine_loaded)
    return a


async def test_a_node_gives_no_more_than_its_budget(sparing: Node, model: Path) -> None:
    wanted = bytes.fromhex(listing.hash_of(model))
    answers = [await ask(sparing, PartRequest(wanted, whole_piece(model), 0, 100_000)) for _ in range(4)]
    assert [bool(answer.data) for answer in answers] == [True, True, False, False]
    assert answers[2] == sharing.NOT_NOW


async def test_what_is_asked_for_and_does_not_exist_is_not_taken_from_the_budget(
    sparing: Node, model: Path
) -> None:
    """Else questions of a hundred bytes could use up what others wait for."""
    wanted, large = bytes.fromhex(listing.hash_of(model)), codec.MAX_PART_BYTES
    parts = decode(listing.list_model(model)).pieces()
    number, smallest = min(enumerate(parts, start=1), key=lambda part: part[1].size)
    assert smallest.size * 20 < 250_000 - large
    for question in [PartRequest(wanted, 1, PIECE, large), PartRequest(wanted, number, 0, large)] * 10:
        assert await ask(sparing, question) != sharing.NOT_NOW
    assert len((await ask(sparing, PartRequest(wanted, whole_piece(model), 0, large))).data) == large


async def test_the_model_is_sent_and_received_within_the_nodes_limits(swarm_of: SwarmOf, model: Path) -> None:
    """What the limits of links count, and what they hold back, includes the model."""
    swarm = swarm_of(run_of(model))
    resting(swarm, "a", "b", "c", "r", "i")
    a = await swarm.first(model=model)
    await a.until(lambda: a.node.engine_loaded)
    b = await swarm.join("b")
    b.node.driver.throttle.leave(0)
    total = sum(file.stat().st_size for file in listing.files_of(model))
    await b.until(lambda: b.node.sharing.progress)
    assert b.node.driver.throttle.download.total < total
    assert not b.layout.model.exists()
    b.node.driver.throttle.leave(1e12)
    await b.until(lambda: b.node.engine_loaded)
    assert b.node.driver.throttle.download.total >= total
    assert a.node.driver.throttle.upload.total >= total


async def test_many_questions_at_once_get_no_more_than_the_limit_on_sending(
    swarm_of: SwarmOf, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the links, which wait until it is made up for, say nothing for so long that they are dropped."""
    monkeypatch.setattr(sharing, "ANSWER_PATIENCE", 0.5)
    swarm = swarm_of(run_of(model))
    resting(swarm, "a")
    a = await swarm.first(model=model)
    await a.until(lambda: a.node.engine_loaded)
    large = codec.MAX_PART_BYTES
    question = PartRequest(bytes.fromhex(listing.hash_of(model)), whole_piece(model), 0, large)

    async def given(rate: int) -> int:
        a.node.driver.throttle.upload.limit(rate)
        replies = await asyncio.gather(*(a.node.sharing.answer(question) for _ in range(32)))
        return sum(len(reply.data) for reply in replies)

    assert await given(50_000) == large
    assert await given(1000) == 0  # one alone would hold up the links for minutes


# -- one fetch ---------------------------------------------------------------------------------------


class Asked:
    """Whom a fetch asks: it notes how many bytes, and fails after a moment."""

    def __init__(self) -> None:
        self.lengths: list[int] = []

    async def __call__(self, address: str, frame: bytes) -> bytes:
        question = codec.decode(frame)
        assert isinstance(question, PartRequest)
        self.lengths.append(question.length)
        await asyncio.sleep(0.3)
        raise TransportError("it is gone")


def fetch(
    encoded: bytes, into: Path, *peers: str, asked: Asked | None = None, rate: int = 0
) -> fetching.Fetch:
    """`rate`: what may be received a second; 0: anything."""
    lane = Throttle().download
    lane.limit(rate or None)
    clock = asyncio.get_running_loop().time
    ask = asked or Asked()
    return fetching.Fetch(hash_listing(encoded), into, ask=ask, peers=lambda: peers, lane=lane, clock=clock)


@pytest.mark.parametrize(("rate", "at_once"), [(0, 8), (50_000, 1)])
async def test_no_more_is_asked_for_at_once_than_may_be_received(
    tmp_path: Path, rate: int, at_once: int
) -> None:
    """Else the links, which wait until it is made up for, hear nothing for so long that they are dropped."""
    size, asked = 20 * PIECE, Asked()
    encoded = encode([ListedFile("model.safetensors", size, bytes(32 * (size // PIECE)))])
    peers = [f"/memory/{name}/p2p/{name}" for name in "abcd"]
    running = asyncio.create_task(
        fetch(encoded, tmp_path / "model", *peers, asked=asked, rate=rate).run(encoded)
    )
    await asyncio.sleep(0.2)
    assert len(asked.lengths) == at_once
    await eventually(lambda: len(asked.lengths) > at_once)  # what did not come is asked for again
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_little_is_asked_for_at_once_where_little_may_be_received(tmp_path: Path) -> None:
    asked, encoded = Asked(), encode([ListedFile("model.safetensors", PIECE, bytes(32))])
    running = asyncio.create_task(
        fetch(encoded, tmp_path / "model", "/memory/a/p2p/a", asked=asked, rate=1000).run(encoded)
    )
    await eventually(lambda: asked.lengths)
    assert asked.lengths == [1000 * LONGEST_HOLD]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_model_that_the_disk_has_no_room_for_is_refused_before_it_is_fetched(tmp_path: Path) -> None:
    size = min(shutil.disk_usage(tmp_path).free + PIECE, 400 << 30)
    if size < shutil.disk_usage(tmp_path).free:
        pytest.skip("this disk has room for any model")
    encoded = encode([ListedFile("model.safetensors", size, bytes(32 * -(-size // PIECE)))])
    with pytest.raises(UserError) as refusal:
        await fetch(encoded, tmp_path / "model").run(encoded)
    assert refusal.value.code == Code.DISK_FULL
    assert os.listdir(tmp_path / "model") == []


@pytest.mark.parametrize("name", ["modeling_evil.py", "pytorch_model.bin", "tokenizer_config.json.py"])
async def test_a_listing_with_a_file_that_no_model_needs_is_refused(name: str, tmp_path: Path) -> None:
    encoded = encode([ListedFile(name, 1, bytes(32))])
    with pytest.raises(UserError) as refusal:
        await fetch(encoded, tmp_path / "model").run(encoded)
    assert refusal.value.code == Code.MODEL_UNSAFE
    assert not (tmp_path / "model").exists()
