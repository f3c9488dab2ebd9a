"""Tests of the base model's table: targets, and a parent run."""

from __future__ import annotations

from typing import Any

import pytest

from sfnode.manifest import Manifest
from tests.manifest.fields import PARENT, changed


@pytest.mark.parametrize(
    "target", ["fc1", "fc1:64", "fc1:64x", "fc1: 64x32", "fc1:+6x3", "fc1:1_0x3", ":4x4", "a:0x4"]
)
def test_a_target_that_is_not_name_out_in_is_refused(target: str) -> None:
    with pytest.raises(ValueError, match=r"target|form|greater"):
        Manifest.model_validate(changed("model", targets=[target]))


@pytest.mark.parametrize(
    "change", [{"epoch": 2**32 - 1}, {"epoch": -1}, {"run_id": ""}, {"digest": "AB" * 32}]
)
def test_a_parent_is_named_by_a_seal(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="parent"):
        Manifest.model_validate(changed("model", parent=PARENT | change))
