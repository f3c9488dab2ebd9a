"""Formats numbers for people, and draws bars and curves with characters. Independent of nodes and
terminals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from io import BytesIO
from statistics import fmean
from typing import TYPE_CHECKING, Any

from sfnode.printable import size_text
from sfnode.schema.metrics import measured, metric_of, value_in_words
from sfnode.schema.node_state import HEALTH_WORDS, RunHealth

if TYPE_CHECKING:
    from sfnode.schema.measurements import BaselineEvaluation, Evaluation, ProbeEvaluation
    from sfnode.schema.organising import EvidenceStatus, HealthStatus
    from sfnode.schema.status import FetchStatus

SIZES = ("memory", "upload_rate", "download_rate")
"""Names of limits whose unit is bytes, or bytes per second."""

REACHES = {
    "internet": "",
    "network": "It holds addresses of your own network only: others can join from there, not over the "
    "internet.\nFor others outside, forward a port and name it with `join --announce-maddrs`, or "
    "join with --auto-relay.",
    "machine": "It holds addresses of this machine only: nobody can join from another one.",
}
"""Warnings about an invitation, keyed by the networks from which its addresses can be reached (`Reach`)."""

UNITS = {"cpu": " %", "gpu": " %", "watts": " W", "celsius": " °C", "idle": " min", "mb_per_day": " MB"}
"""Units of limits that are not in SIZES, keyed by the limit's name."""

_BLOCKS = "▁▂▃▄▅▆▇█"

_PLAIN = dict(zip("█░▁▂▃▄▅▆▇·─…–", "#._.-=+*#.-.-", strict=True))


def plain(text: str) -> str:
    """Return a text in ASCII, for a terminal without Unicode. Characters of bars and curves become similar
    ASCII characters, and all others become `?`."""
    return "".join(_PLAIN.get(letter, letter if letter.isascii() else "?") for letter in text)


def printable(text: str) -> str:
    """Replace every invisible character with one visible character. A table can then compute the widths of
    its columns."""
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text)


def count(number: int) -> str:
    """Format 1234567 as `1,234,567`."""
    return f"{number:,}"


def nats(worth: int) -> str:
    """Format a number of 10^-9 nats in nats, with every digit: 41250000 as `+0.041250000`."""
    whole, part = divmod(abs(worth), 10**9)
    return f"{'-' if worth < 0 else '+'}{whole}.{part:09}"


def evidence_in_words(one: EvidenceStatus) -> str:
    """Format the evidence on a member's work: `evidence 1.24, agreement 0.95`. If the member's updates were
    far too large in some of its latest epochs, add `, an outlier in 12 % of its latest epochs`."""
    said = f"evidence {one.evidence:.2f}, agreement {one.agreement:.2f}"
    percent = round(100 * one.outlier_share)
    return f"{said}, an outlier in {percent} % of its latest epochs" if percent else said


def delay(seconds: float | None) -> str:
    """Format the time of a round trip: `0.4 ms`, `12 ms`, `1.3 s`; `-` for None."""
    if seconds is None:
        return "-"
    if seconds >= 0.9995:
        return f"{seconds:.1f} s"
    return f"{seconds * 1000:.{1 if seconds < 0.00995 else 0}f} ms"


def percent(share: float) -> str:
    """Format 0.5 as `50 %`, 0.0123 as `1.2 %` and -0.03 as `-3.0 %`. Only zero is `0 %`; smaller shares than
    0.05 % are `< 0.1 %`."""
    if 0 < abs(share) < 0.0005:
        return "< 0.1 %"
    return f"{100 * share:.{0 if abs(share) >= 0.0995 or not share else 1}f} %"


def short(name: str, width: int = 12) -> str:
    """Shorten a long id to its last characters. The first characters are the same in most peer ids."""
    return name if len(name) <= width else "…" + name[1 - width :]


def beside(found: Evaluation, digits: int = 4) -> str:
    """Format the quantity by which the model is trained, to follow the value of a metric: `, loss 0.6870`, or
    in a reward run `, mean reward 0.3130`."""
    trained = metric_of(found.metric).trained
    return f", {trained.name} {trained.of(found.loss):.{digits}f}"


