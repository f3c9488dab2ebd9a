"""`sfnode init` with options that say all: a manifest that, read again, is the same run."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sfnode.defaults import DEFAULT_LOSS, OPEN_WORK_BITS
from sfnode.engine import making_bases, reward_trial, scalar_limit, trial
from sfnode.engine.scalar_limit import SLOPES
from sfnode.engine.trainer import Trainer
from sfnode.errors import UserError
from sfnode.manifest import Manifest
from sfnode.manifest.sections import OpenSection
from sfnode.models import bases, files, loader, manifest_builder
from sfnode.models.files import EMBEDDED
from sfnode.preparing import RANKS
from sfnode.store.identity import Identity, WrongPassphraseError
from sfnode.store.run_keys import load_organiser_key, recovery_key
from sfnode.tasks import calibration, public_files
from sfnode.tasks.presets import PRESETS, task_of
from sfnode.verifiers import plugins
from tests.cli.helpers import Ended

Run = Callable[..., Ended]

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
FLAGS = {
    "classification": ("--set", "task.template={text} it was", "--set", "task.verbalizer=yes=good,no=bad"),
    "choice": (
        *("--set", "task.template={question} =", "--set", "task.completion={candidate}"),
        *("--set", "task.candidates_field=options", "--label", "answer"),
    ),
    "completion": ("--set", "task.template={question} =", "--set", "task.completion={answer}"),
    "text": ("--set", "task.template={text}"),
    "sequence-classification": ("--set", "task.template={text}", "--set", "task.verbalizer=yes=good,no=bad"),
    "chat": ("--set", "task.messages_field=talk"),
    "reward": (
        *("--set", "task.template={question} it was", "--set", "task.verifier=length.toml"),
        *("--set", "task.answer_tokens=4", "--set", r"task.stop= .\n"),
    ),
}
LENGTH = 'kind = "sum"\n' + "".join(
    f'[[terms]]\nweight = 0.125\nverifier = {{ kind = "length", least = {2 * n} }}\n' for n in range(1, 9)
)
"""A verifier that likes longer answers better."""


FEW = 8
"""Slopes that most of these tests measure: what follows from them does not depend on their number."""


def default_manifest() -> Manifest:
    """Return the built-in run as `sfnode init --open` writes it: with work for newcomers."""
    built = manifest_builder.build({})
    return built.model_copy(update={"open": OpenSection(work_bits=OPEN_WORK_BITS)})


@pytest.fixture(autouse=True)
def few_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure little, and try numbers out only where a test asks for it."""
    monkeypatch.setattr(scalar_limit, "SLOPES", FEW)
    monkeypatch.setattr(calibration, "CALIBRATION_ROWS", FEW)
    monkeypatch.setattr(reward_trial, "UPDATES", FEW)
    monkeypatch.setenv("SFNODE_CALIBRATE", "false")
    monkeypatch.setenv("SFNODE_DETAILS", "true")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A base model in a folder of the user's, with a chat template, that knows the answers of presets."""
    folder = Path(shutil.copytree(EMBEDDED / "tiny", tmp_path / "model"))
    words = (folder / "tokenizer.json").read_text()
    for known, word in (("monday", "Yes"), ("sunday", "No")):
        words = words.replace(f'"{known}"', f'"{word}"')
    (folder / "tokenizer.json").write_text(words)
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }} {% endfor %}")
    return folder


def data_file(kind: str) -> Path:
    """Rows for a task of this kind."""
    path = Path("rows.tsv" if kind == "classification" else "rows.jsonl").resolve()
    path.write_text(ROWS[kind])
    Path("length.toml").write_text(LENGTH)
    return path


READING = r"(loading libraries.*\n)+(reading the model and the data.*\n)+"
"""What is said at first; on a slow machine more than once."""

MEASURING = r"measuring what suits the model: about \d+ (s|min) left\n(measuring what suits .*\n)*"
"""What is said while numbers are measured."""

WRITING = r"measuring what suits the model\n(measuring what suits .*\n)*"
"""What is said where the model writes answers, which takes a time that is not known before."""


def written(ended: Ended, file: str = "run.toml") -> Manifest:
    """The manifest that was written; what was printed of it is right."""
    assert ended.status == 0, ended.err
    manifest = Manifest.from_toml(Path(file))
    assert re.fullmatch(READING + (WRITING if manifest.task.is_rewarded else MEASURING), ended.err)
    printed = re.search(rf"wrote {re.escape(file)}: run (\S+), id ([0-9a-f]{{64}})\n", ended.out)
    assert printed is not None
    assert printed.groups() == (manifest.name, manifest.run_id.hex())
    _, _, following = ended.out.partition("What happens next:\n")
    assert f"  sfnode join --run {file} " in following
    assert "  sfnode invite " in following
    return manifest


def but_for_prior(manifest: Manifest) -> Manifest:
    """The manifest as it was before its base model's prior was measured."""
    return manifest.model_copy(update={"task": manifest.task.model_copy(update={"prior": ()})})


def test_the_built_in_run_needs_its_name_alone(sfnode: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        scalar_limit, "SLOPES", SLOPES
    )  # all of them: a limit that is near that of the run stays
    manifest = written(sfnode("init", "--task", "reviews", "--open"))
    assert but_for_prior(manifest) == default_manifest()
    assert manifest.model.source == "builtin:tiny"
    assert manifest.data.train == "builtin:reviews:train"


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_brings_its_prompt_its_answers_and_its_data(preset: str, model: Path, sfnode: Run) -> None:
    expected = PRESETS[preset]
    flags = ("--task", preset, "--set", "init.measure=no")
    assert sfnode("init", "--open", "--model", expected.model or model, *flags).status == 0
    manifest = Manifest.from_toml(Path("run.toml"))
    head = bool(expected.texts) and "{separator}" not in expected.texts and not expected.model
    assert manifest.name == preset
    assert manifest.data == expected.data.model_copy(update={"train_limit": 4096} if head else {})
    loss = DEFAULT_LOSS if expected.task.labelled and not head else "plain"
    numbers = {"max_tokens": manifest.task.max_tokens, "answer_tokens": manifest.task.answer_tokens}
    numbers |= {"loss": loss}
    assert but_for_prior(manifest).task == task_of(expected, headed=head, asking=head).model_copy(
        update=numbers
    )


