"""Tests of `sfnode init` without a dialogue: the written manifest, refusals, measurements, keys and files."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sfnode.defaults import DEFAULT_LOSS, OPEN_WORK_BITS
from sfnode.engine import making_bases
from sfnode.engine.trainer import Trainer
from sfnode.errors import UserError
from sfnode.manifest import Manifest
from sfnode.manifest.sections import OpenSection
from sfnode.models import bases, loader, model_files
from sfnode.models.model_files import EMBEDDED
from sfnode.preparing import rewards, scalars, trial
from sfnode.preparing.manifest import build
from sfnode.preparing.measuring import RANKS
from sfnode.preparing.scalars import SLOPES
from sfnode.store.identity import Identity, WrongPassphraseError
from sfnode.store.run_keys import load_organiser_key, recovery_key
from sfnode.tasks import calibration, public_files
from sfnode.tasks.presets import PRESETS, task_of
from sfnode.verifiers import plugins
from tests.cli.helpers import LENGTH, Ended, Run, bases_file, sets
from tests.wording import has

Flags = tuple[object, ...]


KEYS = Path("safe") / "keys"
REVIEWS = ("--task", "reviews")
MEASURED = sets("init.measure=yes")
TEXT = sets("task.kind=text", "task.template={text}")
CLASSES = sets("task.kind=classification", "task.template={text} it was", "task.verbalizer=0=bad,1=good")

ROWS = {
    "classification": "text\tlabel\ntasty\tyes\nawful\tno\n",
    "sequence-classification": '{"text": "fine", "label": "yes"}\n',
    "choice": '{"question": "2+2", "options": ["bad", "good"], "answer": "good"}\n',
    "completion": '{"question": "2+2", "answer": "4"}\n',
    "text": '{"text": "once upon a time"}\n',
    "reward": "".join(
        f'{{"question": "{how} {what}", "answer": "7"}}\n'
        for how in ("fine", "stale", "good", "poor")
        for what in ("food", "rooms", "staff", "music")
    ),
    "chat": '{"talk": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]}\n',
}
OWN = {
    "classification": ("task.template={text} it was", "task.verbalizer=yes=good,no=bad"),
    "sequence-classification": ("task.template={text}", "task.verbalizer=yes=good,no=bad"),
    "choice": ("task.template={question} =", "task.completion={candidate}", "task.candidates_field=options"),
    "completion": ("task.template={question} =", "task.completion={answer}"),
    "text": ("task.template={text}",),
    "chat": ("task.messages_field=talk",),
    "reward": (
        *("task.template={question} it was", "task.verifier=length.toml", "task.answer_tokens=4"),
        r"task.stop= .\n",
    ),
}
FILES = {
    "rows.tsv": "text\tlabel\nfine\t1\npoor\t0\n",
    "few.tsv": "text\tlabel\n" + "tasty\t1\nawful\t0\n" * 10,
    "length.toml": LENGTH,
    "numeric.toml": 'kind = "numeric"\ncolumn = "answer"\nwhich = "last"\n',
    "half.toml": 'kind = "numeric"\n',
    "sums.jsonl": '{"sum": "2+2=", "answer": 4}\n{"sum": "2+3="}\n',
    "empty.txt": "",
    **{f"{kind}.{'tsv' if kind == 'classification' else 'jsonl'}": rows for kind, rows in ROWS.items()},
}

FEW = 8
"""Number of slopes that most of these tests measure. Their results do not depend on it."""


@pytest.fixture(autouse=True)
def few_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure little, and only if a test asks for it. Write the files."""
    monkeypatch.setattr(scalars, "SLOPES", FEW)
    monkeypatch.setattr(calibration, "CALIBRATION_ROWS", FEW)
    monkeypatch.setattr(rewards, "UPDATES", FEW)
    monkeypatch.setenv("SFNODE_MEASURE", "false")
    for name, text in FILES.items():
        Path(name).write_text(text)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Make a base model in a folder, with a chat template and with the answers of the ready-made tasks as
    tokens."""
    folder = Path(shutil.copytree(EMBEDDED / "tiny", tmp_path / "model"))
    words = (folder / "tokenizer.json").read_text()
    for known, word in (("monday", "Yes"), ("sunday", "No")):
        words = words.replace(f'"{known}"', f'"{word}"')
    (folder / "tokenizer.json").write_text(words)
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }} {% endfor %}")
    return folder


def own(kind: str) -> Flags:
    """Return the options of a task without --task, with a file of rows."""
    (file,) = Path().glob(f"{kind}.*")
    label = ("--label", "answer") if kind == "choice" else ()
    return (*sets(f"task.kind={kind}", *OWN[kind]), *label, file.resolve())


READING = r"(loading libraries.*\n)+(reading the model and the data.*\n)+"
"""Pattern of the first messages. On a slow machine they are repeated."""

MEASURING = r"(measuring what suits the model(: about \d+ (s|min) left)?\n(measuring what suits .*\n)*)?"
"""Pattern of the messages during measurements. They have a duration unless the model writes answers."""


def written(ended: Ended, file: str = "run.toml") -> Manifest:
    """Return the written manifest, after checking the output."""
    assert ended.status == 0, ended.err
    manifest = Manifest.from_toml(Path(file))
    assert re.fullmatch(READING + MEASURING, ended.err)
    printed = re.search(rf"wrote {re.escape(file)}: run (\S+), id ([0-9a-f]{{64}})\n", ended.out)
    assert printed is not None
    assert printed.groups() == (manifest.name, manifest.run_id.hex())
    _, _, following = ended.out.partition("What happens next:\n")
    has(following, f"  sfnode join --run {file} ", "  sfnode invite ")
    return manifest


def default_manifest() -> Manifest:
    """Return the built-in run with proof of work, as `sfnode init --open` writes it."""
    return build({}).model_copy(update={"open": OpenSection(work_bits=OPEN_WORK_BITS)})


def test_the_built_in_run_needs_its_name_alone(sfnode: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scalars, "SLOPES", SLOPES)  # all: a limit that is near that of the run stays
    manifest = written(sfnode("init", *REVIEWS, "--open", *MEASURED))
    task = manifest.task.model_copy(update={"prior": ()})  # which is measured
    assert manifest.model_copy(update={"task": task}) == default_manifest()
    assert (manifest.model.source, manifest.data.train) == ("builtin:tiny", "builtin:reviews:train")


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_brings_its_prompt_its_answers_and_its_data(preset: str, model: Path, sfnode: Run) -> None:
    expected = PRESETS[preset]
    manifest = written(sfnode("init", "--open", "--model", expected.model or model, "--task", preset))
    head = bool(expected.texts) and "{separator}" not in expected.texts and not expected.model
    assert manifest.name == preset
    assert manifest.data == expected.data.model_copy(update={"train_limit": 4096} if head else {})
    loss = DEFAULT_LOSS if expected.task.labelled and not head else "plain"
    sizes = {"max_tokens": manifest.task.max_tokens, "answer_tokens": manifest.task.answer_tokens}
    task = task_of(expected, headed=head, asking=head)
    assert manifest.task == task.model_copy(update=sizes | {"loss": loss})


@pytest.mark.parametrize("kind", ROWS)
def test_a_task_of_ones_own_is_described_by_flags(kind: str, model: Path, sfnode: Run) -> None:
    flags = own(kind)
    measured = MEASURED if kind in ("classification", "text", "reward") else ()
    made = ("init", "--out", "own.toml", *sets("name=mine"), "--model", model, *measured)
    manifest = written(sfnode(*made, *flags, "--test", flags[-1]), "own.toml")
    assert (manifest.name, manifest.task.kind) == ("mine", kind)
    assert OWN[kind][0].partition("=")[2] in (manifest.task.template, manifest.task.messages_field)
    data = Path(str(flags[-1]))
    assert manifest.data.train == manifest.data.test == data.name
    assert manifest.data.digests == dict.fromkeys(("train", "test"), public_files.digest_of(data))


BUDGET = sets("training.update_budget=750")
LONG = sets("training.epoch_updates=1000")
NUMBERS = sets(
    *("training.rank=16", "training.epsilon=0.01", "training.learning_rate=0.002", "training.batch_size=3"),
    *("training.schedule=cosine", "training.group=5", "training.epoch_updates=11"),
    *("data.train_limit=99", "data.train_min_words=2"),
)
MADE: dict[str, tuple[Flags, dict[str, object]]] = {
    "prompts are no longer than the model can take": (("--task", "boolq", "MODEL"), {"task.max_tokens": 64}),
    "answers in words are measured in groups in eight rounds": (
        ("classification", "MODEL", *BUDGET),
        {"training.group": 8, "training.batch_size": 8, "training.epoch_updates": 94},
    ),
    "other tasks are not": (
        ("text", "MODEL", *BUDGET),
        {"training.group": 0, "training.batch_size": 4, "training.epoch_updates": 1024},
    ),
    "the length of rounds may be given": (
        ("classification", "MODEL", *sets("training.epoch_updates=50")),
        {"training.epoch_updates": 50},
    ),
    "a verifier may be in a file": (
        ("MODEL", *sets("task.template={sum}", "task.verifier=numeric.toml")),
        {
            "task.kind": "reward",
            "task.verifier": {"kind": "numeric", "column": "answer"},
            "task.answer_tokens": 32,
            "task.max_tokens": 64,
        },
    ),
    "a run may have no public training data": (
        ("MODEL", *TEXT, "--test", "text.jsonl"),
        {"data.train": "", "data.test": "text.jsonl"},
    ),
    "every number can be given": (
        ("MODEL", "--open", *REVIEWS, *BUDGET, *NUMBERS),
        {
            "training.rank": 16,
            "training.epsilon": 0.01,
            "training.learning_rate": 0.002,
            "training.schedule": "cosine",
            "training.batch_size": 3,
            "training.group": 5,
            "training.epoch_updates": 11,
            "training.update_budget": 750,
            "data.train_limit": 99,
            "data.train_min_words": 2,
        },
    ),
    "what an organised run is bounded by can be given": (
        (
            *(*REVIEWS, "--private", *sets("organised.quota=77", "organised.subspace_epochs=5")),
            *sets("data.validation_limit=9"),
        ),
        {
            "organised.quota": 77,
            "organised.subspace_epochs": 5,
            "organised.private": True,
            "data.validation_limit": 9,
        },
    ),
    **{
        f"a run of {budget} updates has subspaces of {epochs} epochs": (
            (*REVIEWS, *LONG, *sets(f"training.update_budget={budget}")),
            {"organised.subspace_epochs": epochs},
        )
        for budget, epochs in [(1000, 1), (16_000, 1), (16_001, 2), (1_000_000, 63)]
    },
    "validation rows may have a file of their own": (
        (*REVIEWS, *sets("data.validation=rows.tsv")),
        {"data.validation": "rows.tsv", "data.validation_limit": 0},
    ),
    "a fifth of few rows validates": ((*CLASSES, "few.tsv"), {"data.withheld": 4}),
    "none does where training rows are tested on": (
        (*CLASSES, "few.tsv", "--test", "few.tsv"),
        {"data.withheld": 0},
    ),
    "an open run asks newcomers for work": (
        (*REVIEWS, "--open"),
        {"open.quota": 0, "open.work_bits": OPEN_WORK_BITS},
    ),
    "and may limit their feeds": (
        (*REVIEWS, "--open", *sets("open.quota=50", "open.work_bits=3")),
        {"open.quota": 50, "open.work_bits": 3},
    ),
    "there is no other file where all rows are good": (
        (*REVIEWS, "--open", "rows.tsv", "--skip-bad-rows"),
        {"data.train": "rows.tsv"},
    ),
}
"""Options, and fields of the resulting manifest. MODEL stands for a model in a folder, and a kind for a task
of that kind with rows."""


@pytest.mark.parametrize(("flags", "found"), MADE.values(), ids=MADE)
def test_a_manifest_has_what_options_ask_for(
    flags: Flags, found: dict[str, object], model: Path, sfnode: Run
) -> None:
    given = [part for one in flags for part in (own(str(one)) if one in ROWS else (one,))]
    given = [part for one in given for part in (("--model", model) if one == "MODEL" else (one,))]
    manifest = written(sfnode("init", *given))
    assert {name: attrgetter(name)(manifest) for name in found} == found


def test_a_plug_in_is_named_by_the_digest_of_its_file(
    model: Path, sfnode: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugins, "_allowed", {})
    source = "def longer(answer, row):\n    return min(len(answer) / 20, 1)\n"
    Path("mine.py").write_text(source)
    flags = (*sets("task.template={question} it was", "task.answer_tokens=4"), "reward.jsonl", *MEASURED)
    ended = sfnode("init", "--model", model, *sets("task.verifier=mine:longer"), *flags)
    manifest = written(ended)
    for command in ("swarm --run run.toml", "join --run run.toml"):
        assert f"  sfnode {command} --verifier mine:longer " in ended.out
    digest = hashlib.sha256(source.encode()).hexdigest()
    assert manifest.task.verifier == {"kind": "plugin", "digest": digest, "function": "longer"}
    monkeypatch.setattr(plugins, "_allowed", {})
    sfnode("organise", "try-reward", "run.toml").failed("sfnode: SF090: ")
    assert "answers/s" in sfnode("organise", "try-reward", "run.toml", "--verifier", "mine:longer").out


def test_rewards_are_learnt_by_gradients_unless_forward_passes_are_asked_for(
    model: Path, sfnode: Run
) -> None:
    made = ("init", "--model", model, *own("reward"), *MEASURED)
    ended = sfnode(*made)
    assert "Learns by gradients: 96 updates of " in ended.out
    training = written(ended).training
    assert (training.estimator, training.batch_size, training.epoch_updates) == ("first-order", 8, 6)
    ended = sfnode(*made, "--force", *sets("training.estimator=zeroth-order"))
    training = written(ended).training
    assert (training.basis, training.rank) == ("published", RANKS["gradients"])
    assert {name.partition(":")[0].rpartition(".")[2] for name in written(ended).model.targets} == {"v_proj"}


def test_a_manifest_has_the_name_of_a_folder_with_a_model_and_the_command_its_place(
    model: Path, sfnode: Run
) -> None:
    Path("elsewhere").mkdir()
    for out, place in (("run.toml", ""), ("elsewhere/run.toml", f" --model {model}")):
        ended = sfnode("init", "--model", model.name, "--out", out, *own("classification"))
        assert written(ended, out).model.source == model.name
        assert f"sfnode join --run {out}{place} --organise" in ended.out


@pytest.mark.parametrize("flags", [sets("data.share=no"), ("--private",)])
def test_data_that_nodes_are_not_to_give_away_stay_beside_the_manifest(
    model: Path, sfnode: Run, flags: tuple[str, ...]
) -> None:
    """A private run shares no data unless its owner asks for that."""
    ended = sfnode("init", "text.jsonl", "--model", model, *TEXT, *flags)
    found = written(ended).data
    assert (found.train, found.digests) == ("text.jsonl", {})
    has(ended.out, "Nodes do not give them to each other", "sfnode join --data FILE")


def test_one_is_told_what_others_need_that_lies_on_this_machine_alone(model: Path, sfnode: Run) -> None:
    ended = sfnode("init", "--model", model, *TEXT, "text.jsonl")
    assert "other nodes download it from nodes that have it" in ended.out
    assert "Its data are text.jsonl: leave them beside run.toml, and as they are. " in ended.out
    assert f"Others get these {len(ROWS['text'])} B from your nodes" in ended.out
    manifest = written(ended)
    assert str(Path().resolve()) not in manifest.data.model_dump_json()
    assert manifest.model.listing == model_files.listing_hash(model)
    assert default_manifest().model.listing == ""


def test_the_same_options_give_the_same_run(model: Path, sfnode: Run) -> None:
    same = ("--open", "--model", model, "--task", "rte", *MEASURED)
    first, second = (written(sfnode("init", "--out", out, *same), out) for out in ("a.toml", "b.toml"))
    assert first.run_id == second.run_id


def test_nothing_is_overwritten_unasked(sfnode: Run) -> None:
    Path("run.toml").write_text("precious")
    sfnode("init", *REVIEWS).failed("sfnode: SF010: run.toml exists already")
    assert Path("run.toml").read_text() == "precious"
    assert written(sfnode("init", *REVIEWS, "--force", "--open")).model == default_manifest().model


# -- what is refused -----------------------------------------------------------------------------------

REFUSED: list[tuple[Flags, int, str]] = [
    ((*REVIEWS, *sets("training.rank=12")), 10, "training.rank: rank must be a power of two"),
    (("--task", "juggling"), 10, "'juggling'"),
    (("--task", "extract"), 10, "no base model comes with the task extract"),
    (("--task", "sst2", *sets("task.kind=text")), 10, "--task names a ready-made task"),
    (sets("task.template={text}"), 10, "nothing says what is to be learnt"),
    ((), 10, "nothing says what is to be learnt"),
    (sets("task.kind=classification", "task.template={text}"), 10, "verbalizer"),
    (sets("task.kind=completion", "task.template={text}"), 10, "completion"),
    (sets("task.kind=text", "task.template={{text}}"), 11, "it names no field of a row"),
    (("--open", *TEXT, *sets("task.loss=centred")), 10, "no classes whose scores could be centred"),
    (("--open", *REVIEWS, *sets("task.loss=centred", "training.batch_size=1")), 10, "batch_size of 2"),
    ((*REVIEWS, "--open", *sets("task.template={text} caf\udce9")), 10, "has bytes that are not UTF-8"),
    ((*REVIEWS, "--model", "no/such/folder"), 20, "no/such/folder"),
    (("nowhere.tsv",), 30, "there is no file nowhere.tsv"),
    (("rows.doc",), 30, "rows.doc is not a kind of data"),
    (("rows.txt", "--task", "sst2"), 30, "rows.txt is not a kind of data that nodes share"),
    ((*REVIEWS, "--out", "no/folder/run.toml"), 10, "cannot write no/folder/run.toml"),
    (
        ("MODEL", *sets("task.template={sum}", "task.verifier=half.toml")),
        *(10, "task.verifier: half.toml: column: Field required"),
    ),
    (
        ("MODEL", *sets("task.template={sum}", "task.verifier=nothing.toml")),
        *(10, "cannot read nothing.toml"),
    ),
    (
        ("MODEL", "sums.jsonl", *sets("task.template={sum}", "task.verifier=sums", "task.answer_tokens=4")),
        *(31, "sums.jsonl, line 2: no 'answer'"),
    ),
    ((*REVIEWS, *sets("keys.dir=.")), 10, "keys.dir: . is the folder of the manifest"),
    ((*REVIEWS, *sets("keys.dir=empty.txt")), 43, "empty.txt"),
    ((*REVIEWS, *sets("organised.quota=2000000")), 10, "organised.quota: "),
    ((*REVIEWS, *sets("training.schedule=cosine")), 10, "schedule is constant"),
    ((*REVIEWS, "--open", *sets("organised.quota=5")), 10, "an open run has no organiser"),
    ((*REVIEWS, *sets("open.work_bits=3")), 10, "in an organised run the organiser admits"),
    ((*REVIEWS, "--open", *sets("keys.encrypt=yes")), 10, "keys.encrypt: "),
    ((*REVIEWS, *sets("keys.encrypt=yes", "keys.passphrase_file=none")), 10, "cannot read none"),
    ((*REVIEWS, *sets("keys.encrypt=yes", "keys.passphrase_file=empty.txt")), 10, "its first line is empty"),
    (
        (*REVIEWS, "--open", "rows.tsv", *sets("data.validation_limit=2")),
        *(31, "all of them would be validation rows"),
    ),
    ((*REVIEWS, *sets("training.bases=nowhere.bases")), 81, "nowhere.bases"),
    ((*REVIEWS, *sets("training.bases=nowhere.bases", "training.basis=errors")), *(10, "Give one of them.")),
    (("MODEL", *TEXT, *sets("training.basis=errors"), *MEASURED), 32, "this run"),
]


@pytest.mark.parametrize(("flags", "number", "says"), REFUSED, ids=lambda value: str(value)[:90])
def test_what_cannot_be_is_refused_with_the_option_that_says_it(
    flags: Flags, number: int, says: str, model: Path, sfnode: Run
) -> None:
    given = [part for one in flags for part in (("--model", model) if one == "MODEL" else (one,))]
    sfnode("init", *given).refused(f"sfnode: SF{number:03d}: ", says)
    assert not Path("run.toml").exists()
    assert not list(Path().rglob("*.recovery"))


def test_in_a_program_data_without_a_task_are_not_taken_for_reviews() -> None:
    with pytest.raises(UserError, match=r"`sfnode init news\.csv`"):
        build({"train": "news.csv"})


# -- what is measured ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("scalar_limit", 300, ""),
        ("scalar_delta", 8, "are 0, as scalar_delta 8 is too coarse: give training.scalar_delta="),
        ("scalar_delta", 1e-6, "are larger than scalar_limit: give training.scalar_delta="),
        ("scalar_limit", 2, "are larger than scalar_limit: give training.scalar_limit="),
    ],
)
def test_a_number_that_is_given_counts_and_is_warned_of_if_most_scalars_then_say_nothing(
    name: str, value: float, says: str, sfnode: Run
) -> None:
    ended = sfnode("init", *REVIEWS, *sets(f"training.{name}={value}"), *MEASURED)
    assert getattr(written(ended).training, name) == value
    assert says in ended.out
    assert ("Warning" in ended.out) == bool(says)


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Replace the trial of numbers. Return a list of whether each trial kept the given epsilon."""
    kept: list[bool] = []

    def run(_trainer: Any, *, keep_epsilon: bool, **_: Any) -> scalars.Suited:
        kept.append(keep_epsilon)
        slopes = scalars.SlopeSample(np.array([1.0, -1.0]), 0.05, example_forwards=100)
        halves = {} if keep_epsilon else {"epsilons": {"bfloat16": 6e-3, "float16": 3e-3}}
        return {"epsilon": 2e-3, "scalar_delta": 1 / 32, "learning_rate": 3e-4} | halves, slopes

    monkeypatch.setattr(trial, "run", run)
    return kept


