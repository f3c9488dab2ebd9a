"""Prints a local swarm on a console: start, progress, comparison.

Knows neither how nodes are started nor how tables are drawn.
"""

from __future__ import annotations

from rich.console import Console
from rich.live import Live

from sfnode.cli.swarm_output import closing_table, measurement_line, progress_line, progress_table, verdict
from sfnode.schema.results import SwarmResult
from sfnode.swarm.local_swarm import LocalSwarm, SwarmProgress

PLAIN_INTERVAL = 5.0
"""Seconds between lines of progress where there is no terminal."""


async def show_swarm(local: LocalSwarm, console: Console, nodes: int) -> SwarmResult:
    """Run the swarm to its end, printing how it goes and how the nodes compare.

    Raises UserError SWARM_FAILED, and BAD_OPTION for a folder that cannot be written.
    """
    console.print(f"starting {nodes} nodes of run {local.manifest.name}")
    async with local:
        with Live(console=console, refresh_per_second=4, transient=True) as live:
            printer = _Printer(local, console, live)
            async for progress in local:
                printer.show(progress)
        console.print("measuring the model, and comparing the nodes")
        result = await local.compare()
    console.print(closing_table(result))
    for line in verdict(result):
        console.print(line, markup=False)
    return result


class _Printer:
    """Shows progress as a table that changes, or as a line now and then where there is no terminal."""

    def __init__(self, local: LocalSwarm, console: Console, live: Live) -> None:
        self._local = local
        self._console = console
        self._live = live
        self._shown = float("-inf")
        self._measured = False

    def show(self, progress: SwarmProgress) -> None:
        if self._local.before and not self._measured:
            self._measured = True
            self._console.print(measurement_line("base model", self._local.before))
            if self._local.calibrated:
                self._console.print(measurement_line("base model, calibrated", self._local.calibrated))
        if self._console.is_terminal:
            self._live.update(
                progress_table(self._local.manifest.name, progress.statuses, progress.organised)
            )
        elif progress.seconds - self._shown >= PLAIN_INTERVAL:
            self._shown = progress.seconds
            self._console.print(progress_line(progress.statuses, progress.organised))