def test_prompts_are_never_longer_than_the_model_can_take(model: Path, sfnode: Run) -> None:
    manifest = written(sfnode("init", "--model", model, "--task", "boolq"))
    assert manifest.task.max_tokens == 64 < PRESETS["boolq"].task.max_tokens


@pytest.mark.parametrize("kind", ROWS)
def test_a_task_of_ones_own_is_described_by_flags(kind: str, model: Path, sfnode: Run) -> None:
    data = data_file(kind)
    flags = ("--set", f"task.kind={kind}", *FLAGS[kind], data, "--test", data)
    manifest = written(
        sfnode("init", "--out", "own.toml", "--set", "name=mine", "--model", model, *flags), "own.toml"
    )
    assert (manifest.name, manifest.task.kind) == ("mine", kind)
    assert FLAGS[kind][1].partition("=")[2] in (manifest.task.template, manifest.task.messages_field)
    assert manifest.data.train == manifest.data.test == data.name
    assert manifest.data.digests == dict.fromkeys(("train", "test"), public_files.digest_of(data))


@pytest.mark.parametrize(
    ("kind", "group", "rows", "length"), [("classification", 8, 8, 94), ("text", 0, 4, 1024)]
)
def test_answers_in_words_are_measured_in_groups_in_eight_rounds(
    kind: str, group: int, rows: int, length: int, model: Path, sfnode: Run
) -> None:
    flags = ("--set", f"task.kind={kind}", *FLAGS[kind], data_file(kind))
    budget = ("--set", "training.update_budget=750")
    training = written(sfnode("init", "--model", model, *flags, *budget)).training
    assert (training.group, training.batch_size, training.epoch_updates) == (group, rows, length)
    chosen = ("--set", "training.epoch_updates=50")
    training = written(sfnode("init", "--force", "--model", model, *flags, *budget, *chosen)).training
    assert training.epoch_updates == 50


def test_a_verifier_may_be_in_a_file(model: Path, sfnode: Run) -> None:
    Path("verifier.toml").write_text('kind = "numeric"\ncolumn = "answer"\nwhich = "last"\n')
    Path("rows.jsonl").write_text('{"sum": "2+2=", "answer": 4}\n')
    flags = ("--set", "task.template={sum}", "rows.jsonl")
    made = ("init", "--model", model, *flags, "--set", "init.measure=no", "--set")
    assert sfnode(*made, "task.verifier=verifier.toml").status == 0
    found = Manifest.from_toml(Path("run.toml")).task
    assert (found.kind, found.verifier) == ("reward", {"kind": "numeric", "column": "answer"})
    assert (found.answer_tokens, found.max_tokens) == (32, 64)
    Path("verifier.toml").write_text('kind = "numeric"\n')
    assert (
        "task.verifier: verifier.toml: column: Field required"
        in sfnode(*made, "task.verifier=verifier.toml", "--force").err
    )
    assert "cannot read nothing.toml" in sfnode(*made, "task.verifier=nothing.toml", "--force").err


def test_a_plug_in_is_named_by_the_digest_of_its_file(
    model: Path, sfnode: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugins, "_allowed", {})
    source = "def longer(answer, row):\n    return min(len(answer) / 20, 1)\n"
    Path("mine.py").write_text(source)
    monkeypatch.setenv("SFNODE_CALIBRATE", "true")
    flags = ("--set", "task.template={question} it was", "--set", "task.answer_tokens=4", data_file("reward"))
    ended = sfnode("init", "--model", model, "--set", "task.verifier=mine:longer", *flags)
    manifest = written(ended)
    for command in ("swarm --run run.toml", "join --run run.toml"):
        assert f"  sfnode {command} --verifier mine:longer " in ended.out
    digest = hashlib.sha256(source.encode()).hexdigest()
    assert manifest.task.verifier == {"kind": "plugin", "digest": digest, "function": "longer"}
    monkeypatch.setattr(plugins, "_allowed", {})
    unasked = sfnode("organise", "try-reward", "run.toml")
    assert (unasked.status, "sfnode: SF090: " in unasked.err) == (1, True)
    assert "answers/s" in sfnode("organise", "try-reward", "run.toml", "--verifier", "mine:longer").out


def test_rows_that_a_verifier_cannot_score_are_found_before_anybody_joins(model: Path, sfnode: Run) -> None:
    Path("rows.jsonl").write_text('{"sum": "2+2=", "answer": 4}\n{"sum": "2+3="}\n')
    flags = (
        "--set",
        "task.template={sum}",
        "--set",
        "task.verifier=sums",
        "--set",
        "task.answer_tokens=4",
        "rows.jsonl",
    )
    ended = sfnode("init", "--model", model, "--set", "task.kind=reward", *flags)
    assert ended.status == 1
    assert "rows.jsonl, line 2: no 'answer'" in ended.err


