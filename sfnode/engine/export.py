"""The trained model as files for other tools: a whole Hugging Face model, or a PEFT LoRA adapter.

Both hold exactly what the core says; neither is ever read back into a run. Output is written beside its
destination and renamed, so that a folder that exists is complete.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from sfnode.engine.model_card import model_card
from sfnode.errors import Code, UserError
from sfnode.models.files import TOKENIZER_FILES
from sfnode.models.targets import Form

if TYPE_CHECKING:
    from sfnode.engine.trainer import Trainer


def export_model(trainer: Trainer, out: Path) -> None:
    """Write the model as of now to the new folder `out`, for `from_pretrained` of the same Auto class.

    Weights are rebuilt from the base weights first: two nodes with equal digests write equal weights, to the
    bit if both have loaded the model in the same dtype. Raises UserError BAD_OPTION when `out` holds
    something already or cannot be written, DISK_FULL when there is no room.
    """
    card = model_card(trainer)
    trainer.weights.rebuild()
    with _finished_folder(out) as folder:
        _write(folder, card)
        trainer.loaded.model.save_pretrained(folder)
        for name in TOKENIZER_FILES:
            if (trainer.loaded.folder / name).is_file():
                shutil.copyfile(trainer.loaded.folder / name, folder / name)


def export_lora(trainer: Trainer, out: Path) -> None:
    """Write what training changed to the new folder `out`, for `peft.PeftModel.from_pretrained`.

    The sum over epochs of rank-r terms is one term of rank r * epochs: the epochs' matrices side by side,
    with nothing approximated. Raises UserError as `export_model` does, and BAD_OPTION when vectors or
    embeddings were trained, for which PEFT's adapters have no such term.
    """
    _check_linear(trainer)
    epochs = trainer.core.epochs() or [0]  # an adapter must have a rank; that of a fresh run is all zero
    card = model_card(trainer)
    with _finished_folder(out) as folder:
        _write(folder, card)
        save_file(_adapter_tensors(trainer, epochs), folder / "adapter_model.safetensors")
        settings = json.dumps(_adapter_config(trainer, epochs), indent=2)
        (folder / "adapter_config.json").write_text(settings + "\n", encoding="utf-8")


def _write(folder: Path, card: str) -> None:
    (folder / "README.md").write_text(card, encoding="utf-8")


def _check_linear(trainer: Trainer) -> None:
    for site in trainer.loaded.sites:
        if site.form not in (Form.LINEAR, Form.CONV1D):
            raise UserError(
                Code.BAD_OPTION,
                f"the run trains {site.target.name}, which a LoRA adapter cannot hold",
                "Use --format hf.",
            )


def _adapter_tensors(trainer: Trainer, epochs: list[int]) -> dict[str, Tensor]:
    tensors = {}
    for layer, target in enumerate(trainer.space.targets):
        terms = [_term(trainer, epoch, layer) for epoch in epochs]
        prefix = f"base_model.model.{target.name}"
        tensors[f"{prefix}.lora_B.weight"] = torch.cat([b for b, _ in terms], 1)  # (out, r * epochs)
        tensors[f"{prefix}.lora_A.weight"] = torch.cat([a for _, a in terms], 0)  # (r * epochs, in)
    return tensors


def _term(trainer: Trainer, epoch: int, layer: int) -> tuple[Tensor, Tensor]:
    """Return B = U (out, r) and A = -scale * core @ V.T (r, in) of one epoch, computed in float64, as
    float32."""
    u, v = trainer.space.basis.matrices(epoch, layer)
    core = torch.from_numpy(trainer.core.of(epoch)[layer].astype(np.float64))
    a = core @ v.cpu().double().t() * -trainer.scale(epoch)
    return u.cpu().float().contiguous(), a.float().contiguous()


def _adapter_config(trainer: Trainer, epochs: list[int]) -> dict[str, object]:
    rank = trainer.space.rank * len(epochs)
    source = trainer.manifest.model
    return {
        "peft_type": "LORA",
        # for a classification head PEFT would set up a copy of its own
        "task_type": None if trainer.loaded.classifies else "CAUSAL_LM",
        "base_model_name_or_path": source.source,
        "revision": source.revision or None,
        "inference_mode": True,
        "r": rank,
        "lora_alpha": rank,  # PEFT multiplies by lora_alpha / r; the scale is in A already
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": trainer.loaded.sites[0].form is Form.CONV1D,
        "target_modules": [target.name for target in trainer.space.targets],
    }


@contextmanager
def _finished_folder(out: Path) -> Iterator[Path]:
    """Yield a scratch folder beside `out` that takes its place if the block succeeds, and is removed if
    not."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(
            Code.BAD_OPTION, f"{out} exists already", "Name a new folder, or remove that one first."
        )
    scratch = out.parent / f".{out.name}.{os.getpid()}.partial"
    try:
        scratch.mkdir(parents=True)
        yield scratch
        scratch.replace(out)
    except (OSError, SafetensorError) as error:
        raise _unwritable(out, error) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _unwritable(out: Path, error: Exception) -> UserError:
    if "No space left" in str(error):  # the safetensors library passes no error number on
        return UserError(
            Code.DISK_FULL, f"no space left for {out}", "Free some space, or choose another disk."
        )
    return UserError(
        Code.BAD_OPTION, f"cannot write {out}: {error}", "Choose a folder that you can write to."
    )
