"""`sfnode lab simulate training --log-to`: the records of a simulated run, in the loggers of a node."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.helpers import Run

SMALL = (
    *("--clients", 4, "--steps", 2, "--local-steps", 1, "--batch-size", 1, "--rows", 8, "--test-rows", 4),
    *("--validation-rows", 4, "--rank", 4, "--json"),
)


def test_a_logger_is_told_what_the_results_say(sfnode: Run, tmp_path: Path) -> None:
    ended = sfnode("lab", "simulate", "training", *SMALL, "--log-to", f"jsonl:{tmp_path}/log.jsonl")
    assert ended.status == 0, ended.err
    results = Path(json.loads(ended.out)["results"]).read_text().splitlines()
    begun, *records = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert begun["settings"] == json.loads(results[0])
    told = [{key: line[key] for key in ("kind", "step", "values")} for line in records]
    assert told == [json.loads(line) for line in results[1:-1]]
    assert [line["kind"] for line in told] == ["step", "step", "evaluation"]


def test_a_logger_that_cannot_be_opened_is_an_error_before_anything_is_done(
    sfnode: Run, tmp_path: Path
) -> None:
    ended = sfnode("lab", "simulate", "training", *SMALL, "--log-to", f"jsonl:{tmp_path}/nowhere/log.jsonl")
    assert (ended.status, json.loads(ended.out)["error"]["code"]) == (1, "SF079")
    assert not Path("results").exists()
