"""Draws one frame of `sfnode top`: lines that fit the terminal.

Pure: independent of terminal, keyboard and client. Strangers' texts are drawn as rich's Text, never as
markup, and control characters in them are replaced.

Each name is shown with the beginning of its key. Anybody may choose any name, but nobody can choose another's
key.
"""

from __future__ import annotations

from collections.abc import Sequence
from io import StringIO
from textwrap import wrap
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from rich.console import Console, Group, JustifyMethod, RenderableType
from rich.table import Table
from rich.text import Text

from sfnode.dashboard import formatting
from sfnode.dashboard.formatting import bar, count, delay, limits_in_words, percent, printable, short, spark
from sfnode.dashboard.quality import Quality, quality
from sfnode.dashboard.snapshot import Mood, Now, agreement, alarms, contributed, doing, together
from sfnode.printable import SHORT_KEY, pace, part_of, size_text, span
from sfnode.schema.metrics import moved_in_words, trained_by

if TYPE_CHECKING:
    from sfnode.schema.organising import EpochEvaluation
    from sfnode.schema.views import Curves, Origins, OwnStanding


HEADLINE_LINES = 2
"""Number of lines for the headline, a sentence on whether the model gets better."""

WIDE = 140
"""Minimum width of a terminal, in columns, at which the tables of neighbours and origins are shown side by
side."""

TALL = 30
"""Minimum height of a terminal, in lines, at which this node's contribution and its use of the machine are
shown."""

COURSE = 24
"""Maximum width, in columns, of the curve of evaluation results beside the headline."""

GAP = 4
"""Number of columns between two tables."""

BESIDE_COURSE = 64
"""Number of columns beside a curve of the loss or the rate, for the current value and the range."""

ACTIVITY_LINES = 2
"""Number of lines for the sentence on the node's activity."""

ALARM_LINES = 5
"""Number of lines for the most severe alarm: what is wrong, and what to do first."""

LIMITS = "limits  "

LIMIT_LINES = 2
"""Number of lines for the limits in force, some of which have long names."""

STYLES = {Mood.GOOD: "green", Mood.NEUTRAL: "", Mood.WARN: "yellow", Mood.BAD: "red"}

T = TypeVar("T")

CHOSEN = frozenset(("peer", "who", "team"))
"""Names of the columns with texts that people chose. Only these columns are cut where space is short."""

ORIGIN_ROWS = 50
"""Number of origins requested at a time: as many as a tall terminal has lines for."""

ROOMY = 100
"""Minimum width of the table of neighbours, in columns, at which it shows the bytes sent and received. A
narrower table needs the space for names."""


class Shown(NamedTuple):
    """The contents of a frame."""

    now: Now
    curves: Curves
    origins: Origins | None = None
    """Origins to draw beside the neighbours, or in place of the neighbours in a narrow terminal; None: draw
    the neighbours alone."""
    note: str = ""
    """A message for the last line."""
    evaluations: Sequence[EpochEvaluation] = ()
    """Results that the organiser published."""
    own: OwnStanding | None = None
    """Contribution of this node; None before it was requested."""
    only_origins: bool = False
    """Whether the origins replace the neighbours even in a wide terminal."""


def frame(shown: Shown, width: int, height: int) -> list[Text]:
    """Return the lines of one frame: at most `height` lines, each of at most `width` columns."""
    found = quality(shown.now.status, shown.curves.measurements, shown.evaluations)
    said = [*_alarm(shown.now, width), *_headline(found, width), *_doing(shown.now, width)]
    limits = _limits(shown.now, width)
    if height >= TALL:
        said += [Text(contributed(shown.now.status, shown.own).text, "bold")]
        said += [Text(found.beside, "dim")] if found.beside else []
        said += _drift(shown.now)
        limits = [*_machine(shown.now), *limits]
    lines = [_title(shown.now, width), *said, *_bars(shown.now, width), Text(), *_courses(shown, width)]
    lines += [_state(shown.now), *limits, Text()]
    lines += _tables(shown, width, height - len(lines) - 1)
    lines += [Text()] * (height - len(lines) - 1)
    return _fitting([*lines[: height - 1], _foot(shown)], width)


def _drift(now: Now) -> list[Text]:
    """Return a line on the drift of the model that was evaluated last: its distance from the base model.
    There is no line before the first evaluation."""
    found = now.status.drift
    return [Text(f"{moved_in_words(found.distance)}.".capitalize(), "dim")] if found else []


