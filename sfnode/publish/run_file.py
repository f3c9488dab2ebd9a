"""`run.json`: the contents of a published page, for programs. `sfnode join` reads its contacts, and `sfnode
publish directory` reads its figures.

The file has the fields that `sfnode.peers.contacts` reads, and more. Strangers may have written it. So
`RunFile.parse` accepts only printable texts of bounded length and short lists. Readers ignore unknown keys,
so that later versions can add keys.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, ValidationError

from sfnode.errors import Code, UserError
from sfnode.manifest import MAX_DESCRIPTION
from sfnode.peers.contacts import MAX_FILE
from sfnode.schema.measurements import Answer
from sfnode.schema.node_state import RunHealth
from sfnode.schema.organising import EpochEvaluation, Hex32, Hex64
from sfprotocol.fields import readable
from sfprotocol.invitation import MAX_LINK, is_url

VERSION = 1
"""Version of the file's format. It changes only when older readers can no longer read the file."""

NAME = "run.json"

MAX_TITLE, MAX_WORDS = 120, 400
"""Maximum length of a title, and of any other line of text, in characters."""

MAX_CURVE = 200
"""Maximum number of points of the curve of evaluations, the same as in the widest drawing on a page."""

MAX_PROGRESS = 200
"""Maximum number of earlier publications whose progress is kept in the file, to compute the rate of updates.
When this number is reached, some old ones are dropped."""

MAX_TURNS = 64
"""Maximum number of decisions in the file that prove the current organiser's election. An election takes two:
the election itself, and the decision that named the stand-ins who voted. If an elected organiser named them,
the proof contains that organiser's election, too."""

MAX_CONTACTS = 32
"""Maximum number of addresses in the file. A link has the same maximum."""

MOST_COUNT = (1 << 63) - 1
"""The largest count that the protocol can express."""

MOST_VALUE = MOST_COUNT / 10**6
"""Largest finite number that an evaluation in the signed log can have. Even the sum of two such numbers is
finite, so that it can be drawn."""


def _readable(text: str) -> str:
    if not all(map(readable, text.split("\n"))):
        raise ValueError("it has characters that cannot be seen")
    return text


def _web_address(text: str) -> str:
    if text and not is_url(f"{text}{NAME}"):
        raise ValueError("it is no address of a page")
    return text


def _measured(value: float) -> float:
    if math.isfinite(value) and abs(value) > MOST_VALUE:
        raise ValueError("it is more than anybody can have measured")
    return value


def _published(found: EpochEvaluation) -> EpochEvaluation:
    if len(found.metric) > MAX_TITLE or not readable(found.metric):
        raise ValueError("its metric is no name")
    if not all(0 <= number <= MOST_COUNT for number in (found.epoch, found.count)):
        raise ValueError("it has a number out of bounds")
    for value in (found.value, found.low, found.high, found.loss):
        _measured(value)
    return found


def _in_utc(moment: datetime) -> datetime:
    if moment.tzinfo is None:
        raise ValueError("it has no time zone")
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise ValueError("it is at the end of time") from None


Line = Annotated[str, Field(max_length=MAX_WORDS), AfterValidator(_readable)]
WebAddress = Annotated[str, AfterValidator(_web_address)]
Count = Annotated[int, Field(ge=0, le=MOST_COUNT)]
Value = Annotated[float, AfterValidator(_measured)]
Published = Annotated[EpochEvaluation, AfterValidator(_published)]
Frame = Annotated[str, Field(max_length=MAX_FILE, pattern="^([0-9a-f]{2})*$")]
Moment = Annotated[datetime, AfterValidator(_in_utc)]


class PublishedSeal(Answer):
    """The last seal whose updates were all in the publishing node's log."""

    epoch: Count
    updates: Count
    """Number of updates that counted at this seal."""
    named_digest: Hex32
    """Named digest in the seal (SPEC O10)."""
    core_digest: Hex32
    """Digest of the cores, computed from the log (SPEC D5): equal digests, equal models."""


class RunQuality(Answer):
    """Evaluations by the organiser on the validation rows."""

    verdict: RunHealth
    latest: Published | None
    base: Published | None
    best: Published | None
    calibrated: Published | None
    """Result of the base model with its prior over the answers subtracted."""


class CurvePoint(Answer):
    """A point of the curve: the metric's value after a sealed epoch, with its 95 % confidence interval."""

    epoch: Count
    value: Value
    low: Value
    high: Value


class ProgressMoment(Answer):
    """Progress of the run at one publication."""

    at: Annotated[int, Field(ge=0, lt=1 << 40)]
    """Time of the publication, in seconds since 1970."""
    updates: Count


class Sizes(Answer):
    """Sizes of files, in bytes."""

    log: Count
    """Size of the signed log on the publishing node's disk."""
    model: Count | None
    """Size of the base model's files; None if the publishing node's folder does not have them."""


