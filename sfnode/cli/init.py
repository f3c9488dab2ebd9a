"""`sfnode init`: write a run manifest, from a file with data that it asks about, or from options alone."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from sfnode.cli.exit import warn
from sfnode.cli.init_options import key_options, run_name
from sfnode.cli.keys import Command, Option, require_key
from sfnode.cli.options import option
from sfnode.cli.output import echo
from sfnode.cli.passphrases import chosen
from sfnode.cli.progress import waiting
from sfnode.defaults import KEYS_DIR, OPEN_WORK_BITS, located
from sfnode.errors import Code, UserError
from sfnode.manifest import Manifest
from sfnode.manifest.sections import BUILTIN, HUB
from sfnode.printable import command
from sfnode.tasks.presets import DEFAULT_MODEL, PRESETS

if TYPE_CHECKING:
    from sfnode.cli.init_screen import Answers, Plan
    from sfnode.store.run_keys import RunKeys
    from sfnode.tasks.columns import DataTable
    from sfnode.tasks.fitting import RowExamination

OWN_KINDS = (".txt", ".json")
"""Ends of the names of files of which `sfnode init FILE` writes the rows anew."""

DESCRIBED = ("preset", "kind", "verifier")
"""Options that say what is to be learnt; without them the data are asked what they suggest."""


@click.command(cls=Command)
@click.argument("data", required=False, metavar="[DATA]")
@option(
    "--label",
    "label_field",
    metavar="COLUMN",
    help="The column that says what is right; `none` to learn the texts themselves.  [default: proposed]",
)
@option("--task", "preset", metavar="PRESET", help=f"A ready-made task: {', '.join(PRESETS)}.")
@option(
    "--model",
    metavar="SOURCE",
    help=f"Base model: a folder, a Hugging Face id, or {DEFAULT_MODEL}.  [default: what is proposed; with "
    f"--task the task's own, if it has one; with task.kind {DEFAULT_MODEL}]",
)
@option(
    "--test",
    metavar="SOURCE",
    help="Other data to measure the model with.  [default: a fifth of DATA, on which then nobody trains]",
)
@option(
    "--skip-bad-rows",
    is_flag=True,
    help="Leave out rows of the data that do not fit the task, and say which.  [default: an error]",
)
@option("--yes", is_flag=True, help="Take what is proposed, without a question.")
@option(
    "--organised/--open",
    default=True,
    show_default=True,
    help="Whether the holder of a key, which is made now, decides what counts. In an open run everybody's "
    "updates count: for experiments among friends.",
)
@option(
    "--private",
    is_flag=True,
    default=None,
    help="Keep an organised run out of the public roster, and admit nobody who was neither invited nor "
    "approved: for hospitals and laboratories.",
)
@option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default="run.toml",
    help="The manifest that is written.",
)
@option("--force", is_flag=True, help="Overwrite it.")
@key_options
def init(data: str | None, out: Path, yes: bool, organised: bool, **given: Any) -> None:
    """Write the manifest of a new run: what is learnt, from which data, by which model.

    DATA is a .csv, .tsv, .jsonl or .parquet file, or hf:NAME[:CONFIG]:SPLIT. You are shown what it has and
    what could be learnt from it, and confirm or change it. A ready-made task (--task) needs no data, and one
    of your own (--set task.kind=...) may have none: every trainer then brings its own. The manifest never
    changes: its hash is the identity of the run.
    """
    if out.exists() and not given["force"]:
        raise UserError(Code.BAD_OPTION, f"{out} exists already", "Name another file, or add --force.")
    said = {key: value for key, value in given.items() if value is not None}
    if data:
        said["train"] = data
    if any(key in said for key in DESCRIBED):
        _write(out, organised, said)
    else:
        _ask(out, yes, organised, said)


def _ask(out: Path, yes: bool, organised: bool, said: dict[str, Any]) -> None:
    """Write the manifest of a run that the data suggest, once the user agrees."""
    with waiting("loading libraries"):
        from sfnode.cli import init_screen as screen
        from sfnode.tasks import columns

    def read(source: str) -> DataTable:
        with waiting(f"reading {source}"):
            return columns.read(source)

    asking = sys.stdin.isatty() and not yes
    if "train" not in said and not asking:
        raise UserError(
            Code.BAD_OPTION,
            "nothing says what is to be learnt",
            "Name a file with your data (`sfnode init tickets.csv`), or a ready-made task (--task reviews).",
        )
    table = read(said["train"]) if "train" in said else screen.ask_source(read)
    answers = screen.Answers(
        out,
        right=said.pop("label_field", ""),
        test=said.pop("test", ""),
        skip=said.pop("skip_bad_rows") or asking,  # whoever confirms sees them
        model=said.pop("model", screen.last_model()),
        organised=organised,
        share=said.pop("share_data", not said.get("private", False)),
        name=said.pop("name", _name(table.source)),
        estimator=said.pop("estimator", ""),
    )
    screen.show_table(table)
    if not asking:
        found = screen.plan(table, answers, said)
        screen.show_plan(table, answers, found)
        if not yes:
            raise UserError(
                Code.BAD_OPTION,
                "nobody is here to confirm what is proposed",
                "Add --yes to take it, or say otherwise: --label COLUMN, --set KEY=VALUE.",
            )
        screen.require_plain(table, found, answers)
        _write_planned(answers, table, found, said)
        return
    while True:
        answers = screen.confirm(table, answers, lambda: said, lambda pair: _set(pair, said))
        try:
            _write_planned(answers, table, screen.plan(table, answers, said), dict(said))
            return
        except UserError as error:
            warn(error)


def _write_planned(answers: Answers, table: DataTable, found: Plan, said: dict[str, Any]) -> None:
    """Write the manifest of what was planned, and remember its base model."""
    from sfnode.cli import init_screen as screen
    from sfnode.models.manifest_builder import TASK_FIELDS

    screen.require_plain(table, found, replace(answers, right=found.proposal.right))
    task = found.task.model_dump(include=set(TASK_FIELDS), exclude_defaults=True)
    own: dict[str, Any] = {"train": table.source, "model": answers.model, "name": answers.name}
    own |= {"test": answers.test} if answers.test else {}
    own |= {"share_data": answers.share, "skip_bad_rows": answers.skip, "estimator": found.estimator}
    given = task | own | said
    _write(answers.out, answers.organised, given, found)
    screen.remember_model(answers.model)


def _set(pair: str, said: dict[str, Any]) -> dict[str, Any]:
    """Set an option by KEY=VALUE; return it by the name of the answer that it is, if it is one.

    Raises UserError or click.UsageError for one that cannot be.
    """
    context = click.get_current_context()
    keys = {one.key: one for one in init.params if isinstance(one, Option) and one.key}
    key, value = require_key(pair, keys)
    one = keys[key]
    found = one.process_value(context, [value] if one.multiple else value)
    answer = {"name": "name", "share_data": "share", "estimator": "estimator"}.get(str(one.name))
    if not answer:
        said[str(one.name)] = found
    return {answer: found} if answer else {}


def _name(source: str) -> str:
    """Return a name for a run with these data."""
    return run_name(Path(source.rpartition(":")[2]).stem, "run")


def _write(out: Path, organised: bool, given: dict[str, Any], plan: Plan | None = None) -> None:
    """Write the manifest, its keys and its files, all or none of them, and say what comes next."""
    given = dict(given)
    bases, made_of = given.pop("bases", None), given.get("made_of")
    keys_dir: Path = given.pop("keys_dir")
    _check(given, organised, bases)
    with waiting("loading libraries"):
        from sfnode import preparing
        from sfnode.cli import init_output as output
        from sfnode.models.files import named_folder
        from sfnode.models.manifest_builder import row_examination, usual_estimator
        from sfnode.store.run_keys import RunKeys
        from sfnode.tasks.public_files import inside, typed
        from sfnode.verifiers.plugins import is_plugin

    keys = RunKeys.generate() if organised else None
    keys_dir = keys_folder(keys_dir, out) if keys else keys_dir
    passphrase = chosen(given.get("passphrase_file")) if given.get("encrypt") else None
    home = named_folder(given.get("model", ""))
    with preparing.all_or_nothing() as note, TemporaryDirectory(prefix="sfnode-") as scratch:
        if not plan:
            _check_kinds(given)
        with waiting("reading the model and the data") as advance:
            given.setdefault("estimator", usual_estimator(given, organised))
            examine = row_examination(given, advance)
            said = _take_rows(given, out.parent, note, plan, examine)
            manifest = _built(given, bases, keys.options() if keys else {}, Path(scratch), examine)
        said += output.unread_words(examine.unread) + output.rows_words(manifest, counted=plan is not None)
        said += output.learning_words(manifest)
        means = preparing.Means(given["device"], given["dtype"], Path(scratch), home, typed(manifest.data))
        asked = preparing.wanted(manifest, given, made_of, given.get("calibrate"), given["measure"])
        prepared = preparing.prepare(manifest, given, means, asked, waiting)
        said += output.made_words(prepared, asked) if given.get("details") else []
        share = given.get("share_data", not manifest.organised.private)
        manifest = _write_beside(out, prepared.manifest, Path(scratch), share, note, said)
        said += _write_keys(keys, manifest.run_id, keys_dir, passphrase, note) if keys else []
        note(out)
        write_manifest(out, manifest.to_toml())
    echo(f"wrote {out}: run {manifest.name}, id {manifest.run_id.hex()}")
    said += output.numbers_words(prepared, given, bool(given.get("details")))
    for line in [*said, *output.notes(manifest, home, "epsilon" in given)]:
        echo(line)
    echo("What happens next:")
    trusted: tuple[str, ...] = (
        ("--verifier", given["verifier"]) if is_plugin(given.get("verifier", "")) else ()
    )
    trusted += ("--model", str(home)) if home and home != inside(out.parent, manifest.model.source) else ()
    start = command("sfnode", "join", "--run", out, *trusted, *(organising_options(keys_dir) if keys else ()))
    if manifest.data.train:
        alone = command("sfnode", "swarm", "--run", out, *trusted)
        echo(f"  {alone}    trains it here alone{output.time_words(prepared)}, to see how well it goes")
    echo(f"  {start}    starts the run on this machine")
    echo("  sfnode invite    prints the link with which others join, once it runs")


def _check(given: dict[str, Any], organised: bool, bases: Path | None) -> None:
    """Raise UserError BAD_OPTION for options that contradict each other; price an open run."""
    check_bases(bases, given.get("made_of"))
    if given.get("encrypt") and not organised:
        raise UserError(Code.BAD_OPTION, "keys.encrypt: an open run has no keys", "Leave out --open.")
    if not organised:
        given.setdefault("work_bits", OPEN_WORK_BITS)


def _check_kinds(given: dict[str, Any]) -> None:
    """Raise UserError DATA_NOT_FOUND for a file that is read here, and that nodes do not share."""
    from sfnode.tasks.public_files import ROLES
    from sfnode.tasks.row_files import FORMS

    for source in (str(given.get(role, "")) for role in ROLES):
        if source.lower().endswith(OWN_KINDS) and not source.startswith((HUB, BUILTIN)):
            raise UserError(Code.DATA_NOT_FOUND, f"{source} is not a kind of data that nodes share", FORMS)


def _take_rows(
    given: dict[str, Any],
    folder: Path,
    note: Callable[[Path], None],
    plan: Plan | None,
    examine: RowExamination,
) -> list[str]:
    """Write rows that are taken out of their file to files in a folder, which `given` then names: those that
    fit, where others are left out, and those that are held out. Return what there is to say."""
    from sfnode import preparing
    from sfnode.tasks import dataset

    said = []
    if plan:
        rows, bad = dataset.sift(plan.bad.source, plan.placed, plan.task, examine)
        if bad.count > plan.bad.count and not given["skip_bad_rows"]:
            bad.refuse()
        name, (kept, held) = _name(bad.source), dataset.hold_out(plan.task, rows, plan.held_out)
        new = bool(bad or plan.held_out or plan.anew)
        for role, rows in (("train", kept if new else []), ("test", held or plan.test)):
            if rows:
                given[role] = str(preparing.write_rows(rows, plan.task, folder, f"{name}-{role}", note))
        said += [f"Left out: {bad}."] if bad else []
    return said + (_skip_bad_rows(given, folder, note, examine) if given["skip_bad_rows"] else [])


def _skip_bad_rows(
    given: dict[str, Any], folder: Path, note: Callable[[Path], None], examine: RowExamination
) -> list[str]:
    """Write the rows that fit to files in a folder, which `given` then names; return what there is to say."""
    from sfnode import preparing
    from sfnode.cli import init_output as output
    from sfnode.models.manifest_builder import beginning

    begun = beginning(given)
    left_out = preparing.without_bad_rows(begun.task, begun.data, folder, note, examine)
    given |= {role: str(one.file) for role, one in left_out.items()}
    given |= {"preset": begun.name} if begun.preset else {}  # which a file without a task would not name
    return output.left_out_words(left_out)


def _built(
    given: dict[str, Any], bases: Path | None, keys: dict[str, Any], made: Path, examine: RowExamination
) -> Manifest:
    """Return the manifest of these options; published `bases` are kept in the folder `made`."""
    from sfnode import preparing
    from sfnode.models.manifest_builder import build

    given |= published(bases) if bases else {}
    manifest = build(given | keys, examine)
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
    manifest, beside = preparing.settle_data(manifest, out.parent, share, note)
    said += output.data_words(beside, out, share)
    return manifest


def check_bases(file: Path | None, kind: str | None) -> None:
    """Raise UserError BAD_OPTION for a file with bases where others are to be made."""
    if file and kind:
        raise UserError(
            Code.BAD_OPTION,
            "training.bases names a file, and training.basis makes another one",
            "Give one of them.",
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
            f"keys.dir: {keys_dir} is the folder of the manifest, which others get",
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
