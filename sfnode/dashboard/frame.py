"""Draws one frame of `sfnode top`: lines that fit the terminal.

Pure: knows no terminal, no keyboard and no client. Everything that comes from others is Text, never markup,
and control characters in it are replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest
from textwrap import wrap
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from sfnode.dashboard import formatting
from sfnode.dashboard.formatting import (
    bar,
    braille,
    count,
    delay,
    limits_in_words,
    percent,
    printable,
    short,
    smooth,
    spark,
)
from sfnode.dashboard.quality import Point, Quality, Reference, quality
from sfnode.dashboard.snapshot import Mood, Now, agreement, alarms, contributed, doing, together
from sfnode.printable import pace, part_of, size_text, span
from sfnode.schema.metrics import metric_of, moved_in_words, trained_by, value_in_words

if TYPE_CHECKING:
    from sfnode.schema.organising import EpochEvaluation
    from sfnode.schema.views import Curves, Origin, Origins, OwnStanding, SwarmNode


CHART_LINES = 5
"""Lines of the charts on a terminal of 24 lines; a taller one gives half of its lines to them."""

FIXED_LINES = 10
"""Lines other than those of alarm, headline, activity, limits, charts and table."""

HEADLINE_LINES = 2
"""Lines for the sentence that says whether the model gets better."""

WIDE = 140
"""Columns from which on there is room for two tables and three charts side by side."""

TALL = 30
"""Lines from which on there is room for what this node has contributed, and takes of its machine."""

COURSE = 24
"""Columns of the course of results beside the sentence."""

GAP = 4
"""Columns between two tables."""

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
    """Drawn in place of the neighbours, in a wide terminal beside them; None draws those alone."""
    note: str = ""
    """A message for the last line."""
    evaluations: Sequence[EpochEvaluation] = ()
    """Results that the organiser has published."""
    own: OwnStanding | None = None
    """Contribution of this node; None if it was not asked yet."""
    only_origins: bool = False
    """Whether the origins stand in place of the neighbours in a wide terminal, too."""


def frame(shown: Shown, width: int, height: int) -> list[Text]:
    """Return the lines of one frame, at most `height` of at most `width` columns."""
    found = quality(shown.now.status, shown.curves.measurements, shown.evaluations)
    said = [*_alarm(shown.now, width), *_headline(found, width), *_doing(shown.now, width)]
    limits = _limits(shown.now, width)
    if height >= TALL:
        said += [Text(contributed(shown.now.status, shown.own).text, "bold")]
        said += [Text(found.beside, "dim")] if found.beside else []
        said += _drift(shown.now)
        limits = [*_machine(shown.now), *limits]
    room = height - FIXED_LINES - len(said) - len(limits)
    lines = [_title(shown.now, width), *said, *_bars(shown.now, width), Text()]
    lines += _charts(shown, found, width, max(2, min(room - MIN_ROWS, max(CHART_LINES, room // 2))))
    lines += [_state(shown.now), *limits, Text()]
    lines += _table(shown, width, height - len(lines) - 1)
    lines += [Text()] * (height - len(lines) - 1)
    return _fitting([*lines[: height - 1], _foot(shown)], width)


def _drift(now: Now) -> list[Text]:
    """Return the drift of the model that was evaluated last; nothing if none was."""
    found = now.status.drift
    return [Text(f"{moved_in_words(found.distance)}.".capitalize(), "dim")] if found else []


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
    if s.origin and room >= KEY_DIGITS:
        title.append(f" · {named(ourselves.name, s.origin, room)}")
    return title.append(" " * max(0, width - title.cell_len))


def _alarm(now: Now, width: int) -> list[Text]:
    """Draw the gravest alarm, and how many more there are."""
    found = alarms(now.status)
    more = f"(1 of {len(found)}: see sfnode status) " if len(found) > 1 else ""
    lines = (wrap(more + words.text, width, max_lines=ALARM_LINES, placeholder="…") for words in found[:1])
    return [Text(line, f"bold {STYLES[Mood.BAD]}") for drawn in lines for line in drawn]


def _headline(found: Quality, width: int) -> list[Text]:
    """Draw the sentence that says whether the model gets better, with the course of its results."""
    words = found.headline
    lines = wrap(words.text, width, max_lines=HEADLINE_LINES, placeholder="…")
    drawn = [Text(line, f"bold {STYLES[words.mood]}".strip()) for line in lines]
    room = min(width - drawn[-1].cell_len - 2, COURSE)
    if len(found.points) > 1 and room > 0:
        drawn[-1].append(f"  {spark([point.value for point in found.points], room)}", "not bold magenta")
    return drawn


def _doing(now: Now, width: int) -> list[Text]:
    words = doing(now)
    lines = wrap(words.text, width, max_lines=ACTIVITY_LINES, placeholder="…")
    return [Text(line, STYLES[words.mood]) for line in lines]


def _bars(now: Now, width: int) -> list[Text]:
    p = now.progress
    run = f"{part_of(p.known, p.update_budget)} updates"
    number = (
        p.epoch if now.status.organised else p.epoch + 1
    )  # of an organised run its label, as in decisions
    epoch = f"{number} of {max(number, p.epochs)}, {part_of(p.epoch_known, p.epoch_updates)}"
    wide = max(10, width - 62)
    return [
        _progress("run", p.known / p.update_budget, run, p.seconds_left, wide),
        _progress("round", p.epoch_known / max(p.epoch_updates, 1), epoch, p.epoch_seconds_left, wide),
    ]


def _progress(name: str, share: float, words: str, left: float | None, width: int) -> Text:
    line = Text().append(f"{name:<7}", "bold").append(bar(share, width), "cyan").append(f"  {words:<34}")
    return line.append("done" if left == 0 else f"left {span(left)}", "dim" if left is None else "")


def _charts(shown: Shown, found: Quality, width: int, height: int) -> list[Text]:
    """Draw the loss on the left and rates on the right, with their ranges; first, where there is room, the
    results of the model."""
    c, p, s = shown.curves, shown.now.progress, shown.now.status
    trained = trained_by(s.task)
    courses = [None if loss is None else trained.of(loss) for loss in c.loss]
    course, swarm = smooth(courses, SMOOTH), smooth(c.swarm_rate, SMOOTH)
    now = None if s.loss is None else trained.of(s.loss)
    told = "none: a relay has no model" if s.role == "relay" else _number(now)
    rates = f"all {pace(p.updates_per_second)}  this node {pace(s.updates_per_second)}"
    charts = [
        _Chart(f"{trained.name}  {told}", course, f"{_ends(course)} in {span(c.now)}", "yellow"),
        _Chart(f"updates  {rates}", swarm, f"all {_ends(swarm)}", "green"),
    ]
    if width >= WIDE:
        results = [point.value for point in found.points]
        metric = metric_of(found.metric).name if found.metric else "results"
        name = f"{metric}  {_value(found, found.now)}"
        of = f"{found.across} {found.points[0].x} to {found.points[-1].x}" if results else ""
        base = f", {found.compared[0].name} {_value(found, found.compared[0])}" if found.compared else ""
        ends = [value_in_words(found.metric or "", end(results)) for end in (min, max) if results]
        foot = f"{' to '.join(ends)} {of}{base}" if results else "nothing yet"
        charts.insert(0, _Chart(name, results, foot, "magenta"))
    wide = (width - 3 * (len(charts) - 1)) // len(charts)
    drawn = [braille(chart.values, wide, height) for chart in charts]
    lines = [_row([set_cell_size(chart.head, wide) for chart in charts], "bold")]
    for parts in zip(*drawn, strict=True):
        line = Text()
        for number, (chart, part) in enumerate(zip(charts, parts, strict=True)):
            line.append("   " if number else "").append(part, chart.colour)
        lines.append(line)
    return [*lines, _row([set_cell_size(chart.foot, wide) for chart in charts], "dim")]


class _Chart(NamedTuple):
    """A curve with the words above and below it."""

    head: str
    values: Sequence[float | None]
    foot: str
    colour: str


def _row(cells: Sequence[str], style: str) -> Text:
    return Text("   ".join(cells).rstrip(), style)


def _ends(values: Sequence[float | None]) -> str:
    there = [value for value in values if value is not None]
    return f"{_number(min(there))} to {_number(max(there))}" if there else "nothing yet"


def _value(found: Quality, one: Point | Reference | None) -> str:
    return "?" if one is None else value_in_words(found.metric or "", one.value)


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:.3f}" if abs(value) < 10 else f"{value:,.0f}"


def _state(now: Now) -> Text:
    """Draw agreement and lag."""
    words = together(now)
    line = Text().append("neighbours  ", "bold").append(words.text, STYLES[words.mood])
    if now.near:
        line.append("  largest lag  ", "bold").append(count(max(node.lag for node in now.near)))
    line.append(f"  lacking {count(now.status.lacking)}" if now.status.lacking else "", "yellow")
    run = now.status.organised
    return line.append(f"  behind {count(run.behind)}" if run and run.behind else "", "yellow")


def _machine(now: Now) -> list[Text]:
    """Draw what the node takes of its machine."""
    found = now.status.machine
    if found is None:
        return [Text()]
    share = min(1.0, found.cpu / max(found.cores, 1e-9))
    told = [f"{percent(share)} of the processor", f"{size_text(found.memory)} of memory"]
    for gpu in found.gpus:
        busy = "" if gpu.busy is None else f" {percent(gpu.busy)} busy,"
        name = gpu.name if len(found.gpus) == 1 else f"{gpu.device} {gpu.name}"
        told.append(f"{name}{busy} {size_text(gpu.memory)} of {size_text(gpu.memory_total)}")
    line = Text().append("machine ", "bold").append(", ".join(told))
    return [line] if len(now.status.devices) < 2 else [line, _devices(now)]


def _devices(now: Now) -> Text:
    """Draw what each of several devices has measured."""
    line = Text().append("devices", "bold")
    for device in now.status.devices:
        line.append(f"  {device.name}: ").append(f"{count(device.updates)} updates")
        line.append(" failed" if device.problem else "", "red")
    return line


def _limits(now: Now, width: int) -> list[Text]:
    """Draw the limits in force."""
    told = ", ".join(f"{name} {value}" for name, value in limits_in_words(now.status.limits).items())
    room = max(1, width - len(LIMITS))
    lines = wrap(told, room, max_lines=LIMIT_LINES, placeholder="…", break_on_hyphens=False)
    heads = (LIMITS, *(" " * len(LIMITS) for _ in lines))
    return [Text().append(head, "bold").append(line) for head, line in zip(heads, lines, strict=False)]


def _table(shown: Shown, width: int, room: int) -> list[Text]:
    """Draw the neighbours or the origins; where there is room, both."""
    if shown.origins is None:
        return peers(shown.now, width, room)
    if width < WIDE or shown.only_origins:
        return origins(shown.origins, width, room)
    half = (width - GAP) // 2
    return _beside(peers(shown.now, half, room), origins(shown.origins, half, room), half)


def _beside(left: Sequence[Text], right: Sequence[Text], half: int) -> list[Text]:
    """Join two tables line by line; the left one is `half` columns wide."""
    lines = []
    for one, other in zip_longest(left, right, fillvalue=Text()):
        line = one.copy()
        line.truncate(half, pad=True)
        lines.append(Text.assemble(line, " " * GAP, other))
    return lines


def _foot(shown: Shown) -> Text:
    s = shown.now.status
    others = sum(node.kind == "known" for node in shown.now.swarm.nodes)
    keys = ["q quit", "o contributors" if shown.origins is None or not shown.only_origins else "o neighbours"]
    keys += [] if s.role == "relay" else ["e evaluate"]
    if shown.note:
        return Text("  ".join(keys), "dim").append(f"   {shown.note}", "not dim yellow")
    words = f"{others} more known   {size_text(s.bytes_sent)} out, {size_text(s.bytes_received)} in"
    return Text(f"{'  '.join(keys)}   {words}", "dim")


# Draws the tables of `sfnode top`: neighbours, or contributions of origins. Pure, like `frame`.
#
# Anybody may choose any name, so beside each stands the beginning of the key, which nobody can choose.


T = TypeVar("T")

KEY_DIGITS = 8
"""Hex digits of an origin's key that are shown: enough to tell all origins of a run apart."""

