"""Draws docs/learning.svg, the picture of the README, from the first table of docs/benchmarks.md.

    python scripts/picture.py [--check]

With --check nothing is written, and the exit status is 1 if the picture is not what it should be.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Sequence
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
PICTURE = DOCS / "learning.svg"

TASKS = ("AG News", "SST-2")
COLOURS = ("#2563eb", "#d97706")
"""Colours of a task's curve and lines; both can be told from white and from black."""

LEFT, RIGHT, TOP, BOTTOM = 50, 420, 20, 210
WIDTH, HEIGHT = 640, 250
LEAST, MOST = 0.5, 0.9
"""Ends of the axis of accuracy."""


def figures() -> tuple[dict[int, list[float]], dict[str, list[float]]]:
    """Return the accuracies of both tasks by the number of updates, and those of what they stand beside."""
    table = re.search(r"^\| \| AG News.*?(?=\n\n)", (DOCS / "benchmarks.md").read_text("utf-8"), re.M | re.S)
    assert table is not None
    curve: dict[int, list[float]] = {}
    others: dict[str, list[float]] = {}
    for name, *cells in (row.strip("| ").split(" | ") for row in table[0].splitlines()[2:]):
        values = [float(cell.strip("*").split(" /")[0].strip("*")) for cell in cells[: len(TASKS)]]
        if counts := re.search(r"([\d,]+) updates", name):
            curve[int(counts[1].replace(",", ""))] = values
        else:
            others[re.sub(r"[*]|,.*", "", name)] = values
    return curve, others


def across(updates: int) -> float:
    return LEFT + (RIGHT - LEFT) * math.log10(updates / 10) / math.log10(15)


def up(accuracy: float) -> float:
    return BOTTOM - (BOTTOM - TOP) * (accuracy - LEAST) / (MOST - LEAST)


def drawing() -> str:
    curve, others = figures()
    beside = {name: others[name] for name in ("linear probe", "LoRA with AdamW")}
    counts = [count for count in sorted(curve) if count]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="12" fill="#6b7280">',
        "<title>Accuracy on held-out rows by the number of updates</title>",
    ]
    for tenth in range(5, 10):
        y = up(tenth / 10)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{RIGHT}" stroke="#9ca3af" stroke-width="0.5"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{10 * tenth} %</text>')
    for count in (20, 50, 100):
        parts.append(f'<text x="{across(count):.1f}" y="{BOTTOM + 18}" text-anchor="middle">{count:,}</text>')
    parts.append(f'<text x="{(LEFT + RIGHT) / 2}" y="{BOTTOM + 34}" text-anchor="middle">updates</text>')
    ends = []
    for number, (task, colour) in enumerate(zip(TASKS, COLOURS, strict=True)):
        places = " ".join(f"{across(count):.1f},{up(curve[count][number]):.1f}" for count in counts)
        parts.append(f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="3"/>')
        ends.append((up(curve[counts[-1]][number]), colour, f"sfnode, {task}"))
        for name, values in beside.items():
            y = up(values[number])
            parts.append(f'<path d="M{LEFT} {y:.1f}H{RIGHT}" stroke="{colour}" stroke-dasharray="5 4"/>')
            ends.append((y, colour, f"{name}, {task}"))
    for y, (_, colour, text) in zip(apart([y for y, _, _ in sorted(ends)]), sorted(ends), strict=True):
        parts.append(f'<text x="{RIGHT + 10}" y="{y + 4:.1f}" fill="{colour}">{text}</text>')
    return "\n".join([*parts, "</svg>", ""])


def apart(places: Sequence[float], least: float = 15.0) -> list[float]:
    """Return places from top to bottom, moved so far apart that no label covers another."""
    moved: list[float] = []
    for place in places:
        moved.append(max(place, moved[-1] + least) if moved else place)
    return moved


def main(arguments: Sequence[str]) -> int:
    """The exit status."""
    text = drawing()
    if list(arguments) == ["--check"]:
        return int(not PICTURE.exists() or PICTURE.read_text("utf-8") != text)
    PICTURE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
