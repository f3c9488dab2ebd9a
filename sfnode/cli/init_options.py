"""The options of `sfnode init` that few need: keys of --set, called as in the manifest where they are in it.

Their defaults are in `sfnode.models.manifest_builder`, which takes what is given by parameter name.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from pathlib import Path
from typing import Any

import click

from sfnode.cli.options import F, device_option, dtype_option, option
from sfnode.cli.passphrases import passphrase_file_option
from sfnode.defaults import DEFAULT_LOSS, KEYS_DIR, OPEN_WORK_BITS, located
from sfnode.manifest.sections import MAX_WORK_BITS
from sfnode.manifest.training import Training
from sfnode.tasks import reward_numbers
from sfnode.verifiers.specs import PRESETS as VERIFIERS

KINDS = ("classification", "sequence-classification", "choice", "completion", "text", "chat", "reward")

NO_MODULES = "none"
"""Value in place of patterns: train no linear layer, only other parameters."""


def parse_patterns(_context: Any, _parameter: Any, value: str | None) -> tuple[str, ...] | None:
    """Return `q_proj,v_proj` as a tuple, and `none` as an empty one."""
    if value is None or value.strip().lower() == NO_MODULES:
        return None if value is None else ()
    patterns = tuple(item.strip() for item in value.split(","))
    if not all(patterns):
        raise click.BadParameter("give it as PATTERN,PATTERN, for example q_proj,v_proj")
    return patterns


def parse_verbalizer(_context: Any, _parameter: Any, value: str | None) -> dict[str, str] | None:
    """Return `0=terrible,1=great` as a table."""
    if value is None:
        return None
    pairs = [item.partition("=") for item in value.split(",")]
    if not all(label and equals and word for label, equals, word in pairs):
        raise click.BadParameter("give it as LABEL=WORD,LABEL=WORD, for example 0=terrible,1=great")
    return {label.strip(): word.strip() for label, _, word in pairs}


def parse_stops(_context: Any, _parameter: Any, values: tuple[str, ...]) -> tuple[str, ...] | None:
    r"""Return the texts that end an answer, in which `\n` and `\t` stand for a line feed and a tab; None for
    none."""
    return tuple(value.replace("\\n", "\n").replace("\\t", "\t") for value in values) or None


def _number(flag: str, text: str, default: str = "") -> Callable[[F], F]:
    """Return the option for a number of the manifest's training section; its help names the default."""
    name = flag.removeprefix("--").replace("-", "_")
    number = getattr(Training(), name)
    kind = type(number)
    what = "COUNT" if kind is int else "NUMBER"
    usual = f"{text}  [default: {default or f'{number:g}'}]"
    return option(flag, key=f"training.{name}", type=kind, metavar=what, help=usual)


