"""FedKSeed and DeComFL: the seeds and scalars that are sent are the model."""

from __future__ import annotations

import torch

from sflab.baselines import vectors
from tests.sflab.baselines.quadratic import made, run


def direction(seed: int) -> torch.Tensor:
    return vectors.fill_normal(torch.empty(68), seed)


def test_the_sums_of_fedkseed_replay_to_the_clients_weights() -> None:
    method = made("fedkseed", learning_rate=0.004, options={"candidates": 16})
    run(method, 0, 20)
    rebuilt = method.problem.start()
    for number, total in enumerate(method.sums.tolist()):
        rebuilt -= 0.004 * total * direction(method.candidate(number))
    torch.testing.assert_close(method.x, rebuilt.expand(4, -1), atol=1e-5, rtol=1e-5)
    assert method.sums.count_nonzero() > 10


def test_fedkseed_sends_all_sums_and_gets_a_seed_and_a_scalar_for_each_step() -> None:
    """With the paper's numbers, 4,096 seeds and 200 local steps, under 18 kilobytes a round."""
    method = made("fedkseed", learning_rate=0.0, local_steps=200)
    run(method, 0, 200, local_steps=200)
    assert method.traffic.sent[4, 0] == 4 * 4096
    assert method.traffic.sent[0, 4] == 8 * 200
    assert method.traffic.sent[4, 0] + method.traffic.sent[0, 4] < 18_000


def test_the_means_of_decomfl_replay_to_the_clients_weights() -> None:
    method = made("decomfl", learning_rate=0.004)
    run(method, 0, 20)
    rebuilt = method.problem.start()
    for number, scalar in method.scalars.items():
        rebuilt -= 0.004 * scalar * direction(method.direction(number))
    torch.testing.assert_close(method.x, rebuilt.expand(4, -1), atol=1e-5, rtol=1e-5)
    assert list(method.scalars) == list(range(20))


def test_decomfl_sends_what_a_client_has_missed_when_it_is_back() -> None:
    def edges(number: int) -> list[tuple[int, int]]:
        return [(0, 1)] if number in (1, 2) else [(0, 1), (1, 2)]

    method = made("decomfl", 3, edges, learning_rate=0.004)
    run(method, 0, 8)
    assert method.traffic.sent[3, 0] == 8 * 8
    assert method.traffic.sent[0, 3] == 4 * 8
    assert method.traffic.sent[3, 2] == 8 * 8
    assert method.traffic.sent[2, 3] == 4 * 4
