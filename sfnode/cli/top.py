"""`sfnode top`: watch a running node in the terminal."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import click

from sfnode.cli.data_folder import watched_node
from sfnode.cli.options import data_dir_option, option


@click.command
@data_dir_option
@option("--once", is_flag=True, help="Print one frame and end, as without a terminal or on a dumb one.")
def top(data_dir: Path, once: bool) -> None:
    """Watch the node that runs in this folder: curves, progress, neighbours, contributions. Press q to quit.

    While no node runs there, it waits for one.
    """
    import asyncio

    from rich.console import Console

    from sfnode.dashboard.top import Top, can_be_kept_up_to_date
    from sfnode.dashboard.top import once as one_frame

    client, console = watched_node(data_dir, checked=False), Console()
    if once or not can_be_kept_up_to_date():
        asyncio.run(one_frame(client, console))
        return

    async def watch() -> None:
        await Top(client, data_dir, console).run()

    with suppress(KeyboardInterrupt):
        asyncio.run(watch())
