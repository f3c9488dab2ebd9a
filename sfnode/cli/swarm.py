"""`sfnode swarm`: a local swarm of real node processes, watched through their control sockets."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.live import Live
from rich.table import Table

from sfnode.cli.options import option
from sfnode.client import Client
from sfnode.config import Manifest
from sfnode.errors import Code, UserError
from sfnode.runtime.status import CoreStatus, EvaluationStatus, Status
from sfnode.store.datadir import Layout

START_DEADLINE = 120.0
"""Seconds for a node to answer on its control socket: importing torch on a busy machine takes ten."""

AGREE_DEADLINE = 60.0
"""Seconds after the last update within which all digests must be equal."""

STOP_DEADLINE = 10.0
"""Seconds for a node to end after it was asked to; it takes less than two."""

POLL_INTERVAL = 0.5
PLAIN_INTERVAL = 5.0
"""Seconds between looks, and between lines of progress where there is no terminal."""


class SwarmNode:
    """One node process and its folder."""

    def __init__(self, number: int, folder: Path) -> None:
        self.number = number
        self.folder = folder
        self.client = Client(Layout(folder).control_socket)
        self.process: asyncio.subprocess.Process | None = None
        self.status: Status | None = None

    async def start(self, arguments: list[str]) -> None:
        """Start the process; its output goes to node.log in its folder."""
        self.folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "sfnode", "join", "--data-dir", str(self.folder), *arguments]
        with (self.folder / "node.log").open("ab") as output:
            self.process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    async def look(self) -> Status | None:
        """Its status now, or the last one. Raises UserError SWARM_FAILED when the process has ended."""
        if self.process is None or self.process.returncode is not None:
            raise self._ended()
        try:
            self.status = await self.client.status()
        except UserError:
            return self.status
        return self.status

    async def answering(self) -> Status:
        """Its first status."""
        deadline = time.monotonic() + START_DEADLINE
        while time.monotonic() < deadline:
            if status := await self.look():
                return status
            await asyncio.sleep(POLL_INTERVAL)
        raise self._ended()

    async def stop(self) -> None:
        """Ask it to end; kill it if it does not."""
        if self.process is None or self.process.returncode is not None:
            return
        self.process.terminate()
        try:
            await asyncio.wait_for(self.process.wait(), STOP_DEADLINE)
        except TimeoutError:
            self.process.kill()
            await self.process.wait()

    def _ended(self) -> UserError:
        lines = (self.folder / "node.log").read_text(errors="replace").splitlines()
        return UserError(
            Code.SWARM_FAILED,
            f"node {self.number} ended or never answered; its last words:\n    " + "\n    ".join(lines[-8:]),
            f"The whole of it: {self.folder / 'node.log'}",
        )


@click.command()
@option("--nodes", type=click.IntRange(1, 64), default=4, show_default=True, help="How many nodes.")
@option(
    "--run", type=click.Path(path_type=Path), metavar="FILE", help="Run manifest; default: the built-in run."
)
@option(
    "--split-data/--shared-data",
    default=True,
    show_default=True,
    help="Give every node its own part of the training rows, or all rows to all.",
)
@option(
    "--folder",
    type=click.Path(path_type=Path),
    help="Keep the nodes' folders here; default: a temporary one.",
)
@option(
    "--threads", type=click.IntRange(0), default=0, help="CPU threads of each node; 0: the cores shared out."
)
@option("--json", "as_json", is_flag=True, help="Print the closing table as JSON (docs/json.md).")
def swarm(
    nodes: int, run: Path | None, split_data: bool, folder: Path | None, threads: int, as_json: bool
) -> None:
    """Run a local swarm of real processes until the run is complete, and compare the nodes.

    Without options: four nodes train the model and the task that come with sfnode. Exit status 1 when the
    nodes do not end with the same digest.
    """
    console = Console(stderr=as_json)
    place = folder or Path(tempfile.mkdtemp(prefix="sfnode-swarm-"))
    manifest_file = run or _write_default(place)
    threads = threads or max(1, (os.cpu_count() or 1) // nodes)
    local = Swarm(nodes, manifest_file, place, split_data, threads, console)
    summary = asyncio.run(local.train())
    if folder is None:
        shutil.rmtree(place, ignore_errors=True)
    click.echo(json.dumps(summary) if as_json else "", nl=as_json)
    if not summary["equal"]:
        raise UserError(
            Code.DIGESTS_DIFFER,
            "the nodes ended with different digests",
            "This is a bug in sfnode: please report it with the nodes' folders (--folder keeps them).",
        )


def _write_default(place: Path) -> Path:
    from sfnode.cli.init import default_manifest

    place.mkdir(parents=True, exist_ok=True)
    path = place / "run.toml"
    path.write_text(default_manifest().to_toml(), encoding="utf-8")
    return path


class Swarm:
    """N nodes on this machine: starts them, watches them, compares them, stops them."""

    def __init__(
        self, count: int, run: Path, place: Path, split_data: bool, threads: int, console: Console
    ) -> None:
        self.manifest = Manifest.from_toml(run)
        self.nodes = [SwarmNode(number, place / f"node-{number}") for number in range(1, count + 1)]
        self._run = run
        self._split = split_data
        self._threads = threads
        self._console = console
        self._started = time.monotonic()

    async def train(self) -> dict[str, Any]:
        """Run to the end; returns the closing table as data."""
        try:
            await self._start()
            before = await self.nodes[0].client.evaluate(base=True)
            self._say(f"base model: {before.metric} {before.value:.3f} on {before.count} test rows")
            trained_from = time.monotonic()
            await self._watch()
            seconds = time.monotonic() - trained_from
            after = await self.nodes[0].client.evaluate()
            digests = await asyncio.gather(*(node.client.digest() for node in self.nodes))
            summary = self._summary(before, after, list(digests), seconds)
            self._console.print(_closing_table(summary, self.nodes))
            _print_verdict(self._console, summary)
            return summary
        finally:
            await asyncio.gather(*(node.stop() for node in self.nodes))

    async def _start(self) -> None:
        """The first node alone, the others through it."""
        self._say(f"starting {len(self.nodes)} nodes of run {self.manifest.name}")
        first = self.nodes[0]
        await first.start([*self._arguments(0), "--run", str(self._run)])
        address = (await first.answering()).addresses[0]
        for index, node in enumerate(self.nodes[1:], 1):
            await node.start([*self._arguments(index), "--peers", address])
        for node in self.nodes[1:]:
            await node.answering()

    def _arguments(self, index: int) -> list[str]:
        arguments = ["--host-maddrs", "/ip4/127.0.0.1/tcp/0", "--threads", str(self._threads)]
        if self._split and len(self.nodes) > 1:
            arguments += ["--shard", f"{index + 1}/{len(self.nodes)}"]
        return arguments

    async def _watch(self) -> None:
        """Until all have all updates and equal digests, with live progress."""
        complete_since: float | None = None
        shown = float("-inf")
        with Live(console=self._console, refresh_per_second=4, transient=True) as live:
            while True:
                statuses = await asyncio.gather(*(node.look() for node in self.nodes))
                if self._console.is_terminal:
                    live.update(_progress_table(self.manifest, self.nodes))
                elif time.monotonic() - shown >= PLAIN_INTERVAL:
                    shown = time.monotonic()
                    self._say(_progress_line(self.nodes))
                known = [status for status in statuses if status]
                if all(status.state == "complete" for status in known):
                    complete_since = complete_since or time.monotonic()
                    if len({status.digest for status in known}) == 1 or _waited(complete_since):
                        return
                await asyncio.sleep(POLL_INTERVAL)

    def _summary(
        self, before: EvaluationStatus, after: EvaluationStatus, digests: list[CoreStatus], seconds: float
    ) -> dict[str, Any]:
        statuses = [node.status for node in self.nodes if node.status]
        sent = sum(status.updates_sent for status in statuses)
        return {
            "run_id": self.manifest.run_id.hex(),
            "metric": before.metric,
            "before": before.value,
            "after": after.value,
            "loss_before": before.loss,
            "loss_after": after.loss,
            "test_rows": after.count,
            "updates": digests[0].known,
            "updates_by_node": [status.own_updates for status in statuses],
            "digests": [digest.digest for digest in digests],
            "core_digests": [digest.core_digest for digest in digests],
            "equal": len({(digest.digest, digest.core_digest) for digest in digests}) == 1,
            "bytes_per_update": sum(status.segment_bytes_sent for status in statuses) / max(sent, 1),
            "bytes_sent": sum(status.bytes_sent for status in statuses),
            "seconds": round(seconds, 1),
            "seconds_in_all": round(time.monotonic() - self._started, 1),
        }

    def _say(self, text: str) -> None:
        self._console.print(text, highlight=False)


def _waited(since: float) -> bool:
    return time.monotonic() - since > AGREE_DEADLINE


def _progress_line(nodes: list[SwarmNode]) -> str:
    known = [node.status.known for node in nodes if node.status]
    rate = sum(node.status.updates_per_second for node in nodes if node.status)
    losses = [node.status.loss for node in nodes if node.status and node.status.loss is not None]
    loss = f"  loss {sum(losses) / len(losses):.3f}" if losses else ""
    budget = next((node.status.update_budget for node in nodes if node.status), 0)
    return f"{min(known, default=0)} of {budget} updates at {rate:.0f}/s{loss}"


def _progress_table(manifest: Manifest, nodes: list[SwarmNode]) -> Table:
    table = Table(title=f"run {manifest.name}: {_progress_line(nodes)}", title_justify="left")
    for column in ("node", "state", "known", "own", "per second", "loss", "links", "digest"):
        table.add_column(column, justify="left" if column in ("state", "digest") else "right")
    for node in nodes:
        s = node.status
        if s is None:
            table.add_row(str(node.number), "starting", *[""] * 6)
            continue
        loss = "" if s.loss is None else f"{s.loss:.3f}"
        rate = f"{s.updates_per_second:.1f}"
        table.add_row(
            str(node.number),
            s.state,
            str(s.known),
            str(s.own_updates),
            rate,
            loss,
            str(len(s.links)),
            s.digest[:12],
        )
    return table


def _closing_table(summary: dict[str, Any], nodes: list[SwarmNode]) -> Table:
    table = Table(title="nodes", title_justify="left")
    for column in ("node", "own updates", "digest", "core digest"):
        table.add_column(column, justify="right" if column == "own updates" else "left")
    rows = zip(nodes, summary["updates_by_node"], summary["digests"], summary["core_digests"], strict=True)
    for node, own, digest, core in rows:
        table.add_row(str(node.number), str(own), digest[:16], core[:16])
    return table


def _print_verdict(console: Console, summary: dict[str, Any]) -> None:
    metric, rows = summary["metric"], summary["test_rows"]
    console.print(f"{metric} on {rows} held-out rows  {summary['before']:.3f} -> {summary['after']:.3f}")
    console.print(f"loss  {summary['loss_before']:.3f} -> {summary['loss_after']:.3f}", highlight=False)
    console.print(
        f"{summary['updates']} updates in {summary['seconds']} s, "
        f"{summary['bytes_per_update']:.1f} bytes per update on the wire",
        highlight=False,
    )
    verdict = "OK: all digests are equal" if summary["equal"] else "FAILED: digests differ"
    console.print(f"{verdict} ({summary['digests'][0][:16]})", highlight=False)
