"""Tests of the output of `sfnode swarm`, also for digests that differ."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

from sfnode import swarm as local_swarm
from sfnode.cli.swarm import MADE_UP, closing, progress_line, progress_table
from sfnode.defaults import DATA_DIR
from sfnode.manifest import Manifest
from sfnode.manifest.sections import Data
from sfnode.schema.results import NodeResult, SwarmResult
from sfnode.schema.status import Status
from sfnode.tasks import verifying
from sfnode.verifiers import plugins
from tests.cli.helpers import Run
from tests.node.training.test_model import make_model
from tests.swarm.conftest import script as script
from tests.swarm.helpers import COMMONEST, MANIFEST, NONE, PROBE, Script, evaluation, organised_status, status
from tests.swarm.test_local_swarm import UNEQUAL
from tests.wording import has


def result(*digests: str, cores: tuple[str, ...] = ("c", "c")) -> SwarmResult:
    """Return the result of a swarm of two nodes with these digests."""
    nodes = [
        NodeResult(node=number, own_updates=50, digest=digest, core_digest=core)
        for number, (digest, core) in enumerate(zip(digests, cores, strict=True), 1)
    ]
    measured = [evaluation(value) for value in (0.5, 0.75)]
    return SwarmResult(
        version="0", run_id="ab", run_name="run", updates=100, counted=None, sealed=None, update_budget=98,
        equal=len(set(digests)) == len(set(cores)) == 1, before=measured[0],
        calibrated=evaluation(0.6), after=measured[1], nodes=nodes,
        bytes_per_update=12.345, bytes_sent=999, seconds=2.5, seconds_in_all=10.0,
    )  # fmt: skip


def drawn(table: Table) -> list[str]:
    """Return the lines of a table at a terminal of 80 columns."""
    screen = StringIO()
    Console(width=80, file=screen).print(table)
    return screen.getvalue().splitlines()


def said_at_the_end(result: SwarmResult, run: Manifest = MANIFEST) -> list[str]:
    return [
        line.strip() for line in closing(result, run, NONE, ["sfnode use"], DATA_DIR).splitlines() if line
    ]


def test_progress_fits_a_terminal_of_80_columns_with_nothing_cut_off() -> None:
    slow = status(updates_per_second=0.99)
    lines = drawn(progress_table("a-rather-long-name", [status(), slow, None]))
    assert max(map(len, lines)) <= 80
    assert any("59/min" in line for line in lines)
    row = next(line for line in lines if "catching-up" in line)
    has(row, "34,567", "123/s", "12.346")
    assert any("starting" in line for line in lines)


SLOW = status(known=48, loss=1.0, updates_per_second=0.05)
PROGRESS = {
    "what counts": (
        [status(known=48, loss=1.0)],
        {},
        "48 of 50 updates made, 40 count, 123/s, 0 s left, loss 1.000",
    ),
    "before anything counts": (
        [status(known=57, loss=None)],
        {"counted": 0, "budget": 64},
        "57 of 64 updates made, 0 count, 123/s, 0 s left",
    ),
    "more than the budget": (
        [status(known=60, loss=None)],
        {"counted": 51},
        "50 and 10 more updates made, 51 count, 123/s",
    ),
    "less than one update a second": (
        [SLOW, SLOW],
        {},
        "48 of 50 updates made, 40 count, 6/min, 20 s left, loss 1.000",
    ),
    "nodes that start": ([status(), None, None], {}, "1 of 3 nodes are up"),
}


@pytest.mark.parametrize(("nodes", "run", "says"), PROGRESS.values(), ids=PROGRESS)
def test_a_line_of_progress_of_an_organised_run(
    nodes: list[Status | None], run: dict[str, int], says: str
) -> None:
    assert progress_line(nodes, organised_status().model_copy(update=run)) == says


def test_progress_is_that_of_the_slowest_at_the_rate_of_all() -> None:
    line = progress_line([status(known=10_000, loss=1.0), status(known=12, loss=2.0), status(loss=None)])
    assert line.startswith("12 of 200,000 updates made, 370/s, 9 min")
    assert line.endswith(" left, loss 1.500")


def test_progress_says_what_the_organisers_model_does_beside_updates() -> None:
    busy = status(doing={"what": "measuring round 3", "seconds": 72.4})
    assert progress_line([busy, status()], organised_status()).endswith(
        "; organiser: measuring round 3, 1 min 12 s"
    )
    assert progress_line([busy, status()]).endswith("; node 1: measuring round 3, 1 min 12 s")
    lines = drawn(progress_table("a-rather-long-name", [busy, status()], organised_status()))
    assert "measuring round 3, 1 min 12 s" in " ".join(lines[:3])


def test_the_end_is_a_card_with_what_was_learnt_whose_work_it_was_and_what_comes_next() -> None:
    assert said_at_the_end(result("d", "d")) == [
        "The run run is complete.",
        "before  60.0 % right",
        "now     75.0 % right on 9 test rows, which may be chance",
        "2 nodes did it in 2 s: 50 %, 50 % of the work.",
        "OK: the nodes have the same model, to the last bit.",
        "What comes next:",
        "sfnode use",
    ]
    made_up = MANIFEST.model_copy(update={"data": Data(train="builtin:reviews:train")})
    assert MADE_UP in said_at_the_end(result("d", "d"), made_up)


def test_nodes_that_had_not_loaded_before_it_was_over_have_no_part_of_the_work() -> None:
    """Such nodes used to be listed with 0 %."""
    said = result("d", "d")
    first, second = said.nodes
    nodes = [first, *(second.model_copy(update={"own_updates": 0}) for _ in range(3))]
    lines = said_at_the_end(said.model_copy(update={"nodes": nodes}))
    assert "One node did it in 2 s: 100 % of the work." in lines
    assert "3 of 4 nodes did not get to work: it was over before." in lines


def test_a_linear_probe_stands_beside_a_head_and_says_so_where_it_is_better() -> None:
    said = result("d", "d").model_copy(update={"probe": PROBE, "baselines": (COMMONEST,)})
    lines = said_at_the_end(said)
    commonest = "the commonest label of 1,024 training rows: accuracy 50.0 % (40.0-60.0 %), loss 0.690"
    assert lines.count(commonest) == 1
    assert any("pip install 'sfnode[compare]'" in line for line in lines)
    (place,) = (
        n for n, line in enumerate(lines) if line.startswith("a linear probe on 1,024 training rows:")
    )
    assert lines[place + 1].startswith("THE PROBE IS BETTER by 0.039 in loss a row (standard error 0.012): ")
    alike = PROBE.model_copy(update={"lead": 0.023})
    assert not any("BETTER" in told for told in said_at_the_end(said.model_copy(update={"probe": alike})))


GUARD = "The guard ends the run at the model of round 3, as it no longer improves: [loss] 2.1, not 0.6."


def test_a_run_that_was_ended_early_or_of_which_much_was_taken_back_says_so_and_why() -> None:
    ended = result("d", "d").model_copy(
        update={"updates": 3430, "counted": 618, "sealed": 12, "update_budget": 4096, "announced": GUARD}
    )
    said = f"ATTENTION: 2,812 of 3,430 updates do not count (of a budget of 4,096): {GUARD}"
    assert said in said_at_the_end(ended)
    went_on = ended.model_copy(update={"update_budget": 600, "announced": None})
    assert any(
        "2,812 of 3,430 updates do not count: most came when the run had all that it asks for" in line
        for line in said_at_the_end(went_on)
    )
    usual = ended.model_copy(update={"updates": 640, "update_budget": 600})
    assert not any("do not count" in line for line in said_at_the_end(usual)), "some are under way at the end"


def test_of_a_reward_run_it_tells_right_answers_and_the_mean_reward() -> None:
    assert progress_line([status(known=48, loss=0.25, task="reward")]).endswith(", mean reward 0.750")
    assert any("reward" in line for line in drawn(progress_table("sums", [status(task="reward")])))
    said = result("d", "d")
    before, after = (
        one.model_copy(update={"metric": "pass_at_1"}) for one in (said.before, said.after) if one
    )
    rewarded = said.model_copy(update={"before": before, "after": after, "calibrated": None})
    assert "before  50.0 % right answers (pass@1)" in said_at_the_end(rewarded)


def test_a_run_without_test_data_has_no_figures_to_show() -> None:
    said = result("d", "d").model_copy(update={"before": None, "calibrated": None, "after": None})
    assert said_at_the_end(said)[1].startswith("2 nodes did it")


@pytest.mark.parametrize(("digests", "cores"), UNEQUAL)
def test_digests_or_cores_that_differ_are_a_failure(
    digests: tuple[str, str],
    cores: tuple[str, str],
    script: Script,
    sfnode: Run,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(local_swarm, "AGREE_DEADLINE", 0.0)
    script.digests, script.cores = digests, cores
    (tmp_path / "run.toml").write_text(MANIFEST.to_toml())
    ended = sfnode("swarm", "--run", "run.toml", "--out", "kept", "--nodes", "2", "--json").failed()
    differing = SwarmResult.model_validate(json.loads(ended.out))
    assert [(node.digest, node.core_digest) for node in differing.nodes] == list(
        zip(digests, cores, strict=True)
    )
    has(ended.err, "sfnode: SF062: ", "kept", "FAILED: the nodes have different models.")


def test_a_swarm_is_told_from_its_start_to_its_verdict(script: Script, sfnode: Run, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(MANIFEST.to_toml())
    ended = sfnode("swarm", "--run", "run.toml", "--out", "kept", "--nodes", "2").done()
    has(
        ended.out,
        "starting 2 nodes of run a-name",
        "base model: accuracy 50.0 % (40.0-70.0 %), loss 0.500 on 9 test rows",
        "0 of 2 nodes are up",
        "measuring the model, and comparing the nodes",
        "now     75.0 % right on 9 test rows",
        "OK: the nodes have the same model, to the last bit.",
        f"sfnode verify --data-dir {tmp_path / 'kept' / 'node-1'}",
    )
    assert ended.out.count("base model:") == 1


def test_a_folder_that_cannot_be_made_is_named(script: Script, sfnode: Run, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(MANIFEST.to_toml())
    (tmp_path / "file").write_text("")
    sfnode("swarm", "--run", "run.toml", "--out", "file/nodes").failed(
        "sfnode: SF010: cannot write to file/nodes"
    )
    assert script.events == []


def test_a_manifest_that_is_not_there_is_an_error_before_anything_starts(sfnode: Run) -> None:
    sfnode("swarm", "--run", "nowhere.toml").failed(
        "sfnode: SF011: cannot read the run manifest nowhere.toml"
    )


def test_a_manifest_says_its_task_itself(tmp_path: Path, sfnode: Run) -> None:
    ended = sfnode("swarm", "--run", tmp_path / "run.toml", "--task", "sums")
    assert ended.status
    assert "--task: the manifest says it" in ended.err


def test_a_plug_in_scores_in_all_nodes_once_it_is_allowed(
    script: Script, sfnode: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugins, "_allowed", {})
    Path("mine.py").write_text("def polite(answer, row):\n    return 1.0\n")
    task = MANIFEST.task.model_copy(
        update={"kind": "reward", "verifier": verifying.load("mine:polite"), "answer_tokens": 4}
    )
    (tmp_path / "run.toml").write_text(MANIFEST.model_copy(update={"task": task}).to_toml())
    asked = ("swarm", "--run", "run.toml", "--nodes", "2")
    monkeypatch.setattr(plugins, "_allowed", {})
    refused = sfnode(*asked)
    assert (refused.status, "sfnode: SF090: " in refused.err, script.arguments) == (1, True, {})
    assert sfnode(*asked, "--verifier", "mine:polite").status == 0
    for arguments in script.arguments.values():
        assert arguments[arguments.index("--verifier") + 1] == "mine:polite"


def test_what_suits_another_base_model_is_measured_before_nodes_start(
    script: Script, sfnode: Run, tmp_path: Path
) -> None:
    make_model(tmp_path / "model")
    ended = sfnode(
        "swarm", "--task", "reviews", "--model", tmp_path / "model", "--out", "kept", "--nodes", "2"
    ).done()
    (file,) = (tmp_path / "kept").rglob("run.toml")
    run = Manifest.from_toml(file)
    assert run.model.source == "model"
    assert run.training.features, "which were measured"
    assert "measuring what suits the model" in ended.err
