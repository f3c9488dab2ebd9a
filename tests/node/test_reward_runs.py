"""Reward runs in whole nodes: a tiny random model writes answers, and all end with the same weights."""

from __future__ import annotations

import asyncio
import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sfnode.manifest import Manifest
from sfnode.manifest.sections import Data, OrganisedSection
from sfnode.manifest.task import Task
from sfnode.manifest.training import Training
from sfnode.organising.policy import SEARCH_WAIT, policy_of
from sfnode.schema.metrics import PASS_AT_1
from sfnode.settings import Settings
from sfnode.store.identity import Identity
from sfnode.tasks import public_files
from sfnode.verifiers import plugins
from sfprotocol.decisions import Evaluated, Seal, Worth
from tests.node.fixtures import work_takes_no_time
from tests.node.helpers import Node, Swarm, decided, organised
from tests.node.training.test_model import fingerprint, make_model, trains

VERIFIER: dict[str, Any] = {
    "kind": "sum",
    "terms": [
        {"weight": 0.5, "verifier": {"kind": "exact", "column": "word"}},
        {"weight": 0.5, "verifier": {"kind": "format", "contains": ["film"]}},
    ],
}
TASK = Task(kind="reward", template="the {word}", verifier=VERIFIER, answer_tokens=3, temperature=1.0)
ORGANISER = Identity.generate().public.hex()
ROWS = [{"word": word} for word in ("film", "dull", "bright", "terrible", "great", "was", "good", "bad")]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model and with rows."""
    folder = tmp_path_factory.mktemp("model")
    make_model(folder)
    for role in public_files.ROLES:
        (folder / f"{role}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return folder


@pytest.fixture(scope="module")
def run(home: Path) -> Manifest:
    """A run on a model and on data that are files."""
    from sfnode.models import loader

    sources: dict[str, Any] = {role: f"{role}.jsonl" for role in public_files.ROLES}
    digests = {role: public_files.digest_of(home / name) for role, name in sources.items()}
    return Manifest(
        name="rewards",
        model=loader.describe(str(home), ""),
        task=TASK,
        data=Data.model_validate(sources | {"digests": digests, "validation_limit": len(ROWS)}),
        training=Training(
            rank=4, batch_size=4, epsilon=0.05, epoch_updates=20, update_budget=60, learning_rate=0.01
        ),
    )


async def complete(swarm: Swarm, home: Path, **first: Any) -> list[Node]:
    nodes = [trains(swarm, name, home) for name in "ab"]
    await swarm.first(queries=2, model=home, **first)
    await swarm.join("b", queries=2, model=home)
    for node in nodes:
        await node.until(lambda node=node: node.machine.complete)  # type: ignore[misc]
    return nodes


async def test_two_nodes_learn_from_rewards_and_end_with_the_same_weights(
    tmp_path: Path, home: Path, run: Manifest
) -> None:
    swarm = Swarm(tmp_path, run)
    nodes = await complete(swarm, home)
    for node in nodes:
        await node.until(lambda: nodes[0].digest == nodes[1].digest)
    now = await nodes[0].client.evaluate()
    assert (now.metric, now.count) == (PASS_AT_1, len(ROWS))
    assert now.loss <= 1 - now.value + 1e-9, "an answer that is right has the whole reward"
    assert (await nodes[1].client.evaluate()).value == now.value
    assert (await nodes[0].client.evaluate(base=True)).metric == PASS_AT_1
    assert (await nodes[0].client.generate("the film", tokens=2)).now
    assert any(core.any() for core in nodes[0].engine.cores().values())
    await swarm.stop()
    for node in nodes:
        node.engine.weights.rebuild()
    assert fingerprint(nodes[0].engine) == fingerprint(nodes[1].engine)


async def test_an_organised_run_is_judged_by_answers_and_searched(
    tmp_path: Path, home: Path, run: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    work_takes_no_time(monkeypatch)
    budget = 240  # both nodes may make half as much before the first epoch is closed
    numbers = run.training.model_copy(update={"epoch_updates": 40, "update_budget": budget, "group": 8})
    run = run.model_copy(update={"training": numbers})
    swarm = Swarm(tmp_path, organised(run, tmp_path / "keys", quota=budget))
    nodes = await complete(swarm, home, organise=True, keys_dir=tmp_path / "keys")
    results = decided(nodes[0], Evaluated)
    assert len(decided(nodes[0], Seal)) >= 2
    assert decided(nodes[0], Worth), "what members brought was measured"
    assert {one.metric for one in results} == {f"base {PASS_AT_1}", PASS_AT_1}
    assert all(one.rows == len(ROWS) for one in results)
    await nodes[1].until(lambda: nodes[0].digest == nodes[1].digest)  # what counts, and what came too late to
    cores = [await node.node.core_status() for node in nodes]
    assert cores[0].core_digest == cores[1].core_digest
    models = [await node.client.evaluate() for node in nodes]
    assert models[0].digest == models[1].digest
    assert models[0].loss == models[1].loss
    status = nodes[1].node.status().organised
    assert status.health.latest.metric == PASS_AT_1


def test_an_organiser_of_rewards_has_the_settings_of_any_other_and_more_time(run: Manifest) -> None:
    run = run.model_copy(update={"organised": OrganisedSection(organiser=ORGANISER, quota=60)})
    plain = run.model_copy(update={"task": Task(kind="text", template="{word}")})
    policy = policy_of(run, Settings(search=True, renew_bases=100))
    usual = policy_of(plain, Settings(search=True, renew_bases=100))
    assert policy == replace(usual, update_forwards=run.update_forwards)
    assert policy.search_rows
    assert policy.origins
    assert policy.guard
    unsearched = Settings(search=False)
    assert policy_of(run, unsearched).seal_wait == SEARCH_WAIT > policy_of(plain, unsearched).seal_wait


@pytest.mark.parametrize(
    ("given", "epoch", "kind", "every"),
    [(None, 48, "reward", 96), (None, 500, "reward", 500), (0, 48, "reward", 0), (None, 48, "text", 0)],
)
def test_bases_serve_for_some_groups_of_a_reward_run_and_elsewhere_for_ever(
    run: Manifest, given: int | None, epoch: int, kind: str, every: int
) -> None:
    published = {"basis": "published", "bases": "0" * 64, "rank": 1, "epoch_updates": epoch}
    task = run.task if kind == "reward" else Task(kind="text", template="{word}")
    numbers = run.training.model_copy(update=published)
    run = run.model_copy(update={"training": numbers, "task": task})
    policy = policy_of(run, Settings(renew_bases=given))
    assert policy.renew_updates == every
    assert policy.longest == epoch, "which does not make epochs shorter"


PLUGIN = """
import threading

