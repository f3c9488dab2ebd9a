"""Tests that no command prints control characters, characters that change the direction of writing, or lines
of unbounded length, whatever is in the runs, answers, exports, tables and pages that it reads. A new command
must be added to ROWS or OWN."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from io import StringIO
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import pytest
from pydantic import BaseModel
from rich.console import Console
from rich.progress import Progress

from sfnode.cli.main import cli
from sfnode.cli.progress import _Told
from sfnode.engine.samples import Preference
from sfnode.engine.using import ABOUT, ModelInUse
from sfnode.limits import Limits
from sfnode.manifest import Manifest
from sfnode.manifest.sections import Data
from sfnode.manifest.task import Task
from sfnode.printable import LONGEST
from sfnode.schema import measurements, organising, results, status, views
from tests.cli.fake_node import fake_node
from tests.cli.helpers import Ended, Run
from tests.cli.test_options import leaves
from tests.cli.test_use import run_of
from tests.engine.helpers import HEADED_TASK, model_folder, trainer, updates
from tests.protocol.feeds import origin_of
from tests.publish.helpers import link_to
from tests.publish.runs import manifest_of
from tests.store.folders import Folder, organised

MARK = "mine"
HOSTILE = f"\x1bc\x1b]0;{MARK}\x07\x9b2J\u202e\u2066\u200b\x7f[bold]"
"""Text that resets the terminal, sets its title, erases the screen, changes the direction of writing, and is
markup of rich."""

LONG = HOSTILE + "x" * 10_000
FIELD = LONG.removesuffix("[bold]").replace("[", "")
"""Name of a column. It has no brackets, because a template cannot have unclosed ones."""


def plainly(ended: Ended, as_json: bool) -> None:
    """Require that what a command has printed is harmless."""
    for text in (ended.out, ended.err):
        for line in text.split("\n"):
            assert line.isprintable(), ascii(line)[:300]
            assert as_json or len(line) <= LONGEST + 500, f"{len(line)} characters: {line[:100]}"
    assert "Traceback" not in ended.err
    assert ended.out + ended.err, "nothing was printed"


# -- a node whose every answer is hostile -----------------------------------------------------------------


def filled(kind: Any) -> Any:
    """Return a value of this type in which every text is hostile."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return filled(inner[0])
    if origin is Literal:
        return inner[0]
    if origin in (Union, UnionType):
        return filled(next(one for one in inner if one is not NoneType))
    if origin in (list, tuple):
        return [filled(inner[0])]
    if origin in (dict, Mapping):
        return {LONG: filled(inner[1])}
    if kind in (int, float, bool, str):
        return {int: 1, float: 0.5, bool: True, str: LONG}[kind]
    if issubclass(kind, Enum):
        return next(iter(kind)).value
    if issubclass(kind, BaseModel):
        return {name: filled(one) for name, one in get_type_hints(kind, include_extras=True).items()
                if name in kind.model_fields}  # fmt: skip
    return filled(kind.__supertype__)


ANSWERS: dict[str, type[BaseModel]] = {
    "/status": status.Status,
    "/digest": status.CoreStatus,
    "/evaluate": measurements.NodeEvaluation,
    "/invitation": results.InviteResult,
    "/views/progress": views.Progress,
    "/views/curves": views.Curves,
    "/views/swarm": views.Swarm,
    "/views/feeds": views.Feeds,
    "/views/origins": views.Origins,
    "/views/history": views.History,
    "/views/about": views.About,
    "/views/own": views.OwnStanding,
    "/views/samples": views.Samples,
    "/views/timeline": views.Timeline,
    "/generate": views.Generated,
    "/pause": status.Status,
    "/resume": status.Status,
    "/limits": Limits,
    "/organising": organising.OrganiserStatus,
    "/organising/members": organising.Members,
    "/organising/petitions": organising.JoinRequestList,
    "/organising/decision": organising.DecisionResult,
    "/organising/succession": organising.SuccessionFile,
}


