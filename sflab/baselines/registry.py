"""The methods to compare with, by name: how each is made, and its usual numbers. Their papers, and what each
sends, are in docs/experiments.md.

ZO-COSMO (arXiv 2609.27199) is not among them: no description of its algorithm was found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

from sflab.baselines.centralised import CentralAdamW, CentralSgd, Mezo
from sflab.baselines.clients import Clients, Setup, two_point_step
from sflab.baselines.diloco import DiLoCo, HalfDiLoCo, PowerSgdDiLoCo
from sflab.baselines.gossip import ChocoSgd, Dsgd, Gaia
from sflab.baselines.seed_servers import DeComFl, FedKSeed

LOCAL = "a local step of a client; clients are averaged"
UPDATE = "an update; clients' updates are added"
STEP = "a step on the mini-batches of all clients"

Rates = tuple[float, ...]


@dataclass(frozen=True)
class Baseline:
    """A method of others."""

    make: Callable[[Setup], Clients]
    """Makes the method; give it a setup with all `options` (`registry.make` fills in the usual ones)."""
    rates: Rates
    """Small grid around the usual learning rate for a model of 4 million parameters, ascending."""
    rate: str = LOCAL
    """Meaning of the learning rate: whose it is."""
    problem: Literal["full", "lora"] = "full"
    first_order: bool = True
    centralised: bool = False
    options: Mapping[str, float] = field(default_factory=dict)
    """Numbers that only this method has, and their usual values."""


FIRST_ORDER: Rates = (3e-3, 1e-2, 3e-2)
ZEROTH_ORDER: Rates = (3e-5, 1e-4, 3e-4)
ADAPTIVE: Rates = (3e-6, 1e-5, 3e-5)
LORA: Rates = (3e-2, 1e-1, 3e-1)
ZEROTH_ORDER_LORA: Rates = (3e-4, 1e-3, 3e-3)
"""Grids by short runs of 4 clients on SST-2 with opt-mini-sst (docs/experiments.md): ten times the middle
rate does harm in each."""

_CHOCO_OPTIONS = {"keep": 0.01, "gamma": 0.03}
"""The SeedFlood paper's 1 %, and a consensus step by measurement. On a ring of 16 clients with 1 % of 2,000
entries, 0.03 brought the consensus error to 0.6 % in 1,000 rounds; with 0.01 it was 5 %, with 0.1 it began to
grow after 300, and with 0.3 it diverged."""
_DILOCO_OPTIONS = {"outer_rate": 0.7, "momentum": 0.9, "weight_decay": 0.1}

METHODS: Mapping[str, Baseline] = {
    "mezo": Baseline(Mezo, ZEROTH_ORDER, STEP, first_order=False, centralised=True),
    "adamw": Baseline(
        CentralAdamW,
        tuple(3 * rate for rate in ADAPTIVE),  # without DiLoCo's outer momentum
        STEP,
        centralised=True,
        options={"weight_decay": 0.01},
    ),
    "sgd": Baseline(CentralSgd, FIRST_ORDER, STEP, centralised=True),
    "dsgd": Baseline(Dsgd, FIRST_ORDER),
    "chocosgd": Baseline(ChocoSgd, FIRST_ORDER, options=_CHOCO_OPTIONS),
    "dzsgd": Baseline(partial(Dsgd, local=two_point_step), ZEROTH_ORDER, first_order=False),
    "dsgd-lora": Baseline(Dsgd, LORA, problem="lora"),
    "chocosgd-lora": Baseline(ChocoSgd, LORA, problem="lora", options=_CHOCO_OPTIONS),
    "dzsgd-lora": Baseline(
        partial(Dsgd, local=two_point_step), ZEROTH_ORDER_LORA, problem="lora", first_order=False
    ),
    "diloco": Baseline(DiLoCo, ADAPTIVE, options=_DILOCO_OPTIONS),
    "diloco-fp16": Baseline(HalfDiLoCo, ADAPTIVE, options=_DILOCO_OPTIONS),
    "diloco-powersgd": Baseline(PowerSgdDiLoCo, ADAPTIVE, options=_DILOCO_OPTIONS),
    "gaia": Baseline(Gaia, tuple(rate / 10 for rate in FIRST_ORDER), UPDATE, options={"threshold": 0.01}),
    "fedkseed": Baseline(FedKSeed, ZEROTH_ORDER, first_order=False, options={"candidates": 4096}),
    "decomfl": Baseline(DeComFl, ZEROTH_ORDER, first_order=False),
}


def make(name: str, setup: Setup) -> Clients:
    """Make a method with its usual options, and those of the setup in their place."""
    baseline = METHODS[name]
    return baseline.make(replace(setup, options={**baseline.options, **setup.options}))
