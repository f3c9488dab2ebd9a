"""`sfnode init`: write a run manifest from flags or from answers."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from sfnode.cli.init_questions import KINDS, ask, parse_stop, parse_verbalizer
from sfnode.cli.options import F, device_option, dtype_option, option
from sfnode.cli.output import echo
from sfnode.cli.passphrases import chosen, passphrase_file_option
from sfnode.cli.progress import waiting
from sfnode.defaults import DEFAULT_LOSS, KEYS_DIR, OPEN_WORK_BITS, located
from sfnode.errors import Code, UserError
from sfnode.manifest import Manifest
from sfnode.manifest.sections import MAX_WORK_BITS
from sfnode.manifest.training import Training
from sfnode.printable import command
from sfnode.tasks import reward_numbers
from sfnode.tasks.presets import DEFAULT_MODEL, PRESETS
from sfnode.verifiers.specs import PRESETS as VERIFIERS

if TYPE_CHECKING:
    from sfnode.store.run_keys import RunKeys

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


def parse_stops(_context: Any, _parameter: Any, values: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the texts that end an answer; None for none."""
    return tuple(map(parse_stop, values)) or None


def number_option(flag: str, text: str, default: str = "") -> Callable[[F], F]:
    """Add the option for a number of the manifest's training section; its help names the default."""
    number = getattr(Training(), flag.removeprefix("--").replace("-", "_"))
    kind = type(number)
    what = "COUNT" if kind is int else "NUMBER"
    return option(flag, type=kind, metavar=what, help=f"{text}  [default: {default or f'{number:g}'}]")


