"""Runs a program in a process with bounded time and memory: a line of JSON in, a line of JSON out.

The code of a stranger's model runs in such a program: chat templates, tokenizers, and building a model from a
configuration. `BoundedProcess` starts the process at the first request and watches its memory. It starts a
new process after a request has brought down the old process. The program ends itself when an answer takes too
long, after a while without requests, and at the end of its standard input. This module does not know what the
requests mean.
"""

from __future__ import annotations

import json
import os
import resource
import selectors
import signal
import subprocess
import sys
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any

import psutil

from sfnode.descriptors import patiently

LOOK = 0.02
"""Seconds between two checks of a process's memory while it works on an answer. Most answers arrive before
the first check."""

GONE = 5.0
"""Time limit, in seconds, for a process to exit after it has closed its output. It is long enough for the
slowest machine."""

NO_TIME = "it takes more time than it may"
NO_MEMORY = "it takes more memory than it may"

ENDS = {-signal.SIGPROF: NO_TIME, -signal.SIGABRT: NO_MEMORY, -signal.SIGKILL: NO_MEMORY}
"""Descriptions of the exceeded bound, keyed by the exit status of the process. When memory runs out, a
library aborts the process (SIGABRT) or the system kills it (SIGKILL)."""

ALONE = {"TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
"""Environment variables of a bounded process. They limit its libraries to a single thread, because the stacks
of threads count as memory, and keep it from the hub."""


class BoundedProcess:
    """A program in a bounded process. Any thread may send requests. They are answered one at a time."""

    def __init__(
        self,
        program: str,
        seconds: float,
        memory: int,
        *,
        idle: float = 0,
        opening: Callable[[], Any] | None = None,
    ) -> None:
        """`program` is the name of a module that calls `serve`. An answer may take `seconds` of processor
        time. The process may take `memory` bytes, and ends after `idle` seconds without a request (0: never).
        `opening` returns the first request to each new process."""
        self._program = program
        self._bounds = seconds, memory, idle
        self._opening = opening
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = Lock()

    def ask(self, request: Any) -> dict[str, Any]:
        """Return the reply to `request`, a value that JSON can express.

        The reply has the key `refused` with a reason if the program raised an error. It has the key `broke`
        with a reason if the program broke a bound or ended its process.
        """
        with self._lock:
            while True:
                reply = self._ask(request)
                if reply is not None:
                    return reply

    def close(self) -> None:
        """End the process, if there is one."""
        with self._lock:
            self._end()

    def _ask(self, request: Any) -> dict[str, Any] | None:
        """Return the reply; None if the process ended itself because no request came for too long."""
        if self._process is not None and self._process.poll() is not None:
            self._end()  # it was killed, or it ended for lack of requests
        if self._process is None:
            self._process = _start(self._program, *self._bounds)
            self._ending = weakref.finalize(self, _kill, self._process)
            if self._opening is not None:
                reply = self._exchange(self._process, self._opening())
                if reply is None or failed(reply):
                    self._end()
                    return reply
        return self._exchange(self._process, request)

    def _exchange(self, process: subprocess.Popen[bytes], request: Any) -> dict[str, Any] | None:
        assert process.stdin
        assert process.stdout
        line, small = b"", True
        with suppress(BrokenPipeError):
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
            small = self._watch(process)
            line = process.stdout.readline() if small else b""
        if line:
            return dict(json.loads(line))
        status = _status(process) if small else -signal.SIGKILL
        self._end()
        if status == -signal.SIGALRM:
            return None
        return {"broke": ENDS.get(status, "it brings down the process that it runs in")}

    def _watch(self, process: subprocess.Popen[bytes]) -> bool:
        """Wait for an answer, or for the process to end. Return False if the process takes too much
        memory."""
        with selectors.PollSelector() as selector:  # which takes no descriptor
            selector.register(process.stdout, selectors.EVENT_READ)  # type: ignore[arg-type]
            while not selector.select(LOOK):
                if _memory(process.pid) > self._bounds[1]:
                    return False
        return True

    def _end(self) -> None:
        if self._process is not None:
            self._process = None
            self._ending()


def failed(reply: dict[str, Any]) -> bool:
    """Return whether a reply has the key `broke` or `refused`, with a reason, instead of an answer."""
    return "broke" in reply or "refused" in reply


def _start(program: str, *bounds: float) -> subprocess.Popen[bytes]:
    found = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}  # where this program finds modules
    return patiently(
        lambda: subprocess.Popen(
            [sys.executable, "-P", "-m", program, *map(str, bounds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | ALONE | found,
            process_group=0,  # Ctrl-C is for the program that asks
        )
    )


def _kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    with suppress(BrokenPipeError):
        process.communicate()  # closes its pipes


def _status(process: subprocess.Popen[bytes]) -> int:
    """Return the exit status of a process that closed its output; 0 if it has not ended."""
    with suppress(subprocess.TimeoutExpired):
        return process.wait(GONE)
    return 0


def _memory(process: int) -> int:
    try:
        return patiently(lambda: int(psutil.Process(process).memory_info().rss))
    except psutil.Error:  # it has just ended
        return 0


LONGEST_REASON = 4_000
"""Maximum length of a refusal's reason, in characters. A longer reason is a stranger's text, and is cut."""

Answer = Callable[[Any], dict[str, Any]]
"""Function that returns the reply to a request. It may raise any error, because it runs a stranger's
program."""


def serve(answer: Answer) -> None:
    """Answer requests until the end of standard input, within the bounds that the command line gives."""
    seconds, memory, idle = map(float, sys.argv[1:])
    with suppress(ValueError, OSError):  # macOS has no such limit; the caller checks the memory, too
        most = int(memory) + _address_space()
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    signal.setitimer(signal.ITIMER_REAL, idle)  # the signal of either timer ends the process
    for line in sys.stdin.buffer:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.setitimer(signal.ITIMER_PROF, seconds)
        reply = _reply(answer, line)
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.write(f"{reply}\n")
        sys.stdout.flush()
        signal.setitimer(signal.ITIMER_REAL, idle)


def _address_space() -> int:
    """Return the size of this process's address space, in bytes; 0 where it is unknown."""
    with suppress(OSError):
        return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    return 0


def _reply(answer: Answer, line: bytes) -> str:
    try:
        return json.dumps(answer(json.loads(line)))
    except MemoryError:
        return json.dumps({"broke": NO_MEMORY})
    except Exception as error:
        return json.dumps({"refused": str(error)[:LONGEST_REASON] or type(error).__name__})
