"""`sfnode status`: what a running node is doing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from sfnode.cli.guest import limit_lines
from sfnode.cli.options import data_dir_option, json_option
from sfnode.client import Client
from sfnode.runtime.status import Status
from sfnode.store.datadir import Layout


@click.command(short_help="Show what a running node is doing.")
@data_dir_option
@json_option
def status(data_dir: Path, as_json: bool) -> None:
    """Show what the node that runs in this folder is doing."""
    answer = asyncio.run(Client(Layout(data_dir).control_socket).status())
    click.echo(answer.model_dump_json(indent=2) if as_json else "\n".join(_lines(answer)))


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
    lines += [f"paused   {why}" for why in s.pauses]
    lines += [f"limit    {line}" for line in limit_lines(s.limits).splitlines() if s.limits.in_force()]
    return lines + [f"address  {address}" for address in s.addresses]
