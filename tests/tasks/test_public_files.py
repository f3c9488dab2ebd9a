"""Files of a run's public data: found wherever they lie, by what is in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sfnode.errors import Code, UserError
from sfnode.manifest.sections import Data
from sfnode.manifest.task import Task
from sfnode.tasks import dataset, prompts, public_files
from sfnode.tasks.presets import PRESETS

ROWS = "text\nonce upon a time\n"
TEXT = Task(kind="text", template="{text}")
VECTOR = json.loads((Path(__file__).parents[2] / "protocol/vectors/sharing.json").read_text())["data"]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def run_data(folder: Path, text: str = ROWS) -> Data:
    """Data in a file that the folder has under its name."""
    folder.mkdir(exist_ok=True)
    (folder / "rows.tsv").write_text(text)
    digest = public_files.digest_of(folder / "rows.tsv")
    return Data(train="rows.tsv", digests={"train": digest})


def test_a_file_has_the_digest_of_the_specification(tmp_path: Path) -> None:
    file = tmp_path / "rows.tsv"
    file.write_text(VECTOR["file"])
    assert public_files.listing_of(file).hex() == VECTOR["listing"]
    assert public_files.digest_of(file) == VECTOR["digest"]


def test_a_file_is_found_by_its_digest_by_its_name_and_where_the_source_says(
    tmp_path: Path, home: Path
) -> None:
    beside = tmp_path / "beside"
    data = run_data(beside)
    assert public_files.local(data, "train", beside) == str(beside / "rows.tsv")
    kept = public_files.path_in(tmp_path / "kept", data, "train")
    public_files.keep(beside / "rows.tsv", kept, data.digests["train"])
    assert public_files.local(data, "train", kept.parent) == str(kept)
    absolute = data.model_copy(update={"train": str(beside / "rows.tsv")})
    assert public_files.local(absolute, "train") == str(beside / "rows.tsv")
    assert dataset.training_rows(data, TEXT, beside) == [{"text": "once upon a time"}]
    (home / "rows.tsv").write_text(ROWS)
    assert public_files.local(data, "train", tmp_path / "nothing") == "rows.tsv"


def test_other_rows_are_refused_and_missing_ones_are_named(tmp_path: Path, home: Path) -> None:
    data = run_data(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=r"training data, rows\.tsv") as caught:
        dataset.training_rows(data, TEXT)
    assert caught.value.code is Code.DATA_NOT_FOUND
    (home / "rows.tsv").write_text(ROWS + "and one more\n")
    with pytest.raises(UserError, match="has changed since") as caught:
        dataset.training_rows(data, TEXT)
    assert caught.value.code is Code.DATA_DIFFERS


def test_test_and_validation_rows_are_pinned_too(tmp_path: Path, home: Path) -> None:
    data = run_data(tmp_path / "beside")
    held_out = Data(test="rows.tsv", validation="others.tsv", digests={"test": data.digests["train"]})
    assert dataset.held_out_rows(held_out, TEXT, "test", folder=tmp_path / "beside")
    assert held_out.testing_as_training() == data
    (home / "rows.tsv").write_text("text\nx\n")
    with pytest.raises(UserError) as caught:
        dataset.held_out_rows(held_out, TEXT, "test")
    assert caught.value.code is Code.DATA_DIFFERS


def test_a_source_without_a_digest_is_read_where_it_says(home: Path) -> None:
    (home / "rows.tsv").write_text(ROWS)
    assert dataset.training_rows(Data(train="rows.tsv"), TEXT, home / "data")
    assert public_files.local(Data(train="hf:glue:sst2:train"), "train", home) == "hf:glue:sst2:train"


def test_a_file_that_is_larger_than_nodes_give_each_other_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = run_data(tmp_path)
    monkeypatch.setattr(public_files, "MAX_DATA", len(ROWS) - 1)
    assert public_files.digest_of(tmp_path / "rows.tsv") == ""
    assert public_files.find(data, "train", (tmp_path,)) is None


def test_a_copy_is_complete_or_not_there(tmp_path: Path) -> None:
    data = run_data(tmp_path)
    kept = public_files.path_in(tmp_path / "kept", data, "train")
    with pytest.raises(UserError, match="while it was copied"):
        public_files.keep(tmp_path / "rows.tsv", kept, "00" * 32)
    assert list(kept.parent.iterdir()) == []


def test_a_folder_gets_the_files_that_another_has(tmp_path: Path) -> None:
    """As a local swarm and a fork bring them along with their manifest."""
    data = run_data(tmp_path / "old")
    public_files.bring(data, tmp_path / "old", tmp_path / "new")
    assert public_files.path_in(tmp_path / "new", data, "train").read_text() == ROWS
    public_files.bring(data, None, tmp_path / "new")  # it has them already
    with pytest.raises(UserError, match="not on this machine"):
        public_files.bring(data, None, tmp_path / "other")


TASKS: dict[str, Task] = {name: preset.task for name, preset in PRESETS.items()} | {
    "chat": Task(kind="chat", messages_field="talk"),
    "completion": Task(kind="completion", template="{question|question} =", completion="{answer}"),
    "sequence-classification": Task(
        kind="sequence-classification", template="{a}{separator}{b}", verbalizer={"0": "no", "1": "yes"}
    ),
}


@pytest.mark.parametrize("name", TASKS)
def test_the_example_of_a_row_is_one(name: str, home: Path) -> None:
    """A volunteer who copies it has a file that the run takes."""
    task = TASKS[name]
    example: dict[str, Any] = prompts.example(task)
    assert prompts.problem(task, example) is None
    said = dataset.needed(task).fix
    assert all(field in said for field in prompts.fields(task))
    (home / "mine.jsonl").write_text(said[said.index("{") :])
    assert dataset.load_rows("mine.jsonl", task) == [example]
