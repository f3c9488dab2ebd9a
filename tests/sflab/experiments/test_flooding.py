"""A flood in rounds, against one that is carried out message by message."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from benchmarks.rounds import compare
from sflab.baselines.clients import EdgeTraffic
from sflab.experiments.cell import CellNetwork
from sflab.experiments.flooding import Conditions, Flood


def flood(**network: Any) -> tuple[Flood, EdgeTraffic, Conditions]:
    traffic, conditions = EdgeTraffic(), Conditions(CellNetwork(**network), 5)
    return (
        Flood(conditions, network["clients"], lambda origin, first, stop: 10 + stop - first, traffic),
        traffic,
        conditions,
    )


def by_messages(known: Any, edges: list[tuple[int, int]], hops: int) -> Counter[tuple[int, int]]:
    """Flood in place, one message after another; return the bytes that were sent."""
    sent: Counter[tuple[int, int]] = Counter()
    for _ in range(hops):
        before = known.copy()
        for one, other in edges:
            for a, b in ((one, other), (other, one)):
                for origin in range(known.shape[1]):
                    if before[a, origin] > before[b, origin]:
                        sent[a, b] += 10 + int(before[a, origin] - before[b, origin])
                        known[b, origin] = max(known[b, origin], before[a, origin])
    return sent


@pytest.mark.parametrize("topology", ["ring", "grid", "random", "complete", "changing"])
@pytest.mark.parametrize("hops", [1, 2])
def test_every_hop_brings_neighbours_what_they_lack(topology: str, hops: int) -> None:
    run, traffic, conditions = flood(topology=topology, clients=9, hops=hops)
    wanted, sent = np.zeros((9, 9), np.int64), Counter[tuple[int, int]]()
    for number in range(4):
        for matrix in (run.known, wanted):
            np.fill_diagonal(matrix, 3 * (number + 1))
        run.round(number)
        sent += by_messages(wanted, conditions.edges(number), hops)
        assert (run.known == wanted).all()
    assert traffic.sent == sent


def test_without_a_limit_of_hops_everything_reaches_everybody() -> None:
    run, _, _ = flood(topology="ring", clients=16)
    np.fill_diagonal(run.known, 5)
    run.round(0)
    assert (run.known == 5).all()


def test_with_k_hops_an_update_takes_rounds_to_get_around() -> None:
    run, _, _ = flood(topology="ring", clients=16, hops=2)
    run.known[0, 0] = 5
    for reached in (5, 9, 13, 16):
        run.round(0)
        assert (run.known[:, 0] == 5).sum() == reached


def test_what_is_lost_costs_bytes_and_comes_in_a_later_round() -> None:
    run, traffic, _ = flood(topology="ring", clients=16, loss=0.5)
    np.fill_diagonal(run.known, 1)
    run.round(0)
    lacking = int((run.known == 0).sum())
    assert lacking
    lost = traffic.total - 11 * (16 * 16 - 16 - lacking)
    assert lost > 0
    for number in range(1, 60):
        run.round(number)
    assert (run.known == 1).all()


def test_who_is_away_neither_sends_nor_receives() -> None:
    run, traffic, conditions = flood(topology="complete", clients=16, churn=0.5)
    away = ~conditions.present(0)
    assert 0 < away.sum() < 16
    np.fill_diagonal(run.known, 1)
    run.round(0)
    assert (run.known[away].sum(1) == 1).all()
    assert all(not away[list(edge)].any() for edge in traffic.sent)


def test_speeds_lie_evenly_between_the_slowest_and_the_fastest() -> None:
    conditions = Conditions(CellNetwork(clients=3, speeds=2.0), 0)
    made = sum(conditions.steps_by(number) for number in range(10))
    assert made.tolist() == [10, 15, 20]


@pytest.mark.parametrize(("topology", "most"), [("ring", 1.3), ("grid", 1.6)])
def test_it_sends_about_the_bytes_that_machines_send(topology: str, most: float) -> None:
    found = compare(topology, 9, 3)
    assert 1 / most < found.ratio < most
