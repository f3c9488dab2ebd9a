"""A logger that appends to a file, one JSON object a line: the only one that needs no extra."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sfnode.loggers.record import Record


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

    def record(self, record: Record) -> None:
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
