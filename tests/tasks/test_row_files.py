"""Tests of files with rows: rows are read as they were written, or refused with reason and place."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import csv as arrow_csv
from pyarrow import parquet

from sfnode.errors import Code, UserError
from sfnode.manifest.sections import is_file
from sfnode.manifest.task import Task
from sfnode.tasks.dataset import load_rows
from sfnode.tasks.row_files import dialect

TASK = Task(kind="classification", template="{text} was", verbalizer={"0": "bad", "1": "good"})
Rows = list[dict[str, str]]
Writer = Callable[[Path, Rows], object]


def labelled(*texts: str) -> Rows:
    return [{"text": text, "label": str(n % 2)} for n, text in enumerate(texts)]


PLAIN = labelled(
    "a fine film", "não", " spaced ", "5,5; or 6", "\U0001f642 \u2028 \x00", "\\n \\t \\", "'so'"
)
QUOTES = labelled('the "plot", such as it is', '"Casablanca"', '"', 'say ""no""', "fine", 'a "')
LINES = labelled("one\ttab", "two\nlines", "three\r\nlines", 'and a "quote"\n', "fine")
LONG = labelled("word " * 40_000, "short")
"""Text of 200,000 characters, more than the default limit of the module csv."""


def read(file: Path) -> Rows:
    return [{name: str(row[name]) for name in ("text", "label")} for row in load_rows(str(file), TASK)]


def refused(file: Path) -> str:
    """Return the error for a file that cannot be read."""
    with pytest.raises(UserError) as caught:
        load_rows(str(file), TASK)
    assert caught.value.code is Code.DATA_MALFORMED
    assert str(file) in caught.value.what
    return caught.value.what


def outcome(file: Path) -> Rows | str:
    """Return the rows of a file, or its error."""
    try:
        return read(file)
    except UserError:
        return refused(file)


# -- tables: the module csv, pandas and pyarrow in all their dialects ------------------------------------


def by_csv(dialect: str, **how: Any) -> Writer:
    def write(path: Path, rows: Rows) -> None:
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, ["text", "label"], dialect=dialect, **how)
            writer.writeheader()
            writer.writerows(rows)

    return write


def by_pandas(**how: Any) -> Writer:
    return lambda path, rows: pandas.DataFrame(rows).to_csv(path, **{"index": False} | how)


def by_arrow(**how: Any) -> Writer:
    return lambda path, rows: arrow_csv.write_csv(
        pa.Table.from_pylist(rows), path, arrow_csv.WriteOptions(**how)
    )


TABLES: dict[str, Writer] = {
    **{f"csv, {name}": by_csv(name) for name in csv.list_dialects()},
    **{f"csv, {mark!r}": by_csv("excel", delimiter=mark) for mark in ",;\t"},
    "csv, all in quotes, semicolons": by_csv("excel", delimiter=";", quoting=csv.QUOTE_ALL),
    "csv, texts in quotes, tabs": by_csv("excel-tab", quoting=csv.QUOTE_NONNUMERIC),
    **{f"pandas, {mark!r}": by_pandas(sep=mark) for mark in ",;\t"},
    "pandas, with an index": by_pandas(index=True),
    "pandas, for Excel": by_pandas(encoding="utf-8-sig", lineterminator="\r\n"),
    "pandas, all in quotes, tabs": by_pandas(sep="\t", quoting=csv.QUOTE_ALL),
    **{f"pyarrow, {mark!r}": by_arrow(delimiter=mark) for mark in ",;\t"},
    "pyarrow, all in quotes": by_arrow(quoting_style="all_valid"),
}
KNOWN = {"plain": PLAIN, "quotes": QUOTES, "lines": LINES, "long": LONG}


@pytest.mark.parametrize("known", KNOWN)
@pytest.mark.parametrize("writer", TABLES)
def test_a_csv_of_any_dialect_is_read(writer: str, known: str, tmp_path: Path) -> None:
    for name in ("rows.csv", "ROWS.CSV"):
        TABLES[writer](tmp_path / name, KNOWN[known])
        assert read(tmp_path / name) == KNOWN[known]


@pytest.mark.parametrize("known", KNOWN)
@pytest.mark.parametrize("writer", [name for name in TABLES if "tab" in name or "t'" in name])
def test_a_tsv_of_any_dialect_is_read_unless_texts_have_tabs_or_lines(
    writer: str, known: str, tmp_path: Path
) -> None:
    file = tmp_path / "rows.Tsv"
    TABLES[writer](file, KNOWN[known])
    if known == "lines":
        assert "double quotes enclose columns with tabs or ends of lines" in refused(file)
        assert ", line " in refused(file)
    else:
        assert read(file) == KNOWN[known]


def bare(path: Path, rows: Rows) -> None:
    """Write a table as GLUE does, without quoting anything."""
    path.write_text("\n".join(["text\tlabel", *(f"{row['text']}\t{row['label']}" for row in rows)]), "utf-8")


@pytest.mark.parametrize("rows", [PLAIN, QUOTES, LONG])
def test_bare_quotes_in_a_tsv_are_text(rows: Rows, tmp_path: Path) -> None:
    bare(tmp_path / "rows.tsv", rows)
    assert read(tmp_path / "rows.tsv") == rows


def test_a_tsv_in_which_quotes_are_now_text_and_now_not_is_refused(tmp_path: Path) -> None:
    bare(tmp_path / "rows.tsv", labelled("fine", '"say ""no"""', 'the "plot"'))
    assert "line 3: double quotes enclose some columns, and are text in others" in refused(
        tmp_path / "rows.tsv"
    )


