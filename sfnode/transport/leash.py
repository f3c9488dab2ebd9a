"""Becomes another program that dies when its parent does: `python leash.py PARENT_PID PROGRAM ARGUMENTS...`

A node killed with SIGKILL must not leave its p2pd behind, holding the port. This runs between fork and exec
in a process of its own, because Python code between the two in a process with threads can deadlock. It is
started by path under `python -I -S` and imports nothing of sfnode.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
"""From Linux' <linux/prctl.h>; the request survives exec. It acts when the parent's *thread* ends."""


def main(parent: str, program: str, *arguments: str) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # Elsewhere p2pd goes by itself when its control connection closes, though not while it hangs.
    if os.getppid() != int(parent):
        sys.exit("the parent died first")
    try:
        os.execv(program, [program, *arguments])
    except OSError as error:
        sys.exit(f"cannot run {program}: {error.strerror}")


if __name__ == "__main__":
    main(*sys.argv[1:])