def absent(folder: object, reason: str, width: int, height: int) -> list[Text]:
    """Return the lines of the frame that is shown while no node answers."""
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


def _drawn(what: RenderableType, width: int) -> list[Text]:
    """Lay out `what` with rich, and return it as lines of at most `width` columns."""
    lines = Console(width=width, file=StringIO()).render_lines(what, pad=False)
    drawn = [Text.assemble(*((part.text, part.style or "") for part in line)) for line in lines]
    for line in drawn:
        line.rstrip()
    return drawn


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
    if s.origin:
        title.append(f" · {s.origin[:SHORT_KEY]} {printable(ourselves.name or '')}")
    title.align("left", width)
    return title


def _alarm(now: Now, width: int) -> list[Text]:
    """Draw the most severe alarm and, if there are several, their number."""
    found = alarms(now.status)
    more = f"(1 of {len(found)}: see sfnode status) " if len(found) > 1 else ""
    lines = (wrap(more + words.text, width, max_lines=ALARM_LINES, placeholder="…") for words in found[:1])
    return [Text(line, f"bold {STYLES[Mood.BAD]}") for drawn in lines for line in drawn]


def _headline(found: Quality, width: int) -> list[Text]:
    """Draw the headline, a sentence on whether the model gets better, with the curve of the model's
    results."""
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
    number = p.epoch if now.status.organised else p.epoch + 1  # an organised run counts from 0
    epoch = f"{number} of {max(number, p.epochs)}, {part_of(p.epoch_known, p.epoch_updates)}"
    wide = max(10, width - 62)
    return [
        _progress("run", p.known / p.update_budget, run, p.seconds_left, wide),
        _progress("round", p.epoch_known / max(p.epoch_updates, 1), epoch, p.epoch_seconds_left, wide),
    ]


def _progress(name: str, share: float, words: str, left: float | None, width: int) -> Text:
    line = Text().append(f"{name:<7}", "bold").append(bar(share, width), "cyan").append(f"  {words:<34}")
    return line.append("done" if left == 0 else f"left {span(left)}", "dim" if left is None else "")


