"""`sfnode simulate sweep`: cells over a grid of learning rates, epsilons, ranks and mini-batches."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sflab.cli.simulate_training import cell_of, cell_options, parse_options
from sflab.cli.studies import run_study, study_options, typed
from sfnode.cli.exit import DONE, FAILED
from sfnode.cli.options import json_option, option
from sfnode.cli.output import echo

if TYPE_CHECKING:
    from sflab.experiments.cell import Cell
    from sflab.studies.findings import Group, Interval

SWEPT = ("learning_rate", "epsilon", "rank", "batch_size")
"""Fields of a cell that take several values."""

SHOWN = ("validation_score", "validation_loss", "score", "loss")


@click.command
@cell_options(several=SWEPT)
@option(
    "--option",
    "options",
    multiple=True,
    metavar="NAME=NUMBER",
    callback=parse_options,
    help="A number that only this method has (docs/experiments.md); may be given several times.",
)
@option(
    "--seeds",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    metavar="COUNT",
    help="Seeds of each, from --seed on.",
)
@study_options("sweep")
@json_option
def sweep(
    options: dict[str, float],
    seeds: int,
    results: Path,
    workers: int | None,
    ray: str | None,
    device: str,
    as_json: bool,
    **fields: Any,
) -> int:
    """Run every combination of the given learning rates, epsilons, ranks and batch sizes; best first.

    Those options may be repeated. Order by validation loss, the mean over seeds; what is finished is not run
    again. `sfnode simulate report` does not apply. Exit status 1 if a cell failed.
    """
    from sflab.studies import study

    grid = itertools.product(*(fields[name] for name in SWEPT))
    cells = [
        cell_of(fields | dict(zip(SWEPT, point, strict=True)) | {"seed": fields["seed"] + number}, options)
        for point in grid
        for number in range(seeds)
    ]
    entries = tuple(study.Entry(part="sweep", cell=cell) for cell in cells)
    plan = study.Study(title="Sweep", command=typed(), entries=entries)
    failed = run_study(plan, results, workers, ray, device)
    groups = _ordered(results)
    if as_json:
        echo(json.dumps([_as_dict(group, failed) for group in groups], indent=2))
    else:
        echo("\n".join(_lines(groups)))
    return FAILED if any(cell.name in failed for cell in cells) else DONE


def _ordered(results: Path) -> list[Group]:
    """Return the groups of cells, the least validation loss first; those without results last."""
    from sflab.studies.findings import Findings

    def loss(group: Group) -> float:
        found = group.of("validation_loss") or group.of("loss")
        return found.mean if found else float("inf")

    return sorted(Findings.load(results).groups("sweep"), key=loss)


def _lines(groups: Sequence[Group]) -> list[str]:
    heads = ("rate", "epsilon", "rank", "batch", "val. score", "val. loss", "score", "loss", "seeds")
    rows = [heads, *(_row(group) for group in groups)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(heads))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return [*lines, *_untrained(groups)]


def _untrained(groups: Sequence[Group]) -> list[str]:
    """Say what the untrained model scores on the test rows."""
    found = next((group for group in groups if group.results), None)
    if found is None:
        return []
    values = [(words, found.of(f"{kind}_score"), found.of(f"{kind}_loss")) for words, kind in CONTROLS]
    return [
        f"{words}: score {score.mean:.3f}, loss {loss.mean:.4f}"
        for words, score, loss in values
        if score and loss
    ]


CONTROLS = (("untrained", "base"), ("untrained, calibrated", "calibrated"))


def _row(group: Group) -> tuple[str, ...]:
    cell = group.cell
    numbers = (_number(group.of(name)) for name in SHOWN)
    swept = (f"{cell.learning_rate:.3g}", f"{cell.epsilon:.3g}", str(cell.rank), str(cell.batch_size))
    return (*swept, *numbers, f"{len(group.results)} of {group.wanted}")


def _number(value: Interval | None) -> str:
    if value is None:
        return "-"
    return f"{value.mean:.4f}" if value.seeds == 1 else f"{value.mean:.4f} ± {value.half:.4f}"


def _as_dict(group: Group, failed: dict[str, str]) -> dict[str, Any]:
    cell: Cell = group.cell
    swept = {name: getattr(cell, name) for name in SWEPT}
    means = {name: value._asdict() for name in SHOWN if (value := group.of(name)) is not None}
    return {
        "cell": cell.model_dump(mode="json"),
        **swept,
        **means,
        "seeds": [result.cell.seed for result in group.results],
        "wanted": group.wanted,
        "failed": failed.get(cell.name),
    }
