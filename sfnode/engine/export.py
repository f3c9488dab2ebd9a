"""The trained model as files for other tools: a whole Hugging Face model, or a PEFT LoRA adapter. Neither is
ever read back into a run.

An adapter holds the change that training made as low-rank factors, exact or truncated to a lower rank. The
change has a term of rank r for each subspace, so its rank is at most r times the number of subspaces, and
never more than the matrix has rows or columns. Factors are computed in float64.

The files beside the weights are the base model's own, with only the necessary changes. transformers would
write a configuration in the form of the installed version, and another version might misread it (version 4
misreads rope_theta in the form of version 5). The base model's own configuration does not depend on the
installed version. If version 5 wrote it, the names that version 4 reads are added.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor

from sfnode.engine import using
from sfnode.engine.destination import new_folder, no_adapter
from sfnode.engine.model_card import model_card
from sfnode.engine.trainable_model import TrainableModel
from sfnode.manifest import public_name
from sfnode.models import model_config, model_files
from sfnode.models.targets import Form, PretrainedModel
from sfnode.schema.history import Provenance

CARD = "README.md"


class AdapterFit(NamedTuple):
    """Ranks of an adapter's factors, and errors of the approximation."""

    rank: int
    """Largest rank among the adapter's matrices."""
    full: int
    """Largest rank that any matrix would need for its exact change."""
    largest: float
    """Largest relative error of a matrix, in the Frobenius norm."""
    total: float
    """Relative error of all matrices together, in the Frobenius norm."""

    @property
    def in_words(self) -> str:
        """Ranks and error as text for people."""
        if self.rank >= self.full:
            return f"rank {self.rank}, nothing left out"
        return (
            f"rank {self.rank} of {self.full}; relative error {self.largest:.2g} in the worst matrix, "
            f"{self.total:.2g} over all"
        )


class Factors(NamedTuple):
    """A matrix as the product `b @ a` of two factors."""

    b: Tensor
    """(out, rank) float32."""
    a: Tensor
    """(rank, in) float32."""


def factors(model: TrainableModel, most: int | None = None) -> tuple[list[Factors], AdapterFit]:
    """Return the change that training made to each target, as two factors, and the ranks and errors of these.
    Truncated SVD limits the rank to `most`; with None no rank is limited. Raises UserError BASES_MISSING,
    BASES_UNUSABLE."""
    cores = model.decay.faded(model.core.cores())
    found, full, largest, lost, all_ = list[Factors](), 1, 0.0, 0.0, 0.0
    for layer, target in enumerate(model.space.targets):
        terms = [_term(model, epoch, core[layer], layer) for epoch, core in cores.items()]
        u, s, v = _svd(terms, target.out_features, target.in_features)
        has = int((s > s.max() * max(len(u), v.shape[1]) * torch.finfo(s.dtype).eps).sum()) if len(s) else 0
        kept = min(has, most or has)
        squares = s[:has].square()
        missed, norm = float(squares[kept:].sum()), float(squares.sum())
        largest = max(largest, math.sqrt(missed / norm) if norm else 0.0)
        full, lost, all_ = max(full, has), lost + missed, all_ + norm
        found.append(_factors(u[:, :kept], s[:kept], v[:kept]))
    rank = max((len(one.a) for one in found), default=1)
    return found, AdapterFit(rank, full, largest, math.sqrt(lost / all_) if all_ else 0.0)


def _term(model: TrainableModel, epoch: int, a: NDArray[Any], layer: int) -> tuple[Tensor, Tensor]:
    """Return U (out, r) and -scale * core @ V.T (r, in) of one subspace, in float64 on the CPU. `a` is one
    layer of the subspace's core."""
    u, v = model.space.basis.matrices(epoch, layer)
    core = torch.from_numpy(a.astype(np.float64))
    return u.cpu().double(), core @ v.cpu().double().t() * -(model.scale(epoch) * model.space.unit(layer))


