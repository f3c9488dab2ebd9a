"""The network of a cell, round by round."""

from __future__ import annotations

from typing import get_args

import pytest

from sflab.experiments.cell import CellNetwork, Topology
from sflab.experiments.problem import Conditions


@pytest.mark.parametrize("topology", get_args(Topology))
def test_who_is_away_has_no_links(topology: Topology) -> None:
    conditions = Conditions(CellNetwork(topology=topology, clients=16, churn=0.5), 5)
    there = conditions.present(0)
    assert 0 < there.sum() < 16
    assert set(conditions.edges(0)) < set(conditions.links(0))
    assert all(there[list(edge)].all() for edge in conditions.edges(0))


def test_links_change_where_the_topology_says_so() -> None:
    changing, ring = (
        Conditions(CellNetwork(topology=topology, clients=9), 5) for topology in ("changing", "ring")
    )
    assert changing.links(0) != changing.links(1)
    assert ring.links(0) == ring.links(1)
    assert len(ring.links(0)) == 9


def test_speeds_lie_evenly_between_the_slowest_and_the_fastest() -> None:
    conditions = Conditions(CellNetwork(clients=3, speeds=2.0), 0)
    made = sum(conditions.steps_by(number) for number in range(10))
    assert made.tolist() == [10, 15, 20]
