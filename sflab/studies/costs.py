"""Costs of taking in others' updates, beside MeZO's replay of them, and of a step.

Measured once for a study and kept in its results folder; times are the machine's, unlike all else there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from sflab.experiments import results
from sfnode.manifest.sections import Section

FILE = "costs.json"

BATCH = 4


class Effort(NamedTuple):
    """Extent of the measurements."""

    turns: int
    """Repetitions of each contestant; medians are taken."""
    patience: float
    """Seconds that MeZO's replay may take; longer ones are not measured."""


USUAL, LITTLE = Effort(9, 30.0), Effort(2, 0.5)


class Costs(Section):
    """Seconds that things take on this machine."""

    model: str
    device: str
    parameters: int
    threads: int
    counts: tuple[int, ...]
    add_seconds: tuple[float, ...]
    """Adding so many updates to the exact core."""
    merge_seconds: float
    """Merging the core into all trained weights, once."""
    replay_seconds: tuple[float | None, ...]
    """MeZO's replay of so many updates; None: it would take longer than `patience`."""
    patience: float
    forwards_seconds: float
    """Two plain forward passes of a mini-batch."""
    step_seconds: float
    mezo_step_seconds: float | None
    """MeZO's step in place on all parameters; None where weights cannot be perturbed so."""

    @property
    def apply_seconds(self) -> list[float]:
        """Seconds until so many updates are in the weights."""
        return [seconds + self.merge_seconds for seconds in self.add_seconds]


def load(folder: Path) -> Costs | None:
    """Read what was measured for a study; None if nothing was."""
    try:
        return Costs.model_validate_json((folder / FILE).read_bytes())
    except (OSError, ValidationError):
        return None


def measure(model: str, device: str, effort: Effort, folder: Path, say: Callable[[str], None]) -> Costs:
    """Measure and write down, unless that was done before. Raises UserError of `sflab.bench`."""
    found = load(folder)
    if found is not None:
        return found
    from sflab.bench.runner import Plan, run_benchmark
    from sflab.bench.subject import SubjectSpec

    spec = SubjectSpec(source=model, device=device)
    result = run_benchmark(spec, Plan((BATCH,), 1, True, effort.turns, threads=0), say)
    (batch,) = result.batches
    say("MeZO's replay")
    found = Costs(
        model=result.model,
        device=result.device,
        parameters=result.parameters,
        threads=result.threads,
        counts=tuple(one.updates for one in result.incoming),
        add_seconds=tuple(one.add_seconds for one in result.incoming),
        merge_seconds=result.incoming[0].fold_seconds,
        replay_seconds=tuple(_replay(spec, [one.updates for one in result.incoming], effort.patience)),
        patience=effort.patience,
        forwards_seconds=batch.forwards_seconds,
        step_seconds=batch.step_seconds,
        mezo_step_seconds=batch.mezo_all_seconds,
    )
    results.replace(folder / FILE, found.model_dump_json(indent=1) + "\n")
    return found


def _replay(spec: object, counts: Sequence[int], patience: float) -> list[float | None]:
    from sflab.baselines import mezo
    from sflab.bench import measure, subject

    assert isinstance(spec, subject.SubjectSpec)
    taken: list[float | None] = []
    with subject.load_subject(spec) as one:
        parameters = [parameter.data for parameter in one.loaded.model.parameters()]
        each = 0.0
        for count in counts:
            if each * count > patience:
                taken.append(None)
                continue
            history = [(seed, 0.0) for seed in range(count)]
            seconds = measure.seconds(
                lambda history=history: mezo.replay(parameters, history, measure.RATE),  # type: ignore[misc]
                one.device,
            )
            each = seconds / count
            taken.append(seconds)
    return taken
