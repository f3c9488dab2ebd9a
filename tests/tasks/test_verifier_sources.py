"""Tests of sources of verifiers: names and files. Errors name the wrong key."""

from __future__ import annotations

from pathlib import Path

import pytest

from sfnode.errors import Code, UserError
from sfnode.tasks.verifying import MAX_BYTES, load
from sfnode.verifiers.specs import PRESETS

SUM = """
kind = "sum"
[[terms]]
weight = 1.0
verifier = { kind = "exact", column = "answer" }
"""


def test_a_verifier_has_a_name_or_is_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(SUM)
    (tmp_path / "own.json").write_text('{"kind": "length", "most": 9}')
    assert load("GSM8K") == PRESETS["gsm8k"]
    assert load(str(tmp_path / "own.toml"))["terms"][0]["verifier"] == {"kind": "exact", "column": "answer"}
    assert load(str(tmp_path / "own.json")) == {"kind": "length", "most": 9}


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("own.toml", "kind = ", "own.toml is not TOML"),
        ("own.json", "{", "own.json is not JSON"),
        ("own.json", "[" * 50_000, "own.json is not JSON"),
        ("own.json", "\udcff", "own.json is not JSON"),
        ("own.json", "[]", "own.json: "),
        ("own.toml", "", "own.toml: Unable to extract tag using discriminator 'kind'"),
        ("own.toml", 'kind = "python"', "tag 'python'"),
        ("own.toml", 'kind = "exact"', "column: Field required"),
        ("own.toml", 'kind = "exact"\ncolumn = "a"\nfuzzy = true', "fuzzy: Extra inputs"),
        ("own.toml", SUM.replace("1.0", "0.5"), "the weights of a sum add up to 1"),
        ("own.toml", SUM.replace("column", "colum"), "terms.0.verifier.column: Field required"),
        ("own.toml", "#" * (MAX_BYTES + 1), "more than"),
    ],
)
def test_one_that_cannot_be_read_is_an_error_that_says_where(
    tmp_path: Path, name: str, text: str, says: str
) -> None:
    (tmp_path / name).write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(UserError, match=r"task\.verifier") as caught:
        load(str(tmp_path / name))
    assert (caught.value.code, says in caught.value.what) == (Code.BAD_OPTION, True)


@pytest.mark.parametrize("source", ["gsm9k", "own.py", "missing.toml", ".", "/"])
def test_one_that_is_not_there_is_an_error(source: str) -> None:
    with pytest.raises(UserError, match=r"task\.verifier: "):
        load(source)
