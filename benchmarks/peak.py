"""Measures the peak memory of each command on a real model in its default format.

    python -m benchmarks.peak [--model FOLDER] [--updates 64]

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
    given = parser.parse_args()
    if given.model == real_model.FOLDER:
        real_model.write(given.model)
    kinds = {"head": (), "matrices": real.in_words(topics.PRESET.task)}
    worst = 0.0
    print("| command | head, GiB | matrices, GiB |\n|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory(prefix="sfnode-peak-") as scratch:
        os.environ["XDG_CACHE_HOME"] = str(Path(scratch) / "cache")
        found = {kind: commands(Path(scratch) / kind, given, options) for kind, options in kinds.items()}
    for name in found["head"]:
        row = [found[kind][name] for kind in kinds]
        worst = max(worst, *row)
        print(f"| {name} | {' | '.join(f'{one:.2f}' for one in row)} |")
    sys.exit(worst > LIMIT)


def commands(folder: Path, given: argparse.Namespace, options: tuple[str, ...]) -> dict[str, float]:
    """Return the peak memory of each command in GiB, keyed by command, for a run with these options."""
    folder.mkdir()
    topics.write(folder)
    run, node, model = folder / "run.toml", folder / "swarm" / "node-1", ("--model", given.model)
    files = (folder / "train.tsv", "--label", "label", "--test", folder / "test.tsv", "--out", run)
    sets = (f"training.update_budget={given.updates}", f"keys.dir={folder / 'keys'}")
    keys = (part for one in sets for part in ("--set", one))
    of = ("--data-dir", node)
    return {
        "init": peak("init", *files, "--yes", *model, *options, *keys),
        "swarm of one node": peak("swarm", "--nodes", 1, "--run", run, *model, "--out", node.parent),
        "eval": peak("eval", *of, *model),
        "use": peak("use", *of, *model, "the striker won the final"),
        "export": peak("export", *of, *model, "--out", folder / "exported"),
    }


if __name__ == "__main__":
    main()
