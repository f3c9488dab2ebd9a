"""Before a node runs: which run it joins, and which feed it continues."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random, SystemRandom
from typing import Any

import pytest

from sfnode.daemon import Node
from sfnode.defaults import SPARE_BYTES
from sfnode.engine.loading import training_rows
from sfnode.errors import Code, UserError
from sfnode.manifest import Manifest
from sfnode.manifest.sections import Data, OpenSection
from sfnode.models import model_files
from sfnode.models.model_files import EMBEDDED
from sfnode.node import equipment, startup
from sfnode.node.outside import Outside
from sfnode.settings import Settings
from sfnode.store import database
from sfnode.store.data_folder import DataDir, open_data_dir
from sfnode.store.identity import Identity, load_or_create
from sfnode.store.log import UpdateLog
from sfnode.store.replay import frontier_of
from sfnode.tasks import row_files
from sfnode.tasks.public_files import NOWHERE
from sfprotocol.decisions import INCARNATIONS
from sfprotocol.messages import Feed
from tests.node.helpers import Swarm, eventually, feed_of, manifest, record
from tests.peers.inn import Inn, answering, from_the_future, serving
from tests.refusals import fails_with, refused
from tests.store.organised import ORGANISED

RUN = manifest()
OLD = RUN.model_copy(update={"protocol": 1})

DRAW = partial(startup.draw_incarnation, SystemRandom())


@pytest.fixture
def data_dir(tmp_path: Path) -> Iterator[DataDir]:
    with open_data_dir(tmp_path / "node") as folder:
        yield folder


def write(path: Path, run: Manifest) -> Path:
    path.write_text(run.to_toml())
    return path


def settings(data_dir: DataDir, **fields: Any) -> Settings:
    return Settings(data_dir=data_dir.path, **fields)


# -- the manifest here ---------------------------------------------------------------------------------


def test_the_manifest_is_the_given_one_or_the_kept_one_or_none(tmp_path: Path, data_dir: DataDir) -> None:
    assert startup.local_manifest(settings(data_dir), data_dir) is None
    given = write(tmp_path / "run.toml", RUN)
    assert startup.local_manifest(settings(data_dir, run=given), data_dir) == RUN
    write(data_dir.manifest, RUN)
    assert startup.local_manifest(settings(data_dir), data_dir) == RUN
    assert startup.local_manifest(settings(data_dir, run=given), data_dir) == RUN


@pytest.mark.parametrize(
    ("given", "kept", "run_id", "code", "says"),
    [
        (OLD, None, "", Code.OLDER_PROTOCOL, "protocol"),
        (None, OLD, "", Code.OLDER_PROTOCOL, "protocol"),
        (manifest("other"), RUN, "", Code.WRONG_RUN, r"\(test\), not to .*\(other\)"),
        (None, RUN, f"beef{RUN.run_id.hex()}", Code.WRONG_RUN, "this is run"),
    ],
    ids=["version 1 given", "version 1 kept", "a folder of another run", "another run id"],
)
def test_a_run_that_cannot_be_joined_here_is_refused(
    given: Manifest | None,
    kept: Manifest | None,
    run_id: str,
    code: Code,
    says: str,
    tmp_path: Path,
    data_dir: DataDir,
) -> None:
    if kept:
        write(data_dir.manifest, kept)
    run = write(tmp_path / "run.toml", given) if given else None
    with pytest.raises(UserError, match=says) as refusal:
        startup.local_manifest(settings(data_dir, run=run, run_id=run_id), data_dir)
    assert refusal.value.code == code


@pytest.mark.parametrize("wanted", ["", RUN.run_id.hex(), RUN.run_id.hex()[:8], RUN.run_id.hex()[:8].upper()])
def test_a_run_id_may_be_shortened(wanted: str) -> None:
    startup.check_run_id(RUN, wanted)


def test_a_trainer_that_could_not_read_the_runs_data_hears_so_before_it_downloads_anything(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(row_files, "find_spec", lambda _name: None)
    run = manifest()
    hub = run.model_copy(update={"data": run.data.model_copy(update={"train": "hf:nobody/set:train"})})
    with fails_with(Code.EXTRA_MISSING):
        equipment.require_rows(Settings(), hub, NOWHERE, began=False)
    (tmp_path / "mine.csv").write_text("text,label\nfine,1\n")
    equipment.require_rows(Settings(data=tmp_path / "mine.csv"), hub, NOWHERE, began=False)


# -- what this machine lacks ---------------------------------------------------------------------------


def other_model(folder: Path) -> Path:
    shutil.copytree(EMBEDDED / "tiny", folder)
    (folder / "config.json").write_text("{}")
    return folder


def on(data: Data, **fields: Any) -> Manifest:
    return RUN.model_copy(update={"data": data, **fields})


LACKING: dict[str, tuple[Code, Callable[[Path], tuple[Manifest, dict[str, Any]]]]] = {
    "device": (Code.DEVICE, lambda _: (RUN, {"device": "cuda:63"})),
    "one of two devices": (Code.DEVICE, lambda _: (RUN, {"device": "cpu,nonsense"})),
    "no model": (Code.MODEL_NOT_FOUND, lambda folder: (RUN, {"model": folder / "none"})),
    "another model": (Code.MODEL_DIGEST, lambda folder: (RUN, {"model": other_model(folder / "model")})),
    "own data": (Code.DATA_NOT_FOUND, lambda folder: (RUN, {"data": folder / "none.tsv"})),
    "the run's data": (Code.DATA_NOT_NAMED, lambda folder: (on(Data(train=f"{folder}/none.tsv")), {})),
    "shared data, and nobody to ask": (
        Code.DATA_NOT_FOUND,
        lambda _: (on(Data(train="none.tsv", digests={"train": "ab" * 32})), {}),
    ),
    "no data": (Code.DATA_NEEDED, lambda _: (on(Data()), {})),
}


@pytest.mark.parametrize("what", LACKING)
async def test_what_a_node_lacks_is_said_before_the_network_is_touched(what: str, tmp_path: Path) -> None:
    code, lacking = LACKING[what]
    run, fields = lacking(tmp_path)
    chosen = Settings(data_dir=tmp_path / "node", run=write(tmp_path / "run.toml", run), **fields)
    with fails_with(code):
        await Node(chosen, make_transport=no_network).start()
    relay = equipment.equipped(chosen.model_copy(update={"role": "relay"}), run, DataDir(tmp_path, 0))
    assert relay.role == "relay", "it computes nothing, and lacks nothing"


def no_network(*_: object) -> Any:
    raise AssertionError("the network was touched")


async def test_a_device_is_tried_even_where_the_run_is_not_known_yet(tmp_path: Path) -> None:
    chosen = Settings(data_dir=tmp_path / "node", peers=("/memory/a/p2p/a",), device="cuda:63")
    with fails_with(Code.DEVICE):
        await Node(chosen, make_transport=no_network).start()


async def test_a_disk_without_room_is_told_before_the_network_is_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = shutil.disk_usage(tmp_path)._replace(free=SPARE_BYTES - 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: full)
    with fails_with(Code.DISK_FULL) as refused:
        await Node(Settings(data_dir=tmp_path / "node", role="relay"), make_transport=no_network).start()
    assert "67.1 MB" in refused.value.what


def test_a_model_is_read_once_to_see_that_it_is_the_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine checks it again, but only after it has read a large model."""
    folder, read = tmp_path / "model", []
    shutil.copytree(EMBEDDED / "tiny", folder)
    wanted = model_files.digest(folder)
    monkeypatch.setattr(model_files, "digest", lambda one: read.append(one) or wanted)
    for _ in range(3):
        model_files.check_digest(folder, wanted)
    assert read == [folder]
    (folder / "config.json").write_text("{}")
    model_files.check_digest(folder, wanted)
    assert read == [folder, folder]


