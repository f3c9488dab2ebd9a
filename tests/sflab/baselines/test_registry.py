"""Rules that every baseline follows, on a quadratic function."""

from __future__ import annotations

import pytest
import torch

from sflab.baselines import registry
from sflab.baselines.registry import METHODS
from tests.sflab.baselines.quadratic import Quadratic, complete, made, run, stored

ZEROTH_ORDER_RATE = 0.008


def rate(name: str) -> float:
    return 0.1 if METHODS[name].first_order else ZEROTH_ORDER_RATE


@pytest.fixture(params=METHODS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_it_comes_near_the_minimum_of_the_mean_of_all_functions(name: str) -> None:
    options = {"gamma": 0.1, "keep": 0.1} if "choco" in name else {}
    method = made(name, learning_rate=rate(name), options=options)
    run(method, 0, 300)
    problem = method.problem
    least = problem.evaluate(problem.centres.mean(0), "test").loss
    begun = problem.evaluate(problem.start(), "test").loss
    assert method.evaluate("test").loss < least + 0.05 * (begun - least)


def test_it_goes_on_from_its_state_with_the_same_bits(name: str) -> None:
    def new() -> registry.Clients:
        return made(name, learning_rate=rate(name), problem=Quadratic(4, noise=0.1))

    whole, first, second = new(), new(), new()
    losses = run(whole, 0, 9)
    run(first, 0, 5)  # in the midst of a round
    second.restore(stored(first.state()))
    assert run(second, 5, 9) == losses[5:]
    assert (second.traffic, second.example_forwards) == (whole.traffic, whole.example_forwards)
    for key, wanted in whole.state().items():
        got = second.state()[key]
        assert torch.equal(got, wanted) if isinstance(wanted, torch.Tensor) else got == wanted, key


def test_all_of_its_chance_comes_from_the_seed(name: str) -> None:
    runs = [made(name, seed=seed, learning_rate=rate(name)) for seed in (7, 7, 8)]
    same, again, other = [run(method, 0, 4) for method in runs]
    assert same == again
    if not METHODS[name].first_order:
        assert same != other


def test_its_example_forwards_are_three_a_gradient_and_two_an_estimate(name: str) -> None:
    method = made(name, learning_rate=rate(name))
    run(method, 0, 3)
    assert method.example_forwards == 3 * 4 * Quadratic.batch_size * (3 if METHODS[name].first_order else 2)


def test_who_has_no_link_neither_trains_nor_communicates(name: str) -> None:
    method = made(name, 4, lambda number: [(0, 1), (1, 2)], learning_rate=rate(name))
    run(method, 0, 4)
    assert method.example_forwards % 3 == 0
    assert not [edge for edge in method.traffic.sent if 3 in edge]


def test_nobody_at_all_in_a_round_changes_nothing(name: str) -> None:
    method = made(name, 4, lambda number: [])
    before = method.x.clone()
    run(method, 0, 2)
    assert torch.equal(method.x, before)
    assert not method.traffic.total


def test_what_it_sends_never_goes_to_itself(name: str) -> None:
    method = made(name, learning_rate=rate(name))
    run(method, 0, 4)
    assert method.traffic.total
    assert all(sender != receiver for sender, receiver in method.traffic.sent)


def test_it_names_a_grid_of_rates(name: str) -> None:
    baseline = METHODS[name]
    assert list(baseline.rates) == sorted(set(baseline.rates))
    assert (baseline.problem == "lora") == name.endswith("-lora")


def test_what_it_has_in_common_with_others_may_be_had_on_a_complete_graph(name: str) -> None:
    """All clients agree after everybody heard everything. ChocoSGD sends only a part."""
    method = made(name, 4, complete(4), learning_rate=rate(name))
    run(method, 0, 2)
    if "choco" not in name:
        assert method.consensus() < 1e-11


def test_options_that_are_given_take_the_place_of_usual_ones() -> None:
    assert made("chocosgd", options={"keep": 0.5}).setup.options == {"keep": 0.5, "gamma": 0.03}
