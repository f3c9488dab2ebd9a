"""Destinations for the numbers of a training run: `jsonl:FILE`, `tensorboard:FOLDER`, `wandb:PROJECT`.

`BackgroundLogger` writes to all destinations on its own thread, so that its callers never wait and never
fail. After an error of a disk, a network or a library, a line is logged and some records are lost. Optional
packages are imported only when they are used.
"""

from __future__ import annotations

import json
import math
import os
import queue
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Protocol

from sfnode.errors import Code, UserError
from sfnode.logging import log
from sfnode.printable import printable

# -- measurements, and what takes them -----------------------------------------------------------------

Kind = Literal["step", "epoch", "evaluation", "traffic"]


@dataclass(frozen=True, slots=True)
class LoggedRecord:
    """A record of values that were measured at the same time."""

    kind: Kind
    step: int
    """Position on the x-axis: number of updates known to a node, or of local steps of a simulated client."""
    values: Mapping[str, float]
    """Measured values, keyed by name in lower case with underscores: `loss`, `accuracy`, `bytes_per_edge`."""


class Logger(Protocol):
    """Interface of a destination for records."""

    def begin(self, name: str, settings: Mapping[str, object]) -> None:
        """Begin a run, once, with its name and the settings that produced its measurements."""

    def record(self, record: LoggedRecord) -> None:
        """Write a record, without blocking for long. Errors of a disk, a network or a library may be
        raised."""

    def close(self) -> None:
        """Write all remaining records, and end."""


MAX_WAITING = 1024
"""Maximum number of records that wait to be written, about 1 MB. A node makes that many in an hour, so no
record is lost if a logger is without its network for less than an hour."""

PATIENCE = 10.0
"""Default time that `close` waits for remaining records, in seconds."""

LONGEST_NAME = 128
"""Maximum number of characters of a run's name that loggers write."""


class BackgroundLogger:
    """Loggers on a separate thread. Accepts records at once, and drops them if too many wait. Without loggers
    it does nothing."""

    def __init__(self, loggers: Mapping[str, Logger], patience: float = PATIENCE) -> None:
        """`loggers` are keyed by their names in log messages. `close` closes them, and waits for at most
        `patience` seconds."""
        self.dropped = 0
        """Number of dropped records."""
        self._writers = [_Writer(name, logger) for name, logger in loggers.items()]
        self._patience = patience
        self._waiting: queue.Queue[Callable[[_Writer], None] | None] = queue.Queue(MAX_WAITING)
        self._closing = False
        self._thread = threading.Thread(target=self._work, name="loggers", daemon=True)

    def begin(self, name: str, settings: Mapping[str, object]) -> None:
        """Begin a run with all loggers. The run's name may be a stranger's text, so it is made printable and
        short."""
        if self._writers:
            self._thread.start()
        shown = printable(name)[:LONGEST_NAME]
        self._take(lambda writer: writer.begin(shown, settings))

    def record(self, record: LoggedRecord) -> None:
        self._take(lambda writer: writer.record(record))

    def close(self) -> None:
        """Wait until all records are written and all loggers are closed, for `patience` seconds at most."""
        if self._closing:
            return
        self._closing = True
        if not self._thread.is_alive():  # never begun
            self._end()
            return
        with suppress(queue.Full):  # then the thread is busy, and checks `_closing` itself
            self._waiting.put_nowait(None)
        self._thread.join(self._patience)
        if self._thread.is_alive():
            names = ", ".join(writer.name for writer in self._writers)
            log.warning("gave up waiting for %s: what was recorded last may be lost", names)

    def _take(self, work: Callable[[_Writer], None]) -> None:
        if not self._writers:
            return
        try:
            self._waiting.put_nowait(work)
        except queue.Full:
            self.dropped += 1
            if _tells(self.dropped):
                log.warning("loggers are too slow: %d records were dropped so far", self.dropped)

    def _work(self) -> None:
        while not (self._closing and self._waiting.empty()):
            if work := self._waiting.get():
                for writer in self._writers:
                    writer.attempt(work)
        self._end()

    def _end(self) -> None:
        for writer in self._writers:
            writer.attempt(lambda writer: writer.close())
        self._writers = []


