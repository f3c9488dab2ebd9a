"""Certificates: what a member has contributed to an organised run, as the decisions up to a position say.

Nothing is signed: all of it is read off the run's own log, which is signed, and whoever has the log comes to
the same. That is how a certificate is checked.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping
from typing import Annotated, Literal, Self

from markupsafe import escape
from pydantic import ConfigDict, Field, ValidationError

from sfnode.errors import Code, UserError
from sfnode.manifest import Manifest
from sfnode.organising.reporting.run_history import RunHistory
from sfnode.publish.page import render
from sfnode.schema.evaluation import Answer
from sfnode.schema.organising import Hex32
from sfnode.store.log import UpdateLog
from sfnode.store.replay import kept_control, sound_control
from sfprotocol.control_feed import ControlFeed
from sfprotocol.control_sync import ControlSync
from sfprotocol.decisions import INCARNATIONS
from sfprotocol.events import Counters
from sfprotocol.frontier import Frontier
from sfprotocol.messages import RunParameters
from sfprotocol.run_state import RunState
from sfprotocol.weighing import WORTH_ONE

MAX_FILE = 64 * 1024
"""Bytes of a file that is read: a drawing has 12,000."""

NO_WORTH = "what single updates are worth is not measured where a program scores answers"
"""Reason why nobody's worth was measured: words of version 3, of a time when that was so."""

OLD_NO_WORTH = "rewards have no worth in nats"
"""Reason why nobody's worth was measured: words of version 2, which do not change."""

MARK = "sfnode-certificate"
"""Id of the element with the document in a drawing."""


class Certificate(Answer):
    """Contribution of a member, as the decisions up to a position say."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    version: Literal[2, 3] = 3
    """Drawings of version 2 have other words, and name the command that checked them then, `sfnode
    verify-certificate`."""
    run_id: Hex32
    run_name: str
    member: Hex32
    """Key of the member."""
    name: Annotated[str, Field(max_length=64)]
    """Name that the member gives itself; empty if none, or if it was left out."""
    updates: int
    """Its updates that count."""
    measured: int
    """Updates among them of which the worth was measured."""
    worth: int
    """Nats of validation loss that these have taken off (SPEC O16), in units of 10^-9."""
    first_epoch: int
    last_epoch: int
    """Epochs, the first and the last, of which some of its updates count."""
    seal: int
    """Epoch of the last seal."""
    digest: Hex32
    """Named digest in that seal (SPEC O10)."""
    decisions: Annotated[int, Field(ge=1)]
    """Number of decisions from which all this follows, from the first one on."""
    chain: Hex32
    """Chain hash of the control feed after them (SPEC O3)."""

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
            raise invalid(source, "what is drawn is not what its data say")
        return found

    def to_json(self) -> bytes:
        """Return the certificate as a JSON file."""
        return json.dumps(self.model_dump(), indent=2, ensure_ascii=False).encode() + b"\n"

    def drawing(self) -> bytes:
        """Return the certificate as an SVG; the JSON is in it. The drawing of a version never changes."""
        return render(
            "certificate.svg",
            said=self,
            document=escape(json.dumps(self.model_dump(), separators=(",", ":"), ensure_ascii=False)),
            mark=MARK,
            who=escape(self.name or f"{self.member[:8]}…{self.member[-8:]}"),  # to the letter, as ever
            worth=f"{self.worth / WORTH_ONE:+.6f}".replace("-", "−") if self.measured else "–",
            no_worth=OLD_NO_WORTH if self.version == 2 else NO_WORTH,
            pattern=_pattern(bytes.fromhex(self.member)),
        ).encode()


def _pattern(key: bytes) -> list[tuple[int, int, int]]:
    """Return the bits of a key as spots, each with its place: 8 columns of 32."""
    return [
        (60 + 16 * bit, 64 + 16 * row, byte >> bit & 1) for row, byte in enumerate(key) for bit in range(8)
    ]


def invalid(source: str, reason: str) -> UserError:
    """Return the error for a certificate that the run's log does not bear out."""
    return UserError(
        Code.CERTIFICATE_INVALID,
        f"{source} is no valid certificate: {reason}",
        "Make one from the log: `sfnode certificate make KEY`.",
    )


def control_of(run: RunParameters, update_log: UpdateLog) -> ControlFeed:
    """Return the control feed in a log, of which every signature is checked. Raises UserError LOG_CORRUPT."""
    with sound_control(update_log):
        kept = kept_control(update_log)
        return ControlSync(Frontier(run), {}, Counters(), kept=kept).feed


def contribution(
    manifest: Manifest, feed: ControlFeed, stop: int, member: bytes, *, name: str
) -> Certificate:
    """Return what the first `stop` decisions of a feed say of a member.

    Raises UserError BAD_OPTION if nothing of the member counts.
    """
    run, entries = manifest.parameters(), feed.entries[:stop]
    history = RunHistory(run).follow(entries)
    run_state = history.run_state
    found = next((one for one in history.members() if one.origin == member.hex()), None)
    if found is None or not found.counted:
        raise UserError(
            Code.BAD_OPTION,
            f"nothing of {member.hex()[:16]} counts in this run by the seals so far",
            "`sfnode leaderboard` lists those of whom something does.",
        )
    epochs = _epochs(run_state, member)
    return Certificate(
        run_id=run.run_id.hex(),
        run_name=manifest.name,
        member=member.hex(),
        name=name,
        updates=found.counted,
        measured=found.measured,
        worth=found.worth,
        first_epoch=epochs[0],
        last_epoch=epochs[-1],
        seal=run_state.sealed - 1,
        digest=history.seals[-1].seal.digest.hex(),
        decisions=stop,
        chain=feed.chains[stop].hex(),
    )


def _epochs(run_state: RunState, member: bytes) -> list[int]:
    """Return the epochs of which something of a member counts."""
    known = [one.origin for one in run_state.members].index(member)
    numbers = range(known * INCARNATIONS, (known + 1) * INCARNATIONS)
    sealed = range(run_state.sealed)
    return [epoch for epoch in sealed if any(run_state.counts(number, epoch) for number in numbers)]


def check(
    found: Certificate, manifest: Manifest, feed: ControlFeed, names: Mapping[bytes, str], source: str
) -> None:
    """Compute a certificate anew from the decisions in a log; `names` are those in the log, by key.

    Raises UserError WRONG_RUN, UPDATES_LACKING if the log lacks some of the decisions, CERTIFICATE_INVALID.
    """
    run_id, member = manifest.run_id.hex(), bytes.fromhex(found.member)
    if found.run_id != run_id:
        raise UserError(
            Code.WRONG_RUN,
            f"{source} is about run {found.run_id[:16]}, and the log here is of run {run_id[:16]}",
            "Name the folder of one of its nodes with --data-dir, or take in its archive: "
            "`sfnode history import`.",
        )
    if feed.stop < found.decisions:
        raise UserError(
            Code.UPDATES_LACKING,
            f"{source} follows from {found.decisions} decisions, and the log here has {feed.stop}",
            "Let the node run until it has the others, then ask again.",
        )
    name = names.get(member, "") if found.name else ""
    try:
        said = contribution(manifest, feed, found.decisions, member, name=name)
    except UserError as error:
        raise invalid(source, error.what) from error
    ours, theirs = said.model_dump(), found.model_dump()
    differing = [key for key in ours if key != "version" and ours[key] != theirs[key]]
    if differing:
        told = ", ".join(f"{key} is {ours[key]} and not {theirs[key]}" for key in differing)
        raise invalid(source, f"by the log here {told}")
