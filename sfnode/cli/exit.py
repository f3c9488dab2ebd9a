"""The end of the program: how errors are shown, as text or as JSON, and the exit status."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import click
from click.core import ParameterSource

from sfnode.cli import output
from sfnode.cli.options import config_file
from sfnode.cli.output import echo, echo_usage
from sfnode.errors import Code, UserError

DONE, FAILED, USAGE, NOT_RUNNING, INTERRUPTED = 0, 1, 2, 3, 130
"""Exit statuses, described in docs/errors.md. 3 means "not running", as it does for init scripts."""


def status_of(error: UserError) -> int:
    """Return the exit status of a command that ends with this error."""
    return NOT_RUNNING if error.code is Code.NODE_NOT_RUNNING else FAILED


def show(error: UserError) -> int:
    """Print the error that ended the command, and how to fix it. Return the exit status."""
    status = status_of(error)
    code = f"SF{error.code:03d}"
    if not _printed_as_json(status, code=code, name=error.code.name, what=error.what, fix=error.fix):
        warn(error)
    return status


def warn(error: UserError) -> None:
    """Print a warning on standard error, as text even with --json. The command continues."""
    echo(f"sfnode: {error}", err=True)


def show_usage(error: click.ClickException) -> int:
    """Print click's message about a wrong command line. If the wrong value is from the configuration file,
    name the file. Return the exit status."""
    context, parameter = getattr(error, "ctx", None), getattr(error, "param", None)
    fix = f"See `{context.command_path if context else 'sfnode'} --help`."
    if context and parameter and context.get_parameter_source(parameter.name) is ParameterSource.DEFAULT_MAP:
        file = config_file(context.find_root().params.get("config"))
        fix = f"The value is from the configuration file {file}."
    if _printed_as_json(error.exit_code, code="usage", name="USAGE", what=error.format_message(), fix=fix):
        return error.exit_code
    echo_usage(error)
    if fix.startswith("The value"):
        echo(fix, err=True)
    return error.exit_code


def interrupted() -> int:
    """Report the interruption of the command, and return the exit status."""
    if not _printed_as_json(INTERRUPTED, code="interrupted", name="INTERRUPTED", what="interrupted", fix=""):
        echo("interrupted", err=True)
    return INTERRUPTED


def _printed_as_json(status: int, **error: str) -> bool:
    """Print the error as a JSON object, if the command has --json and has printed no object yet. Return
    whether the error was printed."""
    if not output.state.as_json or output.state.printed:
        return False
    echo(json.dumps({"error": {**error, "status": status}}, indent=2, ensure_ascii=False))
    return True


def leave(status: int) -> NoReturn:
    """End the process now, without waiting for threads. Nothing is lost, because a node's data are on
    disk."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


@contextmanager
def ended_at_once() -> Iterator[None]:
    """Remove the signal handlers within the block, so that a signal ends the process at once.

    Such a block can be interrupted without harm, but handlers on the event loop cannot run within it. An
    example is the import of a large library: on a slow machine it takes longer than a service manager waits
    after SIGTERM.
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
