"""`sfnode peer-id`: a node's name in the network, before it runs."""

from __future__ import annotations

from pathlib import Path

import click

from sfnode.cli.options import data_dir_option
from sfnode.store.datadir import Layout, open_data_dir
from sfnode.transport.peerkey import ensure_key, peer_id


@click.command("peer-id", short_help="Print a folder's peer id, also before its node runs.")
@data_dir_option
def peer_id_command(data_dir: Path) -> None:
    """Print the libp2p peer id of the node of this folder; make the folder and its key if there are none.

    With it a node's address is known before it runs, to whoever knows its host and port:
    /dns4/HOST/tcp/PORT/p2p/PEER-ID.
    """
    key = Layout(data_dir).libp2p_identity
    if key.exists():
        ensure_key(key)
    else:
        with open_data_dir(data_dir):
            ensure_key(key)
    click.echo(peer_id(key))
