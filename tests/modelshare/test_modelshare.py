"""Downloads of the base model from several peers at once: checked, resumed, and within rate limits."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from sfnode.defaults import SPARE_BYTES
from sfnode.errors import Code
from sfnode.manifest import Manifest
from sfnode.models import model_files
from sfnode.modelshare import download, sharing
from sfnode.resources.bandwidth_limits import LONGEST_HOLD, Bandwidth
from sfnode.transport.base import Asker, TransportError
from sfnode.transport.memory import MemoryTransport
from sfprotocol import wire_codec
from sfprotocol.messages import PartReply, PartRequest
from sfprotocol.model_listing import PIECE, ListedFile, decode, encode, hash_listing
from tests.node.helpers import Node, SmallEngine, Swarm, eventually, manifest
from tests.refusals import fails_with

SwarmOf = Callable[..., Swarm]
"""Makes a swarm of a run."""

PADDING = 5 * PIECE + 4321
"""Size of a file that is added to the smallest model, so that the model has several pieces."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base model of seven pieces, five of them in one file."""
    made = Path(shutil.copytree(model_files.EMBEDDED / "tiny", tmp_path_factory.mktemp("models") / "model"))
    (made / "vocab.bpe").write_bytes(os.urandom(PADDING))
    (made / "vocab.txt").write_bytes(b"")
    return made


def run_of(model: Path, **fields: Any) -> Manifest:
    """Return a run whose base model only its nodes have."""
    found = {
        "source": "/nowhere/model",
        "digest": model_files.digest(model),
        "listing": model_files.listing_hash(model),
    }
    run = manifest()
    return run.model_copy(update={"model": run.model.model_copy(update=found | fields)})


async def begun(swarm_of: SwarmOf, model: Path, **options: Any) -> tuple[Swarm, Node]:
    """Return a swarm that makes no updates, so that downloads have the CPU to themselves, and its node "a",
    which has the model and gives it."""
    swarm = swarm_of(run_of(model))
    for name in "abcri":
        swarm.node(name, make_engine=SmallEngine)
    a = await swarm.first(model=model, **options)
    await a.until(lambda: a.node.model.loaded)
    return swarm, a


def pieces(model: Path) -> int:
    return len(decode(model_files.list_model(model)).pieces())


Twist = Callable[[PartRequest, PartReply], PartReply]
"""Function that turns the right reply into the one that is sent."""


def whole_piece(model: Path) -> int:
    """Return the number of a part of the largest size."""
    parts = decode(model_files.list_model(model)).pieces()
    return next(number for number, part in enumerate(parts, start=1) if part.size == PIECE)


class Stranger:
    """A peer that has the model and answers in its own way."""

    def __init__(self, swarm: Swarm, model: Path, twist: Twist, name: str = "stranger") -> None:
        self.asked: list[int] = []
        """Parts that were requested from it."""
        self.address = f"/memory/{name}/p2p/{name}"
        self.transport = MemoryTransport(swarm.network, name)
        self._model = model
        self._listing = model_files.list_model(model)
        self._pieces = decode(self._listing).pieces()
        self._twist = twist

    async def start(self) -> Stranger:
        await self.transport.start()
        self.transport.on_request(self._answer)
        return self

    async def _answer(self, _: Asker, frame: bytes) -> bytes:
        question = wire_codec.decode(frame)
        assert isinstance(question, PartRequest)
        if question.part > len(self._pieces):  # it has all, and therefore no map
            return wire_codec.encode(sharing.NOT_HERE)
        self.asked.append(question.part)
        return wire_codec.encode(self._twist(question, self._honest(question)))

    def _honest(self, question: PartRequest) -> PartReply:
        start, length = question.offset, question.length
        if question.part == 0:
            return PartReply(len(self._listing), self._listing[start : start + length])
        piece = self._pieces[question.part - 1]
        return PartReply(piece.size, model_files.read_piece(self._model, piece, start, length))