ORIGIN_ROWS = 50
"""Origins asked for at a time: as many as a tall terminal has lines for."""

ROOMY = 100
"""Columns from which on bytes stand beside names; below, names need the room."""

FLEXIBLE = 0
"""Width of a column that takes what the others leave it, within the bounds below."""

MIN_FLEXIBLE, MAX_FLEXIBLE = 14, 44
"""Widths of a shortened name with a key, and of the longest name with a key."""


class Column(NamedTuple):
    """A column of a table; `number` aligns it to the right."""

    name: str
    width: int
    number: bool = False


def named(name: str | None, origin: str, width: int = 80) -> str:
    """Return `name 1a2b3c4d`, of which the key is never cut off, or the key alone."""
    name, room = printable(name or ""), max(0, width - KEY_DIGITS - 1)
    if cell_len(name) > room:
        name = set_cell_size(name, room - 1) + "…" if room > 1 else ""
    return f"{name} {origin[:KEY_DIGITS]}".strip()


def peers(now: Now, width: int, room: int) -> list[Text]:
    """Draw the neighbours, as many as there is room for."""
    traffic = [Column("out", 8, True), Column("in", 8, True)] if width >= ROOMY else []
    columns = _columns(
        width,
        Column("peer", FLEXIBLE),
        Column("role", 8),
        Column("latency", 8, True),
        *traffic,
        Column("lag", 8, True),
        Column("state", 15),
    )

    def line(node: SwarmNode) -> Text:
        words = agreement(node, now.known)
        bytes_moved = [size_text(node.bytes_sent), size_text(node.bytes_received)][: len(traffic)]
        numbers = [delay(node.latency), *bytes_moved, count(node.lag)]
        who = named(node.name, node.origin, columns[0].width) if node.origin else short(node.peer)
        row = _cells(columns, [who, node.role, *numbers, words.text])
        return Text(row, "red" if words.mood is Mood.BAD else "")

    return _grid(columns, now.near, line, room, len(now.near))


