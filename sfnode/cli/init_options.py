"""The rarely needed options of `sfnode init`: keys of --set, named as in the manifest.

Their defaults are in `sfnode.preparing.manifest`, which takes the given values by parameter name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from pathlib import Path
from typing import Any

import click

from sfnode.cli.options import F, device_option, dtype_option, option
from sfnode.cli.passphrases import passphrase_file_option
from sfnode.defaults import ANSWER_TOKENS, DEFAULT_LOSS, KEYS_DIR, OPEN_WORK_BITS, TEMPERATURE, located
from sfnode.manifest.sections import MAX_WORK_BITS, run_name
from sfnode.manifest.training import Training
from sfnode.verifiers.specs import PRESETS as VERIFIERS

KINDS = ("classification", "sequence-classification", "choice", "completion", "text", "chat", "reward")

NO_MODULES = "none"
"""Value of model.target_modules that stands for no patterns. No linear layers are then trained, only other
parameters."""


def parse_patterns(_context: Any, _parameter: Any, value: str | None) -> tuple[str, ...] | None:
    """Return a text such as `q_proj,v_proj` as a tuple, and `none` as an empty tuple."""
    if value is None or value.strip().lower() == NO_MODULES:
        return None if value is None else ()
    patterns = tuple(item.strip() for item in value.split(","))
    if not all(patterns):
        raise click.BadParameter("give it as PATTERN,PATTERN, for example q_proj,v_proj")
    return patterns


def parse_verbalizer(_context: Any, _parameter: Any, value: str | None) -> dict[str, str] | None:
    """Return a text such as `0=terrible,1=great` as a dict."""
    if value is None:
        return None
    pairs = [item.partition("=") for item in value.split(",")]
    if not all(label and equals and word for label, equals, word in pairs):
        raise click.BadParameter("give it as LABEL=WORD,LABEL=WORD, for example 0=terrible,1=great")
    return {label.strip(): word.strip() for label, _, word in pairs}


def parse_stops(_context: Any, _parameter: Any, values: tuple[str, ...]) -> tuple[str, ...] | None:
    r"""Return the texts that end an answer, with `\n` and `\t` replaced by a line feed and a tab; None if
    there are no such texts."""
    return tuple(value.replace("\\n", "\n").replace("\\t", "\t") for value in values) or None


def _key(key: str, metavar: str, text: str, *names: str, **extra: Any) -> Callable[[Any], Any]:
    """Return the option with this key. `names` may have a flag; otherwise the flag is the last part of the
    key. The flag gives the option's environment variable its name."""
    flag = "--" + key.rpartition(".")[2].replace("_", "-")
    names = names if any(name.startswith("--") for name in names) else (flag, *names)
    kind = {"COUNT": int, "NUMBER": float}.get(metavar)
    said: dict[str, Any] = {"type": kind} if kind else {}
    said |= {"metavar": metavar} if metavar else {"is_flag": True, "default": None}
    return option(*names, key=key, help=text, **said | extra)


def _choice(key: str, choices: Sequence[str], text: str, *names: str) -> Callable[[Any], Any]:
    return _key(key, "|".join(choices), text, *names, type=click.Choice(choices))


def _number(name: str, text: str, default: str = "") -> Callable[[Any], Any]:
    """Return the option for a hyperparameter in the manifest's training section. The option's help states the
    default."""
    number = getattr(Training(), name)
    metavar = "COUNT" if isinstance(number, int) else "NUMBER"
    return _key(f"training.{name}", metavar, f"{text}  [default: {default or f'{number:g}'}]")