def test_of_rewards_it_says_where_the_numbers_are_from(
    model: Path, sfnode: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SFNODE_CALIBRATE")
    data = data_file("reward")
    made = ("init", "--model", model, *FLAGS["reward"], data)
    ended = sfnode(*made)
    assert "Learns by gradients: 96 updates of " in ended.out
    training = written(ended).training
    assert (training.estimator, training.batch_size, training.epoch_updates) == ("first-order", 8, 6)
    ended = sfnode(*made, "--force", "--set", "training.estimator=zeroth-order")
    training = written(ended).training
    assert "The model wrote 32 answers in " in ended.out
    assert f"learning_rate is {training.learning_rate:g}: one update then moves" in ended.out
    assert "Measured 16 scalars: root mean square " in ended.out
    assert (training.basis, training.rank) == ("published", RANKS["gradients"])
    assert {name.partition(":")[0].rpartition(".")[2] for name in written(ended).model.targets} == {"v_proj"}


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--set", "task.answer_tokens=64"), "fewer than the max_tokens of prompt and answer"),
        (("--set", "task.temperature=0.001"), "temperature is 0 or at least"),
        (("--task", "sst2"), "the task kind sequence-classification has no answers that are written"),
        (("--set", f"task.stop={'x' * 65}"), "task.stop: "),
    ],
)
def test_what_makes_no_answers_is_refused(
    flags: tuple[object, ...], says: str, model: Path, sfnode: Run
) -> None:
    usual = () if "--task" in flags else ("--set", "task.template={question}", data_file("reward"))
    ended = sfnode("init", "--model", model, "--set", "task.verifier=gsm8k", *usual, *flags)
    assert (ended.status, "sfnode: SF010: " in ended.err, says in ended.err) == (1, True, True)


def test_a_run_may_have_no_public_training_data(model: Path, sfnode: Run) -> None:
    flags = ("--set", "task.kind=text", "--set", "task.template={text}", "--test", data_file("text"))
    assert written(sfnode("init", "--model", model, *flags)).data.train == ""


def test_a_manifest_has_the_name_of_a_folder_with_a_model_and_the_command_its_place(
    model: Path, sfnode: Run
) -> None:
    data_file("classification")
    flags = ("--set", "task.kind=classification", *FLAGS["classification"], "rows.tsv")
    Path("elsewhere").mkdir()
    for out, place in (("run.toml", ""), ("elsewhere/run.toml", f" --model {model}")):
        ended = sfnode("init", "--model", model.name, "--out", out, *flags)
        assert ended.status == 0, ended.err
        assert Manifest.from_toml(Path(out)).model.source == model.name
        assert f"sfnode join --run {out}{place} --organise" in ended.out


@pytest.mark.parametrize("flags", [("--set", "data.share=no"), ("--private",)])
def test_data_that_nodes_are_not_to_give_away_stay_beside_the_manifest(
    model: Path, sfnode: Run, flags: tuple[str, ...]
) -> None:
    """A private run gives away nothing that its owner has not asked it to."""
    data = data_file("text")
    flags += ("--set", "task.kind=text", "--set", "task.template={text}", "--set", f"keys.dir={KEYS}")
    ended = sfnode("init", data, "--model", model, *flags)
    found = Manifest.from_toml(Path("run.toml")).data
    assert (found.train, found.digests) == (data.name, {})
    assert "Nodes do not give them to each other" in ended.out
    assert "sfnode join --data FILE" in ended.out


def test_every_number_can_be_given(model: Path, sfnode: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SFNODE_UPDATE_BUDGET", "77")
    monkeypatch.setattr(scalar_limit, "SLOPES", SLOPES)  # a few may all be 0, which is refused
    flags = (
        "--open",
        "--set",
        "training.rank=16",  # a column in two pushes both classes alike; all of four would, in one run of 16
        "--set",
        "training.epsilon=0.01",
        "--set",
        "training.learning_rate=0.002",
        "--set",
        "training.schedule=cosine",
    )
    more = (
        "--set",
        "training.batch_size=3",
        "--set",
        "training.group=5",
        "--set",
        "training.epoch_updates=11",
        "--set",
        "data.train_limit=99",
        "--set",
        "data.train_min_words=2",
    )
    training = written(sfnode("init", "--model", model, "--task", "reviews", *flags, *more)).training
    assert (training.rank, training.epsilon, training.learning_rate) == (16, 0.01, 0.002)
    assert (training.schedule, training.batch_size, training.group) == ("cosine", 3, 5)
    assert (training.epoch_updates, training.update_budget) == (11, 77)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (
            ("--set", "training.epsilon=1e-300"),
            "training.epsilon: points nearer than 6e-08 are the same in float16",
        ),
        (("--set", "training.epsilon=1e300"), "training.epsilon: Input should be less than or equal to 1"),
        (
            ("--set", "training.scalar_delta=5e-324"),
            "training.scalar_delta: in units below 9.1e-13 every scalar is the largest",
        ),
        (("--set", "training.scalar_delta=1e300"), "and above 4.3e+09 every one is 0"),
        (("--set", "training.learning_rate=1e-300", "--open"), "or no update moves a weight"),
    ],
)
def test_numbers_with_which_nothing_can_be_measured_are_refused_unmeasured(
    flags: tuple[str, ...], says: str, sfnode: Run
) -> None:
    ended = sfnode("init", "--task", "reviews", "--set", "init.measure=no", *flags)
    assert (ended.status, "sfnode: SF010: " in ended.err, says in ended.err) == (1, True, True)
    assert not Path("run.toml").exists()


def test_the_limit_of_the_scalars_is_measured_and_said(sfnode: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scalar_limit, "SLOPES", SLOPES)
    ended = sfnode(
        "init",
        "--task",
        "reviews",
        "--set",
        "training.learning_rate=5e-4",
        "--set",
        "training.scalar_delta=0.001",
    )
    limit = written(ended).training.scalar_limit
    found = re.search(
        rf"Measured 36 scalars: root mean square (\S+)\. scalar_limit is {limit}, 8 ", ended.out
    )
    assert found is not None
    assert 8 <= limit / float(found[1]) < 9


