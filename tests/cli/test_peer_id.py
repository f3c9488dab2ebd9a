"""`sfnode peer-id` tells the name that the node will have in the network."""

from __future__ import annotations

from pathlib import Path

from hivemind.p2p import PeerID

from sfnode.store.data_folder import Layout
from tests.cli.helpers import Run


def test_it_is_what_libp2p_makes_of_the_key_and_stays_the_same(tmp_path: Path, sfnode: Run) -> None:
    folder = tmp_path / "node"
    first = sfnode("peer-id", "--data-dir", folder).done()
    assert first.out.strip() == str(PeerID.from_identity(Layout(folder).libp2p_identity.read_bytes()))
    assert sfnode("peer-id", "--data-dir", folder).out == first.out


def test_a_damaged_key_is_an_error_that_says_which_file(tmp_path: Path, sfnode: Run) -> None:
    key = Layout(tmp_path).libp2p_identity
    key.write_bytes(b"not a key")
    sfnode("peer-id", "--data-dir", tmp_path).failed("SF043", str(key))
