"""The base model: from a source to modules whose weights can be trained (DESIGN 6).

Knows which matrices of a transformers causal language model are targets, how they are oriented, and how to
run the model to logits at chosen positions. It knows nothing of updates, subspaces or tasks. Only
safetensors are read and no code from a model's folder is run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.pytorch_utils import Conv1D
from transformers.utils import logging

from sfnode import config
from sfnode.engine.folder import BUILTIN, digest, resolve
from sfnode.errors import Code, UserError

__all__ = ["LoadedModel", "describe", "digest", "load", "logits_at", "matrix", "resolve"]

T = TypeVar("T")
Network = Any
"""A transformers causal language model; that library types its classes otherwise from release to release."""
_AutoModel: Any = AutoModelForCausalLM
_library_log: Any = logging


@dataclass(frozen=True)
class LoadedModel:
    """A base model ready for training: fp32, evaluation mode, no gradients."""

    model: Network
    tokenizer: Any
    layers: tuple[nn.Module, ...]
    """The target modules, in the manifest's order."""
    folder: Path


def describe(source: str, revision: str) -> config.Model:
    """What a manifest says of a base model: its digest and its targets in order (for `sfnode init`).

    A hub model without a revision is pinned to the commit that was found. Raises UserError MODEL_*.
    """
    folder = resolve(source, revision, None)
    skeleton = _understood(folder, lambda: _skeleton(folder))
    targets = [str(_target(name, module)) for name, module in target_modules(skeleton)]
    if not targets:
        raise _unsupported(folder, "it has no linear layers to train")
    from_hub = not source.startswith(BUILTIN) and not Path(source).is_dir()
    pinned = revision or (folder.name if from_hub else "")
    return config.Model(source=source, revision=pinned, digest=digest(folder), targets=tuple(targets))


def load(manifest: config.Manifest, *, override: Path | None, device: torch.device) -> LoadedModel:
    """The manifest's base model on `device`, or the same model from the folder `override`.

    Raises UserError MODEL_DIGEST when the files are not those that the run started from, and
    MODEL_UNSUPPORTED when the targets are not those that the manifest lists.
    """
    wanted = manifest.model
    folder = resolve(wanted.source, wanted.revision, override)
    _check_digest(folder, wanted.digest)
    model = _understood(folder, lambda: _weights(folder).to(device))
    tokenizer = _understood(
        folder, lambda: AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    )
    return LoadedModel(model, tokenizer, _layers(folder, model, wanted.parsed_targets()), folder)


def target_modules(model: Network) -> list[tuple[str, nn.Module]]:
    """Every linear layer (`nn.Linear`, GPT-2's `Conv1D`) but the output head, in the model's own order."""
    head = model.get_output_embeddings()
    return [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | Conv1D) and module is not head
    ]


def matrix(module: nn.Module) -> Tensor:
    """The weight of a target as W (out_features, in_features), sharing its memory; Conv1D stores W.T."""
    weight: Tensor = module.weight.data  # type: ignore[assignment]
    return weight.t() if isinstance(module, Conv1D) else weight


def logits_at(model: Network, input_ids: Tensor, attention_mask: Tensor, positions: Tensor) -> Tensor:
    """Logits (P, vocab) at `positions`, P flat indices into (S * T); input_ids and attention_mask (S, T).

    The rows are picked just before the output head, so that whatever the architecture does around it is
    done, and the head, the widest layer of a small model, computes nothing that nobody reads.
    """

    def pick(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (args[0].flatten(0, 1)[positions],)  # (S, T, d) -> (P, d)

    head = model.get_output_embeddings()
    handle = head.register_forward_pre_hook(pick)
    try:
        logits: Tensor = model(input_ids=input_ids, attention_mask=attention_mask, use_cache=False).logits
    finally:
        handle.remove()
    return logits


def _target(name: str, module: nn.Module) -> config.Target:
    out_features, in_features = matrix(module).shape
    return config.Target(name=name, out_features=out_features, in_features=in_features)


def _layers(folder: Path, model: Network, targets: Sequence[config.Target]) -> tuple[nn.Module, ...]:
    found = dict(target_modules(model))
    for target in targets:
        if target.name not in found or _target(target.name, found[target.name]) != target:
            raise _unsupported(folder, f"it has no linear layer {target}, which the run trains")
    return tuple(found[target.name] for target in targets)


def _skeleton(folder: Path) -> Network:
    """The model's modules without memory for their weights."""
    settings = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    with torch.device("meta"):
        return _AutoModel.from_config(settings, trust_remote_code=False)


def _weights(folder: Path) -> Network:
    _library_log.disable_progress_bar()
    model, report = _AutoModel.from_pretrained(
        folder,
        dtype=torch.float32,  # not config.json's, which may be narrower than what the files hold
        use_safetensors=True,
        local_files_only=True,
        trust_remote_code=False,
        output_loading_info=True,
    )
    absent = sorted(report["missing_keys"]) + sorted(str(key) for key in report["mismatched_keys"])
    if absent:  # transformers would fill them with random numbers, other ones on every node
        raise ValueError(f"its files lack {absent[0]}")
    return model.eval().requires_grad_(False)


def _understood(folder: Path, action: Callable[[], T]) -> T:
    """The result of a transformers call; what that library raises becomes an error that a user can read."""
    try:
        return action()
    except UserError:
        raise
    except Exception as error:  # transformers documents no common base of what it raises
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise _unsupported(folder, reason) from error


def _check_digest(folder: Path, wanted: str) -> None:
    actual = digest(folder)
    if actual != wanted:
        raise UserError(
            Code.MODEL_DIGEST,
            f"the base model in {folder} has digest {actual}; the run started from {wanted}",
            "Give the folder of the run's own base model, or the revision that its manifest names.",
        )


def _unsupported(folder: Path, reason: str) -> UserError:
    return UserError(
        Code.MODEL_UNSUPPORTED,
        f"{folder} cannot be trained: {reason}",
        "Use a causal language model that transformers loads without code of its own, such as OPT or Llama.",
    )
