"""The command `sfnode`: its commands by name, and what becomes of errors.

A command's module is imported when the command is run, and loads torch, asyncio or pydantic only if it needs
them: `sfnode status` ends before a library like that would have been imported.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import click

import sfnode
from sfnode.cli.exit import DONE, interrupted, show, show_usage
from sfnode.cli.groups import Lazy, LazyGroup
from sfnode.cli.options import DEFAULT_CONFIG, config_file
from sfnode.cli.output import begin
from sfnode.defaults import variable
from sfnode.errors import UserError

COLLECTED_AFTER = 10_000
"""Objects after which Python looks for garbage, in place of 700: nothing that is imported is any, and looking
takes an eighth of the time in which a node loads its libraries."""

COMMANDS = {
    "init": Lazy("sfnode.cli.init:init", "Write the manifest of a new run."),
    "join": Lazy("sfnode.cli.join:join", "Run a node: join a run, or start one."),
    "invite": Lazy("sfnode.cli.invite:invite", "Print the link with which others join."),
    "upgrade-check": Lazy(
        "sfnode.cli.upgrade_check:upgrade_check", "Say whether this sfnode can join a run."
    ),
    "completion": Lazy(
        "sfnode.cli.groups:completion", "Print the script that completes commands in your shell."
    ),
    "peer-id": Lazy(
        "sfnode.cli.invite:peer_id_command", "Print a folder's peer id, even before its node runs."
    ),
    "swarm": Lazy("sfnode.cli.swarm:swarm", "Run a local swarm and compare its nodes."),
    "organise": Lazy("sfnode.cli.organise:organise", "See and decide what counts in an organised run."),
    "status": Lazy("sfnode.cli.status:status", "Show what a running node is doing."),
    "pause": Lazy("sfnode.cli.owner:pause", "Have a running node compute nothing for a while."),
    "resume": Lazy("sfnode.cli.owner:resume", "End a pause."),
    "limit": Lazy("sfnode.cli.owner:limit", "Show or change the limits of a running node."),
    "finish": Lazy("sfnode.cli.owner:finish", "Have a running node complete its step, then leave."),
    "leave": Lazy("sfnode.cli.owner:leave", "End a running node; nothing that is finished is lost."),
    "export": Lazy("sfnode.cli.export:export", "Write the trained model to a folder."),
    "use": Lazy("sfnode.cli.use:use", "Ask the trained model about texts of yours."),
    "verify": Lazy("sfnode.cli.verify:verify", "Replay the log and check every signature."),
    "log": Lazy("sfnode.cli.history:log", "Show what was decided in a run, and who brought what."),
    "checkout": Lazy("sfnode.cli.history:checkout", "Recompute the state, or the model, of any seal."),
    "diff": Lazy("sfnode.cli.history:diff", "Show what has changed between two seals."),
    "leaderboard": Lazy(
        "sfnode.cli.leaderboard:leaderboard", "Show what each member has brought, and its worth."
    ),
    "bisect": Lazy("sfnode.cli.history:bisect", "Find what made the model worse, and whose work it was."),
    "fork": Lazy("sfnode.cli.fork:fork", "Start a new run from a seal of another."),
    "archive": Lazy("sfnode.cli.export:archive", "Write a run to one file that verifies itself."),
    "import": Lazy("sfnode.cli.export:import_", "Take in the archive of a run, verified."),
    "eval": Lazy("sfnode.cli.evaluate:evaluate", "Measure the base and the trained model."),
    "try-reward": Lazy(
        "sfnode.cli.try_reward:try_reward", "Score a base model's answers before a reward run."
    ),
    "bases": Lazy("sfnode.cli.bases:bases", "Make bases to publish for a run."),
    "bench": Lazy("sflab.cli.bench:bench", "Show what this machine can do with a model."),
    "doctor": Lazy("sfnode.cli.doctor:doctor", "Find out what would keep a node from working here."),
    "simulate": Lazy("sflab.cli.simulate:simulate", "Simulate networks under faults, and training."),
    "publish": Lazy("sfnode.cli.publish:publish", "Write a page about a run for any web server."),
    "publish-directory": Lazy(
        "sfnode.cli.publish:publish_directory", "Write a page about several runs from their run.json."
    ),
    "certificate": Lazy("sfnode.cli.certificate:certificate", "Certify what a key has brought to a run."),
    "verify-certificate": Lazy(
        "sfnode.cli.certificate:verify_certificate", "Check a certificate against its run."
    ),
    "top": Lazy("sfnode.cli.dashboard:top", "Watch a running node in the terminal."),
    "list": Lazy("sfnode.cli.list:list_", "List the runs on this machine."),
    "dashboard": Lazy("sfnode.cli.dashboard:dashboard", "Show a running node in the browser."),
}


@click.group(
    cls=LazyGroup,
    entries=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(sfnode.__version__, prog_name="sfnode")
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    envvar=variable("--config"),
    show_envvar=True,
    help=f"Configuration file (TOML) with defaults for options; {DEFAULT_CONFIG} if it exists.",
)
@click.pass_context
def cli(context: click.Context, config: Path | None) -> None:
    """Train a language model together with others. Every node ends with the same model, to the bit.

    \b
    See it work:   sfnode swarm
    Join a run:    sfnode join LINK
    Start a run:   sfnode init, then sfnode join --run run.toml --organise
    Invite others: sfnode invite

    Every option is also an environment variable (its help names it) and a key of the configuration file.
    """
    file, command = config_file(config), context.invoked_subcommand
    if command is None or (config is None and not file.exists()):
        return
    from sfnode.cli.config_file import read_config

    assert isinstance(cli, LazyGroup)
    others = cli.load_installed(name for name in COMMANDS if name != command)
    context.default_map = {command: read_config(file, cli.load(command), others)}


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit; an error that a user can act on is one message, never a traceback."""
    gc.set_threshold(COLLECTED_AFTER)
    sys.exit(_status(arguments))


def _status(arguments: Sequence[str] | None) -> int:
    begin(as_json="--json" in (sys.argv if arguments is None else arguments))
    try:
        return int(cli(arguments, standalone_mode=False) or DONE)
    except click.ClickException as error:
        return show_usage(error)
    except UserError as error:
        return show(error)
    except (click.Abort, KeyboardInterrupt):
        return interrupted()