def test_all_rows_of_a_trainers_own_are_looked_at_before_anything_is_downloaded(
    tmp_path: Path,
) -> None:
    (tmp_path / "mine.csv").write_text("text,label\nfine,1\n,0\npoor,0\n,1\n")
    given = Settings(data=tmp_path / "mine.csv")
    with refused(Code.DATA_MALFORMED, "2 of the 4 rows of "):
        equipment.require_rows(given, manifest(), NOWHERE, began=False)
    skipping = given.model_copy(update={"skip_bad_rows": True})
    equipment.require_rows(skipping, manifest(), NOWHERE, began=False)


WRITTEN = {
    "by Excel": "sep=;\ntext;label\ngut;1\nhässlich;0\n".encode("utf-8-sig"),
    "by an old Excel": "text;label\ngut;1\nhässlich;0\n".encode("cp1252"),
    "as Unicode text": "text,label\ngut,1\nhässlich,0\n".encode("utf-16"),
}
"""A table as other programs write it."""


@pytest.mark.parametrize("program", WRITTEN)
def test_a_table_of_a_trainers_own_is_read_in_whichever_way_a_program_has_written_it(
    program: str, tmp_path: Path
) -> None:
    file = tmp_path / "mine.csv"
    file.write_bytes(WRITTEN[program])
    equipment.require_rows(Settings(data=file), manifest(), NOWHERE, began=False)
    rows, public = training_rows(manifest(), file, None, NOWHERE)
    assert [row["text"] for row in rows] == ["gut", "hässlich"]
    assert public is None


