"""The base model of a run: its targets, and the run that it comes from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sfnode.manifest import Manifest
from tests.manifest.fields import FIELDS, PARENT, changed


@pytest.mark.parametrize(
    "target", ["fc1", "fc1:64", "fc1:64x", "fc1: 64x32", "fc1:+6x3", "fc1:1_0x3", ":4x4", "a:0x4"]
)
def test_a_target_that_is_not_name_out_in_is_refused(target: str) -> None:
    with pytest.raises(ValueError, match=r"target|form|greater"):
        Manifest.model_validate(changed("model", targets=[target]))


def test_a_run_that_starts_from_another_is_another_run_and_says_so(tmp_path: Path) -> None:
    plain, child = Manifest.model_validate(FIELDS), Manifest.model_validate(changed("model", parent=PARENT))
    assert "parent" not in plain.to_toml()
    assert child.run_id != plain.run_id
    assert Manifest.from_canonical(child.canonical(), "a peer") == child
    (tmp_path / "run.toml").write_text(child.to_toml())
    assert Manifest.from_toml(tmp_path / "run.toml").run_id == child.run_id
    other = Manifest.model_validate(changed("model", parent=PARENT | {"epoch": 8}))
    assert other.run_id != child.run_id


@pytest.mark.parametrize(
    "change", [{"epoch": 2**32 - 1}, {"epoch": -1}, {"run_id": ""}, {"digest": "AB" * 32}]
)
def test_a_parent_is_named_by_a_seal(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="parent"):
        Manifest.model_validate(changed("model", parent=PARENT | change))
