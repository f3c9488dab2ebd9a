"""Measures a run on a real model beside the methods that a user could take instead.

    python -m benchmarks.real [--task agnews] [--runs 3] [--lora-passes 4]

The model is that of scripts/real_model.py. Prints a table for each task, with the accuracy and the loss on
800 held-out rows, and the example-forwards used (a backward pass counts as two):

- the untrained model, with and without calibration,
- LoRA with AdamW, with as many example-forwards as there are training rows,
- with --lora-passes, the best LoRA of that many passes,
- swarms of four nodes that train a head, as `sfnode init` proposes, after 0, 16, 64 and 128 updates and at
  the end, and the linear probe; each node has a quarter of the rows,
- the same with swarms that train the body, with answers in words,
- for each swarm, the methods that need no model.

`init` gets no hyperparameters. States are cached in a folder of this benchmark.

The tasks are AG News and SST-2 of ../shared. Without ../shared, the task is that of benchmarks/topics.py.
Results: docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks import lora, topics
from benchmarks.texts import Texts, mean_loss
from scripts import real_model
from sfnode.cli import trained_model
from sfnode.engine import forward
from sfnode.engine.losses import EVALUATION_BATCH
from sfnode.manifest import Manifest
from sfnode.manifest.sections import Data
from sfnode.manifest.task import Task
from sfnode.models import loader
from sfnode.schema.measurements import Evaluation
from sfnode.tasks import calibration, dataset, encoding, presets
from sfnode.tasks.public_files import typed

SHARED = Path(__file__).parents[2] / "shared" / "data"
MOMENTS = (16, 64, 128)
"""Numbers of updates after which a run is measured, besides its start and its end."""


WITHHELD = 256
"""Number of training rows that `init` reserves for validation."""


class Figure(NamedTuple):
    """One line of the table."""

    name: str
    accuracy: float
    loss: float
    forwards: int | None
    """Example-forwards until then, without evaluations; None if unknown."""


class Subject(NamedTuple):
    """A task with its rows."""

    words: Task
    """The task as answers in words."""
    texts: Task
    """The task for a classification head."""
    train: list[dataset.Row]
    test: list[dataset.Row]


def subject(name: str, rows: int, held_out: int, folder: Path) -> Subject:
    """Read the rows of a task. The rows of `topics` are first written to `folder`."""
    if name == topics.NAME:
        found, where = topics.PRESET, topics.write(folder)
    else:
        found, where = presets.for_columns(presets.preset(name), {"sentence", "label"}), SHARED / name
    words = found.task.model_copy(update={"max_tokens": 256})
    data = Data(
        train=str(where / "train.tsv"),
        test=str(where / "test.tsv"),
        train_limit=rows + WITHHELD,
        train_min_words=4 if name == "sst2" else 0,  # SST-2 has phrases, too
        test_limit=held_out,
    )
    texts = presets.task_of(found._replace(task=words), headed=True, asking=True)
    places = typed(data)
    train = dataset.training_rows(data, words, places)
    return Subject(words, texts, train, dataset.held_out_rows(data, words, "test", places=places))


def untrained(model: Path, of: Subject) -> Iterator[Figure]:
    """Measure the model's answers in words, first as they are, then calibrated: less the model's prior over
    unlabelled training rows."""
    manifest = Manifest(model=loader.describe(str(model), ""), task=of.words, data=Data())
    loaded = loader.load(manifest, override=None, device=torch.device("cpu"))

    def score(encoded: encoding.Encoded) -> encoding.Scored:
        return forward.score_in_passes(loaded, encoded)

    public = of.train[: calibration.CALIBRATION_ROWS]
    prior = calibration.prior(of.words, loaded.tokenizer, public, score, EVALUATION_BATCH)
    found = list(encoding.scored_batches(of.words, loaded.tokenizer, of.test, score, EVALUATION_BATCH))
    for name, subtracted, forwards in (("untrained", None, 0), ("untrained, calibrated", prior, len(public))):
        yield of_evaluation(name, encoding.measure(of.words, found, subtracted), forwards)


def of_evaluation(name: str, found: Evaluation, forwards: int | None) -> Figure:
    return Figure(name, found.value, found.loss, forwards)


def of_probabilities(
    name: str, found: NDArray[np.float64], labels: NDArray[np.int64], forwards: int
) -> Figure:
    return Figure(name, float((found.argmax(1) == labels).mean()), mean_loss(found, labels), forwards)


def low_rank(model: Path, train: Texts, test: Texts, passes: int, given: argparse.Namespace) -> Figure:
    """Train adapters for `passes` passes; 0: for as many example-forwards as the linear probe takes."""
    forwards, looks = (passes * lora.FORWARDS * len(train), 2 * passes) if passes else (len(train), 1)
    found = lora.best(model, train, test, forwards=forwards, looks=looks, rates=given.rates, seed=given.seed)
    name = f"LoRA, AdamW, {'at its best' if passes else 'the same forwards'}"
    return of_probabilities(name, found.probabilities, test.labels, found.forwards)


def in_words(task: Task) -> tuple[str, ...]:
    """Return the options with which a run trains answers in words instead of a head."""
    words = ",".join(f"{label}={word}" for label, word in task.verbalizer.items())
    pairs = ("kind=classification", f"template={task.template}", f"verbalizer={words}")
    return tuple(part for pair in pairs for part in ("--set", f"task.{pair}"))


def of_run(
    name: str, of: Subject, model: Path, folder: Path, options: tuple[str, ...] = ()
) -> Iterator[Figure]:
    """Make a run with default hyperparameters and train it with four nodes, each on its own quarter of the
    rows. Measure the first node's model, then the methods that use all rows in one place."""
    folder.mkdir()
    for file, rows in (("train.tsv", of.train), ("test.tsv", of.test)):
        lines = (f"{row['sentence']}\t{row['label']}\n" for row in rows)
        (folder / file).write_text("sentence\tlabel\n" + "".join(lines))
    run, began = folder / "run.toml", time.monotonic()
    files = (folder / "train.tsv", "--label", "label", "--test", folder / "test.tsv", "--out", run)
    keys = ("--set", f"name={name}", "--set", f"keys.dir={folder / 'keys'}")
    sfnode("init", *files, "--yes", "--model", model, *options, *keys)
    made = time.monotonic()
    swarm = ("--nodes", 4, "--run", run, "--model", model, "--out", folder / "swarm")
    ended = json.loads(sfnode("swarm", *swarm, "--json"))
    assert ended["equal"], "digests differ"
    seconds = f"init {made - began:.0f} s, swarm {time.monotonic() - made:.0f} s"
    said = f"{ended['counted']:,} of {ended['updates']:,} count, {ended['bytes_per_update']:.1f} bytes each"
    print(f"  {name}: {seconds}, {said}, digests equal", file=sys.stderr, flush=True)
    node = folder / "swarm" / "node-1"
    decisions = json.loads(sfnode("log", "--data-dir", node, "--json"))["entries"]
    epochs = [one["epoch"] for one in decisions if one["epoch"]]
    counted = np.cumsum([epoch["counted"] for epoch in epochs]).tolist()
    moments = [next((there for there in counted if there >= moment), counted[-1]) for moment in MOMENTS]
    for number, updates in enumerate(sorted({*moments, counted[-1]})):
        seal = epochs[counted.index(updates)]["epoch"]
        trainer = trained_model.load(node, model, "cpu", "auto", epoch=seal).trainer
        if number == 0:
            yield of_evaluation(f"{name}, 0 updates", trainer.evaluate_base(), 0)
        yield of_evaluation(f"{name}, {updates:,} updates", trainer.evaluate(), None)
    if probe := ended["probe"]:
        title = f"linear probe on its {probe['rows']:,} rows"
        yield Figure(title, probe["value"], probe["loss"], probe["rows"])
    for other in ended["baselines"]:
        yield Figure(f"{other['name']} of {other['rows']:,} rows", other["value"], other["loss"], 0)


