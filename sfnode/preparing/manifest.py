"""Builds a run manifest from the options of `sfnode init`; every option has a default that works.

Imports torch to examine the base model and local data, so that mistakes are found before volunteers join.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import ValidationError
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

from sfnode.defaults import ANSWER_TOKENS, DEFAULT_LOSS, TEMPERATURE
from sfnode.engine.head import takes_features
from sfnode.errors import Code, UserError
from sfnode.manifest import FIRST_ORDER_VERSION, MAX_QUOTA_BYTES, Manifest
from sfnode.manifest.sections import (
    BUILTIN,
    HUB,
    MAX_QUOTA,
    Data,
    Model,
    OpenSection,
    OrganisedSection,
    Parent,
    Target,
)
from sfnode.manifest.task import Task
from sfnode.manifest.training import Training
from sfnode.models import examination, loader, model_config, model_files
from sfnode.models.targets import DEFAULT, Selection
from sfnode.preparing import proposals
from sfnode.preparing.recipes import WORDS, recipe_of
from sfnode.printable import command
from sfnode.tasks import chat, dataset, presets, prompts, public_files, row_files, templates, verifying
from sfnode.tasks.fitting import Fitting, RowExamination
from sfnode.tasks.public_files import typed
from sfprotocol.messages import MAX_UPDATE_BYTES, OLDEST_VERSION

HUB_TASK = "sst2"
"""Default task for a model that is not built in: a small task that every language model can learn."""

SUBSPACES = 16
"""Approximate number of subspaces of an organised run, unless its options say otherwise. Each has a core in
every node's memory and in every checkpoint (0.6 MB for OPT-125M's shape), and is a term of every rebuilt
weight. With one subspace for each of 1,000 epochs a node would need minutes before its first step."""

QUOTA_EPOCHS = 4
"""Default quota of a feed's updates with one epoch label, as a multiple of an epoch's updates. A trainer that
fills an epoch alone can then train for three more epochs while the organiser is away."""

VALIDATION_ROWS = 256
"""Default number of training rows that are withheld, on which an organiser judges updates. An accuracy on 256
rows has a standard error of 3 points."""

MOST_WITHHELD = 1 / 5
"""Maximum share of the training data that is withheld for validation by default. Data on the hub have no such
bound: data sets there have thousands of rows."""

EIGHT_BITS = 1024
"""Minimum number of cells at which an update's scalars have 8 bits. With fewer cells they have 16, and the
update is still small."""

PROMPT_TOKENS = 768
"""Maximum tokens of a prompt in a reward run, unless the model can read fewer."""

HEAD_PARTS = 4
"""Number of parts of a head's first-order round; the quota of each member is one part of the round's updates.
With the default budget a part is a single update. An update is measured on all rows of its node, so a second
update at the same weights adds nothing. With parts eight times as large, a run that was to have 64 rounds
ended after 16."""

HEAD_ROWS = 4_096
"""Default maximum number of rows to train a head on, as each must go through the model once first. A linear
head on some hundreds of features learns little from more rows."""

MEAN_RATE = 1 / 2
"""Mean factor of the linear and of the cosine schedule. An organised run uses this constant factor instead of
a schedule."""

LABELLED = ("classification", "sequence-classification")
"""Kinds of tasks with labels: answers in words, and classes of a head. A ready-made task may be of either
kind."""

WITHOUT_GRADIENTS = {
    "estimator": "zeroth-order",
    **{name: Training.model_fields[name].default for name in ("norm_limit", "basis", "bases", "scalar_bits")},
}
"""Zeroth-order hyperparameters that a first-order run has while its own hyperparameters are measured."""

TASK_FIELDS = tuple(name for name in Task.model_fields if name != "prior")
"""Fields of a task that are options; a prior is measured."""

SELECTION = {"target_modules", "train_embeddings", "train_biases", "train_norms"}
"""Options that select trained layers other than a head."""

REMEASURED = SELECTION | {"rank", "loss", "group"}
"""Options that make it necessary to measure a forked run's hyperparameters anew. New bases make it necessary,
too."""

_STEP = {"epsilon", "epsilons", "learning_rate", "scalar_delta", "scalar_limit"}
_SUITED = {"rank", "basis", "bases", "features"} | _STEP


def unsuited(old: Training) -> dict[str, Any]:
    """Return the default values of hyperparameters that a forked run cannot keep, keyed by name. If the
    parent trains a head, whose updates cost next to nothing, the numbers of updates and of rows are among
    these hyperparameters."""
    if old.is_first_order:
        return {"norm_limit": 0}  # 0 makes `prepare` measure the run anew
    after_head = {"batch_size", "epoch_updates", "update_budget", "decay"} if old.features else set()
    return Training().model_dump(include=_SUITED | after_head)


CAUSAL_HEADS = ("ForCausalLM", "LMHeadModel")
"""Suffixes of the names of language models. For other names the model's type says whether it is an
encoder."""

EXPERT_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
"""Fields in transformers' configurations with the number of experts that a router chooses from."""


