"""`sfnode init`: write a run manifest, interactively from a data file, or from options alone."""

from __future__ import annotations

import errno
import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from sfnode.cli.exit import warn
from sfnode.cli.init_options import key_options
from sfnode.cli.keys import Command, Option, require_key
from sfnode.cli.options import option
from sfnode.cli.output import echo
from sfnode.cli.passphrases import chosen
from sfnode.cli.progress import waiting
from sfnode.defaults import KEYS_DIR, OPEN_WORK_BITS, located
from sfnode.errors import Code, UserError
from sfnode.tasks.presets import DEFAULT_MODEL, PRESETS

if TYPE_CHECKING:
    from sfnode.preparing.plan import Answers, Plan
    from sfnode.preparing.table_contents import DataTable

DESCRIBED = ("preset", "kind", "verifier")
"""Options that describe the task. Without them the task is proposed from the data."""


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
    """Write the manifest of a new run: its task, its data and its model.

    DATA is a .csv, .tsv, .jsonl or .parquet file, or hf:NAME[:CONFIG]:SPLIT. The screen shows its contents
    and a proposal, which you confirm or change. A ready-made task (--task) needs no data. Your own task
    (--set task.kind=...) may have none: every trainer then brings its own. The manifest never changes: its
    hash is the identity of the run.
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
    """Propose a run from the data, and write its manifest once the user agrees."""
    with waiting("loading libraries"):
        from sfnode.cli import init_screen as screen
        from sfnode.preparing.plan import Answers, last_model, name_of, plan, require_plain
        from sfnode.preparing.table_contents import read_table

    def read(source: str) -> DataTable:
        with waiting(f"reading {source}"):
            return read_table(source)

    asking = sys.stdin.isatty() and not yes
    if "train" not in said and not asking:
        raise UserError(
            Code.BAD_OPTION,
            "nothing says what is to be learnt",
            "Name a file with your data (`sfnode init tickets.csv`), or a ready-made task (--task reviews).",
        )
    table = read(said["train"]) if "train" in said else screen.ask_source(read)
    answers = Answers(
        out,
        right=said.pop("label_field", ""),
        test=said.pop("test", ""),
        skip=said.pop("skip_bad_rows") or asking,  # the screen shows them before the user confirms
        model=said.pop("model", last_model()),
        organised=organised,
        share=said.pop("share_data", not said.get("private", False)),
        name=said.pop("name", name_of(table.source)),
        estimator=said.pop("estimator", ""),
    )
    screen.show_table(table)
    while asking:
        answers = screen.confirm(table, answers, said, _set)
        try:
            return _write_planned(answers, table, plan(table, answers, said), dict(said))
        except UserError as error:
            warn(error)
    found = plan(table, answers, said)
    screen.show_plan(table, answers, found)
    if not yes:
        raise UserError(
            Code.BAD_OPTION,
            "nobody is here to confirm what is proposed",
            "Add --yes to take it, or say otherwise: --label COLUMN, --set KEY=VALUE.",
        )
    require_plain(table, found, answers)
    return _write_planned(answers, table, found, said)


def _write_planned(answers: Answers, table: DataTable, found: Plan, said: dict[str, Any]) -> None:
    """Write the manifest of the plan, and store the name of its base model, which the next `sfnode init`
    proposes."""
    from sfnode.preparing.manifest import TASK_FIELDS
    from sfnode.preparing.plan import remember_model, require_plain

    require_plain(table, found, replace(answers, right=found.proposal.right))
    task = found.task.model_dump(include=set(TASK_FIELDS), exclude_defaults=True)
    own: dict[str, Any] = {"train": table.source, "model": answers.model, "name": answers.name}
    own |= {"test": answers.test} if answers.test else {}
    own |= {"share_data": answers.share, "skip_bad_rows": answers.skip, "estimator": found.estimator}
    _write(answers.out, answers.organised, task | own | said, found)
    remember_model(answers.model)


def _set(pair: str, said: dict[str, Any]) -> dict[str, Any]:
    """Set an option by `pair`, KEY=VALUE. If the option is an answer on the screen, return the answer's name
    with the value. Otherwise add the value to `said` and return an empty dict.

    Raises UserError or click.UsageError for an invalid pair.
    """
    keys = {one.key: one for one in init.params if isinstance(one, Option) and one.key}
    key, value = require_key(pair, keys)
    one = keys[key]
    found = one.process_value(click.get_current_context(), [value] if one.multiple else value)
    answer = {"name": "name", "share_data": "share", "estimator": "estimator"}.get(str(one.name))
    if answer:
        return {answer: found}
    said[str(one.name)] = found
    return {}


def _write(out: Path, organised: bool, given: dict[str, Any], plan: Plan | None = None) -> None:
    """Write the manifest, its keys and its files, and print the next steps. If an error occurs, everything
    that was written is removed."""
    bases, basis = given.pop("bases", None), given.get("made_of")
    keys_dir: Path = given.pop("keys_dir")
    check_bases(bases, basis)
    if not organised:
        _price(given)
    with waiting("loading libraries"):
        from sfnode.cli import init_output as output
        from sfnode.models.bases import path_in
        from sfnode.models.model_files import named_folder
        from sfnode.preparing import files
        from sfnode.preparing.manifest import build, row_examination, usual_estimator
        from sfnode.preparing.measuring import prepare
        from sfnode.preparing.scalars import Means
        from sfnode.store.run_keys import RunKeys, organiser_key, recovery_key
        from sfnode.tasks.public_files import typed

    keys = RunKeys.generate() if organised else None
    keys_dir = keys_folder(keys_dir, out) if keys else keys_dir
    passphrase = chosen(given.get("passphrase_file")) if given.get("encrypt") else None
    home = named_folder(given.get("model", ""))
    with files.all_or_nothing() as note, TemporaryDirectory(prefix="sfnode-") as scratch:
        if not plan:
            files.require_shareable(given)
        with waiting("reading the model and the data") as advance:
            given.setdefault("estimator", usual_estimator(given, organised))
            examine = row_examination(given, advance)
            said = files.take_rows(given, plan, out.parent, note, examine)
            given |= published(bases) if bases else {}
            manifest = build(given | (keys.options() if keys else {}), examine)
            if bases:
                files.keep_bases(bases, Path(scratch), manifest)
        said += output.rows_words(manifest, examine.unread, counted=plan is not None)
        means = Means(given["device"], given["dtype"], Path(scratch), home, typed(manifest.data))
        prepared = prepare(manifest, given, means, waiting, basis, given["measure"])
        manifest = prepared.manifest
        if manifest.training.bases:
            made = path_in(Path(scratch), manifest.training.bases)
            said.append(output.bases_words(*files.keep_bases(made, out.parent, manifest, note), out))
        share = given.get("share_data", not manifest.organised.private)
        manifest, beside = files.settle_data(manifest, out.parent, share, note)
        said += output.data_words(beside, out, share)
        if keys:
            for key in (organiser_key, recovery_key):
                note(key(manifest.run_id, keys_dir))
            said += output.keys_words(*keys.write(manifest.run_id, keys_dir, passphrase))
        note(out)
        write_manifest(out, manifest.to_toml())
    said += output.numbers_words(prepared, given)
    said += output.notes(manifest, home, "epsilon" in given)
    organising = organising_options(keys_dir) if keys else []
    following = output.following_words(prepared, out, home, given.get("verifier", ""), organising)
    echo("\n".join([f"wrote {out}: run {manifest.name}, id {manifest.run_id.hex()}", *said, *following]))


def _price(given: dict[str, Any]) -> None:
    """Set the default proof of work of an open run. Raises UserError BAD_OPTION if encrypted keys are
    requested, because an open run has no keys."""
    if given.get("encrypt"):
        raise UserError(Code.BAD_OPTION, "keys.encrypt: an open run has no keys", "Leave out --open.")
    given.setdefault("work_bits", OPEN_WORK_BITS)


def check_bases(file: Path | None, kind: str | None) -> None:
    """Raise UserError BAD_OPTION if both a file with bases and a kind of bases to make are given."""
    if file and kind:
        raise UserError(
            Code.BAD_OPTION,
            "training.bases names a file, and training.basis makes another one",
            "Give one of them.",
        )


def published(file: Path) -> dict[str, Any]:
    """Return the training options of a run that uses the bases in `file`. Raises UserError BASES_MISSING."""
    from sfnode.models.bases import digest_of

    return {"basis": "published", "bases": digest_of(file)}


def organising_options(keys_dir: Path) -> list[str]:
    """Return the options of `sfnode join` for organising with the key in this folder."""
    elsewhere = [] if keys_dir == located(KEYS_DIR) else ["--keys-dir", str(keys_dir)]
    return ["--organise", *elsewhere]


def keys_folder(keys_dir: Path, out: Path) -> Path:
    """Return `keys_dir`. Raises UserError BAD_OPTION if the manifest `out` is in this folder, because people
    give others the manifest's folder."""
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
