"""The part of a model's folder that transformers sees: only files that the digest covers, and no setting that
chooses code or other files.

A model's author writes its configuration. transformers accepts there names of other weights, of code for
attention, of quantisation libraries and of paths on this machine, and each release adds keys. So transformers
is given a scratch folder instead. That folder has links to the files of the digest, and configurations with
only the keys that the model's own class declares. This module knows transformers' conventions, and loads no
weights.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import CodeType, FunctionType
from typing import Any

import transformers
from transformers import CONFIG_MAPPING, AutoConfig, PretrainedConfig, PreTrainedTokenizerBase

from sfnode.errors import Code, UserError
from sfnode.models import model_files

SCRATCH = "sfnode-model-"

TOKENIZER_SETTINGS = ("tokenizer_config.json", "special_tokens_map.json")
"""Files whose keys become arguments of the tokenizer's class."""

CHOOSES = {
    "transformers_weights": "a file of weights that the digest does not cover",
    "quantization_config": "a library that reads its weights",
    "compression_config": "a library that reads its weights",
    "attn_implementation": "the code that computes attention",
    "experts_implementation": "the code that computes a mixture of experts",
    "fusion_config": "code that replaces the model's own",
    "kernel_config": "code that replaces the model's own",
    "distributed_config": "the devices that it runs on",
    "backbone": "another model",
    "backbone_kwargs": "another model",
    "use_pretrained_backbone": "another model",
    "use_timm_backbone": "another model",
    "mecab_option": "files of a tokenizer outside the model's folder",
}
"""Keys by which a configuration chooses code, devices or files, with what each key chooses. A configuration
with such a key is refused, because without the key the model may be a different one."""