class _Writer:
    """One logger, with the number of its failures."""

    def __init__(self, name: str, logger: Logger) -> None:
        self.name = name
        self._logger = logger
        self._begin: Callable[[], None] | None = None
        """Function that begins the run; None after it succeeded."""
        self._failed = 0

    def attempt(self, work: Callable[[_Writer], None]) -> None:
        """Call `work`, and log its errors: the first error, and another one whenever the number of errors has
        doubled."""
        try:
            work(self)
        except Exception as error:  # any error of a library
            self._failed += 1
            if _tells(self._failed):
                log.warning("%s fails, %d times so far: %s", self.name, self._failed, error or type(error))

    def begin(self, name: str, settings: Mapping[str, object]) -> None:
        self._begin = lambda: self._logger.begin(name, settings)
        self._begun()

    def record(self, record: LoggedRecord) -> None:
        self._begun()
        self._logger.record(record)

    def close(self) -> None:
        self._logger.close()

    def _begun(self) -> None:
        """Begin the run unless an earlier attempt has succeeded. An attempt may fail, such as without a
        network. Then the next record leads to another attempt."""
        if self._begin:
            self._begin()
            self._begin = None


def _tells(count: int) -> bool:
    return count & (count - 1) == 0


# -- JSON lines ----------------------------------------------------------------------------------------


class JsonLines:
    """Writes lines to a file: `{"run", "time", "settings"}` for each start, `{"kind", "step", "time",
    "values"}` for each record. Values that are not finite are the strings `nan`, `inf` and `-inf`."""

    def __init__(self, path: Path) -> None:
        """Raises OSError if the file cannot be appended to."""
        self._file = path.open("ab", buffering=0)
        self._torn = self._file.tell() > 0 and not _ends_a_line(path)
        """Whether the last line is incomplete, because the disk was full or the process was killed."""

    def begin(self, name: str, settings: Mapping[str, object]) -> None:
        self._write({"run": name, "time": _now(), "settings": dict(settings)})

    def record(self, record: LoggedRecord) -> None:
        values = {key: _plain(value) for key, value in record.values.items()}
        self._write({"kind": record.kind, "step": record.step, "time": _now(), "values": values})

    def close(self) -> None:
        self._file.close()

    def _write(self, said: Mapping[str, Any]) -> None:
        """Append a line. If the last line is incomplete, end that line first. Raises OSError."""
        line = b"\n" * self._torn + json.dumps(said, default=str).encode() + b"\n"
        self._torn = True
        written = self._file.write(line)
        self._torn = written != len(line)
        if self._torn:
            raise OSError("no room for the whole line")


def _ends_a_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read() == b"\n"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _plain(value: float) -> float | str:
    return value if math.isfinite(value) else str(float(value))


class TensorBoard:
    """Writes event files to a folder: a scalar `kind/name` for each value, and the run's settings as text.

    Uses the writer of the `tensorboard` package without the writer's thread, because errors must reach our
    own thread. torch's writer would need that package, too.
    """

    def __init__(self, folder: Path) -> None:
        """Raises OSError if the folder cannot be made or written to."""
        from tensorboard.compat.proto.event_pb2 import Event

        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._files = 0
        self._event = Event
        self._writer = self._opened()

    def begin(self, name: str, settings: Mapping[str, object]) -> None:
        from tensorboard.plugins.text.metadata import create_summary_metadata

        said = json.dumps({"run": name, "settings": dict(settings)}, indent=2, default=str)
        code = "\n".join(f"    {line}" for line in said.splitlines())  # a code block in Markdown
        text = {"dtype": "DT_STRING", "string_val": [code.encode()], "tensor_shape": {}}
        metadata = create_summary_metadata(display_name="settings", description="")
        self._write(0, {"tag": "settings", "metadata": metadata, "tensor": text})

    def record(self, record: LoggedRecord) -> None:
        named = {f"{record.kind}/{name}": value for name, value in record.values.items()}
        self._write(record.step, *({"tag": name, "simple_value": value} for name, value in named.items()))

    def close(self) -> None:
        if self._writer:
            self._writer.close()

    def _write(self, step: int, *values: Mapping[str, Any]) -> None:
        """Append an event. Raises OSError. After an error the next event begins a new file, because readers
        stop at an incomplete event."""
        writer, self._writer = self._writer or self._opened(), None
        try:
            self._append(writer, step=step, summary={"value": values})
        except OSError:
            with suppress(OSError):  # closes the file even if its last bytes cannot be written
                writer.close()
            raise
        self._writer = writer

    def _append(self, writer: Any, **event: Any) -> None:
        writer.write(self._event(wall_time=time.time(), **event).SerializeToString())
        writer.flush()

    def _opened(self) -> Any:
        """Begin the next file. TensorBoard recognises files by the beginning of their names, and sorts them
        by the times in their names."""
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._files += 1
        now, host = int(time.time()), socket.gethostname()
        name = f"events.out.tfevents.{now:010d}.{host}.{os.getpid()}.{self._files}"
        writer = RecordWriter((self._folder / name).open("xb"))
        self._append(writer, file_version="brain.Event:2")
        return writer


