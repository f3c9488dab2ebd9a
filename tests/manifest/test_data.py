"""Tests of sources: which rows may validate, and which sources are files."""

from __future__ import annotations

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


@pytest.mark.parametrize("source", ["", "hf:glue:sst2:train", "builtin:reviews:train", "a.txt", "hf:a.tsv"])
def test_only_files_have_digests(source: str) -> None:
    with pytest.raises(ValueError, match="sources that are files"):
        Manifest.model_validate(changed("data", train=source, digests={"train": "ab" * 32}))
