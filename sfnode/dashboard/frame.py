"""Draws one frame of `sfnode top`: lines that fit the terminal.

Pure: knows no terminal, no keyboard and no client. Everything that comes from others is Text, never markup,
and control characters in it are replaced.
"""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, NamedTuple

from rich.cells import set_cell_size
from rich.text import Text

from sfnode.dashboard import formatting, tables
from sfnode.dashboard.formatting import (
    bar,
    braille,
    count,
    figure,
    limits_in_words,
    rate,
    smooth,
    span,
    spark,
)
from sfnode.dashboard.snapshot import Mood, Now, alarms, base_of, doing, health, together
from sfnode.sizes import size_text

if TYPE_CHECKING:
    from sfnode.schema import Curves, NodeEvaluation, Origins

CHART_LINES = 5
"""Lines of the charts on a terminal of 24 lines; a taller one gives half of its lines to them."""

FIXED_LINES = 10
"""Lines other than those of alarm, activity, evaluations, limits, charts and table."""

MIN_ROWS = 4
"""Lines that the charts leave to the table."""

SMOOTH = 4
"""Points to each side over which a noisy curve is averaged."""

ACTIVITY_LINES = 2
"""Lines for the sentence that says what the node is doing."""

ALARM_LINES = 5
"""Lines for the gravest alarm: what is wrong and what to do first."""

LIMITS = "limits  "

LIMIT_LINES = 2
"""Lines for the limits in force, some of which have long names."""

STYLES = {Mood.GOOD: "green", Mood.NEUTRAL: "", Mood.WARN: "yellow", Mood.BAD: "red"}


class Shown(NamedTuple):
    """The contents of a frame."""

    now: Now
    curves: Curves
    origins: Origins | None = None
    """Drawn in place of the neighbours; None draws those."""
    note: str = ""
    """A message for the last line."""