def garbage(question: PartRequest, honest: PartReply) -> PartReply:
    """Answer with zeros, as many as asked for."""
    return PartReply(honest.size, bytes(len(honest.data))) if question.part else honest


def stalling(question: PartRequest, honest: PartReply) -> PartReply:
    """Send the beginning of a part, and then only replies that promise more."""
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
    """Claim that every part is one byte longer than all bytes requested so far."""
    return PartReply(question.offset + question.length + 1, bytes(question.length))


def same(one: Path, other: Path) -> bool:
    names = sorted(file.name for file in model_files.covered(one))
    return names == sorted(file.name for file in other.iterdir()) and all(
        (one / name).read_bytes() == (other / name).read_bytes() for name in names
    )


async def test_a_newcomer_downloads_the_model_from_peers_of_which_one_sends_garbage(
    swarm_of: SwarmOf, model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    swarm, a = await begun(swarm_of, model)
    b = await swarm.join("b", model=model)
    liar = await Stranger(swarm, model, garbage, "liar").start()
    await b.until(lambda: b.node.model.loaded)
    c = swarm.nodes["c"]
    await c.start(peers=(a.address, b.address, liar.address))
    await c.until(lambda: c.node.model.loaded)
    assert same(model, c.layout.model)
    assert not c.layout.partial_model.exists()
    assert c.settings.model == c.layout.model
    assert 0 < len(liar.asked) <= download.AT_A_TIME * -(-PIECE // wire_codec.MAX_PART_BYTES) + 1
    assert "liar sends something else" in caplog.text


@pytest.mark.parametrize("twist", [stalling, stalling_with_pieces, too_large, too_small, growing])
async def test_two_hostile_peers_do_not_keep_the_model_from_a_newcomer(
    swarm_of: SwarmOf, model: Path, twist: Twist, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "SLOW", 0.3)
    swarm, a = await begun(swarm_of, model)
    strangers = [await Stranger(swarm, model, twist, name).start() for name in ("one", "two")]
    b = swarm.nodes["b"]
    await b.start(peers=(a.address, *(stranger.address for stranger in strangers)))
    await b.until(lambda: b.node.model.loaded)
    assert same(model, b.layout.model)
    assert all(stranger.asked for stranger in strangers)


async def test_pieces_that_have_come_are_not_downloaded_again_after_a_stop(
    swarm_of: SwarmOf, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharing, "SHARE_BURST", 3.0 * PIECE)
    monkeypatch.setattr(sharing, "SHARE_RATE", 0.0)
    swarm, a = await begun(swarm_of, model)
    b = await swarm.join("b")
    await b.until(lambda: b.node.sharing.progress and b.node.sharing.progress.done >= PIECE)
    before = b.node.sharing.progress
    assert before.done < before.total == sum(file.stat().st_size for file in model_files.covered(model))
    assert not b.node.model.loaded
    status = await b.client.status()
    assert status.state == "starting"
    assert (status.fetch.total, status.fetch.peers) == (before.total, 1)
    assert before.done <= status.fetch.done < before.total
    await b.stop()
    assert not b.layout.model.exists()
    await a.stop()
    monkeypatch.setattr(sharing, "SHARE_BURST", float(before.total - before.done) + PIECE)
    await swarm.first(model=model)  # its token bucket has just enough for the rest
    await swarm.join("b")
    await b.until(lambda: b.node.model.loaded)
    assert same(model, b.layout.model)


async def test_a_damaged_piece_of_an_earlier_attempt_is_replaced(swarm_of: SwarmOf, model: Path) -> None:
    swarm, _ = await begun(swarm_of, model)
    b = swarm.nodes["b"]
    shutil.copytree(model, b.layout.partial_model)
    (b.layout.partial_model / "model.py").write_text("evil")
    with (b.layout.partial_model / "vocab.bpe").open("r+b") as file:
        file.write(b"not what it was")
        file.truncate(4 * PIECE)
    await swarm.join("b")
    await b.until(lambda: b.node.model.loaded)
    assert same(model, b.layout.model)


async def test_a_relay_that_shares_the_model_downloads_it_and_serves_it(
    swarm_of: SwarmOf, model: Path
) -> None:
    swarm, a = await begun(swarm_of, model)
    relay = await swarm.join("r", role="relay", share_model=True)
    await eventually(relay.layout.model.exists)
    idle = await swarm.join("i", role="relay")
    await a.stop()
    b = await swarm.join("b", via="r")
    await b.until(lambda: b.node.model.loaded)
    assert same(model, b.layout.model)
    assert not idle.layout.model.exists()


async def test_a_restarted_node_uses_the_model_that_it_has(swarm_of: SwarmOf, model: Path) -> None:
    swarm, a = await begun(swarm_of, model)
    b = await swarm.join("b")
    await b.until(lambda: b.node.model.loaded)
    await b.stop()
    await a.stop()
    await b.start()
    await b.until(lambda: b.node.model.loaded)
    assert b.settings.model == b.layout.model


async def test_a_listing_of_another_model_is_detected_before_anything_is_loaded(
    swarm_of: SwarmOf, model: Path
) -> None:
    swarm = swarm_of(run_of(model, digest="ab" * 32))
    swarm.node("b", make_engine=SmallEngine)
    a = await swarm.first(role="relay", share_model=True, model=model)
    await a.until(lambda: a.node.sharing.folder)
    b = await swarm.join("b")
    with fails_with(Code.MODEL_DIGEST):
        await b.ended()
    assert b.engine is None
    assert not b.layout.model.exists()
    assert not b.layout.partial_model.exists()


async def test_a_model_that_nobody_shares_cannot_be_downloaded(
    swarm_of: SwarmOf, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "PATIENCE", 0.3)
    swarm, _ = await begun(swarm_of, model, share_model=False)
    b = await swarm.join("b")
    with fails_with(Code.MODEL_NOT_FOUND) as refusal:
        await b.ended()
    assert "no peer has sent a part" in refusal.value.what


async def test_a_node_that_starts_a_run_without_its_model_says_so_at_once(
    swarm_of: SwarmOf, model: Path
) -> None:
    a = await swarm_of(run_of(model)).first()
    with fails_with(Code.MODEL_NOT_FOUND) as refusal:
        await a.ended()
    assert "/nowhere/model" in refusal.value.what


async def test_stopping_at_any_moment_of_a_download_is_clean(swarm_of: SwarmOf, model: Path) -> None:
    swarm, _ = await begun(swarm_of, model)
    for ticks in range(0, 60, 7):
        b = await swarm.join("b")
        for _ in range(ticks):
            await asyncio.sleep(0)
        await b.stop()
    await swarm.join("b")
    await b.until(lambda: b.node.model.loaded)


# -- what a node answers -----------------------------------------------------------------------------


async def ask(node: Node, question: PartRequest) -> PartReply:
    asker = MemoryTransport(node.network, "asker")
    await asker.start()
    reply = wire_codec.decode(await asker.request(node.address, wire_codec.encode(question)))
    await asker.stop()
    assert isinstance(reply, PartReply)
    return reply


async def test_a_node_sends_exactly_what_was_asked_for(swarm_of: SwarmOf, model: Path) -> None:
    wanted, encoded = bytes.fromhex(model_files.listing_hash(model)), model_files.list_model(model)
    _, a = await begun(swarm_of, model)
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
    """A node that has the model and sends a quarter of a megabyte of it, once."""
    monkeypatch.setattr(sharing, "SHARE_BURST", 250_000.0)
    monkeypatch.setattr(sharing, "SHARE_RATE", 0.0)
    _, a = await begun(swarm_of, model)
    return a


async def test_a_node_sends_no_more_than_its_rate_limit_allows(sparing: Node, model: Path) -> None:
    wanted = bytes.fromhex(model_files.listing_hash(model))
    answers = [await ask(sparing, PartRequest(wanted, whole_piece(model), 0, 100_000)) for _ in range(4)]
    assert [bool(answer.data) for answer in answers] == [True, True, False, False]
    assert answers[2] == sharing.NOT_NOW


async def test_requests_for_what_does_not_exist_use_up_nothing(sparing: Node, model: Path) -> None:
    """Otherwise small requests could use up the share of others."""
    wanted, large = bytes.fromhex(model_files.listing_hash(model)), wire_codec.MAX_PART_BYTES
    parts = decode(model_files.list_model(model)).pieces()
    number, smallest = min(enumerate(parts, start=1), key=lambda part: part[1].size)
    assert smallest.size * 20 < 250_000 - large
    for question in [PartRequest(wanted, 1, PIECE, large), PartRequest(wanted, number, 0, large)] * 10:
        assert await ask(sparing, question) != sharing.NOT_NOW
    assert len((await ask(sparing, PartRequest(wanted, whole_piece(model), 0, large))).data) == large


async def test_the_model_is_sent_and_received_within_the_nodes_limits(swarm_of: SwarmOf, model: Path) -> None:
    """The limits on links count and hold back transfers of the model, too."""
    swarm, a = await begun(swarm_of, model)
    b = await swarm.join("b")
    b.node.driver.bandwidth.set_remaining(0)
    total = sum(file.stat().st_size for file in model_files.covered(model))
    await b.until(lambda: b.node.sharing.progress)
    assert b.node.driver.bandwidth.download.total < total
    assert not b.layout.model.exists()
    b.node.driver.bandwidth.set_remaining(1e12)
    await b.until(lambda: b.node.model.loaded)
    assert b.node.driver.bandwidth.download.total >= total
    assert a.node.driver.bandwidth.upload.total >= total


async def test_many_requests_at_once_get_no_more_than_the_limit_on_sending(
    swarm_of: SwarmOf, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the links, which wait for the same rate, would be silent so long that they are dropped."""
    monkeypatch.setattr(sharing, "ANSWER_PATIENCE", 0.5)
    _, a = await begun(swarm_of, model)
    large = wire_codec.MAX_PART_BYTES
    question = PartRequest(bytes.fromhex(model_files.listing_hash(model)), whole_piece(model), 0, large)

    async def sent(rate: int) -> int:
        a.node.driver.bandwidth.upload.limit(rate)
        replies = await asyncio.gather(
            *(a.node.sharing.answer(question, Asker("b", "/memory/b")) for _ in range(32))
        )
        return sum(len(reply.data) for reply in replies)

    assert await sent(50_000) == large
    assert await sent(1000) == 0  # a single one would hold up the links for minutes


# -- one download ------------------------------------------------------------------------------------


class FailingRequest:
    """The request function of a download: notes how many bytes of pieces are asked for, and fails then."""

    def __init__(self) -> None:
        self.lengths: list[int] = []

    async def __call__(self, address: str, frame: bytes) -> bytes:
        question = wire_codec.decode(frame)
        assert isinstance(question, PartRequest)
        if question.length < 8:  # for the map: it has all pieces
            return wire_codec.encode(sharing.NOT_HERE)
        self.lengths.append(question.length)
        await asyncio.sleep(0.3)
        raise TransportError("it is gone")


def model_download(
    encoded: bytes, into: Path, *peers: str, request: FailingRequest | None = None, rate: int | None = None
) -> download.ModelDownload:
    """Return a download that may receive `rate` bytes per second."""
    rate_limit = Bandwidth().download
    rate_limit.limit(rate)
    return download.ModelDownload(
        hash_listing(encoded),
        into,
        download.Givers(
            lambda: peers,
            request or FailingRequest(),
            rate_limit,
            asyncio.get_running_loop().time,
            Random(1),
        ),
    )


@asynccontextmanager
async def downloading(into: Path, size: int, *peers: str, **how: Any) -> AsyncIterator[FailingRequest]:
    """Download a model of one file of this size from peers of these names, as long as the block runs."""
    encoded = encode([ListedFile("model.safetensors", size, bytes(32 * (size // PIECE)))])
    addresses, request = [f"/memory/{name}/p2p/{name}" for name in peers], FailingRequest()
    running = asyncio.create_task(
        model_download(encoded, into, *addresses, request=request, **how).run(encoded)
    )
    yield request
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize(("rate", "at_once"), [(None, 8), (50_000, 1)])
async def test_no_more_is_asked_for_at_once_than_may_be_received(
    tmp_path: Path, rate: int | None, at_once: int
) -> None:
    """Otherwise the links, which wait for the same rate, would hear nothing so long that they are dropped."""
    async with downloading(tmp_path / "model", 20 * PIECE, *"abcd", rate=rate) as request:
        await asyncio.sleep(0.2)
        assert len(request.lengths) == at_once
        await eventually(lambda: len(request.lengths) > at_once)  # what did not come is asked for again


async def test_ids_without_end_do_not_make_a_download_ask_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Everybody whom the roster had ever named was asked until the end, by two tasks each.
    monkeypatch.setattr(download, "MAX_SOURCES", 4)
    encoded = encode([ListedFile("model.safetensors", 40 * PIECE, bytes(32 * 40))])
    made = model_download(encoded, tmp_path / "model", request=FailingRequest())
    named = [f"/memory/{number}/p2p/peer{number}" for number in range(60)]
    made._peers = lambda: [named.pop(0) for _ in named[:3]]
    running = asyncio.create_task(made.run(encoded))
    await eventually(lambda: len(named) < 60)
    made._sources["peer0"].gave = True
    await eventually(lambda: not named)
    assert list(made._sources) == ["peer0", "peer57", "peer58", "peer59"]
    await eventually(lambda: set(made._tasks.values()) == set(made._sources.values()))
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_names_of_tasks_mean_nothing_to_a_download(tmp_path: Path) -> None:
    """Somebody who names tasks, as a debugger or a supervisor does, must not make it ask peers twice."""
    async with downloading(tmp_path / "model", 40 * PIECE, *"abcd") as request:
        for _ in range(10):  # several looks for further peers, within the time of one request
            await asyncio.sleep(0.02)
            for task in asyncio.all_tasks():
                task.set_name("a task")
        assert len(request.lengths) == 4 * download.AT_A_TIME


async def test_little_is_asked_for_at_once_where_little_may_be_received(tmp_path: Path) -> None:
    async with downloading(tmp_path / "model", PIECE, "a", rate=1000) as request:
        await eventually(lambda: request.lengths)
        assert request.lengths == [1000 * LONGEST_HOLD]


async def test_a_model_that_the_disk_has_no_room_for_is_refused_before_the_download(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nearly_full = shutil.disk_usage(tmp_path)._replace(free=SPARE_BYTES + PIECE)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: nearly_full)
    encoded = encode([ListedFile("model.safetensors", PIECE + 1, bytes(64))])
    with fails_with(Code.DISK_FULL):
        await model_download(encoded, tmp_path / "model").run(encoded)
    assert os.listdir(tmp_path / "model") == []


@pytest.mark.parametrize("name", ["modeling_evil.py", "pytorch_model.bin", "tokenizer_config.json.py"])
async def test_a_listing_with_a_file_that_no_model_needs_is_refused(name: str, tmp_path: Path) -> None:
    encoded = encode([ListedFile(name, 1, bytes(32))])
    with fails_with(Code.MODEL_UNSAFE):
        await model_download(encoded, tmp_path / "model").run(encoded)
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(("name", "most"), [("config.json", 8 << 20), ("tokenizer.json", 256 << 20)])
async def test_a_listing_with_a_file_larger_than_that_of_any_model_is_refused(
    name: str, most: int, tmp_path: Path
) -> None:
    encoded = encode([ListedFile(name, most + 1, bytes(32 * (most // PIECE + 1)))])
    with fails_with(Code.MODEL_UNSAFE) as refusal:
        await model_download(encoded, tmp_path / "model").run(encoded)
    assert f"{name} is larger" in refusal.value.what
    assert not (tmp_path / "model").exists()
