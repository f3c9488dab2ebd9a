"""The promises hold in every scenario: nothing is lost, doubled or forged, and all are equal in bounded time.

    SFNODE_SEEDS=100 pytest tests/sflab/simulator/test_scenarios.py

tries every scenario at full length with a hundred seeds. A failure then prints the command that repeats it.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from sflab.simulator import runner
from sflab.simulator.runner import Run, simulate
from sflab.simulator.scenarios import SCENARIOS, Scenario
from sfprotocol.decisions import Amend, Close, Decision, Seal, read
from tests.sflab.simulator.conftest import SEEDS

ELSEWHERE = () if SEEDS else ("checkpoints", "false-claims", "judged", "lost", "storm", "vectors")
"""Scenarios that have their own tests below."""

FEW = 6
"""Number of nodes in a short course."""


def short(scenario: Scenario) -> Scenario:
    """Return the scenario with few nodes, and with as many adversaries for each of them."""
    attack, few = scenario.attack, min(scenario.nodes, FEW)
    if attack:
        attack = replace(attack, actors=attack.actors * few // scenario.nodes)
    return replace(scenario, nodes=few, attack=attack)


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name not in ELSEWHERE])
def test_nodes_survive_and_become_equal(name: str, seed: int, seconds: float | None) -> None:
    scenario = SCENARIOS[name] if SEEDS else short(SCENARIOS[name])
    outcome = simulate(scenario, seed, seconds=seconds)
    assert outcome.failure is None, "\n".join(runner.lines(outcome))
    assert outcome.updates > 0
    assert outcome.deliveries > 0


def test_claims_that_nobody_can_show_cost_no_node_its_feed(seed: int) -> None:
    # Whoever claimed more of a node's feed than its log held used to end that feed at every restart.
    with Run(short(SCENARIOS["false-claims"]), seed, seconds=10) as run:
        succeed(run)
        feeds = list(run.world.oracle.stories)
        assert len({feed.origin for feed in feeds}) == len(feeds) >= run.nodes - 1  # one is never asked


def succeed(run: Run) -> None:
    outcome = run.outcome()
    assert outcome.failure is None, "\n".join(runner.lines(outcome))


def decided(run: Run) -> list[Decision]:
    """The decisions that all nodes have in the end."""
    return [read(entry.record).decision for entry in run.world["n0"].organised.control.feed.entries]


def test_seals_that_are_judged_say_all_that_a_seal_may_say(seed: int) -> None:
    with Run(SCENARIOS["judged"], seed, nodes=4) as run:
        succeed(run)
        seals = [decision for decision in decided(run) if isinstance(decision, Seal)]
        assert len({seal.factor for seal in seals}) > 1
        for part in ("skipped", "recounted", "rates"):
            assert any(getattr(seal, part) for seal in seals), part


def test_vectors_count_by_the_units_and_limits_of_their_labels(seed: int) -> None:
    with Run(SCENARIOS["vectors"], seed, nodes=4, seconds=8) as run:
        succeed(run)
        assert run.world.run.cells == 16 * (1 + seed // 4 % 4)
        said = decided(run)
        rates = [rate for decision in said if isinstance(decision, Seal) for rate in decision.rates]
        assert len({rate.unit for rate in rates}) > 1
        assert len({rate.limit for rate in rates}) > 1
        assert any(move.zeros for decision in said if isinstance(decision, Close) for move in decision.moves)
        faults = {fault[:2] for node in run.world.nodes.values() for fault in node.faults}
        assert {"C6", "C7"} <= faults


def test_lost_feeds_are_given_up_and_no_others(seed: int) -> None:
    with Run(SCENARIOS["lost"], seed, nodes=5, seconds=12) as run:
        succeed(run)
        amends = [decision for decision in decided(run) if isinstance(decision, Amend)]
        run_state = run.world["n0"].organised.run_state
        assert amends
        assert {run_state.feed(amend.feed).origin for amend in amends} <= run.world.undone


def test_nodes_begin_with_checkpoints_and_others_let_go_of_what_comes_before() -> None:
    with Run(SCENARIOS["checkpoints"], 0, nodes=5) as run:  # newcomers begin with one, too
        succeed(run)
        nodes = list(run.world.staying())
        floors = {node.name: node.machine.frontier.floor for node in nodes}
        assert all(floors[node.name] > 0 for node in nodes if node.prunes)
        assert any(floors[node.name] > 0 for node in nodes if not node.prunes)
        assert not floors["n0"], "the organiser keeps everything"


@pytest.mark.parametrize("topology", ["ring", "random", "star", "line", "bridge", "managed"])
def test_every_topology_carries_a_storm(topology: str, seed: int) -> None:
    outcome = simulate(SCENARIOS["storm"], seed, topology=topology, nodes=6, seconds=6)
    assert outcome.failure is None, "\n".join(runner.lines(outcome))


def test_deputies_pass_on_a_run_whose_terms_go_to_stand_ins_too() -> None:
    outcome = simulate(SCENARIOS["organiser-lost"], 3, nodes=5, seconds=8)
    assert outcome.failure is None, "\n".join(runner.lines(outcome))
