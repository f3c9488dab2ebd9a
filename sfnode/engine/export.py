"""The trained model as files for other tools: a whole Hugging Face model, or a PEFT LoRA adapter.

Neither is ever read back into a run.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors.torch import save_file

from sfnode.engine.adapter import Fit, factors
from sfnode.engine.destination import new_folder, no_adapter
from sfnode.engine.model_card import model_card
from sfnode.manifest import public_name
from sfnode.models.files import TOKENIZER_FILES
from sfnode.models.targets import Form
from sfnode.schema.provenance import Provenance

if TYPE_CHECKING:
    from sfnode.engine.trainer import Trainer


def export_model(trainer: Trainer, out: Path, about: Provenance | None = None) -> None:
    """Write the model as of now to the new folder `out`, for `from_pretrained` of the same Auto class.

    Weights are rebuilt from the base weights first: two nodes with equal digests write equal weights, to the
    bit if both have loaded the model in the same dtype. `about` is for the card. Raises UserError BAD_OPTION
    when `out` holds something already or cannot be written, DISK_FULL when there is no room.
    """
    with new_folder(out) as folder:
        trainer.weights.rebuild()
        model = trainer.loaded.model
        if trainer.loaded.classifies:  # so that other tools name the classes as the run does
            model.config.id2label = dict(enumerate(trainer.manifest.task.verbalizer.values()))
            model.config.label2id = {name: number for number, name in model.config.id2label.items()}
        model.save_pretrained(folder)
        for name in TOKENIZER_FILES:
            if (trainer.loaded.folder / name).is_file():
                shutil.copyfile(trainer.loaded.folder / name, folder / name)
        weights = {file.name: _sha256(file) for file in sorted(folder.glob("*.safetensors"))}
        _write_card(folder, model_card(trainer, about, weights=weights))


def export_lora(trainer: Trainer, out: Path, about: Provenance | None = None, rank: int | None = None) -> Fit:
    """Write what training changed to the new folder `out`, for `peft.PeftModel.from_pretrained`; return how
    well that gives it.

    Every matrix has the rank that it takes to leave nothing out, or `rank` if that is less (`adapter`).
    Raises UserError as `export_model` does, and BAD_OPTION when vectors or embeddings were trained, for which
    PEFT's adapters have no such term.
    """
    _check_linear(trainer)
    with new_folder(out) as folder:
        found, fit = factors(trainer, rank)
        names = [target.name for target in trainer.space.targets]
        tensors = {}
        for name, one in zip(names, found, strict=True):
            tensors[f"base_model.model.{name}.lora_B.weight"] = one.b
            tensors[f"base_model.model.{name}.lora_A.weight"] = one.a
        save_file(tensors, folder / "adapter_model.safetensors")
        ranks = {name: len(one.a) for name, one in zip(names, found, strict=True)}
        settings = json.dumps(_adapter_config(trainer, ranks), indent=2)
        (folder / "adapter_config.json").write_text(settings + "\n", encoding="utf-8")
        _write_card(folder, model_card(trainer, about, fit=fit))
    return fit


def _write_card(folder: Path, card: str) -> None:
    (folder / "README.md").write_text(card, encoding="utf-8")


def _sha256(file: Path) -> str:
    with file.open("rb") as data:
        return hashlib.file_digest(data, "sha256").hexdigest()


def _check_linear(trainer: Trainer) -> None:
    for site in trainer.loaded.sites:
        if site.form not in (Form.LINEAR, Form.CONV1D):
            raise no_adapter(site.target.name)


def _adapter_config(trainer: Trainer, ranks: Mapping[str, int]) -> dict[str, object]:
    """Return PEFT's settings; `ranks` are those of the targets, which it multiplies by alpha / rank: 1."""
    rank = max(ranks.values())
    others = {name: one for name, one in ranks.items() if one != rank}
    source = trainer.manifest.model
    return {
        "peft_type": "LORA",
        # for a classification head PEFT would set up a copy of its own
        "task_type": None if trainer.loaded.classifies else "CAUSAL_LM",
        "base_model_name_or_path": public_name(source.source),
        "revision": source.revision or None,
        "inference_mode": True,
        "r": rank,
        "lora_alpha": rank,
        "rank_pattern": others,
        "alpha_pattern": others,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": trainer.loaded.sites[0].form is Form.CONV1D,
        "target_modules": list(ranks),
    }
