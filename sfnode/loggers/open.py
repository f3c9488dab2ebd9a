"""Loggers by what a user writes: `jsonl:FILE`, `tensorboard:FOLDER`, `wandb:PROJECT`, `trackio:PROJECT`.

Packages that are extras are imported here, when they are asked for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from pathlib import Path

from sfnode.errors import Code, UserError
from sfnode.loggers.background import PATIENCE, Background
from sfnode.loggers.jsonl import JsonLines
from sfnode.loggers.record import Logger

PROJECT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
"""Names of projects, which become names of files: what wandb and trackio both take as it is."""


def opened(where: Iterable[str], patience: float = PATIENCE) -> Background:
    """Open these loggers, in a thread beside; `patience` as `Background` has it.

    Raises UserError BAD_OPTION for a kind that does not exist or a bad name, EXTRA_MISSING for a package that
    is not installed, and LOGGER_UNUSABLE for a place that cannot be written to.
    """
    return Background({said: _opened(said) for said in where}, patience)


def _opened(said: str) -> Logger:
    kind, _, place = said.partition(":")
    if kind not in KINDS or not place:
        forms = ", ".join(KINDS)
        raise UserError(
            Code.BAD_OPTION,
            f"--log-to {said}: there is no such logger",
            f"Give it as KIND:PLACE, such as jsonl:records.jsonl or wandb:my-project; kinds are {forms}.",
        )
    try:
        return KINDS[kind](place)
    except ImportError as error:
        raise missing(kind, f"--log-to {said}", error) from error
    except (OSError, RuntimeError, ValueError) as error:  # of a user without a home, of a NUL in a name
        raise UserError(
            Code.LOGGER_UNUSABLE,
            f"--log-to {said}: cannot write there: {getattr(error, 'strerror', None) or error}",
            "Name a place in a folder that exists and that you may write to.",
        ) from error


def missing(extra: str, what: str, error: ImportError) -> UserError:
    """Return the error for a package of an extra that cannot be imported, though `what` needs it."""
    return UserError(
        Code.EXTRA_MISSING,
        f"{what} needs a package that is not installed: {error}",
        f"Install it with `pip install 'sfnode[{extra}]'`.",
    )


def _file(place: str) -> Logger:
    return JsonLines(Path(place).expanduser())


def _folder(place: str) -> Logger:
    module = import_module("sfnode.loggers.tensorboard")
    logger: Logger = module.TensorBoard(Path(place).expanduser())
    return logger


def _project(module: str, name: str) -> Callable[[str], Logger]:
    def make(place: str) -> Logger:
        if not PROJECT.fullmatch(place):
            raise UserError(
                Code.BAD_OPTION,
                f"--log-to: {place} cannot be the name of a project",
                "Take up to 64 letters, digits, - and _, a letter or digit first.",
            )
        logger: Logger = getattr(import_module(f"sfnode.loggers.{module}"), name)(place)
        return logger

    return make


KINDS: Mapping[str, Callable[[str], Logger]] = {
    "jsonl": _file,
    "tensorboard": _folder,
    "wandb": _project("wandb", "WeightsAndBiases"),
    "trackio": _project("trackio", "Trackio"),
}
"""Function that makes a logger of each kind, given what follows the colon."""
