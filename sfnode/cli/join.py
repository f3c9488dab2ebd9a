"""`sfnode join`: run a node."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sfnode.cli.ending import DONE, interruptible, leave, show
from sfnode.cli.options import data_dir_option, device_option, dtype_option, model_option, option
from sfnode.config import NodeSettings
from sfnode.errors import UserError
from sfnode.observe import set_up_logging
from sfnode.transport.base import peer_of

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


@click.command(short_help="Run a node: join a run, or start one.")
@option(
    "--peers",
    multiple=True,
    metavar="MULTIADDR",
    help="Address of a node of the run, as that node prints it; repeat for more.",
)
@option(
    "--run",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Run manifest: start this run; together with --peers, refuse to join any other.",
)
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
@option(
    "--threads",
    type=click.IntRange(0),
    default=0,
    metavar="COUNT",
    help="CPU threads of the engine.  [default: as many as there are cores]",
)
@option(
    "--queries",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    metavar="COUNT",
    help="Updates evaluated in one batched forward pass; more fill a GPU better.",
)
@option(
    "--steps",
    type=click.IntRange(0),
    default=0,
    metavar="COUNT",
    help="Make this many updates, then leave.  [default: no limit]",
)
@option("--until-complete", is_flag=True, help="Leave when the run is complete and the neighbours agree.")
@option(
    "--host-maddrs",
    multiple=True,
    default=["/ip4/0.0.0.0/tcp/0"],
    show_default=True,
    metavar="MULTIADDR",
    help="Where to listen; port 0 is any free one. Repeat for more.",
)
@option(
    "--announce-maddrs",
    multiple=True,
    metavar="MULTIADDR",
    help="Tell others these addresses instead (a forwarded port, a public name). Repeat for more.",
)
@option(
    "--relay/--no-relay",
    default=True,
    show_default=True,
    help="Whether to reach others through relays, and to be one for them.",
)
@option("--auto-relay", is_flag=True, help="Be reached through a relay (behind NAT or a firewall).")
@option(
    "--trusted-relays",
    multiple=True,
    metavar="MULTIADDR",
    help="Relays for --auto-relay.  [default: the peers]",
)
@option("--client-mode", is_flag=True, help="Listen nowhere; only open links to others.")
@option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning"]),
    default="info",
    show_default=True,
    help="How much the node tells on standard error.",
)
def join(log_level: str, **fields: Any) -> None:
    """Run a node: join a run (--peers ADDRESS) or start one (--run FILE).

    With --peers nothing else is needed: the manifest comes from the peer and is checked, the base model is
    fetched, the node catches up and trains. Ctrl-C or SIGTERM ends it within two seconds and loses nothing;
    started again in the same folder it goes on where it stopped.
    """
    set_up_logging(log_level)
    settings = NodeSettings(**fields)
    for address in settings.peers:
        peer_of(address)  # before anything slow is loaded
    leave(_run(settings))


def _run(settings: NodeSettings) -> int:
    """Run the node to its end; returns the exit status."""
    import uvloop

    from sfnode.runtime.node import run

    try:
        uvloop.run(interruptible(run(settings, _hivemind, _announce)))
    except UserError as error:
        return show(error)
    return DONE


def _hivemind(settings: NodeSettings, data_dir: DataDir, bootstrap: tuple[str, ...]) -> Transport:
    from sfnode.transport.hivemind import HivemindTransport
    from sfnode.transport.settings import HivemindSettings

    return HivemindTransport(
        HivemindSettings(
            identity_path=data_dir.libp2p_identity,
            host_maddrs=settings.host_maddrs,
            announce_maddrs=settings.announce_maddrs,
            bootstrap=bootstrap,
            use_relay=settings.relay,
            use_auto_relay=settings.auto_relay,
            trusted_relays=settings.trusted_relays or settings.peers,
            client_mode=settings.client_mode,
        )
    )


def _announce(node: RunningNode) -> None:
    """Tell the user that it works, and how the next volunteer joins."""
    manifest = node.manifest
    click.echo(f"joined run {manifest.name} ({manifest.run_id.hex()[:16]}) as {node.settings.role}")
    addresses = node.transport.addresses()
    if addresses:
        click.echo(f"others join with:\n  sfnode join --peers {addresses[0]}")
