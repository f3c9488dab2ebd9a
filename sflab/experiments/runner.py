"""Runs one cell: steps, communication, evaluations, results as JSON lines, and restarts.

The results of a cell are lines in `<name>.jsonl`. An unfinished cell continues from `<name>.state` after a
kill. The state includes the size of the results file when the state was saved. After a restart, lines beyond
that size are written again, with the same values.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import torch
from pydantic import TypeAdapter, ValidationError

from sflab.baselines import registry
from sflab.baselines.clients import Clients, Setup
from sflab.baselines.model_problem import ModelProblem
from sflab.experiments import problem, results, seedflood
from sflab.experiments.cell import Cell, Place
from sflab.experiments.problem import Conditions, LoadedProblem
from sflab.experiments.seedflood import SeedFlood
from sfnode import __version__
from sfnode.errors import Code, UserError
from sfnode.loggers import LoggedRecord, Logger
from sfnode.store.data_folder import Layout
from sfnode.store.disk_errors import disk_faults

SEEDFLOOD = "seedflood"

Method = Clients | SeedFlood


WHOLE = True

RANGES: Mapping[str, tuple[float, float, bool]] = {
    "organised": (0, 1, WHOLE),
    "budget": (1, (1 << 32) - 1, WHOLE),
    "guard": (0, 1, WHOLE),
    "search": (0, 1, WHOLE),
    "renew": (0, 1 << 32, WHOLE),
    "scalar_bits": (8, 16, WHOLE),
    "scalar_delta": (0, 1 << 32, False),
    "scalar_limit": (1, (1 << 15) - 1, WHOLE),
    "segment_updates": (0, 1 << 32, WHOLE),
    "subspace_epochs": (1, 1 << 32, WHOLE),
    "keep": (0, 1, False),
    "origins": (0, 1, WHOLE),
    "gamma": (0, 1, False),
}
"""Least and largest value of each option, and whether the value is a whole number. 2^32 exceeds any useful
value."""

OPTIONS = RANGES.keys() - {option for one in registry.METHODS.values() for option in one.options}
"""Names of SeedFlood's options (`Cell.options`), as in docs/experiments.md."""


def names() -> list[str]:
    """Return the names of all methods."""
    return [SEEDFLOOD, *registry.METHODS]


def check(cell: Cell) -> None:
    """Raise UserError BAD_OPTION for an unknown method, an unknown option, or a value out of its range."""
    if cell.method not in names():
        known = ", ".join(names())
        raise UserError(Code.BAD_OPTION, f"there is no method {cell.method!r}", f"There are {known}.")
    alone = (("hostile", cell.network.hostile, "hostile clients"), ("group", cell.group, "groups"))
    for flag, given, what in alone:
        if given and cell.method != SEEDFLOOD:
            raise UserError(
                Code.BAD_OPTION, f"{cell.method} has no {what}", f"Leave out --{flag}, or take {SEEDFLOOD}."
            )
    if cell.method == SEEDFLOOD:
        seedflood.check(cell)
    has = OPTIONS if cell.method == SEEDFLOOD else registry.METHODS[cell.method].options
    for option in sorted(cell.options.keys() - has):
        known = ", ".join(sorted(has)) or "none"
        raise UserError(Code.BAD_OPTION, f"{cell.method} has no option {option!r}", f"It has {known}.")
    for option, value in sorted(cell.options.items()):
        least, most, whole = RANGES[option]
        if not least <= value <= most or (whole and value != int(value)):
            raise UserError(
                Code.BAD_OPTION,
                f"--option {option}={value:g} cannot be",
                f"Give a {'whole ' if whole else ''}number from {least:,} to {most:,}.",
            )


def make(cell: Cell, place: Place, loaded: LoadedProblem | None = None, log: Path | None = None) -> Method:
    """Make a cell's method, before its first step. `loaded` is the cell's problem, if it was loaded before.

    `log` is as in `SeedFlood`. Raises UserError BAD_OPTION, MODEL_*, DATA_* and DEVICE.
    """
    check(cell)
    if log and cell.method != SEEDFLOOD:
        raise UserError(
            Code.BAD_OPTION,
            f"{cell.method} has no log of updates",
            f"Only {SEEDFLOOD} has one: leave out --write-log.",
        )
    found = loaded or problem.load(cell, place)
    if cell.method == SEEDFLOOD:
        return SeedFlood(cell, found, log)
    baseline = registry.METHODS[cell.method]
    data = found.task, found.shards, found.held_out
    on_vectors = ModelProblem(
        found.loaded, *data, cell.batch_size, cell.seed, baseline.problem, cell.rank, found.public
    )
    setup = Setup(
        on_vectors,
        cell.network.clients,
        Conditions(cell.network, cell.seed).edges,
        cell.seed,
        cell.learning_rate,
        cell.epsilon,
        cell.local_steps,
        cell.options,
    )
    return registry.make(cell.method, setup)


