"""How options are declared: once, as a flag, an environment variable and a key of the configuration file.

`--data-dir` is also `SFNODE_DATA_DIR` and `data-dir` in the file. The file is flat TOML: a key applies to
every command that has the option. Order of precedence: flag, environment, file, default.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from sfnode.errors import Code, UserError

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_CONFIG = Path("~/.config/sfnode/config.toml")
DEFAULT_DATA_DIR = Path("~/.sfnode")


def option(*names: str, **settings: Any) -> Callable[[F], F]:
    """`click.option` with its environment variable."""
    flag = next(name for name in names if name.startswith("--")).partition("/")[0]
    variable = "SFNODE_" + flag.removeprefix("--").replace("-", "_").upper()
    return click.option(*names, envvar=variable, show_envvar=True, **settings)


def data_dir_option(function: F) -> F:
    """--data-dir, the same everywhere."""
    return option(
        "--data-dir",
        type=click.Path(path_type=Path),
        default=DEFAULT_DATA_DIR,
        show_default=True,
        callback=lambda _context, _parameter, value: value.expanduser(),
        help="The node's folder: keys, update log, control socket. One folder, one node.",
    )(function)


def read_config(path: Path | None, commands: Mapping[str, click.Command]) -> dict[str, dict[str, Any]]:
    """The configuration file as click's default map. Raises UserError BAD_OPTION for unknown keys."""
    file = (path or DEFAULT_CONFIG).expanduser()
    if path is None and not file.exists():
        return {}
    try:
        values = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise _bad_config(file, str(error)) from error
    values = {key.replace("-", "_"): value for key, value in values.items()}
    known = {str(parameter.name) for command in commands.values() for parameter in command.params}
    if unknown := sorted(values.keys() - known):
        raise _bad_config(file, f"no command has an option {unknown[0].replace('_', '-')!r}")
    return dict.fromkeys(commands, values)


def _bad_config(file: Path, reason: str) -> UserError:
    return UserError(
        Code.BAD_OPTION,
        f"the configuration file {file} is not usable: {reason}",
        'Its keys are the long options without dashes in front, such as data-dir = "/srv/sfnode".',
    )
