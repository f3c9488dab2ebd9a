"""Quantised layers: how far a stored weight may be off, that blocks and wholes agree, and their memory."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from sfnode.errors import Code
from sfnode.models.loader import LoadedModel
from sfnode.models.quantized import INT8_STEPS, Int8Linear, Nf4Linear, QuantisedLinear, quantise_layers
from sfnode.models.targets import TargetSite
from tests.engine.helpers import DEVICE, FAMILIES, held_weights, manifest, trainer, updates, weights
from tests.refusals import refused

CPU = torch.device("cpu")
HAS_NF4 = importlib.util.find_spec("bitsandbytes") is not None
needs_nf4 = pytest.mark.skipif(not HAS_NF4, reason="bitsandbytes, an optional dependency, is not installed")


def random(*shape: int) -> Tensor:
    """Rows of very different sizes."""
    return normal(*shape) * torch.logspace(-4, 2, shape[0])[:, None]


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3))


def int8(weight: Tensor, dtype: torch.dtype = torch.float32, bias: Tensor | None = None) -> Int8Linear:
    layer = Int8Linear(weight.shape[0], weight.shape[1], bias, dtype, CPU)
    layer.store(0, weight)
    return layer


def test_no_entry_is_off_by_more_than_half_a_step_of_its_row() -> None:
    weight = random(30, 50)
    step = weight.abs().amax(1, keepdim=True) / INT8_STEPS  # (30, 1)
    off = (int8(weight).dense() - weight).abs() / step
    assert off.max() <= 0.5001
    assert off.max() > 0.45  # it is as coarse as that


def test_the_largest_entry_of_a_row_is_held_as_it_is() -> None:
    weight = random(30, 50)
    held = int8(weight).dense()
    assert torch.allclose(held.abs().amax(1), weight.abs().amax(1), rtol=1e-6, atol=0)
    assert int8(-weight).dense().equal(-held)


def test_rows_of_zeros_stay_zeros() -> None:
    weight = random(4, 6)
    weight[[0, 2]] = 0.0
    held = int8(weight).dense()
    assert not held[[0, 2]].any()
    assert held[[1, 3]].any()


@pytest.mark.parametrize("step", [1, 3, 7])
def test_blocks_of_rows_are_stored_as_the_whole_is(step: int) -> None:
    weight = random(20, 24)
    whole, blocks = int8(weight), Int8Linear(20, 24, None, torch.float32, CPU)
    for first in range(0, 20, step):
        blocks.store(first, weight[first : first + step].double())
    assert torch.equal(blocks.dense(), whole.dense())


def test_storing_again_leaves_nothing_of_what_was_there() -> None:
    layer = int8(random(8, 8) * 100)
    layer.store(0, random(8, 8))
    assert torch.equal(layer.dense(), int8(random(8, 8)).dense())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("biased", [True, False])
def test_a_packed_layer_is_the_linear_layer_of_its_weight(dtype: torch.dtype, biased: bool) -> None:
    bias = torch.linspace(-1, 1, 12) if biased else None
    layer, x = int8(random(12, 9), dtype, bias), torch.linspace(-2, 2, 36).view(2, 2, 9).to(dtype)
    found = layer(x)
    assert found.dtype is dtype
    assert torch.equal(found, linear(x, layer.dense(), None if bias is None else bias.to(dtype)))


def memory(loaded: LoadedModel) -> int:
    """Bytes of the targets' own tensors, biases and all."""
    return sum(
        tensor.numel() * tensor.element_size()
        for site in loaded.sites
        for tensor in (*site.module.parameters(), *site.module.buffers())
    )


def test_a_model_is_packed_in_small_blocks_for_rounding_takes_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    stored: list[int] = []
    store = Int8Linear.store

    def counted(self: Int8Linear, first: int, rows: Tensor) -> None:
        stored.append(rows.numel())
        store(self, first, rows)

    def quantised() -> Tensor:
        torch.manual_seed(0)
        model = Headless(nn.Linear(8, 100, bias=False)).requires_grad_(False)
        (layer,) = quantise_layers(model, "int8", torch.float32, torch.device("cpu")).values()
        return layer.dense()

    whole = quantised()
    monkeypatch.setattr(Int8Linear, "store", counted)
    monkeypatch.setattr("sfnode.models.quantized.BLOCK_ENTRIES", 64)
    assert torch.equal(quantised(), whole)
    assert max(stored) == 64
    assert sum(stored) == 800


