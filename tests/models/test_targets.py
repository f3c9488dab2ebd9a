"""What is trained: by name, ending, pattern and kind, in every family; and what is refused, and why."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest
import torch
from peft import LoraConfig, inject_adapter_in_model
from torch import Tensor, nn
from torch.nn.functional import one_hot
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from sfnode.manifest.sections import Target
from sfnode.models.targets import Form, Selection, TargetSite, choose, locate, view
from tests.models.families import ENCODERS, FAMILIES, LABELS, WORDS, empty_model, model_folder, random_model

EVERY = FAMILIES + ENCODERS
EVERYTHING = Selection(embeddings=True, biases=True, norms=True)

_LLAMA = (
    "model.layers.#. self_attn.q_proj:16x16 self_attn.k_proj:8x16 self_attn.v_proj:8x16 "
    "self_attn.o_proj:16x16 mlp.gate_proj:40x16 mlp.up_proj:40x16 mlp.down_proj:16x40"
)
_BERT = (
    "encoder.layer.#. attention.self.query:16x16 attention.self.key:16x16 attention.self.value:16x16 "
    "attention.output.dense:16x16 intermediate.dense:40x16 output.dense:16x40"
)
LINEAR = {
    "opt": (
        "model.decoder. project_out:8x16 project_in:16x8 model.decoder.layers.#. self_attn.k_proj:16x16 "
        "self_attn.v_proj:16x16 self_attn.q_proj:16x16 self_attn.out_proj:16x16 fc1:40x16 fc2:16x40"
    ),
    "gpt2": "transformer.h.#. attn.c_attn:48x16 attn.c_proj:16x16 mlp.c_fc:64x16 mlp.c_proj:16x64",
    "gpt_neox": (
        "gpt_neox.layers.#. attention.query_key_value:48x16 attention.dense:16x16 "
        "mlp.dense_h_to_4h:40x16 mlp.dense_4h_to_h:16x40"
    ),
    **dict.fromkeys(("llama", "qwen2", "qwen3", "mistral", "gemma", "gemma2", "gemma3_text"), _LLAMA),
    "phi": (
        "model.layers.#. self_attn.q_proj:16x16 self_attn.k_proj:16x16 self_attn.v_proj:16x16 "
        "self_attn.dense:16x16 mlp.fc1:40x16 mlp.fc2:16x40"
    ),
    "phi3": (
        "model.layers.#. self_attn.o_proj:16x16 self_attn.qkv_proj:32x16 mlp.gate_up_proj:80x16 "
        "mlp.down_proj:16x40"
    ),
    "bert": f"bert.{_BERT} bert. pooler.dense:16x16 classifier. :2x16",
    "roberta": f"roberta.{_BERT} classifier. dense:16x16 out_proj:2x16",
    "modernbert": (
        "model.layers.#. attn.Wqkv:48x16 attn.Wo:16x16 mlp.Wi:80x16 mlp.Wo:16x40 head. dense:16x16 "
        "classifier. :2x16"
    ),
}
EMBEDDINGS = {
    "opt": "model.decoder. embed_tokens:8x17",
    "gpt2": "transformer. wte:16x17 wpe:16x64",
    "gpt_neox": "gpt_neox. embed_in:16x17",
    "bert": "bert.embeddings. word_embeddings:16x19 position_embeddings:16x64",
    "roberta": "roberta.embeddings. word_embeddings:16x19 position_embeddings:16x65",
    "modernbert": "model.embeddings. tok_embeddings:16x19",
}
_OTHER_EMBEDDINGS = "model. embed_tokens:16x17"

_LLAMA_NORMS = "model.layers.#. input_layernorm.weight:16x1 post_attention_layernorm.weight:16x1"
_HEAD_NORMS = "model.layers.#. self_attn.q_norm.weight:4x1 self_attn.k_norm.weight:4x1"
_GEMMA_NORMS = "pre_feedforward_layernorm.weight:16x1 post_feedforward_layernorm.weight:16x1"
_LAST_NORM = "model. norm.weight:16x1"
_BERT_NORMS = "LayerNorm.weight:16x1 LayerNorm.bias:16x1"
NORMS = {
    "opt": (
        "model.decoder. final_layer_norm.weight:16x1 final_layer_norm.bias:16x1 model.decoder.layers.#. "
        "self_attn_layer_norm.weight:16x1 self_attn_layer_norm.bias:16x1 "
        "final_layer_norm.weight:16x1 final_layer_norm.bias:16x1"
    ),
    "gpt2": (
        "transformer.h.#. ln_1.weight:16x1 ln_1.bias:16x1 ln_2.weight:16x1 ln_2.bias:16x1 "
        "transformer. ln_f.weight:16x1 ln_f.bias:16x1"
    ),
    "gpt_neox": (
        "gpt_neox.layers.#. input_layernorm.weight:16x1 input_layernorm.bias:16x1 "
        "post_attention_layernorm.weight:16x1 post_attention_layernorm.bias:16x1 "
        "gpt_neox. final_layer_norm.weight:16x1 final_layer_norm.bias:16x1"
    ),
    **dict.fromkeys(("llama", "qwen2", "mistral", "gemma", "phi3"), f"{_LLAMA_NORMS} {_LAST_NORM}"),
    "qwen3": f"{_HEAD_NORMS} {_LLAMA_NORMS} {_LAST_NORM}",
    "gemma2": f"{_LLAMA_NORMS} {_GEMMA_NORMS} {_LAST_NORM}",
    "gemma3_text": f"{_HEAD_NORMS} {_LLAMA_NORMS} {_GEMMA_NORMS} {_LAST_NORM}",
    "phi": (
        "model.layers.#. input_layernorm.weight:16x1 input_layernorm.bias:16x1 "
        "model. final_layernorm.weight:16x1 final_layernorm.bias:16x1"
    ),
    **{
        name: (
            f"{name}.embeddings. {_BERT_NORMS} {name}.encoder.layer.#.attention.output. {_BERT_NORMS} "
            f"{name}.encoder.layer.#.output. {_BERT_NORMS}"
        )
        for name in ("bert", "roberta")
    },
    "modernbert": (
        "model.embeddings. norm.weight:16x1 model.layers.0. mlp_norm.weight:16x1 "
        "model.layers.1. attn_norm.weight:16x1 mlp_norm.weight:16x1 model. final_norm.weight:16x1 "
        "head. norm.weight:16x1"
    ),
}
FUSED = ("gpt2", "gpt_neox", "phi3", "modernbert")
"""Families in which queries, keys and values are made by one layer."""
BIASED = {
    **dict.fromkeys(("gpt2", "gpt_neox", "phi", "bert", "roberta"), ("",)),
    "opt": ("layers.",),
    "qwen2": ("q_proj", "k_proj", "v_proj"),
    "modernbert": ("classifier",),
}
"""Parts of the names of the linear layers that have biases; in families that are not here none has."""


def expanded(text: str) -> list[str]:
    """Names after the prefix that stands before them (it ends in a dot); runs of `#` for blocks 0 and 1."""
    names = []
    for word in text.split():
        if word.endswith("."):
            prefix = word
        else:
            names.append((prefix + word).replace(".:", ":"))
    runs = itertools.groupby(names, lambda name: "#" in name)
    return [
        name.replace("#", block)
        for in_blocks, run in ((key, list(group)) for key, group in runs)
        for block in ("01" if in_blocks else "-")
        for name in run
    ]


def chosen(model: Any, *modules: str, **kinds: bool) -> list[str]:
    return [str(target) for target in choose(model, Selection(modules, **kinds))]


def sites(model: Any) -> tuple[TargetSite, ...]:
    return locate(model, choose(model, EVERYTHING))


def output(model: Any) -> Tensor:
    ids = torch.tensor([[1, 2, 3, 4, 5, 6, 7, 8], [1, 5, 6, 9, 10, 11, 0, 0]])
    with torch.no_grad():
        logits: Tensor = model(input_ids=ids, attention_mask=(ids != 0).long()).logits
    return logits


@pytest.mark.parametrize("family", EVERY)
def test_by_default_all_linear_layers_are_trained_but_the_language_model_head(family: str) -> None:
    assert chosen(empty_model(family), "all-linear") == expanded(LINEAR[family])


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_the_upper_layers_of_a_deep_model_are_those_in_its_last_blocks(family: str) -> None:
    config = empty_model(family).config
    config.num_hidden_layers = 10
    deep = AutoModelForCausalLM.from_config(config)
    every, upper = chosen(deep, "all-linear"), chosen(deep, "upper-linear")
    assert upper == [name for name in every if re.search(r"\.[6-9]\.", name)]
    shallow = empty_model(family)
    assert chosen(shallow, "upper-linear") == chosen(shallow, "all-linear")


@pytest.mark.parametrize("family", EVERY)
def test_values_are_the_layers_that_make_them_or_all_where_they_are_one_with_others(family: str) -> None:
    every = chosen(empty_model(family), "all-linear")
    own = [name for name in every if re.search(r"\.(v_proj|value|v_lin|v):", name)]
    assert chosen(empty_model(family), "values") == (own or every)
    assert bool(own) == (family not in FUSED)


@pytest.mark.parametrize("family", EVERY)
def test_embeddings_and_norms_are_trained_if_asked_for(family: str) -> None:
    model = empty_model(family)
    assert chosen(model, embeddings=True) == expanded(EMBEDDINGS.get(family, _OTHER_EMBEDDINGS))
    assert chosen(model, norms=True) == expanded(NORMS[family])


@pytest.mark.parametrize("family", BIASED)
def test_the_biases_of_linear_layers_are_trained_if_asked_for(family: str) -> None:
    biased = [name for name in expanded(LINEAR[family]) if any(part in name for part in BIASED[family])]
    targets = [Target.parse(name) for name in biased]
    expected = [f"{target.name}.bias:{target.out_features}x1" for target in targets]
    assert chosen(empty_model(family), biases=True) == expected


@pytest.mark.parametrize("family", [family for family in EVERY if family not in BIASED])
def test_a_model_without_biases_has_none_to_train(family: str) -> None:
    with pytest.raises(ValueError, match="nothing in it is chosen"):
        chosen(empty_model(family), biases=True)


@pytest.mark.parametrize("family", EVERY)
def test_everything_together_is_in_the_models_own_order(family: str) -> None:
    model = empty_model(family)
    places = {name: place for place, (name, _) in enumerate(model.named_parameters())}
    found = [site.target.name for site in sites(model)]
    order = [places.get(name, places.get(f"{name}.weight", -1)) for name in found]
    assert order == sorted(order)
    assert len(set(order)) == len(order)
    kinds = [{"embeddings": True}, {"biases": family in BIASED, "norms": True}]
    parts = [chosen(model, "all-linear"), *(chosen(model, **kind) for kind in kinds)]
    assert sorted(str(site.target) for site in sites(model)) == sorted(itertools.chain(*parts))


@pytest.mark.parametrize("family", EVERY)
def test_a_model_without_memory_for_its_weights_has_the_same_targets(family: str) -> None:
    with torch.device("meta"):
        skeleton = empty_model(family)
    assert next(skeleton.parameters()).is_meta
    assert choose(skeleton, EVERYTHING) == choose(empty_model(family), EVERYTHING)


@pytest.mark.parametrize("family", EVERY)
def test_a_target_is_a_matrix_that_maps_x_as_its_module_does(family: str) -> None:
    for target, module, parameter, form in sites(random_model(family)):
        held = getattr(module, parameter).data
        w = view(held, form)
        assert w.shape == (target.out_features, target.in_features)
        assert w.data_ptr() == held.data_ptr()
        if form is Form.EMBEDDING:
            ids = torch.arange(target.in_features)
            expected = one_hot(ids).float() @ w.T * getattr(module, "embed_scale", 1.0)
            torch.testing.assert_close(module(ids), expected)
        elif form is not Form.VECTOR:
            x = torch.randn(2, 3, target.in_features)
            bias = getattr(module, "bias", None)
            torch.testing.assert_close(module(x), x @ w.T + (0.0 if bias is None else bias))


@pytest.mark.parametrize("family", EVERY)
def test_moving_any_target_changes_what_the_model_says(family: str) -> None:
    model = random_model(family)
    before = output(model)
    for site in sites(model):
        w = view(getattr(site.module, site.parameter).data, site.form)
        base = w.clone()
        w += 0.5 * torch.randn_like(w)
        moved = (output(model) - before).abs().max()
        w.copy_(base)
        blind = site.target.name.endswith(("k_proj.bias", "key.bias"))  # may add the same to every score
        assert moved > 1e-4 or blind, site.target


@pytest.mark.parametrize("family", EVERY)
def test_a_tiny_model_and_its_tokenizer_are_what_was_saved(family: str) -> None:
    load: Any = AutoModelForCausalLM if family in FAMILIES else AutoModelForSequenceClassification
    model, report = load.from_pretrained(model_folder(family), output_loading_info=True)
    assert not any(report.values())
    torch.testing.assert_close(output(model), output(random_model(family)))
    assert output(model).shape[-1] == (len(WORDS) if family in FAMILIES else LABELS)
    ids = AutoTokenizer.from_pretrained(model_folder(family))("the dull film was slow .")["input_ids"]
    expected = [WORDS.index(word) for word in ["the", "dull", "film", "was", "slow", "."]]
    assert ids == (expected if family in FAMILIES else [len(WORDS), *expected, len(WORDS) + 1])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("patterns", ["all-linear", r".*\.[01]\.[a-z_]+\.(o_proj|dense|c_proj|out_proj)"])
def test_patterns_choose_what_they_choose_for_peft(family: str, patterns: str) -> None:
    model = empty_model(family)
    found = [target.name for target in choose(model, Selection((patterns,)))]
    inject_adapter_in_model(LoraConfig(target_modules=patterns, fan_in_fan_out=family == "gpt2"), model)
    names = [name for name, module in model.named_modules() if hasattr(module, "lora_A")]
    assert found == names
    assert found


@pytest.mark.parametrize(
    ("patterns", "layers"),
    [
        (("q_proj",), ["model.layers.0.self_attn.q_proj:16x16", "model.layers.1.self_attn.q_proj:16x16"]),
        (("model.layers.1.mlp.up_proj",), ["model.layers.1.mlp.up_proj:40x16"]),
        (("1.mlp.up_proj", "0.mlp.up_proj"), [f"model.layers.{n}.mlp.up_proj:40x16" for n in (0, 1)]),
        ((r".*\.0\.mlp\.(up|down)_proj",), expanded("model.layers.0.mlp. up_proj:40x16 down_proj:16x40")),
        (("lm_head",), ["lm_head:17x16"]),
        (("lm_head", "embed_tokens"), ["model.embed_tokens:16x17", "lm_head:17x16"]),
        (("ALL-LINEAR", "q_proj", "lm_head"), [*expanded(_LLAMA), "lm_head:17x16"]),
    ],
)  # fmt: skip
def test_a_pattern_is_a_name_or_its_ending_or_a_regular_expression(
    patterns: tuple[str, ...], layers: list[str]
) -> None:
    assert chosen(empty_model("llama"), *patterns) == layers


def test_a_head_that_is_tied_to_the_embedding_is_one_target_with_it() -> None:
    model = empty_model("qwen2")
    embedding = ["model.embed_tokens:16x17"]
    assert chosen(model, "lm_head") == chosen(model, "lm_head", embeddings=True) == embedding
    (site,) = locate(model, [Target.parse(embedding[0])])
    assert site.module is model.model.embed_tokens
    says = "it has model.embed_tokens:16x17 where the run trains lm_head:17x16"
    with pytest.raises(ValueError, match=re.escape(says)):
        locate(model, [Target.parse("lm_head:17x16")])


def test_the_bias_of_a_head_is_trained_only_with_the_head() -> None:
    model = empty_model("phi")
    assert not any("lm_head" in name for name in chosen(model, "all-linear", biases=True))
    assert chosen(model, "all-linear", "lm_head", biases=True)[-2:] == ["lm_head:17x16", "lm_head.bias:17x1"]


def test_fused_experts_are_no_linear_layers_and_what_is_around_them_is_trained() -> None:
    settings = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_local_experts": 4}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model("mixtral", **settings, **heads))
    names = [name.rpartition(".")[2] for name in chosen(model, "all-linear")]
    assert names == ["q_proj:16x16", "k_proj:8x16", "v_proj:8x16", "o_proj:16x16"]
    with pytest.raises(ValueError, match=r"model\.layers\.0\.mlp\.experts is a MixtralExperts, no linear"):
        chosen(model, "experts")


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        ("q_porj", "it has no module 'q_porj'; close to it: q_proj"),
        ("proj", "it has no module 'proj'; close to it: v_proj, q_proj, o_proj"),
        ("xyz", "it has no module 'xyz'; there are embed_tokens, q_proj, k_proj, v_proj"),
        ("self_attn", "model.layers.0.self_attn is a LlamaAttention, no linear layer"),
        ("norm", "model.norm is a LlamaRMSNorm, no linear layer"),
        (r".*\.0\..*", "model.layers.0.self_attn is a LlamaAttention, no linear layer"),
        ("*_proj", "'*_proj' is no module's name and no regular expression: nothing to repeat"),
        ("", "it has no module ''"),
    ],
)
def test_a_pattern_for_no_linear_layer_is_refused_with_what_there_is(pattern: str, says: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(says)}"):
        chosen(empty_model("llama"), pattern)


class Quantised(nn.Linear):
    """A linear layer that computes in its own way."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.round())