VALID: dict[str, dict[str, Any]] = {
    "/invitation": {"link": link_to(manifest_of())},
    "/organising": {"run_id": "ab" * 32},
    "/organising/succession": dict.fromkeys(("run_id", "chain", "key"), "ab" * 32)
    | {"run_name": HOSTILE, "deputies": [], "votes": []},
}
"""Valid answers, for commands that make a file or a link of them. These come from the owner's own node."""


class HostileNode(dict[str, str]):
    """A node whose answers are hostile. Keys are requests such as `POST /pause`."""

    def __missing__(self, asked: str) -> str:
        path, _, query = asked.split()[1].partition("?")
        said = filled(ANSWERS[path]) | VALID.get(path, {}) if path in ANSWERS else {}
        if re.search(r"offset=[1-9]", query):  # there is no second page
            said = {name: [] if isinstance(value, list) else value for name, value in said.items()}
        return json.dumps(said)


# -- what else others have written --------------------------------------------------------------------------


class World(NamedTuple):
    folder: Path
    """The folder of a node, which does not run."""
    running: Path
    """The folder of a hostile node."""
    export: Path
    choice: Path
    """An export of a choice task that reads several columns."""
    run: Path
    """The manifest."""
    table: Path
    files: Path
    """Folder of everything else."""


def hostile_run() -> Manifest:
    """Return a run in which every text that an organiser may choose is hostile."""
    run = run_of("head")
    words = {f"0{HOSTILE}": LONG, "1": f"good{HOSTILE}"}
    task = Task(kind="sequence-classification", template=f"{{{FIELD}}}", label_field=LONG, verbalizer=words)
    data = Data(train=f"{LONG}.tsv", test=f"{HOSTILE}/{LONG}.csv", validation=f"hf:{LONG}:train")
    return organised(run.model_copy(update={"task": task, "data": data}))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    top = tmp_path_factory.mktemp("hostile")
    run = hostile_run()
    with Folder(top / "node", run, "ann", organises=True) as folder:
        folder.admit("ann")
        for _ in range(2):
            folder.make(3)
            folder.close()
            folder.seal()
    export, choice = top / "export", top / "choice"
    plain = run_of("head").model_copy(update={"task": HEADED_TASK})
    with trainer(plain, model_override=model_folder("opt")) as made:
        made.apply(updates(3))
        made.export(export)
    several = Task(
        kind="choice", template=f"{{{FIELD}}} {{b}}", completion="{candidate}", candidates_field=LONG
    )
    choice.mkdir()
    for path, task in ((export, run.task), (choice, several)):
        (path / ABOUT).write_text(json.dumps({"task": task.model_dump(mode="json")}))
    for file in export.iterdir():
        if file.name != ABOUT:
            (choice / file.name).symlink_to(file)
    table = top / f"{HOSTILE.replace('/', '')}.csv"
    with table.open("w", newline="") as opened:
        rows = [[LONG + str(n), f"{HOSTILE}{n % 2}", HOSTILE] for n in range(40)]
        csv.writer(opened).writerows([[FIELD, f"label{HOSTILE}", LONG], *rows])
    for name in ("run.json", "next.json"):
        (top / name).write_text(json.dumps({LONG: LONG, "run_id": LONG, "version": LONG, "title": LONG}))
    (top / "next.json").write_text(json.dumps(filled(organising.SuccessionFile) | {"run_id": LONG}))
    (top / "plain.csv").write_text("a,b\n1,2\n")
    (top / "archive.sfnode").write_text(LONG)
    (top / "config.toml").write_text(f"{json.dumps(LONG)} = 1\n")
    with fake_node(top / "running", HostileNode()):
        (top / "running" / "run.toml").write_text(run.to_toml())
        yield World(top / "node", top / "running", export, choice, top / "node" / "run.toml", table, top)


# -- every command ------------------------------------------------------------------------------------------

