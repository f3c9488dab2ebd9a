"""Tests of loggers: each kind is read back, and callers neither wait nor fail."""

from __future__ import annotations

import json
import re
import struct
import sys
import threading
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path

import pytest

from sfnode.errors import Code
from sfnode.loggers import KINDS, LONGEST_NAME, MAX_WAITING, BackgroundLogger, JsonLines, LoggedRecord, opened
from tests.refusals import refused


def record(step: int) -> LoggedRecord:
    return LoggedRecord("step", step, {"loss": 1.0})


class Memory:
    """A logger that keeps its records. It can be made to fail or to wait."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.steps: list[int] = []
        self.closed = 0
        self.fails = 0
        """Number of calls that will fail."""
        self.gate = threading.Event()
        self.gate.set()
        self.waits = threading.Event()

    def begin(self, name: str, settings: Mapping[str, object]) -> None:
        self._fail()
        self.begun.append(name)

    def record(self, record: LoggedRecord) -> None:
        self.waits.set()
        self.gate.wait(15)
        self._fail()
        self.steps.append(record.step)

    def close(self) -> None:
        self.closed += 1

    def _fail(self) -> None:
        if self.fails:
            self.fails -= 1
            raise OSError("no room")


def test_everything_that_was_recorded_is_written_in_order_before_the_end() -> None:
    one, two = Memory(), Memory()
    logger = BackgroundLogger({"one": one, "two": two})
    logger.begin("run", {})
    for step in range(100):
        logger.record(record(step))
    logger.close()
    for memory in (one, two):
        assert (memory.begun, memory.steps, memory.closed) == (["run"], list(range(100)), 1)


def test_a_failing_logger_costs_lines_in_the_log_and_neither_the_others_nor_whoever_measures(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bad, good = Memory(), Memory()
    bad.fails = 1 + 9
    logger = BackgroundLogger({"bad": bad, "good": good})
    logger.begin("run", {})
    for step in range(20):
        logger.record(record(step))
    logger.close()
    assert good.steps == list(range(20))
    assert (bad.begun, bad.steps) == (["run"], list(range(9, 20)))  # it goes on once it can
    lines = [line for line in caplog.messages if line.startswith("bad fails")]
    assert lines == [f"bad fails, {count} times so far: no room" for count in (1, 2, 4, 8)]


def test_a_slow_logger_holds_up_nobody_and_drops_what_it_has_no_room_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    slow = Memory()
    slow.gate.clear()
    logger = BackgroundLogger({"slow": slow})
    logger.begin("run", {})
    logger.record(record(0))
    assert slow.waits.wait(15)
    for step in range(1, MAX_WAITING + 6):
        logger.record(record(step))
    assert logger.dropped == 5
    assert [line for line in caplog.messages if "dropped" in line] == [
        f"loggers are too slow: {count} records were dropped so far" for count in (1, 2, 4)
    ]
    slow.gate.set()
    logger.close()
    assert slow.steps == list(range(MAX_WAITING + 1))
    assert slow.closed == 1


def test_closing_waits_no_longer_than_its_patience(caplog: pytest.LogCaptureFixture) -> None:
    stuck = Memory()
    stuck.gate.clear()
    logger = BackgroundLogger({"stuck": stuck}, patience=0.0)
    logger.begin("run", {})
    logger.record(record(0))
    assert stuck.waits.wait(15)
    logger.close()
    assert "gave up waiting for stuck" in caplog.text
    stuck.gate.set()
    logger._thread.join(15)
    assert stuck.closed == 1


def test_what_was_never_begun_is_closed_all_the_same() -> None:
    memory = Memory()
    logger = BackgroundLogger({"memory": memory})
    logger.close()
    logger.close()
    assert memory.closed == 1


def test_without_loggers_nothing_waits() -> None:
    logger = BackgroundLogger({})
    logger.begin("run", {})
    for step in range(2 * MAX_WAITING):
        logger.record(record(step))
    logger.close()
    assert logger.dropped == 0


def test_a_run_s_name_is_a_stranger_s_text() -> None:
    memory = Memory()
    logger = BackgroundLogger({"memory": memory})
    logger.begin("\x1b[2J" + "x" * 1000, {})
    logger.close()
    assert memory.begun == ["\\u001b[2J" + "x" * (LONGEST_NAME - 9)]


NAME = "../../run; rm -rf /\n"
"""Name of a run that a stranger chose."""

LINK = "sfnode:an-invitation-that-is-nobody-else-s-business"

RECORDS = (
    LoggedRecord("step", 5, {"loss": 0.5, "own_updates": 2}),
    LoggedRecord("step", 3, {"loss": float("nan"), "own_updates": 4}),  # updates known may fall
    LoggedRecord("epoch", 9, {"factor": 1.0, "counted": 9}),
)


def told(where: str) -> None:
    """Record a short run."""
    logger = opened([where], patience=100.0)  # on a busy machine a library takes its time
    logger.begin(NAME, {"rank": 4, "task": {"kind": "text"}})
    for record in RECORDS:
        logger.record(record)
    logger.close()


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_jsonl_has_a_line_for_each_start_and_each_record(tmp_path: Path) -> None:
    told(f"jsonl:{tmp_path}/a.jsonl")
    told(f"jsonl:{tmp_path}/a.jsonl")  # appends
    lines = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert len(lines) == 8
    assert [line.pop("time")[-6:] for line in lines] == ["+00:00"] * 8
    assert lines[4] == {"run": "../../run; rm -rf /\n", "settings": {"rank": 4, "task": {"kind": "text"}}}
    assert lines[5] == {"kind": "step", "step": 5, "values": {"loss": 0.5, "own_updates": 2}}
    assert lines[6]["values"] == {"loss": "nan", "own_updates": 4}


def test_a_torn_line_spoils_no_other(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"kind": "st')  # killed while it wrote
    logger = JsonLines(path)
    logger.record(RECORDS[0])
    file, logger._file = logger._file, open("/dev/full", "wb", buffering=0)  # noqa: SIM115
    with logger._file, pytest.raises(OSError, match="No space"):
        logger.record(RECORDS[0])
    logger._file = file
    logger.record(RECORDS[2])
    logger.close()
    torn, first, _, last = path.read_text().splitlines()
    assert torn == '{"kind": "st'
    assert [json.loads(line)["kind"] for line in (first, last)] == ["step", "epoch"]


def test_tensorboard_reads_scalars_and_settings(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    told(f"tensorboard:{tmp_path}/board")
    assert all(path.parent == tmp_path / "board" for path in files(tmp_path))
    events = EventAccumulator(str(tmp_path / "board")).Reload()
    assert [(one.step, one.value) for one in events.Scalars("step/own_updates")] == [(5, 2.0), (3, 4.0)]
    assert events.Scalars("step/loss")[0].value == 0.5
    assert [one.step for one in events.Scalars("epoch/factor")] == [9]
    (text,) = events.Tensors("settings")
    lines = text.tensor_proto.string_val[0].decode().splitlines()
    assert all(line.startswith("    ") for line in lines)  # code to Markdown, not markup
    assert json.loads("\n".join(lines))["run"] == NAME


def test_tensorboard_goes_on_in_a_new_file_after_one_could_not_be_written(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.directory_watcher import DirectoryWatcher
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
    from tensorboard.summary.writer.record_writer import RecordWriter

    from sfnode.loggers import TensorBoard

    logger = TensorBoard(tmp_path)
    logger.record(RECORDS[0])
    logger.close()
    logger._writer = RecordWriter(open("/dev/full", "wb"))  # noqa: SIM115
    with pytest.raises(OSError, match="No space"):
        logger.record(RECORDS[0])
    logger.record(RECORDS[2])
    logger.close()
    assert len(files(tmp_path)) == 2
    read = DirectoryWatcher(str(tmp_path), LegacyEventFileLoader).Load()
    assert [event.step for event in read if event.summary.value] == [5, 9]


@pytest.fixture
def offline_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setattr(sys, "argv", ["sfnode", "join", LINK])
    for name in ("WANDB_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    wandb.teardown()  # what it has read from the environment before
    yield tmp_path
    wandb.teardown()  # ends its process


def small_leveldb_log(path: Path) -> Iterator[bytes]:
    """Yield the records of a file of wandb. As in LevelDB's log, each has checksum, length, kind and data."""
    data, at = path.read_bytes(), 7
    assert len(data) < 32_768  # all of it is one block
    while at + 7 <= len(data):
        length, kind = struct.unpack_from("<xxxxHB", data, at)
        assert kind == 1  # in one piece
        yield data[at + 7 : at + 7 + length]
        at += 7 + length


