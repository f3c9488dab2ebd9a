"""`import sfnode` offers its names, and loads nothing before one of them is used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import sfnode

NAMES = {"Client", "LocalSwarm", "Manifest", "Node", "Settings", "SyncClient", "Trainer", "UpdateLog"}

LARGE = ("torch", "numpy", "pydantic", "aiohttp", "transformers", "hivemind", "click", "sqlite3", "asyncio")


def loaded_after(code: str) -> set[str]:
    """Return the modules that a fresh Python loads for this code, beyond its own."""
    script = f"import sys; before = set(sys.modules)\n{code}\nprint(*sorted(set(sys.modules) - before))"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(ended.stdout.split())


def test_importing_the_package_loads_no_large_library_and_no_module_of_its_own() -> None:
    loaded = loaded_after("import sfnode")
    assert not loaded & set(LARGE)
    assert {name for name in loaded if name.startswith("sfnode")} == {"sfnode"}
    assert not any(name.startswith("sfprotocol") for name in loaded)


@pytest.mark.parametrize("name", sorted(NAMES - {"Trainer"}))
def test_no_name_but_that_of_the_trainer_loads_torch(name: str) -> None:
    loaded = loaded_after(f"import sfnode; sfnode.{name}")
    assert not loaded & {"torch", "transformers", "hivemind", "uvloop"}
    assert not any(module.startswith("sfnode.cli") for module in loaded)


def test_the_names_are_these_and_no_others() -> None:
    assert set(sfnode.__all__) == NAMES
    assert set(dir(sfnode)) >= NAMES
    for name in NAMES:
        assert getattr(sfnode, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'Banana'"):
        sfnode.Banana  # noqa: B018


def test_making_a_node_or_a_swarm_does_nothing_that_can_be_seen() -> None:
    """Importing opens no file, starts no thread, loads no engine or network, and sets no signal or log
    handler."""
    script = """
import logging, os, signal, tempfile, threading
from pathlib import Path
from sfnode import LocalSwarm, Manifest, Node, Settings
from sfnode.manifest.sections import Data
from sfnode.manifest.sections import Model
from sfnode.manifest.task import Task
os.chdir(tempfile.mkdtemp())
handlers = [signal.getsignal(number) for number in signal.valid_signals()]
model = Model(source="none", digest="0" * 64, targets=("a:8x4",))
manifest = Manifest(model=model, task=Task(kind="text", template="{text}"), data=Data())
Node(Settings(data_dir=Path("node")))
LocalSwarm(manifest, folder=Path("swarm"))
assert os.listdir() == []
assert threading.active_count() == 1
assert handlers == [signal.getsignal(number) for number in signal.valid_signals()]
assert not logging.getLogger().handlers and not logging.getLogger("sfnode").handlers
"""
    assert not loaded_after(script) & {"torch", "transformers", "hivemind", "uvloop"}
