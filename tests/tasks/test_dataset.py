"""Rows come out alike whatever the format; what is wrong with them is said with the file and the line."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import datasets  # type: ignore[import-untyped]
import pytest
from huggingface_hub import constants
from hypothesis import given
from hypothesis import strategies as st

from sfnode import hub
from sfnode.errors import Code, UserError
from sfnode.manifest.sections import Data
from sfnode.manifest.task import Task
from sfnode.tasks.dataset import Row, held_out_rows, load_rows, select, shard, training_rows
from sfprotocol.model_listing import MAX_DATA

SST2 = Path(__file__).parents[3] / "shared" / "data" / "sst2"
VECTORS = Path(__file__).parents[2] / "protocol" / "vectors"
TASK = Task(kind="classification", template="{sentence} It was", verbalizer={"0": "bad", "1": "good"})
ROWS = [
    {"sentence": "a fine film", "label": 1},
    {"sentence": 'the "plot" , such as it is', "label": 0},
    {"sentence": "não", "label": 0},
]
HUB_FORM = "hf:NAME[:CONFIG]:SPLIT"


def write_tsv(path: Path) -> None:
    lines = ["sentence\tlabel", *(f"{row['sentence']}\t{row['label']}" for row in ROWS)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_csv(path: Path) -> None:
    quoted = [str(row["sentence"]).replace('"', '""') for row in ROWS]
    lines = [f'"{text}",{row["label"]}' for text, row in zip(quoted, ROWS, strict=True)]
    path.write_text("\n".join(["sentence,label", *lines]), encoding="utf-8-sig")


def write_jsonl(path: Path) -> None:
    path.write_text("\n\n".join(json.dumps(row) for row in ROWS), encoding="utf-8")


def write_parquet(path: Path) -> None:
    datasets.Dataset.from_list(ROWS).to_parquet(path)


@pytest.mark.parametrize("write", [write_tsv, write_csv, write_jsonl, write_parquet])
def test_every_format_gives_the_same_rows(tmp_path: Path, write: Callable[[Path], None]) -> None:
    file = tmp_path / f"rows.{write.__name__.removeprefix('write_')}"
    write(file)
    rows = load_rows(str(file), TASK)
    assert [(row["sentence"], int(row["label"])) for row in rows] == [tuple(row.values()) for row in ROWS]


def test_the_hub_is_read_through_the_datasets_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "home").mkdir()
    write_jsonl(tmp_path / "home" / "test.jsonl")
    assert load_rows(f"hf:{tmp_path / 'home'}:test", TASK) == ROWS  # the library takes a folder for a name


class Announced:
    """A data set of the hub that the library would download, with the sizes that the hub states."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path, *paths: str, **sizes: int) -> None:
        self.config = self
        self.data_files = {"train": list(paths)}
        self.cache_dir = str(folder / "cache")
        self.downloaded = False
        monkeypatch.setattr(datasets, "load_dataset_builder", lambda *_: self)
        files = [hub.HubFile(f"{name}.parquet", size, cached=False) for name, size in sizes.items()]
        monkeypatch.setattr(hub, "offered", lambda *_, **__: files)

    def download_and_prepare(self) -> None:
        self.downloaded = True

    def as_dataset(self, split: str) -> list[dict[str, object]]:
        assert split == "train"
        return ROWS


THERE = "hf://datasets/nobody/set@0123abc/"


def test_data_of_the_hub_that_fit_are_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    announced = Announced(monkeypatch, tmp_path, THERE + "one.parquet", one=1000, other=1 << 50)
    assert load_rows("hf:nobody/set:train", TASK) == ROWS
    assert announced.downloaded


@pytest.mark.parametrize(
    ("paths", "sizes"),
    [
        (["one.parquet"], {"one": MAX_DATA + 1}),
        (["one.parquet", "other.parquet"], {"one": MAX_DATA, "other": 1}),
        (["elsewhere.parquet"], {"one": 1}),
    ],
)
def test_data_of_the_hub_without_a_bound_are_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, paths: list[str], sizes: dict[str, int]
) -> None:
    announced = Announced(monkeypatch, tmp_path, *(THERE + path for path in paths), **sizes)
    with pytest.raises(UserError) as caught:
        load_rows("hf:nobody/set:train", TASK)
    assert caught.value.code == Code.DATA_TOO_LARGE
    assert not announced.downloaded