ROWS: dict[str, list[str]] = {
    "join": ["--run {run} --data-dir {files}/fresh --model {files}", "{long}"],
    "invite": ["--data-dir {running}", "--data-dir {node}"],
    "leave": ["--data-dir {running}"],
    "pause": ["--data-dir {running}", "{long}"],
    "resume": ["--data-dir {running}"],
    "limit": ["--data-dir {running}", "{long}"],
    "status": ["--data-dir {running} --feeds --details", "--data-dir {node}"],
    "top": ["--data-dir {running}"],
    "log": ["--data-dir {node}", "--data-dir {node} --details"],
    "leaderboard": ["--data-dir {node} --details", "--data-dir {running}"],
    "list": [""],
    "init": ["{table} --yes --out {files}/made.toml", "{files}/none{hostile}.csv --yes"],
    "organise try-reward": ["{run}"],
    "organise make-bases": ["--data-dir {node} --out {files}/bases --model {model}"],
    "organise status": ["--data-dir {running}"],
    "organise members": ["--data-dir {running}", "--data-dir {running} --find {hostile}"],
    "organise invite": ["--data-dir {running} --uses 1"],
    "organise admit": ["{key} --data-dir {running}", "{long} --data-dir {running}"],
    "organise revoke": ["{key} --data-dir {running}", "{long} --data-dir {running}"],
    "organise void": ["0-1 --data-dir {running} --dry-run", "{long} --data-dir {running}"],
    "organise budget": ["9 --data-dir {running} --dry-run", "{long} --data-dir {running}"],
    "organise bases": ["{files}/archive.sfnode --data-dir {running}"],
    "organise announce": ["hello --data-dir {running}", "{long} --data-dir {running}"],
    "organise next": ["{long} --data-dir {running}"],
    "organise stand-in": ["--data-dir {running}"],
    "organise stand-ins": ["0 1 --data-dir {running}", "--nobody --data-dir {running} --dry-run"],
    "organise end": ["--data-dir {running} --yes", "--data-dir {running} --dry-run"],
    "organise hand-over": ["--data-dir {running} --out {files}/over.json", "--submit {files}/next.json"],
    "keys backup": ["--data-dir {node} --out {files}/made.keys --passphrase-file {table}"],
    "keys restore": ["{files}/archive.sfnode --data-dir {files}/restored --passphrase-file {table}"],
    "organise sign": ["{files}/next.json"],
    "use": [
        "--from {export} one two three",
        "--from {export} film",
        "--from {export} --file {files}/plain.csv --out {files}/out.csv",
        "--from {export} --file {table} --out {files}/out2.csv --skip-bad-rows",
        "--from {export} --file {table} --out {files}/out3.csv",
        "--from {choice} film",
        "--from {choice}",
        "--data-dir {node} film",
        "--from {files}",
    ],
    "eval": ["--data-dir {node} --model {model}", "--data-dir {running}"],
    "export": ["--data-dir {node} --model {model} --out {files}/exported"],
    "verify": ["--data-dir {node}"],
    "publish page": ["--data-dir {node} --out {files}/page", "--data-dir {running} --out {files}/page2"],
    "publish directory": ["{files}/run.json {table} --out {files}/all"],
    "history checkout": ["1 --data-dir {node}"],
    "history fork": ["1 --data-dir {node} --out {files}/fork --model {model}"],
    "history archive": ["--data-dir {node} --out {files}/made.sfnode"],
    "history import": ["{files}/archive.sfnode --data-dir {files}/imported"],
    "doctor": ["--link {long}"],
    "service install": ["--profile {hostile}"],
    "lab simulate report": ["{files}"],
}
"""Arguments of each command, whose input is hostile."""

OWN = {
    "swarm": "makes its own run, of its own nodes and rows",
    "dashboard": "serves a page until Ctrl-C, and prints the address alone",
    "service remove": "names its own unit",
    "peer-id": "prints the id of a key that this machine has",
    "completion": "prints a script of this program",
    "lab simulate network": "simulates nodes of its own",
    "lab simulate training": "trains models of its own",
    "lab simulate paper": "trains models of its own",
    "lab bench": "measures this machine",
}
"""Commands without foreign input, and the reasons."""


