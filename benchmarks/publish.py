"""Costs of a page about a long run: CPU seconds, in total and of each part, and bytes (check 5 of issue 16).

    python -m benchmarks.publish [--origins 300] [--updates 1000000] [--epochs 250] [--folder FOLDER]

Makes the folder of a node of such a run, with real signatures, names and worths. Publishes it twice in one
process: first as `sfnode publish page` does, then as `--every` does after its first page. Only CPU seconds
are measured, because other programs use the machine. Exit status 1 if a page takes more than LONGEST seconds
or has more than LARGEST bytes.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import sys
import tempfile
import time
from pathlib import Path

from sfnode.cli.data_folder import opened_run
from sfnode.publish.asking import NodeAnswers
from sfnode.publish.run_file import utc_now
from sfnode.publish.site import PublishedFolder
from sfprotocol.fields import Names
from tests.publish.helpers import link_to
from tests.publish.runs import manifest_of, write_run

LONGEST, LARGEST = 60.0, 2_000_000

PARTS = {
    "time_travel.py": ("__init__", "the state of the machine, from the log"),
    "run_history.py": ("members", "worth of all members"),
    "checkout.py": ("last_seal", "the last seal that is here as a whole"),
    "facts.py": ("_seal", "that, and its core digest"),
    "page.py": ("run_page", "drawing the page"),
}
"""Functions whose share of the time is printed, and what they do, keyed by file."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--origins", type=int, default=300)
    parser.add_argument("--updates", type=int, default=1_000_000)
    parser.add_argument("--epochs", type=int, default=250)
    parser.add_argument("--folder", type=Path, help="keep the run there, or use the one that is")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.folder or Path(scratch) / "node"
        if not folder.exists():
            names = [Names(f"Member {n}" if n % 3 else "", f"Team {n % 20}") for n in range(given.origins)]
            write_run(folder, manifest_of(), names, updates=given.updates, epochs=given.epochs)
        return publish(folder, Path(scratch) / "page")


def publish(folder: Path, page: Path) -> int:
    """Publish twice and print the costs. Return the exit status."""
    site, worst = PublishedFolder(page, folder), 0.0
    for time_of in ("first", "again"):
        profile, began = cProfile.Profile(), time.process_time()
        with opened_run(folder) as (manifest, update_log):
            told = NodeAnswers()._replace(contact=NodeAnswers().contact._replace(link=link_to(manifest)))
            published = site.publish(manifest, update_log, told, utc_now())
        seconds = time.process_time() - began
        worst = max(worst, seconds)
        run = published.run
        print(f"{time_of}: {seconds:.1f} s; {run.members} members, {run.updates:,} updates")
        if time_of == "first":
            profile.enable()
            with opened_run(folder) as (manifest, update_log):
                PublishedFolder(page, folder).publish(manifest, update_log, told, utc_now())
            profile.disable()
            _print_parts(pstats.Stats(profile))
    files = {path.name: path.stat().st_size for path in page.iterdir()}
    print(files)
    return int(worst > LONGEST or sum(files.values()) > LARGEST)


def _print_parts(stats: pstats.Stats) -> None:
    """Print the share of each part in the time of one more publication, which was profiled."""
    whole = stats.total_tt  # type: ignore[attr-defined]
    for (file, _, name), (_, _, _, inside, _) in stats.stats.items():  # type: ignore[attr-defined]
        wanted, what = PARTS.get(Path(file).name, ("", ""))
        if name == wanted:
            print(f"    {inside / whole:4.0%} {what}")


if __name__ == "__main__":
    sys.exit(main())