@pytest.fixture
def in_words(model: Path) -> Flags:
    """Return the command for the built-in task, in words, with a model in a folder."""
    return ("init", "--model", model, *REVIEWS, *sets("task.kind=classification"), *MEASURED)


def test_numbers_that_suit_the_model_are_chosen(sfnode: Run, in_words: Flags, tried: list[bool]) -> None:
    ended = sfnode(*in_words)
    training = written(ended).training
    assert (training.epsilon, training.scalar_delta, training.learning_rate) == (2e-3, 1 / 32, 3e-4)
    assert training.epsilons == {"bfloat16": 6e-3, "float16": 3e-3}
    assert training.scalar_limit == 260
    assert (training.basis, training.rank, tried) == ("published", 4, [False])


def test_numbers_that_are_given_count_and_one_that_is_far_off_is_warned_of(
    sfnode: Run, in_words: Flags, tried: list[bool]
) -> None:
    ended = sfnode(*in_words, *sets("training.learning_rate=1e-5", "training.epsilon=1e-3"))
    training = written(ended).training
    assert (training.epsilon, training.epsilons, training.learning_rate) == (1e-3, {}, 1e-5)
    warned = "Warning: learning_rate 1e-05 is as asked, but 0.0003 suits the model: it is 30 times too sm"
    assert warned in ended.out
    assert "Warning: epsilon" not in ended.out
    assert tried == [True]


