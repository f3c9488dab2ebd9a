"""Measures the peak memory of each command on a real model in its default format.

    python -m benchmarks.peak [--model FOLDER] [--updates 64] [--run head] [--run matrices]

Makes two runs on texts of benchmarks.topics: one trains a head, the other the model's matrices. For each run
it runs init, a swarm of one node, eval, use and export. Prints the peak of each command: the resident memory
of all its processes, measured every LOOK seconds. Exit status 1 if a peak exceeds LIMIT.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from benchmarks import real, topics
from scripts import real_model

LIMIT = 3.0
"""Maximum peak in GiB: on a machine with 8 GiB, it leaves 4 to a browser and 1 to the system."""

LOOK = 0.05

GIB = 2**30


def peak(*words: Any) -> float:
    """Run a command of sfnode. Return the peak memory of its processes in GiB. Exits if the command fails."""
    most = 0
    started = psutil.Popen([sys.executable, "-m", "sfnode", *map(str, words)], stdout=subprocess.DEVNULL)
    while started.poll() is None:
        most = max(most, resident(started))
        time.sleep(LOOK)
    if started.returncode:
        sys.exit(started.returncode)
    return most / GIB


def resident(process: psutil.Process) -> int:
    """Return the resident bytes of a process and its descendants. Pages that they share count once for each
    process."""
    found = 0
    with suppress(psutil.NoSuchProcess):
        for one in (process, *process.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                found += one.memory_info().rss
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", type=Path, default=real_model.FOLDER)
    parser.add_argument("--updates", type=int, default=64)
    parser.add_argument("--run", action="append", choices=("head", "matrices"), help="repeatable")
    given = parser.parse_args()
    if given.model == real_model.FOLDER:
        real_model.write(given.model)
    kinds = {"head": (), "matrices": real.in_words(topics.PRESET.task)}
    worst = 0.0
    print("| run | command | peak, GiB |\n|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory(prefix="sfnode-peak-") as scratch:
        os.environ["XDG_CACHE_HOME"] = str(Path(scratch) / "cache")
        for kind in given.run or kinds:
            for name, words in commands(Path(scratch) / kind, given, kinds[kind]):
                worst = max(worst, found := peak(*words))
                print(f"| {kind} | {name} | {found:.2f} |", flush=True)
    sys.exit(worst > LIMIT)


def commands(
    folder: Path, given: argparse.Namespace, options: tuple[str, ...]
) -> list[tuple[str, tuple[Any, ...]]]:
    """Return each command's name and words, in their order, for a run with these options in a new folder."""
    folder.mkdir()
    topics.write(folder)
    run, node, model = folder / "run.toml", folder / "swarm" / "node-1", ("--model", given.model)
    files = (folder / "train.tsv", "--label", "label", "--test", folder / "test.tsv", "--out", run)
    sets = (f"training.update_budget={given.updates}", f"keys.dir={folder / 'keys'}")
    keys = (part for one in sets for part in ("--set", one))
    of = ("--data-dir", node)
    return [
        ("init", ("init", *files, "--yes", *model, *options, *keys)),
        ("swarm of one node", ("swarm", "--nodes", 1, "--run", run, *model, "--out", node.parent)),
        ("eval", ("eval", *of, *model)),
        ("use", ("use", *of, "the striker won the final")),
        ("export", ("export", *of, *model, "--out", folder / "exported")),
    ]


if __name__ == "__main__":
    main()
