"""The command `sfnode`: its subcommands, and what becomes of errors.

Nothing here, nor in a module imported at the top of a command's, loads torch: help and status are instant.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

import sfnode
from sfnode.cli.init import init
from sfnode.cli.join import join
from sfnode.cli.offline import evaluate, export, verify
from sfnode.cli.options import DEFAULT_CONFIG, read_config
from sfnode.cli.status import status, stop
from sfnode.cli.swarm import swarm
from sfnode.errors import UserError


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(sfnode.__version__, prog_name="sfnode")
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="SFNODE_CONFIG",
    show_envvar=True,
    help=f"Configuration file (TOML) with defaults for options; {DEFAULT_CONFIG} if it exists.",
)
@click.pass_context
def cli(context: click.Context, config: Path | None) -> None:
    """Train a language model together with others. Every node ends with the same model, to the bit.

    See it work:  sfnode swarm

    Join a run:   sfnode join --peers ADDRESS
    """
    context.default_map = read_config(config, cli.commands)


for command in (init, join, swarm, status, stop, export, verify, evaluate):
    cli.add_command(command)


def main() -> None:
    """Run the command line; a mistake ends in one clear message and status 1 or 2, never a traceback."""
    try:
        sys.exit(cli(standalone_mode=False) or 0)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except UserError as error:
        click.echo(f"sfnode: {error}", err=True)
        sys.exit(1)
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(141)
