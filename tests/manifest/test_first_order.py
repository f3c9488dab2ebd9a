"""Tests of first-order runs' manifests, sound and refused (SPEC U11, M1)."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from sfnode.manifest import Manifest
from tests.manifest.fields import FIELDS, organised

TRAINING: dict[str, Any] = {
    "estimator": "first-order",
    "norm_limit": 587,
    "rank": 4,
    "basis": "published",
    "bases": "12" * 32,
    "scalar_bits": 8,
    "scalar_limit": 127,
    "epoch_updates": 64,
}
BODY = [f"layers.{number}.q:576x576" for number in range(84)]


def fields(*targets: str, **changes: Any) -> dict[str, Any]:
    """Return the fields of a first-order run with these `targets` and these changes of sections."""
    found = organised(training=TRAINING) | {"protocol": 4}
    found["model"] = found["model"] | {"targets": list(targets or BODY)}
    return found | {
        name: found[name] | value if isinstance(value, dict) else value for name, value in changes.items()
    }


def test_a_body_at_rank_4_has_16_cells_a_matrix_and_a_head_is_as_thin_as_it_is() -> None:
    body = Manifest.model_validate(fields())
    assert body.core_shape == (84, 4, 4)
    run = body.parameters()
    assert (run.version, run.cells, run.norm_limit, run.form.width) == (4, 1344, 587, 1344)
    head = Manifest.model_validate(fields("score:5x576", training={"rank": 1024}))
    assert head.core_shape == (1, 5, 576)
    assert head.core_bytes == 8 * 5 * 576
    assert head.parameters().cells == 2880


def test_a_run_of_scalars_says_nothing_of_it_and_stays_of_version_3() -> None:
    plain = Manifest.model_validate(organised())
    assert (plain.protocol, plain.parameters().cells) == (3, 0)
    assert b"estimator" not in plain.canonical()
    assert b"norm_limit" not in plain.canonical()


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (fields(protocol=3), "came with protocol 4"),
        (fields(training={"estimator": "zeroth-order"}), "norm_limit"),
        (fields(training={"norm_limit": 0}), "norm_limit"),
        (fields(training={"norm_limit": 2**32}), "norm_limit"),
        (fields(training={"estimator": "second-order"}), "estimator"),
        (FIELDS | {"protocol": 4, "training": TRAINING}, "a first-order run is organised"),
        (fields(training={"basis": "random", "bases": ""}), "published bases"),
        (fields(training={"group": 2}), "no groups"),
        (fields("a:3x10", "b:2x10"), "cores of one shape"),
        (fields("a:3x10", "b:10x3"), "cores of one shape"),
        (fields("a:129x128", training={"rank": 128, "scalar_bits": 16}), "an update would have 32,768 bytes"),
        (fields("a:130x129", "b:130x129", training={"rank": 128}), "an update would have 32,768 bytes"),
        (fields(organised={"quota": (1 << 27) // 1344 + 1}), "more than 134 MB"),
        (fields(training={"epoch_updates": (1 << 26) // 1344 + 1}), "more than 134 MB"),
    ],
)
def test_runs_that_are_refused(wrong: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        Manifest.model_validate(wrong)


def test_runs_at_the_bounds_are_runs() -> None:
    widest = Manifest.model_validate(fields("a:128x128", training={"rank": 128}))
    assert widest.parameters().form.width == 16_384
    assert Manifest.model_validate(fields(organised={"quota": (1 << 27) // 1344}))
    assert Manifest.model_validate(fields(training={"epoch_updates": (1 << 26) // 1344}))


def test_a_calibrated_loss_is_of_version_4_and_of_words_and_has_a_prior() -> None:
    task = {"kind": "classification", "template": "{text}", "verbalizer": {"0": "a", "1": "b"}}
    said = fields(task=task | {"loss": "calibrated", "prior": [1, -1]})
    assert Manifest.model_validate(said).task.prior == (1, -1)
    for wrong in (
        organised() | {"task": said["task"]},
        said | {"task": said["task"] | {"prior": []}},
        said | {"task": said["task"] | {"prior": [1]}},
        said | {"task": said["task"] | {"kind": "sequence-classification"}},
    ):
        with pytest.raises(ValidationError):
            Manifest.model_validate(wrong)
