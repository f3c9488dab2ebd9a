"""`sfnode lab simulate network` as a user has it."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from sflab.simulator import runner
from sflab.simulator.scenarios import SCENARIOS
from sfprotocol.events import Action, Event
from sfprotocol.machine import Machine
from tests.cli.helpers import Run
from tests.fuzz import soak

NETWORK = ("lab", "simulate", "network")
QUICK = ("--nodes", "5", "--seconds", "2")


def test_a_run_is_reported_in_words(sfnode: Run) -> None:
    said = sfnode(*NETWORK, "--scenario", "calm", *QUICK).done().out
    assert "calm: 5 nodes, random, seed 0: ok" in said
    assert "per delivery" in said


def test_json_has_the_command_that_replays_it(sfnode: Run) -> None:
    ended = sfnode(*NETWORK, "--seed", 4, "--topology", "ring", "--json", *QUICK)
    (outcome,) = json.loads(ended.done().out)
    assert outcome["failure"] is None
    assert outcome["command"] == (
        "sfnode lab simulate network --scenario calm --seed 4 --nodes 5 --topology ring --seconds 2"
    )


def test_the_trace_goes_to_a_file(sfnode: Run, tmp_path: Path) -> None:
    sfnode(*NETWORK, "--trace", tmp_path / "trace", *QUICK)
    lines = (tmp_path / "trace").read_text().splitlines()
    assert any("admits" in line and "Segment" in line for line in lines)


def test_the_list_has_every_scenario(sfnode: Run) -> None:
    said = sfnode(*NETWORK, "--list").done().out
    for scenario in SCENARIOS.values():
        assert f"{scenario.name:<20} {scenario.says}" in said


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--scenario", "doomsday"), "SF010: there is no scenario called doomsday"),
        (("--topology", "torus"), "SF010: there is no topology called torus"),
        (("--trace", "/nowhere/at/all"), "SF010: cannot write /nowhere/at/all"),
    ],
)
def test_what_does_not_exist_is_said(arguments: tuple[str, ...], complaint: str, sfnode: Run) -> None:
    sfnode(*NETWORK, *arguments).refused(complaint)


def test_a_failure_has_its_story_and_its_command(sfnode: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner.Run, "judge", lambda self: 1 / 0)
    said = sfnode(*NETWORK, "--scenario", "calm", *QUICK).failed().out
    assert "FAILED" in said
    assert "[exception] ZeroDivisionError" in said
    assert "again with: sfnode lab simulate network --scenario calm --seed 0 --nodes 5" in said
    assert "Summary known" in said


def test_it_does_without_torch() -> None:
    script = (
        "import sys\nfrom sfnode.cli.main import main\n"
        "try:\n    main(['lab', 'simulate', 'network', '--nodes', '3', '--seconds', '0'])\n"
        "finally:\n    print([m for m in ('torch', 'hivemind', 'asyncio.events') if m in sys.modules][:2])\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert "torch" not in ended.stdout.splitlines()[-1]
    assert "hivemind" not in ended.stdout.splitlines()[-1]


def test_a_soak_counts_its_runs_and_says_where_its_seeds_come_from(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(soak, "SIZES", (5, 5))
    assert soak.main(["--seconds", "0.1", "--first", "5", "--scenario", "calm"]) == 0
    said = capsys.readouterr().out
    assert "--first 5" in said
    assert "1 runs, " in said
    assert "0 failures" in said


def test_a_run_that_hangs_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(self: Machine, event: Event, now: float) -> list[Action]:
        while True:
            pass

    monkeypatch.setattr(Machine, "handle", endless)
    outcome = runner.simulate(SCENARIOS["calm"], 0, patience=0.2)
    assert outcome.failure
    assert outcome.failure.checker == "hang"


def test_a_run_has_more_files_open_than_a_shell_allows_at_first() -> None:
    usual = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, usual[1]))
    try:
        assert runner.simulate(SCENARIOS["calm"], 0, nodes=24, seconds=0).failure is None
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, usual)