def test_a_centred_run_has_the_base_models_prior_for_nodes_without_public_rows(sfnode: Run) -> None:
    ended = sfnode(
        "init", "--task", "reviews", "--set", "task.loss=centred", "--set", "data.train_limit=40", "--open"
    )
    assert ended.status == 0, ended.err
    assert re.fullmatch(READING + MEASURING, ended.err)
    task = Manifest.from_toml(Path("run.toml")).task
    assert task.loss == "centred"
    assert (len(task.prior), max(task.prior)) == (2, 0)
    assert min(task.prior) < 0


def test_without_classes_no_loss_can_be_centred(sfnode: Run) -> None:
    ended = sfnode(
        "init",
        "--set",
        "task.kind=text",
        "--set",
        "task.template={text}",
        "--set",
        "task.loss=centred",
        "--open",
    )
    assert (ended.status, "no classes whose scores could be centred" in ended.err) == (1, True)
    few = sfnode(
        "init", "--task", "reviews", "--set", "task.loss=centred", "--set", "training.batch_size=1", "--open"
    )
    assert (few.status, "batch_size of 2" in few.err) == (1, True)


def test_a_limit_that_is_given_counts(sfnode: Run) -> None:
    ended = sfnode("init", "--task", "reviews", "--set", "training.scalar_limit=300")
    assert written(ended).training.scalar_limit == 300
    assert "scalar_limit is 300, as asked." in ended.out
    assert "Warning" not in ended.out


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (
            ("--set", "training.scalar_delta=8"),
            "of them are 0, as scalar_delta 8 is too coarse: give training.scalar_delta=",
        ),
        (
            ("--set", "training.scalar_delta=1e-6"),
            "of them are larger than scalar_limit: give training.scalar_delta=",
        ),
        (
            ("--set", "training.scalar_limit=2"),
            "of them are larger than scalar_limit: give training.scalar_limit=",
        ),
    ],
    ids=["delta too coarse", "delta too fine", "limit too low"],
)
def test_numbers_with_which_most_scalars_say_nothing_are_warned_of(
    flags: tuple[object, ...], says: str, sfnode: Run
) -> None:
    assert says in sfnode("init", "--task", "reviews", *flags).out


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """A trial that takes no time; whether it kept the epsilon that was given."""
    kept: list[bool] = []

    def run(_trainer: Any, *, keep_epsilon: bool, **_: Any) -> trial.Trial:
        kept.append(keep_epsilon)
        slopes = scalar_limit.SlopeSample(np.array([1.0, -1.0]), 0.05, example_forwards=100)
        halves = {"bfloat16": 6e-3, "float16": 3e-3}
        costs = {"float32": 1.01, "bfloat16": 1.3, "float16": 1.04}
        return trial.Trial(2e-3, halves, costs, slopes, 1 / 32, 3e-4, 64, 9.0)

    monkeypatch.setattr(trial, "run", run)
    return kept


def test_numbers_that_suit_the_model_are_chosen_if_asked_and_said_why(sfnode: Run, tried: list[bool]) -> None:
    ended = sfnode("init", "--task", "reviews", "--set", "init.calibrate=yes")
    assert ended.status == 0, ended.err
    training = Manifest.from_toml(Path("run.toml")).training
    assert (training.epsilon, training.scalar_delta, training.learning_rate) == (2e-3, 1 / 32, 3e-4)
    assert training.epsilons == {"bfloat16": 6e-3, "float16": 3e-3}
    assert (
        "epsilon is 0.002: its slopes cost 1% more updates than exact ones; in bfloat16 it is 0.006 (30%), "
        "in float16 it is 0.003 (4%)." in ended.out
    )
    assert "learning_rate is 0.0003: a share of what one update can bear, by 64 slopes and bends" in ended.out
    assert "scalar_limit is 250, which is near 260, 8 times that." in ended.out
    assert tried == [False]


def test_numbers_that_are_given_count_and_one_that_is_far_off_is_warned_of(
    sfnode: Run, tried: list[bool]
) -> None:
    ended = sfnode(
        "init",
        "--task",
        "reviews",
        "--set",
        "init.calibrate=yes",
        "--set",
        "training.learning_rate=1e-5",
        "--set",
        "training.epsilon=1e-3",
    )
    assert ended.status == 0, ended.err
    training = Manifest.from_toml(Path("run.toml")).training
    assert (training.epsilon, training.epsilons, training.learning_rate) == (1e-3, {}, 1e-5)
    assert (
        "Warning: learning_rate 1e-05 is as asked, but 0.0003 suits the model: it is 30 times too sm"
        in ended.out
    )
    assert "Warning: epsilon" not in ended.out
    assert tried == [True]


def test_what_cannot_be_tried_out_stays_and_is_said(model: Path, sfnode: Run) -> None:
    flags = ("--set", "task.kind=text", "--set", "task.template={text}", "--set", "init.calibrate=yes")
    ended = sfnode("init", "--model", model, *flags)
    assert (
        "Numbers were not tried out (the run names no data): they are the defaults, or as given." in ended.out
    )


def test_numbers_with_which_one_update_wrecks_the_model_are_refused_with_better_ones(sfnode: Run) -> None:
    ended = sfnode(
        "init",
        "--task",
        "reviews",
        "--set",
        "training.learning_rate=1e-3",
        "--set",
        "training.scalar_limit=32767",
    )
    assert (ended.status, ended.out) == (1, "")
    assert "sfnode: SF017: " in ended.err
    assert not Path("run.toml").exists()
    advice = re.search(r"Lower training.scalar_limit to ([0-9]+)\.", ended.err)
    assert advice is not None
    assert written(
        sfnode(
            "init",
            "--task",
            "reviews",
            "--set",
            "training.learning_rate=1e-3",
            "--set",
            f"training.scalar_limit={advice[1]}",
        )
    )


