"""DSGD and ChocoSGD against their recursions, written anew in numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from sflab.baselines import vectors
from tests.sflab.baselines.quadratic import Quadratic, made, ring, run

STAR = [(0, 1), (0, 2), (0, 3), (2, 3)]
Matrix = NDArray[np.float64]


def reference_mixing(clients: int, links: list[tuple[int, int]]) -> Matrix:
    degree = [sum(client in link for link in links) for client in range(clients)]
    weights = np.eye(clients)
    for i, j in links:
        weight = 1 / (1 + max(degree[i], degree[j]))
        weights[[i, j], [j, i]] = weight
        weights[[i, j], [i, j]] -= weight
    return weights


def centres(problem: Quadratic) -> Matrix:
    return problem.centres.double().numpy()


def local_steps(x: Matrix, problem: Quadratic, rate: float, count: int) -> Matrix:
    for _ in range(count):
        x = x - rate * problem.curvature.double().numpy() * (x - centres(problem))
    return x


def test_mixing_weights_are_those_of_metropolis_and_hastings() -> None:
    weights = vectors.metropolis(4, STAR)
    np.testing.assert_allclose(weights, reference_mixing(4, STAR), atol=1e-7)
    assert torch.equal(weights, weights.t())
    torch.testing.assert_close(weights.sum(1), torch.ones(4))
    assert (weights >= 0).all()


def test_mixing_in_place_is_a_product_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectors, "BLOCK", 7)
    x, weights = torch.randn(4, 33), vectors.metropolis(4, STAR)
    wanted = weights @ x
    vectors.mix(x, weights)
    torch.testing.assert_close(x, wanted)


def test_dsgd_follows_its_recursion() -> None:
    method = made("dsgd", 4, lambda number: STAR)
    x = method.x.double().numpy().copy()
    for first in range(0, 12, 2):
        run(method, first, first + 2)
        x = reference_mixing(4, STAR) @ local_steps(x, method.problem, 0.1, 2)
        np.testing.assert_allclose(method.x, x, atol=1e-5)
        spread = np.square(x - x.mean(0)).sum(1).mean()
        assert method.consensus() == pytest.approx(spread, rel=1e-4)


def test_the_mean_of_dsgd_has_a_closed_form_where_all_curvatures_are_one() -> None:
    problem = Quadratic(4, even=True)
    method = made("dsgd", problem=problem)
    run(method, 0, 10)
    goal = problem.centres.mean(0)
    torch.testing.assert_close(method.x.mean(0), goal + 0.9**10 * (problem.start() - goal))


def test_dsgd_of_one_client_is_torchs_sgd() -> None:
    alone = made("dsgd", 1, ring(1))
    run(alone, 0, 7)
    x = nn.Parameter(alone.problem.start())
    torchs = torch.optim.SGD([x], lr=0.1)
    for _ in range(7):
        x.grad = alone.problem.gradient(x.data, 0, 0)[1]
        torchs.step()
    torch.testing.assert_close(alone.x[0], x.data)


def test_dsgd_sends_whole_vectors_both_ways_over_every_link() -> None:
    method = made("dsgd", 4, lambda number: STAR)
    run(method, 0, 4)
    ways = {edge for link in STAR for edge in (link, link[::-1])}
    assert method.traffic.sent == dict.fromkeys(ways, 2 * 4 * 68)


def test_chocosgd_follows_its_papers_recursion() -> None:
    gamma, kept = 0.3, 7
    method = made("chocosgd", 4, lambda number: STAR, options={"gamma": gamma, "keep": kept / 68})
    x = method.x.double().numpy().copy()
    public = x.copy()
    weights = reference_mixing(4, STAR)
    for first in range(0, 20, 2):
        run(method, first, first + 2)
        x = local_steps(x, method.problem, 0.1, 2)
        for client in range(4):
            difference = x[client] - public[client]
            largest = np.argsort(-np.abs(difference))[:kept]
            public[client, largest] += difference[largest]
        x += gamma * np.stack(
            [sum(weights[i, j] * (public[j] - public[i]) for j in range(4)) for i in range(4)]
        )
        np.testing.assert_allclose(method.public, public, atol=1e-5)
        np.testing.assert_allclose(method.x, x, atol=1e-5)
    assert set(method.traffic.sent.values()) == {10 * kept * (4 + 8)}


def test_chocosgd_that_sends_everything_with_a_whole_step_is_dsgd() -> None:
    whole, plain = made("chocosgd", options={"gamma": 1.0, "keep": 1.0}), made("dsgd")
    run(whole, 0, 8)
    run(plain, 0, 8)
    torch.testing.assert_close(whole.x, plain.x)


def test_chocosgd_reaches_consensus_though_it_sends_a_few_entries() -> None:
    method = made("chocosgd", 4, learning_rate=0.0, options={"gamma": 0.05, "keep": 3 / 68})
    method.x += torch.randn(method.x.shape, generator=torch.Generator().manual_seed(1))
    middle, begun = method.x.mean(0), method.consensus()
    for number in range(1, 600, 2):
        method.communicate(number)
    assert method.consensus() < 1e-5 * begun
    torch.testing.assert_close(method.x.mean(0), middle, atol=1e-5, rtol=0)