SHARED = frozenset(
    {
        *("model_type", "tokenizer_class"),
        *("attention_chunk_size", "head_dim", "is_causal", "is_decoder", "layer_types", "sliding_window"),
        *("bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "tie_word_embeddings"),
    }
)
"""Keys that transformers reads in code for all models, whether or not the model's class declares them."""

READERS = ("__init__", "__post_init__", "convert_rope_params_to_dict")
"""Methods in which a configuration's class uses attributes that it does not declare: old names of keys, and
computed numbers that config.json also contains."""

COUNT = re.compile(r"(layer|block|expert|stage|depth)s?$")
"""Pattern for keys that count parts of a model, such as layers. Each part has tensors of its own in the
files."""

MAX_LAYERS = 1024
"""Maximum value of a key that counts parts of a model, unless the files have more tensors than that. Some
models use a layer, or keep experts, several times."""

MAX_NUMBER = 1 << 24
"""Maximum value of any other whole number in a configuration, unless the files have more bytes than that. It
is twice the length of the longest texts that models read."""

BASE = re.compile(r"theta|base")
"""Pattern for keys whose numbers may be larger: bases of frequencies, which are whole numbers only by
chance."""

SAVED_BY = "transformers_version"
"""Key with the version of transformers that has written a configuration."""

PATH = re.compile(r"(^|_)(file|files|path|dir)$|^init_inputs$|^name_or_path$")
"""Pattern for arguments of a tokenizer's class that name files, which transformers would open anywhere on
this machine. Published models have such arguments as left-overs. Without these arguments the tokenizer finds
its files in the model's folder."""


ENCODER_HEADS = ("ForSequenceClassification", "ForMaskedLM")
"""Endings of the names of architectures with a head for classifying whole texts."""


@contextmanager
def vetted(folder: Path) -> Iterator[Path]:
    """Yield a scratch folder with the vetted files of a base model, for transformers' `from_pretrained`.

    Raises UserError MODEL_* for missing files, and MODEL_UNSAFE for a configuration that chooses code or
    files.
    """
    with TemporaryDirectory(prefix=SCRATCH) as scratch:
        view = Path(scratch)
        for file in model_files.covered(folder):
            (view / file.name).symlink_to(file.resolve())
        _rewrite(view / model_files.CONFIG, _model_settings(folder))
        for name in TOKENIZER_SETTINGS:
            if (folder / name).is_file():
                _rewrite(view / name, _without_paths(_without_choices(folder / name)))
        if (folder / model_files.GENERATION).is_file():
            _rewrite(view / model_files.GENERATION, generation(folder))
        yield view


def configuration(folder: Path) -> Any:
    """Return the vetted configuration of a model's folder, with or without weights.

    Raises as `vetted` does, and transformers' own errors.
    """
    with TemporaryDirectory(prefix=SCRATCH) as scratch:
        _rewrite(Path(scratch) / model_files.CONFIG, _model_settings(folder))
        return AutoConfig.from_pretrained(scratch, local_files_only=True, trust_remote_code=False)


def _rewrite(file: Path, settings: Mapping[str, Any]) -> None:
    file.unlink(missing_ok=True)
    file.write_text(json.dumps(settings), encoding="utf-8")


def read(file: Path) -> dict[str, Any]:
    """Return the object in a JSON file. Raises UserError MODEL_UNSUPPORTED."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise model_files.broken(file, "JSON file", error) from error
    if not isinstance(found, dict):
        raise model_files.broken(file, "JSON file", "it holds no object")
    return found


def architectures(settings: Mapping[str, Any]) -> list[str]:
    """Return the names of the model classes in a configuration. A stranger may have written any text
    there."""
    found = settings.get("architectures")
    return [name for name in found if isinstance(name, str)] if isinstance(found, list) else []


# -- the model's configuration -------------------------------------------------------------------------


def _model_settings(folder: Path) -> dict[str, Any]:
    file = folder / model_files.CONFIG
    settings = _without_choices(file)
    kind = _class(settings)
    if kind is None:
        raise ValueError(f"transformers has no code for a model of type {settings.get('model_type')!r}")
    _check_version(file, settings, kind)
    kept = _declared(settings, kind)
    _check_numbers(file, kept, *_stored(folder))
    return kept


def _class(settings: Mapping[str, Any]) -> type[PretrainedConfig] | None:
    """Return transformers' class for a configuration; None if it has none."""
    name = settings.get("model_type")
    return CONFIG_MAPPING[name] if isinstance(name, str) and name in CONFIG_MAPPING else None


def _without_choices(file: Path) -> dict[str, Any]:
    """Return the settings in a file. Raise UserError MODEL_UNSAFE if a key, however deep, chooses code or
    files."""
    settings = read(file)
    for key, value in _every(settings):
        chosen = CHOOSES.get(key.lstrip("_").removesuffix("_internal"))
        if chosen and value:  # null and false choose nothing
            raise UserError(
                Code.MODEL_UNSAFE,
                f"{file} sets {key}, which chooses {chosen}",
                "Take a copy of the model without it, in ordinary safetensors; --dtype int8 or nf4 quantises "
                "such weights as they are loaded.",
            )
    _check_tokenizer_class(file, settings)
    return settings


def _every(settings: Any) -> Iterator[tuple[str, Any]]:
    """Yield keys, or indices in lists, and values of a configuration, at any depth."""
    for key, value in settings.items() if isinstance(settings, dict) else enumerate(settings):
        yield str(key), value
        if isinstance(value, dict | list):
            yield from _every(value)


def _check_version(file: Path, settings: dict[str, Any], kind: type[PretrainedConfig]) -> None:
    """Raise UserError MODEL_UNSUPPORTED for settings that a later major version of transformers has written.
    The installed version would silently ignore names that it does not know."""
    saved, here = (str(one).partition(".")[0] for one in (settings.get(SAVED_BY), transformers.__version__))
    ours = "rope_parameters" in _keys(kind) or not older_names(settings, kind)
    if (saved.isdigit() and int(saved) > int(here)) or not ours:
        raise UserError(
            Code.MODEL_UNSUPPORTED,
            f"{file} was written by a later version of transformers than {transformers.__version__}, which "
            "would read another model from it",
            "Update it on every node of the run: pip install --upgrade transformers.",
        )


def older_names(settings: Mapping[str, Any], kind: type[PretrainedConfig]) -> dict[str, Any]:
    """Return those settings of transformers 5 that have another name in version 4, under that older name,
    which version 5 reads too. Settings that are there under the older name already are left out."""
    rope = settings.get("rope_parameters") or {}
    every, near = rope.get("full_attention") or rope, rope.get("sliding_attention") or {}
    scaling = {
        key: value for key, value in every.items() if key not in ("rope_theta", "partial_rotary_factor")
    }
    whole = [n for n, name in enumerate(settings.get("layer_types") or ()) if name == "full_attention"]
    said = {
        **dict.fromkeys(("rope_theta", "rotary_emb_base", "global_rope_theta"), every.get("rope_theta")),
        **dict.fromkeys(("rope_local_base_freq", "local_rope_theta"), near.get("rope_theta")),
        **dict.fromkeys(("partial_rotary_factor", "rotary_pct"), every.get("partial_rotary_factor")),
        "rope_scaling": scaling if scaling.get("rope_type", "default") != "default" else None,
        "global_attn_every_n_layers": [*whole, len(settings.get("layer_types") or ())][1] if whole else None,
        **{old: settings.get(new) for old, new in kind.attribute_map.items() if "expert" in old},
    }
    known = _keys(kind) - settings.keys()
    found = {key: value for key, value in said.items() if value is not None and key in known}
    for key, part in kind.sub_configs.items():
        inside = settings.get(key)
        own = _class(inside) if part is AutoConfig and isinstance(inside, dict) else part
        if isinstance(inside, dict) and own and (names := older_names(inside, own)):
            found[key] = inside | names
    return found


def _stored(folder: Path) -> tuple[int, int]:
    """Return the number of tensors of a folder's weights, and the size of their files in bytes; 0 and 0
    without weights."""
    if not model_files.has_weights(folder):
        return 0, 0
    return len(model_files.stored_tensors(folder)), model_files.weight_bytes(folder)


def _check_numbers(file: Path, settings: Any, tensors: int, size: int) -> None:
    """Raise UserError MODEL_UNSAFE for a number, at any depth, that is too large for weights of this number
    of tensors and this size in bytes."""
    for key, value in _every(settings):
        most = max(tensors, MAX_LAYERS) if COUNT.search(key) else max(size, MAX_NUMBER)
        if isinstance(value, int) and value > most and not BASE.search(key):
            raise UserError(
                Code.MODEL_UNSAFE,
                f"{file} sets {key} to {value:,}, where {most:,} is the most that can be real",
                "Take another model, or another copy of this one.",
            )


def _declared(settings: dict[str, Any], kind: type[PretrainedConfig]) -> dict[str, Any]:
    """Return the settings that the class declares, also in nested configurations."""
    known = _keys(kind)
    kept = {key: value for key, value in settings.items() if key in known}
    for key, part in kind.sub_configs.items():
        inside = kept.get(key)
        if isinstance(inside, dict):
            found = _class(inside) if part is AutoConfig else part
            kept[key] = _declared(inside, found) if found else inside
    return kept


def _keys(kind: type[PretrainedConfig]) -> set[str]:
    """Return the keys that a configuration's class declares, computes, or takes under an old name."""
    declared = set(inspect.signature(kind).parameters) | SHARED
    declared |= set(kind.attribute_map) | set(kind.attribute_map.values())
    mentioned: set[str] = set()
    for base in kind.__mro__:
        for name in READERS:
            method = inspect.unwrap(vars(base).get(name, object.__init__))
            if isinstance(method, FunctionType):
                declared |= set(inspect.signature(method).parameters)
                mentioned |= set(_words(method.__code__))
    return declared | {word for word in mentioned if _is_free(kind, word)}


def _is_free(kind: type[PretrainedConfig], word: str) -> bool:
    """Return whether a setting of this name, made an attribute, would replace no method or other part of the
    class."""
    taken = inspect.getattr_static(kind, word, None)
    return not word.startswith("_") and (taken is None or isinstance(taken, property))


def _words(code: CodeType) -> Iterator[str]:
    """Yield strings and names in the code of a function: keys that it reads, and attributes that it sets."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, str):
            yield constant
        elif isinstance(constant, tuple | frozenset):
            yield from (item for item in constant if isinstance(item, str))
        elif isinstance(constant, CodeType):
            yield from _words(constant)


# -- the tokenizer's -----------------------------------------------------------------------------------


def _without_paths(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_paths(item) for key, item in value.items() if not PATH.search(key)}
    return [_without_paths(item) for item in value] if isinstance(value, list) else value


def _check_tokenizer_class(file: Path, settings: dict[str, Any]) -> None:
    """Raise UserError MODEL_UNSAFE if the settings name a class of transformers that is no tokenizer's.
    transformers would create an instance of that class and pass it the folder."""
    name = settings.get("tokenizer_class")
    found = getattr(transformers, name, None) if isinstance(name, str) else name
    if found is not None and not (isinstance(found, type) and issubclass(found, PreTrainedTokenizerBase)):
        raise UserError(
            Code.MODEL_UNSAFE,
            f"{file} names {name} as the class of the tokenizer, which is none",
            "Take another copy of the model.",
        )


def generation(folder: Path) -> dict[str, Any]:
    """Return a model's settings of generation that are numbers, such as ends of texts and ways of
    sampling."""

    def is_number(value: Any) -> bool:
        return isinstance(value, int | float) or (isinstance(value, list) and all(map(is_number, value)))

    return {key: value for key, value in read(folder / model_files.GENERATION).items() if is_number(value)}
