"""`sfnode init`: write a run manifest."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click
from pydantic import ValidationError

from sfnode.cli.options import option
from sfnode.config import Data, Manifest, Model, Task, Training
from sfnode.errors import Code, UserError

NEXT = "Next: sfnode join --run {file}"

_TASK_FIELDS = ("kind", "template", "label_field", "candidates_field", "completion", "max_tokens")


def parse_verbalizer(_context: Any, _parameter: Any, value: str | None) -> dict[str, str] | None:
    """`0=terrible,1=great` as a table."""
    if value is None:
        return None
    pairs = [item.partition("=") for item in value.split(",")]
    if not all(label and equals and word for label, equals, word in pairs):
        raise click.BadParameter("give it as LABEL=WORD,LABEL=WORD, for example 0=terrible,1=great")
    return {label.strip(): word.strip() for label, _, word in pairs}


@click.command()
@click.argument("out", type=click.Path(path_type=Path, dir_okay=False), default="run.toml")
@option("--name", help="Name of the run.")
@option("--model", help="Base model: a folder, a Hugging Face id, or builtin:tiny.")
@option("--revision", default="", help="Revision of a model on the hub; better pinned.")
@option("--task", "preset", help="Preset: reviews, sst2, rte, boolq, wic, multirc, record.")
@option(
    "--kind",
    type=click.Choice(["classification", "choice", "completion", "text"]),
    help="A task of your own.",
)
@option("--template", help="Its prompt, with {fields} of a row.")
@option("--verbalizer", callback=parse_verbalizer, metavar="LABEL=WORD,…", help="Its answer words by label.")
@option("--label-field", help="The field that holds the label.")
@option("--candidates-field", help="choice: the field that holds a row's candidates.")
@option("--completion", help="completion: the text that the loss is on, with {fields}.")
@option("--max-tokens", type=int, help="Longer prompts are cut on the left.")
@option("--train", help="Training data: file, hf:NAME[:CONFIG]:SPLIT, or empty for private data only.")
@option("--test", help="Test data, likewise.")
@option("--train-limit", type=int, help="Take so many training rows.")
@option("--train-min-words", type=int, help="Only training rows with so many words.")
@option("--test-limit", type=int, help="Take so many test rows.")
@option("--rank", type=int, help="Dimensions of the subspace of a layer; a power of two.")
@option("--epsilon", type=float, help="How far the two points lie from the middle.")
@option("--learning-rate", type=float, help="Per update.")
@option("--schedule", type=click.Choice(["constant", "linear", "cosine"]), help="Of the learning rate.")
@option("--batch-size", type=int, help="Rows of one update's mini-batch.")
@option("--epoch-updates", type=int, help="Updates for which one random subspace serves.")
@option("--update-budget", type=int, help="Updates after which the run is complete.")
@option("--force", is_flag=True, help="Overwrite OUT.")
def init(out: Path, force: bool, **given: Any) -> None:
    """Write a run manifest to OUT (default run.toml): model, task, data and the numbers of the rule.

    Without options it asks, or, without a terminal, describes the built-in run.
    """
    if out.exists() and not force:
        raise UserError(Code.BAD_OPTION, f"{out} exists already", "Name another file, or add --force.")
    given = {key: value for key, value in given.items() if value not in (None, "")}
    if not given and sys.stdin.isatty():
        given = ask()
    manifest = build(given)
    out.write_text(manifest.to_toml(), encoding="utf-8")
    click.echo(f"wrote {out}: run {manifest.name}, id {manifest.run_id.hex()}")
    click.echo(NEXT.format(file=out))


def ask() -> dict[str, Any]:
    """The few questions that matter, in plain words."""
    given: dict[str, Any] = {
        "model": click.prompt(
            "Base model (folder, Hugging Face id, or builtin:tiny)", default="builtin:tiny"
        ),
        "preset": click.prompt("Task (reviews, sst2, rte, boolq, wic, multirc, record)", default="reviews"),
    }
    if given["preset"] != "reviews":
        given["train"] = click.prompt("Training data (file, or empty for the hub's)", default="")
        given["test"] = click.prompt("Test data (file, or empty for the hub's)", default="")
    given["update_budget"] = click.prompt("Updates until the run is complete", default=4096, type=int)
    return {key: value for key, value in given.items() if value != ""}


def build(given: dict[str, Any]) -> Manifest:
    """The manifest that these options describe; whatever is not given has a default that works."""
    from sfnode.engine import folder, model, presets

    source = _absolute(given.get("model", presets.DEFAULT_MODEL))
    name = given.get("preset") or ("" if "kind" in given else "reviews" if "builtin:" in source else "sst2")
    preset = presets.preset(name) if name else None
    described = model.describe(source, given.get("revision", ""))
    positions = _positions(folder.resolve(source, given.get("revision", ""), None))
    try:
        return Manifest(
            name=given.get("name", name or "run"),
            model=described,
            task=_task(preset.task if preset else None, given, positions),
            data=_section(Data, preset.data if preset else Data(), given, absolute=("train", "test")),
            training=_section(Training, _training(described, name), given),
        )
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = " ".join(str(part) for part in first["loc"]) or "the options together"
        raise UserError(Code.BAD_OPTION, f"{where}: {first['msg']}", "See sfnode init --help.") from error


def default_manifest() -> Manifest:
    """The run that `sfnode swarm` and `make demo` train."""
    return build({})


def _training(described: Model, preset: str) -> Training:
    from sfnode.engine import presets

    if described.source == presets.DEFAULT_MODEL and preset == "reviews":
        return presets.default_run().training
    return Training()


def _task(preset: Task | None, given: dict[str, Any], positions: int) -> Task:
    fields: dict[str, Any] = preset.model_dump() if preset else {}
    fields |= {key: given[key] for key in (*_TASK_FIELDS, "verbalizer") if key in given}
    task = Task(**fields)
    return task.model_copy(update={"max_tokens": min(task.max_tokens, positions)}) if positions else task


def _section(kind: type[Any], base: Any, given: dict[str, Any], absolute: tuple[str, ...] = ()) -> Any:
    fields = base.model_dump()
    fields |= {key: value for key, value in given.items() if key in kind.model_fields}
    return kind(**{key: _absolute(value) if key in absolute else value for key, value in fields.items()})


def _absolute(source: str) -> str:
    """A path that other nodes on this machine find too; other kinds of source are left as they are."""
    path = Path(source).expanduser()
    return str(path.resolve()) if source and path.exists() else source


def _positions(folder: Path) -> int:
    """How many tokens the model takes; 0 if it does not say."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return next((int(config[key]) for key in ("max_position_embeddings", "n_positions") if key in config), 0)
