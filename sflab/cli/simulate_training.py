"""`sfnode lab simulate training`: virtual clients train one model in one process, with any method."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_origin

import click

from sfnode.cli.exit import DONE
from sfnode.cli.options import bound, device_option, json_option, option, setting, threads_option
from sfnode.cli.output import echo
from sfnode.cli.progress import waiting
from sfnode.errors import Code, UserError

if TYPE_CHECKING:
    from sflab.experiments.cell import Cell

F = TypeVar("F", bound=Callable[..., Any])


METAVARS: dict[Any, str] = {int: "COUNT", float: "NUMBER", str: "NAME"}


def cell_options(function: F) -> F:
    """Add an option for every field of a cell, with the field's docstring as help, and --option for
    `options`."""
    from sflab.experiments.cell import Cell, CellNetwork, Problem

    fields = Problem.model_fields | CellNetwork.model_fields | Cell.model_fields
    function = option(
        "--option",
        "options",
        multiple=True,
        metavar="NAME=NUMBER",
        callback=parse_options,
        help="A number that only this method has (docs/experiments.md); may be given several times.",
    )(function)
    for name in reversed([name for name in fields if name not in ("problem", "network", "options")]):
        field = fields[name]
        kind = _kind(field)
        shown = {"default": field.default, "show_default": field.default != ""}
        flag = f"--{name.replace('_', '-')}"
        metavar = {} if isinstance(kind, click.Choice) else {"metavar": METAVARS[field.annotation]}
        text = " ".join((field.description or "").split("\n"))
        function = option(flag, type=kind, help=text, **shown, **metavar)(function)
    return function


def _kind(field: Any) -> Any:
    if get_origin(field.annotation) is Literal:
        return click.Choice(get_args(field.annotation))
    if field.annotation is str:
        return click.STRING
    least, most = bound(field.metadata, "ge"), bound(field.metadata, "le")
    return click.FLOAT if field.annotation is float else click.IntRange(least, most)


def results_option(default: str, what: str) -> Callable[[F], F]:
    """Return the option --out with default `default`. `what` is a study or a run."""
    return option(
        "--out",
        "results",
        type=click.Path(path_type=Path, file_okay=False),
        default=default,
        help=f"Where results are written, and where an interrupted {what} continues.",
    )


def parse_options(_context: Any, _parameter: Any, values: tuple[str, ...]) -> dict[str, float]:
    """Parse `NAME=NUMBER` pairs."""
    found = {}
    for value in values:
        name, equals, number = value.partition("=")
        try:
            found[name] = float(number)
        except ValueError:
            equals = ""
        if not equals:
            raise click.BadParameter("give it as NAME=NUMBER, for example segment_updates=32")
    return found


@click.command
@cell_options
@results_option("results", "run")
@option(
    "--write-log",
    type=click.Path(path_type=Path, file_okay=False),
    help="Leave the data folder of client 0's node in this empty folder, as `sfnode verify` reads it.",
)
@setting(
    "--log-to",
    metavar="KIND:PLACE",
    help="Record every step and evaluation: jsonl:FILE, tensorboard:FOLDER or wandb:PROJECT (docs/views.md). "
    "Repeat for more.",
)
@device_option
@threads_option("CPU threads.  [default: 1]")
@json_option
def training(
    options: dict[str, float],
    results: Path,
    write_log: Path | None,
    log_to: tuple[str, ...],
    device: str,
    threads: int,
    as_json: bool,
    **fields: Any,
) -> int:
    """Train virtual clients of one model, and compare the result with the untrained model.

    The same fields give the same numbers and the same name of the results. The same command continues an
    interrupted run. SeedFlood's clients are nodes in virtual time that share one engine.
    """
    from sflab.experiments.cell import Place
    from sflab.experiments.runner import run_cell
    from sfnode.loggers import opened

    cell = cell_of(fields, options)
    what = f"{cell.method}, {cell.network.clients} clients"
    with closing(opened(log_to)) as logger, waiting(what) as advance:
        values = run_cell(cell, results, Place(device, threads or 1), [logger], advance, log=write_log)
    path = results / f"{cell.name}.jsonl"
    if as_json:
        echo(
            json.dumps(
                {"cell": cell.model_dump(mode="json"), "results": str(path), "values": values}, indent=2
            )
        )
    else:
        echo("\n".join(_lines(values)) + f"\nresults in {path}")
    return DONE


def cell_of(fields: Mapping[str, Any], options: dict[str, float]) -> Cell:
    """Return the cell of the given options. Raises UserError BAD_OPTION."""
    from pydantic import ValidationError

    from sflab.experiments.cell import Cell, CellNetwork, Problem

    try:
        return Cell.model_validate(
            {name: fields[name] for name in Cell.model_fields.keys() & fields.keys()}
            | {"problem": {name: fields[name] for name in Problem.model_fields}}
            | {"network": {name: fields[name] for name in CellNetwork.model_fields}}
            | {"options": options}
        )
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        *section, name = map(str, first["loc"])
        flag = f"--option {name}" if section == ["options"] else f"--{name.replace('_', '-')}"
        raise UserError(
            Code.BAD_OPTION,
            f"{flag}: {first['msg']}",
            "`sfnode lab simulate training --help` lists the options.",
        ) from error


def _lines(values: Mapping[str, float]) -> list[str]:
    """Format the end values for people."""
    lines = [
        f"score              {values['score']:.3f}, loss {values['loss']:.4f}, on the test rows",
        f"untrained          {values['base_score']:.3f}, loss {values['base_loss']:.4f}",
    ]
    if "calibrated_score" in values:
        score, loss = values["calibrated_score"], values["calibrated_loss"]
        lines.append(f"  calibrated       {score:.3f}, loss {loss:.4f} (prior of the answers subtracted)")
    return [
        *lines,
        f"consensus error    {values['consensus']:.4g}",
        f"bytes per edge     {values['bytes_per_edge']:,.0f} of {values['bytes_total']:,} in all",
        *_updates(values),
        f"example-forwards   {values['example_forwards']:,}",
        f"seconds            {values['seconds']:.1f}",
    ]


def _updates(values: Mapping[str, float]) -> list[str]:
    if not values.get("hostile_updates"):
        return []
    return [
        f"honest updates     {values['honest_updates']:,}, of which {values['honest_counted']:,} count",
        f"hostile updates    {values['hostile_updates']:,}, of which {values['hostile_counted']:,} count",
    ]
