"""Tests of a manifest's task: classes, metrics and rewards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tomli_w

from sfnode.errors import Code
from sfnode.manifest import Manifest
from sfnode.manifest.task import MAX_ANSWER_TOKENS, Task
from tests.manifest.fields import EXACT, FIELDS, REWARD
from tests.refusals import refused


def reward(**fields: Any) -> dict[str, Any]:
    return FIELDS | {"task": REWARD | fields}


def test_classes_have_the_same_numbers_on_the_node_that_wrote_the_manifest_and_on_those_that_got_it() -> None:
    """The verbalizer's order numbers a head's outputs, and the canonical encoding sorts its keys."""
    task = Task(
        kind="sequence-classification",
        template="{sentence}",
        verbalizer={"b": "no", "é": "so-so", "a": "yes"},
    )
    assert list(task.verbalizer) == ["a", "b", "é"]


@pytest.mark.parametrize(
    "verifier",
    [
        EXACT | {"strip": True},
        {"column": "answer", "ignore_case": False, "kind": "exact"},
    ],
)
def test_a_run_has_one_id_however_its_verifier_is_written(verifier: dict[str, Any]) -> None:
    manifest = Manifest.model_validate(reward(verifier=verifier, temperature=0, stop=[]))
    assert manifest.run_id == Manifest.model_validate(reward()).run_id
    assert manifest.task.verifier == EXACT
    assert not {"temperature", "stop"} & set(manifest.fields()["task"])


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"verifier": {}}, "needs a verifier"),
        ({"verifier": {"kind": "exact"}}, "column: Field required"),
        ({"verifier": {"kind": "exact", "colum": "a"}}, "column"),
        ({"answer_tokens": 0}, "answer_tokens"),
        ({"answer_tokens": MAX_ANSWER_TOKENS + 1, "max_tokens": 65_536}, "less than"),
        ({"answer_tokens": 64, "max_tokens": 64}, "answer_tokens"),
        ({"temperature": 0.01}, "temperature"),
        ({"temperature": 65.0}, "temperature"),
        ({"stop": ["x" * 65]}, "stop"),
        ({"stop": ["x"] * 9}, "stop"),
        ({"metric": "accuracy"}, "measured"),
        ({"loss": "centred"}, "centred"),
        ({"kind": "text"}, "no answers that are written"),
    ],
    ids=str,
)
def test_a_reward_run_that_cannot_be_measured_is_refused(
    fields: dict[str, Any], says: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=says):
        Manifest.model_validate(reward(**fields))
    (tmp_path / "run.toml").write_text(tomli_w.dumps(reward(**fields)))
    with refused(Code.BAD_MANIFEST, says):
        Manifest.from_toml(tmp_path / "run.toml")