def test_a_tsv_of_one_column_with_lines_in_quotes_is_not_taken_for_more_rows(tmp_path: Path) -> None:
    (tmp_path / "rows.tsv").write_text('text\nfine\n"two\nlines"\n')
    with pytest.raises(UserError, match="line 3: double quotes enclose columns with tabs or ends of lines"):
        load_rows(str(tmp_path / "rows.tsv"), Task(kind="text", template="{text}"))


# -- JSON and Parquet ------------------------------------------------------------------------------------


@pytest.mark.parametrize("known", KNOWN)
@pytest.mark.parametrize(
    "write",
    [
        lambda path, rows: path.write_text("\n".join(map(json.dumps, rows))),
        lambda path, rows: path.write_text(
            "\r\n\r\n".join(json.dumps(row, ensure_ascii=False) for row in rows), "utf-8-sig", newline=""
        ),
        lambda path, rows: pandas.DataFrame(rows).to_json(path, orient="records", lines=True),
        lambda path, rows: pandas.DataFrame(rows).to_json(
            path, orient="records", lines=True, force_ascii=False
        ),
    ],
    ids=["json", "json, not ASCII", "pandas", "pandas, not ASCII"],
)
def test_lines_of_json_are_read(write: Writer, known: str, tmp_path: Path) -> None:
    write(tmp_path / "rows.JSONL", KNOWN[known])
    assert read(tmp_path / "rows.JSONL") == KNOWN[known]


TEXTS = [
    pa.string(),
    pa.large_string(),
    pa.binary(),
    pa.large_binary(),
    pa.dictionary(pa.int8(), pa.string()),
]


@pytest.mark.parametrize("known", KNOWN)
@pytest.mark.parametrize("kind", TEXTS, ids=str)
def test_parquet_is_read_whether_its_texts_are_strings_or_bytes(
    kind: pa.DataType, known: str, tmp_path: Path
) -> None:
    rows = KNOWN[known]
    columns = {
        "text": pa.array([row["text"] for row in rows]).cast(kind),
        "label": pa.array([int(row["label"]) for row in rows]),
        "image": pa.array([b"\xff\xd8"] * len(rows)),  # no text, and no part of the task
        "seen": pa.array([date(2020, 1, 1)] * len(rows)),
    }
    parquet.write_table(pa.table(columns), tmp_path / "rows.Parquet")
    assert read(tmp_path / "rows.Parquet") == rows
    pandas.DataFrame(rows).to_parquet(tmp_path / "pandas.parquet")
    assert read(tmp_path / "pandas.parquet") == rows


def test_bytes_within_a_conversation_are_text_too(tmp_path: Path) -> None:
    said = [[{"role": b"user", "content": b"2+2?"}, {"role": b"assistant", "content": b"4"}]]
    parquet.write_table(pa.table({"messages": pa.array(said)}), tmp_path / "rows.parquet")
    (row,) = load_rows(str(tmp_path / "rows.parquet"), Task(kind="chat"))
    assert row["messages"][1] == {"role": "assistant", "content": "4"}


def test_a_parquet_file_is_refused_by_the_row_that_python_cannot_hold(tmp_path: Path) -> None:
    texts = pa.array([b"fine", b"caf\xe9", b"so"])
    spoilt = pa.StringArray.from_buffers(3, texts.buffers()[1], texts.buffers()[2])
    parquet.write_table(pa.table({"text": spoilt, "label": [0, 1, 0]}), tmp_path / "rows.parquet")
    assert f"{tmp_path / 'rows.parquet'}, row 2: " in refused(tmp_path / "rows.parquet")


