"""Ready-made tasks, listed in `presets.toml`: tasks on data in the package, benchmarks of the literature with
MeZO's published prompts, and tasks whose answers a program can check.

A model with a classification head reads the bare texts instead of a prompt. This module reads no data.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from sfnode.defaults import TEMPERATURE
from sfnode.errors import Code, UserError
from sfnode.manifest.sections import Data
from sfnode.manifest.task import Task
from sfnode.manifest.training import Training
from sfnode.printable import read_toml
from sfnode.tasks import templates
from sfnode.verifiers.specs import PRESETS as VERIFIERS

DEFAULT_MODEL = "builtin:tiny"
"""The base model that ships with the package."""


class Preset(NamedTuple):
    """A task and its data."""

    task: Task
    data: Data
    texts: str = ""
    """Template for models with a classification head; "" if such models cannot do the task."""
    called: Mapping[str, str] = MappingProxyType({})
    """Names that columns have in other copies of the data, keyed by their names in the template."""
    model: str = ""
    """Base model that comes with the task; "" if none does."""
    training: Training | None = None
    """Hyperparameters that suit `model`; None if they must be found by trial."""


def preset(name: str) -> Preset:
    """Return the preset with this name; upper and lower case are equal. Raises UserError BAD_OPTION."""
    found = PRESETS.get(name.lower())
    if found is None:
        raise UserError(
            Code.BAD_OPTION, f"there is no preset {name!r}", f"The presets are {', '.join(PRESETS)}."
        )
    return found


def of_model(model: str) -> str | None:
    """Return the name of the preset that comes with a shipped model; None for any other model."""
    return next((name for name, found in PRESETS.items() if found.model == model), None)


def for_columns(found: Preset, columns: Collection[str]) -> Preset:
    """Return a copy of the preset for data with these columns, in which some columns may have other names
    (`called`)."""
    task, texts = found.task, found.texts
    for usual, other in found.called.items():
        if usual not in columns and other in columns:
            task = task.model_copy(update={"template": _renamed(task.template, usual, other)})
            texts = _renamed(texts, usual, other)
    return found._replace(task=task, texts=texts)


def _renamed(template: str, usual: str, other: str) -> str:
    return template.replace(f"{{{usual}}}", f"{{{other}}}").replace(f"{{{usual}|", f"{{{other}|")


def task_of(found: Preset, *, headed: bool, asking: bool = False) -> Task:
    """Return the preset's task for a language model, or with `headed` for a model with a classification head.
    `asking`: the model under the head is a language model (`templates.ASKING`).

    Raises UserError BAD_OPTION if a model with a head cannot do the task.
    """
    if not headed:
        return found.task
    if not found.texts:
        raise UserError(
            Code.BAD_OPTION,
            "an encoder with a classification head cannot do this task, whose answers are no fixed classes",
            f"Take a language model, or one of {', '.join(n for n, p in PRESETS.items() if p.texts)}.",
        )
    template = found.texts + (templates.ASKING if asking else "")
    changed = {"kind": "sequence-classification", "template": template}
    return Task(**found.task.model_dump() | changed)


def _read(said: dict[str, Any]) -> Preset:
    """Return a preset from its table in `presets.toml`."""
    task, numbers = said["task"], said.get("training")
    if "verifier" in task:
        task |= {"kind": "reward", "temperature": TEMPERATURE, "verifier": VERIFIERS[task["verifier"]]}
    return Preset(
        Task(**task),
        Data(**said.get("data", {})),
        said.get("texts", ""),
        said.get("called", {}),
        said.get("model", ""),
        Training(**numbers) if numbers else None,
    )


PRESETS = {
    name: _read(said)
    for name, said in read_toml(Path(__file__).with_suffix(".toml").read_text("utf-8")).items()
}