# -- the manifest of peers -----------------------------------------------------------------------------


@pytest.fixture
def inn() -> Inn:
    return Inn()


async def test_a_manifest_that_was_fetched_is_kept_and_not_fetched_again(inn: Inn, data_dir: DataDir) -> None:
    peers = await inn.open(a=serving(RUN))
    chosen = settings(data_dir, peers=peers)
    assert await startup.agree_on_manifest(chosen, None, inn.asker, data_dir, Random(1)) == RUN
    assert Manifest.from_toml(data_dir.manifest) == RUN
    away = settings(data_dir, peers=("/memory/gone/p2p/gone",))
    local = startup.local_manifest(away, data_dir)
    assert await startup.agree_on_manifest(away, local, inn.asker, data_dir, Random(1)) == RUN


ALIKE = next(one for n in range(1000) if (one := manifest(f"o{n}")).run_id.hex()[0] == RUN.run_id.hex()[0])
"""Another run whose id has the same first digit."""


@pytest.mark.parametrize(
    ("theirs", "ours", "run_id"),
    [(manifest("other"), RUN, ""), (ALIKE, RUN, RUN.run_id.hex()[:1]), (RUN, None, "00")],
    ids=["another manifest", "another with the wanted digit", "another than the wanted id"],
)
async def test_peers_of_another_run_are_refused(
    inn: Inn, data_dir: DataDir, theirs: Manifest, ours: Manifest | None, run_id: str
) -> None:
    peers = await inn.open(a=serving(theirs))
    with fails_with(Code.WRONG_RUN):
        await startup.agree_on_manifest(
            settings(data_dir, peers=peers, run_id=run_id), ours, inn.asker, data_dir, Random(1)
        )
    assert not data_dir.manifest.exists()


async def test_without_a_run_and_without_peers_there_is_nothing_to_join(inn: Inn, data_dir: DataDir) -> None:
    with fails_with(Code.BAD_OPTION):
        await startup.agree_on_manifest(settings(data_dir), None, inn.asker, data_dir, Random(1))


# -- the own feed --------------------------------------------------------------------------------------


def own_feed(log: UpdateLog, me: Identity) -> tuple[Feed, bool]:
    return startup.own_feed(log, me, frontier_of(RUN.parameters(), log), DRAW)


def test_a_fresh_folder_starts_a_feed_and_goes_on_with_it(data_dir: DataDir) -> None:
    me = load_or_create(data_dir.identity)
    with UpdateLog.open(data_dir.log, RUN.run_id) as log:
        feed, proven = own_feed(log, me)
        assert feed.origin == me.public
        assert proven
    with UpdateLog.open(data_dir.log, RUN.run_id) as log:
        assert own_feed(log, me) == (feed, True)
        startup.remember_peers(log, [])
    with UpdateLog.open(data_dir.log, RUN.run_id) as log:
        assert own_feed(log, me) == (feed, False)  # somebody may know more by now


