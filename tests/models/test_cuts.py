"""Cuts through a model: tried on the model itself, and none where it would compute something else."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from sfnode.manifest.sections import Target
from sfnode.models.cuts import cut_of
from sfnode.models.targets import Form, TargetSite
from tests.models.families import random_model

CPU = torch.device("cpu")


def sites(model: Any, *names: str) -> list[TargetSite]:
    modules = [model.get_submodule(name) for name in names]
    return [
        TargetSite(
            Target(name=name, out_features=module.out_features, in_features=module.in_features),
            module,
            "weight",
            Form.LINEAR,
        )
        for name, module in zip(names, modules, strict=True)
    ]


@pytest.fixture
def llama() -> Any:
    return random_model("llama").requires_grad_(False)


def test_the_cut_lies_right_below_the_lowest_target(llama: Any) -> None:
    assert cut_of(llama, sites(llama, "model.layers.0.mlp.up_proj"), CPU) is None
    for names in (["model.layers.1.mlp.up_proj"], ["lm_head", "model.layers.1.self_attn.q_proj"]):
        cut = cut_of(llama, sites(llama, *names), CPU)
        assert cut is not None
        assert (cut.name, cut.features, cut.rows(7)) == ("block1", 16, 7)


def test_a_block_that_looks_past_the_cut_is_found_out(llama: Any) -> None:
    """As in families whose upper blocks use keys, values or outputs of lower ones."""
    lower, upper = llama.model.layers
    seen: list[torch.Tensor] = []
    lower.mlp.register_forward_hook(lambda _module, _given, output: seen.append(output))
    upper.mlp.register_forward_hook(lambda _module, _given, output: output + seen.pop())
    assert cut_of(llama, sites(llama, "model.layers.1.mlp.up_proj"), CPU) is None
    llama(input_ids=torch.tensor([[3, 4]]))  # as well as ever


def test_what_is_left_out_behind_a_head_of_zeros_is_found_out() -> None:
    """Outputs that are all zero would agree whatever is computed."""
    model = random_model("bert").requires_grad_(False)
    model.classifier.weight.zero_()
    lower, upper = model.bert.encoder.layer
    seen: list[torch.Tensor] = []
    lower.output.dense.register_forward_hook(lambda _module, _given, output: seen.append(output))
    upper.output.dense.register_forward_hook(
        lambda _module, _given, output: output + (seen.pop() if seen else 0)
    )
    assert cut_of(model, sites(model, "bert.encoder.layer.1.output.dense"), CPU) is None


def test_nothing_is_cut_where_blocks_are_shared_or_never_called(llama: Any) -> None:
    (target,) = sites(llama, "model.layers.1.mlp.up_proj")
    idle = nn.Linear(4, 4)
    assert cut_of(llama, [target, target._replace(module=idle)], CPU) is None
    llama.model.layers[1] = llama.model.layers[0]
    assert cut_of(llama, sites(llama, "model.layers.1.mlp.up_proj"), CPU) is None


def test_a_model_is_as_it_was_afterwards(llama: Any) -> None:
    before = {name: sorted(vars(module)) for name, module in llama.named_modules()}
    assert cut_of(llama, sites(llama, "lm_head"), CPU) is not None
    assert {name: sorted(vars(module)) for name, module in llama.named_modules()} == before
    assert not any(module._forward_hooks for module in llama.modules())
