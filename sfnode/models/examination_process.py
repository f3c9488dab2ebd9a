"""The program that reads a model as a node would, to find out how much time and memory that takes
(`examination`)."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

from sfnode.bounded_process import serve
from sfnode.errors import Code, UserError
from sfnode.models import loader, model_files, shapes
from sfnode.models.examination import ModelPart
from sfnode.models.targets import PretrainedModel

SPARE = 1 << 26
"""Number of parameters that a model may have in addition to one for each byte of its files. It allows for
tables of positions, which are not stored, and for a missing head."""


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Read a part of the model in a folder, and return the reply. It has `error` if reading fails, or
    `tokens`, the number of tokens that the model can read, if the request asks for that number. Otherwise it
    is empty."""
    folder, part = Path(request["folder"]), ModelPart(request["part"])
    try:
        if request["tokens"]:
            return {"tokens": loader.readable(folder, _labels(part), request["tokens"])}
        _read(folder, part)
    except UserError as error:
        if isinstance(error.__cause__, MemoryError):
            raise error.__cause__ from None
        return {"error": [error.code, error.what, error.fix]}
    return {}


def _read(folder: Path, part: ModelPart) -> None:
    match part:
        case ModelPart.TOKENIZER:
            loader.read_tokenizer(folder)
        case ModelPart.SHAPE:
            shapes.parameters(shapes.read(folder))
        case ModelPart.LANGUAGE_MODEL | ModelPart.CLASSIFIER:
            _check_size(folder, loader.read_skeleton(folder, _labels(part)))


def _labels(part: ModelPart) -> int:
    return 2 if part is ModelPart.CLASSIFIER else 0  # a run's own number of labels makes no difference


def _check_size(folder: Path, model: PretrainedModel) -> None:
    """Raise UserError MODEL_UNSAFE for a model much larger than its files. transformers would make up the
    missing tensors, which takes memory."""
    made = sum(tensor.numel() for tensor in chain(model.parameters(), model.buffers()))
    stored = model_files.weight_bytes(folder)
    if made > stored + SPARE:
        raise UserError(
            Code.MODEL_UNSAFE,
            f"the configuration in {folder} describes {made:,} numbers, and its weights are {stored:,} bytes",
            "Take another copy of the model, or another model.",
        )


if __name__ == "__main__":
    serve(answer)
