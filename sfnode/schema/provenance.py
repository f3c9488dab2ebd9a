"""Origin of an exported model, as far as a log tells: what its card says of it (`engine.model_card`)."""

from __future__ import annotations

from typing import NamedTuple

from sfnode.schema.organising import EpochEvaluation


class Contributor(NamedTuple):
    """An origin of which something counts."""

    origin: str
    """Key, in hex."""
    name: str
    """Display name and team that it has published of itself; "" if it has none."""
    updates: int
    """Updates of its that count."""


class EvaluatedModel(NamedTuple):
    """An evaluation that the organiser has published."""

    of: str
    """The model in words."""
    result: EpochEvaluation


class Provenance(NamedTuple):
    """The state of a run that was exported."""

    seal: int | None
    """Epoch of the seal; None in an open run, and as of now."""
    digest: str
    """Core digest of what the seal counts; else the state digest; in hex."""
    updates: int
    amended: bool = False
    """Whether decisions after the seal have changed what counts by it."""
    evaluations: tuple[EvaluatedModel, ...] = ()
    contributors: tuple[Contributor, ...] = ()
    """Those with most updates first."""
