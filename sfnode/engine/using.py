"""A trained model in use: it answers new texts, and its prior is subtracted from scores as in an evaluation.

The model is a trainer's or an exported one. An export has the run's task beside the weights. It also has the
prior, unless the run's loss is plain.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sfnode.engine.evaluation import prior
from sfnode.engine.generation import complete, positions
from sfnode.engine.loading import usable_device
from sfnode.engine.losses import EVALUATION_BATCH, scorer
from sfnode.engine.samples import Preference, choices, chooses
from sfnode.engine.trainable_model import TrainableModel
from sfnode.errors import Code, UserError
from sfnode.manifest.task import Task
from sfnode.models import loader
from sfnode.models.loader import LoadedModel
from sfnode.models.model_files import broken
from sfnode.printable import read_json
from sfnode.tasks import calibration, chat
from sfnode.tasks.encoding import Prior, prior_of
from sfnode.tasks.prompts import Conversation, Prompt, render_row, unanswered

ABOUT = "sfnode.json"
"""Name of the file with an export's task. The task's `prior` is that of the exported weights."""

TOKENS = 64
"""Default maximum tokens of a written answer."""


class ModelInUse(NamedTuple):
    """A model, with the task that says how to ask it, and the prior that is subtracted from scores."""

    loaded: LoadedModel
    task: Task
    prior: Prior | None

    def answers(self, rows: Sequence[Mapping[str, Any]], tokens: int = TOKENS) -> Iterator[Preference | str]:
        """Yield the answer to each row, in their order: a preference among its candidates, or a text of at
        most `tokens` tokens. The rows are without answers and have passed `tasks.prompts.problem`. Raises
        UserError DATA_MALFORMED for a row that does not fit the model."""
        rows = [unanswered(self.task, row) for row in rows]
        for first in range(0, len(rows), EVALUATION_BATCH):
            some = rows[first : first + EVALUATION_BATCH]
            if chooses(self.task):
                yield from choices(self.loaded, self.task, some, scorer(self.loaded), self.prior)
            else:
                prompts = [_prompt(self.loaded, asked(self.task), row) for row in some]
                most = most_tokens(self.loaded, self.task, tokens)
                yield from (text.strip() for text in complete(self.loaded, prompts, most, self.task.stop))


def most_tokens(loaded: LoadedModel, task: Task, wanted: int = TOKENS) -> int:
    """Return the maximum number of tokens of an answer. It leaves at least half of the model's positions for
    the prompt."""
    return min(wanted, task.answer_tokens or wanted, max(1, positions(loaded) // 2))


def asked(task: Task) -> Task:
    """Return the task for reading rows without their answers. If the model writes its answer to a template,
    that is a task of plain texts: the filled template."""
    if chooses(task) or task.kind == "chat":
        return task
    return Task(kind="text", template=task.template, max_tokens=task.max_tokens)


def _prompt(loaded: LoadedModel, task: Task, row: Mapping[str, Any]) -> str:
    text = render_row(task, row)
    if isinstance(text, Conversation):
        return chat.prompt(loaded.tokenizer, text.messages[:-1])
    assert isinstance(text, Prompt)  # candidates are chosen elsewhere
    return text.answers[0]


def of_trainer(model: TrainableModel) -> ModelInUse:
    """Return a trainer's current model. Raises as `evaluation.prior`."""
    model.rebuild()
    task = model.manifest.task
    return ModelInUse(model.loaded, task, prior(model) if task.less_prior else None)


def of_export(folder: Path, device: str, dtype: str) -> ModelInUse:
    """Load an exported model from its folder. Raises UserError MODEL_*, DEVICE and as `task_in`."""
    task = task_in(folder)
    loaded = loader.load_to_use(folder, task, usable_device(device), dtype)
    return ModelInUse(loaded, task, prior_of(task) if task.prior else None)


def task_in(folder: Path) -> Task:
    """Return the task of an exported model. Raises UserError MODEL_NOT_FOUND, MODEL_UNSUPPORTED."""
    try:
        return Task.model_validate(read_json((folder / ABOUT).read_bytes())["task"])
    except PermissionError as error:
        raise broken(folder / ABOUT, "JSON file", error) from error
    except OSError as error:
        raise UserError(
            Code.MODEL_NOT_FOUND,
            f"{folder} is no folder with a whole model that sfnode has exported: it lacks {ABOUT}",
            "Write one: sfnode export --out FOLDER. An adapter (--format lora) is used with its base model.",
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            Code.MODEL_UNSUPPORTED,
            f"{folder / ABOUT} cannot be read: {error}",
            "Export the model again, or use the version of sfnode that has written it.",
        ) from error


def about(model: TrainableModel) -> str:
    """Return the task of an export and the prior of its model, in JSON. Raises as `evaluation.prior`."""
    task = model.manifest.task
    if task.less_prior:
        task = task.model_copy(update={"prior": calibration.for_manifest(prior(model))})
    said = {"run_id": model.manifest.run_id.hex(), "run_name": model.manifest.name}
    return json.dumps(said | {"task": task.model_dump(mode="json")}, ensure_ascii=False, indent=1) + "\n"
