"""The methods of the SeedFlood paper's comparison, keyed by name, each with its constructor and its usual
hyperparameters.

docs/experiments.md names the paper of each method and the messages that the method sends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

from sflab.baselines.clients import Clients, Setup, two_point_step
from sflab.baselines.gossip import ChocoSgd, Dsgd

Rates = tuple[float, ...]


@dataclass(frozen=True)
class Baseline:
    """A method to compare SeedFlood with."""

    make: Callable[[Setup], Clients]
    """Constructor of the method. The setup must have all of `options`: `registry.make` adds missing ones with
    their usual values."""
    rates: Rates
    """Small grid around the usual learning rate for a model of 4 million parameters, ascending."""
    problem: Literal["full", "lora"] = "full"
    first_order: bool = True
    options: Mapping[str, float] = field(default_factory=dict)
    """Usual values of the hyperparameters that only this method has."""


FIRST_ORDER: Rates = (3e-3, 1e-2, 3e-2)
ZEROTH_ORDER: Rates = (3e-5, 1e-4, 3e-4)
LORA: Rates = (3e-2, 1e-1, 3e-1)
ZEROTH_ORDER_LORA: Rates = (3e-4, 1e-3, 3e-3)
"""Grids of learning rates for the kinds of methods, found in short runs of 4 clients on SST-2 with
opt-mini-sst (docs/experiments.md). In each grid, ten times the middle rate does harm."""

_CHOCO_OPTIONS = {"keep": 0.01, "gamma": 0.03}
"""Share of entries that are sent (1 %, as in the SeedFlood paper), and a measured consensus step. On a ring
of 16 clients with 1 % of 2,000 entries, a gamma of 0.03 reduced the consensus error to 0.6 % in 1,000 rounds.
With 0.01 the error was 5 %. With 0.1 it began to grow after 300 rounds, and with 0.3 it diverged."""

METHODS: Mapping[str, Baseline] = {
    "dsgd": Baseline(Dsgd, FIRST_ORDER),
    "chocosgd": Baseline(ChocoSgd, FIRST_ORDER, options=_CHOCO_OPTIONS),
    "dzsgd": Baseline(partial(Dsgd, local=two_point_step), ZEROTH_ORDER, first_order=False),
    "dsgd-lora": Baseline(Dsgd, LORA, problem="lora"),
    "chocosgd-lora": Baseline(ChocoSgd, LORA, problem="lora", options=_CHOCO_OPTIONS),
    "dzsgd-lora": Baseline(
        partial(Dsgd, local=two_point_step), ZEROTH_ORDER_LORA, problem="lora", first_order=False
    ),
}


def make(name: str, setup: Setup) -> Clients:
    """Make a method. Options of the setup replace the method's usual options."""
    baseline = METHODS[name]
    return baseline.make(replace(setup, options={**baseline.options, **setup.options}))
