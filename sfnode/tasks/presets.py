"""Ready-made tasks, which `presets.toml` lists. Some are on data in the package, some are benchmarks of the
literature with MeZO's published prompts, and some have answers that a program can check.

A model with a classification head reads the bare texts of a row instead of a prompt. This module reads no
rows.
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
    """Template of the texts for models with a classification head; "" if the task cannot be given to such
    models."""
    called: Mapping[str, str] = MappingProxyType({})
    """Other names that columns have in some copies of the data, keyed by the columns' names in the
    template."""
    model: str = ""
    """Base model in the package that is meant for the task; "" if there is none."""
    training: Training | None = None
    """Hyperparameters that suit `model` on this task; None if the user must find them by trial."""


def preset(name: str) -> Preset:
    """Return the preset with this name, in upper or lower case. Raises UserError BAD_OPTION."""
    found = PRESETS.get(name.lower())
    if found is None:
        raise UserError(
            Code.BAD_OPTION, f"there is no preset {name!r}", f"The presets are {', '.join(PRESETS)}."
        )
    return found


def of_model(model: str) -> str | None:
    """Return the name of the preset for which the package has the model `model`; None for any other model."""
    return next((name for name, found in PRESETS.items() if found.model == model), None)


def for_columns(found: Preset, columns: Collection[str]) -> Preset:
    """Return a copy of the preset for data with these columns. The template of the copy uses the other names
    in `called` for columns that have these names in the data."""
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
    `asking` says that the model under the head is a language model, whose texts then end with
    `templates.ASKING`.

    Raises UserError BAD_OPTION if the task cannot be given to a model with a head.
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