@pytest.mark.parametrize(
    "flags",
    [
        sets("init.measure=no"),
        sets("training.basis=random"),
        sets("training.epsilon=1e-3", "training.learning_rate=1e-5", f"training.scalar_delta={1 / 64}"),
    ],
    ids=["unmeasured", "asked for", "numbers given"],
)
def test_bases_are_random_where_that_is_asked_for_or_nothing_is_tried_out(
    flags: Flags, sfnode: Run, in_words: Flags, tried: list[bool]
) -> None:
    assert written(sfnode(*in_words, *flags)).training.basis == "random"


def test_what_cannot_be_tried_out_stays_and_is_said(model: Path, sfnode: Run) -> None:
    ended = sfnode("init", "--model", model, *TEXT, *MEASURED)
    assert "Numbers were not tried out (the run names no data): they are the defaults, or as" in ended.out
    assert "Bases are random ones, as none were made from errors: " in ended.out


def test_a_big_model_need_not_be_loaded_and_one_is_told_what_that_means(
    sfnode: Run, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "load", None)
    ended = sfnode("init", *REVIEWS, "--model", model)
    assert written(ended).training.scalar_limit == 32_767
    unmeasured = "No scalars were measured (init.measure=no). scalar_limit is 32767, the most that 16 bits"
    assert unmeasured in ended.out
    assert "Whether one update could wreck the model has not been checked either." in ended.out


