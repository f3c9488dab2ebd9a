"""Files of a run's data: nodes get them from each other, by their digests."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sfnode.errors import Code
from sfnode.manifest import Manifest
from sfnode.manifest.sections import Data
from sfnode.modelshare import download
from sfnode.store.named_files import NamedFiles, places_of
from sfnode.tasks import dataset, public_files
from sfnode.transport.base import Asker
from sfnode.transport.memory import MemoryTransport
from sfprotocol import wire_codec
from sfprotocol.messages import PartReply, PartRequest
from sfprotocol.model_listing import PIECE, ListedFile, encode, hash_data
from tests.modelshare.test_modelshare import ask
from tests.node.helpers import Node, SmallEngine, Swarm, eventually, manifest
from tests.refusals import fails_with

SwarmOf = Callable[..., Swarm]
COUNT = 500
ROWS = "text\n" + "".join(f"row {number} of the organiser's {'x' * 2800}\n" for number in range(COUNT))
"""Two pieces."""


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which nodes run: none of the organiser's files is there."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def run_with(folder: Path, train: str = ROWS, test: str = "") -> Manifest:
    """Write the files beside the manifest, as `sfnode init` does, and return the run."""
    texts = {"train.tsv": train} | ({"test.tsv": test} if test else {})
    for name, text in texts.items():
        (folder / name).write_text(text)
    digests = {Path(name).stem: public_files.digest_of(folder / name) for name in texts}
    data = Data.model_validate({Path(name).stem: name for name in texts} | {"digests": digests})
    return manifest().model_copy(update={"data": data})


def reading(node: Node) -> None:
    """Have a node's engine read the rows where a trainer looks for them."""

    def load(run: Manifest) -> SmallEngine:
        engine = SmallEngine(run).go()
        engine.rows = dataset.training_rows(run.data, run.task, places_of(node.layout))  # type: ignore[attr-defined]
        return engine

    node.make_engine = load


def kept(node: Node, run: Manifest, role: Any = "train") -> Path:
    return public_files.path_in(node.layout.data, run.data, role)


async def both(swarm: Swarm) -> tuple[Node, Node]:
    for name in "ab":
        reading(swarm.node(name))
    return await swarm.first(), await swarm.join("b")


