"""Ready-made tasks: the embedded default and the benchmarks of the literature with MeZO's published prompts.

The prompts are those of princeton-nlp/MeZO (large_models/templates.py and tasks.py), to the character; the data
are where they are on the Hugging Face hub. This module only describes; it reads nothing.
"""

from __future__ import annotations

from typing import NamedTuple

from sfnode.config import Data, Task, Training
from sfnode.errors import Code, UserError

DEFAULT_MODEL = "builtin:tiny"
"""The base model that ships with the package."""

EVALUATED_ROWS = 1000
"""MeZO tests on this many examples."""

LONGEST_PROMPT = 2048
"""MeZO's bound, which is OPT's; a model with fewer positions needs a smaller one."""


class Preset(NamedTuple):
    """A task and where its data are."""

    task: Task
    data: Data


class DefaultRun(NamedTuple):
    """What a run of the embedded default consists of, besides the model `DEFAULT_MODEL`."""

    task: Task
    data: Data
    training: Training


def preset(name: str) -> Preset:
    """A task by its name, whatever the case. Raises UserError BAD_OPTION."""
    found = PRESETS.get(name.lower())
    if found is None:
        raise UserError(
            Code.BAD_OPTION, f"there is no preset {name!r}", f"The presets are {', '.join(PRESETS)}."
        )
    return found


def default_run() -> DefaultRun:
    """The embedded default: the tiny model learns to answer good or bad about made-up reviews."""
    return DefaultRun(*PRESETS["reviews"], Training(rank=16, learning_rate=5e-4, batch_size=16))


def _glue(config: str, benchmark: str = "aps/super_glue") -> Data:
    source = f"hf:{benchmark}:{config}"
    return Data(train=f"{source}:train", test=f"{source}:validation", test_limit=EVALUATED_ROWS)


def _classification(template: str, **words: str) -> Task:
    """`words`: the answer for label 0 as `no_0`, for label 1 as `yes_1`."""
    verbalizer = {label[-1]: word for label, word in words.items()}
    return Task(
        kind="classification", template=template, verbalizer=verbalizer, max_tokens=LONGEST_PROMPT
    )


PRESETS: dict[str, Preset] = {}
