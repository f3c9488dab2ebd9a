"""A run that continues as another run: a member who agreed to follow joins the new run without its owner."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sfnode.control.client import Client
from sfnode.errors import UserError
from sfnode.manifest import Manifest
from sfnode.preparing.manifest import build
from sfnode.schema.status import Status
from sfnode.store.data_folder import Layout
from sfnode.store.run_keys import RunKeys
from tests.processes.helpers import LOOPBACK, here, nodes, until

SLOW = ("--limit", "cpu=10")
"""CPU limit of the nodes, which leaves room for nodes that start."""

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]


def status_in(folder: Path) -> Status | None:
    try:
        return asyncio.run(Client(Layout(folder).control_socket).status())
    except UserError:
        return None


def test_a_member_follows_a_run_to_its_fork(tmp_path: Path) -> None:
    """Other layers are trained there, by the same key, with a base model that comes from the organiser."""
    numbers = {"rank": 4, "epoch_updates": 20, "update_budget": 4000, "batch_size": 2, "validation_limit": 0}
    keys = RunKeys.generate()
    old = build(numbers | keys.options())
    organises = "--organise", "--set", "organise.alone=yes", "--keys-dir", tmp_path / "keys"
    keys.write(old.run_id, tmp_path / "keys")
    (tmp_path / "run.toml").write_text(old.to_toml())
    with nodes(tmp_path) as make:
        a = make("a", "--run", "run.toml", *organises, *LOOPBACK, *SLOW).start()
        b = make("b", a.link(), "--follow", *LOOPBACK, *SLOW).start()
        own = b.until("it has a key", lambda status: status.origin).origin
        a.until_organised("an epoch is sealed", lambda said: said.sealed and said.members > 1)

        folders = ("--out", tmp_path / "new", "--data-dir", a.folder, "--keys-dir", tmp_path / "keys")
        keys = ("model.target_modules=v_proj", "training.basis=random", "init.measure=no")
        here("history", "fork", 0, *folders, *(word for key in keys for word in ("--set", key)))
        new = Manifest.from_toml(tmp_path / "new/run.toml")
        kept = (tmp_path / "new/model").rename(tmp_path / "kept")  # where other nodes do not find it
        n = make("n", "--run", "new/run.toml", "--model", kept, *organises, *LOOPBACK, *SLOW).start()
        assert "signed" in here("organise", "next", n.link(), "--data-dir", a.folder)

        there = tmp_path / f"b-{new.run_id.hex()[:8]}"
        found = until(
            "it trains there", lambda: status if (status := status_in(there)) and status.own_updates else None
        )
        assert (found.run_id, found.origin) == (new.run_id.hex(), own)
        assert f"going on in {there}" in b.output()
        assert (there / "model/model.safetensors").is_file()
        assert a.until("it stays", bool).run_id == old.run_id.hex()
        assert b.end() == 0