SAVE_EVERY = 60.0
"""Seconds between two saves of a cell's state: a kill loses at most that much work. With full copies of the
weights a save takes about a second."""

SAVE_REST = 20
"""Minimum pause between two saves, as a multiple of the duration of the last save. Saving thus takes at most
5 % of the time."""

Advance = Callable[[int, int], None]
"""Function that is called with the number of finished local steps, and the number of all local steps."""


def finished(cell: Cell, folder: Path) -> Mapping[str, float] | None:
    """Return the end values of a cell; None if it is not finished. Raises UserError RESULTS_UNUSABLE."""
    path = results.path_of(cell, folder)
    with disk_faults(path):
        written = path.read_bytes() if path.exists() else b""
    try:
        found = results.parse(written)
    except ValueError as error:
        raise _unusable(path, str(error)) from error
    if found is not None and found.cell != cell:
        raise _unusable(path, "it has the results of another cell")
    return found.end if found else None


def run_cell(
    cell: Cell,
    folder: Path,
    place: Place = Place(),  # noqa: B008  (frozen)
    loggers: Sequence[Logger] = (),
    advance: Advance = lambda done, total: None,
    log: Path | None = None,
    make: Callable[[Cell, Place, LoadedProblem, Path | None], Method] = make,
) -> Mapping[str, float]:
    """Run a cell, or continue it. Return its end values.

    `log` is the folder for the data of SeedFlood's client 0. It must be empty, or have the log of this cell.

    Raises UserError RESULTS_UNUSABLE if files with the cell's names hold something else, DISK_FULL, and the
    errors of `make`.
    """
    check(cell)
    if values := finished(cell, folder):
        if log and not Layout(log).log.exists():
            raise UserError(
                Code.BAD_OPTION,
                f"cell {cell.name} was finished in {folder} without a log",
                "Run it again in another folder with --out.",
            )
        return values
    with disk_faults(folder):
        folder.mkdir(parents=True, exist_ok=True)
    loaded = problem.load(cell, place)
    base = _base(cell, loaded, folder)
    run = _Run(cell, folder, loggers, make(cell, place, loaded, log))
    try:
        run.begin()
        while run.done < cell.steps:
            advance(run.done, cell.steps)
            run.step()
        return run.end(base, validated="validation" in loaded.held_out)
    finally:
        run.close()