def test_a_big_model_need_not_be_loaded_and_one_is_told_what_that_means(
    sfnode: Run, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "load", None)
    ended = sfnode("init", "--task", "reviews", "--set", "init.measure=no", "--model", model)
    assert ended.status == 0
    assert re.fullmatch(READING, ended.err)
    assert (
        "No scalars were measured (init.measure=no). scalar_limit is 32767, the most that 16 bits"
        in ended.out
    )
    assert "Whether one update could wreck the model has not been checked either." in ended.out


@pytest.mark.parametrize(
    ("flags", "reason"),
    [(("--task", "rte"), "cannot load hf:aps/super_glue:rte:train"), ((), "the run names no data")],
    ids=["data out of reach", "private data"],
)
def test_without_data_only_the_largest_update_is_checked(
    flags: tuple[str, ...], reason: str, model: Path, sfnode: Run
) -> None:
    flags = flags or ("--set", "task.kind=text", "--set", "task.template={text}")
    ended = sfnode("init", "--model", model, *flags)
    assert f"No scalars were measured ({reason}" in ended.out
    assert written(ended).training.scalar_limit == 32_767
    refused = sfnode("init", "--model", model, *flags, "--set", "training.learning_rate=1e-3", "--force")
    assert "sfnode: SF017: " in refused.err


def test_the_same_options_give_the_same_run(model: Path, sfnode: Run) -> None:
    same = ("--open", "--model", model, "--task", "rte")
    first = written(sfnode("init", "--out", "a.toml", *same), "a.toml")
    second = written(sfnode("init", "--out", "b.toml", *same), "b.toml")
    assert first.run_id == second.run_id


def test_one_is_told_what_others_need_that_lies_on_this_machine_alone(model: Path, sfnode: Run) -> None:
    data = data_file("text")
    ended = sfnode("init", "--model", model, "--set", "task.kind=text", "--set", "task.template={text}", data)
    assert "other nodes download it from nodes that have it" in ended.out
    assert "Its data are rows.jsonl: leave them beside run.toml, and as they are. " in ended.out
    assert f"Others get these {data.stat().st_size} B from your nodes" in ended.out
    manifest = written(ended)
    assert str(data.parent) not in manifest.data.model_dump_json()
    assert manifest.model.listing == files.listing_hash(model)
    assert default_manifest().model.listing == ""


def test_nothing_is_overwritten_unasked(sfnode: Run) -> None:
    Path("run.toml").write_text("precious")
    ended = sfnode("init", "--task", "reviews")
    assert ended.status == 1
    assert "sfnode: SF010: run.toml exists already" in ended.err
    assert Path("run.toml").read_text() == "precious"
    assert sfnode("init", "--task", "reviews", "--force", "--open", "--set", "init.measure=no").status == 0
    assert Manifest.from_toml(Path("run.toml")).model == default_manifest().model