def frame(shown: Shown, width: int, height: int) -> list[Text]:
    """Return the lines of one frame, at most `height` of at most `width` columns."""
    activity, limits = [*_alarm(shown.now, width), *_doing(shown.now, width)], _limits(shown.now, width)
    measured = _measured(shown, width)
    room = height - FIXED_LINES - len(activity) - len(measured) - len(limits)
    lines = [_title(shown.now, width), *activity, *_bars(shown.now, width), Text()]
    lines += _charts(shown, width, max(2, min(room - MIN_ROWS, max(CHART_LINES, room // 2))))
    lines += [*measured, _state(shown.now), *limits, Text()]
    lines += _table(shown, width, height - len(lines) - 1)
    lines += [Text()] * (height - len(lines) - 1)
    return _fitting([*lines[: height - 1], _foot(shown)], width)


def absent(folder: object, reason: str, width: int, height: int) -> list[Text]:
    """Return the frame while there is no node to show."""
    words = "Waiting for one. Start it with `sfnode join`, or name its folder with --data-dir."
    lines = [
        Text(" sfnode top".ljust(width), "reverse"),
        Text(),
        Text(f"No node answers in {folder}.", "bold yellow"),
        *(Text(line) for line in wrap(words, width)),
        Text(),
        *(Text(line, "dim") for line in wrap(reason, width)),
        Text(),
        Text("q quit", "dim"),
    ]
    return _fitting(lines[:height], width)


def ascii_only(lines: Sequence[Text]) -> list[Text]:
    """Return the same lines for a terminal without Unicode."""
    return [Text(formatting.plain(line.plain), line.style, spans=line.spans) for line in lines]


def _fitting(lines: Sequence[Text], width: int) -> list[Text]:
    fitting = [Text(formatting.printable(line.plain), line.style, spans=line.spans) for line in lines]
    for line in fitting:
        line.truncate(width)
    return fitting


# -- parts -------------------------------------------------------------------------------------------


def _title(now: Now, width: int) -> Text:
    s, ourselves = now.status, now.swarm.nodes[0]
    title = Text(f" sfnode top · {s.run_name} ({s.run_id[:8]}) · {s.role}, ", "reverse")
    title.append(s.state, "bold")
    title.append(f" · up {span(s.uptime)}")
    room = width - title.cell_len - 3
    if s.origin and room >= tables.KEY_DIGITS:
        title.append(f" · {tables.named(ourselves.name, s.origin, room)}")
    return title.append(" " * max(0, width - title.cell_len))


def _alarm(now: Now, width: int) -> list[Text]:
    """Draw the gravest alarm, and how many more there are."""
    found = alarms(now.status)
    more = f"(1 of {len(found)}: see sfnode status) " if len(found) > 1 else ""
    lines = (wrap(more + words.text, width, max_lines=ALARM_LINES, placeholder="…") for words in found[:1])
    return [Text(line, f"bold {STYLES[Mood.BAD]}") for drawn in lines for line in drawn]


def _doing(now: Now, width: int) -> list[Text]:
    words = doing(now)
    lines = wrap(words.text, width, max_lines=ACTIVITY_LINES, placeholder="…")
    return [Text(line, f"bold {STYLES[words.mood]}".strip()) for line in lines]


def _bars(now: Now, width: int) -> list[Text]:
    p = now.progress
    run = f"{count(p.known)} of {count(p.update_budget)} updates"
    number = (
        p.epoch if now.status.organised else p.epoch + 1
    )  # of an organised run its label, as in decisions
    epoch = f"{number} of {p.epochs}, {count(p.epoch_known)} of {count(p.epoch_updates)}"
    wide = max(10, width - 62)
    return [
        _progress("run", p.known / p.update_budget, run, p.seconds_left, wide),
        _progress("epoch", p.epoch_known / max(p.epoch_updates, 1), epoch, p.epoch_seconds_left, wide),
    ]


def _progress(name: str, share: float, words: str, left: float | None, width: int) -> Text:
    line = Text().append(f"{name:<7}", "bold").append(bar(share, width), "cyan").append(f"  {words:<34}")
    return line.append("done" if left == 0 else f"left {span(left)}", "dim" if left is None else "")


def _charts(shown: Shown, width: int, height: int) -> list[Text]:
    """Draw the loss on the left and rates on the right, with their ranges."""
    c, p, s = shown.curves, shown.now.progress, shown.now.status
    wide = (width - 3) // 2
    loss, swarm = smooth(c.loss, SMOOTH), smooth(c.swarm_rate, SMOOTH)
    left = "loss  none: a relay has no model" if s.role == "relay" else f"loss  {_number(s.loss)}"
    right = f"updates/s  all {rate(p.updates_per_second)}  this node {rate(s.updates_per_second)}"
    lines = [_pair(left, right, wide, "bold")]
    for first, second in zip(braille(loss, wide, height), braille(swarm, wide, height), strict=True):
        lines.append(Text().append(first, "yellow").append("   ").append(second, "green"))
    ends = f"{_ends(loss)} in {span(c.now)}", f"all {_ends(swarm)}"
    return [*lines, _pair(*ends, wide, "dim")]


def _pair(left: str, right: str, width: int, style: str) -> Text:
    return Text(f"{set_cell_size(left, width)}   {right}", style)


def _ends(values: Sequence[float | None]) -> str:
    there = [value for value in values if value is not None]
    return f"{_number(min(there))} to {_number(max(there))}" if there else "nothing yet"


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:.3f}" if abs(value) < 10 else f"{value:,.0f}"


def _measured(shown: Shown, width: int) -> list[Text]:
    """Draw how an organised run does, and the evaluations that this node was asked for."""
    words = health(shown.now.status)
    if words is None:
        return [_measured_here(shown, width)]
    line = Text().append("health  ", "bold").append(words.text, STYLES[words.mood])
    return [line, _measured_here(shown, width)] if shown.curves.measurements else [line]


def _measured_here(shown: Shown, width: int) -> Text:
    """Draw the latest evaluation, and the course of all."""
    measurements = shown.curves.measurements
    ours = [m for m in measurements if not m.base]
    if not ours:
        line = Text().append("metric  ", "bold")
        words = "a relay evaluates nothing" if shown.now.status.role == "relay" else "not evaluated: press e"
        return line.append(words, "dim")
    line = Text().append(f"{ours[-1].metric}  ", "bold").append(_value(ours[-1]))
    if base := base_of(measurements):
        line.append(f"  base model {base.value:.3f}", "dim")
    if calibrated := base_of(measurements, calibrated=True):
        line.append(f", calibrated {calibrated.value:.3f}", "dim")
    course = spark([m.value for m in ours], min(width - line.cell_len - 2, 24)) if len(ours) > 1 else ""
    return line.append(f"  {course}", "magenta")


def _value(m: NodeEvaluation) -> str:
    return f"{figure(m)} at {count(m.known)} updates"


def _state(now: Now) -> Text:
    """Draw digest, agreement and lag."""
    words = together(now)
    line = Text().append("digest  ", "bold").append(now.status.digest[:12])
    line.append("  neighbours  ", "bold").append(words.text, STYLES[words.mood])
    if now.near:
        line.append("  largest lag  ", "bold").append(count(max(node.lag for node in now.near)))
    line.append(f"  lacking {count(now.status.lacking)}" if now.status.lacking else "", "yellow")
    run = now.status.organised
    return line.append(f"  behind {count(run.behind)}" if run and run.behind else "", "yellow")


def _limits(now: Now, width: int) -> list[Text]:
    """Draw the limits in force."""
    told = ", ".join(f"{name} {value}" for name, value in limits_in_words(now.status.limits).items())
    room = max(1, width - len(LIMITS))
    lines = wrap(told, room, max_lines=LIMIT_LINES, placeholder="…", break_on_hyphens=False)
    heads = (LIMITS, *(" " * len(LIMITS) for _ in lines))
    return [Text().append(head, "bold").append(line) for head, line in zip(heads, lines, strict=False)]


def _table(shown: Shown, width: int, room: int) -> list[Text]:
    if shown.origins is not None:
        return tables.origins(shown.origins, width, room)
    return tables.peers(shown.now, width, room)


def _foot(shown: Shown) -> Text:
    s = shown.now.status
    others = sum(node.kind == "known" for node in shown.now.swarm.nodes)
    keys = ["q quit", "o origins" if shown.origins is None else "o neighbours"]
    keys += [] if s.role == "relay" else ["e evaluate"]
    if shown.note:
        return Text("  ".join(keys), "dim").append(f"   {shown.note}", "not dim yellow")
    words = f"{others} more known   {size_text(s.bytes_sent)} out, {size_text(s.bytes_received)} in"
    return Text(f"{'  '.join(keys)}   {words}", "dim")
