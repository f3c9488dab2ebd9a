"""The questions of `sfnode init` at a terminal: few, in plain words, each with an answer to start from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from sfnode.cli.output import echo
from sfnode.errors import UserError
from sfnode.tasks import reward_numbers, verifying
from sfnode.tasks.presets import DEFAULT_MODEL, PRESETS, of_model
from sfnode.verifiers.specs import PRESETS as VERIFIERS

KINDS = ("classification", "sequence-classification", "choice", "completion", "text", "chat", "reward")

CUSTOM = "custom"
"""Answer to the question for the task with which the user describes one."""

ORGANISED, OPEN = "organised", "open"
"""Answers to the question for the kind of run."""


def parse_verbalizer(_context: Any, _parameter: Any, value: str | None) -> dict[str, str] | None:
    """Return `0=terrible,1=great` as a table."""
    if value is None:
        return None
    pairs = [item.partition("=") for item in value.split(",")]
    if not all(label and equals and word for label, equals, word in pairs):
        raise click.BadParameter("give it as LABEL=WORD,LABEL=WORD, for example 0=terrible,1=great")
    return {label.strip(): word.strip() for label, _, word in pairs}


def parse_stop(value: str) -> str:
    r"""Return a text in which `\n` and `\t` stand for a line feed and a tab."""
    return value.replace("\\n", "\n").replace("\\t", "\t")


INTRODUCTION = """\
A run is one model that many machines train together. Its description is fixed
once it has started: to change something is to start another run. Press Enter
to take what stands in brackets."""

QUESTIONS = {
    "model": """
The base model is what the run starts from. It should know language already:
this way of training teaches it a task, not a language. The built-in one is
tiny and needs no download; a name such as facebook/opt-125m is looked up on
the Hugging Face hub, and a folder on this machine is shared with the others by
your nodes.""",
    "task": f"""
The task says what is asked of the model and what it should answer. The
ready-made ones bring their data along; {CUSTOM} is one that you describe
(docs/tasks.md).""",
    "train": """
What the model learns from: a .tsv, .csv, .jsonl or .parquet file, or a data
set on the hub (hf:NAME:SPLIT). Everybody trains on it; if it is empty,
everybody brings their own and keeps it to themselves.""",
    "test": """
Held-out examples, to measure what has been learnt: before, now and then, and
at the end.""",
    "update_budget": """
An update is one node's measurement on one mini-batch. The run is complete when
all nodes together have made so many. A laptop makes a few a second with a
small model. More updates teach more, up to a point, and take longer.""",
    "organised": """
In an organised run your node decides what counts, with a key that is written
now: it admits newcomers, and can take back what somebody has spoilt. In an open
run everything counts that anybody makes: for experiments among friends.""",
    "description": """
Say in a sentence or two what the run is for. Whoever may join reads it, and it
stands on every node's dashboard. Press Enter to say nothing.""",
    "kind": """
classification: one of a few words. sequence-classification: the same for a
model with a classification head. choice: each row brings its candidates.
completion: a text after a prompt. text: plain text. chat: conversations.
reward: the model writes an answer, and a program says how good it is.""",
    "verifier": """
The verifier is the program that says how good an answer is, from 0 to 1. It is
a description and never runs anything: the name of a ready-made one, or a .toml
or .json file of yours (docs/verifiers.md).""",
    "answer_tokens": """
A token is about four letters of English. Longer answers take longer to write:
name the most that a good one needs.""",
    "stop": """
A text after which an answer is over, such as \\n for the end of a line. It is
no part of the answer. Press Enter for none: then the model says when it ends.""",
}
"""Explanations for a newcomer, shown before each question."""

HUB_BUDGET = 20_000
"""Default budget of updates for a model of the hub, as published for OPT."""


def ask(organised: bool) -> tuple[dict[str, Any], bool]:
    """Ask the few questions that matter; return the answers by parameter name, and whether the run is
    organised, which `organised` proposes."""
    echo(INTRODUCTION)
    _explain("model")
    given: dict[str, Any] = {"model": _text("Base model", DEFAULT_MODEL)}
    own = of_model(given["model"])
    _explain("task")
    tasks = click.Choice([*PRESETS, CUSTOM])
    task = click.prompt("Task", type=tasks, default=own or "sst2")
    data = PRESETS[task].data if task in PRESETS else None
    given |= _ask_task() if data is None else {"preset": task}
    if own and data is not None and PRESETS[task].model:
        given["model"] = PRESETS[task].model
    _explain("train")
    given["train"] = _text("Training data", data.train if data else "")
    _explain("test")
    given["test"] = _text("Test data", data.test if data else "")
    _explain("update_budget")
    given["update_budget"] = click.prompt(
        "Updates until the run is complete", default=_usual_budget(given), type=int
    )
    _explain("organised")
    kinds = click.Choice([ORGANISED, OPEN])
    kind = click.prompt("Kind of run", type=kinds, default=ORGANISED if organised else OPEN)
    _explain("description")
    given["description"] = _text("Description", "")
    return given, kind == ORGANISED


def _usual_budget(given: Mapping[str, Any]) -> int:
    """Return the budget that is proposed for a run with these answers."""
    own = of_model(given["model"])
    if own and (numbers := PRESETS[own].training):
        return numbers.update_budget
    kind = PRESETS[given["preset"]].task.kind if "preset" in given else given["kind"]
    return reward_numbers.UPDATE_BUDGET if kind == "reward" else HUB_BUDGET


def _explain(question: str) -> None:
    echo(QUESTIONS[question])


def _ask_task() -> dict[str, Any]:
    """Ask for the parts of a task that is not ready-made."""
    _explain("kind")
    kind = click.prompt("Kind of task", type=click.Choice(KINDS), default="classification")
    given: dict[str, Any] = {"kind": kind}
    if kind == "chat":
        return given | {"messages_field": _text("Column that holds the messages", "messages")}
    given["template"] = _text("Prompt; {name} stands for what a row has in the column of that name")
    if kind in ("classification", "sequence-classification", "choice"):
        given["label_field"] = _text("Column that holds the right answer", "label")
    if kind in ("classification", "sequence-classification"):
        given["verbalizer"] = click.prompt(
            "The word for each label, such as 0=terrible,1=great",
            value_proc=lambda answer: parse_verbalizer(None, None, answer),
        )
    if kind == "choice":
        given["candidates_field"] = _text("Column that holds the candidates")
    if kind in ("choice", "completion"):
        given["completion"] = _text("Answer, with {columns} as in the prompt (choice: {candidate})")
    return given | _ask_rewards() if kind == "reward" else given


def _ask_rewards() -> dict[str, Any]:
    """Ask how answers are written and what they are worth."""
    _explain("verifier")
    verifier = click.prompt(f"Verifier ({', '.join(VERIFIERS)}, or a file)", value_proc=_usable_verifier)
    _explain("answer_tokens")
    tokens = click.prompt("Tokens of an answer", default=reward_numbers.ANSWER_TOKENS, type=int)
    _explain("stop")
    stop = parse_stop(_text("Text that ends an answer", ""))
    return {"verifier": verifier, "answer_tokens": tokens} | ({"stop": (stop,)} if stop else {})


def _usable_verifier(source: str) -> str:
    """Return the name of a verifier that can be read."""
    try:
        verifying.load(source)
    except UserError as error:
        raise click.UsageError(f"{error.what}. {error.fix}") from error
    return source


def _text(question: str, default: str | None = None) -> str:
    return str(click.prompt(question, default=default, show_default=bool(default)))
