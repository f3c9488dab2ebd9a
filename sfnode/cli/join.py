"""`sfnode join`: run a node."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from pydantic import ValidationError

from sfnode.cli.options import data_dir_option, option
from sfnode.config import NodeSettings
from sfnode.errors import Code, UserError
from sfnode.observe import set_up_logging

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


@click.command()
@option("--peers", multiple=True, metavar="MULTIADDR", help="Address of a node of the run; repeat for more.")
@option("--run", type=click.Path(path_type=Path), metavar="FILE", help="Run manifest: start a run, or check.")
@option("--run-id", default="", metavar="HEX", help="Refuse to join any other run than this.")
@option(
    "--role",
    type=click.Choice(["trainer", "relay"]),
    default="trainer",
    show_default=True,
    help="A relay holds no model and no data; it floods, serves the log and keeps the DHT alive.",
)
@data_dir_option
@option(
    "--model",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Base model, if not where the manifest says; its digest must be the manifest's.",
)
@option(
    "--data",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Train on this private data (.tsv .csv .jsonl .parquet); only scalars leave this machine.",
)
@option(
    "--shard", callback=parse_shard, metavar="K/N", help="Train on every N-th row of the data, from row K."
)
@option("--device", default="cpu", show_default=True, help="cpu, cuda, cuda:1, mps.")
@option("--threads", type=click.IntRange(0), default=0, help="CPU threads of the engine; 0: torch's choice.")
@option(
    "--queries",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="Updates evaluated in one batched forward pass.",
)
@option("--steps", type=click.IntRange(0), default=0, help="Make this many updates, then leave. 0: no limit.")
@option("--until-complete", is_flag=True, help="Leave when the run is complete and the neighbours agree.")
@option(
    "--host-maddrs",
    multiple=True,
    default=["/ip4/0.0.0.0/tcp/0"],
    show_default=True,
    metavar="MULTIADDR",
    help="Where to listen.",
)
@option(
    "--announce-maddrs",
    multiple=True,
    metavar="MULTIADDR",
    help="Tell others these addresses instead (a forwarded port, a public name).",
)
@option(
    "--relay/--no-relay", default=True, show_default=True, help="Reach others through relays, and be one."
)
@option("--auto-relay", is_flag=True, help="Be reached through a relay (behind NAT or a firewall).")
@option("--trusted-relays", multiple=True, metavar="MULTIADDR", help="Relays for --auto-relay.")
@option("--client-mode", is_flag=True, help="Listen nowhere; open links only.")
@option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning"]),
    default="info",
    show_default=True,
    help="How much the node tells on standard error.",
)
def join(log_level: str, **fields: Any) -> None:
    """Run a node: start a run (--run FILE) or join one (--peers ADDRESS).

    With --peers nothing else is needed: the manifest comes from the peer, is checked, the base model is
    fetched, the node catches up and trains. Started again in the same folder it goes on where it stopped.
    """
    set_up_logging(log_level)
    try:
        settings = NodeSettings(**fields)
    except ValidationError as error:
        raise UserError(Code.BAD_OPTION, str(error), "See sfnode join --help.") from error
    _run(settings)


def _run(settings: NodeSettings) -> None:
    import uvloop

    from sfnode.runtime.node import run

    uvloop.run(run(settings, _hivemind, _announce))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # a forward pass that was abandoned must not hold up the exit; everything is on disk


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
    sys.stdout.flush()