SECTIONS = {
    "Task": "task",
    "Data": "data",
    "Training": "training",
    "OpenSection": "open",
    "OrganisedSection": "organised",
}
"""Prefixes of the keys of each section of the manifest, keyed by the name of its class."""


@contextmanager
def refusing() -> Iterator[None]:
    """Turn pydantic's error for options that no manifest can have into UserError BAD_OPTION."""
    try:
        yield
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = [SECTIONS[error.title]] if error.title in SECTIONS else []
        key = ".".join([*place, *map(str, first["loc"][:1])])
        raise UserError(
            Code.BAD_OPTION,
            f"{key or 'the options together'}: {first['msg'].removeprefix('Value error, ')}",
            "`sfnode init --help-all` says what each key may be.",
        ) from error


@refusing()
def build(given: dict[str, Any], examine: RowExamination | None = None) -> Manifest:
    """Return the manifest for these options of `sfnode init`, keyed by parameter name.

    `examine` checks the rows of local data; the default shows no progress. With an `organiser` (64 hex
    digits) the run is organised. For a first-order `estimator` the manifest lacks bases, the prior and the
    measured hyperparameters (`first_order`). Raises UserError: BAD_OPTION, MODEL_*, and DATA_* for local data
    that do not fit the task.
    """
    name, preset, source, revision, task, data = beginning(given)
    first, organised = by_gradients(given), "organiser" in given
    given = {key: given[key] for key in given if key != "estimator"}
    home = model_files.located(source, revision)
    head = _trains_head(task, given, home)
    own = preset.training if preset and source == preset.model else None
    selection, training, rounds = recipe_of(task, head, own, first=first)
    if not head:
        selection = _selection(given, selection)
    described = loader.describe(source, revision, selection, loader.classes(task))
    described = described.model_copy(update={"outputs": loader.outputs_of(home, task)})
    if head and data.train and not data.train_limit:
        data = data.model_copy(update={"train_limit": HEAD_ROWS})
    if organised:
        data, training = _validated(data, task, given), _levelled(training)
    elif head and not own:
        training = training.model_copy(update={"decay": 1.0})
    training, bounds = _numbers(training, rounds, described, given, head, first=first)
    manifest = Manifest(
        protocol=FIRST_ORDER_VERSION if organised else OLDEST_VERSION,
        name=given.get("name", name or "run"),
        description=given.get("description", ""),
        admission="organised" if organised else "open",
        open=OpenSection(quota=given.get("feed_quota", 0), work_bits=given.get("work_bits", 0)),
        organised=bounds,
        model=described,
        task=task.model_copy(update={"loss": "plain"}) if task.loss == "calibrated" else task,
        data=data,
        training=training.model_copy(update=WITHOUT_GRADIENTS) if first else training,
    )
    manifest = manifest.model_copy(update={"training": training, "task": task})
    _try_data(manifest, examine or RowExamination(Fitting(manifest.task, loader.tokenizer_of(home))))
    return manifest


