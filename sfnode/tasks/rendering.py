"""Renders chat templates in a process of their own, which a template can neither hold up nor fill.

Starts the process when it is first needed, watches its memory, and starts another when a template has brought
it down. Knows templates and variables; it knows no tokenizer and no task.
"""

from __future__ import annotations

import atexit
import json
import selectors
import subprocess
import sys
from threading import Lock
from typing import Any

import psutil

from sfnode.errors import Code, UserError
from sfnode.tasks import template_process
from sfnode.tasks.template_process import MEMORY, SECONDS

LOOK = 0.02
"""Seconds between two looks at the memory of a process that has not answered yet. Mostly it has by then."""


class TemplateRefusal(Exception):  # noqa: N818 (an answer, not a fault)
    """The template cannot be read, or refuses the conversation; the text says why."""


class Renderer:
    """A process that renders templates, one at a time, for whichever thread asks."""

    def __init__(self, seconds: float = SECONDS, memory: int = MEMORY) -> None:
        """`seconds` of processor time are allowed for each rendering, and so many bytes of `memory`."""
        self._bounds = seconds, memory
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = Lock()

    def render(self, template: str, variables: dict[str, Any]) -> str:
        """Return the text that a template makes of variables that JSON knows.

        Raises TemplateRefusal, and UserError MODEL_UNSAFE for a template that breaks a bound on its time, its
        memory or the length of its text.
        """
        request = json.dumps([template, variables]).encode() + b"\n"
        with self._lock:
            reply = self._ask(request)
        if "refused" in reply:
            raise TemplateRefusal(reply["refused"])
        if "broke" in reply:
            raise UserError(
                Code.MODEL_UNSAFE,
                f"the model's chat template cannot be used: {reply['broke']}",
                "Take another model, or put a chat template that you trust into a copy of this one "
                "(chat_template.jinja).",
            )
        return str(reply["text"])

    def close(self) -> None:
        """End the process, if there is one."""
        with self._lock:
            self._end()

    def _ask(self, request: bytes) -> dict[str, str]:
        if self._process is None:
            self._process = _start(*self._bounds)
            atexit.register(self.close)
        process = self._process
        assert process.stdin
        assert process.stdout
        try:
            process.stdin.write(request)
            process.stdin.flush()
            small = self._watch(process)
            line = process.stdout.readline() if small else b""
        except BrokenPipeError:
            line, small = b"", True
        if line:
            return dict(json.loads(line))
        self._end()
        return {"broke": f"it takes more {'time' if small else 'memory'} than it may"}

    def _watch(self, process: subprocess.Popen[bytes]) -> bool:
        """Wait for an answer, or for the process to end; return False if it takes too much memory."""
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)  # type: ignore[arg-type]
            while not selector.select(LOOK):
                if _memory(process.pid) > self._bounds[1]:
                    return False
        return True

    def _end(self) -> None:
        process, self._process = self._process, None
        atexit.unregister(self.close)
        if process is not None:
            process.kill()
            process.communicate()  # closes its pipes


def _start(seconds: float, memory: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-P", template_process.__file__, str(seconds), str(memory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        process_group=0,  # Ctrl-C is for the program that asks
    )


def _memory(process: int) -> int:
    try:
        return int(psutil.Process(process).memory_info().rss)
    except psutil.Error:  # it has just ended
        return 0


RENDERER = Renderer()
"""The process for this program's templates."""