def _svd(terms: Sequence[tuple[Tensor, Tensor]], rows: int, columns: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return U (out, k), S (k,) descending and V (k, in) of the sum of the products `b @ a` of all terms.

    If the terms together have a lower rank than the matrix, they are factorised without computing the matrix.
    """
    width = sum(b.shape[1] for b, _ in terms)
    if width < min(rows, columns):
        left, right = (
            torch.cat([b for b, _ in terms] or [torch.zeros(rows, 1, dtype=torch.float64)], 1),
            torch.cat([a for _, a in terms] or [torch.zeros(1, columns, dtype=torch.float64)], 0),
        )
        q, r = torch.linalg.qr(left)
        p, l_t = torch.linalg.qr(right.t())
        u, s, v = torch.linalg.svd(r @ l_t.t())
        return q @ u, s, v @ p.t()
    dense = torch.zeros(rows, columns, dtype=torch.float64)
    for b, a in terms:
        dense.addmm_(b, a)
    u, s, v = torch.linalg.svd(dense, full_matrices=False)
    return u, s, v


def _factors(u: Tensor, s: Tensor, v: Tensor) -> Factors:
    """Return a truncated SVD as two factors, by multiplying `u` and `v` by the square roots of the singular
    values `s`. If the change is zero, the factors are zeros of rank 1."""
    if not len(s):  # an adapter must have a rank
        return Factors(torch.zeros(len(u), 1), torch.zeros(1, v.shape[1]))
    root = s.sqrt()
    return Factors((u * root).float().contiguous(), (root[:, None] * v).float().contiguous())


def export_model(model: TrainableModel, out: Path, about: Provenance | None = None) -> None:
    """Write the current model to the new folder `out`, in the form that `from_pretrained` of its Auto class
    reads.

    Weights are rebuilt from the base weights first. So two nodes with equal digests write equal weights, to
    the bit if both have loaded the model in the same dtype. `about` goes into the model card. Raises
    UserError BAD_OPTION if `out` is not empty or cannot be written, DISK_FULL if there is no room.
    """
    with new_folder(out) as folder:
        model.weights.rebuild()
        loaded = model.loaded
        loaded.model.save_pretrained(folder)
        labels = list(model.manifest.task.verbalizer.values()) if loaded.classifies else []
        write_settings(loaded.folder, loaded.model, loaded.tokenizer.pad_token_id, labels, folder)
        (folder / using.ABOUT).write_text(using.about(model), encoding="utf-8")
        weights = {file.name: _sha256(file) for file in sorted(folder.glob("*.safetensors"))}
        (folder / CARD).write_text(model_card(model, about, weights=weights), encoding="utf-8")


def export_lora(
    model: TrainableModel, out: Path, about: Provenance | None = None, rank: int | None = None
) -> AdapterFit:
    """Write the change that training made to the new folder `out`, for `peft.PeftModel.from_pretrained`.
    Return the ranks and errors of the adapter.

    Every matrix has its full rank, or `rank` if that is less. Raises UserError as `export_model` does, and
    BAD_OPTION if vectors or embeddings were trained, which PEFT's adapters cannot hold.
    """
    for site in model.loaded.sites:
        if site.form not in (Form.LINEAR, Form.CONV1D):
            raise no_adapter(site.target.name)
    with new_folder(out) as folder:
        found, fit = factors(model, rank)
        names = [target.name for target in model.space.targets]
        tensors = {}
        for name, one in zip(names, found, strict=True):
            tensors[f"base_model.model.{name}.lora_B.weight"] = one.b
            tensors[f"base_model.model.{name}.lora_A.weight"] = one.a
        save_file(tensors, folder / "adapter_model.safetensors")
        ranks = {name: len(one.a) for name, one in zip(names, found, strict=True)}
        settings = json.dumps(_adapter_config(model, ranks), indent=2)
        (folder / "adapter_config.json").write_text(settings + "\n", encoding="utf-8")
        (folder / CARD).write_text(model_card(model, about, adapter=fit.in_words), encoding="utf-8")
    return fit


def export(
    model: TrainableModel,
    out: Path,
    form: Literal["hf", "lora"] = "hf",
    about: Provenance | None = None,
    rank: int | None = None,
) -> AdapterFit | None:
    """Write the current model to the new folder `out`.

    The form `hf` is a whole Hugging Face model. The form `lora` is a PEFT adapter of the change that training
    made, of rank `rank` at most. Return the ranks and errors of the adapter; None for `hf`. `about` goes into
    the model card. Raises UserError as `export_model` or `export_lora` does.
    """
    model.restore()
    if form == "lora":
        return export_lora(model, out, about, rank)
    export_model(model, out, about)
    return None


def _sha256(file: Path) -> str:
    with file.open("rb") as data:
        return hashlib.file_digest(data, "sha256").hexdigest()


def _adapter_config(model: TrainableModel, ranks: Mapping[str, int]) -> dict[str, object]:
    """Return the content of PEFT's adapter_config.json. `ranks`: the rank of each target, keyed by its name.
    PEFT multiplies an adapter by alpha / rank, so alpha is set to the rank."""
    rank = max(ranks.values())
    others = {name: one for name, one in ranks.items() if one != rank}
    source = model.manifest.model
    return {
        "peft_type": "LORA",
        # PEFT would make its own copy of a classification head
        "task_type": None if model.loaded.classifies else "CAUSAL_LM",
        "base_model_name_or_path": public_name(source.source),
        "revision": source.revision or None,
        "inference_mode": True,
        "r": rank,
        "lora_alpha": rank,
        "rank_pattern": others,
        "alpha_pattern": others,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": model.loaded.sites[0].form is Form.CONV1D,
        "target_modules": list(ranks),
    }


LEFT_OUT = ("auto_map", "_name_or_path", "num_labels")
"""Keys of config.json that are not exported: they name code or folders that an export lacks, or repeat the
number of entries of `id2label`."""

TOKENIZER_CONFIG = "tokenizer_config.json"

FAST = ("TokenizersBackend", "PreTrainedTokenizerFast")
"""Class names of a fast tokenizer: the name that only transformers 5 knows, and the name that versions 4 and
5 know."""


def write_settings(
    base: Path, model: PretrainedModel, pad: int | None, labels: Sequence[str], out: Path
) -> None:
    """Write the configuration and the tokenizer of the model in the folder `base` to the folder `out`.

    `labels`: the names of a classifier's classes, empty for a language model; `pad`: the token that the
    tokenizer pads with. Raises OSError.
    """
    _write(
        out / model_files.CONFIG, _config(model_config.read(base / model_files.CONFIG), model, pad, labels)
    )
    (out / model_files.GENERATION).unlink(missing_ok=True)
    if (base / model_files.GENERATION).is_file() and not labels:
        _write(out / model_files.GENERATION, model_config.generation(base))
    for name in model_files.TOKENIZER_FILES:
        if (base / name).is_file():
            shutil.copyfile(base / name, out / name)
    if (out / TOKENIZER_CONFIG).is_file():
        settings = model_config.read(base / TOKENIZER_CONFIG)
        if (ours := _tokenizer(settings)) != settings:
            _write(out / TOKENIZER_CONFIG, ours)


def _config(
    settings: dict[str, Any], model: PretrainedModel, pad: int | None, labels: Sequence[str]
) -> dict[str, Any]:
    """Return the content of config.json: the base model's `settings`, changed to the class and dtype of the
    exported model."""
    if settings.get("model_type") != model.config.model_type:  # the part for text of a larger model
        settings = model.config.to_diff_dict()
    settings = {key: value for key, value in settings.items() if key not in LEFT_OUT}
    settings["architectures"] = [type(model).__name__]
    for key in {"dtype", "torch_dtype"} & settings.keys():
        settings[key] = str(model.dtype).removeprefix("torch.")
    if labels:
        settings["id2label"] = {str(number): name for number, name in enumerate(labels)}
        settings["label2id"] = {name: number for number, name in enumerate(labels)}
        if "problem_type" in settings:
            settings["problem_type"] = "single_label_classification"
        if hasattr(model, "score"):  # it finds texts' ends by the padding token, which no text may contain
            settings["pad_token_id"] = pad
    if added := model_config.older_names(settings, type(model.config)):
        settings = {key: value for key, value in settings.items() if key != model_config.SAVED_BY} | added
    return settings


def _tokenizer(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tokenizer's settings in a form that versions 4 and 5 of transformers read."""
    ours = dict(settings)
    if ours.get("tokenizer_class") == FAST[0]:
        ours["tokenizer_class"] = FAST[1]
    if isinstance(ours.get("extra_special_tokens"), list):
        ours["additional_special_tokens"] = ours.pop("extra_special_tokens")
    return ours


def _write(file: Path, settings: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