OPTIONS: tuple[Callable[[Any], Any], ...] = (
    option("--name", key="name", metavar="NAME", help="Name of the run.  [default: the task]"),
    option(
        "--description",
        key="description",
        metavar="TEXT",
        help="What the run is for, in a sentence or two: everybody who may join reads it.",
    ),
    option(
        "--revision",
        key="model.revision",
        metavar="COMMIT",
        help="Revision of a hub model.  [default: the newest, pinned]",
    ),
    option(
        "--target-modules",
        key="model.target_modules",
        callback=parse_patterns,
        metavar="PATTERN,...",
        help="Linear layers to train (docs/configuration.md).  [default: all-linear]",
    ),
    option(
        "--train-embeddings",
        key="model.train_embeddings",
        is_flag=True,
        default=None,
        help="Train token and position embeddings too.",
    ),
    option(
        "--train-biases",
        key="model.train_biases",
        is_flag=True,
        default=None,
        help="Train the biases of linear layers too.",
    ),
    option(
        "--train-norms",
        key="model.train_norms",
        is_flag=True,
        default=None,
        help="Train the normalisation layers too.",
    ),
    option(
        "--kind", key="task.kind", type=click.Choice(KINDS), help="A task of your own, with task.template."
    ),
    option(
        "--template",
        key="task.template",
        metavar="TEXT",
        help="Its prompt, with the {fields} of a row (docs/tasks.md).",
    ),
    option(
        "--verbalizer",
        key="task.verbalizer",
        callback=parse_verbalizer,
        metavar="LABEL=WORD,...",
        help="classification: the answer to each label (the name of its class).",
    ),
    option(
        "--candidates-field",
        key="task.candidates_field",
        metavar="FIELD",
        help="choice: the field that holds a row's candidates.",
    ),
    option(
        "--completion",
        key="task.completion",
        metavar="TEXT",
        help="completion, choice: the text that the loss is on.",
    ),
    option(
        "--messages-field",
        key="task.messages_field",
        metavar="FIELD",
        help="chat: the field with the messages.  [default: messages]",
    ),
    option(
        "--metric",
        key="task.metric",
        type=click.Choice(["accuracy", "f1"]),
        help="classification: the metric of the model.  [default: accuracy]",
    ),
    option(
        "--objective",
        "loss",
        key="task.loss",
        type=click.Choice(["plain", "centred"]),
        help="classification: whether scores are compared as they are, or less their means over balanced "
        f"mini-batches (docs/tasks.md).  [default: {DEFAULT_LOSS}]",
    ),
    option(
        "--verifier",
        key="task.verifier",
        metavar="NAME|FILE",
        help=f"reward: what scores an answer: {', '.join(VERIFIERS)}, a .toml or .json file that describes "
        "it, or a plug-in MODULE:FUNCTION, whose file others then need (docs/verifiers.md).",
    ),
    option(
        "--answer-tokens",
        key="task.answer_tokens",
        type=int,
        metavar="COUNT",
        help=f"reward: most tokens of an answer.  [default: {reward_numbers.ANSWER_TOKENS}]",
    ),
    option(
        "--temperature",
        key="task.temperature",
        type=float,
        metavar="NUMBER",
        help="reward: draw an answer's tokens at this temperature.  [default: 0, always the likeliest one]",
    ),
    option(
        "--stop",
        key="task.stop",
        multiple=True,
        callback=parse_stops,
        metavar="TEXT",
        help=r"reward: text that ends an answer, and is no part of it; \n is a line feed. May be repeated.",
    ),
    option(
        "--max-tokens",
        key="task.max_tokens",
        type=int,
        metavar="COUNT",
        help="Most tokens of a prompt, with reward of prompt and answer; longer prompts lose their "
        "beginning.",
    ),
    option(
        "--share-data/--no-share-data",
        key="data.share",
        default=None,
        help="Whether nodes give each other the data that are files, found by their digests; otherwise "
        "others need them at the same path.  [default: yes, but not in a private run]",
    ),
    option(
        "--train-limit",
        key="data.train_limit",
        type=int,
        metavar="COUNT",
        help="Use only so many training rows.",
    ),
    option(
        "--train-min-words",
        key="data.train_min_words",
        type=int,
        metavar="COUNT",
        help="Use only training rows with at least so many words.",
    ),
    option(
        "--test-limit", key="data.test_limit", type=int, metavar="COUNT", help="Use only so many test rows."
    ),
    option(
        "--validation",
        key="data.validation",
        metavar="SOURCE",
        help="Data by which an organiser judges, in the same form.  [default: rows of the training data]",
    ),
    option(
        "--validation-limit",
        key="data.validation_limit",
        type=int,
        metavar="COUNT",
        help="Validation rows; without data.validation, that many rows of the training data, on which then "
        "nobody trains.  [default: 256, or a fifth of the rows; 0 in an open run]",
    ),
    _number("--rank", "Dimensions of a layer's subspace; a power of two."),
    option(
        "--bases",
        key="training.bases",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        help="Published bases for the model's targets at this rank (docs/how-it-works.md), which nodes get "
        "from each other; they are copied to the folder of the manifest.  [default: random bases, which need "
        "no file]",
    ),
    option(
        "--basis",
        "made_of",
        key="training.basis",
        type=click.Choice(["random", "activations", "gradients"]),
        help="Directions in which updates move a layer: random ones; or published bases that this command "
        "makes, from the layers' inputs (forward passes) or from the mean gradient of some mini-batches "
        "(backward passes, with memory for inference and half as much again).  [default: activations where "
        "numbers are tried out and there are training rows, else random]",
    ),
    _number("--epsilon", "Distance of the points of an update from the weights."),
    _number("--learning-rate", "Learning rate per update, not per round."),
    option(
        "--schedule",
        key="training.schedule",
        type=click.Choice(["constant", "linear", "cosine"]),
        help="How the learning rate changes over the epochs of an open run.  [default: constant]",
    ),
    _number("--batch-size", "Rows of one update's mini-batch."),
    _number(
        "--group",
        "Updates that share a mini-batch and are compared with each other, which costs half as many forward "
        "passes an update; 0: each is measured at two points (docs/how-it-works.md).",
    ),
    _number(
        "--decay",
        "Factor by which what was learnt shrinks with each subspace that follows, so that a long run stays "
        "near the base model; 1: it stays. Not in an open run (docs/organising.md).",
    ),
    _number("--epoch-updates", "Updates for which one subspace serves."),
    _number("--update-budget", "Updates after which the run is complete."),
    _number("--scalar-delta", "Unit of the scalars."),
    _number("--scalar-limit", "Largest scalar that an update may have.", "measured"),
    option(
        "--measure/--no-measure",
        key="init.measure",
        default=True,
        show_default=True,
        help="Measure some scalars before the run starts, and refuse numbers with which one update could "
        "wreck the model. That loads the model.",
    ),
    option(
        "--details",
        key="init.details",
        is_flag=True,
        help="Say which numbers were chosen, and why.  [default: what is wrong with them alone]",
    ),
    option(
        "--calibrate/--no-calibrate",
        key="init.calibrate",
        default=None,
        help="Try the model out before the run starts: epsilon, scalar_delta, scalar_limit and a first "
        "learning rate are chosen for it, but for those that you give; it takes 600 example-forwards at "
        "most. In a reward run it writes some answers, and the rate is a recipe's (docs/rewards.md).  "
        "[default: as init.measure, unless you give all of them or take the built-in run]",
    ),
    option(
        "--quota",
        key="organised.quota",
        type=int,
        metavar="COUNT",
        help="Updates that an invited member may make in one epoch.  [default: four epochs' worth]",
    ),
    option(
        "--feed-quota",
        key="open.quota",
        type=click.IntRange(1, (1 << 32) - 1),
        metavar="COUNT",
        help="Updates that one feed of an open run may have in all (docs/security.md).  [default: the "
        "budget]",
    ),
    option(
        "--work-bits",
        key="open.work_bits",
        type=click.IntRange(0, MAX_WORK_BITS),
        metavar="BITS",
        help="Proof of work of a new feed of an open run: 2^BITS hashes on average.  "
        f"[default: {OPEN_WORK_BITS}, a second or two of a slow core]",
    ),
    option(
        "--subspace-epochs",
        key="organised.subspace_epochs",
        type=int,
        metavar="COUNT",
        help="Epochs of an organised run for which one subspace serves.  [default: a 16th of the run's]",
    ),
    option(
        "--keys-dir",
        key="keys.dir",
        type=click.Path(path_type=Path),
        metavar="FOLDER",
        default=KEYS_DIR,
        show_default=True,
        callback=lambda _context, _parameter, value: located(value),
        help="Where the keys of an organised run are kept; not beside the manifest.",
    ),
    option("--encrypt", key="keys.encrypt", is_flag=True, help="Encrypt these keys with a passphrase."),
    partial(device_option, key="init.device"),
    partial(dtype_option, key="init.dtype"),
    partial(passphrase_file_option, key="keys.passphrase_file"),
)


def key_options(function: F) -> F:
    """Add all of them."""
    return reduce(lambda done, add: add(done), reversed(OPTIONS), function)
