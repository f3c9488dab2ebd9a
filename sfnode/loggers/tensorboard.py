"""A logger for TensorBoard, by the writer of the `tensorboard` package: torch's own needs that package, too.

Its asynchronous writer is left out: whoever logs has a thread of its own (`sfnode.loggers.background`), which
is to see what fails.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.plugins.text import metadata as text
from tensorboard.summary.writer.record_writer import RecordWriter

from sfnode.loggers.record import Record

FORMAT = "brain.Event:2"
"""Version of the format, with which every file begins."""


class TensorBoard:
    """Event files in a folder: a scalar `kind/name` for each number, the run's settings as text."""

    def __init__(self, folder: Path) -> None:
        """Raises OSError if the folder cannot be made or written to."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._files = 0
        self._writer: RecordWriter | None = self._opened()

    def begin(self, name: str, settings: Mapping[str, object]) -> None:
        said = json.dumps({"run": name, "settings": dict(settings)}, indent=2, default=str)
        code = "\n".join(f"    {line}" for line in said.splitlines())  # as Markdown has it: nothing is markup
        tensor = TensorProto(dtype=DT_STRING, string_val=[code.encode()], tensor_shape=TensorShapeProto())
        metadata: SummaryMetadata = text.create_summary_metadata(display_name="settings", description="")
        self._write(Event(step=0, summary=Summary(
            value=[Summary.Value(tag="settings", metadata=metadata, tensor=tensor)]
        )))  # fmt: skip

    def record(self, record: Record) -> None:
        values = [
            Summary.Value(tag=f"{record.kind}/{name}", simple_value=value)
            for name, value in record.values.items()
        ]
        self._write(Event(step=record.step, summary=Summary(value=values)))

    def close(self) -> None:
        if self._writer:
            self._writer.close()

    def _write(self, event: Event) -> None:
        """Append an event. Raises OSError; the next one then begins a new file, as nobody reads on after half
        of one."""
        writer, self._writer = self._writer or self._opened(), None
        event.wall_time = time.time()
        try:
            writer.write(event.SerializeToString())
            writer.flush()
        except OSError:
            _abandon(writer)
            raise
        self._writer = writer

    def _opened(self) -> RecordWriter:
        """Begin the next file, whose name TensorBoard knows by its beginning and sorts by the time in it."""
        self._files += 1
        name = (
            f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.{self._files}"
        )
        writer = RecordWriter((self._folder / name).open("xb"))
        writer.write(Event(wall_time=time.time(), file_version=FORMAT).SerializeToString())
        writer.flush()
        return writer


def _abandon(writer: RecordWriter) -> None:
    """Close a file without what could not be written to it."""
    with suppress(OSError):
        writer.close()
