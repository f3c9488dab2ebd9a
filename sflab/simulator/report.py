"""The outcome of a run as text."""

from __future__ import annotations

from collections.abc import Iterable

from sflab.simulator.runner import Outcome
from sflab.simulator.scenarios import Scenario


def lines(outcome: Outcome) -> list[str]:
    """Return the outcome in lines: what happened, what it cost, and if it failed why and how to repeat it."""
    head = f"{outcome.scenario}: {outcome.nodes} nodes, {outcome.topology}, seed {outcome.seed}"
    said = [f"{head}: {'FAILED' if outcome.failure else 'ok'}"]
    said += _result(outcome)
    said += _elections(outcome)
    said += _costs(outcome)
    if outcome.failure:
        said += _why(outcome)
    return said


def line(outcome: Outcome) -> str:
    """Return the outcome in one line."""
    settled = "-" if outcome.settled is None else f"{outcome.settled:.1f}"
    failed = f"  FAILED [{outcome.failure.checker}]" if outcome.failure else ""
    return (
        f"{outcome.scenario:<20} {outcome.updates:>8,} {100 * outcome.delivered:>8.2f} {settled:>8} "
        f"{outcome.latency_p50:>7.3f} "
        f"{outcome.latency_p99:>7.3f} {outcome.latency_max:>7.3f} {outcome.copies:>7.2f} "
        f"{outcome.peak_entries:>8,} {outcome.bytes_in:>9,.0f} {outcome.bytes_out:>9,.0f}{failed}"
    )


HEADING = (
    f"{'scenario':<20} {'updates':>8} {'there %':>8} {'equal s':>8} {'p50 s':>7} {'p99 s':>7} {'max s':>7} "
    f"{'copies':>7} {'entries':>8} {'in B/s':>9} {'out B/s':>9}"
)


def listing(scenarios: Iterable[Scenario]) -> list[str]:
    """Return the table of scenarios."""
    return [f"{scenario.name:<20} {scenario.says}" for scenario in scenarios]


def _result(outcome: Outcome) -> list[str]:
    settled = "not equal" if outcome.settled is None else f"all equal {outcome.settled:.1f} s after the end"
    forks = f", {outcome.forks} forked feeds" if outcome.forks else ""
    return [
        f"  {outcome.updates:,} updates{forks}, {outcome.deliveries:,} deliveries; "
        f"{100 * outcome.delivered:.2f} % was everywhere when the faults ended; {settled}",
        f"  delivery  median {outcome.latency_p50:.3f} s, 99 % {outcome.latency_p99:.3f} s, "
        f"slowest {outcome.latency_max:.3f} s",
    ]


def _elections(outcome: Outcome) -> list[str]:
    if not outcome.elections:
        return []
    led, counted = (
        ", ".join(f"{seconds:.0f}" for seconds in found) for found in (outcome.elections, outcome.counting)
    )
    return [
        f"  elections {led} s from the death of whoever organised; more updates counted after {counted} s"
    ]


def _costs(outcome: Outcome) -> list[str]:
    kinds = ", ".join(
        f"{kind} {count:,} ({outcome.bytes[kind]:,} B)" for kind, count in outcome.messages.items()
    )
    drops = ", ".join(f"{count} x {fault}" for fault, count in outcome.drops.items())
    return [
        f"  copies    {outcome.copies:.2f} per delivery",
        f"  sent      {kinds}",
        f"  a node    {outcome.bytes_in:,.0f} B/s in, {outcome.bytes_out:,.0f} B/s out; "
        f"at most {outcome.peak_entries:,} entries in its tables",
        *([f"  dropped   {drops}"] if drops else []),
        f"  simulated {outcome.steps:,} steps in {outcome.wall:.1f} s; trace {outcome.trace_hash}",
    ]


def _why(outcome: Outcome) -> list[str]:
    failure = outcome.failure
    assert failure
    return [
        f"  [{failure.checker}] {failure.what}",
        f"  at {failure.when:.3f} s; the last entries of the nodes concerned:",
        *(f"    {entry}" for entry in failure.trace),
        f"  again with: {outcome.command}",
    ]
