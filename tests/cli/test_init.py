"""`sfnode init`: a manifest from nothing, from flags or from answers; read again, it is the same run."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sfnode.cli.init_questions import INTRODUCTION, QUESTIONS
from sfnode.defaults import DEFAULT_LOSS, OPEN_WORK_BITS
from sfnode.engine import making_bases, reward_trial, scalar_limit, trial
from sfnode.engine.scalar_limit import SLOPES
from sfnode.engine.trainer import Trainer
from sfnode.manifest import Manifest
from sfnode.manifest.sections import OpenSection
from sfnode.models import bases, files, loader, manifest_builder
from sfnode.models.files import EMBEDDED
from sfnode.store.identity import Identity, WrongPassphraseError
from sfnode.store.run_keys import load_organiser_key, recovery_key
from sfnode.tasks import calibration, public_files
from sfnode.tasks.presets import PRESETS, task_of
from sfnode.verifiers import plugins
from tests.cli.helpers import Ended

Run = Callable[..., Ended]

ROWS = {
    "classification": "text\tlabel\nfine\tyes\npoor\tno\n",
    "sequence-classification": '{"text": "fine", "label": "yes"}\n',
    "choice": '{"question": "2+2", "options": ["3", "4"], "answer": "4"}\n',
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
    "classification": ("--template", "{text} it was", "--verbalizer", "yes=good,no=bad"),
    "choice": (
        *("--template", "{question} =", "--completion", "{candidate}"),
        *("--candidates-field", "options", "--label-field", "answer"),
    ),
    "completion": ("--template", "{question} =", "--completion", "{answer}"),
    "text": ("--template", "{text}"),
    "sequence-classification": ("--template", "{text}", "--verbalizer", "yes=good,no=bad"),
    "chat": ("--messages-field", "talk"),
    "reward": (
        *("--template", "{question} it was", "--verifier", "length.toml"),
        *("--answer-tokens", 4, "--stop", r" .\n"),
    ),
}
CALIBRATE = {False: "false", True: "true"}
"""By whether answers are rewarded: at the usual epsilon those of the small built-in model are all alike."""

LENGTH = 'kind = "sum"\n' + "".join(
    f'[[terms]]\nweight = 0.125\nverifier = {{ kind = "length", least = {2 * n} }}\n' for n in range(1, 9)
)
"""A verifier that likes longer answers better."""


FEW = 8
"""Slopes that most of these tests measure: what follows from them does not depend on their number."""


def default_manifest() -> Manifest:
    """Return the built-in run as `sfnode init --open` writes it: with work for newcomers."""
    built = manifest_builder.default_manifest()
    return built.model_copy(update={"open": OpenSection(work_bits=OPEN_WORK_BITS)})


@pytest.fixture(autouse=True)
def few_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure little, and try numbers out only where a test asks for it."""
    monkeypatch.setattr(scalar_limit, "SLOPES", FEW)
    monkeypatch.setattr(calibration, "CALIBRATION_ROWS", FEW)
    monkeypatch.setattr(reward_trial, "UPDATES", FEW)
    monkeypatch.setenv("SFNODE_CALIBRATE", "false")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A base model in a folder of the user's, with a chat template."""
    folder = Path(shutil.copytree(EMBEDDED / "tiny", tmp_path / "model"))
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

ANSWERS = r"(writing answers along some directions.*\n)+"
"""What is said in a reward run."""


def written(ended: Ended, file: str = "run.toml") -> Manifest:
    """The manifest that was written; what was printed of it is right."""
    assert ended.status == 0, ended.err
    manifest = Manifest.from_toml(Path(file))
    measured = MEASURING if manifest.task.has_slopes else ANSWERS
    assert re.fullmatch(READING + measured, ended.err)
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


def test_without_options_and_without_a_terminal_it_describes_the_built_in_run(
    sfnode: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        scalar_limit, "SLOPES", SLOPES
    )  # all of them: a limit that is near that of the run stays
    manifest = written(sfnode("init", "--open"))
    assert but_for_prior(manifest) == default_manifest()
    assert manifest.model.source == "builtin:tiny"
    assert manifest.data.train == "builtin:reviews:train"


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_brings_its_prompt_its_answers_and_its_data(preset: str, model: Path, sfnode: Run) -> None:
    expected = PRESETS[preset]
    manifest = written(sfnode("init", "--open", "--model", expected.model or model, "--task", preset))
    head = bool(expected.texts) and "{separator}" not in expected.texts and not expected.model
    assert manifest.name == preset
    assert manifest.data == expected.data.model_copy(update={"train_limit": 4096} if head else {})
    loss = DEFAULT_LOSS if expected.task.labelled and not head else "plain"
    numbers = {"max_tokens": manifest.task.max_tokens, "answer_tokens": manifest.task.answer_tokens}
    numbers |= {"loss": loss}
    assert but_for_prior(manifest).task == task_of(expected, headed=head).model_copy(update=numbers)


