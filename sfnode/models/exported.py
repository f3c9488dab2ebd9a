"""The files beside the weights of an export: the base model's own, changed in what has to change.

transformers would write a configuration as its own version does, and another version may read another model
from it (rope_theta of version 5 in version 4). The base model's own is what both have always read. One that
version 5 has written gets the names of version 4, too.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sfnode.models import files, vetting
from sfnode.models.targets import PretrainedModel

LEFT_OUT = ("auto_map", "_name_or_path", "num_labels")
"""Keys of config.json that name code or folders which are not in an export, or the number of `id2label`."""

TOKENIZER_CONFIG = "tokenizer_config.json"

FAST = ("TokenizersBackend", "PreTrainedTokenizerFast")
"""The class of any fast tokenizer, as transformers 5 calls it, and as both versions do."""


def write_settings(
    base: Path, model: PretrainedModel, pad: int | None, labels: Sequence[str], out: Path
) -> None:
    """Write the settings and the tokenizer of the model in a folder `base` to the folder `out`.

    `labels`: the names of a classifier's classes; `pad`: the token that the tokenizer pads with. Raises
    OSError.
    """
    _write(out / files.CONFIG, _config(vetting.read(base / files.CONFIG), model, pad, labels))
    (out / files.GENERATION).unlink(missing_ok=True)
    if (base / files.GENERATION).is_file() and not labels:
        _write(out / files.GENERATION, vetting.generation(base))
    for name in files.TOKENIZER_FILES:
        if (base / name).is_file():
            shutil.copyfile(base / name, out / name)
    if (out / TOKENIZER_CONFIG).is_file():
        settings = vetting.read(base / TOKENIZER_CONFIG)
        if (ours := _tokenizer(settings)) != settings:
            _write(out / TOKENIZER_CONFIG, ours)


def _config(
    settings: dict[str, Any], model: PretrainedModel, pad: int | None, labels: Sequence[str]
) -> dict[str, Any]:
    """Return config.json: that of the base, `settings`, for the class and dtype that are written."""
    if settings.get("model_type") != model.config.model_type:  # of a larger model this is the part for text
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
        if hasattr(model, "score"):  # finds by it where a text ends: none that may stand in one
            settings["pad_token_id"] = pad
    if added := vetting.older_names(settings, type(model.config)):
        settings = {key: value for key, value in settings.items() if key != vetting.SAVED_BY} | added
    return settings


def _tokenizer(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tokenizer's settings as both versions of transformers read them."""
    ours = dict(settings)
    if ours.get("tokenizer_class") == FAST[0]:
        ours["tokenizer_class"] = FAST[1]
    if isinstance(ours.get("extra_special_tokens"), list):
        ours["additional_special_tokens"] = ours.pop("extra_special_tokens")
    return ours


def _write(file: Path, settings: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