def test_a_column_name_that_occurs_twice_is_refused(tmp_path: Path) -> None:
    table = pa.table([pa.array(["a"]), pa.array(["b"])], names=["text", "text"])
    parquet.write_table(table, tmp_path / "rows.parquet")
    assert "a column name occurs twice" in refused(tmp_path / "rows.parquet")


# -- values that no prompt can say -----------------------------------------------------------------------

HALF = "fine \ud83d"
VALUES: list[tuple[Any, str]] = [
    (["a", "b"], "'text' is a list"),
    ([1, [2]], "'text' is a list"),
    ([], "'text' is a list"),
    ([True], "'text' is a list"),
    ([float("nan")], "'text' is no number: nan"),
    ({"a": 1}, "'text' is an object"),
    (float("nan"), "'text' is no number: nan"),
    (float("-inf"), "'text' is no number: -inf"),
    (b"caf\xe9", "'text' is bytes that are no text in UTF-8"),
    (date(2020, 1, 1), "'text' is a date"),
    (None, "no 'text'"),
    (" \t", "'text' is empty"),
    (b"", "'text' is empty"),
]


@pytest.mark.parametrize(("value", "wrong"), VALUES)
def test_what_is_no_text_number_or_boolean_is_refused_with_its_row(
    value: Any, wrong: str, tmp_path: Path
) -> None:
    file = tmp_path / "rows.parquet"
    if isinstance(value, list):
        file = tmp_path / "rows.jsonl"  # its lists may be of anything
        file.write_text("\n".join(json.dumps({"text": one, "label": 1}) for one in ("fine", value)))
    else:
        parquet.write_table(pa.table({"text": pa.array([value]), "label": [1]}), file)
    said = refused(file)
    assert wrong in said
    assert f"{file}, {'line 2' if isinstance(value, list) else 'row 1'}: " in said


@pytest.mark.parametrize(
    ("value", "text"),
    [(7, "7"), (0.5, "0.5"), (True, "True"), ([44, 19], "[44, 19]"), (Decimal("1.10"), "1.10")],
)
def test_numbers_booleans_and_lists_of_numbers_are_texts(value: Any, text: str, tmp_path: Path) -> None:
    """A list of numbers looks alike in JSON and in Python. Countdown's prompts have one."""
    parquet.write_table(pa.table({"text": pa.array([value]), "label": [1]}), tmp_path / "rows.parquet")
    assert read(tmp_path / "rows.parquet") == [{"text": text, "label": "1"}]


TURNS = [{"role": "user", "content": "why"}, {"role": "assistant", "content": "so"}]
HALVES: list[tuple[Task, dict[str, Any], str]] = [
    (TASK, {"text": HALF, "label": 1}, "'text'"),
    (TASK, {"text": "fine", "label": "\udc00"}, "'label'"),
    (Task(kind="text", template="{a} {b}"), {"a": "x", "b": HALF}, "'b'"),
    (Task(kind="completion", template="{a}", completion="{b}"), {"a": "x", "b": HALF}, "'b'"),
    (
        Task(kind="choice", template="{a}", completion="{candidate}", candidates_field="b"),
        {"a": "x", "b": ["y", HALF], "label": 0},
        "'b'",
    ),
    (
        Task(kind="choice", template="{a}", completion="{candidate}", candidates_field="b"),
        {"a": "x", "b": ["y", "z"], "label": ["y", HALF]},
        "'label'",
    ),
    (
        Task(kind="reward", template="{a}", verifier={"kind": "exact", "column": "b"}, answer_tokens=8),
        {"a": "x", "b": {"c": [HALF]}},
        "'b'",
    ),
    (Task(kind="chat"), {"messages": [TURNS[0], TURNS[1] | {"content": HALF}]}, "a message 2 whose content"),
    (Task(kind="chat"), {"messages": [TURNS[0] | {"role": HALF}, TURNS[1]]}, "a message 1 whose role"),
]


@pytest.mark.parametrize(("task", "row", "where"), HALVES)
def test_text_that_no_tokenizer_can_encode_is_refused_in_whatever_field_it_is(
    task: Task, row: dict[str, Any], where: str, tmp_path: Path
) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    with pytest.raises(UserError) as caught:
        load_rows(str(tmp_path / "rows.jsonl"), task)
    assert caught.value.code is Code.DATA_MALFORMED
    assert "rows.jsonl, line 1: " in caught.value.what
    assert f"{where} has one half of a surrogate pair" in caught.value.what


def test_it_may_be_where_the_task_does_not_look(tmp_path: Path) -> None:
    """Two halves together are a character, and other columns are not checked."""
    (tmp_path / "rows.jsonl").write_text('{"text": "\\ud83d\\ude42", "label": 1, "id": "\\ud83d", "at": NaN}')
    assert read(tmp_path / "rows.jsonl") == [{"text": "\U0001f642", "label": "1"}]


