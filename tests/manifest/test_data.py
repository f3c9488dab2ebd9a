"""The sources of rows: what may validate, and which are files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sfnode.manifest import Manifest
from tests.manifest.fields import FIELDS, changed


@pytest.mark.parametrize(
    "data",
    [
        {"train": "a.tsv", "validation": "a.tsv"},
        {"test": "b.tsv", "validation": "b.tsv"},
        {"train": "a.tsv", "test": "a.tsv", "validation_limit": 3},
        {"validation_limit": 3},
    ],
)
def test_validation_rows_are_neither_trained_nor_tested_on(data: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="validation"):
        Manifest.model_validate(FIELDS | {"data": data})


def test_a_run_names_its_files_by_digests_and_others_keep_their_bytes(tmp_path: Path) -> None:
    digests = {"train": "ab" * 32, "test": "cd" * 32}
    files = {"train": "a.tsv", "test": "b.jsonl"}
    plain = Manifest.model_validate(changed("data", **files))
    said = Manifest.model_validate(changed("data", **files, digests=digests))
    assert said.fields()["data"]["digests"] == digests
    assert "digests" not in plain.fields()["data"]
    (tmp_path / "run.toml").write_text(said.to_toml())
    assert Manifest.from_toml(tmp_path / "run.toml").run_id == said.run_id != plain.run_id
    assert Manifest.from_canonical(said.canonical(), "a peer") == said


@pytest.mark.parametrize("source", ["", "hf:glue:sst2:train", "builtin:reviews:train", "a.txt", "hf:a.tsv"])
def test_only_files_have_digests(source: str) -> None:
    with pytest.raises(ValueError, match="sources that are files"):
        Manifest.model_validate(changed("data", train=source, digests={"train": "ab" * 32}))