def test_wandb_writes_an_offline_run(offline_wandb: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from wandb.proto.wandb_internal_pb2 import Record as Written

    told("wandb:project")
    import_module("wandb").teardown()  # its process writes what it was told after `finish` has returned
    (path,) = [path for path in files(offline_wandb) if path.suffix == ".wandb"]
    assert path.is_relative_to(offline_wandb / "wandb")
    written = [Written.FromString(data) for data in small_leveldb_log(path)]
    (run,) = [one.run for one in written if one.HasField("run")]
    assert (run.project, run.display_name.strip()) == ("project", NAME.strip())
    config = {one.key: json.loads(one.value_json) for one in run.config.update}
    assert config["rank"] == 4
    steps = [
        {one.key or "/".join(one.nested_key): json.loads(one.value_json) for one in line.history.item}
        for line in written
        if line.HasField("history")
    ]
    assert [line["step"] for line in steps] == [5, 3, 9]  # none is dropped
    assert [line.get("step/own_updates") for line in steps] == [2, 4, None]
    assert not any(LINK.encode() in path.read_bytes() for path in files(offline_wandb))
    assert capfd.readouterr() == ("", "")


def test_wandb_without_credentials_asks_nobody_and_is_offline(
    offline_wandb: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("WANDB_MODE")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(offline_wandb / "netrc"))
    monkeypatch.setenv("HOME", str(offline_wandb))
    with caplog.at_level("INFO"):
        told("wandb:project")
    assert "no credentials" in caplog.text
    assert [path for path in files(offline_wandb) if path.suffix == ".wandb"]


# -- what cannot be opened -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "where", ["", "jsonl", "jsonl:", "csv:a", "JSONL:a", "wandb:../up", "wandb:a/b", "wandb:", "wandb:-a"]
)
def test_what_is_no_logger_is_refused(where: str) -> None:
    with refused(Code.BAD_OPTION):
        opened([where])


