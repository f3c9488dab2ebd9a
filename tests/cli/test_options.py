"""Tests that every option is a flag, a variable and a key of the configuration file, in this order of
precedence."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from sfnode.cli.groups import inner_commands
from sfnode.cli.main import cli
from sfnode.cli.options import long_name, variable
from sfnode.defaults import PROFILES
from sfnode.limits import Limits
from tests.cli.helpers import Run
from tests.wording import has

Parse = Callable[..., dict[str, Any]]


def leaves(group: click.Command, path: str = "") -> Iterator[tuple[str, click.Command]]:
    if not isinstance(group, click.Group):
        yield path, group
        return
    for name, command in inner_commands(group).items():
        yield from leaves(command, f"{path} {name}".strip())


COMMANDS = {path: one for path, one in leaves(cli) if not path.startswith("lab simulate")}
"""Commands, keyed by what users type. The simulator's commands are tested in tests/sflab."""

OPTIONS = [
    pytest.param(name, parameter, id=f"{name} {long_name(parameter.opts)}")
    for name, command in COMMANDS.items()
    for parameter in command.params
    if isinstance(parameter, click.Option)
]

SEEN = [one for one in OPTIONS if one.values[1].expose_value]  # type: ignore[union-attr]
"""Options that a command receives as parameters."""


def test_every_option_has_its_environment_variable_and_says_so_in_its_help() -> None:
    for command, parameter in (one.values for one in OPTIONS):
        assert isinstance(parameter, click.Option)
        name = long_name(parameter.opts)
        assert (parameter.envvar, parameter.show_envvar) == (variable(name), True), (command, name)
        assert (parameter.help or "").endswith((".", "]")), (command, name)


@pytest.mark.parametrize(("command", "parameter"), SEEN)
def test_every_option_is_a_key_of_the_configuration_file(
    command: str, parameter: click.Option, config: Callable[[str], Path], received: Parse
) -> None:
    key = long_name(parameter.opts).removeprefix("--")
    value, expected = _example(parameter)
    config(f"{key} = {value}\n")
    assert received(command, *_arguments(COMMANDS[command], parameter))[str(parameter.name)] == expected


def test_a_flag_counts_before_the_variable_the_variable_before_the_file_the_file_before_the_default(
    config: Callable[[str], Path], received: Parse, monkeypatch: pytest.MonkeyPatch
) -> None:
    def threads(*arguments: str) -> object:
        return received("join", *arguments)["threads"]

    assert threads() == 0
    config("threads = 1\n")
    assert threads() == 1
    monkeypatch.setenv("SFNODE_THREADS", "2")
    assert threads() == 2
    assert threads("--threads", "3") == 3


def test_a_switch_can_be_turned_off_in_the_file_and_on_again_by_variable_or_flag(
    config: Callable[[str], Path], received: Parse, monkeypatch: pytest.MonkeyPatch
) -> None:
    config("share-model = false\nuntil-complete = true\n")
    assert received("join") | {"share_model": False, "until_complete": True} == received("join")
    assert received("join", "--set", "data.share_model=yes")["share_model"] is True
    monkeypatch.setenv("SFNODE_SHARE_MODEL", "1")
    monkeypatch.setenv("SFNODE_UNTIL_COMPLETE", "0")
    assert received("join") | {"share_model": True, "until_complete": False} == received("join")


def test_several_values_are_a_list_in_the_file_and_words_in_the_variable(
    config: Callable[[str], Path], received: Parse, monkeypatch: pytest.MonkeyPatch
) -> None:
    config('peers = ["/ip4/1.2.3.4/tcp/1/p2p/QmA", "/ip4/1.2.3.4/tcp/1/p2p/QmB"]\n')
    assert received("join")["peers"] == ("/ip4/1.2.3.4/tcp/1/p2p/QmA", "/ip4/1.2.3.4/tcp/1/p2p/QmB")
    monkeypatch.setenv("SFNODE_PEERS", "/dns/a/tcp/1/p2p/QmC /dns/b/tcp/1/p2p/QmD")
    assert received("join")["peers"] == ("/dns/a/tcp/1/p2p/QmC", "/dns/b/tcp/1/p2p/QmD")


def test_of_several_devices_in_the_file_a_command_that_computes_on_one_takes_the_first(
    config: Callable[[str], Path], received: Parse
) -> None:
    config('device = "cuda:1, cpu"\n')
    assert {received(command)["device"] for command in ("join", "doctor", "lab bench")} == {"cuda:1,cpu"}
    assert {received(*command.split())["device"] for command in ("eval", "export --out model")} == {"cuda:1"}