def _courses(shown: Shown, width: int) -> list[Text]:
    """Draw a line for the loss (or mean reward) and a line for the rate of updates. Each has the current
    value, the curve, and the range of the curve."""
    c, p, s = shown.curves, shown.now.progress, shown.now.status
    trained = trained_by(s.task)
    losses = [None if loss is None else trained.of(loss) for loss in c.loss]
    now = None if s.loss is None else trained.of(s.loss)
    loss = f"{trained.name}  {'none: a relay has no model' if s.role == 'relay' else _number(now)}"
    rate = f"updates  all {pace(p.updates_per_second)}  this node {pace(s.updates_per_second)}"
    grid = Table.grid("", "", "", padding=(0, 2, 0, 0))
    for column in grid.columns:
        column.no_wrap = True
    for head, values, colour in ((loss, losses, "yellow"), (rate, c.swarm_rate, "green")):
        course = Text(spark(values, max(COURSE // 2, width - BESIDE_COURSE)), colour)
        grid.add_row(Text(head, "bold"), course, Text(f"{_ends(values)} in {span(c.now)}", "dim"))
    return _drawn(grid, width)


def _ends(values: Sequence[float | None]) -> str:
    there = [value for value in values if value is not None]
    return f"{_number(min(there))} to {_number(max(there))}" if there else "nothing yet"


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:.3f}" if abs(value) < 10 else f"{value:,.0f}"


def _state(now: Now) -> Text:
    """Draw a line that says how many neighbours have this node's model, how far neighbours lag, and how many
    updates this node lacks."""
    words = together(now)
    line = Text().append("neighbours  ", "bold").append(words.text, STYLES[words.mood])
    if now.near:
        line.append("  largest lag  ", "bold").append(count(max(node.lag for node in now.near)))
    line.append(f"  lacking {count(now.status.lacking)}" if now.status.lacking else "", "yellow")
    run = now.status.organised
    line.append(f"  missing {count(run.behind)}" if run and run.behind else "", "yellow")
    return line.append(f"  {run.stand_ins_here} of {run.stand_ins} stand in" if run and run.stand_ins else "")


def _machine(now: Now) -> list[Text]:
    """Draw the node's use of its machine."""
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
    """Draw, for each of several devices, the number of updates that it has computed and whether it has
    failed."""
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


def _tables(shown: Shown, width: int, room: int) -> list[Text]:
    """Draw the table of neighbours, the table of origins, or both side by side. Both are drawn if the origins
    are wanted, but not alone, and the terminal is wide enough."""
    if shown.origins is None:
        return _drawn(peers(shown.now, width, room), width)
    if width < WIDE or shown.only_origins:
        return _drawn(origins(shown.origins, room), width)
    half = (width - GAP) // 2
    both = Table.grid(padding=(0, GAP, 0, 0))
    both.add_column(width=half)
    both.add_column(width=half)
    both.add_row(peers(shown.now, half, room), origins(shown.origins, room))
    return _drawn(both, width)


def _foot(shown: Shown) -> Text:
    s = shown.now.status
    others = sum(node.kind == "known" for node in shown.now.swarm.nodes)
    keys = ["q quit", "o contributors" if shown.origins is None or not shown.only_origins else "o neighbours"]
    keys += [] if s.role == "relay" else ["e evaluate"]
    if shown.note:
        return Text("  ".join(keys), "dim").append(f"   {shown.note}", "not dim yellow")
    words = f"{others} more known   {size_text(s.bytes_sent)} out, {size_text(s.bytes_received)} in"
    return Text(f"{'  '.join(keys)}   {words}", "dim")


# -- tables --------------------------------------------------------------------------------------------


def peers(now: Now, width: int, room: int) -> Group:
    """Draw the table of neighbours, with as many of them as fit in `room` lines."""
    traffic = ("out", "in") if width >= ROOMY else ()
    table = _table(
        "peer", "key", "role", "latency", *traffic, "lag", "state", numbers=("latency", "lag", "out", "in")
    )
    shown = _that_fit(now.near, room, len(now.near))
    for node in shown:
        words = agreement(node, now.known)
        bytes_moved = [size_text(node.bytes_sent), size_text(node.bytes_received)][: len(traffic)]
        who = (node.name or "", node.origin[:SHORT_KEY]) if node.origin else (short(node.peer), "")
        row = [*who, node.role, delay(node.latency), *bytes_moved, count(node.lag), words.text]
        _add(table, row, "red" if words.mood is Mood.BAD else "")
    return _with_rest(table, len(now.near) - len(shown), room)


def origins(page: Origins, room: int) -> Group:
    """Draw the table of origins, with as many of them as fit in `room` lines. Origins with the greatest worth
    come first or, if no worth was measured, those with the most updates."""
    gain = ["gain"] if any(one.gain_share is not None for one in page.origins) else []
    numbers = ("rank", "updates", "share", "gain")
    table = _table("rank", "who", "key", "updates", "share", *gain, "team", numbers=numbers)
    shown = _that_fit(page.origins, room, page.total)
    for one in shown:
        row = [
            count(one.rank),
            one.name or "",
            one.origin[:SHORT_KEY],
            count(one.updates),
            percent(one.share),
        ]
        row += ["" if one.gain_share is None else percent(one.gain_share)] * len(gain)
        _add(table, [*row, one.team or ""], "bold" if one.own else "")
    return _with_rest(table, page.total - len(shown), room)


def _that_fit(rows: Sequence[T], room: int, total: int) -> Sequence[T]:
    """Return as many of the first rows as fit below the headings. If there are more, a line is left free for
    their number."""
    return rows[: max(0, room - 1 if total < room else room - 2)]


def _table(*names: str, numbers: Sequence[str]) -> Table:
    """Return an empty table. Where space is short, only its columns in CHOSEN are cut."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold underline")
    for name in names:
        justify: JustifyMethod = "right" if name in numbers else "left"
        table.add_column(name, justify=justify, no_wrap=name not in CHOSEN)
    return table


def _add(table: Table, cells: Sequence[str], style: str) -> None:
    table.add_row(*(Text(printable(cell), no_wrap=True, overflow="ellipsis") for cell in cells), style=style)


def _with_rest(table: Table, left: int, room: int) -> Group:
    rest = [Text(f"and {count(left)} more", "dim")] if left else []
    return Group(table, *rest) if room >= 2 else Group()
