"""Formats a local swarm for 80 columns: live progress, and the closing table."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from sfnode.dashboard.formatting import beside, count, probe_in_words
from sfnode.schema import OrganiserStatus
from sfnode.schema.evaluation import Evaluation
from sfnode.schema.metrics import figure, measured, metric_of, trained_by
from sfnode.schema.node_state import NodeState
from sfnode.schema.results import SwarmResult
from sfnode.schema.status import Status
from sfnode.sizes import pace, part_of, span

MOST = 0.75
"""Share of the updates that count at least in a run where nothing went wrong: what is under way when a run
ends does not, and what a defence skips."""

SHORT_DIGEST = 12
"""Hex digits of a digest that tell nodes apart at a glance."""


def progress_line(statuses: Sequence[Status | None], organised: OrganiserStatus | None = None) -> str:
    """Format the updates of the slowest node, the rate of all nodes, the time left at this rate, the mean
    loss or reward, and what the first node, which organises, does beside updates."""
    there = [status for status in statuses if status]
    if len(there) < len(statuses):
        return f"{len(there)} of {len(statuses)} nodes are up"
    budget = there[0].update_budget
    known = min(status.known for status in there)
    rate = sum(status.updates_per_second for status in there)
    losses = [status.loss for status in there if status.loss is not None]
    trained = trained_by(there[0].task)
    told = f", {trained.name} {trained.of(sum(losses) / len(losses)):.3f}" if losses else ""
    used, budget = (organised.counted, organised.budget) if organised else (known, budget)
    told = f", {pace(rate)}" + (f", {span((budget - used) / rate)} left" if rate else "") + told
    if doing := there[0].doing:
        told += f"; {'organiser' if organised else 'node 1'}: {doing.what}, {span(doing.seconds)}"
    if organised is None:
        return f"{part_of(known, budget)} updates{told}"
    counted = f"{part_of(organised.counted, organised.budget)} count in {organised.sealed} epochs"
    return f"{count(known)} updates, {counted}{told}"


def progress_table(
    name: str, statuses: Sequence[Status | None], organised: OrganiserStatus | None = None
) -> Table:
    """Return a table with one row for each node."""
    table = Table(title=f"run {name}: {progress_line(statuses, organised)}", title_justify="left")
    table.add_column("node", justify="right")
    table.add_column("state")
    trained = next((trained_by(status.task).name for status in statuses if status), "")
    for column in ("known", "own", "speed", trained, "links"):
        table.add_column(column, justify="right")
    table.add_column("digest")
    for number, status in enumerate(statuses, 1):
        table.add_row(str(number), *(_cells(status) if status else (NodeState.STARTING,)))
    return table


def _cells(status: Status) -> list[str]:
    return [
        status.state,
        str(status.known),
        str(status.own_updates),
        pace(status.updates_per_second),
        "" if status.loss is None else f"{trained_by(status.task).of(status.loss):.3f}",
        str(len(status.links)),
        status.digest[:SHORT_DIGEST],
    ]


def closing_table(result: SwarmResult) -> Table:
    """Return a table of what each node did, and of its digests."""
    table = Table()
    table.add_column("node", justify="right")
    table.add_column("own updates", justify="right")
    table.add_column("digest")
    table.add_column("core digest")
    for node in result.nodes:
        table.add_row(
            str(node.node),
            str(node.own_updates),
            node.digest[:SHORT_DIGEST],
            (node.core_digest or "")[:SHORT_DIGEST],
        )
    return table


def measurement_line(when: str, found: Evaluation) -> str:
    """Format an evaluation: `base model: accuracy 0.526 (0.493-0.559), loss 0.687 on 872 held-out rows`."""
    what = f"{measured(found)}{beside(found, 3)}"
    return f"{when}: {what} on {found.count} held-out rows"


def _what_does_not_count(result: SwarmResult) -> list[str]:
    """Say that a run has ended before its budget, or that many updates do not count, and why."""
    counted, made = result.counted, result.updates
    if counted is None or (counted >= result.update_budget and counted >= made * MOST):
        return []
    why = result.announced or "the organiser has announced no reason; `sfnode log` lists its decisions"
    early = "" if counted >= result.update_budget else f" (of a budget of {count(result.update_budget)})"
    return [f"ATTENTION: {count(made - counted)} of {count(made)} updates do not count{early}: {why}"]


def verdict(result: SwarmResult) -> list[str]:
    """Format the last lines: what training changed, what it cost, and whether the nodes agree."""
    lines = []
    if result.before and result.after:
        before, after, calibrated = result.before, result.after, result.calibrated
        trained = metric_of(after.metric).trained
        lines.append(f"{measured(before)} -> {figure(after)} on {after.count} held-out rows")
        lines.append(f"{trained.name} {trained.of(before.loss):.3f} -> {trained.of(after.loss):.3f}")
        if calibrated:
            what = f"{measured(calibrated)}{beside(calibrated, 3)}"
            lines.append(f"the base model, calibrated without training: {what}")
        lines += probe_in_words(result.probe) if result.probe else []
    lines.append(f"{result.updates} updates in {result.seconds:.1f} s")
    if result.counted is not None:
        lines[-1] += f"; {result.counted} count, in {result.sealed} sealed epochs"
    if result.bytes_per_update:
        lines[-1] += f", {result.bytes_per_update:.1f} bytes per update on the wire"
    lines += _what_does_not_count(result)
    if result.equal:
        return [*lines, f"OK: all digests are equal ({result.nodes[0].digest[:16]})"]
    return [*lines, "FAILED: the digests differ"]
