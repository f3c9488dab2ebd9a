"""What a node tells its loggers, compared with what it answers when it is asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sfnode.errors import Code
from sfnode.manifest.task import Task
from sfnode.node import recorder
from sfnode.store.run_keys import organiser_key
from sfprotocol.decisions import FACTOR_ONE, Evaluated
from tests.node.helpers import Swarm, SwarmOf, decided, manifest
from tests.node.test_organising import little_work, options, organised
from tests.refusals import fails_with

__all__ = ["little_work", "organised"]


@pytest.fixture(autouse=True)
def look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "RECORD_INTERVAL", 0.02)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def of(kind: str, path: Path) -> list[dict[str, Any]]:
    return [line for line in lines(path) if line.get("kind") == kind]


async def test_a_node_records_steps_traffic_and_evaluations_until_its_end(
    swarm_of: SwarmOf, tmp_path: Path
) -> None:
    swarm, path = swarm_of(manifest("a-run", update_budget=600)), tmp_path / "a.jsonl"
    a = await swarm.first(log_to=[f"jsonl:{path}"])
    b = await swarm.join("b")
    for node in (a, b):
        await node.until(lambda node=node: node.machine.complete and not node.node.model.scheduler.busy)
    base, now = await a.client.evaluate(base=True, limit=5), await a.client.evaluate(limit=5)
    control = await a.client.evaluate(base=True, calibrated=True, limit=5)
    assert (base.calibrated, control.calibrated) == (False, True)
    await a.stop()
    status = a.node.status()
    begun = lines(path)[0]
    assert (begun["run"], begun["settings"]["manifest"]["training"]["rank"]) == ("a-run", 4)
    last = of("step", path)[-1]
    assert last["step"] == last["values"]["known"] == a.known >= 600
    assert last["values"]["own_updates"] == status.own_updates
    assert last["values"]["loss"] == status.loss
    assert of("step", path)[0]["step"] < 600
    assert of("traffic", path)[-1]["values"]["segment_bytes_sent"] == status.segment_bytes_sent > 0
    first, second, third = of("evaluation", path)
    assert (third["step"], third["values"]["calibrated_accuracy"]) == (0, control.value)
    assert (first["step"], first["values"]["base_accuracy"]) == (0, base.value)
    assert (second["step"], second["values"]["accuracy"]) == (now.known, now.value)
    assert second["values"]["loss"] == now.loss
    assert (base.drift, now.drift.kl, second["values"]["drift_kl"]) == (None, 0.5, 0.5)
    assert second["values"]["drift_distance"] == now.drift.distance > 0
    assert not any(name.startswith("drift") for name in first["values"])


async def test_a_node_of_an_organised_run_records_every_seal_with_its_factor_and_rate(
    organised: Swarm, tmp_path: Path
) -> None:
    path = tmp_path / "a.jsonl"
    a = await organised.first(**options(tmp_path), log_to=[f"jsonl:{path}"])
    await a.until(lambda: a.machine.complete)
    await a.stop()
    run_state = a.machine.organised.run_state
    seals = of("epoch", path)
    assert [line["values"]["epoch"] for line in seals] == list(range(run_state.sealed))
    assert seals[-1]["values"]["counted"] == run_state.counted >= 400
    for line in seals:
        said = line["values"]
        assert said["rate"] == run_state.rate(said["epoch"]) / 2**32
        assert said["factor"] == 1.0 == FACTOR_ONE / (1 << 12)


@pytest.mark.parametrize("organised", ["rows"], indirect=True)
async def test_what_the_organiser_measures_is_recorded_beside_the_base_model(
    organised: Swarm, tmp_path: Path
) -> None:
    path = tmp_path / "a.jsonl"
    a = await organised.first(**options(tmp_path), search=False, log_to=[f"jsonl:{path}"])
    await a.until(lambda: a.node.status().organised.health.latest)
    await a.stop()
    found = [line["values"] for line in of("evaluation", path)]
    (base,) = [values for values in found if "validation_base_accuracy" in values]
    assert (base["validation_base_accuracy"], base["validation_base_loss"]) == (0.0, 0.7)
    published = [values["validation_epoch"] for values in found if "validation_epoch" in values]
    assert published == [said.epoch for said in decided(a, Evaluated) if said.metric == "accuracy"]
    latest = a.node.status().organised.health.latest
    assert found[-1]["validation_epoch"] == latest.epoch
    assert found[-1]["validation_accuracy"] == latest.value


@pytest.mark.parametrize("organised", ["rows"], indirect=True)
async def test_where_there_are_classes_the_calibrated_base_model_is_published_too(
    organised: Swarm, tmp_path: Path
) -> None:
    task = Task(kind="classification", template="{text}", verbalizer={"0": "bad", "1": "good"})
    run = organised.run.model_copy(update={"task": task})
    organised.run_file.write_text(run.to_toml())
    of, keys = organised.run.run_id, tmp_path / "keys"
    organiser_key(of, keys).rename(organiser_key(run.run_id, keys))
    a = await organised.first(**options(tmp_path), search=False)
    await a.until(lambda: a.node.status().organised.health.latest is not None)
    health = a.node.status().organised.health
    assert (health.base.base, health.base.calibrated) == (True, False)
    assert (health.calibrated.base, health.calibrated.calibrated) == (True, True)
    await a.stop()


async def test_a_node_started_again_records_no_seal_twice(organised: Swarm, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    a = await organised.first(**options(tmp_path), log_to=[f"jsonl:{path}"])
    await a.until(lambda: a.machine.organised.run_state.sealed > 1)
    await a.stop()
    await a.start(**options(tmp_path), alone=True, log_to=[f"jsonl:{path}"])
    await a.until(lambda: a.machine.complete)
    await a.stop()
    epochs = [line["values"]["epoch"] for line in of("epoch", path)]
    assert epochs == list(range(a.machine.organised.run_state.sealed))
    assert sum("run" in line for line in lines(path)) == 2


async def test_the_name_of_a_metric_is_a_strangers_text(organised: Swarm, tmp_path: Path) -> None:
    a = await organised.first(**options(tmp_path))
    result = await a.node.evaluate(base=False, limit=3)
    odd = result.model_copy(update={"metric": "../x\n"})
    assert recorder._scores("", odd).keys() == {"score", "low", "high", "loss"}


async def test_a_full_disk_costs_a_line_in_the_log_and_not_the_node(
    swarm: Swarm, caplog: pytest.LogCaptureFixture
) -> None:
    a = await swarm.first(log_to=["jsonl:/dev/full"])
    await a.until(lambda: "jsonl:/dev/full fails" in caplog.text and a.known > 100)
    await a.stop()
    assert "No space left" in caplog.text
    assert sum("fails" in line for line in caplog.messages) < 10


async def test_a_logger_that_cannot_be_opened_keeps_the_node_from_starting(
    swarm: Swarm, tmp_path: Path
) -> None:
    with fails_with(Code.LOGGER_UNUSABLE):
        await swarm.first(log_to=[f"jsonl:{tmp_path}/nowhere/a.jsonl"])
    a = await swarm.first()  # and nothing of it stays
    await a.until(lambda: a.known > 10)
