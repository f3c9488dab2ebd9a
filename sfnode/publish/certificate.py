"""Certificates: what a member has contributed to an organised run, as its organiser signs it.

All of it follows from the decisions up to a position of the control feed, so that whoever has these comes to
the same numbers. The signature is for those who have not. docs/publish.md has the rules (C1 to C6).
"""

from __future__ import annotations

import html
import json
import re
from datetime import datetime
from typing import Annotated, Literal, NamedTuple, Self

import msgpack
from pydantic import AfterValidator, ConfigDict, Field, ValidationError

from sfnode.errors import Code, UserError
from sfnode.manifest import Manifest
from sfnode.organising.reporting.run_history import RunHistory
from sfnode.publish.page import render
from sfnode.schema.base import Answer
from sfnode.schema.metrics import NO_WORTH
from sfnode.schema.organising import Hex32, Hex64
from sfnode.store.log import UpdateLog
from sfnode.store.replay import kept_control, sound_control
from sfprotocol import wire_codec
from sfprotocol.control_feed import ControlFeed, valid_votes
from sfprotocol.control_sync import ControlSync
from sfprotocol.counting import Counting
from sfprotocol.decisions import INCARNATIONS
from sfprotocol.errors import RemoteProtocolError
from sfprotocol.events import Counters
from sfprotocol.frontier import Frontier
from sfprotocol.messages import Authority, RunParameters, Succession
from sfprotocol.names import fault
from sfprotocol.signing import Sign, signed_by
from sfprotocol.worths import WORTH_ONE

DOMAIN = b"sfnode-certificate"
"""Beginning of what is signed: nothing else that an organiser's key signs begins so."""

MAX_FILE = 64 * 1024
"""Bytes of a file that is read: a drawing has 12,000, and the votes of 64 deputies take 9,000 more."""

MARK = "sfnode-certificate"
"""Id of the element with the document in a drawing."""

_TIME = r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}Z$"


def _name(text: str) -> str:
    reason = fault(text)
    if reason:
        raise ValueError(reason)
    return text


Number = Annotated[int, Field(ge=0, lt=1 << 63)]


class Statement(Answer):
    """The part that is signed (rule C1)."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    version: Literal[1] = 1
    run_id: Hex32
    run_name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9][a-zA-Z0-9._-]{0,63}$")]
    member: Hex32
    """Key of the member."""
    name: Annotated[str, AfterValidator(_name)]
    """Name that the member gives itself; empty if none, or if it was left out."""
    updates: Number
    """Its updates that count."""
    measured: Number
    """Updates among them of which the worth was measured."""
    worth: Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)]
    """Nats of validation loss that these have taken off (SPEC O16), in units of 10^-9."""
    first_epoch: Number
    last_epoch: Number
    """Epochs, the first and the last, of which some of its updates count."""
    seal: Number
    """Epoch of the last seal."""
    digest: Hex32
    """Named digest in that seal (SPEC O10)."""
    decisions: Number
    """Number of decisions from which all this follows, from the first one on."""
    chain: Hex32
    """Chain hash of the control feed after them (SPEC O3)."""
    organiser: Hex32
    """Key that signs."""
    term: Annotated[int, Field(ge=0, lt=1 << 32)]
    """Number of successions that have led to that key."""
    issued: Annotated[str, Field(pattern=_TIME)]
    """Time by the organiser's clock, in UTC."""

    def message(self) -> bytes:
        """Return what is signed (rule C2)."""
        fields = dict(sorted(self.model_dump().items()))
        packed: bytes = msgpack.packb(fields, use_bin_type=True)
        return DOMAIN + packed


