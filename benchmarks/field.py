"""Recovery of a volunteer's node from faults of its network: real nodes in namespaces, in real time.

    python -m benchmarks.field [--scene NAME ...] [--cpu PERCENT]

Needs root. Prints two times for each scene, in seconds from the return of the network or of the node: until
another node has an update that the node made after the return (`update`), and until the two are neighbours
(`neighbour`). Exit status 1 if an update came too late. Raises AssertionError if the node has ended or has a
second feed.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.network import scenes
from tests.network.namespaces import unavailable
from tests.network.scenes import Field, Figures, field

BACK, ROUND = 30.0, 60.0
"""Maximum seconds until an update arrives: BACK if the node was away or moved, ROUND if the network around it
changed."""

SCENES: dict[str, tuple[Callable[[Field], Figures], float]] = {
    "address": (partial(scenes.moves, gap=0), BACK),
    "address-5": (partial(scenes.moves, gap=5), BACK),
    "away-70": (partial(scenes.away, seconds=70), BACK),
    "away-600": (partial(scenes.away, seconds=600), BACK),
    "stopped-70": (partial(scenes.stopped, seconds=70, daemon=False), BACK),
    "asleep-70": (partial(scenes.stopped, seconds=70, daemon=True), BACK),
    "asleep-600": (partial(scenes.stopped, seconds=600, daemon=True), BACK),
    "asleep-90x3": (partial(scenes.stopped, seconds=90, daemon=True, times=3), BACK),
    "stopped-3600": (partial(scenes.stopped, seconds=3600, daemon=False), BACK),
    "asleep-3600": (partial(scenes.stopped, seconds=3600, daemon=True), BACK),
    "relay-named": (partial(scenes.relay_dies, later=False, named=True), ROUND),
    "relay-known": (partial(scenes.relay_dies, later=False, named=False), ROUND),
    "relay-later": (partial(scenes.relay_dies, later=True, named=False), ROUND),
    "names-5": (partial(scenes.slow_names, delay=5, cut=70), ROUND),
    "ipv6": (scenes.sixth, ROUND),
    "idle-60": (partial(scenes.forgotten, idle=60, seconds=180), ROUND),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--scene", action="append", choices=SCENES, help="repeatable")
    parser.add_argument("--cpu", type=int, default=10, help="percent of all cores for each node")
    parser.add_argument(
        "--forked", action="store_true", help="start nodes fast; some of their waits are shorter"
    )
    given = parser.parse_args()
    if reason := unavailable():
        print(f"skipped: {reason}")
        return
    late = []
    print("| scene | seconds | update at most |\n|---|---|---|", flush=True)
    for name in given.scene or SCENES:
        play, limit = SCENES[name]
        with tempfile.TemporaryDirectory() as home, field(Path(home), given.cpu, forked=given.forked) as made:
            figures = play(made)
        said = ", ".join(f"{what} {seconds:.1f}" for what, seconds in figures.items())
        print(f"| {name} | {said} | {limit:.0f} |", flush=True)
        late += [name] if figures["update"] > limit else []
    if late:
        raise SystemExit(f"too late: {', '.join(late)}")


if __name__ == "__main__":
    main()