@click.command
@click.argument("out", type=click.Path(path_type=Path, dir_okay=False), default="run.toml")
@option("--name", metavar="NAME", help="Name of the run.  [default: the task]")
@option(
    "--description",
    metavar="TEXT",
    help="What the run is for, in a sentence or two: everybody who may join reads it.",
)
@option("--model", metavar="SOURCE", help=f"Base model: a folder, a Hugging Face id, or {DEFAULT_MODEL}.")
@option("--revision", metavar="COMMIT", help="Revision of a hub model.  [default: the newest, pinned]")
@option(
    "--target-modules",
    callback=parse_patterns,
    metavar="PATTERN,...",
    help="Linear layers to train (docs/configuration.md).  [default: all-linear]",
)
@option("--train-embeddings", is_flag=True, default=None, help="Train token and position embeddings too.")
@option("--train-biases", is_flag=True, default=None, help="Train the biases of linear layers too.")
@option("--train-norms", is_flag=True, default=None, help="Train the normalisation layers too.")
@option("--task", "preset", metavar="PRESET", help=f"A ready-made task: {', '.join(PRESETS)}.")
@option("--kind", type=click.Choice(KINDS), help="A task of your own, with --template and --train.")
@option("--template", metavar="TEXT", help="Its prompt, with the {fields} of a row (docs/tasks.md).")
@option(
    "--verbalizer",
    callback=parse_verbalizer,
    metavar="LABEL=WORD,...",
    help="classification: the answer to each label (the name of its class).",
)
@option("--label-field", metavar="FIELD", help="The field that holds the label.  [default: label]")
@option("--candidates-field", metavar="FIELD", help="choice: the field that holds a row's candidates.")
@option("--completion", metavar="TEXT", help="completion, choice: the text that the loss is on.")
@option("--messages-field", metavar="FIELD", help="chat: the field with the messages.  [default: messages]")
@option(
    "--metric",
    type=click.Choice(["accuracy", "f1"]),
    help="classification: the metric of the model.  [default: accuracy]",
)
@option(
    "--objective",
    "loss",
    type=click.Choice(["plain", "centred"]),
    help="classification: whether scores are compared as they are, or less their means over balanced "
    f"mini-batches (docs/tasks.md).  [default: {DEFAULT_LOSS}]",
)
@option(
    "--verifier",
    metavar="NAME|FILE",
    help=f"reward: what scores an answer: {', '.join(VERIFIERS)}, a .toml or .json file that describes it, "
    "or a plug-in MODULE:FUNCTION, whose file others then need (docs/verifiers.md).",
)
@option(
    "--answer-tokens",
    type=int,
    metavar="COUNT",
    help=f"reward: most tokens of an answer.  [default: {reward_numbers.ANSWER_TOKENS}]",
)
@option(
    "--temperature",
    type=float,
    metavar="NUMBER",
    help="reward: draw an answer's tokens at this temperature.  [default: 0, always the likeliest one]",
)
@option(
    "--stop",
    multiple=True,
    callback=parse_stops,
    metavar="TEXT",
    help=r"reward: text that ends an answer, and is no part of it; \n is a line feed. May be repeated.",
)
@option(
    "--max-tokens",
    type=int,
    metavar="COUNT",
    help="Most tokens of a prompt, with reward of prompt and answer; longer prompts lose their beginning.",
)
@option(
    "--train",
    metavar="SOURCE",
    help="Training data: a .tsv, .csv, .jsonl or .parquet file or hf:NAME[:CONFIG]:SPLIT. A task of your own "
    "may have none: every trainer then brings its own with `join --data`.",
)
@option("--test", metavar="SOURCE", help="Held-out data for measuring the model, in the same form.")
@option(
    "--skip-bad-rows",
    is_flag=True,
    help="Leave out rows of the data that do not fit the task, and say which. The others are written to a "
    "file in the folder of OUT, which the run then names.  [default: such a row is an error]",
)
@option(
    "--share-data/--no-share-data",
    default=None,
    help="Whether nodes give each other the data that are files, found by their digests; otherwise others "
    "need them at the same path.  [default: yes, but not in a private run]",
)
@option("--train-limit", type=int, metavar="COUNT", help="Use only so many training rows.")
@option(
    "--train-min-words", type=int, metavar="COUNT", help="Use only training rows with at least so many words."
)
@option("--test-limit", type=int, metavar="COUNT", help="Use only so many test rows.")
@option(
    "--validation",
    metavar="SOURCE",
    help="Data by which an organiser judges, in the same form.  [default: rows of the training data]",
)
@option(
    "--validation-limit",
    type=int,
    metavar="COUNT",
    help="Validation rows; without --validation, that many rows of the training data, on which then nobody "
    "trains.  [default: 256, or a fifth of the rows; 0 in an open run]",
)
@number_option("--rank", "Dimensions of a layer's subspace; a power of two.")
@option(
    "--bases",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Published bases for the model's targets at this rank (docs/how-it-works.md), which nodes get from "
    "each other; they are copied to the folder of OUT.  [default: random bases, which need no file]",
)
@option(
    "--basis",
    "made_of",
    type=click.Choice(["random", "activations", "gradients"]),
    help="Directions in which updates move a layer: random ones; or published bases that this command makes, "
    "from the layers' inputs (forward passes) or from the mean gradient of some mini-batches (backward "
    "passes, with memory for inference and half as much again).  [default: activations where numbers are "
    "tried out and there are training rows, else random]",
)
@number_option("--epsilon", "Distance of the points of an update from the weights.")
@number_option("--learning-rate", "Learning rate per update, not per round.")
@option(
    "--schedule",
    type=click.Choice(["constant", "linear", "cosine"]),
    help="How the learning rate changes over the epochs of an open run.  [default: constant]",
)
@number_option("--batch-size", "Rows of one update's mini-batch.")
@number_option(
    "--group",
    "Updates that share a mini-batch and are compared with each other, which costs half as many forward "
    "passes an update; 0: each is measured at two points (docs/how-it-works.md).",
)
@number_option(
    "--decay",
    "Factor by which what was learnt shrinks with each subspace that follows, so that a long run stays near "
    "the base model; 1: it stays. Not in an open run (docs/organising.md).",
)
@number_option("--epoch-updates", "Updates for which one subspace serves.")
@number_option("--update-budget", "Updates after which the run is complete.")
@number_option("--scalar-delta", "Unit of the scalars.")
@number_option("--scalar-limit", "Largest scalar that an update may have.", "measured")
@option(
    "--measure/--no-measure",
    default=True,
    show_default=True,
    help="Measure some scalars before the run starts, and refuse numbers with which one update could wreck "
    "the model. That loads the model.",
)
@option(
    "--calibrate/--no-calibrate",
    default=None,
    help="Try the model out before the run starts: epsilon, scalar_delta, scalar_limit and a first learning "
    "rate are chosen for it, but for those that you give; it takes 600 example-forwards at most. In a "
    "reward run it writes some answers, and the rate is a recipe's (docs/rewards.md).  "
    "[default: as --measure, unless you give all of them or take the built-in run]",
)
@device_option
@dtype_option
@option(
    "--organised/--open",
    default=True,
    show_default=True,
    help="Whether what counts is decided by the holder of a key, which is written to --keys-dir. In an open "
    "run everybody's updates count: for experiments among friends.",
)
@option(
    "--quota",
    type=int,
    metavar="COUNT",
    help="Updates that an invited member may make in one epoch.  [default: four epochs' worth]",
)
@option(
    "--feed-quota",
    type=click.IntRange(1, (1 << 32) - 1),
    metavar="COUNT",
    help="Updates that one feed of an open run may have in all (docs/security.md).  [default: the budget]",
)
@option(
    "--work-bits",
    type=click.IntRange(0, MAX_WORK_BITS),
    metavar="BITS",
    help="Proof of work of a new feed of an open run: 2^BITS hashes on average.  "
    f"[default: {OPEN_WORK_BITS}, a second or two of a slow core]",
)
@option(
    "--subspace-epochs",
    type=int,
    metavar="COUNT",
    help="Epochs of an organised run for which one subspace serves.  [default: a 16th of the run's]",
)
@option(
    "--private",
    is_flag=True,
    default=None,
    help="Keep an organised run out of the public roster, and admit nobody who was neither invited nor "
    "approved: for hospitals and laboratories.",
)
@option(
    "--keys-dir",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    default=KEYS_DIR,
    show_default=True,
    callback=lambda _context, _parameter, value: located(value),
    help="Where the keys of an organised run are kept; not beside OUT.",
)
@option("--encrypt", is_flag=True, help="Encrypt these keys with a passphrase.")
@passphrase_file_option
@option("--force", is_flag=True, help="Overwrite OUT.")
def init(
    out: Path,
    force: bool,
    measure: bool,
    calibrate: bool | None,
    device: str,
    dtype: str,
    organised: bool,
    keys_dir: Path,
    encrypt: bool,
    passphrase_file: Path | None,
    bases: Path | None,
    made_of: str | None,
    share_data: bool | None,
    skip_bad_rows: bool,
    **given: Any,
) -> None:
    """Write a run manifest to OUT (default run.toml): model, task, data and the numbers of training.

    Asks when there are no options, or, without a terminal, describes the built-in run (which has numbers of
    its own, not the defaults below). The manifest never changes: its hash is the identity of the run.
    """
    if out.exists() and not force:
        raise UserError(Code.BAD_OPTION, f"{out} exists already", "Name another file, or add --force.")
    given, organised = _given(given, organised, encrypt)
    check_bases(bases, made_of)
    with waiting("loading libraries"):
        from sfnode import preparing
        from sfnode.cli import init_output as output
        from sfnode.store.run_keys import RunKeys

    keys = RunKeys.generate() if organised else None
    keys_dir = keys_folder(keys_dir, out) if keys else keys_dir
    passphrase = chosen(passphrase_file) if encrypt else None
    with preparing.all_or_nothing() as note, TemporaryDirectory(prefix="sfnode-") as scratch:
        said = _skip_bad_rows(given, out.parent, note) if skip_bad_rows else []
        manifest = _built(given, bases, keys.options() if keys else {}, Path(scratch))
        means = preparing.Means(device, dtype, Path(scratch))
        asked = preparing.wanted(manifest, given, made_of, calibrate, measure)
        prepared = preparing.prepare(manifest, given, means, asked, waiting)
        said += output.made_words(prepared, asked)
        share = not manifest.organised.private if share_data is None else share_data
        manifest = _write_beside(out, prepared.manifest, Path(scratch), share, note, said)
        said += _write_keys(keys, manifest.run_id, keys_dir, passphrase, note) if keys else []
        note(out)
        write_manifest(out, manifest.to_toml())
    echo(f"wrote {out}: run {manifest.name}, id {manifest.run_id.hex()}")
    for line in [*said, *output.numbers_words(prepared, given), *output.notes(manifest, "epsilon" in given)]:
        echo(line)
    echo("What happens next:")
    start = command("sfnode", "join", "--run", out, *(organising_options(keys_dir) if keys else ()))
    echo(f"  {start}    starts the run on this machine")
    echo("  sfnode invite    prints the link with which others join, once it runs")


