"""The comparison of the SeedFlood paper (arXiv 2602.18181) as a study, in four sizes.

A preset defines the size. The caller chooses the model and the tasks. Learning rates are tuned for every
method on validation rows, with the first seed on a ring: three rates, and more if the best one is at the
edge. All other cells take the best rate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

from sflab.baselines import registry
from sflab.experiments.cell import Cell, CellNetwork, Problem, Topology
from sflab.studies.study import Study, StudyEntry, first_order

SEEDFLOOD = "seedflood"

PAPER_METHODS = (SEEDFLOOD, "dsgd", "dzsgd", "chocosgd", "dsgd-lora", "dzsgd-lora", "chocosgd-lora")
"""Methods in the paper's own table."""

RATE = 6e-6
"""SeedFlood's default learning rate per update, in the middle of its grid: the best of a sweep with
opt-mini-sst. The other zeroth-order grids (`registry`) were chosen for the same model, and scale with this
rate."""

GRID = (1 / 3, 1.0, 3.0)
"""Grid of SeedFlood's rates, as multiples of the middle rate."""

MOST = 1.0
"""Maximum learning rate of a trial, which is also the maximum in a manifest."""

LORA_RANK = 8
"""Rank of adapters, as in the paper."""

SEGMENT = 32
"""Number of local steps between two rounds in the cells where a client signs full segments."""


class StudySize(NamedTuple):
    """Size of a study. The defaults of the fields are the default size."""

    clients: int = 16
    zeroth_steps: int = 160
    """Number of local steps of a client with two-point estimates."""
    first_steps: int = 40
    """Number of local steps of a client with gradients."""
    short_steps: int = 80
    """Number of local steps of zeroth-order cells outside the table of methods. First-order cells make
    proportionally fewer."""
    refresh: int = 80
    batch_size: int = 4
    rows: int = 1024
    validation_rows: int = 200
    test_rows: int = 400
    min_words: int = 4
    evaluations: int = 3
    """Number of evaluations on validation rows during a run."""
    methods: Sequence[str] = PAPER_METHODS
    topologies: Sequence[Topology] = ("ring",)
    sizes: Sequence[int] = (16, 32, 64, 128)
    """Numbers of clients to compare."""
    sized_methods: Sequence[str] = (SEEDFLOOD,)
    hops: Sequence[int] = (1, 2, 4, 0)
    ranks: Sequence[int] = (8, 32)
    refreshes: Sequence[int] = (20, 80)
    dirichlets: Sequence[float] = (1.0, 0.1)
    sharded_methods: Sequence[str] = (SEEDFLOOD, "dsgd")
    all_tasks: bool = False
    """Whether the parts besides the table of methods are for all tasks, not only for the first one."""
    rank: int = 32
    local_steps: int = 5
    beyond: int = 4
    """Maximum number of trials beyond the edge of a method's grid."""
    segments: int = 2
    """Number of full segments that a client signs in the cells that count bytes."""
    rate: float = RATE


SMOKE = StudySize(
    clients=4,
    zeroth_steps=6,
    first_steps=4,
    short_steps=4,
    refresh=4,
    batch_size=2,
    rows=64,
    validation_rows=12,
    test_rows=24,
    min_words=0,
    evaluations=2,
    topologies=("ring", "grid"),
    sizes=(4, 8),
    hops=(1, 0),
    ranks=(4, 8),
    refreshes=(2, 4),
    sharded_methods=(SEEDFLOOD,),
    all_tasks=True,
    rank=8,
    local_steps=2,
    beyond=0,
    segments=1,
    rate=1e-3,
)

DEFAULT = StudySize()

LONG = DEFAULT._replace(
    zeroth_steps=320,
    first_steps=80,
    short_steps=320,
    refresh=64,
    validation_rows=500,
    test_rows=1000,
    evaluations=8,
    topologies=("ring", "grid"),
    sized_methods=(SEEDFLOOD, "dsgd", "dzsgd"),
    hops=(1, 2, 4, 8, 0),
    ranks=(8, 32, 64),
    refreshes=(32, 64, 320),
    sharded_methods=PAPER_METHODS,
    all_tasks=True,
)

FULL = LONG._replace(
    zeroth_steps=5000,
    first_steps=500,
    short_steps=5000,
    refresh=1000,
    min_words=0,
    evaluations=10,
    ranks=(32, 64),
    refreshes=(1000, 5000),
    rate=1e-7,
)

PRESETS = {"smoke": SMOKE, "default": DEFAULT, "long": LONG, "full": FULL}

TOO_SMALL: dict[str, tuple[str, ...]] = {
    "smoke": ("A study of this size shows that everything works. Its figures mean nothing.",)
}
"""Notes for the report, keyed by the preset that is too small for conclusions."""

FULL_MODELS = ("facebook/opt-125m", "facebook/opt-1.3b", "facebook/opt-2.7b")
FULL_TASKS = ("sst2", "rte", "boolq", "wic", "multirc", "record")


def study(name: str, problems: Sequence[Problem], seeds: int, rate: float, command: str) -> Study:
    """Make the study of a preset for these problems, with the preset's numbers of rows.

    `rate` is the middle of SeedFlood's grid; 0: the preset's.
    """
    preset = PRESETS[name]
    if rate:
        preset = preset._replace(rate=rate)
    rows = {field: getattr(preset, field) for field in ("rows", "validation_rows", "test_rows", "min_words")}
    problems = [problem.model_copy(update=rows) for problem in problems]
    plan = _Plan(preset, problems, seeds)
    return Study(
        title="SeedFlood beside its baselines",
        command=command,
        preset=name,
        notes=(*TOO_SMALL.get(name, ()), *_notes(preset, seeds)),
        tunings=tuple(plan.tunings),
        beyond=preset.beyond,
        entries=tuple(plan.entries()),
    )


