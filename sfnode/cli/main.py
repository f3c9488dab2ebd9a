"""The command `sfnode`: its commands by name, and what becomes of errors.

A command's module is imported when the command is run, and loads torch, asyncio or pydantic only if it needs
them: `sfnode status` ends before a library like that would have been imported.
"""

from __future__ import annotations

import errno
import gc
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import click

import sfnode
from sfnode.cli.exit import DONE, interrupted, show, show_usage
from sfnode.cli.groups import Lazy, LazyGroup
from sfnode.cli.options import config_file, option
from sfnode.cli.output import begin
from sfnode.defaults import CONFIG
from sfnode.errors import Code, UserError

COLLECTED_AFTER = 10_000
"""Objects after which Python looks for garbage, in place of 700: nothing that is imported is any, and looking
takes an eighth of the time in which a node loads its libraries."""

COMMANDS = {
    "Join": {
        "join": Lazy(
            "join:join",
            "Run a node: join a run, or start one.",
            "sfnode join sfnode:AZMB... --limit cpu=50,hours=22:00-07:00",
        ),
        "invite": Lazy("invite:invite", "Print the link with which others join.", "sfnode invite"),
        "swarm": Lazy("swarm:swarm", "Run several nodes here and compare them.", "sfnode swarm --nodes 4"),
        "leave": Lazy("owner:leave", "End a running node.", "sfnode leave --finish"),
        "pause": Lazy("owner:pause", "Have a running node compute nothing for a while.", "sfnode pause 2h"),
        "resume": Lazy("owner:resume", "End a pause.", "sfnode resume"),
        "limit": Lazy(
            "owner:limit",
            "Show or change the limits of a running node.",
            "sfnode limit cpu=50,hours=22:00-07:00",
        ),
    },
    "Watch": {
        "status": Lazy("status:status", "Show what a running node is doing.", "sfnode status"),
        "top": Lazy("dashboard:top", "Watch a running node in the terminal.", "sfnode top"),
        "dashboard": Lazy(
            "dashboard:dashboard", "Show a running node in the browser.", "sfnode dashboard --listen 8380"
        ),
        "log": Lazy("history:log", "Show what was decided, and who brought what.", "sfnode log"),
        "leaderboard": Lazy(
            "leaderboard:leaderboard",
            "Show what each member has brought, and its worth.",
            "sfnode leaderboard",
        ),
        "list": Lazy("list:list_", "List the runs on this machine.", "sfnode list"),
    },
    "Organise": {
        "init": Lazy("init:init", "Make a run of your data.", "sfnode init tickets.csv"),
        "organise": Lazy("organise:organise", "See and decide what counts in your run."),
    },
    "Result": {
        "use": Lazy("use:use", "Ask the trained model.", "sfnode use"),
        "eval": Lazy("evaluate:evaluate", "Measure the base and the trained model.", "sfnode eval"),
        "export": Lazy("export:export", "Write the trained model to a folder.", "sfnode export --out model"),
        "verify": Lazy("verify:verify", "Replay the log and check every signature.", "sfnode verify"),
        "certificate": Lazy("main:certificate", "Certify what a member has brought."),
        "publish": Lazy("main:publish", "Write pages about runs for any web server."),
        "history": Lazy("main:history", "Go back in a run, fork it, keep it in one file."),
    },
    "This machine": {
        "doctor": Lazy(
            "doctor:doctor",
            "Find out what would keep a node from working here.",
            "sfnode doctor --link sfnode:AZMB...",
        ),
        "service": Lazy("main:service", "Have systemd keep a node running."),
        "peer-id": Lazy(
            "invite:peer_id_command",
            "Print a folder's peer id, even before its node runs.",
            "sfnode peer-id --data-dir node",
        ),
        "keys": Lazy("main:keys", "Keep your keys in an encrypted file."),
        "completion": Lazy(
            "groups:completion",
            "Print the script that completes commands in your shell.",
            "sfnode completion bash",
        ),
        "lab": Lazy("sflab.cli.lab:lab", "Measure and simulate, for researchers."),
    },
}


def group(text: str, entries: Mapping[str, Lazy]) -> LazyGroup:
    """Return a group of these commands."""
    return LazyGroup(entries={"Commands": entries}, help=text)


certificate = group(
    "Certify what a member has brought to a run, and check such a certificate.",
    {
        "make": Lazy(
            "certificate:make",
            "Certify what the member with KEY has brought.",
            "sfnode certificate make 5e6f7a8b --out ada.svg",
        ),
        "check": Lazy(
            "certificate:check", "Compute a certificate anew and compare.", "sfnode certificate check ada.svg"
        ),
    },
)

publish = group(
    "Write pages about runs, for any web server.",
    {
        "page": Lazy(
            "publish:page", "Write a page about a run.", "sfnode publish page --out www/owls --every 10m"
        ),
        "directory": Lazy(
            "publish:directory",
            "Write a page about several runs.",
            "sfnode publish directory www/owls/run.json www/bees/run.json --out www",
        ),
    },
)

service = group(
    "Have the user's systemd start a node, and keep it running.",
    {
        "install": Lazy(
            "service:install",
            "Write a unit that runs `sfnode join`.",
            "sfnode service install --profile owls --limit cpu=50",
        ),
        "remove": Lazy("service:remove", "Remove that unit.", "sfnode service remove --profile owls"),
    },
)

keys = group(
    "Keep the keys of a node, and of the runs that you organise, in one encrypted file.",
    {
        "backup": Lazy(
            "backup:backup", "Write the keys to an encrypted file.", "sfnode keys backup --out keys.backup"
        ),
        "restore": Lazy(
            "backup:restore", "Put the keys of a backup back.", "sfnode keys restore keys.backup"
        ),
    },
)

history = group(
    "Go back to any seal of a run, start another from there, keep it in one file.",
    {
        "diff": Lazy("history:diff", "Show what has changed between two seals.", "sfnode history diff 3 7"),
        "checkout": Lazy(
            "history:checkout",
            "Recompute the state, or the model, of any seal.",
            "sfnode history checkout 3 --out model-3",
        ),
        "fork": Lazy("fork:fork", "Start a new run from a seal.", "sfnode history fork 7 --out owls-2"),
        "archive": Lazy(
            "export:archive",
            "Write the run to one file that verifies itself.",
            "sfnode history archive --out owls.sfnode",
        ),
        "import": Lazy(
            "export:import_",
            "Take in the archive of a run, verified.",
            "sfnode history import owls.sfnode --data-dir owls",
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
    from sfnode.cli.config_file import read_config

    assert isinstance(cli, LazyGroup)
    others = cli.load_installed(name for name in cli.entries if name != command)
    context.default_map = {command: read_config(file, cli.load(command), others)}


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit; an error that a user can act on is one message, never a traceback."""
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
    """Return the error for a name that no file can have: a manifest of others may have any."""
    return UserError(
        Code.BAD_OPTION,
        f"a name is too long for a file: {error.filename}",
        "Name another file. If the run's manifest names this one, nobody can take part in the run.",
    )
