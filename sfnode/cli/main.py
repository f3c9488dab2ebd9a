"""The command `sfnode`: a table of its commands, and the handling of errors.

A command's module is imported when the command is run, and loads torch, asyncio or pydantic only if it needs
them. So `sfnode status` takes less time than the import of one such library.
"""

from __future__ import annotations

import errno
import gc
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

import click

import sfnode
from sfnode.cli.exit import DONE, interrupted, show, show_usage
from sfnode.cli.groups import Entry, LazyGroup, inner_commands
from sfnode.cli.options import config_file, long_name, option
from sfnode.cli.output import begin
from sfnode.defaults import CONFIG
from sfnode.errors import Code, UserError
from sfnode.printable import read_toml

COLLECTED_AFTER = 10_000
"""Number of new objects after which Python's garbage collector runs. Python's default is 700. With the
default, the collector takes an eighth of the time in which a node loads its libraries, although imported
objects are never garbage."""

COMMANDS = {
    "Join": {
        "join": (
            "join",
            "Run a node: join a run, or start one.",
            "join sfnode:AZMB... --limit cpu=50,hours=22:00-07:00",
        ),
        "invite": ("invite", "Print the link with which others join.", "invite"),
        "swarm": ("swarm", "Run several nodes here and compare them.", "swarm --nodes 4"),
        "leave": ("owner", "End a running node.", "leave --finish"),
        "pause": ("owner", "Have a running node compute nothing for a while.", "pause 2h"),
        "resume": ("owner", "End a pause.", "resume"),
        "limit": ("owner", "Show or change the limits of a running node.", "limit cpu=50,hours=22:00-07:00"),
    },
    "Watch": {
        "status": ("status", "Show what a running node is doing.", "status"),
        "top": ("dashboard", "Watch a running node in the terminal.", "top"),
        "dashboard": ("dashboard", "Show a running node in the browser.", "dashboard --listen 8380"),
        "log": ("history", "Show what was decided, and who brought what.", "log"),
        "leaderboard": ("leaderboard", "Show what each member has brought, and its worth.", "leaderboard"),
        "list": ("status:list_", "List the runs on this machine.", "list"),
    },
    "Organise": {
        "init": ("init", "Make a run of your data.", "init tickets.csv"),
        "organise": ("organise", "See and decide what counts in your run."),
    },
    "Result": {
        "use": ("use", "Ask the trained model.", "use"),
        "eval": ("evaluate:evaluate", "Measure the base and the trained model.", "eval"),
        "export": ("export", "Write the trained model to a folder.", "export --out model"),
        "verify": ("verify", "Replay the log and check every signature.", "verify"),
        "publish": ("main", "Write pages about runs for any web server."),
        "history": ("main", "Go back in a run, fork it, keep it in one file."),
    },
    "This machine": {
        "doctor": (
            "doctor",
            "Find out what would keep a node from working here.",
            "doctor --link sfnode:AZMB...",
        ),
        "service": ("main", "Have systemd keep a node running."),
        "peer-id": (
            "invite:peer_id_command",
            "Print a folder's peer id, even before its node runs.",
            "peer-id --data-dir node",
        ),
        "keys": ("main", "Keep your keys in an encrypted file."),
        "completion": (
            "groups",
            "Print the script that completes commands in your shell.",
            "completion bash",
        ),
        "lab": ("sflab.cli.lab", "Measure and simulate, for researchers."),
    },
}


def group(path: str, text: str, entries: Mapping[str, Entry]) -> LazyGroup:
    """Return a group of the commands in `entries`, with the help `text`."""
    return LazyGroup(entries={"Commands": entries}, path=path, help=text)


publish = group(
    "publish",
    "Write pages about runs, for any web server.",
    {
        "page": ("publish", "Write a page about a run.", "page --out www/owls --every 10m"),
        "directory": (
            "publish",
            "Write a page about several runs.",
            "directory www/owls/run.json www/bees/run.json --out www",
        ),
    },
)

