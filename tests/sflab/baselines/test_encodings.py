"""Bytes of messages: the SeedFlood paper's own totals, from the shapes of OPT-1.3B."""

from __future__ import annotations

import pytest

from sflab.baselines import vectors
from sflab.baselines.clients import EdgeTraffic
from sfnode.models import shapes

ROUNDS = 100
OPT = shapes.describe("shape:opt-1.3b")
PARAMETERS = shapes.parameters(OPT)
ADAPTERS = OPT.num_hidden_layers * 2 * 8 * (OPT.hidden_size + OPT.hidden_size)


def test_the_papers_totals_are_those_of_one_direction_of_an_edge() -> None:
    assert (PARAMETERS, ADAPTERS) == (1_315_758_080, 1_572_864)
    assert ROUNDS * vectors.dense(PARAMETERS) / 1e9 == pytest.approx(526.3, abs=0.05)
    assert ROUNDS * vectors.sparse(vectors.kept(PARAMETERS, 0.01)) / 1e9 == pytest.approx(15.79, abs=0.005)
    assert ROUNDS * vectors.dense(ADAPTERS) / 1e6 == pytest.approx(629.1, abs=0.05)
    assert ROUNDS * vectors.sparse(vectors.kept(ADAPTERS, 0.01)) / 1e6 == pytest.approx(18.87, abs=0.005)


def test_bytes_per_edge_are_those_of_both_directions() -> None:
    traffic = EdgeTraffic()
    traffic.add((0, 1), 5)
    traffic.add((1, 0), 7)
    traffic.add((1, 2), 8)
    assert (traffic.total, traffic.per_edge) == (20, 10)


def test_a_share_is_at_least_one_entry() -> None:
    assert [vectors.kept(68, share) for share in (0.001, 0.01, 0.5, 1.0)] == [1, 1, 34, 68]
