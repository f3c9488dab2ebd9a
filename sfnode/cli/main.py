"""The command `sfnode`: its subcommands, and what becomes of errors.

Nothing here, nor in a module imported at the top of a command's, loads torch: help and status are instant.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import click

import sfnode
from sfnode.cli.bench import bench
from sfnode.cli.completion import completion
from sfnode.cli.dashboard import dashboard
from sfnode.cli.doctor import doctor
from sfnode.cli.ending import DONE, INTERRUPTED, show, show_usage
from sfnode.cli.guest import finish, leave, limit, pause, resume
from sfnode.cli.init import init
from sfnode.cli.invite import invite
from sfnode.cli.join import join
from sfnode.cli.offline import evaluate, export, verify
from sfnode.cli.options import DEFAULT_CONFIG, read_config, variable
from sfnode.cli.peerid import peer_id_command
from sfnode.cli.simulate import simulate
from sfnode.cli.status import status
from sfnode.cli.swarm import swarm
from sfnode.cli.top import top
from sfnode.cli.upgrade import upgrade_check
from sfnode.errors import UserError


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
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
    Start a run:   sfnode init, then sfnode join --run run.toml
    Invite others: sfnode invite

    Every option is also an environment variable (its help names it) and a key of the configuration file.
    """
    context.default_map = read_config(config, cli.commands)


for command in (
    init,
    join,
    invite,
    upgrade_check,
    completion,
    peer_id_command,
    swarm,
    status,
    pause,
    resume,
    limit,
    finish,
    leave,
    export,
    verify,
    evaluate,
    bench,
    doctor,
    simulate,
    top,
    dashboard,
):
    cli.add_command(command)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit; what a user can act on is one clear message, never a traceback."""
    sys.exit(_status(arguments))


def _status(arguments: Sequence[str] | None) -> int:
    try:
        return int(cli(arguments, standalone_mode=False) or DONE)
    except click.ClickException as error:
        return show_usage(error)
    except UserError as error:
        return show(error)
    except (click.Abort, KeyboardInterrupt, asyncio.CancelledError):
        click.echo("interrupted", err=True)
        return INTERRUPTED