class RunFile(Answer):
    """The contents of `run.json`: a run, as its page shows it."""

    version: Literal[1] = 1
    run_id: Hex32
    run_name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9][a-zA-Z0-9._-]{0,63}$")]
    title: Annotated[str, Field(max_length=MAX_TITLE), AfterValidator(_readable)]
    description: Annotated[str, Field(max_length=MAX_DESCRIPTION), AfterValidator(_readable)] = ""
    link: Annotated[str, Field(max_length=MAX_LINK, pattern="^(sfnode:[A-Za-z0-9_-]+)?$")] = ""
    """Invitation with current contacts; empty if none is published."""
    addresses: Annotated[tuple[Line, ...], Field(max_length=MAX_CONTACTS)] = ()
    """Full addresses of the contacts in the link (SPEC N6)."""
    updated: Moment
    """Time of the publication, in UTC."""
    url: WebAddress = ""
    """Address of the page, with / at its end; empty if the publisher gave no address."""
    protocol: Annotated[int, Field(ge=1, lt=1 << 32)]
    organised: bool
    complete: bool
    model: Line
    licence: Line = ""
    """Licence that the base model's README names; empty if there is no README, or no licence in it."""
    task: Line
    data: Line
    updates: Count
    """Number of updates that count. In an open run all updates count."""
    budget: Count
    members: Count
    """Number of origins with updates that count."""
    updates_per_hour: Annotated[Value, Field(ge=0)] | None
    """Rate of updates; None if it is not known yet."""
    seal: PublishedSeal | None
    """The last seal; None in an open run, and before the first seal."""
    digest: Hex32 | None
    """State digest of an open run; None in an organised run, which has a seal instead."""
    quality: RunQuality | None
    """Evaluations by the organiser; None in an open run, which has no organiser."""
    curve: Annotated[tuple[CurvePoint, ...], Field(max_length=MAX_CURVE)] = ()
    """Evaluations of sealed epochs, the oldest first."""
    sizes: Sizes
    progress: Annotated[tuple[ProgressMoment, ...], Field(max_length=MAX_PROGRESS)] = ()
    manifest: Annotated[str, Field(max_length=MAX_FILE)] = ""
    """The run's manifest in the form in which nodes send it (SPEC M2), in base64; empty in an unsigned
    file."""
    succession: Frame = ""
    """The run's last succession in the form in which nodes send it (SPEC O4), in hex; empty if there was
    none, and in an unsigned file."""
    elections: Annotated[tuple[tuple[Hex32, Frame], ...], Field(max_length=MAX_TURNS)] = ()
    """Decisions after `succession` that elected organisers (SPEC O23) and named stand-ins. Each decision is
    given as the chain hash before it and a Control message that contains it, both in hex."""
    signature: Hex64 | None = None
    """Signature by the organiser; None if the publisher could not sign. The signed message is the text
    `sfnode-run-file`, followed by all bytes of the file before this last field."""

    @classmethod
    def parse(cls, data: bytes, source: str) -> Self:
        """Parse the bytes of a `run.json` from `source`. Raises UserError BAD_RUN_FILE."""
        if len(data) > MAX_FILE:
            raise bad_run_file(source, f"it has more than {MAX_FILE} bytes")
        try:
            return cls.model_validate_json(data)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"])) or "the file"
            raise bad_run_file(source, f"{where}: {first['msg']}") from error

    def write(self) -> bytes:
        """Return the bytes of the file."""
        return self.model_dump_json().encode() + b"\n"


def bad_run_file(source: str, reason: str) -> UserError:
    """Return the error for a `run.json` that cannot be used."""
    return UserError(
        Code.BAD_RUN_FILE,
        f"{source} is no run.json that can be used: {reason}",
        "Name the run.json of a published page, or its address.",
    )


def earlier(folder: Path, run_id: bytes) -> RunFile | None:
    """Return the `run.json` that was last published in a folder; None if there is none, if it cannot be read,
    or if it is of another run."""
    try:
        found = RunFile.parse((folder / NAME).read_bytes(), NAME)
    except (OSError, UserError):
        return None
    return found if found.run_id == run_id.hex() else None


def progress(before: RunFile | None, now: datetime, updates: int) -> tuple[ProgressMoment, ...]:
    """Return the progress at earlier publications, of which `before` is the last, and the progress now. If
    there are MAX_PROGRESS earlier publications, every second one of the older half is dropped."""
    moments = [one for one in (before.progress if before else []) if one.at < int(now.timestamp())]
    if len(moments) >= MAX_PROGRESS:
        half = len(moments) // 2
        moments = moments[:half:2] + moments[half:]
    return (*moments, ProgressMoment(at=int(now.timestamp()), updates=updates))


DAY, LEAST_SPAN = 86_400, 300
"""Usual and minimum time, in seconds, over which the rate of updates is measured. The time is shorter than
usual in the first day after the first publication."""


def hourly(moments: Sequence[ProgressMoment]) -> float | None:
    """Return the updates per hour over the last day or, in the first day, since the first publication; None
    if the first publication was less than LEAST_SPAN ago."""
    last = moments[-1]
    old = [one for one in moments if one.at <= last.at - DAY]
    first = old[-1] if old else moments[0]
    span = last.at - first.at
    return max(0, last.updates - first.updates) * 3600 / span if span >= LEAST_SPAN else None


def utc_now() -> datetime:
    """Return the current time in UTC, rounded down to seconds."""
    return datetime.now(UTC).replace(microsecond=0)
