"""Tests that the options of `sfnode join` follow from the fields of `Settings`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import click
import pytest
from pydantic import ValidationError

from sfnode.cli.join import join
from sfnode.cli.options import bound
from sfnode.defaults import CONFIG, located
from sfnode.limits import Limits
from sfnode.settings import Settings

OF_THE_COMMAND = {
    *("profile", "dashboard", "dashboard_token", "dashboard_control", "log_level", "log_format", "threads")
}
"""Options about the process instead of its node, and --threads, which is a limit."""

OPTIONS = {str(option.name): option for option in join.params if isinstance(option, click.Option)}

OF_THE_NODE = OPTIONS.keys() & Settings.model_fields.keys()


def test_every_option_is_a_field_and_every_field_an_option() -> None:
    assert OPTIONS.keys() - OF_THE_NODE == OF_THE_COMMAND
    assert Settings.model_fields.keys() - OF_THE_NODE == set()


@pytest.mark.parametrize("name", sorted(OF_THE_NODE - {"limits"}))
def test_an_option_has_the_default_the_bounds_and_the_choices_of_its_field(name: str) -> None:
    option, field = OPTIONS[name], Settings.model_fields[name]
    kinds = [kind for kind in get_args(field.annotation) if kind is not type(None)]
    if field.default not in (None, ()):
        assert option.default == field.default
    assert option.multiple == (field.annotation == tuple[str, ...])
    assert option.is_flag == (bool in (field.annotation, *kinds))
    choices = option.type.choices if isinstance(option.type, click.Choice) else ()
    named = [get_args(kind) for kind in (field.annotation, *kinds) if get_origin(kind) is Literal]
    assert tuple(choices) == (named[0] if named else ())
    assert isinstance(option.type, click.Path) == (Path in (field.annotation, *kinds))
    assert (int in (field.annotation, *kinds)) == isinstance(option.type, click.IntRange)
    if isinstance(option.type, click.IntRange):
        bounds = bound(field.metadata, "ge"), bound(field.metadata, "le")
        assert (option.type.min, option.type.max) == bounds


def test_nothing_given_on_the_command_line_is_nothing_given_to_the_node(received: Any) -> None:
    given = received("join")
    assert Settings(**{name: given[name] for name in OF_THE_NODE}) == Settings()


def test_the_threads_of_the_command_line_are_those_of_the_limits() -> None:
    kind = OPTIONS["threads"].type
    assert isinstance(kind, click.IntRange)
    assert kind.max == bound(Limits.model_fields["threads"].metadata, "le")


@pytest.mark.parametrize(
    "wrong",
    [
        {"queries": 65},
        {"steps": -1},
        {"dtype": "float64"},
        {"device": ""},
        {"device": "cuda:0,,cuda:1"},
        {"display_name": "a" * 33},
        {"team": "\x1b[31mred"},
        {"shard": (4, 4)},
        {"limits": {"threads": 0}},
        {"invitation": "3"},
        {"invitation": f"3:{'ab' * 15}"},
        {"bananas": 3},
    ],
    ids=str,
)
def test_a_program_gets_no_further_than_the_command_line(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Settings.model_validate(wrong)


def test_several_devices_are_separated_by_commas() -> None:
    assert Settings(device="cuda:0, cuda:1").devices == ("cuda:0", "cuda:1")
    assert len(Settings(device=",".join(["cpu"] * 16)).devices) == 16
    assert Settings().devices == ("cpu",)


def test_the_data_folder_may_begin_at_home(home: Path) -> None:
    assert Settings().data_dir == home / ".local/share/sfnode/node"
    assert Settings(data_dir=Path("~/a")).data_dir == home / "a"
    assert Settings(keys_dir=Path("~/k")).keys_dir == home / "k"


def test_defaults_lie_where_the_xdg_variables_say(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative, and so ignored")
    assert Settings().data_dir == tmp_path / "data" / "sfnode" / "node"
    assert Settings().keys_dir == tmp_path / "data" / "sfnode" / "keys"
    assert located(CONFIG) == home / ".config/sfnode/config.toml"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    assert located(CONFIG) == tmp_path / "config" / "sfnode" / "config.toml"
    assert Settings(keys_dir=Path("~/.local/share/other")).keys_dir == home / ".local/share/other"


def test_folders_of_before_stay_in_use_until_there_are_new_ones(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / ".local/share/sfnode/node").mkdir(parents=True)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert Settings().data_dir == home / ".local/share/sfnode/node"
    (tmp_path / "sfnode" / "node").mkdir(parents=True)
    assert Settings().data_dir == tmp_path / "sfnode" / "node"
