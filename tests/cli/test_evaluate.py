"""`sfnode eval`: the base model and the model as of now, each with a figure and how sure one can be of it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from sfnode.models.manifest_builder import default_manifest
from sfnode.schema.results import EvalResult
from sfnode.store.data_folder import Layout
from sfnode.store.log import UpdateLog
from sfnode.tasks.metrics import share
from tests.cli.helpers import Ended

Run = Callable[..., Ended]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a node of the built-in run that has joined it and knows no update yet."""
    layout, run = Layout(tmp_path / "node"), default_manifest()
    layout.path.mkdir()
    layout.manifest.write_text(run.to_toml())
    with UpdateLog.open(layout.log, run.run_id):
        pass
    return layout.path


def test_as_data_it_has_the_ends_of_the_interval(folder: Path, sfnode: Run) -> None:
    ended = sfnode("eval", "--data-dir", folder, "--limit", 40, "--json")
    assert ended.status == 0, ended.err
    result = EvalResult.model_validate(json.loads(ended.out))  # progress goes to standard error
    assert result.before == result.after  # there are no updates
    assert (result.after.metric, result.after.count) == ("accuracy", 40)
    expected = share(round(result.after.value * 40), 40)
    assert (result.after.value, result.after.low, result.after.high) == expected


def test_for_people_it_has_the_interval_in_brackets(folder: Path, sfnode: Run) -> None:
    said = sfnode("eval", "--data-dir", folder, "--limit", 40).out.splitlines()
    assert said[0].startswith("accuracy (95 % interval) on 40 test rows, 0 updates (")
    number = r"[01]\.\d{3}"
    for line, when in zip(said[1:], ("before", "after"), strict=True):
        assert re.fullmatch(rf"{when} +{number} \({number}-{number}\)  loss \d\.\d{{4}}", line)
