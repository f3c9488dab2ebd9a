"""Findings of checks: subject, verdict, cause and fix; the shape of `sfnode doctor --json`.

The numbers are stable and listed in docs/doctor.md. This module is independent of the checks.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Literal

from pydantic import BaseModel, ConfigDict

from sfnode.errors import UserError
from sfnode.settings import Settings

Verdict = Literal["ok", "note", "problem"]


class Subject(IntEnum):
    """Subjects of findings, with numbers by area: 1x clock, 2x disk, 3x computing, 4x own network, 5x peers,
    6x run, 9x command."""

    CLOCK = 10
    DATA_FOLDER = 20
    DISK_SPACE = 21
    MEMORY = 30
    DEVICE = 31
    MODEL_FIT = 32
    SPEED = 33
    DESCRIPTORS = 34
    LISTEN = 40
    IPV6 = 41
    REACH = 42
    NETWORK_DAEMON = 43
    UPLINK = 44
    PEER = 50
    PEER_NAME = 51
    PEER_TCP = 52
    PEER_HANDSHAKE = 53
    PEER_MANIFEST = 54
    PEER_RUN = 55
    RUN = 60
    VERSION = 61
    DHT = 62
    UNFINISHED = 90


class CheckFinding(BaseModel):
    """A finding. Its verdict is `ok` (as it should be), `note` (worth knowing), or `problem` (a node would
    work badly or not at all)."""

    model_config = ConfigDict(frozen=True)

    number: str
    subject: str
    verdict: Verdict
    what: str
    """The observation and its cause."""
    fix: str | None
    """Advice to the user; None if all is well."""


class Examination(BaseModel):
    """All findings, in the order of their numbers."""

    model_config = ConfigDict(frozen=True)

    version: str
    seconds: float
    """Duration of the examination."""
    problems: int
    findings: list[CheckFinding]


def number(subject: Subject) -> str:
    """Format a subject's number, for example SD010."""
    return f"SD{subject:03d}"


def found(subject: Subject, verdict: Verdict, what: str, fix: str | None = None) -> CheckFinding:
    """Return a finding. It needs a fix unless it is `ok`."""
    assert verdict == "ok" or fix, f"{subject.name} names no fix"
    return CheckFinding(
        number=number(subject),
        subject=subject.name.lower().replace("_", "-"),
        verdict=verdict,
        what=what,
        fix=fix,
    )


def ok(subject: Subject, what: str) -> CheckFinding:
    return found(subject, "ok", what)


def note(subject: Subject, what: str, fix: str) -> CheckFinding:
    return found(subject, "note", what, fix)


def problem(subject: Subject, what: str, fix: str) -> CheckFinding:
    return found(subject, "problem", what, fix)


def refused(subject: Subject, error: UserError) -> CheckFinding:
    """Return the finding for an error that would keep a node from starting."""
    return problem(subject, error.what, error.fix)


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms"


class CheckedCase(Settings):
    """The settings of the future node, and of the examination."""

    source: str = ""
    """Model: a folder, `shape:NAME`, or empty for the run's own."""
    ntp: tuple[str, int] | None = None
    """Time server and port; None: no server is asked."""
    measure: bool = False
    """Measure steps even if the model is large."""
