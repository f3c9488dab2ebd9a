"""The loop of a program that has nothing to lose: a line of JSON in, a line of JSON out, within bounds.

What came with a stranger's model is run in such a program: chat templates, tokenizers, and what makes a model
of a configuration. The program ends itself when an answer takes too long, when nobody has asked for a while,
and when its standard input ends; `bounded_process` starts it and says what happened. Knows no model.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

LONGEST_REASON = 4_000
"""Characters of the reason that an answer gives for a refusal: what is longer is a stranger's text."""

NO_MEMORY = "it takes more memory than it may"

Answer = Callable[[Any], dict[str, Any]]
"""Returns the reply to a request, or raises: it runs a stranger's program, which raises what it likes."""


def serve(answer: Answer) -> None:
    """Answer requests until there are no more, each within the bounds that the command line names."""
    seconds, memory, idle = map(float, sys.argv[1:])
    with suppress(ValueError, OSError):  # macOS keeps no such limit: whoever asks watches the memory as well
        most = int(memory) + _address_space()
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    signal.setitimer(signal.ITIMER_REAL, idle)  # the signals of either timer end a process, whatever it does
    for line in sys.stdin.buffer:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.setitimer(signal.ITIMER_PROF, seconds)
        reply = _reply(answer, line)
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.write(f"{reply}\n")
        sys.stdout.flush()
        signal.setitimer(signal.ITIMER_REAL, idle)


def _address_space() -> int:
    """Return the bytes that this process has taken for its libraries; 0 where that is unknown."""
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