def test_prompts_are_never_longer_than_the_model_can_take(model: Path, sfnode: Run) -> None:
    manifest = written(sfnode("init", "--model", model, "--task", "boolq"))
    assert manifest.task.max_tokens == 64 < PRESETS["boolq"].task.max_tokens


@pytest.mark.parametrize("kind", ROWS)
def test_a_task_of_ones_own_is_described_by_flags(
    kind: str, model: Path, sfnode: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SFNODE_CALIBRATE", CALIBRATE[kind == "reward"])
    data = data_file(kind)
    flags = ("--kind", kind, *FLAGS[kind], "--train", data, "--test", data)
    manifest = written(sfnode("init", "own.toml", "--name", "mine", "--model", model, *flags), "own.toml")
    assert (manifest.name, manifest.task.kind) == ("mine", kind)
    assert FLAGS[kind][1] in (manifest.task.template, manifest.task.messages_field)
    assert manifest.data.train == manifest.data.test == data.name
    assert manifest.data.digests == dict.fromkeys(("train", "test"), public_files.digest_of(data))


def test_a_verifier_may_be_in_a_file(model: Path, sfnode: Run) -> None:
    Path("verifier.toml").write_text('kind = "numeric"\ncolumn = "answer"\nwhich = "last"\n')
    Path("rows.jsonl").write_text('{"sum": "2+2=", "answer": 4}\n')
    flags = ("--template", "{sum}", "--train", "rows.jsonl")
    made = ("init", "--model", model, *flags, "--no-measure", "--verifier")
    assert sfnode(*made, "verifier.toml").status == 0
    found = Manifest.from_toml(Path("run.toml")).task
    assert (found.kind, found.verifier) == ("reward", {"kind": "numeric", "column": "answer"})
    assert (found.answer_tokens, found.max_tokens) == (32, 64)
    Path("verifier.toml").write_text('kind = "numeric"\n')
    assert (
        "--verifier: verifier.toml: column: Field required" in sfnode(*made, "verifier.toml", "--force").err
    )
    assert "cannot read nothing.toml" in sfnode(*made, "nothing.toml", "--force").err


def test_a_plug_in_is_named_by_the_digest_of_its_file(
    model: Path, sfnode: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugins, "_allowed", {})
    source = "def longer(answer, row):\n    return min(len(answer) / 20, 1)\n"
    Path("mine.py").write_text(source)
    monkeypatch.setenv("SFNODE_CALIBRATE", "true")
    flags = ("--template", "{question} it was", "--answer-tokens", 4, "--train", data_file("reward"))
    manifest = written(sfnode("init", "--model", model, "--verifier", "mine:longer", *flags))
    digest = hashlib.sha256(source.encode()).hexdigest()
    assert manifest.task.verifier == {"kind": "plugin", "digest": digest, "function": "longer"}
    monkeypatch.setattr(plugins, "_allowed", {})
    unasked = sfnode("organise", "try-reward", "run.toml")
    assert (unasked.status, "sfnode: SF090: " in unasked.err) == (1, True)
    assert (
        "answers/s"
        in sfnode("organise", "try-reward", "run.toml", "--verifier", "mine:longer", "--updates", 4).out
    )


def test_rows_that_a_verifier_cannot_score_are_found_before_anybody_joins(model: Path, sfnode: Run) -> None:
    Path("rows.jsonl").write_text('{"sum": "2+2=", "answer": 4}\n{"sum": "2+3="}\n')
    flags = ("--template", "{sum}", "--verifier", "sums", "--answer-tokens", 4, "--train", "rows.jsonl")
    ended = sfnode("init", "--model", model, "--kind", "reward", *flags)
    assert ended.status == 1
    assert "rows.jsonl, line 2: no 'answer'" in ended.err


def test_of_rewards_it_says_where_the_numbers_are_from(
    model: Path, sfnode: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SFNODE_CALIBRATE")
    data = data_file("reward")
    made = ("init", "--model", model, *FLAGS["reward"], "--train", data)
    ended = sfnode(*made)
    training = written(ended).training
    assert "The model wrote 256 answers at the points of 8 updates in " in ended.out
    assert f"epsilon is {training.epsilon:g}: in " in ended.out
    assert f"learning_rate is {training.learning_rate:g}: the recipe of evolution strategies" in ended.out
    assert "Measured 8 scalars: root mean square " in ended.out
    assert training.basis == "random"
    refused = sfnode(*made, "--basis", "activations", "--force")
    assert "rewards have no slopes" in refused.err


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--answer-tokens", 64), "fewer than the max_tokens of prompt and answer"),
        (("--temperature", 0.001), "temperature is 0 or at least"),
        (("--task", "sst2"), "the task kind sequence-classification has no answers that are written"),
        (("--stop", "x" * 65), "--stop: "),
    ],
)
def test_what_makes_no_answers_is_refused(
    flags: tuple[object, ...], says: str, model: Path, sfnode: Run
) -> None:
    usual = () if "--task" in flags else ("--template", "{question}", "--train", data_file("reward"))
    ended = sfnode("init", "--model", model, "--verifier", "gsm8k", *usual, *flags)
    assert (ended.status, "sfnode: SF010: " in ended.err, says in ended.err) == (1, True, True)