def probe_in_words(probe: ProbeEvaluation, fork: str = "") -> list[str]:
    """Format a linear probe's result on the held-out rows on which the model was measured. If the probe is
    better than the model, advise to continue the training. The advice names the command `fork` unless it is
    empty."""
    said = f"a linear probe on {count(probe.rows)} training rows: {measured(probe)}{beside(probe, 3)}"
    if not probe.better:
        return [said]
    lead = f"{probe.lead:.3f} in loss a row (standard error {probe.error:.3f})"
    onward = f"`{fork}` makes a run that goes on" if fork else "go on from here"
    return [said, f"THE PROBE IS BETTER by {lead}: {onward}, with more updates or with the body of the model"]


def baselines_in_words(found: Sequence[BaselineEvaluation]) -> list[str]:
    """Format the results of baselines, which are classifiers without a language model, on the held-out rows
    on which the model was measured. If the baseline TF-IDF is not installed, say how to install it."""
    said = [
        f"{one.name} of {count(one.rows)} training rows: {measured(one)}{beside(one, 3)}" for one in found
    ]
    lacking = "TF-IDF with logistic regression would stand here: `pip install 'sfnode[compare]'`"
    return [*said, lacking] if len(said) == 1 else said


def term_in_words(term: int) -> str:
    """Format a term for people: the number of successions, and the number of elections after the last
    succession (SPEC O4)."""
    from sfprotocol.messages import ELECTED_TERMS

    succession, election = divmod(term, ELECTED_TERMS)
    return f"{succession}.{election}" if succession else str(election)


def health_in_words(health: HealthStatus) -> str:
    """Describe how good a run's latest model is, beside the base model and the run's best model."""
    if health.latest is None:
        return "nothing was evaluated yet"
    latest, base, calibrated = health.latest, health.base, health.calibrated
    beside = [f"base model {_value(base)}"] if base and not base.calibrated else []
    beside += [f"calibrated base model {_value(calibrated)}"] if calibrated else []
    if health.best and health.best.epoch != latest.epoch:
        beside.append(f"best {_value(health.best)} after round {health.best.epoch}")
    told = ", ".join([f"{measured(latest)} after round {latest.epoch}", *beside])
    return f"{HEALTH_WORDS[RunHealth(health.verdict)]}: {told}"


def _value(found: Evaluation) -> str:
    return value_in_words(found.metric, found.value)


def download_in_words(fetch: FetchStatus) -> str:
    """Describe the object of a download in plain words instead of the protocol's terms."""
    return "directions of training" if fetch.what == "bases" else fetch.what


def qr_svg(link: str) -> str:
    """Draw a link as a QR code, an SVG without width and height. The SVG is safe as markup, because segno
    writes only numbers into it."""
    import segno

    drawing = BytesIO()
    code = segno.make(link, error="l", boost_error=False, micro=False)
    code.save(
        drawing, kind="svg", xmldecl=False, nl=False, omitsize=True, border=2, svgclass=None, lineclass=None
    )
    return drawing.getvalue().decode()


def limits_in_words(limits: object) -> dict[str, str]:
    """Format the values of the limits in force, keyed by name. `limits` is a `Limits`, validated or not."""
    return {name: _limit(name, value) for name, value in vars(limits).items() if value}


def _limit(name: str, value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(value)
    if name in SIZES:
        return size_text(value)
    told = "yes" if value is True else f"{value:g}" if isinstance(value, float) else str(value)
    return told + UNITS.get(name, "")


def bar(share: float, width: int) -> str:
    """Draw a bar of `width` characters, whose left part is filled by the given share."""
    filled = round(max(0.0, min(1.0, share)) * width)
    return "█" * filled + "░" * (width - filled)


def spark(values: Sequence[float | None], width: int) -> str:
    """Draw values as at most `width` block characters. Each character stands for some consecutive values, and
    its height shows their mean. None, infinite values and NaN are left out."""
    there = [value for value in values if value is not None and math.isfinite(value)]
    many = min(width, len(there))
    shown = [fmean(there[len(there) * n // many : len(there) * (n + 1) // many]) for n in range(many)]
    low, high = min(shown, default=0.0), max(shown, default=0.0)
    steps = (len(_BLOCKS) - 1) / max(high - low, 1e-9)
    return "".join(_BLOCKS[round((value - low) * steps)] for value in shown)
