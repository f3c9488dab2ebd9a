"""Rows come out alike whatever the format; what is wrong with them is said with the file and the line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pyarrow  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet  # type: ignore[import-untyped]

from sfnode import hub
from sfnode.errors import Code, UserError
from sfnode.manifest.sections import Data
from sfnode.manifest.task import Task
from sfnode.tasks import dataset, hub_rows
from sfnode.tasks.dataset import HeldOut, Row, load_rows, select, shard
from sfnode.tasks.public_files import typed
from sfprotocol.model_listing import MAX_DATA
from tests.hub_server import REVISION, Offer, Offering, offering
from tests.refusals import refused

__all__ = ["offering"]

SST2 = Path(__file__).parents[3] / "shared" / "data" / "sst2"
VECTORS = Path(__file__).parents[2] / "protocol" / "vectors"
TASK = Task(kind="classification", template="{sentence} It was", verbalizer={"0": "bad", "1": "good"})
ROWS = [
    {"sentence": "a fine film", "label": 1},
    {"sentence": 'the "plot" , such as it is', "label": 0},
    {"sentence": "não", "label": 0},
]
HUB_FORM = "hf:OWNER/NAME[:CONFIG]:SPLIT"


def training_rows(data: Data, task: Task) -> list[Row]:
    """Training rows of sources that are typed here."""
    return dataset.training_rows(data, task, typed(data))


def held_out_rows(data: Data, task: Task, which: HeldOut, limit: int = 0) -> list[Row]:
    return dataset.held_out_rows(data, task, which, limit, typed(data))


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
    parquet.write_table(pyarrow.Table.from_pylist(ROWS), path)


@pytest.mark.parametrize("write", [write_tsv, write_csv, write_jsonl, write_parquet])
def test_every_format_gives_the_same_rows(tmp_path: Path, write: Callable[[Path], None]) -> None:
    file = tmp_path / f"rows.{write.__name__.removeprefix('write_')}"
    write(file)
    rows = load_rows(str(file), TASK)
    assert [(row["sentence"], int(row["label"])) for row in rows] == [tuple(row.values()) for row in ROWS]


# -- data sets of the hub -----------------------------------------------------------------------------


def written(write: Callable[[Path], None], folder: Path) -> Offer:
    """What a hub sends of a file in a format."""
    file = folder / f"rows.{write.__name__.removeprefix('write_')}"
    write(file)
    return Offer(file.stat().st_size, file.read_bytes())


@pytest.fixture
def rows_of(tmp_path: Path) -> Callable[[Callable[[Path], None]], Offer]:
    return lambda write: written(write, tmp_path)


def write_json(path: Path) -> None:
    path.write_text(json.dumps(ROWS), encoding="utf-8")


RowsOf = Callable[[Callable[[Path], None]], Offer]


@pytest.mark.parametrize("write", [write_tsv, write_csv, write_jsonl, write_json, write_parquet])
def test_a_split_on_the_hub_is_read_from_its_files(
    write: Callable[[Path], None], offering: Offering, rows_of: RowsOf
) -> None:
    kind = write.__name__.removeprefix("write_")
    offering(
        {
            f"data/test.{kind}": rows_of(write),
            f"data/train.{kind}": Offer(1, b"x"),
            "loader.py": Offer(1, b"x"),
        }
    )
    found = load_rows("hf:nobody/set:test", TASK)
    assert [(row["sentence"], int(row["label"])) for row in found] == [tuple(row.values()) for row in ROWS]


def test_only_the_files_of_the_split_are_fetched_and_nothing_that_runs(
    offering: Offering, rows_of: RowsOf
) -> None:
    made = offering(
        {name: rows_of(write_jsonl) for name in ("test.jsonl", "train.jsonl")}
        | {name: Offer(1, b"x") for name in ("set.py", "test.pkl", "test.parquet.py")}
    )
    assert load_rows("hf:nobody/set:test", TASK) == ROWS
    assert set(made.sent) == {"test.jsonl"}


FILES = {
    "data/train-00000-of-00002.parquet": ("", "train"),
    "data/train-00001-of-00002.parquet": ("", "train"),
    "data/validation_matched-00000-of-00001.parquet": ("", "validation_matched"),
    "data/validation_mismatched-00000-of-00001.parquet": ("", "validation_mismatched"),
    "sst2/train-00000-of-00001.parquet": ("sst2", "train"),
    "sst2/test-00000-of-00001.parquet": ("sst2", "test"),
    "en/dev.jsonl": ("en", "dev"),
    "de.dev.csv": ("de", "dev"),
    "default/partial/0000.parquet": ("default", "partial"),
}


@pytest.mark.parametrize(("config", "split"), sorted(set(FILES.values()) - {("", "train")}))
def test_files_of_a_split_are_told_by_their_names(config: str, split: str) -> None:
    wanted = [name for name, of in FILES.items() if of == (config, split)]
    assert hub_rows.choose(sorted(FILES), config, split) == wanted


def test_a_file_that_names_no_split_is_for_training() -> None:
    assert hub_rows.choose(["README.md", "dolly.jsonl"], "", "train") == ["dolly.jsonl"]
    assert hub_rows.choose(["README.md", "dolly.jsonl"], "", "test") == []
    assert hub_rows.choose(["a/train.csv", "a/train.parquet"], "", "train") == ["a/train.parquet"]


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (["en/train.csv", "de/train.csv"], "several configurations, such as de, en"),
        (["train-00000-of-00002.parquet"], "1 of 2 files"),
        (["train-00000-of-00002.parquet", "train-00001-of-00003.parquet"], "2 of 3 files"),
    ],
)
def test_what_may_be_a_part_of_a_split_is_not_taken_for_it(names: list[str], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        hub_rows.choose(sorted(names), "", "train")


def test_a_run_is_pinned_to_the_commit_of_now(offering: Offering, rows_of: RowsOf) -> None:
    made = offering({"test.jsonl": rows_of(write_jsonl)})
    source = hub_rows.pinned("hf:nobody/set:test")
    assert source == f"hf:nobody/set@{REVISION}:test"
    assert load_rows(source, TASK) == ROWS
    assert any(f"/datasets/nobody/set/revision/{REVISION}" in path for path in made.asked)
    assert hub_rows.pinned(source) == source


@pytest.mark.parametrize("folder", ["text", "pandas", "nobody/set"])
def test_a_name_on_the_hub_is_no_folder_here(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offering: Offering
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / folder).mkdir(parents=True)
    write_jsonl(tmp_path / folder / "train.jsonl")
    offering({})
    with refused(Code.DATA_NOT_FOUND):
        load_rows(f"hf:{folder}:train", TASK)


@pytest.mark.parametrize("sizes", [(MAX_DATA + 1, 0), (MAX_DATA, 1)])
def test_data_of_the_hub_without_a_bound_are_not_begun(sizes: tuple[int, int], offering: Offering) -> None:
    made = offering({f"train-0000{n}-of-00002.csv": Offer(size, b"") for n, size in enumerate(sizes)})
    with refused(Code.DATA_TOO_LARGE):
        load_rows("hf:nobody/set:train", TASK)
    assert not made.sent


def test_data_for_which_there_is_no_room_are_not_begun(
    offering: Offering, rows_of: RowsOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = offering({"train.jsonl": rows_of(write_jsonl)})
    monkeypatch.setattr(hub, "SPARE_BYTES", shutil.disk_usage("/").total * 1000)
    with refused(Code.DISK_FULL):
        load_rows("hf:nobody/set:train", TASK)
    assert not made.sent


def test_data_on_a_hub_that_is_silent_are_given_up_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "unreachable", lambda: "it does not answer")
    with refused(Code.DATA_NOT_FOUND, "cannot load hf:nobody/set:train: it does not answer"):
        load_rows("hf:nobody/set:train", TASK)


def test_data_that_were_downloaded_before_serve_while_the_hub_is_silent(
    offering: Offering, rows_of: RowsOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    offering({"test.jsonl": rows_of(write_jsonl)})
    sources = ("hf:nobody/set:test", f"hf:nobody/set@{REVISION}:test")
    assert load_rows(sources[0], TASK) == ROWS
    monkeypatch.setattr(hub, "unreachable", lambda: "it does not answer")
    for source in sources:
        assert load_rows(source, TASK) == ROWS


def test_what_the_hub_cannot_give_is_an_error_that_names_it(tmp_path: Path) -> None:
    for source in (f"hf:{tmp_path}:test", f"hf:{tmp_path}:small:test", "hf:alone", "hf::train", "hf:a:b:c:d"):
        with refused(Code.DATA_NOT_FOUND, source):
            load_rows(source, TASK)


MALFORMED = {
    "columns.tsv": (b"sentence\tlabel\nfine\t1\nfine\t1\t0\n", "line 3", "3 columns where the header has 2"),
    "label.tsv": (b"sentence\tlabel\nfine\t1\n\nbad\t2\n", "line 4", "label '2'"),
    "field.tsv": (b"text\tlabel\nfine\t1\n", "line 2", "no 'sentence'"),
    "twice.tsv": (b"label\tlabel\n1\t1\n", "line 1", "twice"),
    "utf8.tsv": (b"sentence\tlabel\nfine\t1\ncaf\xe9\t1\n", "line 3", "not UTF-8"),
    "columns.csv": (b'sentence,label\n"one,\ntwo",1\nfine\n', "line 4", "1 column"),
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
    with refused(Code.DATA_MALFORMED, str(tmp_path / name), line, wrong):
        load_rows(str(tmp_path / name), TASK)


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
    with refused(Code.DATA_NOT_FOUND, source, fix=HUB_FORM):
        load_rows(source, TASK)


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
        with refused(Code.DATA_MALFORMED, "all of them would be validation rows"):
            load()


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


# -- what a model is measured on -------------------------------------------------------------------------

CLASSES = Task(kind="sequence-classification", template="{text}", verbalizer={"a": "a", "b": "b"})


def labelled(*counts: int) -> list[dict[str, str]]:
    return [
        {"text": f"{label} no. {n}", "label": label}
        for label, count in zip("ab", counts, strict=True)
        for n in range(count)
    ]


def test_each_class_has_its_share_of_the_rows_that_are_held_out() -> None:
    kept, held = dataset.hold_out(CLASSES, labelled(380, 8), 77)
    assert len(kept) + len(held) == 388
    assert dataset.rare(CLASSES, held) == {"b": 2}
    assert len(held) == 77


def test_a_class_of_two_rows_has_one_on_either_side_and_one_of_a_single_row_stays() -> None:
    for few, out in ((2, 1), (1, 0)):
        _, held = dataset.hold_out(CLASSES, labelled(380, few), 20)
        assert sum(row["label"] == "b" for row in held) == out


def test_equal_texts_stay_on_one_side_whatever_their_dress() -> None:
    rows = [
        {"text": f"{dress} {n}", "label": "ab"[n % 2]} for n in range(20) for dress in ("Hi", "hi ", "HI")
    ]
    kept, held = dataset.hold_out(CLASSES, rows, 12)
    assert len(held) == 12
    assert dataset.shared(CLASSES, kept, held) == 0


def test_where_too_few_texts_differ_they_are_parted_and_counted() -> None:
    rows = [{"text": f"text {n % 2}", "label": "ab"[n % 2]} for n in range(240)]
    kept, held = dataset.hold_out(CLASSES, rows, 48)
    assert len(held) == 48
    assert dataset.shared(CLASSES, kept, held) == 48


@pytest.mark.parametrize(
    ("task", "row", "same", "other"),
    [
        (Task(kind="completion", template="{q}", completion="{a}"), {"q": "Why", "a": "so"},
         {"q": "why ", "a": "no"}, {"q": "how", "a": "so"}),
        (Task(kind="text", template="{q}"), {"q": "Why not"}, {"q": "why  not"}, {"q": "how"}),
        (Task(kind="chat"),
         {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]},
         {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "hm"}]},
         {"messages": [{"role": "user", "content": "ha"}, {"role": "assistant", "content": "ho"}]}),
    ],
)  # fmt: skip
def test_texts_are_what_the_model_reads(task: Task, row: Any, same: Any, other: Any) -> None:
    assert dataset.shared(task, [row], [same, other]) == 1


def test_the_same_rows_are_held_out_whoever_asks() -> None:
    rows = labelled(50, 50)
    assert dataset.hold_out(CLASSES, rows, 20) == dataset.hold_out(CLASSES, list(rows), 20)
