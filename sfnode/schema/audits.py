"""Results of audits: of a folder (`sfnode audit --json`), and of a running node (`status --json`)."""

from __future__ import annotations

from enum import StrEnum

from sfnode.schema.base import Answer


class Finding(StrEnum):
    """Finding of audits about an origin."""

    UNDECIDED = "undecided"
    CONFIRMED = "confirmed"
    """Its scalars are what the rows give."""
    REFUTED = "refuted"
    """They are not."""


class AuditStatus(Answer):
    """The audits of a running node since its start."""

    audited: int
    """Updates that were recomputed."""
    confirmed: int
    """Origins whose scalars are what the public rows give."""
    undecided: int
    """Origins of which neither is known yet."""
    refuted: list[str]
    """Origins whose scalars are not, up to 16 of them."""


class AuditedOrigin(Answer):
    """The outcome for one origin."""

    origin: str
    finding: Finding
    audited: int
    """Updates that were recomputed."""
    disagreement: float
    """Mean disagreement of claimed and recomputed scalars: 0 is equal, 1 the most."""
    correlation: float | None
    """Correlation of claimed and recomputed scalars; None if one of them is always the same."""


class AuditResult(Answer):
    """`sfnode audit --json`."""

    run_id: str
    dtype: str
    """Number format in which they were recomputed."""
    tolerance: float
    """Largest mean disagreement that is taken for honest."""
    audited: int
    origins: list[AuditedOrigin]
    """The most doubtful first."""