def test_a_run_may_have_no_public_training_data(model: Path, sfnode: Run) -> None:
    flags = ("--kind", "text", "--template", "{text}", "--test", data_file("text"))
    assert written(sfnode("init", "--model", model, *flags)).data.train == ""


def test_a_folder_with_a_model_is_named_so_that_other_nodes_here_find_it(model: Path, sfnode: Run) -> None:
    data_file("classification")
    flags = ("--kind", "classification", *FLAGS["classification"], "--train", "rows.tsv")
    manifest = written(sfnode("init", "--model", model.name, *flags))
    assert manifest.model.source == str(model)


@pytest.mark.parametrize("flag", ["--no-share-data", "--private"])
def test_data_that_nodes_are_not_to_give_away_stay_at_their_path(model: Path, sfnode: Run, flag: str) -> None:
    """A private run gives away nothing that its owner has not asked it to."""
    data = data_file("text")
    flags = ("--kind", "text", "--template", "{text}", "--train", data, "--keys-dir", KEYS, flag)
    ended = sfnode("init", "--model", model, *flags)
    found = Manifest.from_toml(Path("run.toml")).data
    assert (found.train, found.digests) == (str(data), {})
    assert "others need them at the same path" in ended.out
    assert "sfnode join --data FILE" in ended.out


def test_every_number_can_be_given(model: Path, sfnode: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SFNODE_UPDATE_BUDGET", "77")
    flags = ("--open", "--rank", 4, "--epsilon", 0.01, "--learning-rate", 0.002, "--schedule", "cosine")
    more = (
        "--batch-size",
        3,
        "--group",
        5,
        "--epoch-updates",
        11,
        "--train-limit",
        99,
        "--train-min-words",
        2,
    )
    training = written(sfnode("init", "--model", model, "--task", "reviews", *flags, *more)).training
    assert (training.rank, training.epsilon, training.learning_rate) == (4, 0.01, 0.002)
    assert (training.schedule, training.batch_size, training.group) == ("cosine", 3, 5)
    assert (training.epoch_updates, training.update_budget) == (11, 77)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--epsilon", "1e-300"), "--epsilon: points nearer than 6e-08 are the same in float16"),
        (("--epsilon", "1e300"), "--epsilon: Input should be less than or equal to 1"),
        (("--scalar-delta", "5e-324"), "--scalar-delta: in units below 9.1e-13 every scalar is the largest"),
        (("--scalar-delta", "1e300"), "and above 4.3e+09 every one is 0"),
        (("--learning-rate", "1e-300", "--open"), "or no update moves a weight"),
    ],
)
def test_numbers_with_which_nothing_can_be_measured_are_refused_unmeasured(
    flags: tuple[str, ...], says: str, sfnode: Run
) -> None:
    ended = sfnode("init", "--no-measure", *flags)
    assert (ended.status, "sfnode: SF010: " in ended.err, says in ended.err) == (1, True, True)
    assert not Path("run.toml").exists()


