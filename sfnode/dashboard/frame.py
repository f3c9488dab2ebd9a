"""One frame of `sfnode top`: from what was seen of a node to lines that fit the terminal.

Pure: knows no terminal, no keyboard and no client. Everything that comes from others is Text, never markup.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.text import Text

from sfnode.dashboard import figures
from sfnode.dashboard.figures import bar, braille, count, delay, rate, short, size, smooth, span, spark
from sfnode.dashboard.seen import Seen, agreement
from sfnode.runtime.viewed import Measurement, SwarmNode

CHART_LINES = 5
"""On a terminal of 24 lines; one of more lines gives half of them to the charts."""

FIXED_LINES = 11
"""Lines beside charts, limits and peers."""

LEAST_PEERS = 4
"""Lines that the charts leave to the neighbours."""

SMOOTH = 4
"""Points to each side over which a noisy curve is averaged."""

_STATES = {"training": "green", "complete": "green", "idle": "cyan"}
_COLUMNS = (("peer", 14), ("role", 8), ("latency", 9), ("out", 9), ("in", 9), ("lag", 9), ("state", 16))


def frame(seen: Seen, width: int, height: int, note: str = "") -> list[Text]:
    """The lines of one frame, at most `height` of at most `width` columns; `note` is for the last line."""
    limits = _limits(seen)
    lines = [*_head(seen, width), Text()]
    room = height - FIXED_LINES - len(limits) - 1
    lines += _charts(seen, width, max(2, min(room - LEAST_PEERS, max(CHART_LINES, room // 2))))
    lines += [_measured(seen, width), _state(seen), *limits, Text()]
    lines += _peers(seen, height - len(lines) - 1)
    lines += [Text()] * (height - len(lines) - 1)
    shown = [*lines[: height - 1], _foot(seen, note)]
    for line in shown:
        line.truncate(width)
    return shown


def absent(folder: object, reason: str, width: int, height: int) -> list[Text]:
    """The frame while there is no node to show."""
    lines = [
        Text(" sfnode top".ljust(width), "reverse"),
        Text(),
        Text(f"No node is running in {folder}.", "bold yellow"),
        Text(reason, "dim"),
        Text(),
        Text("Waiting for it. Start it with `sfnode join`, or name its folder with --data-dir."),
        Text(),
        Text("q quit", "dim"),
    ]
    for line in lines:
        line.truncate(width)
    return lines[:height]


# -- parts -------------------------------------------------------------------------------------------


def _head(seen: Seen, width: int) -> list[Text]:
    s, p = seen.status, seen.progress
    title = f" sfnode top · {s.run_name} ({s.run_id[:8]}) · {s.role}, "
    head = Text(title, "reverse")
    head.append(s.state, f"reverse bold {_STATES.get(s.state, 'yellow')}")
    head.append(f" · up {span(s.uptime)}", "reverse")
    head.append(" " * max(0, width - head.cell_len), "reverse")
    run = f"{count(p.known)} of {count(p.update_budget)} updates"
    epoch = f"{p.epoch + 1} of {p.epochs}, {count(p.epoch_known)} of {count(p.epoch_updates)}"
    wide = max(10, width - 62)
    return [
        head,
        _progress("run", p.known / p.update_budget, run, p.seconds_left, wide),
        _progress("epoch", p.epoch_known / max(p.epoch_updates, 1), epoch, p.epoch_seconds_left, wide),
    ]


def _progress(name: str, share: float, words: str, left: float | None, width: int) -> Text:
    line = Text(f"{name:<7}", "bold")
    line.append(bar(share, width), "cyan")
    line.append(f"  {words:<34}")
    line.append("done" if left == 0 else f"left {span(left)}", "dim" if left is None else "")
    return line


def _charts(seen: Seen, width: int, height: int) -> list[Text]:
    """Loss on the left, rates on the right, and from when to when."""
    c, p, s = seen.curves, seen.progress, seen.status
    wide = (width - 3) // 2
    loss = smooth(c.loss, SMOOTH)
    swarm = smooth(c.swarm_rate, SMOOTH)
    left = "loss  none: a relay has no model" if s.role == "relay" else f"loss  {_number(s.loss)}"
    right = f"updates/s  swarm {rate(p.updates_per_second)}  own {rate(s.updates_per_second)}"
    lines = [_pair(left, right, wide, "bold")]
    pairs = zip(braille(loss, wide, height), braille(swarm, wide, height), strict=True)
    for first, second in pairs:
        line = Text(first, "yellow")
        line.append("   ").append(second, "green")
        lines.append(line)
    low, high = _ends(loss)
    slow, fast = _ends(swarm)
    lines.append(_pair(f"{low} to {high}, last {span(c.now)}", f"{slow} to {fast}", wide, "dim"))
    return lines


def _pair(left: str, right: str, width: int, style: str) -> Text:
    return Text(f"{left:<{width}}   {right}", style)


def _ends(values: Sequence[float | None]) -> tuple[str, str]:
    there = [value for value in values if value is not None]
    return (_number(min(there)), _number(max(there))) if there else ("?", "?")


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:.3f}" if abs(value) < 10 else f"{value:,.0f}"


def _measured(seen: Seen, width: int) -> Text:
    """The latest evaluation, and the course of all."""
    ours = [m for m in seen.curves.measurements if not m.base]
    if not ours:
        line = Text("metric  ", "bold")
        words = "a relay measures nothing" if seen.status.role == "relay" else "not measured yet: press e"
        return line.append(words, "not bold dim")
    last = ours[-1]
    line = Text(f"{last.metric}  ", "bold").append(_value(last), "not bold")
    base = next((m for m in seen.curves.measurements[::-1] if m.base), None)
    if base:
        line.append(f"  base {base.value:.3f}", "dim")
    room = max(0, width - line.cell_len - 2)
    return line.append("  " + spark([m.value for m in ours], min(room, 24)), "magenta") if room > 4 else line


def _value(m: Measurement) -> str:
    return f"{m.value:.3f} ({m.low:.3f}–{m.high:.3f}) at {count(m.known)} updates"


def _state(seen: Seen) -> Text:
    """Digest, agreement and lag."""
    s = seen.status
    near = _near(seen)
    alarm = sum(agreement(node, _known(seen)) == "digest differs" for node in near)
    line = Text("digest  ", "bold").append(s.digest[:12], "not bold")
    if not near:
        return line.append("  no neighbours", "not bold yellow")
    agreeing = sum(bool(node.agrees) for node in near)
    line.append(f"  {agreeing} of {len(near)} neighbours agree", "not bold " + ("red" if alarm else "green"))
    line.append(f"  largest lag {count(max(node.lag for node in near))}", "not bold")
    return line.append(f"  fetching {count(s.lacking)}" if s.lacking else "", "not bold yellow")


def _limits(seen: Seen) -> list[Text]:
    """Limits in force and why the node pauses, as the status tells them."""
    lines = []
    for name, style in (("pauses", "bold yellow"), ("limits", "")):
        told = _told(getattr(seen.status, name, None))
        if told:
            lines.append(Text(f"{name}  ", "bold").append(told, f"not bold {style}".strip()))
    return lines


def _told(value: Any) -> str:
    """Whatever it is, in one line."""
    if hasattr(value, "model_dump"):
        value = value.model_dump(exclude_none=True, exclude_defaults=True)
    if isinstance(value, dict):
        return ", ".join(f"{key.replace('_', ' ')} {_told(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(_told(item) for item in value)
    return "" if value is None else str(value)


def _peers(seen: Seen, room: int) -> list[Text]:
    """A table of the neighbours, as many as there is room for."""
    if room < 2:
        return []
    near = _near(seen)
    lines = [Text(_row([name for name, _ in _COLUMNS]), "bold underline")]
    hidden = len(near) - (room - 1)
    shown = near[: room - 2] if hidden > 0 else near
    lines += [_peer(node, _known(seen)) for node in shown]
    if hidden > 0:
        lines.append(Text(f"and {len(near) - len(shown)} more", "dim"))
    return lines


def _peer(node: SwarmNode, known: int) -> Text:
    words = agreement(node, known)
    cells = [
        short(node.peer),
        node.role,
        delay(node.latency),
        size(node.bytes_sent),
        size(node.bytes_received),
        count(node.lag),
        words,
    ]
    return Text(_row(cells), "red" if words == "digest differs" else "")


def _row(cells: Sequence[str]) -> str:
    aligned = [
        f"{cell:<{wide}}" if name in ("peer", "role", "state") else f"{cell:>{wide}}  "
        for cell, (name, wide) in zip(cells, _COLUMNS, strict=True)
    ]
    return "".join(aligned)


def _near(seen: Seen) -> list[SwarmNode]:
    return [node for node in seen.swarm.nodes if node.kind == "neighbour"]


def _known(seen: Seen) -> int:
    """At the moment when the neighbours were asked about."""
    return seen.swarm.nodes[0].known


def _foot(seen: Seen, note: str) -> Text:
    s = seen.status
    others = sum(node.kind == "known" for node in seen.swarm.nodes)
    keys = "q quit" if s.role == "relay" else "q quit  e measure"
    words = f"{keys}   {others} more known   {size(s.bytes_sent)} out, {size(s.bytes_received)} in"
    return Text(f"{words}   log {size(s.log_bytes)}   {note}".rstrip(), "dim")


def ascii_only(lines: Sequence[Text]) -> list[Text]:
    """The same lines for a terminal without Unicode."""
    return [Text(figures.plain(line.plain), line.style) for line in lines]
