"""`sfnode status`: what a running node is doing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from sfnode.cli.guest import limit_lines
from sfnode.cli.options import data_dir_option, json_option, option
from sfnode.client import Client
from sfnode.limits import size_text
from sfnode.runtime.status import Status
from sfnode.runtime.viewed import FeedStatus
from sfnode.store.datadir import Layout


@click.command(short_help="Show what a running node is doing.")
@data_dir_option
@option("--feeds", "with_feeds", is_flag=True, help="Also list what every feed has contributed.")
@json_option
def status(data_dir: Path, with_feeds: bool, as_json: bool) -> None:
    """Show what the node that runs in this folder is doing."""
    answer = asyncio.run(_ask(Client(Layout(data_dir).control_socket), with_feeds))
    click.echo(answer.model_dump_json(indent=2) if as_json else "\n".join(_lines(answer)))


class StatusWithFeeds(Status):
    """With a list that is long in a large run."""

    feeds: list[FeedStatus]


async def _ask(client: Client, with_feeds: bool) -> Status:
    answer = await client.status()
    return StatusWithFeeds(**dict(answer), feeds=await client.every_feed()) if with_feeds else answer


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
    if s.fetch:
        done, total = size_text(s.fetch.done), size_text(s.fetch.total)
        lines.append(f"fetching {done} of {total} of the base model, from {s.fetch.peers} peers")
    lines += [f"paused   {why}" for why in s.pauses]
    lines += [f"limit    {line}" for line in limit_lines(s.limits).splitlines() if s.limits.in_force()]
    lines += [f"address  {address}" for address in s.addresses]
    feeds = s.feeds if isinstance(s, StatusWithFeeds) else []
    return lines + [f"feed     {feed.origin}/{feed.incarnation} {feed.updates}" for feed in feeds]