@pytest.mark.parametrize(
    ("flags", "reason"),
    [(("--task", "rte"), "cannot load hf:aps/super_glue:rte:train"), (TEXT, "the run names no data")],
    ids=["data out of reach", "private data"],
)
def test_without_data_only_the_largest_update_is_checked(
    flags: tuple[str, ...], reason: str, model: Path, sfnode: Run
) -> None:
    made = ("init", "--model", model, *flags, *MEASURED)
    ended = sfnode(*made)
    assert f"No scalars were measured ({reason}" in ended.out
    assert written(ended).training.scalar_limit == 32_767
    refused = sfnode(*made, *sets("training.learning_rate=1e-3"), "--force")
    assert "sfnode: SF017: " in refused.err


# -- keys ----------------------------------------------------------------------------------------------


def test_an_organised_run_comes_with_the_keys_of_its_organiser_and_of_its_only_deputy(
    sfnode: Run, home: Path
) -> None:
    """Runs are organised by default."""
    for folder, flags in ((home / ".local/share/sfnode/keys", ()), (KEYS, sets(f"keys.dir={KEYS}"))):
        ended = sfnode("init", *REVIEWS, "--force", *flags)
        manifest = written(ended)
        said, run_id = manifest.organised, manifest.run_id
        kept = [folder / run_id.hex(), folder / f"{run_id.hex()}.recovery"]
        assert sorted(folder.iterdir()) == kept
        assert all(str(file) in ended.out for file in kept)
        assert (said.votes, said.quota) == (1, 4 * manifest.training.epoch_updates)
        key = load_organiser_key(run_id, [bytes.fromhex(said.organiser)], folder)
        assert key.public.hex() == said.organiser
        assert (Identity.read(recovery_key(run_id, folder)).public.hex(),) == said.deputies
        assert (manifest.training.schedule, manifest.data.validation_limit) == ("constant", 256)


