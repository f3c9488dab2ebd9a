"""The end of the program: how errors are shown, and the exit status.

Statuses: 0 done; 1 an error that the user can act on, with its SF number; 2 a command line that makes no
sense; 130 interrupted.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import click
from click.core import ParameterSource

from sfnode.cli.options import config_file
from sfnode.cli.output import echo
from sfnode.errors import UserError

DONE, FAILED, INTERRUPTED = 0, 1, 130


def show(error: UserError) -> int:
    """Print what happened and what to do, and return the exit status."""
    echo(f"sfnode: {error}", err=True)
    return FAILED


def show_usage(error: click.ClickException) -> int:
    """Print click's own message, and where a bad value came from if not from the command line."""
    error.show()
    context, parameter = getattr(error, "ctx", None), getattr(error, "param", None)
    if context and parameter and context.get_parameter_source(parameter.name) is ParameterSource.DEFAULT_MAP:
        file = config_file(context.find_root().params.get("config"))
        echo(f"The value is from the configuration file {file}.", err=True)
    return error.exit_code


def leave(status: int) -> NoReturn:
    """End the process now, without waiting for threads: a node has everything on disk."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


@contextmanager
def ended_at_once() -> Iterator[None]:
    """Let signals end the process at once within the block, as without any handler.

    Meant for work during which the event loop sees no signals and which leaves nothing half done, such as
    importing a large library: on a slow machine that takes longer than a service manager waits.
    """
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    handlers = {number: signal.getsignal(number) for number in numbers}
    ours = {number: handler for number, handler in handlers.items() if handler is not signal.SIG_IGN}
    for number in ours:
        signal.signal(number, signal.SIG_DFL)
    try:
        yield
    finally:
        for number, handler in ours.items():
            signal.signal(number, handler)