def _given(given: dict[str, Any], organised: bool, encrypt: bool) -> tuple[dict[str, Any], bool]:
    """Return the options that are given, or the answers to questions where none is, and whether the run is
    organised."""
    given = {key: value for key, value in given.items() if value is not None}
    if not given and sys.stdin.isatty():
        given, organised = ask(organised)
    if encrypt and not organised:
        raise UserError(Code.BAD_OPTION, "--encrypt: an open run has no keys", "Leave out --open.")
    if not organised:
        given.setdefault("work_bits", OPEN_WORK_BITS)
    return given, organised


def _skip_bad_rows(given: dict[str, Any], folder: Path, note: Callable[[Path], None]) -> list[str]:
    """Write the rows that fit to files in a folder, which `given` then names; return what there is to say."""
    from sfnode import preparing
    from sfnode.cli import init_output as output
    from sfnode.models.manifest_builder import beginning

    begun = beginning(given)
    left_out = preparing.without_bad_rows(begun.task, begun.data, folder, note)
    given |= {role: str(one.file) for role, one in left_out.items()}
    given |= {"preset": begun.name} if begun.preset else {}  # which a file without a task would not name
    return output.left_out_words(left_out)


def _built(given: dict[str, Any], bases: Path | None, keys: dict[str, Any], made: Path) -> Manifest:
    """Return the manifest of these options; published `bases` are kept in the folder `made`."""
    from sfnode import preparing
    from sfnode.models.manifest_builder import build

    given |= published(bases) if bases else {}
    with waiting("reading the model and the data"):
        manifest = build(given | keys)
    if bases:
        preparing.keep_bases(bases, made, manifest)
    return manifest


