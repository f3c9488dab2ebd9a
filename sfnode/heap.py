"""The heap of the C library, in which tensors on a CPU and numpy's arrays are allocated."""

from __future__ import annotations

import ctypes


def trim() -> None:
    """Return freed memory to the system. Without this call glibc keeps freed pages that lie below a block in
    use, so that a process with tensors of many sizes grows for hours. Other C libraries need no call."""
    of_glibc = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if of_glibc is not None:
        of_glibc(0)
