"""Tests of `sfnode init` with other models: encoders classify bare texts, and chats need a template."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

from sfnode.manifest import Manifest
from sfnode.models.model_files import EMBEDDED
from sfnode.tasks import fitting
from sfnode.tasks.presets import PRESETS
from tests.cli.helpers import Ended, Run, sets
from tests.wording import has

UNMEASURED = sets("init.measure=no")
SIZES = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    """Make a tiny BERT with a classification head and the built-in model's tokenizer."""
    build: Any = AutoModelForSequenceClassification
    settings = AutoConfig.for_model("bert", vocab_size=200, max_position_embeddings=40, **SIZES)
    build.from_config(settings).save_pretrained(tmp_path / "bert")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(EMBEDDED / "tiny" / file, tmp_path / "bert")
    return tmp_path / "bert"


def change(file: Path, **fields: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def manifest(ended: Ended) -> Manifest:
    assert ended.status == 0, ended.err
    return Manifest.from_toml(Path("run.toml"))


def test_an_encoder_gets_the_bare_texts_of_a_preset(encoder: Path, sfnode: Run) -> None:
    task = manifest(sfnode("init", "--model", encoder, "--task", "rte")).task
    assert (task.kind, task.template) == ("sequence-classification", PRESETS["rte"].texts)
    assert (task.verbalizer, task.max_tokens) == (PRESETS["rte"].task.verbalizer, 40)


ENCODERS = [
    ({"architectures": ["BertForMaskedLM"]}, True),
    ({"architectures": ["BertForPreTraining"]}, True),
    ({"architectures": ["BertModel"]}, True),
    ({"architectures": ["BertLMHeadModel"], "is_decoder": True}, False),
    ({"architectures": ["BertModel"], "is_decoder": True}, False),
]


@pytest.mark.parametrize(("fields", "is_encoder"), ENCODERS)
def test_what_is_an_encoder_its_configuration_says(
    fields: dict[str, Any], is_encoder: bool, encoder: Path
) -> None:
    from sfnode.preparing.manifest import _is_encoder

    change(encoder / "config.json", **fields)
    assert _is_encoder(json.loads((encoder / "config.json").read_text())) == is_encoder


def test_a_tokenizer_that_takes_less_than_the_model_counts(encoder: Path, sfnode: Run) -> None:
    change(encoder / "tokenizer_config.json", model_max_length=38)
    assert manifest(sfnode("init", "--model", encoder, "--task", "sst2")).task.max_tokens == 38


def test_a_task_that_an_encoder_cannot_do_is_refused_with_those_that_it_can(
    encoder: Path, sfnode: Run
) -> None:
    sfnode("init", "--model", encoder, "--task", "record").failed(
        "sfnode: SF010: an encoder", "reviews, sst2, rte, boolq, wic, multirc"
    )


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copytree(EMBEDDED / "tiny", tmp_path / "model"))


def test_a_chat_task_needs_a_model_with_a_chat_template(model: Path, sfnode: Run) -> None:
    row = {"talk": [{"role": "user", "content": "why"}, {"role": "assistant", "content": "so"}]}
    Path("talk.jsonl").write_text(json.dumps(row))
    flags = ("--model", model, *sets("task.kind=chat", "task.messages_field=talk"), "talk.jsonl")
    sfnode("init", *flags).failed("sfnode: SF022: the model's tokenizer has no chat template")
    (model / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }} {% endfor %}")
    task = manifest(sfnode("init", *flags)).task
    assert (task.kind, task.messages_field) == ("chat", "talk")


def test_a_chat_template_is_a_part_of_the_model(model: Path, sfnode: Run) -> None:
    """Nodes with different chat templates would train different models."""
    flags = ("--model", model, "--set", "task.kind=chat", "--set", "task.messages_field=talk", "--force")
    digests = []
    for text in ("{{ messages[0].content }}", "{{ messages[1].content }}"):
        (model / "chat_template.jinja").write_text(text)
        digests.append(manifest(sfnode("init", *flags)).model.digest)
    assert digests[0] != digests[1]


def test_a_metric_may_be_chosen_for_a_classification_only(model: Path, sfnode: Run) -> None:
    chosen = manifest(sfnode("init", "--model", model, "--task", "sst2", "--set", "task.metric=f1"))
    assert chosen.task.metric == "f1"
    sfnode("init", "--model", model, "--task", "record", "--set", "task.metric=f1", "--force").failed(
        "cannot be measured by f1"
    )


HEADED = ("--set", "task.kind=sequence-classification", "--set", "task.template={text}")
THREE = ("--set", "task.verbalizer=0=bad,1=middling,2=good", "builtin:reviews:train")
WRITTEN = ("--set", "task.kind=text", "--set", "task.template={text}", "builtin:reviews:train")


