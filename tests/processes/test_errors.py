"""Mistakes of a user who starts a node: one message with its number, status 1, never a traceback."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from signal import SIGTERM
from typing import NamedTuple

import pytest

from sfnode.manifest import Manifest
from sfnode.manifest.sections import Data
from sfnode.models.model_files import EMBEDDED, SINGLE, digest
from sfnode.preparing.manifest import build
from tests.models import hostile
from tests.processes import helpers

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

NOBODY = "/ip4/127.0.0.1/tcp/1/p2p/QmQKVHTFF99bdPUKVce3DbpMSBgZjkvyCttw9zQxb63tM7"


class World(NamedTuple):
    """A run with one relay, and files with which commands fail."""

    home: Path
    relay: helpers.Node
    manifest: Manifest


class Mistake(NamedTuple):
    """A command line, and the error with which the command ends."""

    arguments: Callable[[World], tuple[object, ...]]
    """Arguments after `join --data-dir FOLDER --host-maddrs LOOPBACK`. They may include both options
    again."""
    number: int
    says: str


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    home = tmp_path_factory.mktemp("errors")
    manifest = build({"update_budget": 10_000})
    (home / "run.toml").write_text(manifest.to_toml())
    (home / "other.toml").write_text(build({"update_budget": 20_000}).to_toml())
    (home / "bad.tsv").write_text("text\tlabel\nfine soup\t1\nrude staff\t7\n")
    (home / "rows.jsonl").write_text(
        "".join(json.dumps({"text": hostile.SENTENCE, "label": label}) + "\n" for label in "0101")
    )
    for name, make in HOSTILE.items():
        (home / f"{name}.toml").write_text(run_of(manifest, make(home / name), home).to_toml())
    spoil_one_weight(Path(shutil.copytree(EMBEDDED / "tiny", home / "model")))
    with helpers.nodes(home) as make:
        relay = make("relay", "--run", "run.toml", "--role", "relay", *helpers.LOOPBACK).start()
        relay.address()
        yield World(home, relay, manifest)


HOSTILE: dict[str, Callable[[Path], Path]] = {
    "panicking": lambda folder: hostile.tokenizer(
        folder, normalizer=hostile.replace("b", Regex=hostile.ENDLESS)
    ),
    "layered": lambda folder: hostile.configured(folder, num_hidden_layers=300_000),
}


def run_of(manifest: Manifest, folder: Path, home: Path) -> Manifest:
    """Return a run of the model in `folder`, with rows that fit this model."""
    model = {
        "source": str(folder),
        "digest": digest(folder),
        "targets": ("model.decoder.layers.0.fc1:40x16",),
    }
    data = Data(train=str(home / "rows.jsonl"))
    return manifest.model_copy(
        update={"model": manifest.model.model_copy(update=model), "data": data, "admission": "open"}
    )


def spoil_one_weight(folder: Path) -> None:
    content = bytearray((folder / SINGLE).read_bytes())
    content[-1] ^= 1
    (folder / SINGLE).write_bytes(content)


def taken_port(world: World) -> str:
    """Return the address on which the relay listens."""
    return world.relay.address().partition("/p2p/")[0]


MISTAKES = {
    "no run": Mistake(lambda w: (), 10, "there is no run to join"),
    "another run by manifest": Mistake(
        lambda w: ("--peers", w.relay.address(), "--run", "other.toml"), 13, "this is run"
    ),
    "another base model": Mistake(
        lambda w: ("--peers", w.relay.address(), "--model", "model"), 21, "the run started from"
    ),
    "a tokenizer that panics": Mistake(
        lambda w: ("--run", "panicking.toml"), 23, "the model's tokenizer cannot be used"
    ),
    "layers without end": Mistake(lambda w: ("--run", "layered.toml"), 23, "num_hidden_layers to 300,000"),
    "a bad row": Mistake(
        lambda w: ("--peers", w.relay.address(), "--data", "bad.tsv"), 31, "bad.tsv, line 3"
    ),
    "a folder in use": Mistake(lambda w: ("--data-dir", w.relay.folder), 40, "is in use by process"),
    "nobody there": Mistake(lambda w: ("--peers", NOBODY), 50, NOBODY),
    "a port in use": Mistake(lambda w: ("--run", "run.toml", "--host-maddrs", taken_port(w)), 51, "/tcp/"),
}


@pytest.fixture(scope="module")
def ended(world: World) -> dict[str, subprocess.CompletedProcess[str]]:
    """The ended processes of all mistakes, which ran at the same time."""

    def made(name: str) -> helpers.Command:
        usual = ("--data-dir", world.home / name.replace(" ", "-"))
        given = MISTAKES[name].arguments(world)
        listen = () if "--host-maddrs" in given else helpers.LOOPBACK
        return helpers.Command(world.home, "join", *usual, *listen, *given)

    running = {name: made(name) for name in MISTAKES}
    return {name: command.ended() for name, command in running.items()}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_ends_in_one_message_with_its_number(
    name: str, ended: dict[str, subprocess.CompletedProcess[str]]
) -> None:
    mistake, process = MISTAKES[name], ended[name]
    assert process.returncode == 1, process.stderr
    said = process.stderr.partition("sfnode: ")[2]  # the log precedes it
    error, *fix = said.splitlines()
    assert error.startswith(f"SF{mistake.number:03d}: ")
    assert mistake.says in error
    assert fix
    assert all(line.startswith("  ") for line in fix)
    assert "Traceback" not in process.stderr


def test_a_node_that_lacks_what_it_takes_ends_before_it_joins_and_sends_nothing_to_the_run(
    world: World, ended: dict[str, subprocess.CompletedProcess[str]]
) -> None:
    for name in ("a bad row", "another base model"):
        assert "joined run" not in ended[name].stdout
    status = world.relay.until("the failed nodes have gone", lambda status: not status.links)
    assert (status.known, status.feed_count) == (0, 0)


def test_sigterm_ends_a_command_as_it_ends_any_program(world: World) -> None:
    command = [*helpers.SFNODE, "join", "-"]  # waits for a link
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=helpers.environment(world.home)) as process:
        process.terminate()
        assert process.wait(helpers.PATIENCE) == -SIGTERM


def test_a_node_stopped_while_it_starts_leaves_nothing_behind(world: World) -> None:
    scratch = world.home / "tmp"
    scratch.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = NOBODY.replace("/tcp/1/", f"/tcp/{mute.getsockname()[1]}/")
        node = helpers.Node(world.home, "hasty", "--peers", address, *helpers.LOOPBACK, TMPDIR=str(scratch))
        with closing(node.start()):
            p2pd = helpers.until("it has a network daemon", lambda: helpers.p2pd_of(node))
            assert node.end(SIGTERM) == 130
    assert node.output().endswith("\ninterrupted\n")
    assert "Traceback" not in node.output()
    assert not p2pd.is_running()
    assert not any(scratch.iterdir())
