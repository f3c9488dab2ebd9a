"""The run manifest: what it refuses, and that it survives its two forms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sfnode.errors import Code, UserError
from sfnode.manifest import Manifest

FIELDS: dict[str, Any] = {
    "model": {"source": "builtin:tiny", "digest": "0" * 64, "targets": ["layers.0.fc1:64x32"]},
    "task": {"kind": "text", "template": "{text}"},
    "data": {},
}


def changed(section: str, **fields: Any) -> dict[str, Any]:
    return {**FIELDS, section: {**FIELDS.get(section, {}), **fields}}


@pytest.mark.parametrize("template", ["{text}", "{text}\nIt was", "{text}\r\nIt was"])
def test_both_forms_of_a_manifest_name_the_same_run(tmp_path: Path, template: str) -> None:
    manifest = Manifest.model_validate(changed("task", template=template))
    (tmp_path / "run.toml").write_text(manifest.to_toml())
    assert Manifest.from_toml(tmp_path / "run.toml").run_id == manifest.run_id
    assert Manifest.from_canonical(manifest.canonical(), "a peer") == manifest


@pytest.mark.parametrize(
    "target", ["fc1", "fc1:64", "fc1:64x", "fc1: 64x32", "fc1:+6x3", "fc1:1_0x3", ":4x4", "a:0x4"]
)
def test_a_target_that_is_not_name_out_in_is_refused(target: str) -> None:
    with pytest.raises(ValueError, match=r"target|form|greater"):
        Manifest.model_validate(changed("model", targets=[target]))


@pytest.mark.parametrize(
    "fields",
    [
        {"rank": 24},
        {"scalar_delta": float("inf")},
        {"scalar_delta": float("nan")},
        {"scalar_bits": 8, "scalar_limit": 128},
        {"epoch_updates": 1, "update_budget": 65_537},
        {"learning_rte": 1e-3},
    ],
)
def test_numbers_that_no_run_can_have_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="training"):
        Manifest.model_validate(changed("training", **fields))


def test_bytes_that_are_not_canonical_are_refused() -> None:
    encoded = Manifest.model_validate(FIELDS).canonical()
    for bad in (encoded + b"\x00", encoded[:-1], b"\xc0", b""):
        with pytest.raises(UserError) as caught:
            Manifest.from_canonical(bad, "a peer")
        assert caught.value.code is Code.BAD_MANIFEST


def test_a_newer_protocol_asks_for_an_upgrade(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("protocol = 2\nsomething_new = true\n")
    with pytest.raises(UserError, match="speaks protocol 2") as caught:
        Manifest.from_toml(path)
    assert caught.value.code is Code.NEWER_PROTOCOL


def test_schedules_start_at_the_learning_rate_and_fall() -> None:
    for schedule in ("constant", "linear", "cosine"):
        training = Manifest.model_validate(
            changed("training", schedule=schedule, epoch_updates=10, update_budget=100)
        ).training
        rates = [training.rate(epoch) for epoch in range(training.epochs)]
        assert rates[0] == training.learning_rate
        assert rates == sorted(rates, reverse=True)
        assert rates[-1] > 0
