"""The vectors of rates and weights, checked by plain Python and by the engine."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from sfnode.engine.core import Core
from sfnode.engine.merging import Decay, MergedWeights
from sfnode.engine.subspace import Basis, PublishedBasis, Subspace, random_basis
from sfnode.manifest.sections import Target
from sfnode.manifest.training import Training
from sfnode.models import bases
from sfnode.models.targets import Form, TargetSite
from sfprotocol.seeds import basis_signs
from tests.protocol.vectors.plain import load
from tests.protocol.vectors.weights import bits

VECTORS = load("weights.json")


def kind(vector: dict[str, Any]) -> str:
    kind = f"{vector['schedule']}-{'published' if vector['bases'] else 'random'}"
    return f"{kind}-decay" if "decay" in vector else kind


def number(bits: str) -> float:
    found: float = struct.unpack(">f", bytes.fromhex(bits))[0]
    return found


def rate(schedule: str, learning_rate: float, epoch: int, epochs: int) -> float:
    """Return the rate of an epoch by U7, in plain Python."""
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


def rows_of(vector: dict[str, Any], epoch: int, side: str, rows: int) -> list[list[int]]:
    """Return U or V: signs, or entries of a blob that begins with U."""
    if vector["bases"]:
        entries = [byte - 256 if byte > 127 else byte for byte in bytes.fromhex(vector["bases"]["blob"])]
        rank = vector["rank"]
        both = [entries[at : at + rank] for at in range(0, len(entries), rank)]
        return both[:rows] if side == "U" else both[-rows:]
    run_id = bytes.fromhex(vector["run_id"])
    found: list[list[int]] = basis_signs(run_id, epoch, vector["layer"], side, rows, vector["rank"]).tolist()
    return found


@pytest.mark.parametrize("vector", VECTORS["weights"], ids=kind)
def test_weights_by_plain_python(vector: dict[str, Any]) -> None:
    weights = [[number(entry) for entry in row] for row in vector["base"]]
    for term in vector["terms"]:
        core = [(one["row"], one["column"], int(one["value"])) for one in term["core"]]
        if vector["learning_rate"] is None:
            scale = vector["scalar_delta"] * 2.0**-32
        else:
            found = rate(vector["schedule"], vector["learning_rate"], term["epoch"], vector["epochs"])
            scale = found * vector["scalar_delta"]
        if vector["bases"]:
            scale *= 2.0**-6
        assert scale == term["scale"]
        u = rows_of(vector, term["epoch"], "U", len(weights))
        v = rows_of(vector, term["epoch"], "V", len(weights[0]))
        newest, power = max(term["epoch"] for term in vector["terms"]), 1.0
        for _ in range(term["epoch"], newest):
            power *= vector.get("decay", 1.0)
        assert power == term.get("power", 1.0)
        parts = [(1, core)]
        largest = max(abs(a) for row in u for a in row) * max(abs(a) for row in v for a in row)
        if sum(float(abs(a)) for _, _, a in core) * largest >= 2.0**53:
            width = 16 if vector["bases"] else 32
            digits = [(at, 2**width) for at in range(0, 64 - width, width)]
            parts = [(2 ** (64 - width), [(i, j, a >> 64 - width) for i, j, a in core])]
            parts += [(2**at, [(i, j, (a >> at) % size) for i, j, a in core]) for at, size in digits[::-1]]
        for unit, part in parts:
            for n, row in enumerate(weights):
                for m in range(len(row)):
                    exact = sum(u[n][i] * a * v[m][j] for i, j, a in part)
                    row[m] -= (scale * power * unit) * float(exact)
    assert [[bits(entry) for entry in row] for row in weights] == vector["weights"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vector", VECTORS["weights"], ids=kind)
def test_weights_by_the_engine(vector: dict[str, Any], dtype: torch.dtype, tmp_path: Path) -> None:
    base = torch.tensor([[number(entry) for entry in row] for row in vector["base"]])
    out_features, in_features = base.shape
    target = Target(name="layer", out_features=out_features, in_features=in_features)
    layer = torch.nn.Linear(in_features, out_features, bias=False, dtype=dtype)
    layer.weight.requires_grad_(requires_grad=False)
    loaded: Any = SimpleNamespace(
        sites=(TargetSite(target, layer, "weight", Form.LINEAR),),
        base_weights=SimpleNamespace(read=lambda _: base),
        dtype=dtype,
        device=torch.device("cpu"),
        quantised=False,
        exact=dtype is torch.float32,
    )
    rank = vector["rank"]
    basis: Basis = random_basis(bytes.fromhex(vector["run_id"]), [target], rank, loaded.device)
    if blob := vector["bases"]:
        file = bases.path_in(tmp_path, blob["digest"])
        file.write_bytes(bytes.fromhex(blob["blob"]))
        assert bases.listing_of(file).hex() == blob["listing"]
        run: Any = SimpleNamespace(
            model=SimpleNamespace(parsed_targets=lambda: [target]),
            training=Training(rank=rank, basis="published", bases=blob["digest"]),
            basis_columns=(rank, rank),
        )
        basis = PublishedBasis(tmp_path, run, loaded.device)
    space = Subspace(basis, [target], (rank, rank), loaded.device, dtype, live_core=not loaded.exact)
    scales = {term["epoch"]: term["scale"] for term in vector["terms"]}
    decay = Decay(vector.get("decay", 1.0))

    def scale(epoch: int) -> float:
        return float(scales[epoch]) / space.unit(0)

    weights = MergedWeights(loaded, space, Core(1, rank), scale, lambda: 0.0, decay)
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
