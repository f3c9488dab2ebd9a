"""How the program ends: what is shown of an error, and with which status.

Statuses: 0 done; 1 something that the user can act on, with its SF number; 2 a command line that makes no
sense; 130 interrupted. It knows nothing of what was being done.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar

import click
from click.core import ParameterSource

from sfnode.cli.options import config_file
from sfnode.errors import UserError

T = TypeVar("T")

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


@contextmanager
def ended_at_once() -> Iterator[None]:
    """While it lasts a signal ends the process on the spot, as without any handler.

    For work that keeps the event loop from seeing signals and leaves nothing half done, such as importing a
    large library: on a slow machine that takes longer than a service manager waits.
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


async def interruptible(work: Coroutine[Any, Any, T]) -> T:
    """Await `work`; SIGTERM and SIGHUP cancel it, as Ctrl-C does, until `work` handles them itself.

    A signal that whoever started us had ignored (as nohup does) stays ignored. Ctrl-C is asyncio's own.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, task.cancel)
    return await work