@pytest.mark.parametrize(
    ("flags", "number", "says"),
    [
        (
            ("--task", "reviews", "--set", "training.rank=12"),
            10,
            "training.rank: rank must be a power of two",
        ),
        (
            ("--task", "reviews", "--set", "training.group=1"),
            10,
            "training.group: a group has two updates or more",
        ),
        (("--task", "reviews", "--set", "training.learning_rate=-1"), 10, "training.learning_rate: "),
        (("--task", "reviews", "--set", "training.update_budget=0"), 10, "training.update_budget: "),
        (("--task", "reviews", "--set", "name=?!"), 10, "'?!' is no name of a run"),
        (("--task", "juggling"), 10, "'juggling'"),
        (("--task", "extract"), 10, "no base model comes with the task extract"),
        (("--task", "sst2", "--set", "task.kind=text"), 10, "--task names a ready-made task"),
        (("--set", "task.template={text}"), 10, "nothing says what is to be learnt"),
        ((), 10, "nothing says what is to be learnt"),
        (("--set", "task.kind=classification", "--set", "task.template={text}"), 10, "verbalizer"),
        (("--set", "task.kind=completion", "--set", "task.template={text}"), 10, "completion"),
        (("--set", "task.kind=text", "--set", "task.template={{text}}"), 11, "it names no field of a row"),
        (("--task", "reviews", "--model", "no/such/folder"), 20, "no/such/folder"),
        (("nowhere.tsv",), 30, "there is no file nowhere.tsv"),
        (("rows.doc",), 30, "rows.doc is not a kind of data"),
        (("rows.txt", "--task", "sst2"), 30, "rows.txt is not a kind of data that nodes share"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_what_cannot_be_is_refused_with_the_option_that_says_it(
    flags: tuple[str, ...], number: int, says: str, sfnode: Run
) -> None:
    ended = sfnode("init", *flags)
    assert (ended.status, ended.out) == (1, "")
    assert f"sfnode: SF{number:03d}: " in ended.err
    assert says in ended.err
    assert not Path("run.toml").exists()


def test_in_a_program_data_without_a_task_are_not_taken_for_reviews() -> None:
    with pytest.raises(UserError, match=r"`sfnode init news\.csv`"):
        manifest_builder.build({"train": "news.csv"})


def test_a_place_that_cannot_be_written_to_is_named(sfnode: Run) -> None:
    ended = sfnode("init", "--task", "reviews", "--out", "no/such/folder/run.toml")
    assert ended.status == 1
    assert "sfnode: SF010: cannot write no/such/folder/run.toml" in ended.err


# -- organised runs ----------------------------------------------------------------------------------

KEYS = Path("safe") / "keys"


def organised(ended: Ended, keys: Path = KEYS) -> Manifest:
    """The organised run that was written, with both keys in `keys`; what was said of them is right."""
    manifest = written(ended)
    assert manifest.admission == "organised"
    files = [keys / manifest.run_id.hex(), keys / f"{manifest.run_id.hex()}.recovery"]
    assert sorted(keys.iterdir()) == files
    assert all(str(file) in ended.out for file in files)
    return manifest


def test_runs_are_organised_unless_asked_otherwise(sfnode: Run, home: Path) -> None:
    assert (
        organised(sfnode("init", "--task", "reviews"), home / ".local/share/sfnode/keys").training.schedule
        == "constant"
    )


def test_an_organised_run_comes_with_the_keys_of_its_organiser_and_of_its_only_deputy(sfnode: Run) -> None:
    manifest = organised(sfnode("init", "--task", "reviews", "--organised", "--set", f"keys.dir={KEYS}"))
    said, run_id = manifest.organised, manifest.run_id
    assert said.votes == 1
    assert said.quota == 4 * manifest.training.epoch_updates
    assert load_organiser_key(run_id, [bytes.fromhex(said.organiser)], KEYS).public.hex() == said.organiser
    (deputy,) = said.deputies
    assert Identity.read(recovery_key(run_id, KEYS)).public.hex() == deputy
    assert (manifest.training.schedule, manifest.data.validation_limit) == ("constant", 256)


def test_what_an_organised_run_is_bounded_by_can_be_given(sfnode: Run) -> None:
    flags = (
        "--set",
        "organised.quota=77",
        "--set",
        "organised.subspace_epochs=5",
        "--set",
        "data.validation_limit=9",
        "--private",
    )
    manifest = organised(
        sfnode("init", "--task", "reviews", "--organised", "--set", f"keys.dir={KEYS}", *flags)
    )
    assert (manifest.organised.quota, manifest.organised.subspace_epochs) == (77, 5)
    assert manifest.organised.private
    assert manifest.data.validation_limit == 9


@pytest.mark.parametrize(("budget", "epochs"), [(1000, 1), (16_000, 1), (16_001, 2), (1_000_000, 63)])
def test_a_long_run_has_no_more_subspaces_than_a_short_one(sfnode: Run, budget: int, epochs: int) -> None:
    flags = (
        "--organised",
        "--set",
        f"keys.dir={KEYS}",
        "--set",
        "training.epoch_updates=1000",
        "--set",
        f"training.update_budget={budget}",
    )
    assert sfnode("init", "--task", "reviews", *flags, "--set", "init.measure=no").status == 0
    assert Manifest.from_toml(Path("run.toml")).organised.subspace_epochs == epochs


def test_validation_rows_may_have_a_file_of_their_own(sfnode: Run) -> None:
    Path("judge.tsv").write_text("text\tlabel\nfine\t1\npoor\t0\n")
    flags = ("--organised", "--set", f"keys.dir={KEYS}", "--set", "data.validation=judge.tsv")
    data = organised(sfnode("init", "--task", "reviews", *flags)).data
    assert (data.validation, data.validation_limit) == ("judge.tsv", 0)


def test_an_open_run_asks_newcomers_for_work_and_may_limit_their_feeds(sfnode: Run) -> None:
    def made(*flags: object) -> Manifest:
        assert (
            sfnode(
                "init", "--task", "reviews", "--open", "--set", "init.measure=no", "--force", *flags
            ).status
            == 0
        )
        return Manifest.from_toml(Path("run.toml"))

    asked = made().open
    assert (asked.quota, asked.work_bits) == (0, OPEN_WORK_BITS)
    asked = made("--set", "open.quota=50", "--set", "open.work_bits=3").open
    assert (asked.quota, asked.work_bits) == (50, 3)
    parameters = made("--set", "open.work_bits=3").parameters()
    assert (parameters.longest_feed, parameters.work_bits) == (parameters.update_budget, 3)


def test_keys_are_encrypted_with_a_passphrase_that_is_asked_for(
    sfnode: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed = iter(["horse", "house", "horse", "horse"])
    monkeypatch.setattr("click.termui.hidden_prompt_func", lambda _: next(typed))
    assert (
        sfnode("init", "--task", "reviews", "--set", f"keys.dir={KEYS}", "--set", "keys.encrypt=yes").status
        == 0
    )
    manifest = Manifest.from_toml(Path("run.toml"))
    organiser = bytes.fromhex(manifest.organised.organiser)
    assert load_organiser_key(manifest.run_id, [organiser], KEYS, b"horse").public == organiser
    with pytest.raises(WrongPassphraseError):
        Identity.read(recovery_key(manifest.run_id, KEYS))


def test_the_command_that_organises_is_printed_as_it_is_to_be_typed(sfnode: Run, home: Path) -> None:
    assert (
        "  sfnode join --run run.toml --organise    starts"
        in sfnode("init", "--task", "reviews", "--set", "init.measure=no").out
    )
    ended = sfnode(
        "init",
        "--task",
        "reviews",
        "--set",
        "init.measure=no",
        "--out",
        "a b;c.toml",
        "--set",
        "keys.dir=my keys",
    )
    assert "  sfnode join --run 'a b;c.toml' --organise --keys-dir 'my keys'    starts" in ended.out
    assert (
        "--organise"
        not in sfnode("init", "--task", "reviews", "--set", "init.measure=no", "--force", "--open").out
    )


def test_a_fifth_of_few_rows_validates_and_none_where_training_rows_are_tested_on(sfnode: Run) -> None:
    Path("few.tsv").write_text("text\tlabel\n" + "tasty\t1\nawful\t0\n" * 10)
    task = (
        "--set",
        "task.kind=classification",
        "--set",
        "task.template={text} it was",
        "--set",
        "task.verbalizer=0=bad,1=good",
    )
    assert organised(sfnode("init", *task, "few.tsv", "--set", f"keys.dir={KEYS}")).data.withheld == 4
    tested = ("few.tsv", "--test", "few.tsv", "--set", "keys.dir=others")
    assert organised(sfnode("init", "--force", *task, *tested), Path("others")).data.withheld == 0


SPOILT = {
    "rows.CSV": "text;label\nfine;1\n;1\npoor;\ndull;0\nnice;2\nfine;1;0\n",
    "rows.jsonl": '{"text": "fine", "label": "1", "id": 7}\n{"text": "a \\ud83d", "label": "1"}\n[]\n'
    '{"text": ["x"], "label": "1"}\n{"text": "so"}\n{"text": "dull", "label": "0", "id": NaN}\n',
}
GOOD = [{"text": "fine", "label": "1"}, {"text": "dull", "label": "0"}]


@pytest.mark.parametrize("name", SPOILT)
def test_bad_rows_are_an_error_unless_they_are_left_out_of_a_file_that_the_run_then_names(
    name: str, sfnode: Run
) -> None:
    Path(name).write_text(SPOILT[name])
    task = (
        "--set",
        "task.kind=classification",
        "--set",
        "task.template={text} it was",
        "--set",
        "task.verbalizer=0=bad,1=good",
    )
    flags = ("init", "--open", *task, name, "--test", name, "--set", "init.measure=no")
    refused = sfnode(*flags)
    assert refused.status == 1
    assert "SF031: 4 of the 6 rows of " in refused.err
    assert refused.err.count(f"{name}, line ") == 3
    assert sfnode(*flags, "--skip-bad-rows").status == 0
    data = Manifest.from_toml(Path("run.toml")).data
    assert data.train == data.test == next(Path().glob("rows-*.jsonl")).name
    assert [json.loads(line) for line in Path(data.train).read_text().splitlines()] == GOOD
    again = sfnode(*flags, "--skip-bad-rows", "--force")
    assert "Left out: 4 of the 6 rows of " in again.out
    assert again.out.count(f"{name}, line ") == 3
    assert f"The other rows are in {data.train}." in again.out
    assert len(list(Path().glob("rows*"))) == 2


def test_there_is_no_other_file_where_all_rows_are_good(sfnode: Run) -> None:
    Path("rows.tsv").write_text("text\tlabel\nfine\t1\npoor\t0\n")
    flags = ("init", "--open", "--task", "reviews", "rows.tsv", "--set", "init.measure=no", "--skip-bad-rows")
    assert "Left out" not in sfnode(*flags).out
    assert Manifest.from_toml(Path("run.toml")).data.train == "rows.tsv"


def test_bytes_of_a_command_line_that_are_no_text_are_refused(sfnode: Run) -> None:
    Path("rows.tsv").write_text("text\tlabel\nfine\t1\npoor\t0\n")
    flags = ("init", "--open", "--task", "reviews", "rows.tsv", "--set", "init.measure=no")
    assert (
        "a text has bytes that are not UTF-8" in sfnode(*flags, "--set", "task.template={text} caf\udce9").err
    )


@pytest.mark.parametrize(
    ("flags", "number", "says"),
    [
        (("--organised", "--set", "keys.dir=."), 10, "keys.dir: . is the folder of the manifest"),
        (("--organised", "--set", "keys.dir=rows.txt"), 43, "rows.txt"),
        (("--organised", "--set", "organised.quota=0"), 10, "quota"),
        (("--organised", "--set", "organised.quota=2000000"), 10, "organised.quota: "),
        (("--organised", "--set", "training.schedule=cosine"), 10, "schedule is constant"),
        (("--set", "organised.quota=5"), 10, "an open run has no organiser"),
        (("--set", "organised.subspace_epochs=2"), 10, "an open run has no organiser"),
        (("--organised", "--set", "open.work_bits=3"), 10, "in an organised run the organiser admits"),
        (
            (
                "--set",
                "keys.encrypt=yes",
            ),
            10,
            "keys.encrypt: ",
        ),
        (
            ("--organised", "--set", "keys.encrypt=yes", "--set", "keys.passphrase_file=none"),
            10,
            "--passphrase-file: cannot read none",
        ),
        (
            ("--organised", "--set", "keys.encrypt=yes", "--set", "keys.passphrase_file=rows.txt"),
            10,
            "its first line is empty",
        ),
        (("--set", "data.validation=builtin:reviews:train"), 10, "neither trained nor tested on"),
        (
            ("rows.tsv", "--set", "data.validation_limit=2"),
            31,
            "all of them would be validation rows",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_a_run_that_cannot_be_organised_so_is_refused(
    flags: tuple[str, ...], number: int, says: str, sfnode: Run
) -> None:
    Path("rows.tsv").write_text("text\tlabel\nfine\t1\npoor\t0\n")
    Path("rows.txt").write_text("")
    ended = sfnode("init", "--task", "reviews", *(() if "--organised" in flags else ("--open",)), *flags)
    assert (ended.status, ended.out) == (1, "")
    assert f"sfnode: SF{number:03d}: " in ended.err
    assert says in ended.err
    assert not Path("run.toml").exists()
    assert not KEYS.exists()


# -- published bases ---------------------------------------------------------------------------------


def bases_file(folder: Path, rank: int = 32) -> Path:
    """Bases for the built-in model."""
    targets = default_manifest().model.parsed_targets()
    ones = [
        tuple(np.full((rows, rank), 8, np.int8) for rows in (one.out_features, one.in_features))
        for one in targets
    ]
    return bases.path_in(folder, bases.write(folder, [(u, v) for u, v in ones]))


def test_a_run_with_published_bases_names_them_and_has_them_beside_its_manifest(
    sfnode: Run, tmp_path: Path
) -> None:
    file = bases_file(tmp_path / "made").rename(tmp_path / "mine")
    (tmp_path / "runs").mkdir()
    ended = sfnode(
        "init",
        "--task",
        "reviews",
        "--out",
        tmp_path / "runs" / "run.toml",
        "--open",
        "--set",
        f"training.bases={file}",
    )
    assert ended.status == 0, ended.err
    assert re.fullmatch(READING + MEASURING, ended.err)
    training = Manifest.from_toml(tmp_path / "runs" / "run.toml").training
    assert (training.basis, training.bases) == ("published", bases.digest_of(file))
    kept = bases.path_in(tmp_path / "runs", training.bases)
    assert kept.read_bytes() == file.read_bytes()
    assert f"Its bases are in {kept}" in ended.out
    assert f"Measured {FEW} scalars" in ended.out


def test_bases_for_another_rank_are_refused_and_nothing_is_written(sfnode: Run, tmp_path: Path) -> None:
    ended = sfnode(
        "init",
        "--task",
        "reviews",
        "--open",
        "--set",
        "training.rank=8",
        "--set",
        f"training.bases={bases_file(tmp_path / 'made')}",
    )
    assert ended.status == 1
    assert "SF082" in ended.err
    assert not Path("run.toml").exists()
    assert not list(Path().glob("*.bases"))


def test_bases_that_are_not_there_are_said_to_be_missing(sfnode: Run) -> None:
    ended = sfnode("init", "--task", "reviews", "--set", "training.bases=nowhere.bases")
    assert ended.status == 1
    assert "SF081" in ended.err


@pytest.mark.parametrize(("basis", "rank"), [("gradients", 1), ("errors", 4)])
def test_bases_are_made_where_they_are_asked_for(sfnode: Run, basis: str, rank: int) -> None:
    ended = sfnode(
        "init", "--task", "reviews", "--open", "--set", "init.measure=no", "--set", f"training.basis={basis}"
    )
    assert ended.status == 0, ended.err
    training = Manifest.from_toml(Path("run.toml")).training
    assert (training.basis, training.rank) == ("published", rank)
    assert [file.name for file in Path().glob("*.bases")] == [f"{training.bases}.bases"]
    assert f"{rank} direction" in ended.out
    refused = sfnode(
        "init",
        "--task",
        "reviews",
        "--force",
        "--set",
        f"training.basis={basis}",
        "--set",
        f"training.bases={training.bases}.bases",
    )
    assert "Give one of them." in refused.err
    assert (
        sfnode(
            "init",
            "--task",
            "reviews",
            "--force",
            "--open",
            "--set",
            "init.measure=no",
            "--set",
            "training.basis=random",
        ).status
        == 0
    )
    assert Manifest.from_toml(Path("run.toml")).training.basis == "random"


def test_whoever_leaves_the_numbers_to_a_trial_gets_bases_from_errors(
    sfnode: Run, model: Path, tried: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SFNODE_CALIBRATE")
    words = ("--model", model, "--task", "reviews", "--set", "task.kind=classification")
    ended = sfnode("init", *words, "builtin:reviews:train")
    assert ended.status == 0, ended.err
    training = Manifest.from_toml(Path("run.toml")).training
    assert (training.basis, training.rank, tried) == ("published", 4, [False])
    assert "Made bases: 4 directions" in ended.out
    numbers = (
        "--set",
        "training.epsilon=1e-3",
        "--set",
        "training.learning_rate=1e-5",
        "--set",
        f"training.scalar_delta={1 / 64}",
    )
    for options in (
        (
            "--set",
            "init.calibrate=no",
        ),
        ("--set", "training.basis=random"),
        numbers,
    ):
        ended = sfnode("init", "--force", *words, *options)
        assert ended.status == 0, ended.err
        assert Manifest.from_toml(Path("run.toml")).training.basis == "random"


def test_where_no_bases_can_be_made_unasked_they_are_random_ones_and_it_says_why(
    sfnode: Run, model: Path, tried: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SFNODE_CALIBRATE")
    ended = sfnode("init", "--model", model, "--set", "task.kind=text", "--set", "task.template={text}")
    assert ended.status == 0, ended.err
    assert "Bases are random ones, as none were made from errors: " in ended.out
    again = sfnode("init", "--model", model, "--set", "task.kind=text", "--set", "task.template={text}",
                   "--set", "training.basis=errors", "--force")  # fmt: skip
    assert again.status == 1


def test_bases_of_an_organised_run_are_made_without_its_validation_rows(
    sfnode: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Manifest] = []

    def made(trainer: Trainer, *rest: Any) -> making_bases.Made:
        seen.append(trainer.manifest)
        return make(trainer, *rest)

    make = making_bases.make
    monkeypatch.setattr(making_bases, "make", made)
    assert (
        sfnode(
            "init", "--task", "reviews", "--set", "init.measure=no", "--set", "training.basis=gradients"
        ).status
        == 0
    )
    run = Manifest.from_toml(Path("run.toml"))
    assert seen[0].data == run.data
    assert run.data.withheld


@pytest.mark.parametrize("when", ["measuring", "writing the keys", "writing the manifest"])
def test_who_interrupts_it_finds_no_run_no_key_and_no_other_file(
    when: str, sfnode: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    target = {
        "measuring": "sfnode.engine.trial.run",
        "writing the keys": "sfnode.store.identity.Identity.write",
        "writing the manifest": "sfnode.cli.init.write_manifest",
    }[when]
    Path("rows.tsv").write_text("text\tlabel\ntasty\t1\nawful\t0\nbad row\n")
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    monkeypatch.setattr(target, interrupted)
    before = sorted(tmp_path.rglob("*"))
    flags = ("--task", "reviews", "rows.tsv", "--test", "rows.tsv", "--skip-bad-rows")
    ended = sfnode(
        "init",
        *flags,
        "--set",
        "init.calibrate=yes",
        "--set",
        "training.basis=errors",
        "--set",
        f"keys.dir={tmp_path / 'keys'}",
    )
    assert ended.status == 130
    left = [file for file in tmp_path.rglob("*") if file not in before and file != tmp_path / "keys"]
    assert left == []
