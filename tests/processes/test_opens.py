"""Tests that a node opens none of a volunteer's files because a run names them: each `open` of a node is
traced."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from sfnode.errors import Code
from sfnode.manifest import Manifest
from sfnode.manifest.sections import Data
from sfnode.models import model_files
from sfnode.preparing.manifest import build
from tests.processes.forked import Forked, sfnode
from tests.processes.helpers import LOOPBACK, PATIENCE, Node, environment, nodes

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

ROWS = "text\tlabel\nmy diary\t1\n"
FOLDERS = ("text", "nobody/set", "models/mine", ".ssh")
"""Folders of a volunteer whose names a hostile manifest may contain."""

TINY = model_files.EMBEDDED / "tiny"

SYSTEM = ("/proc", "/sys", "/dev", "/etc", "/usr", "/lib", sys.prefix, sys.base_prefix)
CALLS = frozenset({"open", "os.listdir", "os.scandir"})


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with private files."""
    for folder in FOLDERS:
        (tmp_path / "home" / folder).mkdir(parents=True)
        for name in ("train.tsv", "test.jsonl", "config.json", "secret.parquet"):
            (tmp_path / "home" / folder / name).write_text(ROWS)
    for name in ("train.tsv", "secret.tsv"):
        (tmp_path / "home" / name).write_text(ROWS)
    return tmp_path / "home"


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Node]]:
    (tmp_path / "others").mkdir()
    with nodes(tmp_path / "others") as made:
        yield made


def of_a_user(home: Path) -> tuple[Path, ...]:
    """Return the folders that sfnode and its libraries may have in a home."""
    return home / ".local" / "share" / "sfnode", home / ".cache", home / ".config"


def traced(words: list[str]) -> None:
    """Run the command `sfnode`, and write a line for each path that it opens."""
    out = os.open(os.environ["SFNODE_TRACE"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(event: str, arguments: tuple[object, ...]) -> None:
        if event in CALLS and isinstance(arguments[0], str | bytes | os.PathLike):
            os.write(out, os.path.abspath(os.fsencode(arguments[0])) + b"\n")

    sys.addaudithook(note)
    sfnode(words)


def opened(home: Path, *words: object) -> tuple[set[str], str, int]:
    """Run a command in a volunteer's home. Return the paths that it opened, its error output, and its exit
    status."""
    trace, err = home.parent / "trace", home.parent / "err"
    trace.write_text("")
    err.write_text("")
    surroundings = environment(home) | {"SFNODE_TRACE": str(trace)}
    process = Forked(words, surroundings, home, home.parent / "out", err, main=traced)
    try:
        status = process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        process.send_signal(9)
        raise
    return set(trace.read_text().splitlines()), err.read_text(), status


def strange(places: set[str], tests: Path, *allowed: Path) -> set[str]:
    """Return the paths that are neither the system's nor in `allowed` folders. The system's folder for
    temporary files counts as the system's, except for the folder `tests` in it."""
    own = (*SYSTEM, *map(str, (Path(model_files.__file__).parents[2], *allowed)))
    found = {place for place in places if not within(place, own)}
    return {
        place for place in found if within(place, [str(tests)]) or not within(place, [tempfile.gettempdir()])
    }


def within(place: str, folders: Iterable[str]) -> bool:
    return any(f"{place}/".startswith(f"{folder}/") for folder in folders)


def hostile(make: Callable[..., Node], folder: Path, run: Manifest) -> str:
    """Start a relay of the run `run`. Return the link to it."""
    (folder / "run.toml").write_text(run.to_toml())
    relay = make("hostile", *LOOPBACK, "--role", "relay", "--run", folder / "run.toml").start()
    link: str = relay.link()
    return link


@pytest.mark.parametrize("source", ["{home}/secret.tsv", "~/secret.tsv", "train.tsv", "hf:text:train"])
def test_a_run_that_names_a_file_for_training_is_refused_and_the_file_is_not_opened(
    source: str, home: Path, make: Callable[..., Node], tmp_path: Path
) -> None:
    run = build({}).model_copy(update={"data": Data(train=source.format(home=home))})
    link = hostile(make, tmp_path, run)
    places, said, status = opened(home, "join", link, "--data-dir", tmp_path / "own" / "node", *LOOPBACK)
    assert status
    assert f"SF{Code.DATA_NOT_NAMED:03d}" in said, said
    assert strange(places, tmp_path, tmp_path / "own", *of_a_user(home)) == set()


def test_a_node_of_a_hostile_run_opens_nothing_but_its_own(
    home: Path, make: Callable[..., Node], tmp_path: Path
) -> None:
    usual = build({})
    data = Data(train="builtin:reviews:train", test="~/secret.tsv", validation=f"{home}/text/test.jsonl")
    model = usual.model.model_copy(
        update={"source": "models/mine", "listing": model_files.listing_hash(TINY)}
    )
    run = usual.model_copy(update={"data": data, "model": model})
    (tmp_path / "run.toml").write_text(run.to_toml())
    shares = ("--run", tmp_path / "run.toml", "--model", TINY, "--set", "data.share_model=yes")
    giver = make("giver", *LOOPBACK, *shares).start()
    folder = tmp_path / "own" / "node"
    joining = ("join", giver.link(), "--data-dir", folder, "--steps", 20, *LOOPBACK)
    places, said, status = opened(home, *joining)
    assert status == 0, said
    assert (folder / "model").is_dir(), "the model came from a peer"
    assert strange(places, tmp_path, folder.parent, *of_a_user(home)) == set()
    places, said, status = opened(home, "eval", "--data-dir", folder)
    assert status
    assert f"SF{Code.DATA_NOT_NAMED:03d}" in said
    assert strange(places, tmp_path, folder.parent, *of_a_user(home)) == set()
