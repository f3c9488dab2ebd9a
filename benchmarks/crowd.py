"""A crowd at one donor: how long until all newcomers have the run's model, and what it costs the donor.

    python -m benchmarks.crowd [--nodes 20] [--megabytes 50] [--rate 10] [--virtual]

Needs root: each node has its own process and network namespace. The donor, a node that trains, has the model
and sends at most `rate` Mbit/s. The newcomers start at the same time and only fetch (relays that share).
Prints

- the seconds from the first request until half of the newcomers, and all of them, have the model;
- the seconds that the donor would need to serve the newcomers one after the other;
- the copies of the model that left the donor (all its bytes, headers and updates included);
- the CPU time that the donor spends on anything but training while it serves them, per second in which it
  sends at `rate`. A donor with one core trains in the rest of it. (Its updates are not counted: here, all
  newcomers compute on the donor's cores.)

With `--virtual`, the shipped code for sharing runs over memory transports in virtual time, where every node
sends at `rate`.

Exit status 1 if 20 or more newcomers need more than QUEUE times the seconds one after the other, or if the
donor keeps less than PACE of a core for its training.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from sfnode.models import model_files
from sfnode.store.data_folder import Layout
from tests.modelshare.crowd import crowd
from tests.network.namespaces import Place, unavailable, world
from tests.processes.helpers import Node, here, nodes, until

QUEUE, PACE = 0.3, 0.8
"""Maximum time of the crowd, as a share of the time of serving the newcomers one after the other. Minimum
share of a core that serving leaves to the donor's training, and so of the pace that it had before."""

CROWD = 20
"""Number of newcomers from which QUEUE applies. In a smaller crowd, newcomers pass fewer pieces on to each
other."""

PATIENCE = 1200.0
"""Timeout, in seconds, for each expected event."""

BEFORE = 10.0
"""Seconds for which the donor trains alone before the crowd comes. After them, its busiest thread is the one
that trains."""

LOOK = 0.5
"""Seconds between two checks of all nodes, and so the resolution of the measured times."""

OPTIONS = ("training.update_budget=10000000", "task.loss=plain", "init.measure=no")
LISTENS = ("--host-maddrs", "/ip4/0.0.0.0/tcp/4001", "--set", "node.samples=0")
FETCHES = ("--role", "relay", "--set", "data.share_model=yes")


def beside_training(node: Node) -> float:
    """Return the CPU seconds that a node has used for anything but training: those of all its threads but the
    busiest one, and of its daemon."""
    process = psutil.Process(node.pid)
    times = [one.cpu_times() for one in (process, *process.children(recursive=True))]
    training = max(thread.user_time + thread.system_time for thread in process.threads())
    return float(sum(one.user + one.system for one in times) - training)


def sent(place: Place) -> int:
    """Return the number of bytes that the host at `place` has sent."""
    with place.entered():
        return psutil.net_io_counters(pernic=True)["net0"].bytes_sent


def served(newcomers: Sequence[Node]) -> list[float]:
    """Wait until all newcomers have the model. Return the seconds of each, counted from the first newcomer's
    first request for pieces."""
    give_up, began, seconds = time.monotonic() + PATIENCE, math.inf, dict[str, float]()
    while len(seconds) < len(newcomers):
        assert time.monotonic() < give_up, f"only {len(seconds)} of {len(newcomers)} have it"
        time.sleep(LOOK)
        for node in newcomers:
            if not node.running:
                node.start()  # as a volunteer does if the machine was too busy to join
            layout = Layout(node.folder)
            if layout.partial_model.exists():
                began = min(began, time.monotonic())
            if node.folder.name not in seconds and layout.model.exists():
                seconds[node.folder.name] = time.monotonic() - min(began, time.monotonic())
    return [*seconds.values()]


def real(home: Path, make: Callable[..., Node], count: int, size: int, rate: float) -> bool:
    """Measure node processes and print the results. Return whether these are within the limits."""
    model = Path(shutil.copytree(model_files.EMBEDDED / "tiny", home / "first"))
    (model / "vocab.bpe").write_bytes(os.urandom(size))
    options = [word for option in OPTIONS for word in ("--set", option)]
    run = ("--out", home / "run.toml", "--open", "--model", model, "--task", "reviews")
    here("init", "builtin:reviews:train", *run, *options)
    model = model.rename(home / "kept")
    with world() as internet:
        places = [internet.place(f"n{number}", f"5.{number + 1}.0.1") for number in range(count + 1)]
        places[0].limit_uplink(f"{rate:g}mbit")
        donor = make(
            "donor", "--run", home / "run.toml", "--model", model, *LISTENS, namespace=places[0].name
        )
        donor.start()
        until("it trains", lambda: (status := donor.status()) and status.own_updates, PATIENCE)
        link = donor.link()
        time.sleep(BEFORE)
        before, bytes_before = beside_training(donor), sent(places[0])
        newcomers = [
            make(f"n{number}", link, *FETCHES, *LISTENS, namespace=places[number].name).start()
            for number in range(1, count + 1)
        ]
        seconds = served(newcomers)
        used, out = beside_training(donor) - before, sent(places[0]) - bytes_before
        for node in newcomers:
            assert model_files.digest(node.folder / "model") == model_files.digest(model)
    soon = show(seconds, out / size, count, size, rate)
    share = used / (out / (rate * 125_000))
    print(f"the donor sent {out / 1e6:.0f} MB in {used:.1f} CPU s; at {rate:g} Mbit/s: {share:.2f} of a core")
    return soon and 1 - share >= PACE


def show(seconds: list[float], copies: float, count: int, size: int, rate: float) -> bool:
    """Print the times of the newcomers and the copies that left the donor. Return whether the last newcomer
    met QUEUE."""
    queue, last = count * size / (rate * 125_000), max(seconds)
    print(
        f"{count} newcomers, {size / 1e6:g} MB, {rate:g} Mbit/s: half have it after "
        f"{statistics.median(seconds):.0f} s, all after {last:.0f} s, {last / queue:.2f} of {queue:.0f} s; "
        f"{copies:.2f} copies left the donor",
        flush=True,
    )
    return count < CROWD or last <= QUEUE * queue


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--nodes", type=int, default=20)
    parser.add_argument("--megabytes", type=float, default=50)
    parser.add_argument("--rate", type=float, default=10, help="Mbit/s")
    parser.add_argument("--virtual", action="store_true")
    given = parser.parse_args()
    size = int(given.megabytes * 1e6)
    with tempfile.TemporaryDirectory() as folder:
        if given.virtual:
            found = crowd(Path(folder), given.nodes, size, given.rate * 125_000)
            assert found.right
            good = show(found.seconds, found.copies, given.nodes, size, given.rate)
        elif reason := unavailable():
            print(f"skipped: {reason}")
            return
        else:
            with nodes(Path(folder)) as make:
                good = real(Path(folder), make, given.nodes, size, given.rate)
    sys.exit(not good)


if __name__ == "__main__":
    main()
