"""The subject of an examination, the options that a node would be started with; calls of slow functions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """The options of `sfnode join`, and how to examine."""

    data_dir: Path
    device: str
    dtype: str
    host_maddrs: tuple[str, ...]
    peers: tuple[str, ...] = ()
    run: Path | None = None
    model: str = ""
    """A folder, `shape:NAME`, or empty for the run's own."""
    data: Path | None = None
    ntp: tuple[str, int] | None = None
    """Time server and port; with None, no server is asked."""
    measure: bool = False
    """Measure steps even if the model is large."""

    @property
    def devices(self) -> tuple[str, ...]:
        """Devices on which a node would compute."""
        return tuple(self.device.split(","))
