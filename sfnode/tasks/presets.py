"""Ready-made tasks: the embedded ones, benchmarks of the literature with MeZO's published prompts, and
tasks whose answers a program can check.

The prompts of classifications and choices but that of AG News are those of princeton-nlp/MeZO
(large_models/templates.py and tasks.py); a model with a classification head reads the bare texts instead. The
data are where they are on the Hugging Face hub. This module only describes; it reads nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import NamedTuple

from sfnode.defaults import TEMPERATURE
from sfnode.errors import Code, UserError
from sfnode.manifest.sections import Data
from sfnode.manifest.task import Task
from sfnode.manifest.training import Training
from sfnode.verifiers.specs import PRESETS as VERIFIERS

DEFAULT_MODEL = "builtin:tiny"
"""The base model that ships with the package."""

EVALUATED_ROWS = 1000
"""MeZO tests on this many examples."""

LONGEST_PROMPT = 2048
"""MeZO's bound, which is OPT's; a model with fewer positions needs a smaller one."""

REWARDED_PROMPT = 512
"""Tokens of a prompt that is answered: GSM8K's longest questions have about half as many."""


class Preset(NamedTuple):
    """A task and its data."""

    task: Task
    data: Data
    texts: str = ""
    """Template for a model with a classification head; "" if such a model cannot do the task."""
    called: Mapping[str, str] = MappingProxyType({})
    """Names that columns have in other copies of the data, by their names here."""
    model: str = ""
    """Base model that comes with the task; "" if none does."""
    training: Training | None = None
    """Numbers that suit that model; None if they are to be tried out."""


def preset(name: str) -> Preset:
    """Return a preset by its name, whatever the case. Raises UserError BAD_OPTION."""
    found = PRESETS.get(name.lower())
    if found is None:
        raise UserError(
            Code.BAD_OPTION, f"there is no preset {name!r}", f"The presets are {', '.join(PRESETS)}."
        )
    return found


def of_model(model: str) -> str | None:
    """Return the name of the preset that a model comes with; None for another model."""
    return next((name for name, found in PRESETS.items() if found.model == model), None)


def for_columns(found: Preset, columns: Collection[str]) -> Preset:
    """Return the preset for data with these columns: a copy in which some may have other names."""
    task, texts = found.task, found.texts
    for usual, other in found.called.items():
        if usual not in columns and other in columns:
            task = task.model_copy(update={"template": _renamed(task.template, usual, other)})
            texts = _renamed(texts, usual, other)
    return found._replace(task=task, texts=texts)


def _renamed(template: str, usual: str, other: str) -> str:
    return template.replace(f"{{{usual}}}", f"{{{other}}}").replace(f"{{{usual}|", f"{{{other}|")


def task_of(found: Preset, *, headed: bool) -> Task:
    """Return the preset's task for a language model, or for a model `headed` by a classifier.

    Raises UserError BAD_OPTION if the latter cannot do it.
    """
    if not headed:
        return found.task
    if not found.texts:
        raise UserError(
            Code.BAD_OPTION,
            "an encoder with a classification head cannot do this task, whose answers are no fixed classes",
            f"Take a language model, or one of {', '.join(n for n, p in PRESETS.items() if p.texts)}.",
        )
    changed = {"kind": "sequence-classification", "template": found.texts}
    return Task(**found.task.model_dump() | changed)


def _hub(name: str) -> Data:
    """Return the training and validation splits of a data set on the hub, named with its configuration."""
    return Data(train=f"hf:{name}:train", test=f"hf:{name}:validation", test_limit=EVALUATED_ROWS)


def _labelled(template: str, *answers: str) -> Task:
    """Return a classification whose labels are 0, 1, ..."""
    return Task(
        kind="classification",
        template=template,
        verbalizer={str(label): answer for label, answer in enumerate(answers)},
        max_tokens=LONGEST_PROMPT,
    )


def _rewarded(
    name: str, template: str, tokens: int, *stop: str, prompt_tokens: int = REWARDED_PROMPT
) -> Task:
    """Return the task of writing answers of so many tokens for the verifier of this name."""
    return Task(
        kind="reward",
        template=template,
        verifier=VERIFIERS[name],
        answer_tokens=tokens,
        temperature=TEMPERATURE,
        max_tokens=tokens + prompt_tokens,
        stop=stop,
    )


