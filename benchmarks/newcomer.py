"""Waiting time of a volunteer, from `sfnode join LINK` until a peer has the first update of the new node.

    python benchmarks/newcomer.py [--times COUNT] [--megabytes SIZE] [--case embedded|peers ...] [--lines]

One node organises a run and trains. Newcomers join by its link, one after the other. Each has its own data
folder and a fresh interpreter, as when a user starts it. Cases:

- `embedded`: the run of `sfnode init`, whose model comes with sfnode.
- `peers`: a model of `--megabytes` megabytes, and rows, both from files of the organiser. Newcomers run in a
  mount namespace (`unshare`, needs root) in which the folder of these files is empty, so that model and rows
  come from the peer.

The silence is the longest time without a new line on the newcomer's terminal, between its first line and that
update. Also prints how many cores other programs use. On a busy machine a newcomer's CPU time says more than
its time by the clock.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import psutil

from sfnode.control.client import Client
from sfnode.errors import UserError
from sfnode.models.model_files import EMBEDDED
from sfnode.store.data_folder import Layout
from sfnode.tasks.dataset import rows_of

SFNODE = (sys.executable, "-m", "sfnode")

PATIENCE = 300.0
"""Timeout, in seconds, for each expected event, even on a busy machine."""

LOOK = 0.05
"""Seconds between two checks of the organiser, and so the resolution of the measured times."""

BUDGET = 10**6
"""Update budget of the run, so large that the run is not complete before the last newcomer has joined."""

CASES = ("embedded", "peers")


class Line(NamedTuple):
    """A line that a process printed, and its time in seconds of the monotonic clock."""

    at: float
    text: str


class Process:
    """A command of sfnode in its own process. Its lines are read as they are printed."""

    def __init__(self, home: Path, *words: object, before: Sequence[str] = ()) -> None:
        command = [*before, *SFNODE, *map(str, words)]
        self.began = time.monotonic()
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            cwd=home, env=os.environ | {"HOME": str(home), "PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
        self.lines: list[Line] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for text in self._process.stdout:
            self.lines.append(Line(time.monotonic(), text.rstrip("\n")))

    def check(self) -> None:
        """Raise RuntimeError if the process has ended."""
        if self._process.poll() is not None:
            raise RuntimeError("it has ended:\n" + "\n".join(line.text for line in self.lines))

    def computed(self) -> float:
        """Return the CPU seconds of the process and its children."""
        process = psutil.Process(self._process.pid)
        return sum(sum(one.cpu_times()[:2]) for one in (process, *process.children(recursive=True)))

    def end(self) -> None:
        self._process.terminate()
        self._process.wait(PATIENCE)


class Joined(NamedTuple):
    """Waiting times of a newcomer."""

    seconds: float
    computed: float
    """CPU seconds of the newcomer, over all cores."""
    lines: list[Line]
    """Lines that the newcomer printed until its update arrived. Their times are seconds since its start."""

    @property
    def silence(self) -> tuple[float, str]:
        """Longest silence after its first line, in seconds, and the line before that silence."""
        ends = [*(line.at for line in self.lines[1:]), self.seconds]
        return max((end - line.at, line.text) for line, end in zip(self.lines, ends, strict=True))


def shown_link(organiser: Process) -> str:
    """Wait until the organiser prints its link. Return the link."""
    give_up = time.monotonic() + PATIENCE
    while time.monotonic() < give_up:
        organiser.check()
        for line in organiser.lines:
            if "sfnode join sfnode:" in line.text:
                return line.text.split()[-1]
        time.sleep(LOOK)
    raise RuntimeError("the organiser shows no link")


def origins(folder: Path) -> dict[str, int]:
    """Return the number of updates of each origin that a node has; empty while the node does not answer."""
    try:
        feeds = asyncio.run(Client(Layout(folder).control_socket).every_feed())
    except UserError:
        return {}
    return {feed.origin: feed.updates for feed in feeds if feed.updates}


def join(home: Path, name: str, link: str, organiser: Path, before: Sequence[str]) -> Joined:
    """Start a newcomer, and measure until the organiser has an update of a new origin."""
    had = set(origins(organiser))
    newcomer = Process(home, "join", link, "--data-dir", home / name, before=before)
    try:
        while not set(origins(organiser)) - had:
            newcomer.check()
            if time.monotonic() > newcomer.began + PATIENCE:
                raise RuntimeError("\n".join(line.text for line in newcomer.lines))
            time.sleep(LOOK)
        done, computed = time.monotonic(), newcomer.computed()
    finally:
        newcomer.end()
    said = [Line(line.at - newcomer.began, line.text) for line in newcomer.lines if line.at < done]
    return Joined(done - newcomer.began, computed, said)


def make_files(folder: Path, megabytes: int) -> None:
    """Write a base model of `megabytes` MB, and rows, to a new folder."""
    shutil.copytree(EMBEDDED / "tiny", folder / "model")
    (folder / "model" / "vocab.bpe").write_bytes(
        os.urandom(megabytes * 10**6)
    )  # the model's tokenizer does not read this file
    for split, count in (("train", 2000), ("test", 500)):
        rows = rows_of(f"builtin:reviews:{split}", count)
        (folder / f"{split}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))


@contextmanager
def run(case: str, home: Path, megabytes: int) -> Iterator[tuple[str, Path, tuple[str, ...]]]:
    """Start a node that organises a run. Yield its link, its folder, and the words to put before newcomers'
    commands."""
    options: tuple[object, ...] = ("--task", "reviews", "--set", f"training.update_budget={BUDGET}")
    before: tuple[str, ...] = ()
    if case == "peers":
        files = home / "files"
        make_files(files, megabytes)
        options += ("--model", files / "model", "--set", "init.measure=no", "--set", "task.loss=plain")
        options += (files / "train.jsonl", "--test", files / "test.jsonl")
        hidden = f'mount -t tmpfs none {shlex.quote(str(files))} && exec "$@"'
        before = ("unshare", "-m", "sh", "-c", hidden, "sh")
    words = [*SFNODE, "init", "--out", str(home / "run.toml"), *map(str, options)]
    subprocess.run(words, check=True, env=os.environ | {"HOME": str(home)}, cwd=home, capture_output=True)
    folder = home / "organiser"
    organiser = Process(home, "join", "--run", home / "run.toml", "--organise", "--data-dir", folder)
    try:
        link = shown_link(organiser)
        while not origins(folder):  # until it trains, as the nodes that volunteers find do
            organiser.check()
            time.sleep(LOOK)
        yield link, folder, before
    finally:
        organiser.end()


def busy_cores(seconds: float = 2.0) -> float:
    """Return how many cores other programs use, before this program starts any process."""
    return float(psutil.cpu_percent(seconds)) / 100 * (psutil.cpu_count() or 1)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--times", type=int, default=5, help="newcomers of each case")
    parser.add_argument("--megabytes", type=int, default=16, help="size of the model that comes from peers")
    parser.add_argument("--case", choices=CASES, nargs="*", default=CASES)
    parser.add_argument("--lines", action="store_true", help="show what each newcomer says, and when")
    chosen = parser.parse_args()
    busy = busy_cores()
    load = os.getloadavg()[0]
    print(f"{busy:.1f} of {psutil.cpu_count()} cores are busy with other programs; load {load:.1f}")
    print("| case | link to update at the peer, s | processor, s | first line, s | silence, s | after |")
    print("|---|---|---|---|---|---|")
    for case in chosen.case:
        with tempfile.TemporaryDirectory(prefix="newcomer-") as name:
            home = Path(name)
            with run(case, home, chosen.megabytes) as (link, organiser, before):
                for number in range(1, chosen.times + 1):
                    found = join(home, f"newcomer-{number}", link, organiser, before)
                    silence, after = found.silence
                    seconds = (found.seconds, found.computed, found.lines[0].at, silence)
                    figures = " | ".join(f"{one:.1f}" for one in seconds)
                    print(f"| {case} | {figures} | {after[:70]} |", flush=True)
                    for at, text in found.lines if chosen.lines else ():
                        print(f"    {at:5.1f} {text}")
    print(f"load at the end {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