class _Run:
    """A cell that is running in this process."""

    def __init__(self, cell: Cell, folder: Path, loggers: Sequence[Logger], method: Method) -> None:
        self.done = 0
        """Finished local steps."""
        self._cell = cell
        self._method = method
        self._loggers = loggers
        self._results, self._state = folder / f"{cell.name}.jsonl", folder / f"{cell.name}.state"
        self._file: IO[bytes] | None = None
        self._before = 0.0
        """Seconds that earlier processes spent on the cell until the restored state was saved."""
        self._began = time.monotonic()
        self._save_at = self._began + SAVE_EVERY

    def begin(self) -> None:
        """Begin the cell, or continue it from the saved state if there is one."""
        with disk_faults(self._results):
            size = self._restore() if self._state.exists() else 0
            self._file = self._results.open("r+b" if size else "wb")
            self._file.truncate(size)
            self._file.seek(size)
        settings = {"cell": self._cell.model_dump(mode="json"), "sfnode": __version__}
        if not size:
            self._write(settings)
        for logger in self._loggers:
            logger.begin(self._cell.name, settings)

    def step(self) -> None:
        """Take a local step. Communicate and evaluate if it is time."""
        cell, number = self._cell, self.done
        loss = self._method.step(number)
        if (number + 1) % cell.local_steps == 0 or number + 1 == cell.steps:
            self._method.communicate(number)
        self.done += 1
        self._record("step", {"loss": loss})
        if cell.evaluate_every and self.done % cell.evaluate_every == 0 and self.done < cell.steps:
            self._record("evaluation", self._evaluation("validation"))
        if time.monotonic() >= self._save_at:
            self._save()

    def end(self, base: Mapping[str, float], *, validated: bool) -> Mapping[str, float]:
        """Measure the final model, and finish the results."""
        tested = self._method.evaluate("test")
        values = {tested.metric: tested.value, "score": tested.value, "loss": tested.loss, **base}
        if validated:
            last = self._evaluation("validation")
            self._record("evaluation", last)
            values |= {"validation_score": last["score"], "validation_loss": last["loss"]}
        values |= {**self._method.updates(), **self._costs()}
        values |= {"bytes_total": self._method.traffic.total, "seconds": self._seconds()}
        self._write({"kind": "end", "step": self.done, "values": values})
        with disk_faults(self._results):
            self._flush()
            self._state.unlink(missing_ok=True)
        return values

    def close(self) -> None:
        """Close files and loggers."""
        if self._file is not None:
            self._file.close()
        self._method.close()
        for logger in self._loggers:
            logger.close()

    def _evaluation(self, which: str) -> dict[str, float]:
        found = self._method.evaluate(which)
        return {"score": found.value, "loss": found.loss, **self._costs()}

    def _costs(self) -> dict[str, float]:
        return {
            "consensus": self._method.consensus(),
            "bytes_per_edge": self._method.traffic.per_edge,
            "example_forwards": self._method.example_forwards,
        }

    def _seconds(self) -> float:
        return round(self._before + time.monotonic() - self._began, 3)

    def _record(self, kind: Any, values: Mapping[str, float]) -> None:
        self._write({"kind": kind, "step": self.done, "values": values})
        for logger in self._loggers:
            logger.record(LoggedRecord(kind, self.done, values))

    def _write(self, line: Mapping[str, Any]) -> None:
        assert self._file is not None
        with disk_faults(self._results):
            self._file.write(json.dumps(line).encode() + b"\n")

    def _flush(self) -> None:
        assert self._file is not None
        self._file.flush()
        os.fsync(self._file.fileno())

    def _save(self) -> None:
        began = time.monotonic()
        with disk_faults(self._state):
            self._flush()
            assert self._file is not None
            partial = self._state.with_suffix(".partial")
            state = {
                "done": self.done,
                "size": self._file.tell(),
                "seconds": self._seconds(),
                "method": self._method.state(),
            }
            torch.save(state, partial)
            os.replace(partial, self._state)
        ended = time.monotonic()
        self._save_at = ended + max(SAVE_EVERY, SAVE_REST * (ended - began))

    def _restore(self) -> int:
        """Continue from the saved state. Return the size that the results file had then, in bytes."""
        try:
            state = torch.load(self._state, weights_only=True)
            size = int(state["size"])
            if self._results.stat().st_size < size:
                raise ValueError("the results are shorter than it says")
            self._method.restore(state["method"])
        except OSError:
            raise
        except Exception as error:  # a damaged file makes torch raise any error
            raise _unusable(self._state, "it is no state of this cell, or is damaged") from error
        self.done, self._before = state["done"], state["seconds"]
        return size


def _unusable(path: Path, reason: str) -> UserError:
    return UserError(
        Code.RESULTS_UNUSABLE,
        f"{path} cannot be used: {reason}",
        "Move it away, and the cell begins anew; or give another folder with --out.",
    )


# -- the untrained model -----------------------------------------------------------------------------


_SCORES = TypeAdapter(dict[str, float])


def _base(cell: Cell, loaded: LoadedProblem, folder: Path) -> dict[str, float]:
    """Return the scores of the untrained model, with and without calibration. These scores are measured once
    for each results folder."""
    fields = json.dumps(cell.problem.model_dump(mode="json", exclude={"objective"}), sort_keys=True).encode()
    name = hashlib.blake2b(fields, digest_size=8, person=b"sfnode-base").hexdigest()
    path = folder / f"base-{name}.json"
    with disk_faults(path):
        if path.exists():
            try:
                kept = _SCORES.validate_json(path.read_bytes())
            except ValidationError:
                kept = {}
            if not {"base_score", "base_loss"} <= kept.keys():
                raise _unusable(path, "it has no scores of an untrained model")
            return kept
        values = _measured(loaded)  # other processes may run cells in this folder, too
        results.replace(path, json.dumps(values) + "\n")
    return values


def _measured(loaded: LoadedProblem) -> dict[str, float]:
    base = loaded.evaluate_alone("test", calibrated=False)
    values = {"base_score": base.value, "base_loss": base.loss}
    if loaded.task.labelled:
        calibrated = loaded.evaluate_alone("test", calibrated=True)
        values |= {"calibrated_score": calibrated.value, "calibrated_loss": calibrated.loss}
    return values