@pytest.mark.parametrize(
    ("options", "reason"),
    [((*HEADED, *THREE), "one for 2 classes"), (WRITTEN, "needs a model that predicts the next token")],
)
def test_a_task_that_the_encoder_cannot_do_is_refused(
    encoder: Path, sfnode: Run, options: tuple[str, ...], reason: str
) -> None:
    sfnode("init", "--model", encoder, *options).refused("sfnode: SF022", reason)


def test_a_model_without_its_tokenizer_is_refused(encoder: Path, sfnode: Run) -> None:
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (encoder / file).unlink()
    ended = sfnode("init", "--model", encoder, "--task", "sst2")
    has(ended.err, "sfnode: SF022", "tokenizer")


def test_of_a_mixture_of_experts_it_says_that_slopes_may_be_jumps(tmp_path: Path, sfnode: Run) -> None:
    build: Any = AutoModelForCausalLM
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "num_key_value_heads": 2}
    settings = AutoConfig.for_model(
        "mixtral", vocab_size=1024, max_position_embeddings=64, **SIZES, **experts
    )
    build.from_config(settings).save_pretrained(tmp_path / "mixtral")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(EMBEDDED / "tiny" / file, tmp_path / "mixtral")
    given = ("init", "--open", "--model", tmp_path / "mixtral", "--task", "reviews", *UNMEASURED)
    ended = sfnode(*given)
    assert manifest(ended).training.epsilon == 1e-3
    has(ended.out, "mixture of experts", "training.epsilon=1e-5")
    assert "mixture" not in sfnode(*given, "--set", "training.epsilon=1e-5", "--force").out
    assert "mixture" not in sfnode("init", "--task", "reviews", "--open", *UNMEASURED, "--force").out


# -- rows that only training would meet -----------------------------------------------------------------

STRICT = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    "{{ m.content }} {% endfor %}"
)


def talks(file: str, *roles: str) -> None:
    """Write conversations, of which the 11th and the 16th begin with a message of these roles."""
    said = [
        {"messages": [{"role": role, "content": f"hi no. {n}"} for role in (*before, "user", "assistant")]}
        for n in range(20)
        for before in [roles if n in (10, 15) else ()]
    ]
    Path(file).write_text("\n".join(map(json.dumps, said)))


def test_a_conversation_that_the_template_refuses_is_found_before_anybody_joins(
    model: Path, sfnode: Run
) -> None:
    (model / "chat_template.jinja").write_text(STRICT)
    talks("talks.jsonl", "system")
    flags = ("init", "--open", *sets("task.kind=chat"), "--model", model, "talks.jsonl", *UNMEASURED)
    sfnode(*flags).failed(
        "SF031: 2 of the 20 rows of ",
        "talks.jsonl, line 11: the model's chat template refuses the conversation",
        "--skip-bad-rows",
    )
    assert not Path("run.toml").exists()
    ended = sfnode(*flags, "--skip-bad-rows").done()
    assert "Left out: 2 of the 20 rows of " in ended.out
    data = Manifest.from_toml(Path("run.toml")).data
    assert len(Path(data.train).read_text().splitlines()) == 18


@pytest.mark.parametrize("skip", [False, True])
def test_an_answer_that_is_too_long_is_refused_or_left_out(skip: bool, model: Path, sfnode: Run) -> None:
    """The same holds for a proposed task with held-out rows."""
    answers = [f"{n + 1} it is" for n in range(19)] + ["so " * 300]
    lines = ["question,answer", *(f"What is {n}+1?,{said}" for n, said in enumerate(answers))]
    Path("asked.csv").write_text("\n".join(lines))
    flags = ("init", "asked.csv", "--yes", "--model", str(model), "--set", "init.measure=no")
    ended = sfnode(*flags, *(["--skip-bad-rows"] if skip else []))
    wrong = "asked.csv, line 21: the answer 'so so so so so so so so so so so so so so so so so so so so '"
    assert wrong in (ended.out if skip else ended.err)
    assert (ended.status, Path("run.toml").exists()) == ((0, True) if skip else (1, False))
    assert len(list(Path().glob("asked-*.jsonl"))) == (2 if skip else 0)


def test_rows_that_there_was_no_time_for_are_counted(
    model: Path, sfnode: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fitting, "SECONDS", 0.0)
    (model / "chat_template.jinja").write_text(STRICT)
    talks("talks.jsonl", "system")
    ended = sfnode(
        "init", "--open", *sets("task.kind=chat"), "--model", model, "talks.jsonl", *UNMEASURED
    ).done()
    assert "Warning: 20 rows have not been read as the model reads them, as 0 s were over." in ended.out
