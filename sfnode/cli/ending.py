"""How the program ends: what is shown of an error, and with which status.

Statuses: 0 done; 1 something that the user can act on, with its SF number; 2 a command line that makes no
sense; 130 interrupted. It knows nothing of what was being done.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn

import click
from click.core import ParameterSource

from sfnode.cli.options import config_file
from sfnode.errors import UserError

DONE, FAILED, INTERRUPTED = 0, 1, 130


def show(error: UserError) -> int:
    """Say what happened and what to do; returns the exit status."""
    click.echo(f"sfnode: {error}", err=True)
    return FAILED


def show_usage(error: click.ClickException) -> int:
    """Show click's own message, and where a bad value came from if not from the command line."""
    error.show()
    context, parameter = getattr(error, "ctx", None), getattr(error, "param", None)
    if context and parameter and context.get_parameter_source(parameter.name) is ParameterSource.DEFAULT_MAP:
        file = config_file(context.find_root().params.get("config"))
        click.echo(f"The value is from the configuration file {file}.", err=True)
    return error.exit_code


def leave(status: int) -> NoReturn:
    """End the process now, without waiting for threads; for a node, which has everything on disk."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def as_interrupt(*_: object) -> None:
    """A signal handler that makes of another signal what Ctrl-C would be."""
    signal.raise_signal(signal.SIGINT)