def test_every_command_has_a_row() -> None:
    assert sorted(COMMANDS) == sorted([*ROWS, *OWN])


def words(text: str, world: World) -> list[str]:
    """Return the arguments in a row of ROWS, with its placeholders replaced."""
    there = {
        "node": world.folder,
        "running": world.running,
        "export": world.export,
        "choice": world.choice,
        "run": world.run,
        "table": world.table,
        "files": world.files,
        "model": model_folder("opt"),
        "long": LONG,
        "hostile": HOSTILE,
        "key": origin_of("ann").hex(),
    }
    return [word.format(**there) for word in text.split()]


COMMANDS = dict(leaves(cli))

CASES = [
    (command, f"{row}{more}".strip())
    for command, rows in ROWS.items()
    for row in rows
    for more in ("", *(" --json" for one in COMMANDS[command].params if "--json" in one.opts))
]


@pytest.mark.parametrize(("command", "row"), CASES, ids=map(" ".join, CASES))
def test_a_command_prints_nothing_raw(
    command: str, row: str, world: World, sfnode: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(world.files / "share"))
    told = [*command.split(), *words(row, world)]
    for made in ("made.toml", "made.sfnode", "over.json", "out.csv", "bases"):
        with contextlib.suppress(OSError):
            (world.files / made).unlink()
    ended = apart(told) if command == "join" else sfnode(*told)
    plainly(ended, "--json" in told)


def apart(told: list[str]) -> Ended:
    """Run a command that ends its process."""
    ended = subprocess.run(
        [sys.executable, "-m", "sfnode", *told], capture_output=True, text=True, timeout=120
    )
    return Ended(ended.returncode, ended.stdout, ended.stderr)


def test_a_configuration_file(world: World, sfnode: Run) -> None:
    plainly(sfnode("--config", world.files / "config.toml", "list"), False)


def test_a_model_answers_with_labels_of_its_runs(
    world: World, sfnode: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = Preference((LONG, HOSTILE), (0.6, 0.4))
    for said in (answer, f"{HOSTILE} and\nmore"):
        monkeypatch.setattr(ModelInUse, "answers", lambda *_, one=said: iter([one]))
        ended = sfnode("use", "--from", world.export, "film")
        plainly(ended, False)
        assert MARK in ended.out


def test_columns_are_asked_for_by_their_names(
    world: World, sfnode: Run, answers: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers("film", "\x04")
    monkeypatch.setattr(ModelInUse, "answers", lambda *_: iter(["good"]))
    ended = sfnode("use", "--from", world.export)
    plainly(ended._replace(err=ended.err.replace("> ", ">\n")), False)
    assert MARK in ended.err


# -- what goes elsewhere ------------------------------------------------------------------------------------


def test_an_exports_card_is_free_of_them(world: World) -> None:
    with trainer(hostile_run(), model_override=model_folder("opt")) as made:
        made.apply(updates(3))
        made.export(world.files / "carded")
    assert all(line.isprintable() for line in (world.files / "carded" / "README.md").read_text().split("\n"))


def test_a_name_is_no_markup_of_a_progress_bar() -> None:
    shown = StringIO()
    bars = Progress(_Told(), console=Console(file=shown, width=200))
    bars.add_task(f"reading [/x]{HOSTILE}")
    bars.console.print(bars)
    assert "reading [/x]" in shown.getvalue()
    plainly(Ended(0, shown.getvalue(), ""), False)


def test_logs_and_warnings_of_libraries_are_printable(tmp_path: Path) -> None:
    """Commands without their own logging are meant, too."""
    told = "import logging, warnings; from sfnode.cli.output import begin; begin(False); "
    told += f"logging.getLogger('of.a.library').warning({LONG!a}); warnings.warn({LONG!a})"
    ended = subprocess.run(
        [sys.executable, "-c", told], capture_output=True, text=True, env=os.environ | {"HOME": str(tmp_path)}
    )
    plainly(Ended(ended.returncode, "", ended.stderr), False)
    assert ended.stderr.count(MARK) == 2
