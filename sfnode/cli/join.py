"""`sfnode join`: run a node."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sfnode.cli.dashboard import dashboard_token_option, shown
from sfnode.cli.ending import DONE, FAILED, ended_at_once, interruptible, leave, show
from sfnode.cli.guest import limit_options, take_limits
from sfnode.cli.options import (
    data_dir_option,
    device_option,
    dtype_option,
    host_maddrs_option,
    link_argument,
    model_option,
    option,
    parse_place,
    peers_option,
    queries_option,
    run_option,
    threads_option,
)
from sfnode.cli.progress import follow
from sfnode.config import NodeSettings
from sfnode.errors import UserError
from sfnode.observe import FORMATS, log_error, set_up_logging
from sfnode.runtime.invitations import check_same_run, compose, read_link
from sfnode.transport.base import peer_of
from sfprotocol import invitation, names

if TYPE_CHECKING:
    from sfnode.runtime.node import RunningNode
    from sfnode.store.datadir import DataDir
    from sfnode.transport.base import Transport


def parse_shard(_context: Any, _parameter: Any, value: str | None) -> tuple[int, int] | None:
    """`K/N`, K from 1 to N, as (K - 1, N)."""
    if value is None:
        return None
    index, slash, count = value.partition("/")
    if not (slash and index.isdecimal() and count.isdecimal() and 1 <= int(index) <= int(count)):
        raise click.BadParameter("give it as K/N with K from 1 to N, for example 2/4")
    return int(index) - 1, int(count)


def parse_name(_context: Any, _parameter: Any, value: str) -> str:
    """A name or a team as it may be told to others (SPEC K2)."""
    if fault := names.fault(value):
        raise click.BadParameter(f"{fault}; take up to {names.MAX_NAME} bytes of visible characters")
    return value


@click.command(short_help="Run a node: join a run, or start one.")
@link_argument
@peers_option("Address of a node of the run, as that node prints it; repeat for more.")
@run_option("Run manifest: start this run; together with --peers, refuse to join any other.")
@option("--run-id", default="", metavar="HEX", help="Refuse to join a run whose id does not begin so.")
@option(
    "--role",
    type=click.Choice(["trainer", "relay"]),
    default="trainer",
    show_default=True,
    help="A relay holds no model and no data; it floods, serves the log and keeps the DHT alive.",
)
@data_dir_option
@model_option
@option(
    "--share-model/--no-share-model",
    default=None,
    help="Whether to give the base model to nodes that cannot get it elsewhere. A relay that is to give it "
    "fetches it first.  [default: trainers do, relays do not]",
)
@option(
    "--data",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Train on this private data (.tsv .csv .jsonl .parquet); only scalars leave this machine.",
)
@option(
    "--shard",
    callback=parse_shard,
    metavar="K/N",
    help="Train on part K of N of the rows: every N-th row, from row K on.",
)
@device_option
@dtype_option
@threads_option(
    "CPU threads of the engine.  [default: as many as there are cores that no other program keeps busy]"
)
@queries_option("Updates evaluated in one batched forward pass; more fill a GPU better.")
@option(
    "--steps",
    type=click.IntRange(0),
    default=0,
    metavar="COUNT",
    help="Make this many updates, then leave.  [default: no limit]",
)
@option(
    "--display-name",
    default="",
    callback=parse_name,
    metavar="TEXT",
    help="What others call you in tables of contributions: signed, public, of your choice.  [default: your "
    "key's first digits]",
)
@option(
    "--team",
    default="",
    callback=parse_name,
    metavar="TEXT",
    help="The team that your contributions count for, too; anybody may name any.",
)
@option("--until-complete", is_flag=True, help="Leave when the run is complete and the neighbours agree.")
@host_maddrs_option("Where to listen; port 0 is any free one. Repeat for more.")
@option(
    "--announce-maddrs",
    multiple=True,
    metavar="MULTIADDR",
    help="Tell others these addresses instead (a forwarded port, a public name). Repeat for more.",
)
@option("--auto-relay", is_flag=True, help="Be reached through a relay (behind NAT or a firewall).")
@option(
    "--trusted-relays",
    multiple=True,
    metavar="MULTIADDR",
    help="Relays for --auto-relay.  [default: the peers]",
)
@limit_options
@option("--client-mode", is_flag=True, help="Listen nowhere; only open links to others.")
@option(
    "--metrics",
    callback=parse_place,
    metavar="[HOST:]PORT",
    help="Serve metrics for Prometheus at http://HOST:PORT/metrics.  [default: on the control socket only; "
    "without a host, on this machine only]",
)
@option(
    "--dashboard",
    callback=parse_place,
    metavar="[HOST:]PORT",
    help="Serve the web dashboard at this address (docs/views.md).  [default: none; without a host, on this "
    "machine only]",
)
@dashboard_token_option
@option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning"]),
    default="info",
    show_default=True,
    help="How much the node tells on standard error.",
)
@option(
    "--log-format",
    type=click.Choice(FORMATS),
    default=FORMATS[0],
    show_default=True,
    help="json: one object a line, for programs (docs/metrics.md).",
)
def join(
    link: str | None,
    log_level: str,
    log_format: str,
    dashboard: tuple[str, int] | None,
    dashboard_token: str,
    **fields: Any,
) -> None:
    """Run a node: join a run by an invitation (LINK) or by --peers ADDRESS, or start one (--run FILE).

    A link is all that is needed: the manifest comes from a peer and is checked, the base model is fetched,
    the node catches up and trains. Ctrl-C or SIGTERM ends it within two seconds and loses nothing; started
    again in the same folder it goes on where it stopped.
    """
    fields = _following(link, fields) if link else fields
    set_up_logging(log_level, log_format)
    fields["limits"] = take_limits(fields)
    settings = NodeSettings(**fields)
    for address in settings.peers:
        peer_of(address)  # before anything slow is loaded
    tell = show if log_format == FORMATS[0] else log_error
    leave(_run(settings, tell, shown(settings.data_dir, dashboard, dashboard_token)))


def _following(link: str, fields: dict[str, Any]) -> dict[str, Any]:
    """The options of a node that joins by a link: whom to ask, and which run it must be (SPEC N4)."""
    said = read_link(link)
    check_same_run(said, fields["run_id"])
    return fields | {"peers": (*said.addresses, *fields["peers"]), "run_id": said.run_id.hex()}


def _run(
    settings: NodeSettings, tell: Callable[[UserError], object], beside: AbstractAsyncContextManager[None]
) -> int:
    """Run the node to its end, in the block of `beside`; returns the exit status. `tell` is given the error
    that ends it."""
    import uvloop

    from sfnode.runtime.node import run

    async def live() -> None:
        async with beside:
            await run(settings, _hivemind, _announce)

    try:
        uvloop.run(interruptible(live()))
    except UserError as error:
        tell(error)
        return FAILED
    return DONE


def _hivemind(settings: NodeSettings, data_dir: DataDir, bootstrap: tuple[str, ...]) -> Transport:
    with ended_at_once():
        from sfnode.transport.hivemind import HivemindTransport
    from sfnode.transport.settings import HivemindSettings

    return HivemindTransport(
        HivemindSettings(
            identity_path=data_dir.libp2p_identity,
            host_maddrs=settings.host_maddrs,
            announce_maddrs=settings.announce_maddrs,
            bootstrap=bootstrap,
            use_auto_relay=settings.auto_relay,
            trusted_relays=settings.trusted_relays or settings.peers,
            client_mode=settings.client_mode,
        )
    )


def _announce(node: RunningNode) -> None:
    """Tell the user that it works, how the next volunteer joins, and how far it has caught up."""
    manifest = node.manifest
    follow(node.status)
    click.echo(f"joined run {manifest.name} ({manifest.run_id.hex()[:16]}) as {node.settings.role}")
    addresses = node.transport.addresses()
    if addresses:
        link = invitation.write(compose(manifest.run_id, addresses, node.settings.peers))
        click.echo(f"others join with (`sfnode invite` shows it again):\n  sfnode join {link}")
