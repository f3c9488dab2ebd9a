"""Centralised methods and DiLoCo against torch.optim, PowerSGD against its paper."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sflab.baselines import vectors
from sflab.baselines.clients import VectorPart
from sflab.baselines.diloco import power_average, worth_factoring
from tests.sflab.baselines.quadratic import Quadratic, made, run


def trained(
    problem: Quadratic, optimiser: type[torch.optim.Optimizer], steps: int, **options: float
) -> Tensor:
    """The start after some steps of torch's optimiser on the mean of all clients' losses."""
    x = nn.Parameter(problem.start())
    torchs = optimiser([x], **options)
    for _ in range(steps):
        x.grad = torch.stack([problem.gradient(x.data, client, 0)[1] for client in range(4)]).mean(0)
        torchs.step()
    return x.data


def test_sgd_is_torchs() -> None:
    method = made("sgd")
    run(method, 0, 6)
    torch.testing.assert_close(method.x[0], trained(method.problem, torch.optim.SGD, 6, lr=0.1))


def test_adamw_is_torchs() -> None:
    method = made("adamw", learning_rate=0.03, options={"weight_decay": 0.2})
    run(method, 0, 6)
    wanted = trained(method.problem, torch.optim.AdamW, 6, lr=0.03, weight_decay=0.2)
    torch.testing.assert_close(method.x[0], wanted)


def test_mezo_steps_along_one_direction_by_the_slope_of_the_mean_loss() -> None:
    method = made("mezo", learning_rate=0.01)
    start, problem = method.x[0].double().numpy().copy(), method.problem
    loss = method.step(0)
    z = vectors.fill_normal(torch.empty(68), vectors.key(b"central direction", 3, 0)).double().numpy()
    gradient = problem.curvature.double().numpy() * (start - problem.centres.double().numpy().mean(0))
    np.testing.assert_allclose(method.x[0], start - 0.01 * (z @ gradient) * z, atol=2e-3)  # a sum of 68 z
    assert loss == pytest.approx(problem.evaluate(problem.start(), "test").loss, rel=1e-3)


def test_the_inner_steps_of_diloco_are_adamw_and_its_outer_ones_nesterov() -> None:
    options = {"outer_rate": 0.7, "momentum": 0.9, "weight_decay": 0.1}
    method = made("diloco", learning_rate=0.03, options=options)
    problem = method.problem
    shared = nn.Parameter(problem.start())
    outer = torch.optim.SGD([shared], lr=0.7, momentum=0.9, nesterov=True)
    clients = [nn.Parameter(problem.start()) for _ in range(4)]
    inner = [torch.optim.AdamW([x], lr=0.03, weight_decay=0.1) for x in clients]
    for first in range(0, 8, 2):
        run(method, first, first + 2)
        for number, (x, optimiser) in enumerate(zip(clients, inner, strict=True)):
            for _ in range(2):
                x.grad = problem.gradient(x.data, number, 0)[1]
                optimiser.step()
        shared.grad = shared.data - torch.stack([x.data for x in clients]).mean(0)
        outer.step()
        for x in clients:
            x.data.copy_(shared.data)
        torch.testing.assert_close(method.shared, shared.data)
        torch.testing.assert_close(method.x, shared.data.expand(4, -1))


def test_an_all_reduce_sends_every_peer_its_part_and_the_result_back() -> None:
    method = made("diloco", 3, lambda number: [(0, 1), (1, 2)])
    run(method, 0, 2)
    parts = [23, 23, 22]  # of 68
    wanted = {(i, j): 4 * (parts[j] + parts[i]) for i in range(3) for j in range(3) if i != j}
    assert method.traffic.sent == wanted
    half = made("diloco-fp16", 3)
    run(half, 0, 2)
    assert half.traffic.total * 2 == method.traffic.total == 2 * (3 - 1) * 68 * 4


def test_who_was_away_fetches_the_model() -> None:
    def edges(number: int) -> list[tuple[int, int]]:
        return [(0, 1)] if number == 1 else [(0, 1), (1, 2)]

    method = made("diloco", 3, edges)
    run(method, 0, 4)
    before = method.traffic.sent[0, 2]
    run(method, 4, 6)
    assert method.traffic.sent[0, 2] == 2 * before + 4 * 68


def test_fp16_rounds_on_the_way_there_and_back() -> None:
    method, exact = made("diloco-fp16", learning_rate=0.03), made("diloco", learning_rate=0.03)
    for one in (method, exact):
        run(one, 0, 1)
        one.step(1)
    rounded = (exact.shared - exact.x).half().float().mean(0).half().float()
    method.communicate(1)
    torch.testing.assert_close(method.shared, exact.shared - 0.7 * 1.9 * rounded)
    exact.communicate(1)
    assert 0 < (method.shared - exact.shared).abs().max() < 1e-3


def matrices(count: int, rank: int | None = None) -> list[Tensor]:
    made = torch.Generator().manual_seed(2)
    if rank is None:
        return [torch.randn(6, 5, generator=made) for _ in range(count)]
    left = torch.randn(6, rank, generator=made)
    return [left @ torch.randn(rank, 5, generator=made) for _ in range(count)]


def test_powersgd_is_exact_where_the_rank_suffices() -> None:
    for memories, rank in ((matrices(3), 5), (matrices(3, rank=2), 2)):
        wanted = torch.stack(memories).mean(0)
        q = torch.randn(5, rank, generator=torch.Generator().manual_seed(1))
        torch.testing.assert_close(power_average(memories, q), wanted, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(torch.stack(memories).mean(0), torch.zeros(6, 5), atol=1e-5, rtol=0)


def test_powersgd_follows_its_paper() -> None:
    """Algorithms 1 and 2 of Vogels et al. 2019 in numpy, with Gram-Schmidt and error feedback."""
    gradients = matrices(3)
    q = torch.randn(5, 2, generator=torch.Generator().manual_seed(1))
    memories = [torch.zeros(6, 5) for _ in range(3)]
    their_q = q.double().numpy().copy()
    errors = [np.zeros((6, 5)) for _ in range(3)]
    for _ in range(4):
        for memory, gradient in zip(memories, gradients, strict=True):
            memory += gradient
        found = power_average(memories, q)
        deltas = [gradient.double().numpy() + e for gradient, e in zip(gradients, errors, strict=True)]
        p = np.mean([delta @ their_q for delta in deltas], 0)
        p[:, 0] /= np.linalg.norm(p[:, 0])
        p[:, 1] -= (p[:, 0] @ p[:, 1]) * p[:, 0]
        p[:, 1] /= np.linalg.norm(p[:, 1])
        their_q = np.mean([delta.T @ p for delta in deltas], 0)
        errors = [delta - p @ their_q.T for delta in deltas]
        np.testing.assert_allclose(found, p @ their_q.T, atol=1e-5)
        np.testing.assert_allclose(torch.stack(memories), errors, atol=1e-5)


def test_error_feedback_sends_in_the_end_what_a_rank_withholds() -> None:
    gradients = matrices(3)
    q = torch.randn(5, 1, generator=torch.Generator().manual_seed(1))
    memories, total = [torch.zeros(6, 5) for _ in range(3)], torch.zeros(6, 5)
    for _ in range(300):
        for memory, gradient in zip(memories, gradients, strict=True):
            memory += gradient
        total += power_average(memories, q)
    torch.testing.assert_close(total / 300, torch.stack(gradients).mean(0), atol=0.05, rtol=0)


def test_powersgd_sends_factors_of_what_they_halve_and_the_rest_in_full() -> None:
    assert worth_factoring(VectorPart("w", (8, 8)), 2)
    assert not worth_factoring(VectorPart("w", (8, 8)), 3)
    assert not worth_factoring(VectorPart("b", (800,)), 1)
    method, exact = made("diloco-powersgd", 3), made("diloco", 3)
    run(method, 0, 2)
    run(exact, 0, 2)
    assert method.traffic.total == 2 * (3 - 1) * (8 + 8 + 4) * 4
    torch.testing.assert_close(method.shared[64:], exact.shared[64:])
    assert not torch.allclose(method.shared[:64], exact.shared[:64])