def test_data_that_the_hub_s_files_name_on_other_machines_are_not_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    announced = Announced(monkeypatch, tmp_path, "https://example.org/one.parquet", one=1)
    with pytest.raises(UserError) as caught:
        load_rows("hf:nobody/set:train", TASK)
    assert caught.value.code == Code.DATA_TOO_LARGE
    assert not announced.downloaded


def test_data_for_which_there_is_no_room_are_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    announced = Announced(monkeypatch, tmp_path, THERE + "one.parquet", one=1000)
    monkeypatch.setattr(hub, "SPARE_BYTES", shutil.disk_usage("/").total * 1000)
    with pytest.raises(UserError) as caught:
        load_rows("hf:nobody/set:train", TASK)
    assert caught.value.code == Code.DISK_FULL
    assert not announced.downloaded


@pytest.fixture
def unasked(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A hub that must not be asked, as it is known not to answer: the library would go on for 24 s."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        monkeypatch.setattr(datasets.config, "HF_ENDPOINT", f"http://127.0.0.1:{listener.getsockname()[1]}")
        monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(hub, "unreachable", lambda: "it does not answer")
        yield
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()


@pytest.mark.usefixtures("unasked")
def test_data_on_a_hub_that_is_silent_are_given_up_at_once() -> None:
    with pytest.raises(UserError, match="cannot load hf:nobody/set:train") as caught:
        load_rows("hf:nobody/set:train", TASK)
    assert caught.value.code == Code.DATA_NOT_FOUND


@pytest.mark.usefixtures("unasked")
def test_data_that_were_downloaded_before_serve_while_the_hub_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the layout of the library's own cache."""
    write_jsonl(tmp_path / "rows.jsonl")
    made = datasets.load_dataset_builder(
        "json", data_files={"test": str(tmp_path / "rows.jsonl")}, cache_dir=str(tmp_path / "made")
    )
    made.download_and_prepare()
    kept = Path(made.cache_dir)
    (kept / "json-test.arrow").rename(kept / "set-test.arrow")
    shutil.copytree(kept, tmp_path / "cache" / "nobody___set" / "default" / "0.0.0" / kept.name)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    assert load_rows("hf:nobody/set:test", TASK) == ROWS


def test_what_the_hub_cannot_give_is_an_error_that_names_it(tmp_path: Path) -> None:
    for source in (f"hf:{tmp_path}:test", f"hf:{tmp_path}:small:test", "hf:alone", "hf::train", "hf:a:b:c:d"):
        with pytest.raises(UserError) as caught:
            load_rows(source, TASK)
        assert caught.value.code == Code.DATA_NOT_FOUND
        assert source in caught.value.what


MALFORMED = {
    "columns.tsv": (b"sentence\tlabel\nfine\t1\nfine\t1\t0\n", "line 3", "3 columns where the header has 2"),
    "label.tsv": (b"sentence\tlabel\nfine\t1\n\nbad\t2\n", "line 4", "label '2'"),
    "field.tsv": (b"text\tlabel\nfine\t1\n", "line 2", "no 'sentence'"),
    "twice.tsv": (b"label\tlabel\n1\t1\n", "line 1", "twice"),
    "utf8.tsv": (b"sentence\tlabel\nfine\t1\ncaf\xe9\t1\n", "line 3", "not UTF-8"),
    "columns.csv": (b'sentence,label\n"one,\ntwo",1\nfine\n', "line 4", "1 columns"),
    "quote.csv": (b'sentence,label\nfine,1\n"open,1\n', "line 3", "unexpected end"),
    "label.csv": (b'sentence,label\n"one\ntwo",9\n', "line 2", "label '9'"),
    "json.jsonl": (b'{"sentence": "fine", "label": 1}\n{"sentence": \n', "line 2", "not JSON"),
    "object.jsonl": (b'["fine", 1]\n', "line 1", "not a JSON object"),
    "null.jsonl": (b'{"sentence": null, "label": 1}\n', "line 1", "no 'sentence'"),
    "field.jsonl": (b'\n{"sentence": "fine"}\n', "line 2", "no 'label'"),
    "nested.jsonl": (b'{"a":' * 100_000, "line 1", "not JSON"),
    "rows.parquet": (b"PAR1 and then nothing", "rows.parquet", "not a readable Parquet file"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_row_is_named_by_file_and_line(tmp_path: Path, name: str) -> None:
    content, line, wrong = MALFORMED[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError) as caught:
        load_rows(str(tmp_path / name), TASK)
    assert caught.value.code == Code.DATA_MALFORMED
    for part in (str(tmp_path / name), line, wrong):
        assert part in caught.value.what


SPOILT = "sentence\tlabel\nfine\t1\n\t0\nbad\t\nso\t0\nugly\t7\nfine\t1\t0\n"


def test_bad_rows_are_counted_and_the_first_three_are_shown(tmp_path: Path) -> None:
    file = tmp_path / "spoilt.tsv"
    file.write_text(SPOILT)
    with pytest.raises(UserError) as caught:
        load_rows(str(file), TASK)
    assert caught.value.code is Code.DATA_MALFORMED
    assert caught.value.what == (
        f"4 of the 6 rows of {file} are bad, the first ones: {file}, line 3: 'sentence' is empty; "
        f"{file}, line 4: 'label' is empty; {file}, line 6: the label '7' is none of the task's labels (0, 1)"
    )
    assert "--skip-bad-rows" in caught.value.fix


def test_bad_rows_may_be_left_out_which_the_log_says_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "spoilt.tsv"
    file.write_text(SPOILT)
    for _ in range(2):
        rows = load_rows(str(file), TASK, skip_bad=True)
        assert rows == [{"sentence": "fine", "label": "1"}, {"sentence": "so", "label": "0"}]
    (said,) = caplog.messages
    assert said.startswith(
        f"left out with --skip-bad-rows: 4 of the 6 rows of {file} are bad, the first ones: "
    )


def test_where_all_rows_are_bad_there_is_nothing_left(tmp_path: Path) -> None:
    (tmp_path / "spoilt.jsonl").write_text("[]\n{}\nnull\n")
    with pytest.raises(UserError, match="has no rows"):
        load_rows(str(tmp_path / "spoilt.jsonl"), TASK, skip_bad=True)


@pytest.mark.parametrize("content", [b"", b"sentence\tlabel\n", b"\n\n"])
def test_a_file_without_rows_is_an_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "empty.tsv").write_bytes(content)
    with pytest.raises(UserError, match="has no rows"):
        load_rows(str(tmp_path / "empty.tsv"), TASK)


@pytest.mark.parametrize("source", ["absent.tsv", "rows.txt", ".", "builtin:poems:train", "builtin:reviews"])
def test_a_source_that_is_not_there_is_an_error_with_the_forms_that_sources_take(source: str) -> None:
    with pytest.raises(UserError) as caught:
        load_rows(source, TASK)
    assert caught.value.code == Code.DATA_NOT_FOUND
    assert source in caught.value.what
    assert HUB_FORM in caught.value.fix


@pytest.fixture(scope="module")
def hundred(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file of 100 rows whose sentence n has n words."""
    file = tmp_path_factory.mktemp("data") / "hundred.jsonl"
    rows = [{"sentence": " ".join(["word"] * n), "label": n % 2} for n in range(1, 101)]
    file.write_text("\n".join(json.dumps(row) for row in rows))
    return str(file)


@given(limit=st.integers(1, 120))
def test_a_limit_selects_the_same_rows_everywhere_and_keeps_their_order(hundred: str, limit: int) -> None:
    rows = load_rows(hundred, TASK)
    some = load_rows(hundred, TASK, limit=limit)
    assert len(some) == min(limit, 100)
    assert some == [row for row in rows if row in some]
    assert some == load_rows(hundred, TASK, limit=limit)


def test_the_selection_is_pinned_because_every_node_must_make_it(hundred: str) -> None:
    assert lengths(load_rows(hundred, TASK, limit=6)) == [26, 41, 58, 72, 84, 96]


def lengths(rows: list[Row]) -> list[int]:
    """The rows of the file, by number from 0."""
    return [len(row["sentence"].split()) - 1 for row in rows]


@given(limit=st.integers(0, 99))
def test_every_training_row_either_trains_or_validates(hundred: str, limit: int) -> None:
    data = Data(train=hundred, validation_limit=limit)
    training = lengths(training_rows(data, TASK))
    validation = lengths(held_out_rows(data, TASK, "validation")) if limit else []
    assert len(validation) == limit
    assert sorted(training + validation) == list(range(100))
    assert training == sorted(training)
    assert validation == sorted(validation)


@pytest.mark.parametrize(
    "vector",
    json.loads((VECTORS / "manifest.json").read_text())["row_selections"],
    ids=lambda v: f"{v['purpose']}, {v['limit']} of {v['rows']}",
)
def test_rows_are_chosen_as_the_vectors_say(tmp_path: Path, vector: dict[str, Any]) -> None:
    count, limit = vector["rows"], vector["limit"]
    if vector["purpose"] == "sfnode row selection":
        chosen: list[Any] = select([{"n": n} for n in range(count)], limit)
    else:
        task = Task(kind="text", template="{n}")
        file = tmp_path / "rows.jsonl"
        file.write_text("\n".join(json.dumps({"n": n}) for n in range(count)))
        chosen = held_out_rows(Data(train=str(file), validation_limit=limit), task, "validation")
    assert [row["n"] for row in chosen] == vector["chosen"]


def test_validation_rows_are_those_of_the_training_rows_that_the_manifest_leaves(hundred: str) -> None:
    data = Data(train=hundred, train_limit=40, train_min_words=21, validation_limit=15)
    left = load_rows(hundred, TASK, limit=40, min_words=21)
    validation = held_out_rows(data, TASK, "validation")
    assert len(validation) == 15
    assert [row for row in left if row not in validation] == training_rows(data, TASK)


def test_validation_rows_of_a_file_of_their_own_leave_the_training_rows_alone(
    hundred: str, tmp_path: Path
) -> None:
    file = tmp_path / "rows.tsv"
    write_tsv(file)
    data = Data(train=hundred, validation=str(file), validation_limit=2)
    assert len(training_rows(data, TASK)) == 100
    assert held_out_rows(data, TASK, "validation") == load_rows(str(file), TASK, limit=2)
    assert len(held_out_rows(data, TASK, "validation", limit=3)) == 3


def test_fewer_validation_rows_may_be_asked_for(hundred: str) -> None:
    data = Data(train=hundred, validation_limit=30)
    some, everything = held_out_rows(data, TASK, "validation", 7), held_out_rows(data, TASK, "validation")
    assert len(some) == 7
    assert all(row in everything for row in some)


@pytest.mark.parametrize("limit", [100, 1000])
def test_rows_that_all_validate_leave_nothing_to_train_on(hundred: str, limit: int) -> None:
    data = Data(train=hundred, validation_limit=limit)
    for load in (lambda: training_rows(data, TASK), lambda: held_out_rows(data, TASK, "validation")):
        with pytest.raises(UserError, match="all of them would be validation rows") as caught:
            load()
        assert caught.value.code is Code.DATA_MALFORMED


@pytest.mark.parametrize("which", ["test", "validation"])
def test_rows_that_a_run_does_not_have_are_missed_by_name(
    hundred: str, which: Literal["test", "validation"]
) -> None:
    with pytest.raises(UserError, match=f"no {which} data") as caught:
        held_out_rows(Data(train=hundred), TASK, which)
    assert caught.value.code is Code.DATA_NEEDED


def test_short_rows_are_left_out_before_the_limit_counts(hundred: str) -> None:
    rows = load_rows(hundred, TASK, limit=30, min_words=71)
    assert [len(row["sentence"].split()) for row in rows] == list(range(71, 101))
    with pytest.raises(UserError, match="no rows of at least 101 words"):
        load_rows(hundred, TASK, min_words=101)


@given(count=st.integers(1, 40), of=st.integers(1, 40))
def test_shards_share_out_every_row_once_and_evenly(count: int, of: int) -> None:
    rows = [{"n": n} for n in range(count)]
    if of > count:
        with pytest.raises(UserError, match="cannot be split"):
            shard(rows, 0, of)
        return
    parts = [shard(rows, index, of) for index in range(of)]
    assert sorted(row["n"] for part in parts for row in part) == list(range(count))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize("index", [-1, 3])
def test_a_shard_that_does_not_exist_is_an_error(index: int) -> None:
    with pytest.raises(UserError, match="no shard"):
        shard([{"n": 1}] * 9, index, 3)


@pytest.mark.skipif(not SST2.is_dir(), reason="needs ../shared/data/sst2")
def test_the_stanford_sentiment_treebank_reads_whole() -> None:
    assert len(load_rows(str(SST2 / "test.tsv"), TASK)) == 872
    assert len(load_rows(str(SST2 / "train.tsv"), TASK, limit=1024, min_words=4)) == 1024
