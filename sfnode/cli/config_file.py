"""The configuration file: flat TOML whose keys are long options, for every command that has the option."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click

from sfnode.cli.groups import inner_commands
from sfnode.cli.options import long_name
from sfnode.documents import read_toml
from sfnode.errors import Code, UserError

Options = dict[str, click.Option]
"""Options by their key in the file: the flag without its dashes."""


def read_config(file: Path, command: click.Command, others: Iterator[click.Command]) -> dict[str, Any]:
    """Return the values in `file` for the options of `command`, by parameter name, as text; of a group, those
    for each of its commands, by its name.

    `others` are looked at as far as it takes to know every key. Raises UserError BAD_OPTION for a file that
    cannot be read or parsed, for a key that no command has, and for a value of the wrong shape; whether a
    value makes sense, the option says.
    """
    try:
        values = read_toml(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _unusable(file, str(error)) from error
    own = _options(command)
    known = _known(values, own, others)
    try:
        texts = {key: _as_text(key, value, known) for key, value in values.items()}
    except ValueError as error:
        raise _unusable(file, str(error)) from error
    return _given(command, texts)


def _given(command: click.Command, texts: Mapping[str, str | list[str]]) -> dict[str, Any]:
    if isinstance(command, click.Group):
        return {name: _given(inner, texts) for name, inner in inner_commands(command).items()}
    own = _options(command)
    return {str(own[key].name): text for key, text in texts.items() if key in own}


def _known(values: Iterable[str], own: Options, others: Iterator[click.Command]) -> Options:
    """Return the options that the keys `values` belong to, and all others if a key belongs to none."""
    known, unknown = dict(own), set(values) - own.keys()
    while unknown and (command := next(others, None)) is not None:
        known = _options(command) | known
        unknown -= known.keys()
    return known


def _options(command: click.Command) -> Options:
    if isinstance(command, click.Group):
        return {
            key: one for inner in inner_commands(command).values() for key, one in _options(inner).items()
        }
    options = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
    return {long_name(option.opts).removeprefix("--"): option for option in options}


def _as_text(key: str, value: Any, known: Mapping[str, click.Option]) -> str | list[str]:
    """Return a value as one would type it. Raises ValueError."""
    if key not in known:
        close = get_close_matches(key, known, 1)
        raise ValueError(f"no command has an option {key!r}" + (f"; is it {close[0]!r}?" if close else ""))
    repeated = known[key].multiple
    if repeated != isinstance(value, list):
        raise ValueError(f"{key} takes " + ("a list of values" if repeated else "one value, not a list"))
    return [_typed(key, item) for item in value] if repeated else _typed(key, value)


def _typed(key: str, value: Any) -> str:
    if not isinstance(value, str | int | float):
        raise ValueError(f"{key} takes a string, a number or true or false")
    return str(value).lower() if isinstance(value, bool) else str(value)


def _unusable(file: Path, reason: str) -> UserError:
    return UserError(
        Code.BAD_OPTION,
        f"the configuration file {file} is not usable: {reason}",
        'Its keys are the long options without the dashes in front, such as data-dir = "/srv/sfnode".',
    )
