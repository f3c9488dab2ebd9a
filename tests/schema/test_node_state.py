"""Tests that every view has the same states of a node."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sfnode.control.prometheus import METRICS
from sfnode.dashboard.snapshot import doing_in
from sfnode.schema.node_state import NodeState
from sfnode.schema.status import Status
from tests.schema.helpers import status

SFNODE = Path(__file__).parents[2] / "sfnode"


def test_the_words_are_those_that_programs_already_know() -> None:
    words = "starting asking catching-up training waiting paused finishing idle complete"
    assert " ".join(state.value for state in NodeState) == words
    assert f"{NodeState.CATCHING_UP}" == "catching-up"


@pytest.mark.parametrize("state", NodeState)
def test_a_state_is_the_same_word_in_json_and_a_state_again_when_it_is_read(state: NodeState) -> None:
    text = status(state=state).model_dump_json()
    assert f'"state":"{state.value}"' in text
    assert Status.model_validate_json(text).state is state


def test_a_word_that_is_no_state_is_refused() -> None:
    text = status().model_dump_json().replace('"state":"idle"', '"state":"sleeping"')
    with pytest.raises(ValueError, match="state"):
        Status.model_validate_json(text)


@pytest.mark.parametrize("state", NodeState)
@pytest.mark.parametrize("role", ["trainer", "relay"])
def test_every_state_has_a_sentence_and_a_metric(state: NodeState, role: str) -> None:
    seen = status(state=state, role=role)
    assert doing_in(seen).text.endswith(".")
    (metric,) = [one for one in METRICS if one.name == "sfnode_state"]
    assert {sample.labels: sample.value for sample in metric.read(seen)} == {
        (one.value,): float(one is state) for one in NodeState
    }


def test_nobody_compares_states_as_strings() -> None:
    compared = re.compile(rf'state\b[^\n]*(==|!=|\bin\b)[^\n]*"({"|".join(NodeState)})"')
    found = [file for file in SFNODE.rglob("*.py") if compared.search(file.read_text(encoding="utf-8"))]
    assert found == []
