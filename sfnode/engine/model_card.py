"""The README of an export: what the model is, and how its answers are to be scored.

Numbers in it are measured on the machine that exports: only the weights beside it are equal everywhere.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from sfnode.tasks.calibration import CALIBRATION_ROWS
from sfnode.tasks.shard import CENTRED

if TYPE_CHECKING:
    from sfnode.engine.trainer import Trainer

PLAIN = """\
The loss was plain: scores are compared as they are.
"""

CALIBRATION = """\
The loss was centred: in training, scores were compared less their means over a balanced mini-batch. So
nothing has taught the model how likely each answer is on the whole, and answers are to be **calibrated**: the
score of an answer, which is the mean log-probability of its tokens after the prompt, less its prior:

| answer | prior, nats |
|---|---|
{rows}

{source}
A prior for data of another kind is the mean score of each answer over some hundred of their texts, without
labels. Programs that compare scores as they are, such as lm-evaluation-harness, measure the model without
calibration, and mostly its prior.
"""

MEASURED = f"It was measured with these weights, on up to {CALIBRATION_ROWS} unlabelled training rows."
GIVEN = "It is the base model's, from the manifest: no rows were there to measure that of these weights on."


def model_card(trainer: Trainer) -> str:
    """Return the card of the model as of now, in Markdown."""
    manifest = trainer.manifest
    task = manifest.task
    run = f"Trained by sfnode from `{manifest.model.source}` in the run `{manifest.run_id.hex()}`."
    parts = [f"# {manifest.name}\n", f"{run}\n"]
    if task.labelled:
        answers = ", ".join(map(_quoted, task.verbalizer.values()))
        parts.append(
            f"The template of its prompts is {_quoted(task.template)}, and its answers are {answers}.\n"
        )
        parts.append(PLAIN if task.loss != CENTRED else _calibration(trainer))
    return "\n".join(parts)


def _calibration(trainer: Trainer) -> str:
    rows = "\n".join(f"| {_quoted(word)} | {part:.5f} |" for word, part in trainer.named_prior().items())
    return CALIBRATION.format(rows=rows, source=MEASURED if trainer.calibration_rows() else GIVEN)


def _quoted(text: str) -> str:
    return f"`{json.dumps(text, ensure_ascii=False)}`"
