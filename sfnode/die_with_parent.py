"""Starts a program that dies with its parent: `python die_with_parent.py PARENT_PID PROGRAM ARGUMENTS...`

A node killed with SIGKILL must not leave its p2pd behind, holding the port. This program takes the place of
Python code between fork and exec, which can deadlock in a process with threads. It is started by path under
`python -I -S` and imports nothing of sfnode.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
"""Option of prctl(2): send this process a signal when the parent *thread* ends. The setting survives exec."""


def tied(command: list[str]) -> list[str]:
    """Return the command line of a child that the system kills when this process ends (on Linux)."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *command]


def tie(parent: int) -> None:
    """Have the system kill this process when its parent ends (on Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # Elsewhere p2pd ends by itself when its control connection closes, unless it hangs.
    if os.getppid() != parent:
        sys.exit("the parent died first")


def main(parent: str, program: str, *arguments: str) -> None:
    tie(int(parent))
    try:
        os.execv(program, [program, *arguments])
    except OSError as error:
        sys.exit(f"cannot run {program}: {error.strerror}")


if __name__ == "__main__":
    main(*sys.argv[1:])
