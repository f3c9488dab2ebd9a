"""Hardware: what a disk and a processor cost. What goes wrong at which moment is in `faults`."""

from __future__ import annotations

from dataclasses import dataclass

Range = tuple[float, float]
"""Bounds between which a number is drawn uniformly."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """Speed of a node's disk and processor."""

    commit: Range = (0.001, 0.004)
    """Seconds of a commit until it is durable: an SSD with its journal."""
    work: float = 0.0
    """Seconds of processor time per event; 0 leaves them out."""


ORDINARY = Hardware()