async def test_a_volunteer_trains_on_a_file_that_only_the_organiser_has(
    swarm_of: SwarmOf, tmp_path: Path, elsewhere: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The link does not contain the path of the file. The size is logged before the download."""
    caplog.set_level(logging.INFO)
    run = run_with(tmp_path, test="text\nheld out\n")
    swarm = swarm_of(run)
    a, b = await both(swarm)
    await b.until(lambda: b.node.model.loaded and b.node.status().own_updates > 0)
    assert b.engine.rows == a.engine.rows
    assert len(b.engine.rows) == COUNT
    assert str(tmp_path) not in run.to_toml()
    assert "training data: 1.4 MB of 1.4 MB to download from peers" in caplog.text
    assert "test data: 14 B of 14 B" in caplog.text
    for role in ("train", "test"):
        assert public_files.digest_of(kept(b, run, role)) == run.data.digests[role]
    assert sorted(file.name for file in b.layout.data.iterdir()) == sorted(
        kept(b, run, role).name for role in ("train", "test")
    )


async def test_who_has_got_the_data_gives_them_on_and_needs_nobody_after_a_restart(
    swarm_of: SwarmOf, tmp_path: Path, elsewhere: Path
) -> None:
    run = run_with(tmp_path)
    swarm = swarm_of(run)
    a, b = await both(swarm)
    await b.until(lambda: b.node.model.loaded)
    await a.stop()
    reading(swarm.node("c"))
    c = await swarm.join("c", via="b")
    await c.until(lambda: c.node.model.loaded)
    assert c.engine.rows == b.engine.rows
    await b.stop()
    await c.stop()
    await b.start()
    await b.until(lambda: b.node.model.loaded)


async def test_a_relay_that_gives_the_model_gives_the_data(
    swarm_of: SwarmOf, tmp_path: Path, elsewhere: Path
) -> None:
    run = run_with(tmp_path)
    swarm = swarm_of(run)
    await swarm.first()
    relay = await swarm.join("r", role="relay", share_model=True)
    idle = await swarm.join("i", role="relay")
    await eventually(lambda: bytes.fromhex(run.data.digests["train"]) in relay.node.sharing.listed)
    assert not idle.layout.data.exists()
    reply = await ask(relay, PartRequest(bytes.fromhex(run.data.digests["train"]), 1, 0, 100))
    assert reply == PartReply(PIECE, ROWS[:100].encode())
    refusing = await swarm.join("n", share_model=False)
    await refusing.until(lambda: refusing.node.model.loaded)
    assert (await ask(refusing, PartRequest(bytes.fromhex(run.data.digests["train"]), 1, 0, 9))).size == 0


# -- a local file that is not what the run names -----------------------------------------------------


async def test_a_changed_file_of_the_organiser_is_refused(
    swarm_of: SwarmOf, tmp_path: Path, elsewhere: Path
) -> None:
    run = run_with(tmp_path)
    (tmp_path / "train.tsv").write_text(ROWS.replace("row 7 ", "row 8 "))
    with fails_with(Code.DATA_DIFFERS) as refusal:
        await swarm_of(run).first()
    assert f"{tmp_path / 'train.tsv'} is not what the run has as its training data" in refusal.value.what
    assert run.data.digests["train"][:16] in refusal.value.what


async def test_a_file_that_changes_later_changes_nothing(
    swarm_of: SwarmOf, tmp_path: Path, elsewhere: Path
) -> None:
    """A node keeps what it has begun with."""
    run = run_with(tmp_path)
    swarm = swarm_of(run)
    reading(swarm.node("a"))
    a = await swarm.first()
    await a.until(lambda: a.node.model.loaded)
    await a.stop()
    (tmp_path / "train.tsv").write_text("text\nothers\n")
    await swarm.first()
    await a.until(lambda: a.node.model.loaded)
    assert len(a.engine.rows) == COUNT


async def test_another_file_of_that_name_at_the_volunteers_is_not_looked_at(
    swarm_of: SwarmOf, tmp_path: Path, elsewhere: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (elsewhere / "train.tsv").write_text("text\nmy own\n")
    a, b = await both(swarm_of(run_with(tmp_path)))
    await b.until(lambda: b.node.model.loaded)
    assert b.engine.rows == a.engine.rows
    assert "is not what the run has" not in caplog.text
    assert (elsewhere / "train.tsv").read_text() == "text\nmy own\n"


async def test_a_damaged_copy_is_got_anew(swarm_of: SwarmOf, tmp_path: Path, elsewhere: Path) -> None:
    run = run_with(tmp_path)
    swarm = swarm_of(run)
    await swarm.first()
    b = swarm.node("b")
    b.layout.data.mkdir(parents=True)
    kept(b, run).write_text(ROWS.upper())
    await swarm.join("b")
    await b.until(lambda: b.node.model.loaded)
    assert kept(b, run).read_text() == ROWS


async def test_own_rows_need_no_training_data_of_the_run(
    swarm_of: SwarmOf, tmp_path: Path, elsewhere: Path
) -> None:
    run = run_with(tmp_path, test="text\nheld out\n")
    swarm = swarm_of(run)
    await swarm.first()
    (elsewhere / "mine.tsv").write_text("text\nmine\n")
    b = await swarm.join("b", data=elsewhere / "mine.tsv")
    await b.until(lambda: b.node.model.loaded)
    assert kept(b, run, "test").exists()
    assert not kept(b, run).exists()


# -- peers that send garbage, or nothing -------------------------------------------------------------


class Stranger:
    """A peer that claims to have a file, in pieces of zeros under a listing of its choice."""

    def __init__(self, swarm: Swarm, listing: bytes) -> None:
        self.address = "/memory/stranger/p2p/stranger"
        self._listing = listing
        self._transport = MemoryTransport(swarm.network, "stranger")

    async def start(self) -> Stranger:
        await self._transport.start()
        self._transport.on_request(self._answer)
        return self

    async def _answer(self, _: Asker, frame: bytes) -> bytes:
        question = wire_codec.decode(frame)
        assert isinstance(question, PartRequest)
        whole = [self._listing, bytes(PIECE), b""][min(question.part, 2)]
        data = whole[question.offset : question.offset + question.length]
        return wire_codec.encode(PartReply(len(whole), data))


async def test_a_download_goes_on_where_it_stopped(
    swarm_of: SwarmOf, tmp_path: Path, elsewhere: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    run = run_with(tmp_path)
    swarm = swarm_of(run)
    await swarm.first()
    b = swarm.node("b")
    arriving = b.layout.data / f"{run.data.digests['train']}.partial"
    arriving.mkdir(parents=True)
    (arriving / public_files.FILE).write_bytes(ROWS[:PIECE].encode())
    await swarm.join("b")
    await b.until(lambda: b.node.model.loaded)
    assert f"training data: {(len(ROWS) - PIECE) / 1e3:.0f} kB of 1.4 MB to download" in caplog.text
    assert not arriving.exists()


async def test_data_that_nobody_sends_are_asked_for_and_then_said_to_be_missing(
    swarm_of: SwarmOf, tmp_path: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "PATIENCE", 0.3)
    swarm = swarm_of(run_with(tmp_path))
    a = await swarm.first(share_model=False)
    await a.until(lambda: a.node.model.loaded)
    b = await swarm.join("b")
    with fails_with(Code.DATA_NOT_FOUND) as refusal:
        await b.ended()
    assert "no peer has sent a part of the training data" in refusal.value.what
    assert b.engine is None


async def test_without_test_data_a_node_trains_and_says_what_is_lacking(
    swarm_of: SwarmOf, tmp_path: Path, elsewhere: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = run_with(tmp_path, test="text\nheld out\n")
    (tmp_path / "test.tsv").unlink()
    a = await swarm_of(run).first()
    await a.until(lambda: a.node.model.loaded)
    assert "the run's test data, test.tsv" in caplog.text


@pytest.mark.parametrize(
    ("files", "code"),
    [
        ([ListedFile("data", (8 << 30), bytes(32 * 8192))], Code.DATA_TOO_LARGE),
        ([ListedFile("model.py", 1, bytes(32))], Code.BAD_MANIFEST),
        ([ListedFile("data", 1, bytes(32)), ListedFile("more", 1, bytes(32))], Code.BAD_MANIFEST),
        ([], Code.BAD_MANIFEST),
    ],
)
async def test_what_a_manifest_must_not_name_is_refused_before_any_piece_is_asked_for(
    swarm_of: SwarmOf, tmp_path: Path, elsewhere: Path, files: list[ListedFile], code: Code
) -> None:
    listing = encode(files) if files else b"\x90"
    data = Data(train="train.tsv", digests={"train": hash_data(listing).hex()})
    swarm = swarm_of(manifest().model_copy(update={"data": data}))
    await swarm.first(role="relay")
    stranger = await Stranger(swarm, listing).start()
    b = swarm.node("b")
    await b.start(peers=("/memory/a/p2p/a", stranger.address))
    with fails_with(code):
        await b.ended()
    assert list(b.layout.data.glob("**/*")) == []


# -- a run without public data -----------------------------------------------------------------------


async def test_a_run_without_public_data_says_so_before_anything_is_downloaded(
    swarm_of: SwarmOf, tmp_path: Path, elsewhere: Path
) -> None:
    run = manifest().model_copy(update={"data": Data()})
    swarm = swarm_of(run)
    await swarm.first(role="relay")
    with fails_with(Code.DATA_NEEDED) as refusal:
        await swarm.join("b")
    assert "this run wants your own data" in refusal.value.what
    assert "--data FILE" in refusal.value.fix
    assert '{"text": "some text"}' in refusal.value.fix


# -- a run whose data are a file of somebody's own ----------------------------------------------------


@pytest.mark.parametrize("source", ["{folder}/train.tsv", "train.tsv", "~/train.tsv", "hf:text:train"])
async def test_a_manifest_from_peers_opens_no_file_of_a_volunteer(
    source: str, swarm_of: SwarmOf, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(elsewhere))
    (elsewhere / "train.tsv").write_text("text\nmy own\n")
    data = Data(train=source.format(folder=elsewhere))
    swarm = swarm_of(manifest().model_copy(update={"data": data}))
    await swarm.first(role="relay")
    with fails_with(Code.DATA_NOT_NAMED) as refusal:
        await swarm.join("b")
    assert "--data FILE" in refusal.value.fix


async def test_the_owner_of_a_run_trains_on_files_beside_its_manifest_now_and_later(
    swarm_of: SwarmOf, tmp_path: Path, elsewhere: Path
) -> None:
    run = run_with(tmp_path)
    swarm = swarm_of(run.model_copy(update={"data": Data(train="train.tsv")}))
    reading(swarm.node("a"))
    a = await swarm.first()
    await a.until(lambda: a.node.model.loaded)
    assert len(a.engine.rows) == COUNT
    await a.stop()
    await a.start()
    await a.until(lambda: a.node.model.loaded)
    assert len(a.engine.rows) == COUNT
    assert not a.layout.data.exists()


async def test_a_folder_remembers_the_files_that_its_owner_has_named(
    swarm_of: SwarmOf, tmp_path: Path, elsewhere: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    (elsewhere / "mine.tsv").write_text("text\nmine\n")
    (elsewhere / "test.tsv").write_text("text\nheld out\n")
    swarm = swarm_of(manifest().model_copy(update={"data": Data(test="their/test.tsv")}))
    await swarm.first(role="relay")
    b = await swarm.join("b", data=Path("mine.tsv"), test=Path("test.tsv"))
    await b.until(lambda: b.node.model.loaded)
    await b.stop()
    named = NamedFiles.read(b.layout)
    assert (named.data, named.test) == (elsewhere / "mine.tsv", elsewhere / "test.tsv")
    await b.start()
    await b.until(lambda: b.node.model.loaded)
    assert b.node.settings.data == elsewhere / "mine.tsv"
    assert f"data is as before: {elsewhere / 'mine.tsv'}" in caplog.text
    run = swarm.run
    assert dataset.held_out_rows(run.data, run.task, "test", places=places_of(b.layout))