def test_the_limit_of_the_scalars_is_measured_and_said(sfnode: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scalar_limit, "SLOPES", SLOPES)
    ended = sfnode("init", "--learning-rate", 5e-4, "--scalar-delta", 0.001)
    limit = written(ended).training.scalar_limit
    found = re.search(
        rf"Measured 19 scalars: root mean square (\S+)\. scalar_limit is {limit}, 8 ", ended.out
    )
    assert found is not None
    assert 8 <= limit / float(found[1]) < 9


def test_a_centred_run_has_the_base_models_prior_for_nodes_without_public_rows(sfnode: Run) -> None:
    ended = sfnode("init", "--objective", "centred", "--train-limit", 40, "--open")
    assert ended.status == 0, ended.err
    assert re.fullmatch(READING + MEASURING, ended.err)
    task = Manifest.from_toml(Path("run.toml")).task
    assert task.loss == "centred"
    assert (len(task.prior), max(task.prior)) == (2, 0)
    assert min(task.prior) < 0


def test_without_classes_no_loss_can_be_centred(sfnode: Run) -> None:
    ended = sfnode("init", "--kind", "text", "--template", "{text}", "--objective", "centred", "--open")
    assert (ended.status, "no classes whose scores could be centred" in ended.err) == (1, True)
    few = sfnode("init", "--objective", "centred", "--batch-size", 1, "--open")
    assert (few.status, "batch_size of 2" in few.err) == (1, True)


def test_a_limit_that_is_given_counts(sfnode: Run) -> None:
    ended = sfnode("init", "--scalar-limit", 300)
    assert written(ended).training.scalar_limit == 300
    assert "scalar_limit is 300, as asked." in ended.out
    assert "Warning" not in ended.out


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--scalar-delta", 8), "of them are 0, as scalar_delta 8 is too coarse: give --scalar-delta "),
        (("--scalar-delta", 1e-6), "of them are larger than scalar_limit: give --scalar-delta "),
        (("--scalar-limit", 2), "of them are larger than scalar_limit: give --scalar-limit "),
    ],
    ids=["delta too coarse", "delta too fine", "limit too low"],
)
def test_numbers_with_which_most_scalars_say_nothing_are_warned_of(
    flags: tuple[object, ...], says: str, sfnode: Run
) -> None:
    assert says in sfnode("init", *flags).out


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
    ended = sfnode("init", "--calibrate")
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
    ended = sfnode("init", "--calibrate", "--learning-rate", 1e-5, "--epsilon", 1e-3)
    assert ended.status == 0, ended.err
    training = Manifest.from_toml(Path("run.toml")).training
    assert (training.epsilon, training.epsilons, training.learning_rate) == (1e-3, {}, 1e-5)
    assert (
        "Warning: learning_rate 1e-05 is as asked, but 0.0003 suits the model: it is 30 times too sm"
        in ended.out
    )
    assert "Warning: epsilon" not in ended.out
    assert tried == [True]


def test_what_cannot_be_tried_out_stays_and_is_said(sfnode: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "run", lambda *_, **__: "the run names no data")
    ended = sfnode("init", "--calibrate")
    assert (
        "Numbers were not tried out (the run names no data): they are the defaults, or as given." in ended.out
    )


def test_numbers_with_which_one_update_wrecks_the_model_are_refused_with_better_ones(sfnode: Run) -> None:
    ended = sfnode("init", "--learning-rate", 1e-3, "--scalar-limit", 32_767)
    assert (ended.status, ended.out) == (1, "")
    assert "sfnode: SF017: " in ended.err
    assert not Path("run.toml").exists()
    advice = re.search(r"Lower --scalar-limit to ([0-9]+)\.", ended.err)
    assert advice is not None
    assert written(sfnode("init", "--learning-rate", 1e-3, "--scalar-limit", advice[1]))


