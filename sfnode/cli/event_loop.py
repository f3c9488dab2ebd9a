"""Runs coroutines of commands so that signals end them as Ctrl-C does."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import click

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T], runner: Callable[..., T] = asyncio.run) -> T:
    """Await `work` in an event loop of its own, made by `runner` (`asyncio.run` or `uvloop.run`).

    Raises click.Abort if a signal ends it.
    """
    try:
        return runner(_interruptible(work))
    except asyncio.CancelledError:
        raise click.Abort from None


async def _interruptible(work: Coroutine[Any, Any, T]) -> T:
    """Await `work`; SIGTERM and SIGHUP cancel it, as Ctrl-C does, until `work` handles them itself.

    A signal that the parent process ignored (as nohup does) stays ignored. asyncio itself handles Ctrl-C.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, task.cancel)
    return await work