def origins(page: Origins, width: int, room: int) -> list[Text]:
    """Draw the origins with the greatest worth, or most updates, counted in the log."""
    gain = [Column("gain", 8, True)] if any(one.gain_share is not None for one in page.origins) else []
    columns = _columns(
        width,
        Column("rank", 6, True),
        Column("who", FLEXIBLE),
        Column("updates", 10, True),
        Column("share", 7, True),
        *gain,
        Column("team", 14),
    )

    def line(origin: Origin) -> Text:
        words = named(origin.name, origin.origin, columns[1].width)
        cells = [count(origin.rank), words, count(origin.updates), percent(origin.share)]
        cells += ["" if origin.gain_share is None else percent(origin.gain_share)] * len(gain)
        cells.append(origin.team or "")
        return Text(_cells(columns, cells), "bold" if origin.own else "")

    return _grid(columns, page.origins, line, room, page.total)


def _columns(width: int, *columns: Column) -> list[Column]:
    """Give the flexible column the width that the others leave."""
    room = width - sum(column.width + 2 for column in columns)
    wide = max(MIN_FLEXIBLE, min(MAX_FLEXIBLE, room))
    return [column if column.width else column._replace(width=wide) for column in columns]


def _cells(columns: Sequence[Column], cells: Sequence[str]) -> str:
    return "".join(_cell(column, cell) for column, cell in zip(columns, cells, strict=True)).rstrip()


def _cell(column: Column, text: str) -> str:
    text = printable(text)
    text = set_cell_size(text, min(cell_len(text), column.width))
    room = " " * (column.width - cell_len(text))
    return f"{room}{text}  " if column.number else f"{text}{room}  "


def _grid(
    columns: Sequence[Column], rows: Sequence[T], line: Callable[[T], Text], room: int, total: int
) -> list[Text]:
    if room < 2:
        return []
    shown = rows[: room - 1] if total < room else rows[: room - 2]
    lines = [Text(_cells(columns, [column.name for column in columns]), "bold underline")]
    lines += [line(row) for row in shown]
    return lines if len(shown) == total else [*lines, Text(f"and {count(total - len(shown))} more", "dim")]