def _numbers(
    training: Training, rounds: int, model: Model, given: dict[str, Any], head: bool, *, first: bool
) -> tuple[Training, OrganisedSection]:
    """Return the hyperparameters of a run, in which given values replace defaults, and its `organised`
    section."""
    if rounds and "epoch_updates" not in given:
        budget = given.get("update_budget", training.update_budget)
        training = training.model_copy(update={"epoch_updates": -(-budget // rounds)})
    training = _section(training, given)
    organised = _organised(training, given)
    return (
        _with_gradients(training, organised, model.parsed_targets(), given, head)
        if first
        else (training, organised)
    )


def usual_estimator(given: dict[str, Any], organised: bool) -> str:
    """Return the estimator with which the run of these options learns most in a given time
    (`proposals.estimator`). It is zeroth-order if the rows are on the hub and cannot be read here, as no
    gradient can be measured then. Raises UserError as `build`."""
    begun = beginning(given)
    found = proposals.estimator(begun.task, begun.data.train, organised, given)
    try:
        if found == "first-order" and begun.data.train.startswith(HUB):
            dataset.rows_of(begun.data.train, 1)
    except UserError as error:
        if error.code not in public_files.ELSEWHERE:
            raise
        return "zeroth-order"
    return found


def by_gradients(given: Mapping[str, Any]) -> bool:
    """Return whether options name the first-order estimator. Raises UserError BAD_OPTION in an open run."""
    if given.get("estimator") != "first-order":
        return False
    if "organiser" not in given:
        raise UserError(
            Code.BAD_OPTION,
            "training.estimator: an open run has no gradients, as nobody signs their rates, units and limits",
            "Leave out --open, or take zeroth-order.",
        )
    return True


def _with_gradients(
    training: Training,
    organised: OrganisedSection,
    targets: Sequence[Target],
    given: dict[str, Any],
    head: bool,
) -> tuple[Training, OrganisedSection]:
    """Return the hyperparameters of a first-order run, without the measured ones, and its `organised`
    section. Unless the rank is given, it is halved until an update fits its maximum size and all targets have
    cores of one shape. Raises UserError BAD_OPTION if the classes of a head do not fit."""
    sizes, rank = [(one.out_features, one.in_features) for one in targets], training.rank
    while "rank" not in given and rank > 1 and not _fits(rank, sizes):
        rank //= 2
    rows, columns = targets[0].core_shape(rank)
    if head and rows < targets[0].out_features and not training.bases:
        raise UserError(
            Code.BAD_OPTION,
            f"an update of a head with {targets[0].out_features} classes has no room for all of them",
            "Join rare classes, or make a run of forward passes: --set training.estimator=zeroth-order.",
        )
    cells = rows * columns * len(targets)
    numbers = {"estimator": "first-order", "rank": rank, "scalar_bits": 8 if cells >= EIGHT_BITS else 16}
    training = training.model_copy(update=numbers | ({} if training.bases else {"basis": "published"}))
    parts = -(-training.epoch_updates // HEAD_PARTS)
    most = parts if head else MAX_QUOTA_BYTES // (cells * training.scalar_bits // 8)
    # bases stay, and the effect of seals reaches the live weights at once
    usual = {"quota": min(organised.quota, most), "subspace_epochs": training.epochs}
    bounds = {name: value for name, value in usual.items() if name not in given}
    return training, organised.model_copy(update=bounds)


def _fits(rank: int, sizes: Sequence[tuple[int, int]]) -> bool:
    """Return whether an update at this rank fits its maximum size, and cores have one shape."""
    cells = sum(min(rank, out) * min(rank, inner) for out, inner in sizes)
    return cells <= MAX_UPDATE_BYTES and (rank <= min(map(min, sizes)) or len(set(sizes)) == 1)


def row_examination(given: dict[str, Any], advance: Callable[[int, int], None]) -> RowExamination:
    """Return an examination of rows for the run that these options describe. Raises UserError as `build`."""
    begun = beginning(given)
    home = model_files.located(begun.source, begun.revision)
    return RowExamination(Fitting(begun.task, loader.tokenizer_of(home)), advance)


@refusing()
def forked(old: Manifest, parent: Parent, folder: Path, given: dict[str, Any]) -> Manifest:
    """Return the manifest of a run that begins with the model in a folder. This model is the state of the
    `old` run at a seal. Differences from the old run are `given` as options of `sfnode init`, keyed by
    parameter name.

    An option of SELECTION replaces the whole selection of what is trained. Raises UserError as `build`.
    """
    loss = {"loss": given["loss"], "prior": ()} if "loss" in given else {}
    task = Task(**old.task.model_dump() | loss)
    measured = given.get("norm_limit") == 0
    begun = WITHOUT_GRADIENTS | {"rank": WORDS.training.rank} if measured else {}
    training = _section(old.training.model_copy(update=begun), given)
    model = Model(
        **old.model.model_dump()
        | {"source": folder.name, "outputs": (), "revision": "", "digest": model_files.digest(folder)}
        | {"listing": model_files.listing_hash(folder)}
    )
    if SELECTION & given.keys():
        model = loader.describe(str(folder), "", _selection(given, DEFAULT), loader.classes(task))
    spans = {"epoch_updates", "update_budget", "bases"}
    lasting = old.training.model_dump(include=spans) == training.model_dump(include=spans)
    kept = old.organised.model_dump(exclude=set() if lasting else {"quota", "subspace_epochs"})
    sections = {
        "model": model.model_copy(update={"parent": parent}),
        "task": task,
        "training": training,
        "organised": _organised(training, kept | given),
    }
    said = {key: given[key] for key in ("name", "description") if key in given}
    new = {name: section.model_dump() for name, section in sections.items()}
    run = Manifest.model_validate(old.model_dump() | said | new)
    if not measured:
        return run
    head = takes_features(run)
    _, training, rounds = recipe_of(task, head, None, first=True)
    training, organised = _numbers(training, rounds, run.model, given, head, first=True)
    bounds = {name: getattr(organised, name) for name in ("quota", "subspace_epochs")}
    bounded = run.organised.model_copy(update=bounds)
    return run.model_copy(update={"training": training, "organised": bounded})


class Beginning(NamedTuple):
    """Options of a run before its model is examined and its data are read."""

    name: str
    preset: presets.Preset | None
    source: str
    revision: str
    task: Task
    data: Data


@refusing()
def beginning(given: dict[str, Any]) -> Beginning:
    """Return the parts of a run that follow from options of `sfnode init` before its model is examined.
    Raises UserError as `build`."""
    source, revision = _absolute(given.get("model", "")), given.get("revision", "")
    name = _preset_name(given)
    preset = _for_data(presets.preset(name), given) if name else None
    if preset and not (source or preset.model):
        raise UserError(
            Code.BAD_OPTION,
            f"no base model comes with the task {name}",
            "Name one with --model: a folder, or a Hugging Face id.",
        )
    source = source or (preset.model if preset else presets.DEFAULT_MODEL)
    task = _task(preset, given, model_files.located(source, revision))
    roles = {role: _absolute(given[role]) for role in public_files.ROLES if role in given}
    data = _section(preset.data if preset else Data(), given | roles)
    return Beginning(name, preset, source, revision, task, data)


def _preset_name(given: dict[str, Any]) -> str:
    """Return the preset to start from; an empty name for a task that is not ready-made.

    The task of a built-in model may be named like the model, `builtin:NAME`.
    """
    custom = [field for field in ("kind", "template", "verifier") if field in given]
    if "preset" in given and given.get("kind") not in (None, *LABELLED):
        raise UserError(
            Code.BAD_OPTION,
            "--task names a ready-made task and task.kind describes one of your own",
            "Give one of the two; task.template and the like may change a ready-made task, and of one with "
            "labels task.kind says whether they are answers in words or classes of a head.",
        )
    if custom and "preset" not in given:
        return ""
    if "preset" not in given and given.get("train") and not given["train"].startswith(BUILTIN):
        raise UserError(
            Code.BAD_OPTION,
            f"no task says what is to be learnt from {given['train']}",
            f"Say it (docs/tasks.md), or let it be proposed: `{command('sfnode', 'init', given['train'])}`.",
        )
    source = given.get("model") or presets.DEFAULT_MODEL
    named = str(given.get("preset", presets.of_model(source) or HUB_TASK))
    return named.removeprefix(BUILTIN)


def _for_data(preset: presets.Preset, given: dict[str, Any]) -> presets.Preset:
    """Return the preset with the column names of the training data, if those are in a file."""
    source = str(given.get("train", ""))
    if not preset.called or not _is_local(source):
        return preset
    return presets.for_columns(preset, next(iter(dataset.rows_of(source, 1)), {}))


def _selection(given: dict[str, Any], usual: Selection) -> Selection:
    kinds = {kind: bool(given.get(f"train_{kind}")) for kind in ("embeddings", "biases", "norms")}
    return Selection(given.get("target_modules", usual.modules), **kinds)


def _levelled(training: Training) -> Training:
    """Return the hyperparameters of an organised run, in which the mean rate of a schedule replaces the
    schedule."""
    if training.schedule == "constant":
        return training
    return training.model_copy(
        update={"schedule": "constant", "learning_rate": training.learning_rate * MEAN_RATE}
    )


def _task(preset: presets.Preset | None, given: dict[str, Any], home: Path) -> Task:
    """Return the preset's task, adapted to the model in this folder, with the given fields."""
    fields: dict[str, Any] = {}
    if preset:
        headed, asking = _headed(preset, given, home), not _is_encoder(_json(home / model_files.CONFIG))
        fields = presets.task_of(preset, headed=headed, asking=asking).model_dump()
    elif given.get("kind", "reward" if "verifier" in given else "") == "reward":
        tokens = given.get("answer_tokens", ANSWER_TOKENS)
        fields = {"kind": "reward", "answer_tokens": tokens, "max_tokens": tokens + PROMPT_TOKENS}
        fields["temperature"] = TEMPERATURE
    own = {key: given[key] for key in TASK_FIELDS if key in given}
    if isinstance(own.get("verifier"), str):  # otherwise it is the verifier itself
        own["verifier"] = verifying.load(own["verifier"])
    task = Task(**fields | own)
    usual: Literal["plain", "centred", "calibrated"] = DEFAULT_LOSS
    if given.get("estimator") == "first-order":
        usual = "calibrated" if task.kind == "classification" else "plain"
        if task.loss == "centred":
            raise UserError(
                Code.BAD_OPTION,
                "task.loss: a loss that is centred compares rows, and gradients are of each row by itself",
                "Take calibrated or plain, or training.estimator=zeroth-order.",
            )
    if task.labelled and "loss" not in given and not _trains_head(task, given, home):
        task = task.model_copy(update={"loss": usual})
    _check_kind(task, home)
    positions = _positions(home, task)
    if task.kind == "reward":
        most = task.answer_tokens if "answer_tokens" in given else positions // 2
        tokens = {"max_tokens": positions, "answer_tokens": min(task.answer_tokens, most)}
        return Task(**task.model_dump() | tokens)
    return task.model_copy(update={"max_tokens": positions})


def _headed(preset: presets.Preset, given: dict[str, Any], home: Path) -> bool:
    """Return whether a ready-made task is learnt by a head. By default a task about one text is learnt by a
    head, unless the model is the task's own or options ask for a prompt or for layers of the body. A frozen
    causal model says little about how two texts compare."""
    if "kind" in given or _is_encoder(_json(home / model_files.CONFIG)):
        return given.get("kind") != "classification"
    own = {"template", "loss", *SELECTION} & set(given)
    one_text = bool(preset.texts) and templates.SEPARATOR not in preset.texts
    return one_text and home.parent != model_files.EMBEDDED and not own


def _trains_head(task: Task, given: dict[str, Any], home: Path) -> bool:
    """Return whether a run trains only the linear head of a causal model, which is the default for
    classifiers."""
    causal = not _is_encoder(_json(home / model_files.CONFIG))
    return causal and task.kind == "sequence-classification" and not SELECTION & given.keys()


def _check_kind(task: Task, home: Path) -> None:
    """Raise UserError MODEL_UNSUPPORTED for an encoder in a language task. transformers would load it, but an
    encoder sees the tokens that it has to predict."""
    if task.kind != "sequence-classification" and _is_encoder(_json(home / model_files.CONFIG)):
        raise UserError(
            Code.MODEL_UNSUPPORTED,
            f"{home} classifies whole texts, and a task of the kind {task.kind} needs a model that predicts "
            "the next token",
            "Take a language model such as OPT or Llama, or the kind sequence-classification.",
        )


def _section(base: Any, given: dict[str, Any]) -> Any:
    """Return the section `base` with the given fields."""
    return type(base)(**{key: given.get(key, value) for key, value in base.model_dump().items()})


def _absolute(source: str) -> str:
    """Return an existing path as an absolute one, for other nodes on this machine; other sources
    unchanged."""
    path = Path(source).expanduser()
    return str(path.resolve()) if source and path.exists() else source


def _is_encoder(config: dict[str, Any]) -> bool:
    """Return whether a model classifies whole texts instead of predicting the next token."""
    names = model_config.architectures(config)
    if any(name.endswith(model_config.ENCODER_HEADS) for name in names):
        return True
    masked = str(config.get("model_type")) in MODEL_FOR_MASKED_LM_MAPPING_NAMES
    one_sided = not config.get("is_decoder") and not config.get("is_encoder_decoder")
    return masked and one_sided and not any(name.endswith(CAUSAL_HEADS) for name in names)


def routes_tokens(home: Path) -> bool:
    """Return whether the base model in a folder is a mixture of experts according to its configuration."""
    config = _json(home / model_files.CONFIG)
    return any(isinstance(size := config.get(key), int) and size > 1 for key in EXPERT_COUNTS)


def _positions(home: Path, task: Task) -> int:
    """Return the maximum tokens of a row: the least of the task's maximum, the maximum in the model's files,
    and the number of tokens that the model really can read."""
    config, tokenizer = _json(home / model_files.CONFIG), _json(home / "tokenizer_config.json")
    sizes = (
        task.max_tokens,
        config.get("max_position_embeddings"),
        config.get("n_positions"),
        tokenizer.get("model_max_length"),
    )
    most = min(size for size in sizes if isinstance(size, int) and size > 0)
    return examination.readable(home, examination.part_of(loader.classes(task)), most)


def _json(file: Path) -> dict[str, Any]:
    """Return the object in a file; an empty one if there is no such file."""
    return model_config.read(file) if file.is_file() else {}


def _organised(training: Training, given: dict[str, Any]) -> OrganisedSection:
    fields = {key: given[key] for key in OrganisedSection.model_fields if key in given}
    if "organiser" in given:
        lasting = -(-training.epochs // SUBSPACES)
        fields.setdefault(
            "subspace_epochs", 1 if training.bases else lasting
        )  # cores are small, bases change
        fields.setdefault("quota", min(QUOTA_EPOCHS * training.epoch_updates, MAX_QUOTA))
    return OrganisedSection(**fields)


def _validated(data: Data, task: Task, given: dict[str, Any]) -> Data:
    """Return the data of an organised run. By default some training rows are withheld for validation."""
    if {"validation", "validation_limit"} & set(given) or data.train in ("", data.test):
        return data
    rows = VALIDATION_ROWS
    if not data.train.startswith(HUB):
        rows = min(rows, int(MOST_WITHHELD * len(dataset.training_rows(data, task, typed(data)))))
    return data.model_copy(update={"validation_limit": rows})


def _try_data(manifest: Manifest, examine: RowExamination) -> None:
    """Read the local data files as training does, and check the templates of the task and of the model.

    Data on the hub are not read here, because every node reads them anyway.
    """
    data, task = manifest.data, manifest.task
    prompts.render_row(task, prompts.example(task))
    row_files.require(data.train, data.test, data.validation)
    if task.kind == "chat":
        chat.require_template(examine.fitting.tokenizer)
    if _is_local(data.train):
        dataset.training_rows(data, task, typed(data), examine)
    for source in filter(_is_local, (data.test, data.validation)):
        dataset.load_rows(source, task, examine=examine)


def _is_local(source: str) -> bool:
    return bool(source) and not source.startswith((HUB, BUILTIN))
