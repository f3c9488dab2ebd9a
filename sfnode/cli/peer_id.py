"""`sfnode peer-id`: a node's name in the network, before it runs."""

from __future__ import annotations

from pathlib import Path

import click

from sfnode.cli.options import data_dir_option
from sfnode.cli.output import echo


@click.command("peer-id")
@data_dir_option
def peer_id_command(data_dir: Path) -> None:
    """Print the libp2p peer id of the node of this folder; make the folder and its key if there are none.

    With it a node's address is known before the node runs, to anybody who knows its host and port:
    /dns4/HOST/tcp/PORT/p2p/PEER-ID.
    """
    from sfnode.store.data_folder import Layout, open_data_dir
    from sfnode.transport.libp2p.keys import ensure_key, peer_id

    key = Layout(data_dir).libp2p_identity
    if key.exists():
        ensure_key(key)
    else:
        with open_data_dir(data_dir):
            ensure_key(key)
    echo(peer_id(key))