class Renamed(nn.Linear):
    """A linear layer like any other."""


def with_layer(layer: nn.Module) -> Any:
    model = empty_model("llama")
    model.model.layers[1].mlp.up_proj = layer
    return model


@pytest.mark.parametrize("pattern", ["all-linear", "up_proj"])
def test_a_layer_that_computes_in_its_own_way_is_refused_by_name_and_class(pattern: str) -> None:
    says = r"model\.layers\.1\.mlp\.up_proj is a Quantised, which is not computed as"
    with pytest.raises(ValueError, match=says):
        chosen(with_layer(Quantised(16, 40)), pattern)
    assert len(chosen(with_layer(Quantised(16, 40)), "down_proj")) == 2
    assert len(chosen(with_layer(Renamed(16, 40)), pattern)) == len(chosen(empty_model("llama"), pattern))


def test_falcons_linear_layers_are_ordinary_ones_under_another_name() -> None:
    settings = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1, "vocab_size": 20}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("falcon", **settings, bias=True))
    located = locate(model, choose(model, Selection()))
    endings = [site.target.name.rpartition(".")[2] for site in located]
    assert endings == ["query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"]
    for site in located:
        x = torch.randn(2, site.target.in_features)
        torch.testing.assert_close(site.module(x), x @ site.module.weight.T + site.module.bias)


