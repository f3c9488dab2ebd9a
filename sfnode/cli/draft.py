"""From the options of `sfnode init` to a run manifest; whatever is not given has a default that works.

Loads the engine, and with it torch, to look at the base model and at local data: what can be found wrong here
is not found by the volunteers later.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

from sfnode.config import Data, Manifest, Model, Task, Training
from sfnode.engine import chat, data, folder, model, presets
from sfnode.engine.targets import DEFAULT, Selection
from sfnode.errors import Code, UserError

DEFAULT_TASK = "reviews"
HUB_TASK = "sst2"
"""The task for a model that is not built in: a small one that every language model can learn."""

TASK_FIELDS = (
    "kind",
    "template",
    "label_field",
    "verbalizer",
    "candidates_field",
    "completion",
    "messages_field",
    "metric",
    "max_tokens",
)

ENCODER_HEADS = ("ForSequenceClassification", "ForMaskedLM")
"""What the name of an architecture ends in that is, or can become, a model with a classification head."""

CAUSAL_HEADS = ("ForCausalLM", "LMHeadModel")
"""The same of a language model. Of a model with another name its type says whether it is an encoder."""


def default_manifest() -> Manifest:
    """The run that `sfnode swarm` and `make demo` train."""
    return build({})


def build(given: dict[str, Any]) -> Manifest:
    """The manifest that these options of `sfnode init` (by parameter name) describe.

    Raises UserError: BAD_OPTION, MODEL_*, and DATA_* for local data that do not fit the task.
    """
    source, revision = given.get("model", presets.DEFAULT_MODEL), given.get("revision", "")
    source = _absolute(source)
    name = _preset_name(given, source)
    preset = presets.preset(name) if name else None
    try:
        task = _task(preset, given, folder.resolve(source, revision, None))
        described = model.describe(source, revision, _selection(given), _classes(task))
        manifest = Manifest(
            name=given.get("name", name or "run"),
            model=described,
            task=task,
            data=_section(preset.data if preset else Data(), given),
            training=_section(_training(described, name), given),
        )
    except ValidationError as error:
        raise _bad_option(error) from error
    _try_data(manifest)
    return manifest


def _preset_name(given: dict[str, Any], source: str) -> str:
    """Which preset to start from; none for a task of one's own."""
    custom = [field for field in ("kind", "template") if field in given]
    if "preset" in given and "kind" in given:
        raise UserError(
            Code.BAD_OPTION,
            "--task names a ready-made task and --kind describes one of your own",
            "Give one of the two; --template and the like may change a ready-made task.",
        )
    if custom and "preset" not in given:
        return ""
    default = DEFAULT_TASK if source == presets.DEFAULT_MODEL else HUB_TASK
    return str(given.get("preset", default))


def _selection(given: dict[str, Any]) -> Selection:
    kinds = {kind: bool(given.get(f"train_{kind}")) for kind in ("embeddings", "biases", "norms")}
    return Selection(given.get("target_modules", DEFAULT.modules), **kinds)


def _classes(task: Task) -> int:
    """How many the model's classification head tells apart; 0 for a language model."""
    return len(task.verbalizer) if task.kind == "sequence-classification" else 0


def _training(described: Model, preset: str) -> Training:
    if described.source == presets.DEFAULT_MODEL and preset == DEFAULT_TASK:
        return presets.default_run().training
    return Training()


def _task(preset: presets.Preset | None, given: dict[str, Any], home: Path) -> Task:
    """The preset's task, as suits the model in this folder, with what was given for its fields."""
    fields: dict[str, Any] = {}
    if preset:
        fields = presets.task_of(preset, headed=_is_encoder(_json(home / folder.CONFIG))).model_dump()
    task = Task(**fields | {key: given[key] for key in TASK_FIELDS if key in given})
    _check_kind(task, home)
    positions = _positions(home)
    return task.model_copy(update={"max_tokens": min(task.max_tokens, positions)}) if positions else task


def _check_kind(task: Task, home: Path) -> None:
    """transformers loads an encoder as a language model too, which then sees the tokens it is to predict."""
    if task.kind != "sequence-classification" and _is_encoder(_json(home / folder.CONFIG)):
        raise UserError(
            Code.MODEL_UNSUPPORTED,
            f"{home} classifies whole texts, and a task of the kind {task.kind} needs a model that predicts "
            "the next token",
            "Take a language model such as OPT or Llama, or the kind sequence-classification.",
        )


def _section(base: Any, given: dict[str, Any]) -> Any:
    """The section `base` with what was given for its fields."""
    fields = {key: given.get(key, value) for key, value in base.model_dump().items()}
    return type(base)(
        **{key: _absolute(value) if isinstance(value, str) else value for key, value in fields.items()}
    )


def _absolute(source: str) -> str:
    """A path that other nodes on this machine find too; other kinds of source are left as they are."""
    path = Path(source).expanduser()
    return str(path.resolve()) if source and path.exists() else source


def _is_encoder(config: dict[str, Any]) -> bool:
    """Whether a model classifies whole texts rather than predicting the next token."""
    names = config.get("architectures") or []
    if any(name.endswith(ENCODER_HEADS) for name in names):
        return True
    masked = config.get("model_type") in MODEL_FOR_MASKED_LM_MAPPING_NAMES
    one_sided = not config.get("is_decoder") and not config.get("is_encoder_decoder")
    return masked and one_sided and not any(name.endswith(CAUSAL_HEADS) for name in names)


def _positions(home: Path) -> int:
    """How many tokens the model takes; 0 if it does not say.

    The tokenizer knows better where a table of positions does not begin at 0 (RoBERTa's).
    """
    config, tokenizer = _json(home / folder.CONFIG), _json(home / "tokenizer_config.json")
    sizes = (
        config.get("max_position_embeddings"),
        config.get("n_positions"),
        tokenizer.get("model_max_length"),
    )
    return min((size for size in sizes if isinstance(size, int)), default=0)


def _json(file: Path) -> dict[str, Any]:
    """The object in a file that a model may come with."""
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return found


def _try_data(manifest: Manifest) -> None:
    """Read the local files among the data, and see whether the model can word what they say.

    What is on the hub is left to the nodes, who need it anyway.
    """
    for source in (manifest.data.train, manifest.data.test):
        if source and not source.startswith(("hf:", "builtin:")):
            data.load_rows(source, manifest.task)
    tokenizer = model.tokenizer_of(folder.resolve(manifest.model.source, manifest.model.revision, None))
    if manifest.task.kind == "chat":
        chat.require_template(tokenizer)


def _bad_option(error: ValidationError) -> UserError:
    first = error.errors(include_url=False)[0]
    flag = f"--{first['loc'][0]}".replace("_", "-") if first["loc"] else "the options together"
    reason = first["msg"].removeprefix("Value error, ")
    return UserError(
        Code.BAD_OPTION, f"{flag}: {reason}", "`sfnode init --help` says what each option may be."
    )
