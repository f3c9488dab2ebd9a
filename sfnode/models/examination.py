"""Finds out in a separate process what transformers makes of a stranger's model.

The small files of a configuration or a tokenizer can demand any amount of time and memory: endless layers,
tables of any size, nested rules. `examination_process` reads them as a node would, within bounds on time and
memory. If a model is sound, a hash of its files is stored, so that the model is examined once.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from enum import StrEnum
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sfnode import __version__
from sfnode.bounded_process import BoundedProcess
from sfnode.errors import Code, UserError
from sfnode.models import model_files

SECONDS = 120.0
"""Maximum processor time of an examination, in seconds: several times as long as the largest models take on a
slow machine."""

MEMORY = 3 << 30
"""Maximum memory of the process that examines, in bytes. Libraries take a tenth of it, and the largest models
a small part."""

IDLE = 20.0
"""Seconds without a request after which the process ends. Requests for models that are examined together
follow each other sooner."""

LIBRARIES = ("torch", "transformers", "tokenizers")
"""Packages other than sfnode that read models. If the version of one changes, a model is examined again."""


class ModelPart(StrEnum):
    """Part of a model that is examined. The value names, in words, what transformers makes of that part."""

    TOKENIZER = "tokenizer"
    LANGUAGE_MODEL = "language model"
    CLASSIFIER = "classifier"
    SHAPE = "shape"
    """The configuration of a model of any class, with or without weights."""


def part_of(labels: int) -> ModelPart:
    """Return the part that a task with this many labels needs: a classifier, or with 0 labels a language
    model."""
    return ModelPart.CLASSIFIER if labels else ModelPart.LANGUAGE_MODEL


_process = BoundedProcess("sfnode.models.examination_process", SECONDS, MEMORY, idle=IDLE)
_sound: set[str] = set()
_readable: dict[str, int] = {}


def require_sound(folder: Path, part: ModelPart) -> None:
    """Raise UserError MODEL_UNSAFE if reading this part of a model exceeds a bound, MODEL_* if it is unsound.

    Models that come with sfnode are not examined.
    """
    if folder.parent == model_files.EMBEDDED:
        return
    name = _name(folder, part)
    kept = model_files.cache() / "examined" / name  # an empty file
    if name in _sound or kept.exists():
        return
    if reply := _ask(folder, part):
        raise UserError(
            Code.MODEL_UNSAFE,
            f"{folder} cannot be read as a {part}: {reply.get('broke') or reply['refused']}",
            "Take another model; do not join a run that starts from this one.",
        )
    _sound.add(name)
    with suppress(OSError):  # then it is examined again
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.touch()


def readable(folder: Path, part: ModelPart, most: int) -> int:
    """Return the number of tokens that a model can read, up to `most`. Returns `most` if the model cannot be
    tried within the bounds. Raises UserError MODEL_* for an unsound model.

    Models that come with sfnode are not tried: the result is `most`.
    """
    if folder.parent == model_files.EMBEDDED:
        return most
    name = f"{_name(folder, part)} {most}"
    if name not in _readable:
        _readable[name] = _ask(folder, part, most).get("tokens", most)
    return _readable[name]


def _ask(folder: Path, part: ModelPart, tokens: int = 0) -> dict[str, Any]:
    """Return the reply of the process. If the process replies with a UserError, raise that error."""
    reply = _process.ask({"folder": str(folder), "part": part, "tokens": tokens})
    if "error" in reply:
        code, what, fix = reply["error"]
        raise UserError(Code(code), what, fix)
    return reply


@cache
def _versions() -> tuple[str, ...]:
    """Return the versions of LIBRARIES. They are read once, because finding them takes milliseconds."""
    return tuple(map(version, LIBRARIES))


def _name(folder: Path, part: ModelPart) -> str:
    """Return a hash of a model's files, without the values of weights, and of the versions of the packages
    that read them."""
    state = hashlib.blake2b(repr((part, __version__, *_versions())).encode(), digest_size=32)
    for name in (model_files.CONFIG, model_files.GENERATION, *model_files.TOKENIZER_FILES):
        if (folder / name).is_file():
            content = (folder / name).read_bytes()
            state.update(repr((name, len(content))).encode() + content)
    if model_files.has_weights(folder):
        for name, stored in sorted(model_files.stored_tensors(folder).items()):
            state.update(repr((name, stored.dtype, stored.shape, stored.size)).encode())
    return state.hexdigest()
