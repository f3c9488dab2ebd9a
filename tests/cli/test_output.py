"""Tests of printed texts that others wrote."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

import sfnode.cli
from sfnode.cli import doctor
from sfnode.cli.output import table
from sfnode.doctor.findings import CheckFinding, Examination
from sfnode.schema.status import PrivacyStatus, Status
from tests.cli.fake_node import ANSWERS, STATUS, fake_node
from tests.cli.helpers import Run
from tests.schema.helpers import organised, rewarded
from tests.test_printable import HOSTILE

OWN_TEXT = {"groups.py": "a script of click's", "invite.py": "a drawing with colours"}
"""Modules that print without escaping, and what they print."""


def told(sfnode: Run, folder: Path, seen: Status, *options: str) -> str:
    """Return the output of `sfnode status` for this status."""
    node = folder / f"node{''.join(options)}"
    with fake_node(node, {**ANSWERS, "GET /status": seen.model_dump_json()}):
        return sfnode("status", "--data-dir", node, *options).done().out


def test_findings_are_coloured_and_what_they_quote_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    one = CheckFinding(number="D01", subject="peer", verdict="problem", what=HOSTILE, fix=HOSTILE)
    doctor._print(Examination.model_construct(findings=[one], problems=1, seconds=1.0))
    assert all(line.isprintable() for line in capsys.readouterr().out.split("\n"))


def test_a_table_is_as_wide_as_what_is_in_it_and_nobody_s_text_breaks_it() -> None:
    rows = [("run", "updates", ""), ("北京", "1,234", "so"), ("a\x1b[2J\nb", "5", "")]
    assert table(rows, right={1}).split("\n") == [
        "run" + 11 * " " + "updates",
        "北京" + 12 * " " + "1,234  so",
        "a\\u001b[2J b" + 8 * " " + "5",
    ]


def test_every_command_prints_through_the_one_function_that_looks() -> None:
    for file in Path(sfnode.cli.__file__).parent.glob("*.py"):
        calls = [node.func for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)]
        unlooked = {"print", "click.echo", "click.secho"} & {ast.unparse(call) for call in calls}
        assert not unlooked or file.name in (*OWN_TEXT, "output.py"), f"{file.name} calls {unlooked}"


@pytest.mark.parametrize(
    ("epsilon", "said"), [(3.428, "epsilon 3.43 at most (delta 1e-05)"), (None, "has noise")]
)
def test_status_says_what_the_updates_tell_of_a_row(
    sfnode: Run, tmp_path: Path, epsilon: float | None, said: str
) -> None:
    noise = PrivacyStatus(noise=8.7, clip=6.4, updates=49, epsilon=epsilon, delta=1e-5)
    seen = STATUS.model_copy(update={"privacy": noise})
    assert said in told(sfnode, tmp_path, seen)


def test_status_says_first_what_is_wrong_with_the_run_and_then_how_it_stands(
    sfnode: Run, tmp_path: Path
) -> None:
    seen = STATUS.model_copy(update=organised(behind=7))
    lines = told(sfnode, tmp_path, seen).splitlines()
    found = json.loads(told(sfnode, tmp_path, seen, "--json"))
    assert lines[:2] == ["SF070: the run gets worse: so much", "  Do this first. Then that."]
    assert "rounds   13 count, the last one 42 s ago" in lines
    assert (
        "model    WORSE: accuracy 84.8 % (82.8-86.8 %) after round 12, base model 50.0 %, best 100.0 % after "
        "round 3" in lines
    )
    assert "member   number 3 of 5, 100 of 512 updates left in this round" in lines
    assert "missing  7 updates that count are not here yet" in lines
    assert found["organised"]["health"]["verdict"] == "worse"


def test_status_and_top_of_a_reward_run_speak_of_answers_rewards_and_drift(
    sfnode: Run, tmp_path: Path
) -> None:
    seen = STATUS.model_copy(update=rewarded() | {"origin": "ab" * 32})
    said = told(sfnode, tmp_path, seen)
    assert ", mean reward 0.940\n" in said
    assert (
        "model    better: right answers (pass@1) 85.0 % (83.0-87.0 %) after round 7, base model 30.0 %"
        in said
    )
    assert "change   the weights have moved by 18 %" in said
    assert "loss" not in said