def test_a_file_can_be_named_by_flag_or_variable(
    tmp_path: Path, sfnode: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    named, other = tmp_path / "named.toml", tmp_path / "other.toml"
    named.write_text('data-dir = "/nowhere/named"\n')
    other.write_text('data-dir = "/nowhere/other"\n')
    monkeypatch.setenv("SFNODE_CONFIG", str(other))
    assert "/nowhere/other" in sfnode("verify").err
    assert "/nowhere/named" in sfnode("--config", named, "verify").err


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("bananas = 3", "no command has an option 'bananas'"),
        ("data_dir = '/srv'", "is it 'data-dir'?"),
        ("as-json = true", "no command has an option 'as-json'"),
        ("peers = '/ip4/1.2.3.4/tcp/1/p2p/QmA'", "peers takes a list of values"),
        ("threads = [1, 2]", "threads takes one value"),
        ("threads = 2026-01-01", "threads takes a string, a number or true or false"),
        ("[join]\nthreads = 1", "no command has an option 'join'"),
        ("threads =", "not usable"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused_with_the_reason(
    text: str, reason: str, config: Callable[[str], Path], sfnode: Run
) -> None:
    file = config(text)
    sfnode("status").failed(f"sfnode: SF010: the configuration file {file} is not usable", reason)


def test_a_file_that_was_named_must_exist(sfnode: Run) -> None:
    sfnode("--config", "nowhere.toml", "status").failed("nowhere.toml")


def test_a_bad_value_is_blamed_on_the_place_it_came_from(
    config: Callable[[str], Path], sfnode: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = config('nodes = "many"\n')
    ended = sfnode("swarm")
    assert ended.status == 2
    has(ended.err, "--nodes", f"from the configuration file {file}")
    monkeypatch.setenv("SFNODE_NODES", "few")
    assert "SFNODE_NODES" in sfnode("swarm").err


def _arguments(command: click.Command, but: click.Parameter) -> list[str]:
    """Return values for all required parameters but one."""
    needed = [one for one in command.params if one.required and one is not but]
    options = [word for one in needed if isinstance(one, click.Option) for word in (one.opts[0], "7")]
    return [*options, *("7" for one in needed if isinstance(one, click.Argument))]


def _example(option: click.Option) -> tuple[str, object]:
    """Return a TOML value that is not the option's default, and the value that the command should receive."""
    special: dict[str, tuple[str, object]] = {
        "batches": ("[2, 3]", (2, 3)),
        "limits": ('["cpu=50", "hours=22:00-7:00"]', Limits(cpu=50, hours="22:00-07:00")),
        "notify": ('"mail -s run ann"', "mail -s run ann"),
        "link": ('"sfnode:nothing"', "sfnode:nothing"),
        "shard": ('"2/3"', (1, 3)),
        "invitation": (f'"3:{bytes(16).hex()}"', f"3:{bytes(16).hex()}"),
        "every": ('"10m"', 600.0),
        "hide": ('["0123ABCD"]', ("0123abcd",)),
        "url": ('"https://run.example"', "https://run.example/"),
        "contacts_url": ('"https://run.example/run.json"', "https://run.example/run.json"),
        "metrics": ('"9100"', ("127.0.0.1", 9100)),
        "ntp": ('"time.example"', ("time.example", 123)),
        "dashboard": ('"[::1]:9200"', ("::1", 9200)),
        "listen": ('"0.0.0.0:9200"', ("0.0.0.0", 9200)),
        "dashboard_token": ('"a word that nobody guesses"', "a word that nobody guesses"),
        "verbalizer": ('"0=no,1=yes"', {"0": "no", "1": "yes"}),
        "target_modules": ('"q_proj, fc1"', ("q_proj", "fc1")),
        "seal": ("3", 3),
    }
    if option.name in special:
        return special[option.name]
    if option.is_flag:
        return str(not option.default).lower(), not option.default
    if isinstance(option.type, click.Choice):
        return f'"{option.type.choices[-1]}"', option.type.choices[-1]
    if isinstance(option.type, click.Path):
        return '"/srv/some/where"', Path("/srv/some/where")
    if option.multiple:
        return '["/dns/a", "/dns/b"]', ("/dns/a", "/dns/b")
    numbers: dict[str, tuple[str, object]] = {"float": ("0.5", 0.5), "text": ('"word"', "word")}
    return numbers.get(option.type.name, ("7", 7))


def test_a_profile_is_a_data_folder_by_name_and_what_is_said_closer_by_goes_first(
    config: Callable[[str], Path], received: Parse, monkeypatch: pytest.MonkeyPatch, home: Path, sfnode: Run
) -> None:
    def folder(*arguments: str) -> object:
        return received("status", *arguments)["data_dir"]

    profiles = home / PROFILES.relative_to("~")
    assert folder("--profile", "owls") == profiles / "owls"
    config('profile = "kept"\n')
    assert folder() == profiles / "kept"
    assert folder("--data-dir", "/node") == Path("/node")
    monkeypatch.setenv("SFNODE_DATA_DIR", "/named")
    assert folder() == Path("/named")
    assert folder("--profile", "owls") == profiles / "owls"
    for arguments in (("--profile", "../owls"), ("--profile", "a", "--data-dir", "/node")):
        assert sfnode("status", *arguments).status == 2