def test_a_projection_that_is_never_called_is_refused() -> None:
    says = r"up_proj\.out_proj is a NonDynamicallyQuantizableLinear, which"
    with pytest.raises(ValueError, match=says):
        chosen(with_layer(nn.MultiheadAttention(16, 2)), "all-linear")


def test_a_table_that_is_not_read_by_row_number_is_left_out_and_refused_by_name() -> None:
    model = empty_model("opt")
    assert "model.decoder.embed_positions" not in [site.target.name for site in sites(model)]
    with pytest.raises(ValueError, match="embed_positions is a OPTLearnedPositionalEmbedding, no linear"):
        chosen(model, "embed_positions")


def test_a_parameter_that_two_layers_share_is_refused() -> None:
    shared = nn.Linear(16, 40, bias=False)
    model = with_layer(shared)
    shared.weight = model.model.layers[0].mlp.up_proj.weight
    assert len(chosen(model, "down_proj")) == 2
    names = r"model\.layers\.1\.mlp\.up_proj and model\.layers\.0\.mlp\.up_proj"
    with pytest.raises(ValueError, match=f"{names} share one parameter"):
        chosen(model, "all-linear")
    with pytest.raises(ValueError, match=f"{names} share one parameter"):
        locate(model, [Target.parse("model.layers.0.mlp.up_proj:40x16")])


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("model.layers.7.mlp.up_proj:40x16", "close to it: model.layers."),
        ("model.layers.0.mlp:40x16", "model.layers.0.mlp is a LlamaMLP there"),
        ("model.layers.0.mlp.up_proj:16x40", "it has model.layers.0.mlp.up_proj:40x16 where the run trains"),
        ("model.layers.0.mlp.up_proj.bias:40x1", "close to it: model.layers.0.mlp.up_proj"),
    ],
)
def test_a_target_that_is_not_there_is_named_with_what_is(target: str, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)) as caught:
        locate(empty_model("llama"), [Target.parse(target)])
    assert target in str(caught.value)
