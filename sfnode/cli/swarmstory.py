"""The course of a local swarm, told on a console: start, progress, comparison.

Knows neither how nodes are started nor how things are drawn.
"""

from __future__ import annotations

import asyncio
import time

from rich.console import Console
from rich.live import Live

import sfnode
from sfnode.cli.localswarm import LocalSwarm, Plan, SwarmNode
from sfnode.cli.results import Measurement, NodeResult, SwarmResult
from sfnode.cli.swarmview import closing_table, measurement_line, progress_line, progress_table, verdict
from sfnode.config import Manifest
from sfnode.runtime.status import CoreStatus, Status

AGREE_DEADLINE = 60.0
"""Seconds after the last update within which all digests must be equal."""

POLL_INTERVAL = 0.5
"""Seconds between looks."""

PLAIN_INTERVAL = 5.0
"""Seconds between lines of progress where there is no terminal."""


class Story:
    """One swarm from beginning to end."""

    def __init__(self, plan: Plan, manifest: Manifest, console: Console, started: float) -> None:
        """`started`: when the command was given, by the monotonic clock."""
        self._plan = plan
        self._manifest = manifest
        self._console = console
        self._started = started
        self._first_update = 0.0
        """When the first look saw an update."""
        self._complete_since = 0.0
        self._shown = 0.0

    async def tell(self) -> SwarmResult:
        """Run to the end, print how the nodes compare, return it as data. Raises UserError SWARM_FAILED."""
        async with LocalSwarm(self._plan) as local:
            self._say(f"starting {self._plan.nodes} nodes of run {self._manifest.name}")
            await local.start()
            base = asyncio.create_task(self._measure_base(local.nodes[0]))
            try:
                await self._watch(local, base)
            finally:
                base.cancel()
            seconds = time.monotonic() - self._first_update
            result = await self._result(local, base.result(), seconds)
        self._console.print(closing_table(result))
        for line in verdict(result):
            self._say(line)
        return result

    async def _watch(self, local: LocalSwarm, base: asyncio.Task[Measurement | None]) -> None:
        """Until the base is measured and all nodes have all updates and agree, or should have long since."""
        with Live(console=self._console, refresh_per_second=4, transient=True) as live:
            while True:
                statuses = await local.look()
                self._show(statuses, live)
                if base.done():
                    base.result()  # raises at once if the measurement failed
                    if self._finished(statuses):
                        return
                await asyncio.sleep(POLL_INTERVAL)

    def _finished(self, statuses: list[Status | None]) -> bool:
        if not all(status and status.state == "complete" for status in statuses):
            return False
        self._complete_since = self._complete_since or time.monotonic()
        return _agree(statuses) or time.monotonic() - self._complete_since > AGREE_DEADLINE

    def _show(self, statuses: list[Status | None], live: Live) -> None:
        now = time.monotonic()
        if not self._first_update and any(status and status.known for status in statuses):
            self._first_update = now
        if self._console.is_terminal:
            live.update(progress_table(self._manifest.name, statuses))
        elif now - self._shown >= PLAIN_INTERVAL:
            self._shown = now
            self._say(progress_line(statuses))

    async def _measure_base(self, node: SwarmNode) -> Measurement | None:
        measured = await self._measure(node, base=True)
        if measured:
            self._say(measurement_line("base model", measured))
        return measured

    async def _measure(self, node: SwarmNode, *, base: bool) -> Measurement | None:
        """The model on the test rows, if the run has any."""
        if not self._manifest.data.test:
            return None
        answer = await node.ask(node.client.evaluate(base=base))
        return Measurement(**answer.model_dump(exclude={"digest"}))

    async def _result(self, local: LocalSwarm, before: Measurement | None, seconds: float) -> SwarmResult:
        after = await self._measure(local.nodes[0], base=False)
        digests = await asyncio.gather(*(node.ask(node.client.digest()) for node in local.nodes))
        statuses = [status for status in await local.look() if status]
        pairs = zip(statuses, digests, strict=True)
        sent = sum(status.updates_sent for status in statuses)
        return SwarmResult(
            version=sfnode.__version__,
            run_id=self._manifest.run_id.hex(),
            run_name=self._manifest.name,
            updates=digests[0].known,
            update_budget=self._manifest.training.update_budget,
            equal=len({(digest.digest, digest.core_digest) for digest in digests}) == 1,
            before=before,
            after=after,
            nodes=[_node_result(number, *pair) for number, pair in enumerate(pairs, 1)],
            bytes_per_update=sum(status.segment_bytes_sent for status in statuses) / max(sent, 1),
            bytes_sent=sum(status.bytes_sent for status in statuses),
            seconds=round(seconds, 1),
            seconds_in_all=round(time.monotonic() - self._started, 1),
        )

    def _say(self, text: str) -> None:
        self._console.print(text)


def _agree(statuses: list[Status | None]) -> bool:
    return len({status.digest if status else None for status in statuses}) == 1


def _node_result(number: int, status: Status, digest: CoreStatus) -> NodeResult:
    """Own updates by the signed log, so that those of an earlier start in the same folder count too."""
    hashes = {"digest": digest.digest, "core_digest": digest.core_digest}
    return NodeResult(node=number, own_updates=status.contributed, **hashes)
