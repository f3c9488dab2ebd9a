"""Tests that a hostile model ends `sfnode init` and `sfnode doctor` with a numbered error."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sfnode.models import model_files
from sfnode.preparing.manifest import build
from sfnode.tasks import tokenizer_calls
from tests.cli.helpers import Run
from tests.models import hostile
from tests.models.families import model_folder

FILE = "rows.jsonl"


class Case(NamedTuple):
    """A hostile model, and the number and words of its error."""

    make: Callable[[Path], Path]
    number: int
    says: str


CASES = {
    "a rule of fifty characters": Case(
        lambda folder: hostile.tokenizer(folder, normalizer=hostile.sequence([hostile.GROWING] * 6)),
        23,
        "the model's tokenizer cannot be used",
    ),
    "an expression that panics": Case(
        lambda folder: hostile.tokenizer(folder, normalizer=hostile.replace("b", Regex=hostile.ENDLESS)),
        23,
        "the model's tokenizer cannot be used",
    ),
    "layers": Case(
        lambda folder: hostile.configured(folder, num_hidden_layers=300_000),
        23,
        "num_hidden_layers to 300,000",
    ),
    "code": Case(
        lambda folder: hostile.configured(folder, model_type="mine", auto_map={"AutoConfig": "own.Own"}),
        22,
        "transformers has no code",
    ),
    "a token that the model does not know": Case(
        lambda folder: hostile.tokenizer(folder, added_tokens=[hostile.added(10**6, "aa")]),
        22,
        "do not match: the model knows 17 tokens",
    ),
    "a configuration that is none": Case(
        lambda folder: spoilt(folder, "config.json", "[" * 100_000), 22, "not a sound JSON file"
    ),
    "architectures that are none": Case(
        lambda folder: hostile.configured(folder, architectures=7, model_type=["opt"]), 22, "transformers has"
    ),
}


def spoilt(folder: Path, name: str, content: str) -> Path:
    """Make a copy of a model with this content in one of its files."""
    hostile.copy(folder)
    (folder / name).write_text(content)
    return folder


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> str:
    """Write rows with the text for which the tokenizers were made, and reduce the memory for encoding."""
    monkeypatch.setattr(tokenizer_calls, "MEMORY", 256 << 20)
    lines = [json.dumps({"sentence": hostile.SENTENCE, "label": str(n % 2)}) for n in range(8)]
    Path(FILE).write_text("\n".join(lines))
    return FILE


def shown(case: Case, text: str) -> None:
    assert case.says in text
    assert "Traceback" not in text
    assert "panicked" not in text


@pytest.mark.parametrize("name", CASES)
def test_who_starts_a_run_with_it_is_told_so(name: str, rows: str, tmp_path: Path, sfnode: Run) -> None:
    case = CASES[name]
    ended = sfnode("init", rows, "--model", case.make(tmp_path / "model"), "--task", "sst2").failed(
        f"SF{case.number:03d}"
    )
    shown(case, ended.err)
    assert not Path("run.toml").exists()


@pytest.mark.parametrize("name", CASES)
def test_who_looks_at_a_run_with_it_is_told_so(name: str, rows: str, tmp_path: Path, sfnode: Run) -> None:
    case, sound = CASES[name], build({"model": str(model_folder("opt")), "preset": "sst2", "train": rows})
    folder = case.make(tmp_path / "model")
    hostile_model: dict[str, Any] = {"source": str(folder), "digest": model_files.digest(folder)}
    run = sound.model_copy(update={"model": sound.model.model_copy(update=hostile_model)})
    Path("run.toml").write_text(run.to_toml())
    ended = sfnode("doctor", "--run", "run.toml", "--ntp", "none").failed()
    shown(case, ended.out + ended.err)
    assert "a trainer would not start" in ended.out
