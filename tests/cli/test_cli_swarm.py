"""What `sfnode swarm` shows, and what it does when the worst is true: digests that differ."""

from __future__ import annotations

import json
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
from cli_helpers import Ended
from rich.console import Console
from rich.table import Table

from sfnode.cli import swarm
from sfnode.cli.results import Measurement, NodeResult, SwarmResult
from sfnode.cli.swarmstory import Story
from sfnode.cli.swarmview import closing_table, measurement_line, progress_line, progress_table, verdict
from sfnode.config import Data, Manifest, Model, Task
from sfnode.runtime.status import Status

Run = Callable[..., Ended]

MANIFEST = Manifest(
    name="a-name",
    model=Model(source="nowhere", digest="0" * 64, targets=("layer:2x2",)),
    task=Task(kind="text", template="{text}"),
    data=Data(),
)


def status(**fields: object) -> Status:
    """A node in full swing, with the widest numbers that one sees."""
    usual: dict[str, object] = {
        "version": "0", "run_id": "ab", "run_name": "run", "role": "trainer", "state": "catching-up",
        "pid": 1, "peer": "Qm", "addresses": [], "known": 123_456, "update_budget": 200_000, "epoch": 0,
        "epochs": 1, "digest": "0123456789abcdef", "origin": "cd", "incarnation": 1, "own_updates": 34_567,
        "contributed": 34_567, "updates_per_second": 123.4, "loss": 12.3456, "lacking": 0, "links": [],
        "feed_count": 2, "bytes_sent": 1,
        "bytes_received": 1, "segment_bytes_sent": 1, "updates_sent": 1, "log_bytes": 1, "uptime": 1.0,
        "fetch": None, "pauses": [], "limits": {},
    }  # fmt: skip
    return Status.model_validate(usual | fields)


def result(*digests: str, cores: tuple[str, ...] = ("c", "c")) -> SwarmResult:
    """A swarm of two nodes that ended with these digests."""
    nodes = [
        NodeResult(node=number, own_updates=50, digest=digest, core_digest=core)
        for number, (digest, core) in enumerate(zip(digests, cores, strict=True), 1)
    ]
    measured = [
        Measurement(
            metric="accuracy", value=value, low=value - 0.1, high=value + 0.2, loss=1 - value, count=9
        )
        for value in (0.5, 0.75)
    ]
    return SwarmResult(
        version="0", run_id="ab", run_name="run", updates=100, update_budget=98,
        equal=len(set(digests)) == len(set(cores)) == 1, before=measured[0], after=measured[1], nodes=nodes,
        bytes_per_update=12.345, bytes_sent=999, seconds=2.5, seconds_in_all=10.0,
    )  # fmt: skip


def drawn(table: Table) -> list[str]:
    """The table as a terminal of 80 columns shows it."""
    screen = StringIO()
    Console(width=80, file=screen).print(table)
    return screen.getvalue().splitlines()


def test_progress_fits_a_terminal_of_80_columns_with_nothing_cut_off() -> None:
    lines = drawn(progress_table("a-rather-long-name", [status(), None]))
    assert max(map(len, lines)) <= 80
    row = next(line for line in lines if "catching-up" in line)
    for text in ("123456", "34567", "123.4", "12.346", "0123456789ab"):
        assert text in row
    assert any("starting" in line for line in lines)


def test_progress_is_that_of_the_slowest_at_the_rate_of_all() -> None:
    line = progress_line([status(known=10, loss=1.0), status(known=12, loss=2.0), status(loss=None)])
    assert line == "10 of 200000 updates, 370/s, loss 1.500"


def test_while_nodes_start_it_says_how_many_are_up() -> None:
    assert progress_line([status(), None, None]) == "1 of 3 nodes are up"


def test_the_closing_words_are_the_figures_and_the_verdict() -> None:
    said = result("d", "d")
    assert verdict(said) == [
        "accuracy 0.500 (0.400-0.700) -> 0.750 (0.650-0.950) on 9 held-out rows",
        "loss 0.500 -> 0.250",
        "100 updates in 2.5 s, 12.3 bytes per update on the wire",
        "OK: all digests are equal (d)",
    ]
    rows = [line.split() for line in drawn(closing_table(said))]
    assert ["│", "1", "│", "50", "│", "d", "│", "c", "│"] in rows


def test_a_measurement_is_said_with_its_95_percent_interval() -> None:
    measured = Measurement(metric="accuracy", value=0.526, low=0.493, high=0.559, loss=0.687, count=872)
    expected = "base model: accuracy 0.526 (0.493-0.559), loss 0.687 on 872 held-out rows"
    assert measurement_line("base model", measured) == expected


def test_a_run_without_test_data_has_no_accuracy_to_show() -> None:
    said = result("d", "d").model_copy(update={"before": None, "after": None})
    assert verdict(said)[0].startswith("100 updates")


@pytest.mark.parametrize("differing", [result("d", "e"), result("d", "d", cores=("c", "b"))])
def test_digests_or_cores_that_differ_are_a_failure(
    differing: SwarmResult, sfnode: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def tell(story: Story) -> SwarmResult:
        return differing

    monkeypatch.setattr(swarm.Story, "tell", tell)
    (tmp_path / "run.toml").write_text(MANIFEST.to_toml())
    ended = sfnode("swarm", "--run", "run.toml", "--folder", "kept", "--json")
    assert ended.status == 1
    assert SwarmResult.model_validate(json.loads(ended.out)) == differing
    assert ended.err.startswith("sfnode: SF062: ")
    assert "kept" in ended.err
    assert verdict(differing)[-1] == "FAILED: the digests differ"


def test_the_nodes_folders_are_removed_unless_there_is_something_to_look_into(
    sfnode: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "run.toml").write_text(MANIFEST.to_toml())
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(swarm.tempfile, "mkdtemp", lambda prefix: str(scratch))
    endings = {("d", "e"): True, ("d", "d"): False}
    for digests, kept in endings.items():

        async def tell(story: Story, digests: tuple[str, ...] = digests) -> SwarmResult:
            return result(*digests)

        monkeypatch.setattr(swarm.Story, "tell", tell)
        sfnode("swarm", "--run", "run.toml")
        assert scratch.exists() == kept


def test_a_folder_that_cannot_be_made_is_named(sfnode: Run, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(MANIFEST.to_toml())
    (tmp_path / "file").write_text("")
    ended = sfnode("swarm", "--run", "run.toml", "--folder", "file/nodes")
    assert ended.status == 1
    assert ended.err.startswith("sfnode: SF010: cannot write to file/nodes")


def test_a_manifest_that_is_not_there_is_an_error_before_anything_starts(sfnode: Run) -> None:
    ended = sfnode("swarm", "--run", "nowhere.toml")
    assert ended.status == 1
    assert ended.err.startswith("sfnode: SF011: cannot read the run manifest nowhere.toml")
