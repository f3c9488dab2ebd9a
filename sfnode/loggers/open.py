"""Loggers by what a user writes: `jsonl:FILE`, `tensorboard:FOLDER`, `wandb:PROJECT`, `trackio:PROJECT`.

Packages that are extras are imported here, when they are asked for.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

from sfnode.errors import Code, UserError
from sfnode.loggers.background import PATIENCE, BackgroundLogger, LoggedRecord, Logger

# -- JSON lines ----------------------------------------------------------------------------------------


class JsonLines:
    """Lines in a file: `{"run", "time", "settings"}` for each start, `{"kind", "step", "time", "values"}` for
    each record. Numbers that JSON lacks are the strings `nan`, `inf` and `-inf`."""

    def __init__(self, path: Path) -> None:
        """Raises OSError if the file cannot be appended to."""
        self._file = path.open("ab", buffering=0)
        self._torn = self._file.tell() > 0 and not _ends_a_line(path)
        """Whether the last line is not whole: the disk was full, or the process was killed."""

    def begin(self, name: str, settings: Mapping[str, object]) -> None:
        self._write({"run": name, "time": _now(), "settings": dict(settings)})

    def record(self, record: LoggedRecord) -> None:
        values = {key: _plain(value) for key, value in record.values.items()}
        self._write({"kind": record.kind, "step": record.step, "time": _now(), "values": values})

    def close(self) -> None:
        self._file.close()

    def _write(self, said: Mapping[str, Any]) -> None:
        """Append a line. Raises OSError; the next line is whole again."""
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


PROJECT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
"""Names of projects, which become names of files: what wandb and trackio both take as it is."""


def opened(where: Iterable[str], patience: float = PATIENCE) -> BackgroundLogger:
    """Open these loggers, in a thread beside; `patience` as `BackgroundLogger` has it.

    Raises UserError BAD_OPTION for a kind that does not exist or a bad name, EXTRA_MISSING for a package that
    is not installed, and LOGGER_UNUSABLE for a place that cannot be written to.
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
    except (OSError, RuntimeError, ValueError) as error:  # of a user without a home, of a NUL in a name
        raise UserError(
            Code.LOGGER_UNUSABLE,
            f"--log-to {said}: cannot write there: {getattr(error, 'strerror', None) or error}",
            "Name a place in a folder that exists and that you may write to.",
        ) from error


def missing(extra: str, what: str, error: ImportError) -> UserError:
    """Return the error for a package of an extra that cannot be imported, though `what` needs it."""
    return UserError(
        Code.EXTRA_MISSING,
        f"{what} needs a package that is not installed: {error}",
        f"Install it with `pip install 'sfnode[{extra}]'`.",
    )


def _folder(place: str) -> Logger:
    module = import_module("sfnode.loggers.tensorboard")
    logger: Logger = module.TensorBoard(Path(place).expanduser())
    return logger


def _project(module: str, name: str) -> Callable[[str], Logger]:
    def make(place: str) -> Logger:
        if not PROJECT.fullmatch(place):
            raise UserError(
                Code.BAD_OPTION,
                f"--log-to: {place} cannot be the name of a project",
                "Take up to 64 letters, digits, - and _, a letter or digit first.",
            )
        logger: Logger = getattr(import_module(f"sfnode.loggers.{module}"), name)(place)
        return logger

    return make


KINDS: Mapping[str, Callable[[str], Logger]] = {
    "jsonl": lambda place: JsonLines(Path(place).expanduser()),
    "tensorboard": _folder,
    "wandb": _project("wandb", "WeightsAndBiases"),
    "trackio": _project("trackio", "Trackio"),
}
"""Function that makes a logger of each kind, given what follows the colon."""
