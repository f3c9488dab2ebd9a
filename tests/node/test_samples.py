"""Samples: the model's answers to a few test rows, recorded after each seal at a bounded cost."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from sfnode.errors import Code, UserError
from sfnode.node import samples
from tests.node.helpers import Answered, SmallEngine, Swarm, eventually
from tests.node.test_organising import little_work, options, organised  # noqa: F401


@pytest.fixture(autouse=True)
def look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "LOOK_INTERVAL", 0.01)


async def test_each_seal_s_model_answers_the_same_rows_as_the_base_model(
    organised: Swarm,  # noqa: F811
    tmp_path: Path,
) -> None:
    a = await organised.first(**options(tmp_path), samples=2)
    await a.until(lambda: a.machine.complete)
    last = a.machine.organised.run_state.sealed - 1
    await eventually(lambda: (seen := a.node.sampling.view().moments) and seen[-1].epoch == last)
    found = await a.client.samples()
    assert [(row.text, row.right, row.base) for row in found.rows] == [
        ("row 0", "much", "?"), ("row 1", "much", "?")
    ]  # fmt: skip
    epochs = [moment.epoch for moment in found.moments]
    assert epochs == sorted(set(epochs))
    assert all(moment.answers == [str(moment.known)] * 2 for moment in found.moments)
    timeline = await a.client.timeline(limit=3)
    assert len(timeline.entries) == 3 <= timeline.total
    seals = [one for one in (await a.client.timeline()).entries if one.kind == "seal"]
    assert [one.epoch for one in seals] == list(range(last, -1, -1))
    assert sum(one.counted or 0 for one in seals) == a.machine.organised.run_state.counted
    own = await a.client.standing()
    assert (own.rank, own.of, own.counted) == (1, 1, a.machine.organised.run_state.counted)


async def test_nothing_is_asked_of_a_model_that_is_the_base_model_yet(
    organised: Swarm,  # noqa: F811
    tmp_path: Path,
) -> None:
    """Each node once answered before the first seal, too: two priors of 512 rows, in a short run a third of
    all forwards."""
    asked: list[int] = []

    class Asked(SmallEngine):
        def answer(self, rows: int, *, base: bool) -> list[Answered]:
            asked.append(a.machine.organised.run_state.sealed)
            return super().answer(rows, base=base)

    a = organised.node("a", make_engine=lambda run: Asked(run).go())
    await organised.first(**options(tmp_path), samples=1)
    await eventually(lambda: a.node.sampling.view().moments)
    assert min(asked) > 0


async def test_an_open_run_is_sampled_when_an_epoch_begins_and_not_where_that_was_not_wanted(
    swarm: Swarm,
) -> None:
    a, b = await swarm.first(samples=1), await swarm.join("b", samples=0)
    await eventually(lambda: a.node.sampling.view().moments)
    assert (await b.client.samples()).rows == []
    assert (await a.client.timeline()).total == 0


async def test_many_moments_are_thinned_out(swarm: Swarm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "MAX_MOMENTS", 4)
    monkeypatch.setattr(samples, "COST", 0)
    a = await swarm.first(samples=1)
    await a.until(lambda: a.machine.epoch > 12)
    moments = a.node.sampling.view().moments
    assert 0 < len(moments) <= 4
    assert [moment.known for moment in moments] == sorted(moment.known for moment in moments)


async def test_samples_outlive_a_restart_and_the_base_model_is_not_asked_again(
    swarm: Swarm, tmp_path: Path
) -> None:
    a = await swarm.first(samples=2)
    await eventually(lambda: a.node.sampling.view().moments)
    await a.stop()
    before = samples.kept(a.folder / "samples.json")
    assert before == a.node.sampling.view()
    assert (a.folder / "samples.json").stat().st_mode & 0o777 == 0o600, "they may be private"
    asked: list[bool] = []

    class Asked(SmallEngine):
        def answer(self, rows: int, *, base: bool) -> list[Answered]:
            asked.append(base)
            return super().answer(rows, base=base)

    again = swarm.node("a", make_engine=lambda run: Asked(run).go())
    await again.start(samples=2)
    await eventually(lambda: again.node.sampling.view().moments[len(before.moments) :])
    after = await again.client.samples()
    assert (after.rows, after.moments[: len(before.moments)]) == (before.rows, before.moments)
    assert True not in asked


async def test_samples_are_taken_though_they_cannot_be_written(
    swarm: Swarm, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(samples, "COST", 0)

    def full(*_: Any) -> None:
        raise UserError(Code.DISK_FULL, "the disk is full", "Make room.")

    monkeypatch.setattr(samples, "write_whole", full)
    a = await swarm.first(samples=2)
    await eventually(lambda: len(a.node.sampling.view().moments) > 1)
    assert caplog.text.count("the disk is full") == 1


async def test_samples_of_other_rows_are_begun_anew(swarm: Swarm) -> None:
    a = await swarm.first(samples=2)
    await eventually(lambda: a.node.sampling.view().moments)
    await a.stop()
    before = a.node.sampling.view()
    (a.folder / "samples.json").write_text(before.model_dump_json().replace("row 1", "row 7"))
    again = swarm.node("a")
    await again.start(samples=2)
    await eventually(lambda: (now := again.node.sampling.view()).rows and now.rows[1].text == "row 1")
    assert again.node.sampling.view().moments[0] not in before.moments


def test_a_damaged_file_of_samples_is_none(tmp_path: Path) -> None:
    nothing = samples.kept(tmp_path / "samples.json")
    (tmp_path / "samples.json").write_text('{"rows": [{"text"')
    assert samples.kept(tmp_path / "samples.json") == nothing


async def test_training_goes_on_while_test_data_are_read(swarm: Swarm) -> None:
    """The data may come from a slow hub, or be large."""
    come = threading.Event()

    class Slow(SmallEngine):
        def read_test_rows(self) -> None:
            come.wait(60)

    a = swarm.node("a", make_engine=lambda run: Slow(run).go())
    await a.start(swarm.run_file, samples=1)
    await eventually(lambda: "samples" in {thread.name for thread in threading.enumerate()})
    before = a.known
    await a.until(lambda: a.known > before + 20)
    assert a.node.sampling.view().moments == []
    come.set()
    await eventually(lambda: a.node.sampling.view().moments)


class WithoutRows(SmallEngine):
    def read_test_rows(self) -> None:
        raise UserError(Code.DATA_NEEDED, "the run names no test data", "Name some.")


async def test_a_run_without_test_rows_has_no_samples_and_its_node_goes_on(
    swarm: Swarm, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    a = swarm.node("a", make_engine=lambda run: WithoutRows(run).go())
    await a.start(swarm.run_file, samples=1)
    await eventually(lambda: "no samples of the model's answers" in caplog.text)
    before = a.known
    await a.until(lambda: a.known > before)
