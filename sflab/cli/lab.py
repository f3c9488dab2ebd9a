"""`sfnode lab`: the commands of researchers, and `lab simulate network`."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

from sfnode.cli.exit import DONE, FAILED
from sfnode.cli.groups import LazyGroup
from sfnode.cli.options import option
from sfnode.cli.output import echo
from sfnode.errors import Code, UserError

if TYPE_CHECKING:
    from sflab.simulator.runner import Outcome
    from sflab.simulator.scenarios import Scenario


SIMULATIONS = {
    "network": (
        "sflab.cli.lab",
        "Nodes, faults and attacks on a virtual clock.",
        "network --scenario calm --nodes 8",
    ),
    "training": (
        "sflab.cli.simulate_training",
        "Train many virtual clients in one process.",
        "training --clients 4 --steps 20",
    ),
    "paper": ("sflab.cli.studies", "Compare the methods of the SeedFlood paper.", "paper --smoke"),
    "report": ("sflab.cli.studies", "Write the report of a study's folder.", "report paper"),
}


@click.group(cls=LazyGroup, entries={"Commands": SIMULATIONS}, path="lab simulate")
def simulate() -> None:
    """Try the protocol on simulated networks, and training on virtual clients. Nothing is sent."""


# -- networks --------------------------------------------------------------------------------------------


ALL = "all"


@click.command
@option("--scenario", default="calm", metavar="NAME", help="Which, or `all`; see --list.")
@option(
    "--seed",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    metavar="INTEGER RANGE",
    help="All chance follows from it.",
)
@option("--nodes", type=click.IntRange(2), help="Honest nodes.  [default: the scenario's]")
@option("--topology", metavar="NAME", help="Who is whose neighbour.  [default: the scenario's]")
@option("--seconds", type=click.FloatRange(0), help="How long faults last.  [default: the scenario's]")
@option(
    "--trace",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write everything that happens, one line each.",
)
@option("--json", "as_json", is_flag=True, help="Print JSON for programs: a list of runs.")
@option("--list", "listing", is_flag=True, help="List scenarios and topologies, and do nothing.")
def network(
    scenario: str,
    seed: int,
    nodes: int | None,
    topology: str | None,
    seconds: float | None,
    trace: Path | None,
    as_json: bool,
    listing: bool,
) -> int:
    """Run a network of nodes in virtual time, with simulated links, and check all promises.

    The nodes are those of `sfnode join`, but their engine has no model and only adds up integers. While
    faults last, nothing may be lost, doubled or forged. When they are over, all nodes must become equal in
    bounded time. Exit status 1 if a check fails.
    """
    from sflab.simulator.runner import simulate as run
    from sflab.simulator.scenarios import SCENARIOS

    if listing:
        _list()
        return DONE
    chosen = list(SCENARIOS.values()) if scenario == ALL else [_find(scenario)]
    _check_topology(topology)
    outcomes: list[Outcome] = []
    with _opened(trace) as file:
        for one in chosen:
            outcomes.append(run(one, seed, nodes=nodes, topology=topology, seconds=seconds, trace_file=file))
            if not as_json:
                _show(outcomes[-1], brief=scenario == ALL, first=len(outcomes) == 1)
    if as_json:
        echo(json.dumps([outcome.as_dict() for outcome in outcomes], indent=2))
    return FAILED if any(outcome.failure for outcome in outcomes) else DONE


def _show(outcome: Outcome, *, brief: bool, first: bool) -> None:
    from sflab.simulator import runner

    if not brief:
        echo("\n".join(runner.lines(outcome)))
        return
    if first:
        echo(runner.HEADING)
    echo(runner.line(outcome))
    if outcome.failure:
        echo("\n".join(runner.lines(outcome)))


def _list() -> None:
    from sflab.simulator.scenarios import SCENARIOS
    from sflab.simulator.world.runs import topologies

    echo("\n".join(f"{one.name:<20} {one.says}" for one in SCENARIOS.values()))
    echo(f"\ntopologies: {', '.join(topologies())}")


def _find(name: str) -> Scenario:
    from sflab.simulator.scenarios import SCENARIOS

    if name not in SCENARIOS:
        raise UserError(
            Code.BAD_OPTION,
            f"there is no scenario called {name}",
            f"There are: {', '.join(SCENARIOS)}; or {ALL}.",
        )
    return SCENARIOS[name]


def _check_topology(name: str | None) -> None:
    from sflab.simulator.world.runs import topologies

    if name is not None and name not in topologies():
        raise UserError(
            Code.BAD_OPTION, f"there is no topology called {name}", f"There are: {', '.join(topologies())}."
        )


def _opened(trace: Path | None) -> AbstractContextManager[TextIO | None]:
    if trace is None:
        return nullcontext()
    try:
        return trace.open("w", encoding="utf-8")
    except OSError as error:
        raise UserError(
            Code.BAD_OPTION, f"cannot write {trace}: {error.strerror}", "Name another file with --trace."
        ) from error


COMMANDS = {
    "simulate": ("sflab.cli.lab", "Simulate networks under faults, and training."),
    "bench": (
        "sflab.cli.bench",
        "Show what this machine can do with a model.",
        "bench --model shape:opt-125m",
    ),
}


@click.group(cls=LazyGroup, entries={"Commands": COMMANDS}, path="lab")
def lab() -> None:
    """Measure this machine, and simulate networks and training. Nothing is sent."""