OPTIONS: tuple[Callable[[Any], Any], ...] = (
    _key(
        "name",
        "NAME",
        "Name of the run.  [default: the task, or the data]",
        callback=lambda _context, _parameter, value: value and run_name(value),
    ),
    _key(
        "description", "TEXT", "What the run is for, in a sentence or two: everybody who may join reads it."
    ),
    _key("model.revision", "COMMIT", "Revision of a hub model.  [default: the newest, pinned]"),
    _key(
        "model.target_modules",
        "PATTERN,...",
        "Linear layers to train (docs/configuration.md).  [default: upper-linear in words and by gradients, "
        "values for rewards, else all-linear]",
        callback=parse_patterns,
    ),
    _key("model.train_embeddings", "", "Train token and position embeddings too."),
    _key("model.train_biases", "", "Train the biases of linear layers too."),
    _key("model.train_norms", "", "Train the normalisation layers too."),
    _choice("task.kind", KINDS, "A task of your own, with task.template."),
    _key("task.template", "TEXT", "Its prompt, with the {fields} of a row (docs/tasks.md)."),
    _key(
        "task.verbalizer",
        "LABEL=WORD,...",
        "classification: the answer to each label (the name of its class).",
        callback=parse_verbalizer,
    ),
    _key("task.candidates_field", "FIELD", "choice: the field that holds a row's candidates."),
    _key("task.completion", "TEXT", "completion, choice: the text that the loss is on."),
    _key("task.messages_field", "FIELD", "chat: the field with the messages.  [default: messages]"),
    _choice("task.metric", ["accuracy", "f1"], "classification: the model's metric.  [default: accuracy]"),
    _choice(
        "task.loss",
        ["plain", "centred"],
        "classification: whether scores are compared as they are, or less their means over balanced "
        f"mini-batches (docs/tasks.md).  [default: {DEFAULT_LOSS}]",
    ),
    _key(
        "task.verifier",
        "NAME|FILE",
        f"reward: what scores an answer: {', '.join(VERIFIERS)}, a .toml or .json file that describes "
        "it, or a plug-in MODULE:FUNCTION, whose file others then need (docs/verifiers.md).",
    ),
    _key("task.answer_tokens", "COUNT", f"reward: most tokens of an answer.  [default: {ANSWER_TOKENS}]"),
    _key(
        "task.temperature",
        "NUMBER",
        f"reward: draw an answer's tokens at this temperature.  [default: {TEMPERATURE}]",
    ),
    _key(
        "task.stop",
        "TEXT",
        r"reward: text that ends an answer, and is no part of it; \n is a line feed. May be repeated.",
        multiple=True,
        callback=parse_stops,
    ),
    _key(
        "task.max_tokens",
        "COUNT",
        "Most tokens of a prompt, with reward of prompt and answer; longer prompts lose their beginning.",
    ),
    _key(
        "data.share",
        "",
        "Whether nodes give each other the data that are files, found by their digests; otherwise others "
        "train on rows of their own.  [default: yes, but not in a private run]",
        *("--share-data", "share_data"),
    ),
    _key("data.train_limit", "COUNT", "Use only so many training rows."),
    _key("data.train_min_words", "COUNT", "Use only training rows with at least so many words."),
    _key("data.test_limit", "COUNT", "Use only so many test rows."),
    _key(
        "data.validation",
        "SOURCE",
        "Data by which an organiser judges, in the same form.  [default: rows of the training data]",
    ),
    _key(
        "data.validation_limit",
        "COUNT",
        "Validation rows; without data.validation, that many rows of the training data, on which then "
        "nobody trains.  [default: 256, or a fifth of the rows; 0 in an open run]",
    ),
    _choice(
        "training.estimator",
        ["first-order", "zeroth-order"],
        "What an update tells: the gradient by all numbers of a small core, from a backward pass; or one "
        "number along a random direction, from forward passes, which learns far less.  [default: what is "
        "proposed: first-order where gradients can be taken]",
    ),
    _number("rank", "Dimensions of a layer's subspace; a power of two."),
    _key(
        "training.bases",
        "FILE",
        "Published bases for the model's targets at this rank (docs/how-it-works.md), which nodes get from "
        "each other; they are copied to the folder of the manifest.  [default: random bases, which need no "
        "file]",
        type=click.Path(path_type=Path, dir_okay=False),
    ),
    _choice(
        "training.basis",
        ["random", "errors", "gradients"],
        "Directions in which updates move a layer: random ones; or published bases that this command makes, "
        "from the errors of the output and what led to them (forward passes) or from the mean gradient of "
        "some mini-batches (backward passes, with memory for inference and half as much again).  [default: "
        "where numbers are tried out and there are training rows errors, or gradients for rewards; else "
        "random]",
        "made_of",
    ),
    _number("epsilon", "Distance of the points of an update from the weights."),
    _number("learning_rate", "Learning rate per update, not per round."),
    _choice(
        "training.schedule",
        ["constant", "linear", "cosine"],
        "How the learning rate changes over the epochs of an open run.  [default: constant]",
    ),
    _number("batch_size", "Rows of one update's mini-batch."),
    _number(
        "group",
        "Updates that share a mini-batch and are compared with each other, which costs half as many forward "
        "passes an update; 0: each is measured at two points (docs/how-it-works.md).",
    ),
    _number(
        "decay",
        "Factor by which what was learnt shrinks with each subspace that follows, so that a long run stays "
        "near the base model; 1: it stays. Not in an open run (docs/judging.md).",
    ),
    _number("epoch_updates", "Updates for which one subspace serves."),
    _number("update_budget", "Updates after which the run is complete."),
    _number("scalar_delta", "Unit of the scalars."),
    _number("scalar_limit", "Largest scalar that an update may have.", "measured"),
    _key(
        "init.measure",
        "",
        "Load the model and measure it before the run starts: epsilon, scalar_delta, scalar_limit and a "
        "first learning rate are chosen for it, but those you give (the built-in run keeps its "
        "own), and numbers with which one update could wreck it are refused. That takes 1,000 "
        "example-forwards at most; a reward run writes some answers (docs/rewards.md).  [default: yes]",
        default=True,
    ),
    _key(
        "organised.quota",
        "COUNT",
        "Updates that an invited member may make in one epoch.  [default: four epochs' worth]",
    ),
    _key(
        "organised.subspace_epochs",
        "COUNT",
        "Epochs of an organised run for which one subspace serves.  [default: a 16th of the run's]",
    ),
    _key(
        "open.quota",
        "COUNT",
        "Updates that one feed of an open run may have in all (docs/security.md).  [default: the budget]",
        "--feed-quota",
        type=click.IntRange(1, (1 << 32) - 1),
    ),
    _key(
        "open.work_bits",
        "BITS",
        "Proof of work of a new feed of an open run: 2^BITS hashes on average.  "
        f"[default: {OPEN_WORK_BITS}, a second or two of a slow core]",
        type=click.IntRange(0, MAX_WORK_BITS),
    ),
    _key(
        "keys.dir",
        "FOLDER",
        "Where the keys of an organised run are kept; not beside the manifest.",
        "--keys-dir",
        type=click.Path(path_type=Path),
        default=KEYS_DIR,
        show_default=True,
        callback=lambda _context, _parameter, value: located(value),
    ),
    _key("keys.encrypt", "", "Encrypt these keys with a passphrase."),
    partial(passphrase_file_option, key="keys.passphrase_file"),
    partial(device_option, key="init.device"),
    partial(dtype_option, key="init.dtype"),
)


def key_options(function: F) -> F:
    """Add all options of this module to a command."""
    return reduce(lambda done, add: add(done), reversed(OPTIONS), function)
