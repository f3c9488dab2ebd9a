"""Computes the rewards that the manifest's verifier gives to answers to a task's rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from sfnode.errors import Code, UserError
from sfnode.manifest.task import Task
from sfnode.printable import read_json, read_toml
from sfnode.verifiers import plugins, scoring, specs
from sfnode.verifiers.specs import PRESETS

Row = Mapping[str, Any]

EXAMPLE = "1"
"""Value for the columns of an example row. Every kind of verifier can read this value."""

MAX_BYTES = 64 * 1024
"""Maximum size of a file with a verifier, in bytes: a third of the maximum size of a manifest."""


def score_of(task: Task) -> Callable[[str, Row], float]:
    """Return a function that takes an answer and its row, and returns the reward, from 0 to 1. The only error
    that the function raises is UserError VERIFIER_NOT_ALLOWED, for a plug-in that was not permitted."""
    verifier = _verifier(task)
    return lambda answer, row: scoring.score(verifier, answer, scoring.texts(verifier, row))


def remark(task: Task, answer: str, row: Row) -> str:
    """Return the fault in an answer's form, in words; an empty text if there is nothing to add to the
    reward."""
    verifier = _verifier(task)
    return scoring.remark(verifier, answer, scoring.texts(verifier, row))


def columns(task: Task) -> tuple[str, ...]:
    """Return the columns of a row that the task's verifier reads."""
    return scoring.columns(_verifier(task))


def problem(task: Task, row: Row) -> str | None:
    """Return the reason why no answer to a row can get the full reward; None if an answer can."""
    verifier = _verifier(task)
    return scoring.problem(verifier, scoring.texts(verifier, row))


def permit(task: Task, sources: Sequence[str] = ()) -> None:
    """Permit the plug-ins of the task's verifier that `sources` names, each as MODULE:FUNCTION, to score
    answers in this process.

    Raises UserError VERIFIER_NOT_ALLOWED if the verifier has a plug-in that is not permitted, BAD_OPTION if
    `sources` names plug-ins and the verifier has none, and as `plugins.allow`.
    """
    if not (task.verifier or sources):
        return
    leaves = specs.leaves(_verifier(task)) if task.verifier else iter(())
    wanted = [leaf.name for leaf in leaves if isinstance(leaf, specs.Plugin)]
    if sources and not wanted:
        raise UserError(
            Code.BAD_OPTION, "--verifier: the run's verifier is no plug-in", "Leave the option out."
        )
    for source in sources:
        plugins.allow(source, wanted)
    plugins.require(wanted)


def reference(task: Task, row: Row) -> str:
    """Return the text of a row with which the verifier compares answers, for showing it to people. Return an
    empty text if the verifier reads no column."""
    found = scoring.texts(_verifier(task), row)
    return next(iter(found.values())) if len(found) == 1 else ", ".join(f"{k}: {v}" for k, v in found.items())


def _verifier(task: Task) -> specs.Verifier:
    return _read(json.dumps(task.verifier))


@lru_cache(maxsize=16)
def _read(text: str) -> specs.Verifier:
    return specs.read(json.loads(text))


# -- what somebody names at `init` ---------------------------------------------------------------------


def load(source: str) -> dict[str, Any]:
    """Return the verifier that `source` names: a preset, a .toml or .json file, or a plug-in given as
    MODULE:FUNCTION. Such a plug-in is then permitted in this process.

    Raises UserError BAD_OPTION, and EXTRA_MISSING for a verifier with a regular expression if RE2 is not
    installed.
    """
    if source.lower() in PRESETS:
        return PRESETS[source.lower()]
    if plugins.is_plugin(source):
        return {"kind": "plugin", **plugins.allow(source)._asdict()}
    file = Path(source).expanduser()
    readers = {".toml": read_toml, ".json": read_json}
    if file.suffix.lower() not in readers:
        raise _unusable(
            f"task.verifier: there is no ready-made verifier {source!r}, and it is no .toml or .json file"
        )
    try:
        if file.stat().st_size > MAX_BYTES:
            raise _unusable(f"task.verifier: {source} has more than {MAX_BYTES:,} bytes")
        found = readers[file.suffix.lower()](file.read_text(encoding="utf-8"))
    except OSError as error:
        raise _unusable(f"task.verifier: cannot read {source}: {error.strerror}") from error
    except ValueError as error:  # of either format, or of broken UTF-8
        raise _unusable(f"task.verifier: {source} is not {file.suffix[1:].upper()}: {error}") from error
    try:
        specs.read(found)
    except ValueError as error:
        raise _unusable(f"task.verifier: {source}: {error}") from error
    return dict(found)


def _unusable(what: str) -> UserError:
    return UserError(
        Code.BAD_OPTION,
        what,
        f"Name {', '.join(PRESETS)}, a file that describes a verifier, or a plug-in MODULE:FUNCTION "
        "(docs/verifiers.md).",
    )
