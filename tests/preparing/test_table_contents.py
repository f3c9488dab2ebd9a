"""A table is read with all that is wrong with it, or it is said why it is none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sfnode.errors import Code, UserError
from sfnode.preparing.table_contents import DataTable, number, read_table
from sfnode.tasks.row_files import NOT_UTF_8
from tests.refusals import refused

ROWS = "Betreff;Text;Anzahl;Note\nBitte;Die Rechnung stimmt nicht;1;2,5\n;Wo bleibt mein Paket;2;3,5\n"


def table(folder: Path, content: str | bytes, name: str = "rows.csv") -> DataTable:
    file = folder / name
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_table(str(file))


@pytest.mark.parametrize("mark", [",", ";", "\t"])
@pytest.mark.parametrize("begin", [b"", b"\xef\xbb\xbf"])
def test_what_columns_hold_whatever_separates_them(mark: str, begin: bytes, tmp_path: Path) -> None:
    text = ROWS.replace(",", "." if mark == "," else ",").replace(";", mark)
    found = table(tmp_path, begin + text.encode())
    assert {name: (one.holds, one.filled) for name, one in found.columns.items()} == {
        "Betreff": ("texts", 1),
        "Text": ("texts", 2),
        "Anzahl": ("numbers", 2),
        "Note": ("numbers", 2),
    }
    assert (found.columns["Text"].words, found.columns["Text"].length) == (4.0, 22.5)
    assert (found.columns["Anzahl"].whole, found.columns["Note"].whole) == (True, False)


def test_rows_that_are_none_keep_their_places(tmp_path: Path) -> None:
    found = table(tmp_path, b'text,label\nfine,1\ncaf\xe9,0\n"two\nlines",1\nso\n\x81,1\n')
    wrong = [(one.place.rpartition(", ")[2], one.wrong) for one in found.placed if one.wrong]
    assert wrong == [
        (
            "line 3",
            "not UTF-8, in which the file has to be saved: as Windows-1252 or Latin-1 it reads 'café'",
        ),
        ("line 6", "1 column where the header has 2"),
        ("line 7", NOT_UTF_8),
    ]
    assert [one.row["text"] for one in found.placed if not one.wrong] == ["fine", "two\nlines"]


def test_lines_of_json_may_differ_in_what_they_have(tmp_path: Path) -> None:
    found = table(tmp_path, '{"a": "x", "b": [1]}\n{"a": true, "c": null}\nno\n', "rows.jsonl")
    assert {name: one.holds for name, one in found.columns.items()} == {
        "a": "texts",
        "b": "lists",
        "c": "nothing",
    }
    assert [bool(one.wrong) for one in found.placed] == [False, False, True]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("rows.csv", b"", "has no rows"),
        ("rows.csv", b"text,label\n", "has no rows"),
        ("rows.jsonl", b"\n\n", "has no rows"),
        ("rows.jsonl", b"[1, 2]\n", "line 1: not a JSON object"),
        ("rows.csv", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "line 1: no names of columns in UTF-8"),
        ("rows.tsv", b"\0\0\0\0", "line 1: no names of columns in UTF-8"),
        (
            *("rows.csv", "text,Gerät\na,1\n".encode("mac_roman")),
            "line 1: no names of columns in UTF-8: as Windows-1252 or Latin-1 it reads 'GerŠt'",
        ),
        ("rows.csv", b"Export of May;\ntext;label\na;1\n", "column 2 has no name, and 2 rows have something"),
        ("rows.csv", b"text,\nfine,good\npoor,bad\n", "column 2 has no name"),
        ("rows.csv", b"PK\x03\x04\x14\0", "a spreadsheet or an archive"),
        ("rows.csv", b'text,label\n"a,1\n', "line 2: unexpected end of data"),
        ("rows.csv", b"a fine film,1\na poor one,0\n", "line 1: '1' is a value and not the name"),
        ("rows.csv", b"good,fine\nbad,poor\ngood,ok\nbad,sad\ngood,so\n", "line 1: 'good' is a value"),
        ("rows.csv", b"once upon a time there was a king who slept\nand then\n", "is a value"),
        ("rows.csv", b"text,text\na,b\n", "a column name occurs twice"),
    ],
)
def test_what_is_no_table_is_refused_with_the_reason(
    name: str, content: bytes, says: str, tmp_path: Path
) -> None:
    with refused(Code.DATA_MALFORMED, says):
        table(tmp_path, content, name)


@pytest.mark.parametrize("header", [",text,label", "0,1,2"])
def test_names_as_pandas_writes_them_where_there_are_none_are_names(header: str, tmp_path: Path) -> None:
    found = table(tmp_path, f"{header}\n7,fine,1\n8,poor,0\n").columns
    assert list(found) == [name for name in header.split(",") if name]


@pytest.mark.parametrize("name", ["rows.xlsx", "ROWS.XLS", "rows.ods"])
def test_a_spreadsheet_has_to_be_exported(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Export the table as CSV in UTF-8"):
        table(tmp_path, b"PK\x03\x04", name)


def test_a_folder_is_no_table(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is a folder, and data are in a file"):
        read_table(str(tmp_path))


# -- what programs have written ------------------------------------------------------------------------

PLAIN = [{"text": "Das Gerät hängt; so", "label": "a"}, {"text": "café", "label": "b"}]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("rows.csv", "text;label\nDas Gerät hängt;a\ncafé;b\n".encode(), None),
        ("rows.csv", 'sep=;\r\ntext;label\r\n"Das Gerät hängt; so";a\r\ncafé;b\r\n'.encode(), "';'"),
        ("rows.csv", 'text;label\n"Das Gerät hängt; so";a\ncafé;b\n'.encode("cp1252"), "a word is 'Gerät'"),
        ("rows.csv", 'text;label\n"Das Gerät hängt; so";a\ncafé;b\n'.encode("utf-16"), "UTF-16"),
        ("rows.txt", "text\tlabel\nDas Gerät hängt; so\ta\ncafé\tb\n".encode("utf-16"), "UTF-16"),
        ("rows.csv", "text|label\nDas Gerät hängt; so|a\ncafé|b\n".encode(), "'|'"),
        ("rows.csv", 'text;label;;\n"Das Gerät hängt; so";a;;;;\n;;;\ncafé;b\n'.encode(), "1 empty rows"),
        ("rows.csv", " text \u00a0;label\u200b\nDas Gerät hängt, so;a\n".encode(), "as nodes read them"),
        ("rows.json", json.dumps(PLAIN).encode("utf-16"), "UTF-16"),
    ],
)
def test_the_dress_of_a_table_is_taken_off_and_told(
    name: str, content: bytes, said: str | None, tmp_path: Path
) -> None:
    found = table(tmp_path, content, name)
    assert list(found.columns) == ["text", "label"]
    rows = [one.row for one in found.placed if not one.wrong]
    assert [row["label"] for row in rows] == ["a", "b"][: len(rows)]
    assert rows[0]["text"] in ("Das Gerät hängt; so", "Das Gerät hängt, so") or said is None
    assert (said or "") in " ".join(found.dress)
    assert bool(found.dress) == (said is not None)


def test_a_place_is_that_of_the_file_whatever_stands_above_the_names(tmp_path: Path) -> None:
    found = table(tmp_path, "sep=;\ntext;label\nfine;a\nx\n")
    assert [one.place.rpartition(", ")[2] for one in found.placed] == ["line 3", "line 4"]


def test_a_column_of_many_values_has_them_all(tmp_path: Path) -> None:
    found = table(tmp_path, "text,n\n" + "".join(f"text number {n},{n}\n" for n in range(2_100)))
    assert len(found.columns["text"].values) == 2_100


def test_conversations_of_other_formats_have_the_names_of_roles_that_templates_have(tmp_path: Path) -> None:
    said = [{"from": "human", "value": "2+2?"}, {"from": "gpt", "value": "4"}]
    found = table(tmp_path, json.dumps({"id": "a1", "conversations": said}), "rows.jsonl")
    assert found.columns["conversations"].holds == "messages"
    (row,) = [one.row for one in found.placed]
    assert row["conversations"] == [
        {"role": "user", "content": "2+2?"},
        {"role": "assistant", "content": "4"},
    ]


@pytest.mark.parametrize("cell", ["12", "1,5", "1.234,50 €", "1,234.5", "12 %", "1\u202f234", "$3", "-7.25"])
def test_a_number_is_one_as_spreadsheets_show_it(cell: str) -> None:
    assert number(cell) is not None


@pytest.mark.parametrize("cell", ["nan", "inf", "1,2,3", "a1", "", "12 May"])
def test_other_cells_are_none(cell: str) -> None:
    assert number(cell) is None