class Certificate(Answer):
    """A statement with its signature (rule C3)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    statement: Statement
    signature: Hex64
    succession: Annotated[str, Field(pattern="^([0-9a-f]{2})*$", max_length=20_000)] = ""
    """Encoded Succession (SPEC O4) that has named the key; empty in term 0, whose key the manifest names."""

    @classmethod
    def parse(cls, data: bytes, source: str) -> Self:
        """Read a file, JSON or a drawing. Raises UserError CERTIFICATE_INVALID."""
        if len(data) > MAX_FILE:
            raise invalid(source, f"it has more than {MAX_FILE} bytes")
        try:
            text = data.decode()
            drawn = re.search(rf'<metadata id="{MARK}">([^<]*)</metadata>', text)
            found = cls.model_validate_json(html.unescape(drawn[1]) if drawn else text)
        except UnicodeDecodeError as error:
            raise invalid(source, "it is no text") from error
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            raise invalid(
                source, f"{'.'.join(map(str, first['loc'])) or 'the file'}: {first['msg']}"
            ) from error
        if drawn and found.drawing() != data:
            raise invalid(source, "what is drawn is not what was signed")
        return found

    def to_json(self) -> bytes:
        """Return the certificate as a JSON file."""
        return json.dumps(self.model_dump(), indent=2, ensure_ascii=False).encode() + b"\n"

    def drawing(self) -> bytes:
        """Return the certificate as an SVG; the JSON is in it. The drawing of a version never changes."""
        said = self.statement
        return render(
            "certificate.svg",
            said=said,
            document=json.dumps(self.model_dump(), separators=(",", ":"), ensure_ascii=False),
            mark=MARK,
            who=said.name or f"{said.member[:8]}…{said.member[-8:]}",
            worth=f"{said.worth / WORTH_ONE:+.6f}".replace("-", "−") if said.measured else "–",
            no_worth=NO_WORTH,
            issued=said.issued[:10],
            pattern=_pattern(bytes.fromhex(said.member)),
        ).encode()


class _Spot(NamedTuple):
    x: int
    y: int
    on: bool


def _pattern(key: bytes) -> list[_Spot]:
    """Return the bits of a key as spots: 8 columns of 32."""
    return [
        _Spot(60 + 16 * bit, 64 + 16 * row, bool(byte >> bit & 1))
        for row, byte in enumerate(key)
        for bit in range(8)
    ]


def invalid(source: str, reason: str) -> UserError:
    """Return the error for a certificate that proves nothing."""
    return UserError(
        Code.CERTIFICATE_INVALID,
        f"{source} is no valid certificate: {reason}",
        "Ask whoever has shown it for the file as the organiser has issued it.",
    )


def control_of(run: RunParameters, update_log: UpdateLog) -> ControlFeed:
    """Return the control feed in a log, of which every signature is checked. Raises UserError LOG_CORRUPT."""
    with sound_control(update_log):
        kept = kept_control(update_log)
        return ControlSync(Frontier(run), {}, Counters(), kept=kept, sign=None).feed


def contribution(
    manifest: Manifest, feed: ControlFeed, stop: int, member: bytes, *, name: str, issued: datetime
) -> Statement:
    """Return what the first `stop` decisions of a feed say of a member, for the key that signs after all of
    them to sign.

    Raises UserError BAD_OPTION if nothing of the member counts.
    """
    run, entries = manifest.parameters(), feed.entries[:stop]
    history = RunHistory(run).follow(entries)
    counting = history.counting
    found = next((one for one in history.members() if one.origin == member.hex()), None)
    if found is None or not found.counted:
        raise UserError(
            Code.BAD_OPTION,
            f"nothing of {member.hex()[:16]} counts in this run by the seals so far",
            "`sfnode leaderboard` lists those of whom something does.",
        )
    epochs = _epochs(counting, member)
    return Statement(
        run_id=run.run_id.hex(),
        run_name=manifest.name,
        member=member.hex(),
        name=name,
        updates=found.counted,
        measured=found.measured,
        worth=found.worth,
        first_epoch=epochs[0],
        last_epoch=epochs[-1],
        seal=counting.sealed - 1,
        digest=history.seals[-1].seal.digest.hex(),
        decisions=stop,
        chain=feed.chains[stop].hex(),
        organiser=(feed.key or b"").hex(),
        term=feed.term,
        issued=f"{issued:%Y-%m-%dT%H:%M:%SZ}",
    )


def _epochs(counting: Counting, member: bytes) -> list[int]:
    """Return the epochs of which something of a member counts."""
    known = [one.origin for one in counting.members].index(member)
    numbers = range(known * INCARNATIONS, (known + 1) * INCARNATIONS)
    sealed = range(counting.sealed)
    return [epoch for epoch in sealed if any(counting.counts(number, epoch) for number in numbers)]


def issue(statement: Statement, sign: Sign, succession: Succession | None) -> Certificate:
    """Sign a statement."""
    named = wire_codec.encode(succession).hex() if succession else ""
    return Certificate(statement=statement, signature=sign(statement.message()).hex(), succession=named)


def check(certificate: Certificate, manifest: Manifest, source: str) -> None:
    """Check that the organiser of a run has signed a certificate (rules C4 and C5).

    Raises UserError WRONG_RUN, RUN_IS_OPEN, CERTIFICATE_INVALID.
    """
    said, run = certificate.statement, manifest.parameters()
    if said.run_id != run.run_id.hex():
        raise UserError(
            Code.WRONG_RUN,
            f"{source} is about run {said.run_id[:16]}, and the manifest is of run {run.run_id.hex()[:16]}",
            "Name the run's own manifest with --run, or the folder of one of its nodes with --data-dir.",
        )
    if run.organised is None:
        raise UserError(
            Code.RUN_IS_OPEN,
            "an open run has no organiser who could certify anything",
            "Ask for the manifest of the organised run that the certificate is about.",
        )
    if said.organiser != _key(certificate, run.organised, source).hex():
        raise invalid(source, "its key is not that of the run's organiser")
    if not signed_by(bytes.fromhex(said.organiser), said.message(), bytes.fromhex(certificate.signature)):
        raise invalid(source, "the signature does not verify: somebody has changed it, or nobody signed it")


def _key(certificate: Certificate, authority: Authority, source: str) -> bytes:
    """Return the key that organises the run in the certificate's term."""
    if not certificate.statement.term:
        return authority.organiser
    try:
        found = wire_codec.decode(bytes.fromhex(certificate.succession))
    except RemoteProtocolError as error:
        raise invalid(source, f"the succession in it cannot be read: {error.reason}") from error
    if not isinstance(found, Succession) or found.term != certificate.statement.term:
        raise invalid(source, "the succession in it is not that of its term")
    if len(valid_votes(authority, found)) < authority.votes:
        raise invalid(source, "the succession in it lacks votes of the run's deputies")
    return found.key


def compare(certificate: Certificate, manifest: Manifest, feed: ControlFeed, source: str) -> bool:
    """Compute a statement anew from the decisions in a log (rule C6); return whether they are all there.

    Raises UserError CERTIFICATE_INVALID if it says something else.
    """
    said = certificate.statement
    if feed.stop < said.decisions:
        return False
    if feed.chains[said.decisions].hex() != said.chain:
        raise invalid(source, f"the first {said.decisions} decisions of the log here are others")
    member, issued = bytes.fromhex(said.member), datetime.fromisoformat(said.issued)
    try:
        found = contribution(manifest, feed, said.decisions, member, name=said.name, issued=issued)
    except UserError as error:
        raise invalid(source, error.what) from error
    ours, theirs = found.model_dump(), said.model_dump()
    differing = [key for key in ours if key not in ("organiser", "term") and ours[key] != theirs[key]]
    if differing:
        told = ", ".join(f"{key} is {ours[key]} and not {theirs[key]}" for key in differing)
        raise invalid(source, f"by the log here {told}")
    return True