# -- files that somebody has changed ---------------------------------------------------------------------

SAME: dict[str, Callable[[bytes], bytes]] = {
    "a byte order mark": lambda data: b"\xef\xbb\xbf" + data,
    "ends of lines of Windows": lambda data: data.replace(b"\n", b"\r\n"),
    "no end of the last line": lambda data: data.rstrip(b"\n"),
    "empty lines": lambda data: data.replace(b"\n", b"\n\n"),
}


@pytest.mark.parametrize("change", SAME)
@pytest.mark.parametrize("name", ["rows.csv", "rows.tsv", "rows.jsonl"])
def test_what_means_the_same_is_read_the_same(name: str, change: str, tmp_path: Path) -> None:
    for rows in (PLAIN, QUOTES):
        WRITERS[name](tmp_path / name, rows)
        (tmp_path / name).write_bytes(SAME[change]((tmp_path / name).read_bytes()))
        assert read(tmp_path / name) == rows


WRITERS: dict[str, Writer] = {
    "rows.csv": by_csv("unix", quoting=csv.QUOTE_MINIMAL),
    "rows.tsv": by_csv("unix", delimiter="\t", quoting=csv.QUOTE_MINIMAL),
    "bare.tsv": bare,
    "rows.jsonl": lambda path, rows: path.write_text("".join(json.dumps(row) + "\n" for row in rows)),
}
STRAY = ['"', ",", ";", "\t", "\n", "\r", "\\", "'", "{", "}", "\x00", "é", "\\ud83d", "NaN", "null", "[1]"]
texts = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zs"]), min_size=1, max_size=8)
stray = st.tuples(st.sampled_from(STRAY), st.floats(0, 1, exclude_max=True))


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(name=st.sampled_from([*WRITERS]), said=st.lists(texts, min_size=3, max_size=5), stray=stray)
def test_a_stray_character_spoils_one_row_or_the_file_is_refused(
    name: str, said: list[str], stray: tuple[str, float], tmp_path: Path
) -> None:
    """All other rows are unchanged."""
    file, rows = tmp_path / name, labelled('the "plot", so to say', *said)
    WRITERS[name](file, rows)
    content = file.read_bytes().decode()
    header = content.index("\n") + 1 if name != "rows.jsonl" else 0
    place = header + int(stray[1] * (len(content) - header))
    file.write_bytes((content[:place] + stray[0] + content[place:]).encode())
    found = outcome(file)
    if isinstance(found, str):
        assert f"{file}, line " in found
        return
    assert len(found) == len(rows)
    assert sum(one != other for one, other in zip(found, rows, strict=True)) <= 1


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    name=st.sampled_from([*WRITERS]),
    cut=st.integers(0, 80),
    end=st.integers(0, 80),
    byte=st.binary(max_size=3),
)
def test_whatever_is_cut_out_and_put_in_there_are_rows_or_a_numbered_error(
    name: str, cut: int, end: int, byte: bytes, tmp_path: Path
) -> None:
    file = tmp_path / name
    WRITERS[name](file, PLAIN + QUOTES)
    content = file.read_bytes()
    file.write_bytes(content[:cut] + byte + content[cut + end :])
    found = outcome(file)
    if not isinstance(found, str):
        assert all(row["text"].strip() and row["label"] in "01" for row in found)


@pytest.mark.parametrize("name", ["rows.csv", "rows.tsv", "rows.jsonl"])
def test_the_unicode_text_of_windows_is_called_by_its_name(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("text\tlabel\nfine\t1\n", encoding="utf-16")
    assert "line 1: not UTF-8 but UTF-16" in refused(tmp_path / name)


def test_a_file_is_data_that_nodes_share_whatever_the_case_of_its_name() -> None:
    assert is_file("rows.CSV")
    assert not is_file("rows.txt")


@pytest.mark.parametrize(
    ("content", "separator", "encoding"),
    [
        (b"text,label\n", ",", "utf-8"),
        (b"text\na, b\n", ",", "utf-8"),
        (b"sep=;\ntext;label\n", ";", "utf-8"),
        ("text|größe\n".encode("cp1252"), "|", "utf-8-sig"),
        ("text\tlabel\n".encode("utf-16"), "\t", "utf-8-sig"),
    ],
)
def test_an_answer_has_the_dialect_of_the_table(
    content: bytes, separator: str, encoding: str, tmp_path: Path
) -> None:
    (tmp_path / "rows.csv").write_bytes(content)
    assert dialect(str(tmp_path / "rows.csv")) == (separator, encoding)
