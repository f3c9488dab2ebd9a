"""Tests of options that are keys of --set instead of flags."""

from __future__ import annotations

from typing import Any

import click
import pytest
from click.shell_completion import ZshComplete

from sfnode.cli.groups import PROGRAM, VARIABLE
from sfnode.cli.keys import Command
from sfnode.cli.options import option
from sfnode.errors import Code
from tests.refusals import refused
from tests.wording import has

Parsed = dict[str, Any]


@click.command(cls=Command, groups={"Cake": "--flour"})
@option("--flour", type=int, default=1, help="Cups.")
@option("--eggs", key="cake.eggs", type=click.IntRange(0, 12), default=2, help="How many.")
@option("--sieve/--no-sieve", key="cake.sieve", default=None, help="Sieve the flour.")
@option("--spice", key="taste.spice", multiple=True, type=click.Choice(["mace", "clove"]), help="Which.")
def bake(**given: Any) -> Parsed:
    """Bake a cake."""
    return given


def baked(*words: str, **settings: Any) -> Parsed:
    parsed: Parsed = bake.main(list(words), "bake", standalone_mode=False, **settings)
    return parsed


def test_set_gives_an_option_by_its_key() -> None:
    assert baked() == {"flour": 1, "eggs": 2, "sieve": None, "spice": ()}
    words = "--set cake.eggs=3 --set cake.sieve=no --set taste.spice=mace --set taste.spice=clove --flour 4"
    assert baked(*words.split()) == {"flour": 4, "eggs": 3, "sieve": False, "spice": ("mace", "clove")}
    assert baked("--set", "cake.eggs=3", "--set", "cake.eggs=5")["eggs"] == 5


def test_set_goes_before_the_variable_and_that_before_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    file = {"default_map": {"eggs": "6"}}
    assert baked(**file)["eggs"] == 6
    monkeypatch.setenv("SFNODE_EGGS", "7")
    assert baked(**file)["eggs"] == 7
    assert baked("--set", "cake.eggs=8", **file)["eggs"] == 8


@pytest.mark.parametrize(
    ("pair", "fix"),
    [
        ("cake.egs=3", "Is it cake.eggs"),
        ("eggs=3", "Is it cake.eggs?"),
        ("cake.spice=mace", "taste.spice"),
        ("flour=3", "--help-all"),
        ("cake.eggs", "Give it as cake.eggs=VALUE."),
    ],
)
def test_a_key_that_is_unknown_or_has_no_value_is_refused_with_what_was_meant(pair: str, fix: str) -> None:
    with refused(Code.BAD_OPTION, f"--set {pair}", fix=fix):
        baked("--set", pair)


def test_a_value_that_is_refused_is_refused_by_its_key() -> None:
    with pytest.raises(click.BadParameter) as refused:
        baked("--set", "cake.eggs=13")
    assert "'--set cake.eggs'" in refused.value.format_message()


def test_a_key_that_is_given_as_a_flag_is_refused_with_the_key() -> None:
    with pytest.raises(click.UsageError) as refused:
        baked("--eggs", "3")
    assert "--set cake.eggs" in refused.value.format_message()


def test_the_help_shows_flags_only_and_help_all_keys_and_variables_too(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown = {}
    for flag in ("--help", "--help-all"):
        baked(flag)
        shown[flag] = capsys.readouterr().out
    has(shown["--help"], "--flour", "One of 3 rarer options")
    for word in ("cake.eggs", "--eggs", "SFNODE_"):
        assert word not in shown["--help"]
    has(shown["--help-all"], "SFNODE_FLOUR", "cake.eggs COUNT", "cake.sieve true|false", "SFNODE_SIEVE")
    assert "--eggs" not in shown["--help-all"]


@pytest.mark.parametrize(
    ("begun", "offered"),
    [("cake", ["cake.eggs=", "cake.sieve="]), ("taste.spice=m", ["taste.spice=mace"]), ("nothing.here=", [])],
)
def test_keys_and_their_values_are_completed(begun: str, offered: list[str]) -> None:
    found = ZshComplete(bake, {}, PROGRAM, VARIABLE).get_completions(["--set"], begun)
    assert [item.value for item in found] == offered