@pytest.mark.parametrize("kind", ["jsonl", "tensorboard"])
def test_a_place_that_cannot_be_written_to_is_refused(kind: str, tmp_path: Path) -> None:
    if kind == "tensorboard":
        pytest.importorskip("tensorboard")
    (tmp_path / "file").touch()
    with refused(Code.LOGGER_UNUSABLE, "Not a directory"):
        opened([f"{kind}:{tmp_path}/file/below"])


@pytest.mark.parametrize("kind", sorted(KINDS.keys() - {"jsonl"}))
def test_a_package_that_is_not_installed_is_named_with_its_extra(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == kind]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, kind, None)
    with refused(Code.EXTRA_MISSING, fix=f"pip install 'sfnode[{kind}]'"):
        opened([f"{kind}:{tmp_path.name[:3]}"])


def test_a_logger_may_be_in_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    opened(["jsonl:~/a.jsonl"]).close()
    assert (tmp_path / "a.jsonl").exists()


def test_the_example_of_the_documentation_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guide = Path(__file__).parents[1] / "docs" / "views.md"
    (example,) = re.findall(r"^```python\n(.*?)^```$", guide.read_text(), re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(example, {})
    _, line = (tmp_path / "mine.jsonl").read_text().splitlines()
    assert json.loads(line)["values"] == {"loss": 0.7}


@pytest.mark.parametrize("place", ["~nobody-of-this-name/records.jsonl", "rec\0rds.jsonl"])
def test_a_place_that_cannot_be_is_refused(place: str) -> None:
    with refused(Code.LOGGER_UNUSABLE):
        opened([f"jsonl:{place}"])
