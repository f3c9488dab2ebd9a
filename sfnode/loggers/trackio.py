"""A logger for trackio: into its local database, which `trackio show` reads; TRACKIO_DIR says where that is.

Written to with trackio's own storage. `trackio.init` would do more than is wanted: print to standard output,
ask Hugging Face who is logged in, watch the processor, and swallow what fails in a thread of its own.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import UTC, datetime

from trackio.sqlite_storage import SQLiteStorage

from sfnode.loggers.record import Record


class Trackio:
    """One run of a project."""

    def __init__(self, project: str) -> None:
        self._project = project
        self._name = ""
        self._id = uuid.uuid4().hex
        self._config: dict[str, object] | None = None
        """Settings of the run, until they are written with the first record."""

    def begin(self, name: str, settings: Mapping[str, object]) -> None:
        self._name = name
        created = {"_Username": None, "_Created": datetime.now(UTC).isoformat(), "_Group": None}
        self._config = {**settings, **created}

    def record(self, record: Record) -> None:
        values = {f"{record.kind}/{name}": value for name, value in record.values.items()}
        SQLiteStorage.bulk_log(
            self._project, self._name, [values], steps=[record.step], config=self._config, run_id=self._id
        )
        self._config = None

    def close(self) -> None:
        pass