def sfnode(*arguments: Any) -> str:
    """Run a command of sfnode and return its output. Exits if the command fails."""
    ended = subprocess.run([sys.executable, "-m", "sfnode", *map(str, arguments)], stdout=subprocess.PIPE)
    if ended.returncode:
        sys.exit(ended.returncode)
    return ended.stdout.decode()


def figures(name: str, given: argparse.Namespace, scratch: Path) -> Iterator[Figure]:
    """Measure everything for one task."""
    of = subject(name, given.rows, given.held_out, scratch)
    yield from untrained(given.model, of)
    tokenizer = loader.tokenizer_of(given.model)
    train, test = (Texts(of.texts, tokenizer, some) for some in (of.train[: given.rows], of.test))
    for passes in sorted({0, given.lora_passes}):
        yield low_rank(given.model, train, test, passes, given)
    for number in range(given.runs):
        yield from of_run(f"{name}-head-{number + 1}", of, given.model, scratch / f"head-{number}")
        words = in_words(of.words)
        yield from of_run(f"{name}-body-{number + 1}", of, given.model, scratch / f"body-{number}", words)


def timed(found: Iterator[Figure]) -> Iterator[tuple[Figure, float]]:
    """Yield each figure with the CPU seconds that it took, child processes included."""
    began = sum(os.times()[:4])
    for one in found:
        yield one, sum(os.times()[:4]) - began
        began = sum(os.times()[:4])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, default=real_model.FOLDER)
    names = ["agnews", "sst2"] if SHARED.is_dir() else []
    parser.add_argument("--task", dest="tasks", action="append", choices=[*names, topics.NAME])
    parser.add_argument("--rows", type=int, default=1024, help="training rows")
    parser.add_argument("--held-out", type=int, default=800, help="test rows")
    parser.add_argument(
        "--rates", type=float, nargs="+", default=[3e-3], help="of LoRA: validation rows choose"
    )
    parser.add_argument("--lora-passes", type=int, default=0, help="of the longer LoRA; 0: without it")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs", type=int, default=1, help="runs, each with a name of its own")
    given = parser.parse_args()
    if given.model == real_model.FOLDER:
        real_model.write(given.model)
    for name in given.tasks or [*names, topics.NAME][:1]:
        print(f"\n{name}: {given.rows:,} training rows, {given.held_out} held-out ones\n")
        print("| | accuracy | loss | example-forwards | CPU seconds |\n|---|---|---|---|---|", flush=True)
        with tempfile.TemporaryDirectory(prefix="sfnode-real-") as scratch:
            os.environ["XDG_CACHE_HOME"] = str(Path(scratch) / "cache")
            for found, seconds in timed(figures(name, given, Path(scratch))):
                forwards = "" if found.forwards is None else f"{found.forwards:,}"
                cells = (f"{found.accuracy:.3f}", f"{found.loss:.3f}", forwards, f"{seconds:.0f}")
                print(f"| {found.name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
