"""Files of a run's public data: found wherever they lie, by what is in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sfnode.errors import Code, UserError
from sfnode.manifest.sections import Data, DataRole
from sfnode.manifest.task import Task
from sfnode.tasks import dataset, prompts, public_files
from sfnode.tasks.presets import PRESETS
from sfnode.tasks.public_files import NOWHERE, Places
from tests.refusals import refused

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


def test_a_file_is_found_by_its_digest_by_its_name_and_where_its_owner_says(tmp_path: Path) -> None:
    beside = tmp_path / "beside"
    data = run_data(beside)
    assert local(data, folders=(beside,)) == str(beside / "rows.tsv")
    kept = public_files.path_in(tmp_path / "kept", data, "train")
    public_files.keep(beside / "rows.tsv", kept, data.digests["train"])
    assert local(data, folders=(kept.parent,)) == str(kept)
    mine = tmp_path / "mine.tsv"
    mine.write_text(ROWS)
    assert local(data, named={"train": mine}) == str(mine)
    assert dataset.training_rows(data, TEXT, Places((beside,))) == [{"text": "once upon a time"}]


def local(data: Data, **places: Any) -> str:
    return public_files.local(data, "train", Places(**places))


def test_other_rows_are_refused_and_missing_ones_are_named(tmp_path: Path, home: Path) -> None:
    data = run_data(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=r"training data, rows\.tsv") as caught:
        dataset.training_rows(data, TEXT)
    assert caught.value.code is Code.DATA_NOT_FOUND
    (home / "rows.tsv").write_text(ROWS + "and one more\n")
    with refused(Code.DATA_DIFFERS, "has changed since"):
        dataset.training_rows(data, TEXT, Places((home,)))


def test_test_and_validation_rows_are_pinned_too(tmp_path: Path, home: Path) -> None:
    data = run_data(tmp_path / "beside")
    held_out = Data(test="rows.tsv", validation="others.tsv", digests={"test": data.digests["train"]})
    assert dataset.held_out_rows(held_out, TEXT, "test", places=Places((tmp_path / "beside",)))
    assert held_out.testing_as_training() == data
    (home / "rows.tsv").write_text("text\nx\n")
    with refused(Code.DATA_DIFFERS):
        dataset.held_out_rows(held_out, TEXT, "test", places=Places((home,)))


# -- what a manifest names is a label ------------------------------------------------------------------


OUT_OF_IT = [
    "{home}/secret.tsv",
    "~/secret.tsv",
    "secret.tsv",
    "../home/secret.tsv",
    "beside/../../home/secret.tsv",
    "..\\home\\secret.tsv",
    "file://{home}/secret.tsv",
    "%2e%2e/home/secret.tsv",
    "/proc/self/environ",
    "{home}",
    "a" * 5_000 + ".tsv",
    "secret\0.tsv",
    "",
]


@pytest.mark.parametrize("source", OUT_OF_IT[:-1])
@pytest.mark.parametrize("role", public_files.ROLES)
def test_without_a_digest_no_file_is_opened_because_a_manifest_names_it(
    role: DataRole, source: str, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "secret.tsv").write_text(ROWS)
    monkeypatch.setenv("HOME", str(home))
    data = Data.model_validate({role: source.format(home=home)})
    for places in (NOWHERE, Places((tmp_path / "kept",)), Places((home,))):
        with pytest.raises(UserError) as caught:
            public_files.local(data, role, places)
        assert caught.value.code is Code.DATA_NOT_NAMED
        assert str(home) not in caught.value.what


@pytest.mark.parametrize("source", [one for one in OUT_OF_IT if one.endswith(".tsv")])
def test_with_a_digest_a_file_is_looked_for_in_folders_of_the_run_alone(
    source: str, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "secret.tsv").write_text(ROWS)
    monkeypatch.setenv("HOME", str(home))
    digest = public_files.digest_of(home / "secret.tsv")
    data = Data(train=source.format(home=home), digests={"train": digest})
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "secret.tsv").symlink_to(home / "secret.tsv")
    for places in (NOWHERE, Places((kept,))):
        assert public_files.find(data, "train", places) is None


@pytest.mark.parametrize("source", OUT_OF_IT)
def test_a_manifest_that_its_owner_gives_reads_files_of_its_own_folder(
    source: str, tmp_path: Path, home: Path
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "rows.tsv").write_text(ROWS)
    (home / "secret.tsv").write_text(ROWS)
    (own / "link.tsv").symlink_to(home / "secret.tsv")
    data = Data(train="rows.tsv", test=source.format(home=home), validation="link.tsv")
    assert public_files.beside(data, own).named == {"train": own / "rows.tsv"}


@pytest.mark.parametrize(
    "source", ["hf:text:train", "hf:pandas:train", "hf:/etc:train", "hf:../x:train", "hf:a/../b:train", "hf:"]
)
def test_what_is_no_name_on_the_hub_is_nothing(source: str, home: Path) -> None:
    (home / "text").mkdir()
    with refused(Code.DATA_NOT_NAMED):
        public_files.local(Data(train=source), "train", Places((home,)))


def test_names_on_the_hub_and_in_the_package_stay_what_they_are(home: Path) -> None:
    (home / "nyu-mll").mkdir()
    for source in ("hf:nyu-mll/glue:sst2:train", f"hf:nyu-mll/glue@{'ab' * 20}:train", "builtin:sums:train"):
        for places in (Places((home,)), Places(named={"train": home / "others.tsv"})):
            assert public_files.local(Data(train=source), "train", places) == source


def test_what_the_owner_of_a_machine_types_is_a_place() -> None:
    places = public_files.typed(Data(train="rows.tsv", test="~/rows.csv"))
    assert places.named == {"train": Path("rows.tsv"), "test": Path("~/rows.csv")}


# -- copies --------------------------------------------------------------------------------------------


def test_a_file_that_is_larger_than_nodes_give_each_other_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = run_data(tmp_path)
    monkeypatch.setattr(public_files, "MAX_DATA", len(ROWS) - 1)
    assert public_files.digest_of(tmp_path / "rows.tsv") == ""
    assert public_files.find(data, "train", Places((tmp_path,))) is None


def test_a_copy_is_complete_or_not_there(tmp_path: Path) -> None:
    data = run_data(tmp_path)
    kept = public_files.path_in(tmp_path / "kept", data, "train")
    with pytest.raises(UserError, match="while it was copied"):
        public_files.keep(tmp_path / "rows.tsv", kept, "00" * 32)
    assert list(kept.parent.iterdir()) == []


def test_a_folder_gets_the_files_that_another_has(tmp_path: Path) -> None:
    """As a local swarm and a fork bring them along with their manifest."""
    data = run_data(tmp_path / "old")
    public_files.bring(data, Places((tmp_path / "old",)), tmp_path / "new")
    assert public_files.path_in(tmp_path / "new", data, "train").read_text() == ROWS
    public_files.bring(data, Places((tmp_path / "new",)), tmp_path / "new")  # it has them already
    with pytest.raises(UserError, match="not on this machine"):
        public_files.bring(data, NOWHERE, tmp_path / "other")


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
