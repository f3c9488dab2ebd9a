"""`sfnode dashboard`: show a running node in a browser; and the same as a part of `sfnode join`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

from sfnode.cli.ending import interruptible
from sfnode.cli.options import data_dir_option, option, parse_place
from sfnode.store.datadir import Layout

F = TypeVar("F", bound=Callable[..., Any])

LEAST_TOKEN = 16
"""Characters of a token: whoever can reach the port can guess as often as they like."""

DEFAULT_PLACE = "127.0.0.1:8380"


def parse_token(_context: Any, _parameter: Any, value: str) -> str:
    """A token that is long enough and fits the header of a request, or none."""
    if value and (len(value) < LEAST_TOKEN or not value.isascii() or not value.isprintable()):
        raise click.BadParameter(f"give at least {LEAST_TOKEN} printable ASCII characters")
    return value


def dashboard_token_option(function: F) -> F:
    """--dashboard-token, the same everywhere."""
    return option(
        "--dashboard-token",
        default="",
        callback=parse_token,
        metavar="TEXT",
        help="What the dashboard's visitors must know.  [default: made up and printed if others than this "
        "machine can reach it, else none]",
    )(function)


@asynccontextmanager
async def shown(data_dir: Path, place: tuple[str, int] | None, token: str) -> AsyncIterator[None]:
    """Within the block the dashboard of the node in `data_dir` is served at `place`, if one is given.

    Raises UserError PORT_IN_USE.
    """
    if place is None:
        yield
        return
    from sfnode.client import Client
    from sfnode.dashboard.server import serving

    async with serving(Client(Layout(data_dir).control_socket), *place, token) as url:
        click.echo(f"dashboard at {url}")
        yield


@click.command(short_help="Show a running node in the browser.")
@data_dir_option
@option(
    "--listen",
    default=DEFAULT_PLACE,
    show_default=True,
    callback=parse_place,
    metavar="[HOST:]PORT",
    help="Where to serve the page; without a host on this machine only, port 0 is any free one.",
)
@dashboard_token_option
def dashboard(data_dir: Path, listen: tuple[str, int], dashboard_token: str) -> None:
    """Serve the dashboard of the node that runs in this folder, until Ctrl-C.

    It waits for a node that is not there or goes away. `sfnode join --dashboard PORT` serves the same page
    from within the node.
    """

    async def serve() -> None:
        async with shown(data_dir, listen, dashboard_token):
            await asyncio.Event().wait()

    asyncio.run(interruptible(serve()))
