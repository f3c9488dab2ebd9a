"""What a long organised run costs whoever comes to it, from a checkpoint and from genesis (SPEC O14).

    python tests/bench/checkpoints.py [--runs 3] [--genesis] [--small 100000:10] [--large 10000000:1000]

Makes two logs with real signatures, of UPDATES:EPOCHS each, on OPT-125M's shape, and a checkpoint a hundredth
of the run before its end (at least one epoch). For each, and for a log with nothing in it, in CPU seconds of
a process of its own:

- *open*: opening the folder, and the state of the machine, as any start of a node;
- *refold*: from there to the cores of everything that counts now;
- *first step*: from there to weights and the first step.

*Late join* is their sum. `--genesis` adds the same without the checkpoint, and `sfnode verify` of all.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sflab.bench import subject
from sfnode.manifest import Manifest
from sfnode.manifest.sections import OrganisedSection
from sfnode.models.manifest_builder import SUBSPACES
from sfnode.node.startup import settled
from sfnode.store import checkpoint, verification
from sfnode.store.log import Record, UpdateLog
from sfnode.store.replay import changes
from sfprotocol import decisions, seeds, signing
from sfprotocol.control_feed import ControlFeed
from sfprotocol.counting import Counting, named_digest
from sfprotocol.decisions import FACTOR_ONE, RATE_ONE, Admit, Close, Decision, Move, Seal
from sfprotocol.events import KeepControl
from sfprotocol.holding import tag
from sfprotocol.messages import EpochScalars, Feed, Segment

FEEDS = 100
SEGMENT = 50
"""Updates of a segment as its origin signs it, or all that it makes in an epoch if that is less."""

ORGANISER = Ed25519PrivateKey.from_private_bytes(b"\x01" * 32)
SALT = bytes(8)


def manifest_of(found: subject.Subject, updates: int, epochs: int) -> Manifest:
    """The manifest of a run of so many updates, with the usual number of subspaces."""
    rules = OrganisedSection(
        organiser=ORGANISER.public_key().public_bytes_raw().hex(),
        quota=1 << 20,
        subspace_epochs=-(-epochs // SUBSPACES),
    )
    numbers = {"update_budget": 2 * updates, "epoch_updates": updates // epochs}
    rate = {"learning_rate": 25_770 / RATE_ONE}  # about 6e-6
    training = found.manifest.training.model_copy(update=numbers | rate)
    return found.manifest.model_copy(
        update={"admission": "organised", "organised": rules, "training": training}
    )


class Author:
    """One feed, as its origin makes it."""

    def __init__(self, run_id: bytes, number: int) -> None:
        self._key = Ed25519PrivateKey.from_private_bytes((number + 2).to_bytes(32, "big"))
        self._run_id = run_id
        self.feed = Feed(self._key.public_key().public_bytes_raw(), 0)
        self.key = seeds.feed_key(run_id, *self.feed)
        self.chain, self.stop = signing.genesis(run_id, self.feed), 0

    def write(self, epoch: int, count: int) -> Iterator[Record]:
        """Make so many updates of an epoch, with scalars of ordinary size."""
        for size in (SEGMENT,) * (count // SEGMENT) + ((count % SEGMENT,) if count % SEGMENT else ()):
            scalars = tuple((self.stop + n) * 7919 % 201 - 100 for n in range(size))
            parts, first = (EpochScalars(epoch, scalars),), self.stop
            self.chain, self.stop = signing.extend(self.chain, parts), first + size
            message = signing.head_message(self._run_id, self.feed, self.stop, self.chain)
            segment = Segment(self.key, first, parts, self._key.sign(message))
            yield Record(self.feed, segment, self.chain)


def make(folder: Path, found: subject.Subject, updates: int, epochs: int) -> None:
    """Write the folder of a node of such a run, with a checkpoint."""
    manifest = manifest_of(found, max(updates, 1000), epochs)
    run = manifest.parameters()
    folder.mkdir()
    (folder / "run.json").write_text(manifest.model_dump_json())
    if not updates:
        UpdateLog.open(folder / "log", run.run_id).close()
        return
    assert run.organised
    control, counting = ControlFeed(run.organised), Counting(budget=run.update_budget, rate=run.rate)
    authors = [Author(run.run_id, number) for number in range(FEEDS)]

    def decide(decision: Decision) -> None:
        record = decisions.encode(decision)
        control.add(control.stop, [control.sign(record, ORGANISER.sign)])
        counting.apply(decisions.read(record))

    with UpdateLog.open(folder / "log", run.run_id) as log:
        for author in authors:
            decide(Admit(author.feed.origin, 1 << 20, 0))
        for epoch in range(epochs):
            each = updates // epochs // FEEDS
            log.append([record for author in authors for record in author.write(epoch, each)])
            moves = (Move(64 * n, each, tag(SALT, author.chain)) for n, author in enumerate(authors))
            heads = [(64 * n, author.stop, author.chain) for n, author in enumerate(authors)]
            decide(Close(epoch, SALT, tuple(moves)))
            decide(Seal(epoch, (), (), named_digest(run.run_id, heads), FACTOR_ONE, ()))
        log.append([], control=[KeepControl(0, tuple(control.entries))])
        last = epochs - 1 - max(1, epochs // 100)
        state = checkpoint.compute(manifest, log, checkpoint.plan(counting, last))
        assert state
        position = control.stop
        decide(state.decision(run.run_id))
        log.append([], control=[KeepControl(position, tuple(control.entries[position:]))])
        (folder / "checkpoints").mkdir()
        checkpoint.keep(folder / "checkpoints", state)


def join(folder: Path, found: subject.Subject, how: str) -> dict[str, float]:
    """What a node does before its first step; CPU seconds of each part, and MiB."""
    manifest = Manifest.model_validate_json((folder / "run.json").read_text())
    run = manifest.parameters()
    times: dict[str, float] = {}
    trainer = found._replace(manifest=manifest).trainer()
    begun = time.process_time()

    def lap(name: str) -> None:
        nonlocal begun
        now = time.process_time()
        times[name], begun = now - begun, now

    with UpdateLog.open(folder / "log", run.run_id, read_only=True) as log:
        machine = settled(run, log)
        lap("open")
        counting = machine.frontier.counting
        assert counting
        stated, applied = checkpoint.Start()
        if how == "checkpoint":
            stated, applied = checkpoint.start(folder / "checkpoints", counting, log)
        if stated:
            trainer.begin(checkpoint.load(folder / "checkpoints", manifest, counting, stated).cores)
        wanted = {state.feed: machine.counted(state.feed) for state in machine.frontier}
        for batch in changes(log, applied, wanted, run.subspace_epochs):
            trainer.apply(batch)
        lap("refold")
        trainer.step([1], max(0, counting.open_epoch - 1))
        lap("first step")
        times["late join"] = sum(times.values())
        if how == "genesis":
            begun = time.process_time()
            verification.verify_log(manifest, log)
            lap("verify")
    times["MiB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return times


def measured(folder: Path, how: str, runs: int) -> dict[str, list[float]]:
    """The times of several runs, each in a process of its own."""
    found: dict[str, list[float]] = {}
    for _ in range(runs):
        command = [sys.executable, __file__, "--one", str(folder), how]
        times = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        for name, seconds in times.items():
            found.setdefault(name, []).append(seconds)
    return found


def shown(times: list[float]) -> str:
    return f"{statistics.median(times):.2f} ({min(times):.2f} to {max(times):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--genesis", action="store_true")
    parser.add_argument("--small", default="100000:10")
    parser.add_argument("--large", default="10000000:1000")
    parser.add_argument("--folder", type=Path, help="keep the logs there, or use those that are")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    with subject.load_subject(subject.SubjectSpec(source="shape:opt-125m")) as found:
        if given.one:
            print(json.dumps(join(Path(given.one[0]), found, given.one[1])))
            return
        with tempfile.TemporaryDirectory() as scratch:
            compare(given, given.folder or Path(scratch), found)


def compare(given: argparse.Namespace, folder: Path, found: subject.Subject) -> None:
    sizes = {"empty": (0, 10)}
    for name in ("small", "large"):
        updates, epochs = map(int, getattr(given, name).split(":"))
        sizes[name] = updates, epochs
    for name, (updates, epochs) in sizes.items():
        if not (folder / name).exists():
            make(folder / name, found, updates, epochs)
        size = sum(file.stat().st_size for file in (folder / name).rglob("*") if file.is_file())
        print(f"{name}: {updates:,} updates in {epochs} epochs, {size / 1e6:.1f} MB")
    for how in ("checkpoint", *(("genesis",) if given.genesis else ())):
        times = {name: measured(folder / name, how, given.runs) for name in sizes}
        print(f"\nfrom {how}, CPU seconds: median (least to most) of {given.runs}")
        print(f"{'':12}{'empty':>24}{'small':>24}{'large':>24}   large / small, beyond empty")
        for part in times["large"]:
            empty, small, large = (times[name][part] for name in sizes)
            one, other = (statistics.median(side) - statistics.median(empty) for side in (small, large))
            ratio = f"{other / one:.1f}" if one > 0 else "-"
            print(f"{part:12}{shown(empty):>24}{shown(small):>24}{shown(large):>24}   {ratio}", flush=True)


if __name__ == "__main__":
    main()
