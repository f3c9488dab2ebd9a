"""Organised runs: their keys and their manifest."""

from __future__ import annotations

ORGANISER, SUCCESSOR = "organiser", "successor"
"""Names of the keys that sign decisions: at first, and after a succession."""

DEPUTIES = ("deputy-1", "deputy-2", "deputy-3")

VOTES = 2