def rates(method: str, rate: float) -> list[float]:
    """Return the grid of a method's learning rates, ascending. `rate` is the middle of SeedFlood's grid."""
    if method == SEEDFLOOD:
        return [rate * factor for factor in GRID]
    usual = registry.METHODS[method].rates
    return list(usual) if first_order(method) else [min(one * rate / RATE, MOST) for one in usual]


class _Plan:
    """Cells of a preset, the most useful first."""

    def __init__(self, preset: StudySize, problems: Sequence[Problem], seeds: int) -> None:
        self._preset, self._problems, self._seeds = preset, problems, seeds
        self._numbers = {key: n for n, key in enumerate(product(range(len(problems)), preset.methods))}
        self.tunings = [self._tuning(problems[number], method) for number, method in self._numbers]

    def _tuning(self, problem: Problem, method: str) -> tuple[Cell, ...]:
        cell = self._cell(problem, method, self._preset.zeroth_steps)
        return tuple(
            cell.model_copy(update={"learning_rate": rate}) for rate in rates(method, self._preset.rate)
        )

    def _cell(self, problem: Problem, method: str, steps: int, **changes: object) -> Cell:
        """Return a cell on a ring with the first seed. `changes` are fields of cells, networks or
        problems."""
        preset = self._preset
        if first_order(method):
            steps = max(1, steps * preset.first_steps // preset.zeroth_steps)
        network = {"clients": preset.clients} | {
            k: v for k, v in changes.items() if k in CellNetwork.model_fields
        }
        of_problem = {k: v for k, v in changes.items() if k in Problem.model_fields}
        lora = method in registry.METHODS and registry.METHODS[method].problem == "lora"
        fields: dict[str, object] = {
            "steps": steps,
            "local_steps": preset.local_steps,
            "batch_size": preset.batch_size,
            "rank": LORA_RANK if lora else preset.rank,
            "refresh": preset.refresh,
        } | {k: v for k, v in changes.items() if k in Cell.model_fields}
        between = fields["local_steps"]
        assert isinstance(between, int)
        every = max(1, steps // preset.evaluations // between) * between  # right after a communication
        fields.setdefault("evaluate_every", every)
        return Cell.model_validate(
            {
                "method": method,
                "problem": problem.model_copy(update=of_problem),
                "network": CellNetwork.model_validate(network),
                **fields,
            }
        )

    def entries(self) -> Iterator[StudyEntry]:
        """Yield all entries, seed by seed within a part."""
        preset = self._preset
        others = self._problems if preset.all_tasks else self._problems[:1]
        for topology, problem, method in product(preset.topologies, self._problems, preset.methods):
            yield from self._seeded("methods", problem, method, preset.zeroth_steps, topology=topology)
        for problem in others:
            yield from self._bytes(problem)
            yield from self._others(problem)

    def _bytes(self, problem: Problem) -> Iterator[StudyEntry]:
        for between in (self._preset.local_steps, SEGMENT):
            steps = self._preset.segments * SEGMENT // between * between
            yield from self._seeded("bytes", problem, SEEDFLOOD, steps, local_steps=between)

    def _others(self, problem: Problem) -> Iterator[StudyEntry]:
        preset, steps = self._preset, self._preset.short_steps
        for method, clients in product(preset.sized_methods, preset.sizes):
            times = preset.clients / clients if method == SEEDFLOOD else 1.0
            yield from self._seeded("clients", problem, method, steps, times, clients=clients)
        for hops in preset.hops:
            yield from self._seeded("hops", problem, SEEDFLOOD, steps, hops=hops)
        for rank, refresh in product(preset.ranks, preset.refreshes):
            yield from self._seeded("ablation", problem, SEEDFLOOD, steps, rank=rank, refresh=refresh)
        for method, dirichlet in product(preset.sharded_methods, (0.0, *preset.dirichlets)):
            yield from self._seeded("shards", problem, method, steps, dirichlet=dirichlet)

    def _seeded(
        self, part: str, problem: Problem, method: str, steps: int, times: float = 1.0, **changes: object
    ) -> Iterator[StudyEntry]:
        number = self._numbers[self._problems.index(problem), method]
        for seed in range(self._seeds):
            cell = self._cell(problem, method, steps, seed=seed, **changes)
            yield StudyEntry(part=part, cell=cell, tuning=number, times=times)


def _notes(preset: StudySize, seeds: int) -> tuple[str, ...]:
    return (
        f"{preset.rows:,} training rows are dealt out to {preset.clients} clients unless a figure says "
        f"otherwise; "
        f"{preset.validation_rows} rows of the training data validate, {preset.test_rows or 'all'} others "
        f"test.",
        f"A client makes {preset.zeroth_steps} steps with two-point estimates or {preset.first_steps} with "
        f"gradients, on mini-batches of {preset.batch_size} rows, and communicates after every "
        f"{preset.local_steps}. Parts besides the table of methods: {preset.short_steps} steps. The paper: "
        f"5,000 "
        "and 500 steps.",
        "Learning rates are those of the trial with the least validation loss (first seed, ring), with other "
        "topologies and shards, too. SeedFlood's are per update, and more clients make more updates in a "
        "round: with other numbers of clients the rate per round stays, so that the rate per update is less "
        "by as much as there are more clients. Those of methods that average are per local step of a client.",
        f"Figures are means over {seeds} seeds with their 95 % t-interval."
        if seeds > 1
        else "One seed: nothing here says how much is chance.",
    )
