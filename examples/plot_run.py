"""Draw a run from its log: who made how many updates, and how large the scalars are, epoch by epoch.

    python plot_run.py ~/.local/share/sfnode/node/updates.sqlite run.svg

The log may be that of a node that is running. Writes SVG by hand, so that nothing has to be installed.
"""

import sys
from pathlib import Path

import numpy as np

from sfnode import UpdateLog
from sfnode.store.columns import Columns

WIDTH, HEIGHT, MARGIN = 640, 360, 40
COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377")


def main(log: str, out: str) -> None:
    with UpdateLog.open(Path(log).expanduser(), read_only=True) as opened:
        columns = opened.columns()
    Path(out).write_text(svg(columns))
    print(f"wrote {out}: {len(columns)} updates of {len(columns.feeds)} feeds")


def svg(columns: Columns) -> str:
    """Bars: updates of each feed by epoch, stacked. Line: mean size of the scalars by epoch."""
    updates, epochs = columns.updates, max(1, len(columns.epochs()))
    made = np.zeros((len(columns.feeds), epochs), np.int64)  # (feed, epoch)
    np.add.at(made, (updates.feed, updates.epoch), 1)
    sums = np.bincount(updates.epoch, np.abs(updates.scalar), minlength=epochs)
    means = sums / np.maximum(made.sum(0), 1)
    step = (WIDTH - 2 * MARGIN) / epochs
    tallest, largest = max(1, made.sum(0).max(initial=0)), max(1.0, means.max())
    shapes = []
    for epoch in range(epochs):
        x, y = MARGIN + epoch * step, float(HEIGHT - MARGIN)
        for feed, count in enumerate(made[:, epoch]):
            height = (HEIGHT - 2 * MARGIN) * count / tallest
            y -= height
            box = f'x="{x:.1f}" y="{y:.1f}" width="{0.9 * step:.1f}" height="{height:.1f}"'
            shapes.append(f'<rect {box} fill="{COLOURS[feed % len(COLOURS)]}"/>')
    line = " ".join(
        f"{MARGIN + (epoch + 0.45) * step:.1f},{HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * mean / largest:.1f}"
        for epoch, mean in enumerate(means)
    )
    shapes.append(f'<polyline points="{line}" fill="none" stroke="black" stroke-width="2"/>')
    caption = f"{len(columns)} updates by epoch (up to {tallest}); line: mean |scalar| (up to {largest:.0f})"
    shapes.append(f'<text x="{MARGIN}" y="{MARGIN - 16}" font-family="sans-serif">{caption}</text>')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}">'
    return "\n".join([head, *shapes, "</svg>"]) + "\n"


if __name__ == "__main__":
    main(*sys.argv[1:3])
