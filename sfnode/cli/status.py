"""`sfnode status` and `sfnode stop`: talk to a running node."""

from __future__ import annotations

import asyncio
import fcntl
import time
from pathlib import Path

import click

from sfnode.cli.options import data_dir_option, json_option
from sfnode.client import Client
from sfnode.errors import Code, UserError
from sfnode.runtime.status import Status
from sfnode.store.datadir import Layout

STOP_DEADLINE = 10.0
"""Seconds for a node to end; it takes less than two."""

_STOP_POLL = 0.05


@click.command(short_help="Show what a running node is doing.")
@data_dir_option
@json_option
def status(data_dir: Path, as_json: bool) -> None:
    """Show what the node that runs in this folder is doing."""
    answer = asyncio.run(Client(Layout(data_dir).control_socket).status())
    click.echo(answer.model_dump_json(indent=2) if as_json else "\n".join(_lines(answer)))


@click.command(short_help="Stop a running node; nothing is lost.")
@data_dir_option
def stop(data_dir: Path) -> None:
    """Stop the node that runs in this folder and wait until it has ended; nothing is lost."""
    layout = Layout(data_dir)
    asyncio.run(Client(layout.control_socket).stop())
    give_up = time.monotonic() + STOP_DEADLINE
    while _in_use(layout):
        if time.monotonic() > give_up:
            raise UserError(
                Code.NODE_NOT_RUNNING,
                f"the node in {data_dir} was told to stop and is still there after {STOP_DEADLINE:g} s",
                f"See what it says, or kill process {layout.lock.read_text().strip()}: its log is on disk.",
            )
        time.sleep(_STOP_POLL)
    click.echo("stopped")


def _in_use(layout: Layout) -> bool:
    """Whether a process holds the folder."""
    with layout.lock.open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _lines(s: Status) -> list[str]:
    loss = "" if s.loss is None else f", loss {s.loss:.3f}"
    agreeing = sum(link.agrees for link in s.links)
    lines = [
        f"run      {s.run_name} ({s.run_id[:16]})",
        f"state    {s.state} as {s.role}, up {s.uptime / 60:.1f} min",
        f"updates  {s.known} of {s.update_budget}, epoch {s.epoch + 1} of {s.epochs}",
        f"own      {s.own_updates} since start, {s.updates_per_second:.1f}/s{loss}",
        f"links    {len(s.links)} ({agreeing} with the same digest)",
        f"digest   {s.digest}",
        f"traffic  {s.bytes_sent / 1000:.1f} kB out, {s.bytes_received / 1000:.1f} kB in",
    ]
    return lines + [f"address  {address}" for address in s.addresses]