STEP = "step"
"""Name of the x-axis of all curves in wandb. wandb's own step is not used: it must never decrease, but the
number of known updates may."""


class WeightsAndBiases:
    """Writes to one run of a wandb project. Without credentials it is an offline run, which `wandb sync`
    uploads later. WANDB_MODE, WANDB_DIR and other variables determine where runs are written.

    wandb starts a process for its network traffic. That process ends when ours ends. By default wandb also
    sends the command line (which may hold an invitation), the git state and standard output. All of that is
    switched off.
    """

    def __init__(self, project: str) -> None:
        import wandb

        self._wandb = wandb
        self._project = project
        self._run: Any = None

    def begin(self, name: str, settings: Mapping[str, object]) -> None:
        wandb = self._wandb
        quiet = wandb.Settings(
            silent=True,
            console="off",
            x_save_requirements=False,
            **{f"disable_{one}": True for one in ("git", "code", "job_creation")},
            **{f"x_disable_{one}": True for one in ("meta", "stats", "machine_info")},
        )
        if wandb.setup().settings.mode == "online" and not wandb.login(prompt=False):
            log.info("no credentials for Weights & Biases: an offline run, which `wandb sync` uploads")
            quiet.mode = "offline"
        self._run = wandb.init(
            project=self._project, name=name, config=dict(settings), settings=quiet, reinit="create_new"
        )
        self._run.define_metric(STEP)
        self._run.define_metric("*", step_metric=STEP)

    def record(self, record: LoggedRecord) -> None:
        values = {f"{record.kind}/{name}": value for name, value in record.values.items()}
        self._run.log({STEP: record.step, **values})

    def close(self) -> None:
        if self._run:
            self._run.finish()


PROJECT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
"""Pattern of a project's name. wandb uses such a name unchanged, also as the name of a file."""


def opened(where: Iterable[str], patience: float = PATIENCE) -> BackgroundLogger:
    """Open these loggers on a separate thread. `patience` is the maximum time, in seconds, for which `close`
    waits for remaining records.

    Raises UserError BAD_OPTION for an unknown kind or an invalid name, EXTRA_MISSING for a package that is
    not installed, and LOGGER_UNUSABLE for a destination that cannot be written to.
    """
    return BackgroundLogger({said: _opened(said) for said in where}, patience)


def _opened(said: str) -> Logger:
    kind, _, place = said.partition(":")
    if kind not in KINDS or not place:
        forms = ", ".join(KINDS)
        raise UserError(
            Code.BAD_OPTION,
            f"--log-to {said}: there is no such logger",
            f"Give it as KIND:PLACE, such as jsonl:records.jsonl or wandb:my-project; kinds are {forms}.",
        )
    try:
        return KINDS[kind](place)
    except ImportError as error:
        raise missing(kind, f"--log-to {said}", error) from error
    except (OSError, RuntimeError, ValueError) as error:  # a user without a home, or NUL in a name
        raise UserError(
            Code.LOGGER_UNUSABLE,
            f"--log-to {said}: cannot write there: {getattr(error, 'strerror', None) or error}",
            "Name a place in a folder that exists and that you may write to.",
        ) from error


def missing(extra: str, what: str, error: ImportError) -> UserError:
    """Return the error that a package is missing which `what` needs. The user is told to install sfnode's
    extra `extra`, which contains the package."""
    return UserError(
        Code.EXTRA_MISSING,
        f"{what} needs a package that is not installed: {error}",
        f"Install it with `pip install 'sfnode[{extra}]'`.",
    )


def _project(make: Callable[[str], Logger]) -> Callable[[str], Logger]:
    def checked(place: str) -> Logger:
        if not PROJECT.fullmatch(place):
            raise UserError(
                Code.BAD_OPTION,
                f"--log-to: {place} cannot be the name of a project",
                "Take up to 64 letters, digits, - and _, a letter or digit first.",
            )
        return make(place)

    return checked


KINDS: Mapping[str, Callable[[str], Logger]] = {
    "jsonl": lambda place: JsonLines(Path(place).expanduser()),
    "tensorboard": lambda place: TensorBoard(Path(place).expanduser()),
    "wandb": _project(WeightsAndBiases),
}
"""Constructor of each kind of logger. It takes the text after the colon of KIND:PLACE."""
