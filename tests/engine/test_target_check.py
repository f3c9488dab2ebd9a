"""What cannot be moved row by row is refused when a model is loaded, by name and with the reason."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
)
from transformers.models.llama.modeling_llama import LlamaMLP

from sfnode.engine import forward, loading
from sfnode.engine.estimator import estimates
from sfnode.engine.trainer import Trainer
from sfnode.errors import Code
from sfnode.manifest import Manifest
from sfnode.manifest.sections import Data
from sfnode.manifest.training import Training
from sfnode.models import loader
from sfnode.models.targets import DEFAULT, Selection
from sfnode.tasks.encoding import encode
from tests.engine.helpers import (
    DEVICE,
    ENCODERS,
    EVERYTHING,
    FAMILIES,
    HEADED_TASK,
    ROWS,
    TASK,
    WORDS,
    manifest,
    model_folder,
    trainer,
)
from tests.refusals import refused


@pytest.mark.parametrize("family", [*FAMILIES, *ENCODERS])
def test_no_family_has_anything_to_complain_of_with_all_it_has_in_training(family: str) -> None:
    """tests/engine/test_estimator.py loads, and so checks, all families with the default selection."""
    assert loading.target_problem(trainer(manifest(family, selection=EVERYTHING)).loaded) is None


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8"])
@pytest.mark.parametrize("family", ["opt", "gemma2", "bert"])
def test_rounding_is_no_problem(family: str, dtype: str) -> None:
    """Loading refuses a model with a problem, so that this fails in `trainer` already."""
    assert loading.target_problem(trainer(manifest(family), dtype=dtype).loaded) is None


def plain(mlp: Any, x: Tensor) -> Tensor:
    return torch.as_tensor(mlp.down_proj(mlp.act_fn(mlp.gate_proj(x)) * mlp.up_proj(x)))


def in_another_order(mlp: Any, x: Tensor) -> Tensor:
    return plain(mlp, x.flip(0)).flip(0)


def mixed(mlp: Any, x: Tensor) -> Tensor:
    y = plain(mlp, x)
    return y + y.mean(0)


def without_a_call(mlp: Any, x: Tensor) -> Tensor:
    up = torch.nn.functional.linear(x, mlp.up_proj.weight)
    return torch.as_tensor(mlp.down_proj(mlp.act_fn(mlp.gate_proj(x)) * up))


def for_some_tokens_only(mlp: Any, x: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    y[:, 1:] = plain(mlp, x[:, 1:])  # as an expert is called with the tokens that are routed to it
    return y


@pytest.mark.parametrize(
    ("forward", "name", "reason"),
    [
        (in_another_order, "model.layers.0.mlp.gate_proj", "does not keep the rows of a batch apart"),
        (mixed, "model.layers.0", "does not keep the rows of a batch apart"),
        (without_a_call, "model.layers.0.mlp.up_proj", "is never called as a layer"),
        (for_some_tokens_only, "model.layers.0.mlp.gate_proj", "as in a mixture of experts"),
    ],
)
def test_a_layer_that_is_no_function_of_one_row_is_refused_by_name(
    forward: Callable[..., Tensor], name: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    described = manifest("llama")
    monkeypatch.setattr(LlamaMLP, "forward", forward)
    with refused(Code.MODEL_UNSUPPORTED, name, reason, fix="model.target_modules"):
        trainer(described)


def test_such_a_layer_is_no_trouble_where_it_is_not_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    attention = manifest("llama", selection=Selection(("q_proj", "v_proj")))
    monkeypatch.setattr(LlamaMLP, "forward", for_some_tokens_only)
    assert trainer(attention).loaded.sites


_SHAPE = {
    "vocab_size": len(WORDS),
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 1,
}
_EXPERTS: dict[str, dict[str, Any]] = {
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2_moe": {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 8,
        "shared_expert_intermediate_size": 8,
    },
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8, "head_dim": 4},
}


def table_of_positions(mlp: Any, x: Tensor) -> Tensor:
    """As DeBERTa (its first version) projects its table of distances: two rows for each position."""
    y = plain(mlp, x)
    return y + plain(mlp, torch.ones_like(x[:1]).repeat(1, 2, 1)).mean() / 1e3


def test_rows_that_are_those_of_one_batch_by_accident_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    described = manifest("llama")
    monkeypatch.setattr(LlamaMLP, "forward", table_of_positions)
    with refused(Code.MODEL_UNSUPPORTED, "gate_proj sees 10 rows", "3 sequences and 15 tokens"):
        trainer(described)


def test_rows_that_do_not_fit_a_step_end_it_with_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    run = trainer(manifest("llama"))
    monkeypatch.setattr(LlamaMLP, "forward", for_some_tokens_only)
    with refused(Code.MODEL_UNSUPPORTED, "gate_proj sees"):
        estimates(run.loaded, run.space.directions([1], 0), [encode(TASK, run.loaded.tokenizer, ROWS)], 1e-3)


def loaded(
    folder: Path, kind: str, settings: dict[str, Any], selection: Selection = DEFAULT, like: str = "llama"
) -> Trainer:
    """A run on a random model of any kind that transformers has, with the tokenizer of a tiny one."""
    torch.manual_seed(7)
    build: Any = AutoModelForSequenceClassification if like in ENCODERS else AutoModelForCausalLM
    task = HEADED_TASK if like in ENCODERS else TASK
    without = shutil.ignore_patterns("model.*", "config.json")
    shutil.copytree(model_folder(like), folder, ignore=without, dirs_exist_ok=True)
    build.from_config(AutoConfig.for_model(kind, **settings)).save_pretrained(folder)
    described = loader.describe(str(folder), "", selection, loader.classes(task))
    run = Manifest(model=described, task=task, data=Data(), training=Training())
    return Trainer.load(run, model_override=folder, training=False, device=DEVICE)


def test_a_deberta_is_refused_for_its_table_of_distances_and_trained_without_it(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "vocab_size": len(WORDS) + 2,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_position_embeddings": 64,
        "relative_attention": True,
        "pos_att_type": ["c2p", "p2c"],
        "pad_token_id": 0,
    }
    with refused(Code.MODEL_UNSUPPORTED, "pos_proj sees 10 rows", "table of relative positions"):
        loaded(tmp_path, "deberta", settings, like="bert")
    without = Selection(("in_proj", "dense"))
    assert loaded(tmp_path, "deberta", settings, without, like="bert").loaded.sites


@pytest.mark.parametrize(
    ("kind", "extra"), [("mixtral", set()), ("qwen2_moe", {"shared_expert"}), ("qwen3_moe", set())]
)
def test_of_a_mixture_of_experts_what_all_tokens_go_through_is_trained(
    kind: str, extra: set[str], tmp_path: Path
) -> None:
    run = loaded(tmp_path, kind, _SHAPE | _EXPERTS[kind])
    names = [site.target.name.removeprefix("model.layers.").split(".") for site in run.loaded.sites]
    of_attention = {parts[-1] for parts in names if parts[1] == "self_attn"}
    assert of_attention == {"q_proj", "k_proj", "v_proj", "o_proj"}
    assert {parts[2] for parts in names if parts[1] == "mlp"} == extra | {f"{name}_gate" for name in extra}


def seeing(folder: Path, selection: Selection) -> Trainer:
    """A run on a model that sees images, too; its configuration has no vocabulary, but that for text has."""
    sight = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    sight |= {"image_size": 28, "patch_size": 14, "vision_use_head": False}
    text = _SHAPE | {"head_dim": 4, "query_pre_attn_scalar": 4}
    settings = {"text_config": text, "vision_config": sight, "mm_tokens_per_image": 4}
    return loaded(folder, "gemma3", settings, selection)


def test_what_a_model_sees_with_is_never_called_for_a_text_and_refused_by_name(tmp_path: Path) -> None:
    with refused(Code.MODEL_UNSUPPORTED, "vision_tower.encoder.layers.0.self_attn.k_proj is never called"):
        seeing(tmp_path, DEFAULT)


def test_the_part_for_text_of_a_model_that_sees_is_trained_and_measured_and_writes(tmp_path: Path) -> None:
    run = seeing(tmp_path, Selection((r"model\.language_model\..*_proj",)))
    assert len(run.loaded.sites) == 2 * 7
    batch = encode(TASK, run.loaded.tokenizer, ROWS)
    (found,) = estimates(run.loaded, run.space.directions([1], 0), [batch], 1e-3)
    losses = batch.losses(forward.score_in_passes(run.loaded, batch).log_probs)
    assert found.loss == pytest.approx(float(losses.mean()), rel=1e-3)
    assert isinstance(run.generate("the film was " * 40, 3)[1], str)  # cut to the positions for text


def test_a_state_space_model_whose_projection_is_used_without_a_call_is_refused(tmp_path: Path) -> None:
    with refused(Code.MODEL_UNSUPPORTED, "layers.0.mixer.dt_proj is never called as a layer"):
        loaded(tmp_path, "mamba", _SHAPE)


@pytest.mark.parametrize("seed", range(5))
def test_an_encoder_that_plays_a_language_model_is_refused_as_it_sees_its_answers(
    seed: int, tmp_path: Path
) -> None:
    """Whichever: one token alone is predicted nearly the same by most of the random ones."""
    folder = Path(shutil.copytree(model_folder("bert"), tmp_path / "bert"))
    network: Any = AutoModelForMaskedLM
    torch.manual_seed(seed)
    network.from_config(AutoConfig.from_pretrained(folder)).save_pretrained(folder)
    described = loader.describe(str(folder), "")
    run = manifest("opt").model_copy(update={"model": described})
    with refused(Code.MODEL_UNSUPPORTED, "reads both ways"):
        Trainer.load(run, model_override=folder, training=False)