PRESETS: dict[str, Preset] = {
    "reviews": Preset(
        Task(
            kind="classification",
            template="{text} it was",
            verbalizer={"0": "bad", "1": "good"},
            max_tokens=48,
        ),
        Data(train="builtin:reviews:train", test="builtin:reviews:test"),
        texts="{text}",
        model=DEFAULT_MODEL,
        training=Training(
            learning_rate=1e-3,
            schedule="cosine",
            batch_size=8,
            epoch_updates=250,
            update_budget=3000,
            scalar_limit=250,  # about the one that `sfnode init` measures
        ),
    ),
    "sums": Preset(
        _rewarded("sums", "{sum}=", 4, prompt_tokens=12),  # three digits and the end
        Data(train="builtin:sums:train", validation="builtin:sums:validation", test="builtin:sums:test"),
        model="builtin:sums",
        training=Training(
            rank=8,
            epsilon=1e-3,
            learning_rate=3e-5,
            batch_size=16,
            group=16,
            epoch_updates=512,
            update_budget=4096,
            scalar_delta=1 / 16,
            scalar_limit=320,
        ),
    ),
    "extract": Preset(
        _rewarded(
            "json",
            "Write each order as JSON with name, item, count, town and day.\n\n"
            "Miriam asked for five melons, to be brought to Vienna on Sunday.\n"
            '{{"name": "Miriam", "item": "melons", "count": 5, "town": "Vienna", "day": "Sunday"}}\n\n'
            "Before Thursday, 12 buckets for Jacob are wanted in Bremen.\n"
            '{{"name": "Jacob", "item": "buckets", "count": 12, "town": "Bremen", "day": "Thursday"}}\n\n'
            "{text}\n",
            48,
            "\n",
        ),
        Data(
            train="builtin:orders:train",
            validation="builtin:orders:validation",
            test="builtin:orders:test",
        ),
    ),
    "sst2": Preset(
        _labelled("{sentence|strip} It was", "terrible", "great"),
        _hub("nyu-mll/glue:sst2"),
        texts="{sentence|strip}",
    ),
    "rte": Preset(
        _labelled('{premise}\nDoes this mean that "{hypothesis}" is true? Yes or No?\n', "Yes", "No"),
        _hub("aps/super_glue:rte"),
        texts="{premise}{separator}{hypothesis}",
    ),
    "boolq": Preset(
        _labelled("{passage} {question|question}\n", "No", "Yes"),
        _hub("aps/super_glue:boolq"),
        texts="{question|question}{separator}{passage}",
    ),
    "wic": Preset(
        _labelled(
            'Does the word "{word}" have the same meaning in these two sentences? Yes, No?\n'
            "{sentence1}\n{sentence2}\n",
            "No",
            "Yes",
        ),
        _hub("aps/super_glue:wic"),
        texts="{word}: {sentence1}{separator}{sentence2}",
    ),
    "multirc": Preset(
        _labelled(
            "{paragraph}\nQuestion: {question}\n"
            'I found this answer "{answer}". Is that correct? Yes or No?\n',
            "No",
            "Yes",
        ),
        _hub("aps/super_glue:multirc"),
        texts="{question} {answer}{separator}{paragraph}",
    ),
    "record": Preset(
        Task(
            kind="choice",
            template="{passage|bullets}\n-",
            completion="{query|cloze}",
            candidates_field="entities",
            label_field="answers",
            max_tokens=LONGEST_PROMPT,
        ),
        _hub("aps/super_glue:record"),
    ),
    "agnews": Preset(
        _labelled("{text} It was", "world", "game", "company", "computer"),
        Data(
            train="hf:fancyzhx/ag_news:train",
            test="hf:fancyzhx/ag_news:test",
            test_limit=EVALUATED_ROWS,
        ),
        texts="{text}",
        called=MappingProxyType({"text": "sentence"}),
    ),
    # TinyZero's prompt, but that it leaves the first <think> to the model, as the verifier looks for it
    "countdown": Preset(
        _rewarded(
            "countdown",
            "A conversation between User and Assistant. The user asks a question, and the Assistant solves "
            "it. The assistant first thinks about the reasoning process in the mind and then provides the "
            "user with the answer.\nUser: Using the numbers {nums}, create an equation that equals "
            "{target}. You can use basic arithmetic operations (+, -, *, /) and each number can only be used "
            "once. Show your work in <think> </think> tags. And return the final answer in <answer> "
            "</answer> tags, for example <answer> (1 + 2) / 3 </answer>.\nAssistant:",
            512,
            "\nUser:",
        ),
        Data(train="hf:Jiayi-Pan/Countdown-Tasks-3to4:train"),
    ),
    "gsm8k": Preset(
        _rewarded(
            "gsm8k",
            "Solve the problem step by step. Write the number that is the answer on a line of its own at the "
            "end, after ####.\n\nProblem: {question}\nSolution:",
            256,
            "\nProblem:",
        ),
        Data(train="hf:openai/gsm8k:main:train", test="hf:openai/gsm8k:main:test", test_limit=EVALUATED_ROWS),
    ),
    "json": Preset(
        _rewarded("json", "{text}\n\nThe same as a JSON object:\n", 256, "\n\n"),
        Data(),
    ),
}
