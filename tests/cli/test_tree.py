"""Tests of the list of commands: headings, number, help and examples."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator

import click
import pytest

from sfnode.cli.groups import LazyGroup
from sfnode.cli.main import cli
from tests.cli.helpers import Run
from tests.wording import has

TREE = {
    "Join": "join invite swarm leave pause resume limit",
    "Watch": "status top dashboard log leaderboard list",
    "Organise": "init organise",
    "Result": "use eval export verify publish history",
    "This machine": "doctor service peer-id keys completion lab",
}

MOST_LEAVES, MOST_OPTIONS = 32, {"join": 32, "init": 12}

LINES, COLUMNS = 50, 100
"""Maximum size of a help text."""


def leaves(group: LazyGroup = cli, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the words that users type for each command, and its example."""
    for name, entry in group.entries.items():
        if entry.example:
            yield (*path, name), group.example(name)
        else:
            inner = group.load(name)
            assert isinstance(inner, LazyGroup)
            yield from leaves(inner, (*path, name))


LEAVES = dict(leaves())


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(COLUMNS))


def test_commands_are_listed_by_purpose(sfnode: Run) -> None:
    assert {heading: " ".join(names) for heading, names in cli.headings.items()} == TREE
    said = sfnode("--help").out
    for heading, names in TREE.items():
        listed = said.partition(f"\n{heading}:\n")[2].partition("\n\n")[0]
        assert [line.split()[0] for line in listed.splitlines()] == names.split()


def test_what_is_not_for_organisers_researchers_or_the_past_is_little() -> None:
    apart = [path for path in LEAVES if path[0] not in ("organise", "history", "lab")]
    assert len(apart) <= MOST_LEAVES


@pytest.mark.parametrize("command", ["", "join", "init"])
def test_a_help_is_read_at_one_look(command: str, sfnode: Run) -> None:
    lines = sfnode(*command.split(), "--help").out.splitlines()
    assert len(lines) <= LINES
    assert max(map(len, lines)) <= COLUMNS


@pytest.mark.parametrize("name", MOST_OPTIONS)
def test_there_are_few_options_besides_set(name: str) -> None:
    command = cli.load(name)
    context = click.Context(command, parent=click.Context(cli, **cli.context_settings))
    shown = [one for one in command.get_params(context) if isinstance(one, click.Option)]
    assert len([one for one in shown if not one.hidden and one.name != "set"]) <= MOST_OPTIONS[name]


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_every_help_ends_with_an_example_and_h_is_short_for_it(path: tuple[str, ...], sfnode: Run) -> None:
    ended = sfnode(*path, "--help")
    assert (ended.status, ended.err) == (0, "")
    assert ended.out.endswith(f"\n  Example:  {LEAVES[path]}\n")
    assert ended.out == sfnode(*path, "-h").out
    assert max(map(len, ended.out.splitlines())) <= COLUMNS


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_the_parser_takes_every_example(path: tuple[str, ...], received: Callable[..., object]) -> None:
    program, *words = shlex.split(LEAVES[path])
    assert (program, tuple(words[: len(path)])) == ("sfnode", path)
    assert received(" ".join(path), *words[len(path) :])


@pytest.mark.parametrize(
    "path", [("completion",), ("list",), ("peer-id",), ("lab", "simulate", "network")], ids=" ".join
)
def test_an_example_that_needs_neither_a_run_nor_a_network_does_what_it_says(
    path: tuple[str, ...], sfnode: Run
) -> None:
    ended = sfnode(*shlex.split(LEAVES[path])[1:])
    assert (ended.status, ended.err) == (0, "")
    assert ended.out


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("statsu", "status"),
        ("trian", "join"),
        ("finish", "leave --finish"),
        ("simulate", "lab simulate"),
        ("checkout", "history checkout"),
        ("try-rewards", "organise try-reward"),
        ("organise statsu", "organise status"),
        ("publish-directory", "publish directory"),
    ],
)
def test_a_command_that_does_not_exist_is_answered_with_what_was_meant(
    typed: str, meant: str, sfnode: Run
) -> None:
    ended = sfnode(*typed.split())
    assert (ended.status, ended.out) == (2, "")
    wrong = typed.split()[-1]
    has(ended.err, f"There is no command '{wrong}'. Did you mean `", f" {meant}`")


def test_nothing_is_guessed_where_nothing_is_near(sfnode: Run) -> None:
    assert sfnode("zzz").err.endswith("There is no command 'zzz'.\n")