def test_a_big_model_need_not_be_loaded_and_one_is_told_what_that_means(
    sfnode: Run, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "load", None)
    ended = sfnode("init", "--no-measure", "--model", model, "--task", "reviews")
    assert ended.status == 0
    assert re.fullmatch(READING, ended.err)
    assert (
        "No scalars were measured (--no-measure). scalar_limit is 32767, the most that 16 bits" in ended.out
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
    flags = flags or ("--kind", "text", "--template", "{text}")
    ended = sfnode("init", "--model", model, *flags)
    assert f"No scalars were measured ({reason}" in ended.out
    assert written(ended).training.scalar_limit == 32_767
    refused = sfnode("init", "--model", model, *flags, "--learning-rate", 1e-3, "--force")
    assert "sfnode: SF017: " in refused.err


def test_the_same_options_give_the_same_run(model: Path, sfnode: Run) -> None:
    same = ("--open", "--model", model, "--task", "rte")
    first = written(sfnode("init", "a.toml", *same), "a.toml")
    second = written(sfnode("init", "b.toml", *same), "b.toml")
    assert first.run_id == second.run_id


def test_at_a_terminal_enter_alone_gives_the_built_in_run_with_an_organiser(
    sfnode: Run, answers: Callable[..., None], home: Path
) -> None:
    answers("", "", "", "", "", "", "")
    ended = sfnode("init")
    assert "Base model" in ended.out
    manifest = organised(ended, home / ".local/share/sfnode/keys")
    assert but_for_prior(manifest).task == default_manifest().task
    own = {"kind", "verifier", "answer_tokens", "stop"}
    assert all(QUESTIONS[name] in ended.out for name in QUESTIONS.keys() - own)


def test_explanations_fit_a_terminal() -> None:
    lines = [line for text in (INTRODUCTION, *QUESTIONS.values()) for line in text.splitlines()]
    assert max(map(len, lines)) <= 80


def test_one_is_told_what_others_need_that_lies_on_this_machine_alone(model: Path, sfnode: Run) -> None:
    data = data_file("text")
    ended = sfnode("init", "--model", model, "--kind", "text", "--template", "{text}", "--train", data)
    assert "other nodes download it from nodes that have it" in ended.out
    assert "Its data are rows.jsonl: leave them beside run.toml, and as they are. " in ended.out
    assert f"Others get these {data.stat().st_size} B from your nodes" in ended.out
    manifest = written(ended)
    assert str(data.parent) not in manifest.data.model_dump_json()
    assert manifest.model.listing == files.listing_hash(model)
    assert default_manifest().model.listing == ""


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("classification", ("{text} it was", "label", "yes=good,no=bad")),
        ("choice", ("{question} =", "answer", "options", "{candidate}")),
        ("completion", ("{question} =", "{answer}")),
        ("text", ("{text}",)),
        ("sequence-classification", ("{text}", "label", "yes=good,no=bad")),
        ("chat", ("talk",)),
        ("reward", ("{question} it was", "missing.toml", "length.toml", "4", r" .\n")),
    ],
)
def test_at_a_terminal_one_is_asked_for_a_task_of_ones_own(
    kind: str,
    told: tuple[str, ...],
    model: Path,
    sfnode: Run,
    answers: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SFNODE_MEASURE", "false")
    data = data_file(kind)
    answers(str(model), "custom", kind, *told, str(data), str(data), "123", "open", "Tells sums.")
    asked = sfnode("init", "asked.toml")
    assert asked.status == 0, asked.err
    answers()
    flags = ("--open", "--kind", kind, *FLAGS[kind])
    flags += ("--train", data, "--test", data, "--update-budget", 123, "--description", "Tells sums.")
    assert sfnode("init", "given.toml", "--model", model, *flags).status == 0
    assert Manifest.from_toml(Path("asked.toml")) == Manifest.from_toml(Path("given.toml"))


def test_an_answer_that_makes_no_sense_is_asked_for_again(
    model: Path, sfnode: Run, answers: Callable[..., None]
) -> None:
    data = str(data_file("classification"))
    told = ("fly", "custom", "classification", "{text} it was", "label", "yes,no", "yes=good,no=bad")
    answers(str(model), *told, data, data, "many", "123", "closed", "", "")
    ended = sfnode("init")
    assert ended.status == 0, ended.err
    assert (ended.out + ended.err).count("Error: ") == 4


def test_nothing_is_overwritten_unasked(sfnode: Run) -> None:
    Path("run.toml").write_text("precious")
    ended = sfnode("init")
    assert ended.status == 1
    assert "sfnode: SF010: run.toml exists already" in ended.err
    assert Path("run.toml").read_text() == "precious"
    assert sfnode("init", "--force", "--open", "--no-measure").status == 0
    assert Manifest.from_toml(Path("run.toml")).model == default_manifest().model


@pytest.mark.parametrize(
    ("flags", "number", "says"),
    [
        (("--rank", "12"), 10, "--rank: rank must be a power of two"),
        (("--group", "1"), 10, "--group: a group has two updates or more"),
        (("--learning-rate", "-1"), 10, "--learning-rate: "),
        (("--update-budget", "0"), 10, "--update-budget: "),
        (("--name", "two words"), 10, "--name: "),
        (("--task", "juggling"), 10, "'juggling'"),
        (("--task", "sst2", "--kind", "text"), 10, "--task names a ready-made task"),
        (("--template", "{text}"), 10, "--kind: "),
        (("--kind", "classification", "--template", "{text}"), 10, "verbalizer"),
        (("--kind", "completion", "--template", "{text}"), 10, "completion"),
        (("--kind", "text", "--template", "{{text}}"), 11, "it names no field of a row"),
        (("--model", "no/such/folder"), 20, "no/such/folder"),
        (("--train", "nowhere.tsv"), 30, "there is no file nowhere.tsv"),
        (("--train", "rows.xlsx"), 30, "rows.xlsx is not a kind of data"),
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


def test_training_data_without_a_task_are_not_taken_for_reviews(sfnode: Run) -> None:
    """The task that is proposed is one that can be taken as it stands."""
    Path("news.csv").write_text("title,topic\nRates rise,money\nLate goal wins,sport\nBanks merge,money\n")
    refused = sfnode("init", "--train", "news.csv")
    assert refused.status == 1
    assert "SF010: no task says what is to be learnt from news.csv, which has the columns title, topic" in (
        refused.err
    )
    assert not Path("run.toml").exists()
    proposed = shlex.split(refused.err.partition("for instance: ")[2])
    task = written(sfnode("init", "--open", "--train", "news.csv", *proposed)).task
    assert (task.kind, task.template, task.label_field) == ("classification", "{title} It was", "topic")
    assert task.verbalizer == {"money": "money", "sport": "sport"}


def test_a_place_that_cannot_be_written_to_is_named(sfnode: Run) -> None:
    ended = sfnode("init", "no/such/folder/run.toml")
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
    assert organised(sfnode("init"), home / ".local/share/sfnode/keys").training.schedule == "constant"


def test_an_organised_run_comes_with_the_keys_of_its_organiser_and_of_its_only_deputy(sfnode: Run) -> None:
    manifest = organised(sfnode("init", "--organised", "--keys-dir", KEYS))
    said, run_id = manifest.organised, manifest.run_id
    assert said.votes == 1
    assert said.quota == 4 * manifest.training.epoch_updates
    assert load_organiser_key(run_id, bytes.fromhex(said.organiser), KEYS).public.hex() == said.organiser
    (deputy,) = said.deputies
    assert Identity.read(recovery_key(run_id, KEYS)).public.hex() == deputy
    assert (manifest.training.schedule, manifest.data.validation_limit) == ("constant", 256)


def test_what_an_organised_run_is_bounded_by_can_be_given(sfnode: Run) -> None:
    flags = ("--quota", 77, "--subspace-epochs", 5, "--validation-limit", 9, "--private")
    manifest = organised(sfnode("init", "--organised", "--keys-dir", KEYS, *flags))
    assert (manifest.organised.quota, manifest.organised.subspace_epochs) == (77, 5)
    assert manifest.organised.private
    assert manifest.data.validation_limit == 9


@pytest.mark.parametrize(("budget", "epochs"), [(1000, 1), (16_000, 1), (16_001, 2), (1_000_000, 63)])
def test_a_long_run_has_no_more_subspaces_than_a_short_one(sfnode: Run, budget: int, epochs: int) -> None:
    flags = ("--organised", "--keys-dir", KEYS, "--epoch-updates", 1000, "--update-budget", budget)
    assert sfnode("init", *flags, "--no-measure").status == 0
    assert Manifest.from_toml(Path("run.toml")).organised.subspace_epochs == epochs


def test_validation_rows_may_have_a_file_of_their_own(sfnode: Run) -> None:
    Path("judge.tsv").write_text("text\tlabel\nfine\t1\npoor\t0\n")
    flags = ("--organised", "--keys-dir", KEYS, "--validation", "judge.tsv")
    data = organised(sfnode("init", *flags)).data
    assert (data.validation, data.validation_limit) == ("judge.tsv", 0)


def test_an_open_run_asks_newcomers_for_work_and_may_limit_their_feeds(sfnode: Run) -> None:
    def made(*flags: object) -> Manifest:
        assert sfnode("init", "--open", "--no-measure", "--force", *flags).status == 0
        return Manifest.from_toml(Path("run.toml"))

    asked = made().open
    assert (asked.quota, asked.work_bits) == (0, OPEN_WORK_BITS)
    asked = made("--feed-quota", 50, "--work-bits", 3).open
    assert (asked.quota, asked.work_bits) == (50, 3)
    parameters = made("--work-bits", 3).parameters()
    assert (parameters.longest_feed, parameters.work_bits) == (parameters.update_budget, 3)


def test_keys_are_encrypted_with_a_passphrase_that_is_asked_for(
    sfnode: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed = iter(["horse", "house", "horse", "horse"])
    monkeypatch.setattr("click.termui.hidden_prompt_func", lambda _: next(typed))
    assert sfnode("init", "--keys-dir", KEYS, "--encrypt").status == 0
    manifest = Manifest.from_toml(Path("run.toml"))
    organiser = bytes.fromhex(manifest.organised.organiser)
    assert load_organiser_key(manifest.run_id, organiser, KEYS, b"horse").public == organiser
    with pytest.raises(WrongPassphraseError):
        Identity.read(recovery_key(manifest.run_id, KEYS))


def test_the_command_that_organises_is_printed_as_it_is_to_be_typed(sfnode: Run, home: Path) -> None:
    assert "  sfnode join --run run.toml --organise    starts" in sfnode("init", "--no-measure").out
    ended = sfnode("init", "--no-measure", "a b;c.toml", "--keys-dir", "my keys")
    assert "  sfnode join --run 'a b;c.toml' --organise --keys-dir 'my keys'    starts" in ended.out
    assert "--organise" not in sfnode("init", "--no-measure", "--force", "--open").out


def test_a_fifth_of_few_rows_validates_and_none_where_training_rows_are_tested_on(sfnode: Run) -> None:
    Path("few.tsv").write_text("text\tlabel\n" + "fine\t1\npoor\t0\n" * 10)
    task = ("--kind", "classification", "--template", "{text} it was", "--verbalizer", "0=bad,1=good")
    assert organised(sfnode("init", *task, "--train", "few.tsv", "--keys-dir", KEYS)).data.withheld == 4
    tested = ("--train", "few.tsv", "--test", "few.tsv", "--keys-dir", "others")
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
    task = ("--kind", "classification", "--template", "{text} it was", "--verbalizer", "0=bad,1=good")
    flags = ("init", "--open", *task, "--train", name, "--test", name, "--no-measure")
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
    flags = ("init", "--open", "--task", "reviews", "--train", "rows.tsv", "--no-measure", "--skip-bad-rows")
    assert "Left out" not in sfnode(*flags).out
    assert Manifest.from_toml(Path("run.toml")).data.train == "rows.tsv"


def test_bytes_of_a_command_line_that_are_no_text_are_refused(sfnode: Run) -> None:
    Path("rows.tsv").write_text("text\tlabel\nfine\t1\npoor\t0\n")
    flags = ("init", "--open", "--task", "reviews", "--train", "rows.tsv", "--no-measure")
    assert "a text has bytes that are not UTF-8" in sfnode(*flags, "--template", "{text} caf\udce9").err


@pytest.mark.parametrize(
    ("flags", "number", "says"),
    [
        (("--organised", "--keys-dir", "."), 10, "--keys-dir: . is the folder of the manifest"),
        (("--organised", "--keys-dir", "rows.txt"), 43, "rows.txt"),
        (("--organised", "--quota", "0"), 10, "quota"),
        (("--organised", "--quota", "2000000"), 10, "--quota: "),
        (("--organised", "--schedule", "cosine"), 10, "schedule is constant"),
        (("--quota", "5"), 10, "an open run has no organiser"),
        (("--subspace-epochs", "2"), 10, "an open run has no organiser"),
        (("--organised", "--work-bits", "3"), 10, "in an organised run the organiser admits"),
        (("--encrypt",), 10, "--encrypt: "),
        (
            ("--organised", "--encrypt", "--passphrase-file", "none"),
            10,
            "--passphrase-file: cannot read none",
        ),
        (("--organised", "--encrypt", "--passphrase-file", "rows.txt"), 10, "its first line is empty"),
        (("--validation", "builtin:reviews:train"), 10, "neither trained nor tested on"),
        (
            ("--task", "reviews", "--train", "rows.tsv", "--validation-limit", "2"),
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
    ended = sfnode("init", *(() if "--organised" in flags else ("--open",)), *flags)
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
    ended = sfnode("init", tmp_path / "runs" / "run.toml", "--open", "--bases", file)
    assert ended.status == 0, ended.err
    assert re.fullmatch(READING + MEASURING, ended.err)
    training = Manifest.from_toml(tmp_path / "runs" / "run.toml").training
    assert (training.basis, training.bases) == ("published", bases.digest_of(file))
    kept = bases.path_in(tmp_path / "runs", training.bases)
    assert kept.read_bytes() == file.read_bytes()
    assert f"Its bases are in {kept}" in ended.out
    assert f"Measured {FEW} scalars" in ended.out


def test_bases_for_another_rank_are_refused_and_nothing_is_written(sfnode: Run, tmp_path: Path) -> None:
    ended = sfnode("init", "--open", "--rank", "8", "--bases", bases_file(tmp_path / "made"))
    assert ended.status == 1
    assert "SF082" in ended.err
    assert not Path("run.toml").exists()
    assert not list(Path().glob("*.bases"))


def test_bases_that_are_not_there_are_said_to_be_missing(sfnode: Run) -> None:
    ended = sfnode("init", "--bases", "nowhere.bases")
    assert ended.status == 1
    assert "SF081" in ended.err


@pytest.mark.parametrize(("basis", "rank"), [("gradients", 1), ("activations", 8)])
def test_bases_are_made_where_they_are_asked_for(sfnode: Run, basis: str, rank: int) -> None:
    ended = sfnode("init", "--open", "--no-measure", "--basis", basis)
    assert ended.status == 0, ended.err
    training = Manifest.from_toml(Path("run.toml")).training
    assert (training.basis, training.rank) == ("published", rank)
    assert [file.name for file in Path().glob("*.bases")] == [f"{training.bases}.bases"]
    assert f"{rank} direction" in ended.out
    refused = sfnode("init", "--force", "--basis", basis, "--bases", f"{training.bases}.bases")
    assert "Give one of them." in refused.err
    assert sfnode("init", "--force", "--open", "--no-measure", "--basis", "random").status == 0
    assert Manifest.from_toml(Path("run.toml")).training.basis == "random"


def test_whoever_leaves_the_numbers_to_a_trial_gets_bases_of_activations(
    sfnode: Run, model: Path, tried: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SFNODE_CALIBRATE")
    words = ("--model", model, "--task", "reviews", "--kind", "classification")
    ended = sfnode("init", *words, "--train", "builtin:reviews:train")
    assert ended.status == 0, ended.err
    training = Manifest.from_toml(Path("run.toml")).training
    assert (training.basis, training.rank, tried) == ("published", 8, [False])
    assert "Made bases: 8 directions" in ended.out
    numbers = ("--epsilon", 1e-3, "--learning-rate", 1e-5, "--scalar-delta", 1 / 64)
    for options in (("--no-calibrate",), ("--basis", "random"), numbers):
        ended = sfnode("init", "--force", *words, *options)
        assert ended.status == 0, ended.err
        assert Manifest.from_toml(Path("run.toml")).training.basis == "random"


def test_where_no_bases_can_be_made_unasked_they_are_random_ones_and_it_says_why(
    sfnode: Run, model: Path, tried: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SFNODE_CALIBRATE")
    ended = sfnode("init", "--model", model, "--kind", "text", "--template", "{text}")
    assert ended.status == 0, ended.err
    assert "Bases are random ones, as none were made from activations: " in ended.out
    assert sfnode("init", "--model", model, "--kind", "text", "--template", "{text}", "--force", "--basis",
                  "activations").status == 1  # fmt: skip


def test_bases_of_an_organised_run_are_made_without_its_validation_rows(
    sfnode: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Manifest] = []

    def made(trainer: Trainer, *rest: Any) -> making_bases.Made:
        seen.append(trainer.manifest)
        return make(trainer, *rest)

    make = making_bases.make
    monkeypatch.setattr(making_bases, "make", made)
    assert sfnode("init", "--no-measure", "--basis", "gradients").status == 0
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
    Path("rows.tsv").write_text("text\tlabel\nfine\t1\npoor\t0\nbad row\n")
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    monkeypatch.setattr(target, interrupted)
    before = sorted(tmp_path.rglob("*"))
    flags = ("--task", "reviews", "--train", "rows.tsv", "--test", "rows.tsv", "--skip-bad-rows")
    ended = sfnode("init", *flags, "--calibrate", "--basis", "activations", "--keys-dir", tmp_path / "keys")
    assert ended.status == 130
    left = [file for file in tmp_path.rglob("*") if file not in before and file != tmp_path / "keys"]
    assert left == []