def _write_keys(
    keys: RunKeys, run_id: bytes, keys_dir: Path, passphrase: bytes | None, note: Callable[[Path], None]
) -> list[str]:
    from sfnode.cli import init_output as output
    from sfnode.store.run_keys import organiser_key, recovery_key

    for key in (organiser_key, recovery_key):
        note(key(run_id, keys_dir))
    return output.keys_words(*keys.write(run_id, keys_dir, passphrase))


def _write_beside(
    out: Path, manifest: Manifest, made: Path, share: bool, note: Callable[[Path], None], said: list[str]
) -> Manifest:
    """Write the bases of a run, which are in the folder `made`, and its data beside its manifest; return that
    with their digests, and add what there is to say."""
    from sfnode import preparing
    from sfnode.cli import init_output as output
    from sfnode.models.bases import path_in

    if manifest.training.bases:
        file = path_in(made, manifest.training.bases)
        said.append(output.bases_words(*preparing.keep_bases(file, out.parent, manifest, note), out))
    if share:
        manifest, shared = preparing.share_data(manifest, out.parent, note)
        said += output.data_words(shared, out)
    return manifest


def check_bases(file: Path | None, kind: str | None) -> None:
    """Raise UserError BAD_OPTION for a file with bases where others are to be made."""
    if file and kind:
        raise UserError(
            Code.BAD_OPTION, "--bases names a file, and --basis makes another one", "Give one of them."
        )


def published(file: Path) -> dict[str, Any]:
    """Return the options of a run with the bases in a file. Raises UserError BASES_MISSING."""
    from sfnode.models.bases import digest_of

    return {"basis": "published", "bases": digest_of(file)}


def organising_options(keys_dir: Path) -> list[str]:
    """Return the options of a node that organises with a key in this folder."""
    elsewhere = [] if keys_dir == located(KEYS_DIR) else ["--keys-dir", str(keys_dir)]
    return ["--organise", *elsewhere]


def keys_folder(keys_dir: Path, out: Path) -> Path:
    """Return `keys_dir`, which must not be where the manifest lies: people pass that folder on."""
    if keys_dir.resolve() == out.resolve().parent:
        raise UserError(
            Code.BAD_OPTION,
            f"--keys-dir: {keys_dir} is the folder of the manifest, which others get",
            "Name a folder that nobody but you reads.",
        )
    return keys_dir


def write_manifest(out: Path, text: str) -> None:
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise UserError(
            Code.DISK_FULL if full else Code.BAD_OPTION,
            f"cannot write {out}: {error.strerror}",
            "Name a file in a folder that exists and that you can write to.",
        ) from error
