"""A volunteer with only an invitation downloads the model from real peers. Its node is killed meanwhile."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sfnode.models import model_files
from sfprotocol import invitation
from tests.processes.helpers import LOOPBACK, Node, here, nodes, printed_json, sfnode, until

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

Make = Callable[..., Node]

PADDING = 9_000_000
"""Bytes added to the smallest model, so that its download takes a few seconds at RATE."""

RATE = "2M"
NOBODY = "/ip4/127.0.0.1/tcp/1/p2p/QmQKVHTFF99bdPUKVce3DbpMSBgZjkvyCttw9zQxb63tM7"


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    with nodes(tmp_path) as made:
        yield made


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The smallest base model, with an added large file that its tokenizer does not read."""
    found = Path(shutil.copytree(model_files.EMBEDDED / "tiny", tmp_path / "model"))
    (found / "vocab.bpe").write_bytes(os.urandom(PADDING))
    return found


def serving(make: Make, name: str, model: Path, *arguments: object) -> Node:
    """Return a relay that serves the folder `model` as the run's base model, even if it is another model."""
    return make(
        name, *LOOPBACK, "--role", "relay", "--set", "data.share_model=yes", "--model", model, *arguments
    ).start()


def lying_copy(home: Path, model: Path) -> Path:
    """Return a copy of the model whose longest file has the right length and wrong content."""
    copy = Path(shutil.copytree(model, home / "lies"))
    (copy / "vocab.bpe").write_bytes(os.urandom(PADDING))
    (home / "liar").mkdir(mode=0o700)
    (home / "liar" / "model.listing").write_bytes(model_files.list_model(model))
    return copy


def test_an_invitation_is_enough_although_a_peer_lies_and_the_node_is_killed(
    make: Make, model: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run.toml"
    here("init", "builtin:reviews:train", "--out", run, "--open", "--model", model, "--task", "reviews")
    kept = model.rename(tmp_path / "kept")
    first = serving(make, "first", kept, "--run", run)
    second = serving(make, "second", kept, "--peers", first.address())
    liar = serving(make, "liar", lying_copy(tmp_path, kept), "--peers", first.address())

    assert second.link()
    link = printed_json(sfnode(tmp_path, "invite", "--data-dir", second.folder, "--json"))["link"]
    assert invitation.read(link).run_id == invitation.read(first.link()).run_id
    peers = ("--peers", first.address(), "--peers", liar.address())
    newcomer = make("newcomer", link, *peers, *LOOPBACK, "--limit", f"download_rate={RATE}").start()
    partial = newcomer.folder / "model.partial"
    until("a part of the model", lambda: partial.is_dir() and len(listing_parts(partial, kept)) >= 3)
    newcomer.end(signal.SIGKILL)
    had = len(listing_parts(partial, kept))
    assert not (newcomer.folder / "model").exists()

    newcomer.start()
    newcomer.until("it trains", lambda status: status.own_updates > 0)
    assert model_files.digest(newcomer.folder / "model") == model_files.digest(kept)
    assert (newcomer.folder / "model" / "vocab.bpe").read_bytes() == (kept / "vocab.bpe").read_bytes()
    asked_for = [
        line for line in newcomer.output().splitlines() if "base model: " in line and "from peers" in line
    ]
    assert len(asked_for) == 2
    assert megabytes(asked_for[1]) <= megabytes(asked_for[0]) - had + 1
    assert "sends something else than it should" in newcomer.output()
    # commands find the model in the folder, too
    ended = sfnode(tmp_path, "eval", "--data-dir", newcomer.folder, "--test-limit", 8, "--json")
    assert json.loads(ended.stdout)["before"]["count"] == 8


def listing_parts(partial: Path, model: Path) -> list[int]:
    """Return the offsets of the pieces of the model's longest file that have arrived."""
    file, size = partial / "vocab.bpe", 1 << 20
    if not file.is_file():
        return []
    there, wanted = file.read_bytes(), (model / "vocab.bpe").read_bytes()
    cuts = range(0, len(wanted), size)
    return [cut for cut in cuts if there[cut : cut + size] == wanted[cut : cut + size]]


def megabytes(line: str) -> float:
    """Return the first number of a line like `base model: 9.7 MB of 9.7 MB to download from peers`."""
    return float(line.partition("base model: ")[2].split()[0])
