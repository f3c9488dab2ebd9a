"""How options are declared: once, as a flag, an environment variable and a key of the configuration file.

`--data-dir` is also `SFNODE_DATA_DIR` and `data-dir` in the file. The file is flat TOML: a key applies to
every command that has the option. Order of precedence: flag, environment, file, default. This module refuses
to know what any option means.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

import click

from sfnode.errors import Code, UserError
from sfnode.limits import MOST_THREADS

F = TypeVar("F", bound=Callable[..., Any])

PREFIX = "SFNODE_"
"""Of every environment variable."""

DEFAULT_CONFIG = Path("~/.config/sfnode/config.toml")
DEFAULT_DATA_DIR = Path("~/.sfnode")

MOST_QUERIES = 64
"""Updates of one step: as many as the settings of a node allow."""

LOCALHOST = "127.0.0.1"
"""Where a node serves what it knows unless its owner names another address."""


def variable(flag: str) -> str:
    """The environment variable of a flag: `--data-dir` has SFNODE_DATA_DIR."""
    return PREFIX + flag.removeprefix("--").replace("-", "_").upper()


def option(*names: str, **settings: Any) -> Callable[[F], F]:
    """`click.option` with its environment variable."""
    flag = next(name for name in names if name.startswith("--")).partition("/")[0]
    return click.option(*names, envvar=variable(flag), show_envvar=True, **settings)


def link_argument(function: F) -> F:
    """LINK, the same everywhere; an argument, and so without a key in the file."""
    return click.argument("link", required=False, metavar="[LINK]", envvar=variable("--link"))(function)


def data_dir_option(function: F) -> F:
    """--data-dir, the same everywhere."""
    return option(
        "--data-dir",
        type=click.Path(path_type=Path),
        metavar="FOLDER",
        default=DEFAULT_DATA_DIR,
        show_default=True,
        callback=lambda _context, _parameter, value: value.expanduser(),
        help="The node's folder: keys, run manifest, update log, control socket. One folder, one node.",
    )(function)


def model_option(function: F) -> F:
    """--model for a run that has its manifest already."""
    return option(
        "--model",
        type=click.Path(path_type=Path),
        metavar="FOLDER",
        help="Base model, if not where the manifest says; its digest must be the manifest's.",
    )(function)


def device_option(function: F) -> F:
    """--device, the same everywhere."""
    return option(
        "--device",
        default="cpu",
        show_default=True,
        metavar="NAME",
        help="Where to compute: cpu, cuda, cuda:1, mps.",
    )(function)


def dtype_option(function: F) -> F:
    """--dtype for a model that is run."""
    return option(
        "--dtype",
        type=click.Choice(["auto", "float32", "bfloat16", "float16", "int8", "nf4"]),
        default="auto",
        show_default=True,
        help="What the model is held and computed in; int8 and nf4 hold its matrices in 8 and 4 bits. auto: "
        "float32 on a CPU, bfloat16 elsewhere. Nodes of one run may differ.",
    )(function)


def peers_option(text: str) -> Callable[[F], F]:
    """--peers, with what a command does with them; the same for the options below."""
    return option("--peers", multiple=True, metavar="MULTIADDR", help=text)


def run_option(text: str) -> Callable[[F], F]:
    """--run."""
    return option("--run", type=click.Path(path_type=Path), metavar="FILE", help=text)


def threads_option(text: str) -> Callable[[F], F]:
    """--threads; 0 for the default."""
    count = click.IntRange(0, MOST_THREADS)
    return option("--threads", type=count, default=0, metavar="COUNT", help=text)


def queries_option(text: str) -> Callable[[F], F]:
    """--queries."""
    return option(
        "--queries",
        type=click.IntRange(1, MOST_QUERIES),
        default=1,
        show_default=True,
        metavar="COUNT",
        help=text,
    )


def host_maddrs_option(text: str) -> Callable[[F], F]:
    """--host-maddrs."""
    return option(
        "--host-maddrs",
        multiple=True,
        default=["/ip4/0.0.0.0/tcp/0"],
        show_default=True,
        metavar="MULTIADDR",
        help=text,
    )


def parse_place(_context: Any, _parameter: Any, value: str | None) -> tuple[str, int] | None:
    """`[HOST:]PORT` to listen on, as (host, port): this machine's own unless a host is given."""
    if value is None:
        return None
    host, _, port = value.rpartition(":")
    if not port.isdecimal() or int(port) > 65_535 or (":" in host and not host.startswith("[")):
        raise click.BadParameter("give it as PORT or HOST:PORT, for example 9100 or 0.0.0.0:9100")
    return host.strip("[]") or LOCALHOST, int(port)


def json_option(function: F) -> F:
    """--json, the same everywhere."""
    return option("--json", "as_json", is_flag=True, help="Print JSON for programs (docs/json.md).")(function)


def config_file(given: Path | None) -> Path:
    """The configuration file that counts, whether it exists or not."""
    return (given or DEFAULT_CONFIG).expanduser()


def read_config(given: Path | None, commands: Mapping[str, click.Command]) -> dict[str, dict[str, Any]]:
    """The configuration file as click's default map: by command, then by parameter.

    Raises UserError BAD_OPTION for a file that does not parse (or that was named and is not there), for a key
    that no command has, and for a value of the wrong shape. Whether a value makes sense, the option says.
    """
    file = config_file(given)
    if given is None and not file.exists():
        return {}
    try:
        values = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise _bad_config(file, str(error)) from error
    options = {name: _options(command) for name, command in commands.items()}
    known = {key: option for of_command in options.values() for key, option in of_command.items()}
    try:
        texts = {key: _as_text(key, value, known) for key, value in values.items()}
    except ValueError as error:
        raise _bad_config(file, str(error)) from error
    return {
        name: {str(of_command[key].name): text for key, text in texts.items() if key in of_command}
        for name, of_command in options.items()
    }


def _options(command: click.Command) -> dict[str, click.Parameter]:
    """A command's options by their key in the file: the flag without its dashes."""
    parameters = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
    return {long_name(parameter.opts).removeprefix("--"): parameter for parameter in parameters}


def long_name(names: Iterable[str]) -> str:
    """The long one of an option's flags."""
    return next(name for name in names if name.startswith("--"))


def _as_text(key: str, value: Any, known: Mapping[str, click.Parameter]) -> str | list[str]:
    """The value as one would type it, for click to understand. Raises ValueError."""
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


def _bad_config(file: Path, reason: str) -> UserError:
    return UserError(
        Code.BAD_OPTION,
        f"the configuration file {file} is not usable: {reason}",
        'Its keys are the long options without the dashes in front, such as data-dir = "/srv/sfnode".',
    )