class Headless(nn.Sequential):
    def get_output_embeddings(self) -> None:
        """It is no language model."""


def test_an_int8_model_takes_about_a_quarter_of_the_memory_of_its_matrices() -> None:
    wide = nn.Sequential(nn.Linear(256, 1024), nn.Linear(1024, 256))
    before = sum(p.numel() * 4 for p in wide.parameters())
    wide.get_output_embeddings = lambda: None  # type: ignore[assignment]
    quantise_layers(wide, "int8", torch.float32, CPU)
    tensors = [*wide.parameters(), *wide.buffers()]
    after = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    assert 0.25 * before < after < 0.26 * before


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_packed_but_for_its_head(family: str) -> None:
    run = trainer(manifest(family), dtype="int8")
    assert all(isinstance(site.module, Int8Linear) for site in run.loaded.sites)
    assert not isinstance(run.loaded.model.get_output_embeddings(), QuantisedLinear)
    left = [m for m in run.loaded.model.modules() if type(m) is nn.Linear]
    assert all(module is run.loaded.model.get_output_embeddings() for module in left)
    assert memory(run.loaded) < 0.7 * memory(trainer(manifest(family)).loaded)  # of rows 16 wide


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_rebuilt_weights_are_quantised_from_full_precision_and_not_from_quantised_ones(family: str) -> None:
    described = manifest(family, learning_rate=1e-3)
    run, exact = trainer(described, dtype="int8"), trainer(described)
    for key in range(5):
        for one in (run, exact):
            one.apply(updates(10, (0, 1), key=key))
            one.weights.rebuild()
    for held, weight in zip(held_weights(run), held_weights(exact), strict=True):
        step = weight.abs().amax(1, keepdim=True) / INT8_STEPS
        assert ((held - weight).abs() <= 0.5001 * step).all()
    before = weights(run)
    run.weights._exact = False  # rebuild once more what has not changed
    run.weights.rebuild()
    assert all(torch.equal(*pair) for pair in zip(weights(run), before, strict=True))


@pytest.mark.skipif(HAS_NF4, reason="bitsandbytes is installed")
def test_four_bits_without_their_library_say_what_to_install() -> None:
    with refused(Code.DEVICE, "bitsandbytes", fix="sfnode[nf4]"):
        trainer(manifest("opt"), dtype="nf4")


def nf4(weight: Tensor, dtype: torch.dtype = torch.float32) -> Nf4Linear:
    layer = Nf4Linear(weight.shape[0], weight.shape[1], None, dtype, torch.device(DEVICE))
    layer.store(0, weight)
    return layer


@needs_nf4
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_four_bits_hold_a_weight_to_a_seventh_of_the_largest_one_near_it(dtype: torch.dtype) -> None:
    weight = normal(20, 96)
    held = nf4(weight, dtype).dense().cpu()
    assert held.dtype is dtype
    assert held.shape == weight.shape
    largest = weight.view(-1, 64).abs().amax(1).repeat_interleave(64).view_as(weight)  # of its block
    assert ((held.float() - weight).abs() / largest).max() < 0.16  # half of the widest gap of the code


@needs_nf4
@pytest.mark.parametrize("step", [1, 3, 20])
def test_four_bits_are_stored_in_blocks_of_rows_as_the_whole_is(step: int) -> None:
    weight = normal(20, 24)
    layer = Nf4Linear(20, 24, None, torch.float32, torch.device(DEVICE))
    for first in range(0, 20, step):
        layer.store(first, weight[first : first + step])
    assert torch.equal(layer.dense(), nf4(weight).dense())


def dense(site: TargetSite) -> Tensor:
    assert isinstance(site.module, Nf4Linear)
    return site.module.dense()


@needs_nf4
def test_a_model_in_four_bits_follows_its_updates() -> None:
    described = manifest("opt", learning_rate=5e-3)
    run, exact = trainer(described, dtype="nf4"), trainer(described)
    before = [dense(site) for site in run.loaded.sites]
    for one in (run, exact):
        one.apply(updates(30))
        one.weights.rebuild()
    for site, weight, old in zip(run.loaded.sites, held_weights(exact), before, strict=True):
        held = dense(site)
        assert not torch.equal(held, old)
        assert (held - weight).abs().max() < 0.16 * weight.abs().max()
