"""Tests of admission: an organised run names the keys that it trusts, an open run none."""

from __future__ import annotations

from typing import Any

import pytest

from sfnode.manifest import Manifest
from sfnode.manifest.sections import MAX_QUOTA
from sfprotocol.messages import Authority
from tests.manifest.fields import DEPUTY, FIELDS, ORGANISER, OTHER, organised


def test_an_organised_run_tells_the_protocol_whom_it_trusts_and_the_first_rate() -> None:
    fields = organised(deputies=[DEPUTY.hex(), OTHER.hex()], votes=2, training={"learning_rate": 1e-3})
    manifest = Manifest.model_validate(fields)
    run = manifest.parameters()
    assert run.organised == Authority(manifest.run_id, ORGANISER, (DEPUTY, OTHER), 2)
    assert run.rate == 4_294_967


@pytest.mark.parametrize(("units", "rate"), [(1.5, 2), (2.5, 2), (2.5000001, 3), (0.51, 1)])
def test_the_rate_is_rounded_to_the_nearest_unit_and_halves_to_even(units: float, rate: int) -> None:
    manifest = Manifest.model_validate(organised(training={"learning_rate": units * 2**-32}))
    assert manifest.parameters().rate == rate


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"deputies": [DEPUTY.hex(), OTHER.hex()], "votes": 1}, "more than half"),
        ({"votes": 2}, "more than half"),
        ({"votes": 0}, "greater"),
        ({"deputies": [DEPUTY.hex()] * 2, "votes": 2}, "different keys"),
        ({"deputies": [ORGANISER.hex()]}, "different keys"),
        ({"deputies": ["AB" * 32]}, "pattern"),
        ({"organiser": "00" * 32}, "weak"),
        ({"organiser": "ff" * 32}, "weak"),
        ({"deputies": ["01" + "00" * 31]}, "weak"),
        ({"organiser": ""}, "open run"),
        ({"quota": 0}, "quota"),
        ({"quota": MAX_QUOTA + 1}, "less than"),
        ({"subspace_epochs": 0}, "greater"),
        ({"training": {"schedule": "cosine"}}, "schedule"),
        ({"training": {"learning_rate": 1e-10}}, "learning_rate"),
        ({"training": {"learning_rate": 1.0}}, "learning_rate"),
    ],
    ids=str,
)
def test_an_organised_run_that_cannot_be_trusted_is_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Manifest.model_validate(organised(**fields))


def test_a_run_without_deputies_may_be_organised() -> None:
    run = Manifest.model_validate(organised(deputies=[])).parameters()
    assert run.organised is not None
    assert (run.organised.deputies, run.organised.votes) == ((), 1)


@pytest.mark.parametrize(
    "fields",
    [
        {"admission": "organised"},
        organised() | {"admission": "open"},
        {"organised": {"quota": 7}},
        {"organised": {"deputies": [DEPUTY.hex()]}},
        {"organised": {"subspace_epochs": 2}},
    ],
)
def test_a_run_is_either_open_or_organised(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="organise"):
        Manifest.model_validate(FIELDS | fields)
