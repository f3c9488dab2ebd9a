"""The vectors of rates and weights, by plain Python (exact integers and binary64), and by the engine."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from sfnode.engine.basis import RandomBasis
from sfnode.engine.core import Core
from sfnode.engine.merging import MergedWeights
from sfnode.engine.subspace import Subspace
from sfnode.manifest import Target, Training
from sfnode.models.targets import Form, Site
from sfprotocol.seeds import basis_signs

VECTORS = json.loads(
    (Path(__file__).parents[2] / "protocol" / "vectors" / "weights.json").read_text(encoding="utf-8")
)


def number(bits: str) -> float:
    found: float = struct.unpack(">f", bytes.fromhex(bits))[0]
    return found


def bits(value: float) -> str:
    """Of the nearest binary32 number."""
    return struct.pack(">f", value).hex()


def rate(schedule: str, learning_rate: float, epoch: int, epochs: int) -> float:
    """U7, by plain Python."""
    x = epoch / epochs
    factors = {"constant": 1.0, "linear": 1.0 - x, "cosine": 0.5 * (1.0 + math.cos(math.pi * x))}
    return number(bits(learning_rate * factors[schedule]))


@pytest.mark.parametrize("vector", VECTORS["rates"], ids=lambda v: f"{v['schedule']}-{v['epochs']}")
def test_rates(vector: dict[str, Any]) -> None:
    names = ("schedule", "learning_rate", "epoch_updates", "update_budget")
    training = Training(**{name: vector[name] for name in names})
    assert training.epochs == vector["epochs"] == math.ceil(training.update_budget / training.epoch_updates)
    for one in vector["rates"]:
        by_hand = rate(training.schedule, training.learning_rate, one["epoch"], vector["epochs"])
        assert bits(by_hand) == one["bits"]
        assert bits(training.rate(one["epoch"])) == one["bits"]


def signs(vector: dict[str, Any], epoch: int, side: str, rows: int) -> list[list[int]]:
    run_id = bytes.fromhex(vector["run_id"])
    found: list[list[int]] = basis_signs(run_id, epoch, vector["layer"], side, rows, vector["rank"]).tolist()
    return found


@pytest.mark.parametrize("vector", VECTORS["weights"], ids=lambda v: v["schedule"])
def test_weights_by_plain_python(vector: dict[str, Any]) -> None:
    weights = [[number(entry) for entry in row] for row in vector["base"]]
    for term in vector["terms"]:
        core = [(one["row"], one["column"], int(one["value"])) for one in term["core"]]
        if vector["learning_rate"] is None:
            scale = vector["scalar_delta"] * 2.0**-32
        else:
            found = rate(vector["schedule"], vector["learning_rate"], term["epoch"], vector["epochs"])
            scale = found * vector["scalar_delta"]
        assert scale == term["scale"]
        parts = [(1, core)]
        if sum(float(abs(a)) for _, _, a in core) >= 2.0**53:
            parts = [
                (2**32, [(i, j, a >> 32) for i, j, a in core]),
                (1, [(i, j, a % 2**32) for i, j, a in core]),
            ]
        u = signs(vector, term["epoch"], "U", len(weights))
        v = signs(vector, term["epoch"], "V", len(weights[0]))
        for unit, part in parts:
            for n, row in enumerate(weights):
                for m in range(len(row)):
                    exact = sum(u[n][i] * a * v[m][j] for i, j, a in part)
                    row[m] -= (scale * unit) * float(exact)
    assert [[bits(entry) for entry in row] for row in weights] == vector["weights"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vector", VECTORS["weights"], ids=lambda v: v["schedule"])
def test_weights_by_the_engine(vector: dict[str, Any], dtype: torch.dtype) -> None:
    base = torch.tensor([[number(entry) for entry in row] for row in vector["base"]])
    out_features, in_features = base.shape
    target = Target(name="layer", out_features=out_features, in_features=in_features)
    layer = torch.nn.Linear(in_features, out_features, bias=False, dtype=dtype)
    layer.weight.requires_grad_(requires_grad=False)
    loaded: Any = SimpleNamespace(
        sites=(Site(target, layer, "weight", Form.LINEAR),),
        base_weights=SimpleNamespace(read=lambda _: base),
        dtype=dtype,
        device=torch.device("cpu"),
        quantised=False,
        exact=dtype is torch.float32,
    )
    rank = vector["rank"]
    basis = RandomBasis(bytes.fromhex(vector["run_id"]), [target], rank, loaded.device)
    space = Subspace(basis, [target], rank, loaded.device, dtype, live_core=not loaded.exact)
    scales = {term["epoch"]: term["scale"] for term in vector["terms"]}
    weights = MergedWeights(loaded, space, Core(1, rank), lambda epoch: scales[epoch], lambda: 0.0)
    cores = {epoch: np.zeros((1, rank, rank), np.int64) for epoch in scales}
    for term in vector["terms"]:
        for one in term["core"]:
            cores[term["epoch"]][0, one["row"], one["column"]] = int(one["value"])
    weights.begin(cores)
    weights.rebuild()
    if dtype is torch.float32:
        assert [[bits(entry) for entry in row] for row in layer.weight.tolist()] == vector["weights"]
    else:
        assert [[bits(entry)[:4] for entry in row] for row in layer.weight.tolist()] == vector["bfloat16"]
