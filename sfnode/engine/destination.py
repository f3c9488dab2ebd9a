"""The folder that an export is written to. It appears only once it is complete, with the permissions of any
other new folder.

Files are written to a scratch folder beside it, which is then renamed. This module does not import torch, so
a caller can refuse a bad destination before it loads torch.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sfnode.errors import Code, UserError

PARTIAL = ".partial"
"""Ending of a scratch folder's name."""


def require_new(out: Path) -> None:
    """Raise UserError BAD_OPTION if `out` is anything but a missing or empty folder, or if its nearest
    existing parent is no folder that can be written to."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(
            Code.BAD_OPTION, f"{out} exists already", "Name a new folder, or remove that one first."
        )
    nearest = next(folder for folder in out.absolute().parents if folder.exists())
    if not nearest.is_dir():
        raise _unwritable(out, NotADirectoryError(errno.ENOTDIR, "no folder", str(nearest)))
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise _unwritable(out, PermissionError(errno.EACCES, "no permission", str(nearest)))


def no_adapter(target: str) -> UserError:
    """Return the error for exporting a LoRA adapter from a run that trains `target`, which is a vector or an
    embedding."""
    return UserError(
        Code.BAD_OPTION, f"the run trains {target}, which a LoRA adapter cannot hold", "Use --format hf."
    )


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Yield a scratch folder beside `out`. It takes the place of `out` if the block succeeds, and is removed
    otherwise.

    Raises UserError as `require_new` does, and DISK_FULL.
    """
    from safetensors import SafetensorError

    require_new(out)
    scratch = out.parent / f".{out.name}.{os.getpid()}{PARTIAL}"
    try:
        scratch.mkdir(parents=True)
        yield scratch
        _open_to_readers(scratch)
        scratch.replace(out)
    except (OSError, SafetensorError) as error:
        raise _unwritable(out, error) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _open_to_readers(folder: Path) -> None:
    """Give files the permissions of any new file. safetensors makes its files readable for their owner
    only."""
    usual = folder.stat().st_mode & 0o666  # the folder was made under the umask
    for file in folder.rglob("*"):
        if file.is_file():
            file.chmod(usual)


def _unwritable(out: Path, error: Exception) -> UserError:
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    if full or "No space left" in str(error):  # the safetensors library passes no error number on
        return UserError(
            Code.DISK_FULL, f"no space left for {out}", "Free some space, or choose another disk."
        )
    reason = f"{error.strerror}: {error.filename}" if isinstance(error, OSError) else str(error)
    return UserError(
        Code.BAD_OPTION, f"cannot write {out}: {reason}", "Choose a folder that you can write to."
    )
