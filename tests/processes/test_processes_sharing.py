"""A volunteer with a link and nothing else: the model comes from real peers, over a death in the middle."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from process_helpers import LOOPBACK, Node, here, nodes, printed_json, sfnode, until

from sfnode.engine import folder, listing
from sfprotocol import PROTOCOL_VERSION, invitation

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

Make = Callable[..., Node]

PADDING = 9_000_000
"""Bytes that make the smallest model take a few seconds at RATE."""

RATE = "2M"
NOBODY = "/ip4/127.0.0.1/tcp/1/p2p/QmQKVHTFF99bdPUKVce3DbpMSBgZjkvyCttw9zQxb63tM7"


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    with nodes(tmp_path) as made:
        yield made


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A base model that is larger than the smallest one, by a file that its tokenizer does not read."""
    found = Path(shutil.copytree(folder.EMBEDDED / "tiny", tmp_path / "model"))
    (found / "vocab.bpe").write_bytes(os.urandom(PADDING))
    return found


def giving(make: Make, name: str, model: Path, *arguments: object) -> Node:
    """A relay that gives this folder as the run's base model, whatever is in it."""
    return make(name, *LOOPBACK, "--role", "relay", "--share-model", "--model", model, *arguments).start()


def lying_copy(home: Path, model: Path) -> Path:
    """A copy of the model whose longest file is of the right length and nothing else."""
    copy = Path(shutil.copytree(model, home / "lies"))
    (copy / "vocab.bpe").write_bytes(os.urandom(PADDING))
    (home / "liar").mkdir(mode=0o700)
    (home / "liar" / "model.listing").write_bytes(listing.list_model(model))
    return copy


def test_a_link_is_enough_although_the_model_is_nowhere_a_peer_lies_and_the_machine_dies(
    make: Make, model: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run.toml"
    here("init", run, "--model", model, "--task", "reviews", "--train", "builtin:reviews:train")
    kept = model.rename(tmp_path / "kept")
    first = giving(make, "first", kept, "--run", run)
    second = giving(make, "second", kept, "--peers", first.address())
    liar = giving(make, "liar", lying_copy(tmp_path, kept), "--peers", first.address())

    checked = printed_json(sfnode(tmp_path, "upgrade-check", first.link(), "--json"))
    assert (checked["run_protocol"], checked["can_join"]) == (PROTOCOL_VERSION, True)
    assert [peer["protocol"] for peer in checked["peers"]] == [PROTOCOL_VERSION]

    link = printed_json(sfnode(tmp_path, "invite", "--data-dir", second.folder, "--json"))["link"]
    assert invitation.read(link).run_id == invitation.read(first.link()).run_id
    peers = ("--peers", first.address(), "--peers", liar.address())
    newcomer = make("newcomer", link, *peers, *LOOPBACK, "--limit-download-rate", RATE).start()
    partial = newcomer.folder / "model.partial"
    until("a part of the model", lambda: partial.is_dir() and len(listing_parts(partial, kept)) >= 3)
    newcomer.end(signal.SIGKILL)
    had = len(listing_parts(partial, kept))
    assert not (newcomer.folder / "model").exists()

    newcomer.start()
    newcomer.until("it trains", lambda status: status.own_updates > 0)
    assert folder.digest(newcomer.folder / "model") == folder.digest(kept)
    assert (newcomer.folder / "model" / "vocab.bpe").read_bytes() == (kept / "vocab.bpe").read_bytes()
    asked_for = [line for line in newcomer.output().splitlines() if "to be fetched from peers" in line]
    assert len(asked_for) == 2
    assert megabytes(asked_for[1]) <= megabytes(asked_for[0]) - had + 1
    assert "sends something else than it should" in newcomer.output()
    # what a command needs of the model is found in the folder, too
    ended = sfnode(tmp_path, "eval", "--data-dir", newcomer.folder, "--limit", 8, "--json")
    assert json.loads(ended.stdout)["before"]["count"] == 8


def listing_parts(partial: Path, model: Path) -> list[int]:
    """Pieces of the longest file that have arrived."""
    file, size = partial / "vocab.bpe", 1 << 20
    if not file.is_file():
        return []
    there, wanted = file.read_bytes(), (model / "vocab.bpe").read_bytes()
    cuts = range(0, len(wanted), size)
    return [cut for cut in cuts if there[cut : cut + size] == wanted[cut : cut + size]]


def megabytes(line: str) -> float:
    """How much is to be fetched, in a line like `base model: 9.7 MB of 9.7 MB to be fetched from peers`."""
    return float(line.partition("base model: ")[2].split()[0])


def test_a_run_that_cannot_be_reached_is_said_to_be_unknown(tmp_path: Path) -> None:
    ended = sfnode(tmp_path, "upgrade-check", "--peers", NOBODY)
    assert ended.returncode == 1
    assert "sfnode: SF050: no peer answers" in ended.stderr
    assert "this sfnode  protocol 1" in ended.stdout
