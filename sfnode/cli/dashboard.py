"""`sfnode dashboard` and `join --dashboard` show a node in a browser, `sfnode top` in the terminal."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import click

from sfnode.cli.data_folder import awaited_folder, watched_node
from sfnode.cli.options import F, data_dir_option, option, parse_listen_address
from sfnode.cli.output import echo

# -- top -----------------------------------------------------------------------------------------------


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


MIN_TOKEN = 16
"""Minimum length of a token, in characters. A shorter token could be guessed, because the server does not
limit the number of attempts."""

DEFAULT_ADDRESS = "127.0.0.1:8380"


def parse_token(_context: Any, _parameter: Any, value: str) -> str:
    """Return the token, which may be empty. Raises click.BadParameter for a short token, or one that is
    unusable in a request header."""
    if value and (len(value) < MIN_TOKEN or not value.isascii() or not value.isprintable()):
        raise click.BadParameter(f"give at least {MIN_TOKEN} printable ASCII characters")
    return value


def dashboard_token_option(key: str = "") -> Callable[[F], F]:
    """Return --dashboard-token."""
    return option(
        "--dashboard-token",
        key=key,
        default="",
        callback=parse_token,
        metavar="TEXT",
        help="Token that visitors of the dashboard must present; rather set the variable, as everybody on a "
        "machine sees command lines.  [default: generated, and in the address that is printed]",
    )


def dashboard_control_option(key: str = "") -> Callable[[F], F]:
    """Return --dashboard-control."""
    return option(
        "--dashboard-control",
        key=key,
        is_flag=True,
        help="Let whoever opens the dashboard with its token pause, limit and end the node, too.",
    )


@asynccontextmanager
async def shown(
    data_dir: Path, address: tuple[str, int] | None, token: str, control: bool
) -> AsyncIterator[None]:
    """Serve the dashboard of the node in `data_dir` at `address` within the block. If `address` is None,
    serve nothing.

    If `control` is set, visitors can also control the node. Raises UserError PORT_IN_USE.
    """
    if address is None:
        yield
        return
    from sfnode.dashboard.server import serving

    async with serving(watched_node(data_dir, checked=True), *address, token, control=control) as url:
        echo(f"dashboard at {url}")
        yield


@click.command
@data_dir_option
@option(
    "--listen",
    default=DEFAULT_ADDRESS,
    callback=parse_listen_address,
    metavar="[HOST:]PORT",
    help="Address of the page: port 0 is any free one, and without a host only this machine can connect.",
)
@dashboard_token_option()
@dashboard_control_option()
def dashboard(data_dir: Path, listen: tuple[str, int], dashboard_token: str, dashboard_control: bool) -> None:
    """Serve the dashboard of the node that runs in this folder, until Ctrl-C.

    While no node runs there, it waits for one, if the folder has a run. `sfnode join --dashboard PORT` serves
    the same page from within the node.
    """
    awaited_folder(data_dir)
    import asyncio

    from sfnode.cli.progress import run

    async def serve() -> None:
        async with shown(data_dir, listen, dashboard_token, dashboard_control):
            await asyncio.Event().wait()

    run(serve())
