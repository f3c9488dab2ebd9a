"""Tests of the public names of models and rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from sfnode.manifest import HubRows, hub_rows, is_on_hub, names_folders, public_name
from sfnode.preparing.manifest import build


@pytest.mark.parametrize(
    ("source", "public"),
    [
        ("facebook/opt-125m", "facebook/opt-125m"),
        ("gpt2", "gpt2"),
        ("builtin:reviews:train", "builtin:reviews:train"),
        ("hf:ann/set:plain:train", "hf:ann/set:plain:train"),
        ("rows.tsv", "rows.tsv"),
        ("", ""),
        ("/home/ann/opt", "opt"),
        ("~/opt", "opt"),
        ("../ann/opt", "opt"),
        ("models/of/ann", "ann"),
        ("ann/rows.tsv", "rows.tsv"),
        (r"C:\\Users\\ann\\rows.tsv", "rows.tsv"),
        ("hf:/home/ann/set:train", "set:train"),
        ("builtin:/home/ann", "ann"),
        ("..", ".."),
        (f"/{'a' * 5000}/opt", "opt"),
    ],
)
def test_a_name_stays_and_a_path_has_its_last_part_only(source: str, public: str) -> None:
    assert public_name(source) == public


def test_what_lies_on_a_machine_changes_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "facebook" / "opt-125m").mkdir(parents=True)
    assert is_on_hub("facebook/opt-125m")
    assert not any(
        map(is_on_hub, ("builtin:tiny", "gpt2", "../opt", "a/..", ".ssh/id", "a/b/c", "~/opt", "/opt"))
    )


@pytest.mark.parametrize(
    ("source", "rows"),
    [
        ("hf:ann/set:train", HubRows("ann/set", "", "", "train")),
        ("hf:ann/set:plain:test", HubRows("ann/set", "", "plain", "test")),
        (f"hf:ann/set@{'0' * 40}:test", HubRows("ann/set", "0" * 40, "", "test")),
    ],
)
def test_rows_on_the_hub_have_an_owner_a_name_and_a_split(source: str, rows: HubRows) -> None:
    assert hub_rows(source) == rows
    assert str(rows) == source


@pytest.mark.parametrize(
    "source",
    ["hf:text:train", "hf:ann/set", "hf:ann/set@main:train", "hf:/set:train", "hf:ann/..:train",
     "hf:a/b:c:d:e", "hf:ann/set:../x:train", "hf:ann/set:tr/ain", "ann/set:train"],
)  # fmt: skip
def test_anything_else_is_no_name_of_rows_on_the_hub(source: str) -> None:
    assert hub_rows(source) is None


@pytest.mark.parametrize("role", ["train", "test", "validation"])
def test_any_source_with_a_folder_is_found_in_a_manifest(role: str) -> None:
    run = build({})
    assert not names_folders(run)
    assert names_folders(run.model_copy(update={"data": run.data.model_copy(update={role: "/a/b.tsv"})}))
    assert names_folders(run.model_copy(update={"model": run.model.model_copy(update={"source": "/a/b"})}))