entered, gate = threading.Event(), threading.Event()

def judge(answer, row):
    entered.set()
    gate.wait(20)
    return {"film": 1.0}.get(row["word"], 0.0) or len(answer) / "not a number"
"""


async def test_who_says_no_to_a_plug_in_relays_and_one_that_hangs_or_raises_stops_nobody_else(
    tmp_path: Path,
    home: Path,
    run: Manifest,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plugins, "_allowed", {})
    (tmp_path / "mine.py").write_text(PLUGIN)
    digest = hashlib.sha256(PLUGIN.encode()).hexdigest()
    verifier = {"kind": "plugin", "digest": digest, "function": "judge"}
    task = Task(**TASK.model_dump() | {"verifier": verifier})
    training = run.training.model_copy(update={"update_budget": 8, "epoch_updates": 8})
    swarm = Swarm(tmp_path, run.model_copy(update={"task": task, "training": training}))
    asked, willing = (trains(swarm, name, home) for name in "ab")
    await swarm.first()
    assert asked.node.settings.role == "relay"
    assert "SF090" in caplog.text
    assert "relays updates, and evaluates nothing" in caplog.text
    await willing.start(swarm.run_file, peers=(asked.address,), model=home, verifier=("mine:judge",))
    module = plugins._allowed[plugins.Name(digest, "judge")].__globals__  # type: ignore[attr-defined]
    assert await asyncio.to_thread(module["entered"].wait, 30)
    assert (await willing.client.status()).known == 0  # the plug-in holds the engine's thread alone
    module["gate"].set()
    await willing.until(lambda: willing.machine.complete)
    await asked.until(lambda: asked.digest == willing.digest)
    assert caplog.text.count("the plug-in judge failed") == 1
    await swarm.stop()