service = group(
    "service",
    "Have the user's systemd start a node, and keep it running.",
    {
        "install": (
            "service",
            "Write a unit that runs `sfnode join`.",
            "install --profile owls --limit cpu=50",
        ),
        "remove": ("service", "Remove that unit.", "remove --profile owls"),
    },
)

keys = group(
    "keys",
    "Keep the keys of a node, and of the runs that you organise, in one encrypted file.",
    {
        "backup": ("passphrases", "Write the keys to an encrypted file.", "backup --out keys.backup"),
        "restore": ("passphrases", "Put the keys of a backup back.", "restore keys.backup"),
    },
)

history = group(
    "history",
    "Go back to any seal of a run, start another from there, keep it in one file.",
    {
        "checkout": (
            "history",
            "Recompute the state, or the model, of any seal.",
            "checkout 3 --out model-3",
        ),
        "fork": ("fork", "Start a new run from a seal.", "fork 7 --out owls-2"),
        "archive": ("export", "Write the run to one file that verifies itself.", "archive --out owls.sfnode"),
        "import": (
            "export:import_",
            "Take in the archive of a run, verified.",
            "import owls.sfnode --data-dir owls",
        ),
    },
)


@click.group(
    cls=LazyGroup,
    entries=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Example:  sfnode join LINK   joins a run; `sfnode swarm` shows one on this machine.",
)
@click.version_option(sfnode.__version__, prog_name="sfnode")
@option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    help=f"Configuration file (TOML).  [default: {CONFIG}, if it exists]",
)
@click.pass_context
def cli(context: click.Context, config: Path | None) -> None:
    """Train a language model together with others. Every node ends with the same model, to the bit.

    Options are also variables and keys of the file: --data-dir is SFNODE_DATA_DIR and data-dir.
    """
    file, command = config_file(config), context.invoked_subcommand
    if command is None or (config is None and not file.exists()):
        return
    assert isinstance(cli, LazyGroup)
    others = cli.load_installed(name for name in cli.entries if name != command)
    context.default_map = {command: read_config(file, cli.load(command), others)}


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit. An error that a user can fix is one message, never a traceback."""
    gc.set_threshold(COLLECTED_AFTER)
    sys.exit(_status(arguments))


def _status(arguments: Sequence[str] | None) -> int:
    begin(as_json="--json" in (sys.argv if arguments is None else arguments))
    try:
        return int(cli(arguments, prog_name="sfnode", standalone_mode=False) or DONE)
    except click.ClickException as error:
        return show_usage(error)
    except UserError as error:
        return show(error)
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        return show(_no_name(error))
    except (click.Abort, KeyboardInterrupt):
        return interrupted()


def _no_name(error: OSError) -> UserError:
    """Return the error for a file name that is too long. A manifest made by others may contain one."""
    return UserError(
        Code.BAD_OPTION,
        f"a name is too long for a file: {error.filename}",
        "Name another file. If the run's manifest names this one, nobody can take part in the run.",
    )


Options = dict[str, click.Option]
"""Options, keyed by their name in the configuration file: the flag without its dashes."""


def read_config(file: Path, command: click.Command, others: Iterator[click.Command]) -> dict[str, Any]:
    """Return the values in `file` for the options of `command`, as text, keyed by parameter name. For a
    group, return such a dict for each of its commands, keyed by the command's name.

    A key of another command is ignored. To recognise such keys, the commands `others` are loaded one by one,
    until every key is known. Raises UserError BAD_OPTION for a file that cannot be read or parsed, for an
    unknown key, and for a value of the wrong type. Whether a value is allowed is checked later, by its
    option.
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
    """Return `own`, the options of the command, together with options of `others`. The commands `others` are
    loaded one by one, until all keys in `values` are known."""
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
    """Return a value of the file as text, as users type it on the command line. Raises ValueError."""
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