def test_a_copied_folder_starts_another_feed_and_so_does_a_copy_of_that(
    data_dir: DataDir, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    me, seen, source = load_or_create(data_dir.identity), set[Feed](), data_dir.log
    with UpdateLog.open(source, RUN.run_id) as log:
        seen.add(own_feed(log, me)[0])
        startup.remember_peers(log, [])
    caplog.set_level("INFO")
    for number in range(3):
        copy = tmp_path / f"copy{number}.sqlite"
        shutil.copy(source, copy)
        with UpdateLog.open(copy, RUN.run_id) as log:
            feed, proven = own_feed(log, me)
            assert proven
            seen.add(feed)
        with UpdateLog.open(copy, RUN.run_id) as log:
            assert own_feed(log, me) == (feed, False)
        source = copy
    assert len(seen) == 4
    assert caplog.text == "", "nobody has ever heard of these feeds"


@pytest.mark.parametrize("generation", [0, 7])
def test_a_folder_keeps_its_peer_id_from_start_to_start_and_a_copy_gets_another(
    data_dir: DataDir, generation: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link names a peer by its id. Some file systems tell a copy by the generation of its inode."""
    monkeypatch.setattr(database, "inode_generation", lambda path: path.touch() or generation)
    me = load_or_create(data_dir.identity)
    with UpdateLog.open(data_dir.log, RUN.run_id) as log:
        own_feed(log, me)
    data_dir.libp2p_identity.touch()
    startup.renew_copied_peer_id(RUN, data_dir)
    assert data_dir.libp2p_identity.exists()
    copy = data_dir.log.with_suffix(".copy")
    shutil.copy(data_dir.log, copy)
    copy.replace(data_dir.log)
    startup.renew_copied_peer_id(RUN, data_dir)
    assert not data_dir.libp2p_identity.exists()


def test_who_has_said_something_hears_that_it_goes_on_under_another_name(
    data_dir: DataDir, caplog: pytest.LogCaptureFixture
) -> None:
    newcomer, author = feed_of("newcomer"), feed_of("a")
    with UpdateLog.open(data_dir.log, RUN.run_id) as log:
        log.append([record(RUN, "a", [1, 2, 3])])
        for last in (None, newcomer, author):
            startup.tell_of_new_feed(log, last, f"the feed of {last and last.origin.hex()[:4]} was copied")
    warned = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    why = f"the feed of {author.origin.hex()[:4]} was copied"
    assert warned == [f"{why}; its work goes on as that of a new node, with the same key"]


WORKING = RUN.model_copy(update={"open": OpenSection(work_bits=10)})


async def begun(data_dir: DataDir, log: UpdateLog) -> Feed:
    """Return the feed with which a trainer begins in a run with proofs of work."""
    async with startup.incarnations(settings(data_dir), WORKING, data_dir, log, SystemRandom()) as draw:
        machine = startup.open_machine(settings(data_dir), WORKING, data_dir, log, 0.0, draw, Outside())
        assert not machine.frontier.excludes(machine.own)
        spare = Feed(machine.own.origin, draw())
        assert not machine.frontier.excludes(spare)
        assert spare != machine.own
        return machine.own


async def test_a_node_of_an_open_run_begins_with_a_proof_of_work_and_keeps_it(data_dir: DataDir) -> None:
    with UpdateLog.open(data_dir.log, WORKING.run_id) as log:
        assert await begun(data_dir, log) == await begun(data_dir, log)


async def test_the_search_for_a_first_feed_can_be_interrupted_and_is_no_secret(
    data_dir: DataDir, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(startup, "SILENT_WORK", 0.0)
    impossible = RUN.model_copy(update={"open": OpenSection.model_construct(quota=0, work_bits=200)})
    caplog.set_level("INFO")
    with UpdateLog.open(data_dir.log, impossible.run_id) as log:
        starting = asyncio.create_task(
            startup.incarnations(settings(data_dir), impossible, data_dir, log, SystemRandom()).__aenter__()
        )
        await eventually(lambda: "hashes on average" in caplog.text)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting


def test_a_feed_that_the_organiser_has_ended_is_not_continued(data_dir: DataDir) -> None:
    """The end of the feed is the effect of an Amend, not of a fork proof."""
    me = load_or_create(data_dir.identity)
    with UpdateLog.open(data_dir.log, RUN.run_id) as log:
        feed, _ = own_feed(log, me)
        frontier = frontier_of(RUN.parameters(), log)
        frontier.advance(feed, 3, bytes(32), 0)
        assert startup.own_feed(log, me, frontier, DRAW)[0] == feed
        frontier.named(feed, 3, ended=3)
        assert startup.own_feed(log, me, frontier, DRAW)[0] != feed


@pytest.mark.parametrize("drawn", [0, 1, INCARNATIONS, 2**32 - 1])
def test_a_key_in_a_folder_without_a_log_goes_on_with_another_feed_than_new_keys_begin_with(
    drawn: int, data_dir: DataDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder is as `sfnode keys restore` leaves it. The updates that the key has signed are not known
    yet."""
    monkeypatch.setattr(Manifest, "parameters", lambda _: ORGANISED)

    def begun(folder: DataDir) -> Feed | None:
        with UpdateLog.open(folder.log, ORGANISED.run_id) as log:
            return startup.open_machine(settings(folder), RUN, folder, log, 0.0, lambda: drawn, Outside()).own

    first = begun(data_dir)
    with open_data_dir(tmp_path / "new") as folder:
        shutil.copy(data_dir.identity, folder.identity)
        restored = begun(folder)
    assert restored.origin == first.origin
    assert 0 == first.incarnation < restored.incarnation < INCARNATIONS


def test_a_relay_that_becomes_a_trainer_is_not_taken_for_a_copy(
    data_dir: DataDir, caplog: pytest.LogCaptureFixture
) -> None:
    with UpdateLog.open(data_dir.log, RUN.run_id) as log:
        relaying = settings(data_dir, role="relay")
        assert startup.open_machine(relaying, RUN, data_dir, log, 0.0, DRAW, Outside()).own is None
        log.append([record(RUN, "other", [1, 2])])
        assert startup.open_machine(settings(data_dir), RUN, data_dir, log, 0.0, DRAW, Outside()).may_compute
    assert caplog.text == ""


def test_a_key_that_others_could_read_is_a_warning(
    data_dir: DataDir, caplog: pytest.LogCaptureFixture
) -> None:
    load_or_create(data_dir.identity)
    data_dir.identity.chmod(0o644)
    with UpdateLog.open(data_dir.log, RUN.run_id) as log:
        startup.open_machine(settings(data_dir), RUN, data_dir, log, 0.0, DRAW, Outside())
    assert "may be able to sign as this node" in caplog.text


def test_addresses_are_remembered_as_they_were(data_dir: DataDir) -> None:
    with UpdateLog.open(data_dir.log, RUN.run_id) as log:
        assert startup.remembered_peers(log) == []
        startup.remember_peers(log, ["/a/p2p/x", "/b/p2p/y"])
        assert startup.remembered_peers(log) == ["/a/p2p/x", "/b/p2p/y"]


# -- by the front door -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("field", "code"), [("wrong", Code.WRONG_RUN), ("future", Code.NEWER_PROTOCOL)])
async def test_a_node_that_may_not_join_leaves_nothing_running(swarm: Swarm, field: str, code: Code) -> None:
    a = await swarm.first()
    if field == "future":
        a.transport.on_request(answering(from_the_future(RUN)))
    with fails_with(code):
        await swarm.join("b", run_id="00" if field == "wrong" else "")
    assert not swarm.nodes["b"].layout.log.exists()
    with open_data_dir(swarm.nodes["b"].folder):
        pass