def test_keys_are_encrypted_with_a_passphrase_that_is_asked_for(
    sfnode: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed = iter(["horse", "house", "horse", "horse"])
    monkeypatch.setattr("click.termui.hidden_prompt_func", lambda _: next(typed))
    assert sfnode("init", *REVIEWS, *sets(f"keys.dir={KEYS}", "keys.encrypt=yes")).status == 0
    manifest = Manifest.from_toml(Path("run.toml"))
    organiser = bytes.fromhex(manifest.organised.organiser)
    assert load_organiser_key(manifest.run_id, [organiser], KEYS, b"horse").public == organiser
    with pytest.raises(WrongPassphraseError):
        Identity.read(recovery_key(manifest.run_id, KEYS))


@pytest.mark.parametrize(
    ("flags", "command"),
    [
        ((), "run.toml --organise    starts"),
        (
            ("--out", "a b;c.toml", *sets("keys.dir=my keys")),
            "'a b;c.toml' --organise --keys-dir 'my keys'   ",
        ),
        (("--open",), "run.toml    starts"),
    ],
)
def test_the_command_that_organises_is_printed_as_it_is_to_be_typed(
    flags: Flags, command: str, sfnode: Run, home: Path
) -> None:
    assert f"  sfnode join --run {command}" in sfnode("init", *REVIEWS, *flags).out


# -- bad rows ------------------------------------------------------------------------------------------

SPOILT = {
    "bad.CSV": "text;label\nfine;1\n;1\npoor;\ndull;0\nnice;2\nfine;1;0\n",
    "bad.jsonl": '{"text": "fine", "label": "1", "id": 7}\n{"text": "a \\ud83d", "label": "1"}\n[]\n'
    '{"text": ["x"], "label": "1"}\n{"text": "so"}\n{"text": "dull", "label": "0", "id": NaN}\n',
}
GOOD = [{"text": "fine", "label": "1"}, {"text": "dull", "label": "0"}]


@pytest.mark.parametrize("name", SPOILT)
def test_bad_rows_are_an_error_unless_they_are_left_out_of_a_file_that_the_run_then_names(
    name: str, sfnode: Run
) -> None:
    Path(name).write_text(SPOILT[name])
    flags = ("init", "--open", *CLASSES, name, "--test", name)
    refused = sfnode(*flags).failed("SF031: 4 of the 6 rows of ")
    assert refused.err.count(f"{name}, line ") == 3
    assert sfnode(*flags, "--skip-bad-rows").status == 0
    data = Manifest.from_toml(Path("run.toml")).data
    assert data.train == data.test == next(Path().glob("bad-*.jsonl")).name
    assert [json.loads(line) for line in Path(data.train).read_text().splitlines()] == GOOD
    again = sfnode(*flags, "--skip-bad-rows", "--force")
    assert "Left out: 4 of the 6 rows of " in again.out
    assert again.out.count(f"{name}, line ") == 3
    assert f"The other rows are in {data.train}." in again.out
    assert len(list(Path().glob("bad*"))) == 2


@pytest.mark.parametrize("when", ["measuring", "writing the keys", "writing the manifest"])
def test_who_interrupts_it_finds_no_run_no_key_and_no_other_file(
    when: str, sfnode: Run, in_words: Flags, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    target = {
        "measuring": "sfnode.preparing.trial.run",
        "writing the keys": "sfnode.store.identity.Identity.write",
        "writing the manifest": "sfnode.cli.init.write_manifest",
    }[when]
    Path("spoilt.tsv").write_text("text\tlabel\ntasty\t1\nawful\t0\nbad row\n")
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    monkeypatch.setattr(target, interrupted)
    before = sorted(tmp_path.rglob("*"))
    flags = ("spoilt.tsv", "--test", "spoilt.tsv", "--skip-bad-rows", *sets(f"keys.dir={tmp_path / 'keys'}"))
    ended = sfnode(*in_words, *flags, *sets("training.estimator=zeroth-order"))
    assert (ended.status, ended.err.splitlines()[-1]) == (130, "interrupted")
    assert "Traceback" not in ended.err
    left = [file for file in tmp_path.rglob("*") if file not in before and file != tmp_path / "keys"]
    assert left == []


# -- published bases -----------------------------------------------------------------------------------


def test_a_run_with_published_bases_names_them_and_has_them_beside_its_manifest(
    sfnode: Run, tmp_path: Path
) -> None:
    file = bases_file(tmp_path / "made", 32).rename(tmp_path / "mine")
    (tmp_path / "runs").mkdir()
    out = str(tmp_path / "runs" / "run.toml")
    made = ("init", *REVIEWS, "--out", out, "--open", *sets(f"training.bases={file}"), *MEASURED)
    sfnode(*made, *sets("training.rank=8")).failed("SF082")
    assert not list((tmp_path / "runs").iterdir())
    ended = sfnode(*made)
    training = written(ended, out).training
    assert (training.basis, training.bases) == ("published", bases.digest_of(file))
    kept = bases.path_in(tmp_path / "runs", training.bases)
    assert kept.read_bytes() == file.read_bytes()
    assert f"Its bases are in {kept}" in ended.out


@pytest.mark.parametrize(("basis", "rank"), [("gradients", 1), ("errors", 4)])
def test_bases_are_made_where_they_are_asked_for_without_validation_rows(
    sfnode: Run, basis: str, rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Manifest] = []

    def made(trainer: Trainer, *rest: Any) -> making_bases.Made:
        seen.append(trainer.manifest)
        return make(trainer, *rest)

    make = making_bases.make
    monkeypatch.setattr(making_bases, "make", made)
    ended = sfnode("init", *REVIEWS, *sets(f"training.basis={basis}"))
    run = written(ended)
    assert (run.training.basis, run.training.rank) == ("published", rank)
    assert [file.name for file in Path().glob("*.bases")] == [f"{run.training.bases}.bases"]
    assert seen[0].data == run.data
    assert run.data.withheld
