"""Loads the base model: from a source to modules whose weights can be trained.

This module knows how transformers loads a model, in which precision, and whether it is the run's base model.
It knows nothing of updates, subspaces or tasks. Only safetensors are read, and no code from a model's folder
is run. transformers sees only what `model_config` lets through.

A rebuild starts from the base weights. They are read again from the files, in the stored dtype, so no second
copy is in memory. Reading a file that has changed raises an error.
"""

from __future__ import annotations

import errno
import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer
from transformers.pytorch_utils import Conv1D
from transformers.utils import logging

from sfnode.descriptors import patiently
from sfnode.errors import Code, UserError
from sfnode.manifest import Manifest
from sfnode.manifest.sections import BUILTIN, Model
from sfnode.manifest.task import Task
from sfnode.models import examination, model_config, model_files
from sfnode.models.cuts import cut_of
from sfnode.models.examination import ModelPart
from sfnode.models.kept_states import KeptStates, StateFolder
from sfnode.models.perturbation import Perturber
from sfnode.models.quantized import KINDS, QuantisedLinear, quantise_layers
from sfnode.models.targets import DEFAULT, Form, PretrainedModel, Selection, TargetSite, choose, locate, view
from sfnode.printable import first_line
from sfprotocol.seeds import derive_key, stream

T = TypeVar("T")
_library_log: Any = logging

AUTO = "auto"

STORED = "stored"
"""Name that stands for the dtype of the base model's own files. A model can be exported in this dtype."""

FLOATS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

NAMELESS = "label_"
"""Prefix of the names that transformers gives to unnamed classes; the number of the class follows it."""

HEAD_SPREAD = 0.02
"""Largest magnitude of the random weights of a missing classification head. It is about as large as in a new
head by transformers."""

TOKENIZER = "tokenizer.json"
TOKENIZER_MISSING = (
    "Put the tokenizer's files beside the model's (mostly tokenizer.json and tokenizer_config.json)."
)
"""Advice for a missing tokenizer."""

CAUSAL_HEAD = "score.weight"
"""Name of the weight of the linear head for classifying, which replaces a causal model's language-model
head."""


@dataclass(frozen=True)
class LoadedModel:
    """A base model ready for training: in evaluation mode, without gradients, its targets perturbable."""

    model: PretrainedModel
    tokenizer: Any
    sites: tuple[TargetSite, ...]
    """The targets, in the manifest's order."""
    base_weights: BaseWeights
    perturber: Perturber
    folder: Path
    device: torch.device
    dtype: torch.dtype
    """Compute dtype of the layers."""
    quantised: bool
    """Whether matrices are stored in fewer bits (int8, nf4)."""
    classifies: bool
    """Whether the model has a classification head instead of a language-model head."""
    known_tokens: int
    """Number of tokens in the vocabulary that the model can read and, if it is a language model, write."""
    kept: KeptStates | None = None
    """Hidden states at the cut below the trained part; None if the model has no such cut."""

    @cached_property
    def widest(self) -> int:
        """Number of outputs of the widest layer, except for tables of the vocabulary."""
        head = self.model.get_output_embeddings()
        layers = (module for module in self.model.modules() if module is not head)
        return max((_outputs(module) for module in layers), default=1)

    @property
    def exact(self) -> bool:
        """Whether single updates can be merged into the weights, because they are large in comparison with
        the weights' rounding."""
        return not self.quantised and self.dtype in (torch.float32, torch.float64)


def _outputs(module: nn.Module) -> int:
    if isinstance(module, Conv1D):
        return int(module.nf)
    return int(getattr(module, "out_features", 1))


def describe(source: str, revision: str, selection: Selection = DEFAULT, classifier_labels: int = 0) -> Model:
    """Return the manifest's entry for a base model: source, digest and targets in order (for `sfnode init`).

    `source` is a name, or a path that this machine's owner gives. The manifest has only the last part of a
    path, as a label. `classifier_labels`: the number of classes of an encoder's classification head. A hub
    model without a revision is pinned to the commit that was found. Raises UserError MODEL_*.
    """
    folder = model_files.located(source, revision)
    _examine(folder, classifier_labels)
    skeleton = read_skeleton(folder, classifier_labels)
    check_tokens(folder, skeleton, tokenizer_of(folder))
    if classifier_labels:
        _check_head(folder, skeleton, classifier_labels)
    stored = float_tensors(folder)
    _check_finite(folder, ((name, _tensor(_bytes(one), one)) for name, one in stored.items()))
    targets = with_user_errors(folder, lambda: choose(skeleton, selection))
    shipped, here = source.startswith(BUILTIN), model_files.named_folder(source)
    return Model(
        source=here.name if here else source,
        revision=revision or ("" if here or shipped else folder.name),
        digest=model_files.digest(folder),
        listing="" if shipped else model_files.listing_hash(folder),
        targets=tuple(str(target) for target in targets),
    )


def load(
    manifest: Manifest, *, override: Path | None, device: torch.device, dtype: str = "float32"
) -> LoadedModel:
    """Load the manifest's base model on `device`, or the same model from the folder `override`.

    `dtype`: float32, bfloat16, float16, a quantised kind (int8, nf4), STORED, or auto (float32 on a CPU,
    bfloat16 elsewhere). Raises UserError MODEL_DIGEST if the files are not those of the run's base model,
    MODEL_UNSUPPORTED if the targets differ from the manifest's or cannot be perturbed, and DEVICE for an
    unavailable dtype.
    """
    wanted = manifest.model
    folder = model_files.resolve(wanted.source, wanted.revision, override)
    model_files.check_digest(folder, wanted.digest)
    model, tokenizer = _read_folder(folder, manifest.task, wanted.outputs)
    sites = with_user_errors(folder, lambda: locate(model, wanted.parsed_targets()))
    loaded = make_trainable(model, tokenizer, sites, folder, device, dtype)
    if loaded.kept and folder.parent != model_files.EMBEDDED and not manifest.organised.private:
        name = f"{wanted.digest[:32]}-{loaded.dtype}-{dtype}-{loaded.kept.cut.name}".replace("torch.", "")
        loaded.kept.folder = StateFolder(model_files.cache() / "states" / name)
    return loaded


def load_to_use(folder: Path, task: Task, device: torch.device, dtype: str) -> LoadedModel:
    """Load the model in a folder for answering, without targets to train. `dtype` and errors are as for
    `load`."""
    folder = model_files.resolve("", "", folder)
    return make_trainable(*_read_folder(folder, task), (), folder, device, dtype)


def _read_folder(folder: Path, task: Task, outputs: Sequence[int] = ()) -> tuple[PretrainedModel, Any]:
    """Return the model and the tokenizer in a folder, with the weights as they are stored. A classifier's
    outputs are arranged as `Model.outputs` says."""
    labels = classes(task)
    tokenizer = tokenizer_of(folder)
    _examine(folder, labels)
    model = with_user_errors(folder, lambda: _weights(folder, stored_dtype(folder), labels))
    check_tokens(folder, model, tokenizer)
    _check_finite(folder, model.named_parameters())
    if outputs:
        _rearrange(model, labels, outputs)
    return model, tokenizer


def _rearrange(model: PretrainedModel, labels: int, outputs: Sequence[int]) -> None:
    """Arrange a head's outputs in the order of the classes, or begin a new head if `outputs` are -1 (SPEC
    M1)."""
    head = [name for name, one in _outside(model) if len(one) == labels]
    if -1 in outputs:
        _fill_head(model, head)
    for parameter in map(model.get_parameter, head):
        if -1 not in outputs:
            parameter.data = parameter.data[list(outputs)].clone()
        elif parameter.dim() < 2:
            parameter.data.zero_()


def tokenizer_of(folder: Path) -> Any:
    """Load the tokenizer in a model's folder. Raises UserError MODEL_UNSUPPORTED or MODEL_UNSAFE."""
    examination.require_sound(folder, ModelPart.TOKENIZER)
    return read_tokenizer(folder)


def read_tokenizer(folder: Path) -> Any:
    """Load a tokenizer. The time and memory that this takes are not bounded. Raises UserError
    MODEL_UNSUPPORTED or MODEL_UNSAFE."""
    silence_transformers()
    try:
        with model_config.vetted(folder) as vetted:
            found: Any = AutoTokenizer.from_pretrained(vetted, local_files_only=True, trust_remote_code=False)
    except UserError:
        raise
    except Exception as error:  # transformers documents no common base of what it raises
        what = f"transformers makes no tokenizer of the files in {folder}: {first_line(error)}"
        if not (folder / TOKENIZER).is_file():
            what = f"{folder} has no {TOKENIZER}, and its other files make no tokenizer"
        raise UserError(Code.MODEL_UNSUPPORTED, what, TOKENIZER_MISSING) from error
    if set(found.get_vocab()) <= set(found.all_special_tokens):
        # transformers makes this of a folder without the files: it knows no words
        raise UserError(
            Code.MODEL_UNSUPPORTED,
            f"the tokenizer in {folder} knows no words: its vocabulary is missing",
            TOKENIZER_MISSING,
        )
    return found


def classes(task: Task) -> int:
    """Return the number of classes that the task needs of a classification head; 0 for a language model."""
    return len(task.verbalizer) if task.kind == "sequence-classification" else 0


def outputs_of(folder: Path, task: Task) -> tuple[int, ...]:
    """Return the manifest's `Model.outputs` for the classifier in a folder: the output of each of the task's
    classes, found by name. Empty if the outputs are in the classes' order already, or if the model has
    another number of classes; -1 for every class if the names do not match. Raises UserError
    MODEL_UNSUPPORTED."""
    names = _class_names(folder)
    if not names or len(names) != classes(task):
        return ()
    called = [{name, name.removeprefix(NAMELESS)} for name in names]
    found = [
        [number for number, name in enumerate(called) if {label.casefold(), answer.casefold()} & name]
        for label, answer in task.verbalizer.items()
    ]
    order = tuple(numbers[0] if len(numbers) == 1 else -1 for numbers in found)
    if sorted(order) != list(range(len(order))):
        return (-1,) * len(order)
    return () if list(order) == sorted(order) else order


def _class_names(folder: Path) -> list[str]:
    """Return the names of a classifier's classes in the order of its outputs, in lower case; empty for a
    model that is no classifier."""
    settings = model_config.read(folder / model_files.CONFIG)
    if not any(name.endswith("ForSequenceClassification") for name in model_config.architectures(settings)):
        return []
    names = settings.get("id2label") or [f"{NAMELESS}{number}" for number in range(2)]  # as is usual
    ordered = (
        sorted(names.items(), key=lambda one: int(one[0])) if isinstance(names, dict) else enumerate(names)
    )
    return [str(name).casefold() for _, name in ordered]


def require_match(folder: Path, labels: int) -> None:
    """Raise UserError MODEL_UNSUPPORTED if the tokenizer in a folder may give a text tokens that the model
    does not know, MODEL_* if tokenizer or model cannot be read. `labels`: the number of classes of a
    classifier, 0 for a language model. The weights are not read."""
    tokenizer = tokenizer_of(folder)
    _examine(folder, labels)
    check_tokens(folder, read_skeleton(folder, labels), tokenizer)


def check_tokens(folder: Path, model: PretrainedModel, tokenizer: Any) -> None:
    """Raise UserError MODEL_UNSUPPORTED if a text may have tokens that the model does not know.

    Special tokens that occur in no text are allowed: some models for text have the tokenizers of models that
    see images, too (Gemma 3).
    """
    known = known_tokens(model)
    ours = {tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.unk_token_id}
    ours |= {tokenizer.cls_token_id, tokenizer.sep_token_id}
    special = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    template = str(tokenizer.chat_template)
    unknown = {
        number: token
        for token, number in tokenizer.get_vocab().items()
        if number >= known and (number in ours or number not in special or token in template)
    }
    if unknown:
        number = min(unknown)
        raise UserError(
            Code.MODEL_UNSUPPORTED,
            f"model and tokenizer in {folder} do not match: the model knows {known:,} tokens, numbered from "
            f"0, and {len(unknown):,} of the tokenizer's have higher numbers, such as {number:,} "
            f"({unknown[number]!r})",
            "Take the tokenizer's files that came with these weights. Who adds tokens enlarges the model for "
            "them (in transformers: `model.resize_token_embeddings(len(tokenizer))`).",
        )


def known_tokens(model: PretrainedModel) -> int:
    """Return the number of tokens in the vocabulary that a model can read and, if it is a language model,
    write."""
    tables = (model.get_input_embeddings(), model.get_output_embeddings())
    return min(len(table.weight) for table in tables if table is not None)


def make_trainable(
    model: PretrainedModel,
    tokenizer: Any,
    sites: tuple[TargetSite, ...],
    folder: Path,
    device: torch.device,
    dtype: str,
) -> LoadedModel:
    """Make a model ready for training on `device`. The caller passes the model on the CPU, with the base
    weights.

    Raises UserError DEVICE for an unavailable dtype.
    """
    compute, known = compute_dtype(dtype, device, model.dtype), known_tokens(model)
    _check_vectors(sites, dtype, compute)
    base_weights = BaseWeights(sites, float_tensors(folder), model.base_model_prefix)
    if dtype in KINDS:
        replaced: dict[nn.Module, QuantisedLinear] = quantise_layers(model, dtype, compute, device)
        sites = tuple(site._replace(module=replaced.get(site.module, site.module)) for site in sites)
    for parameter in model.parameters():  # not the buffers: rotary frequencies must not be rounded
        # a copy: transformers maps files into memory, so a change of a file would change the model
        parameter.data = parameter.data.to(device, compute, copy=True)
    model.to(device).eval().requires_grad_(False)
    _end_by_mask(model)
    perturber = Perturber(model, sites)
    cut = cut_of(model, sites, device)
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        sites=sites,
        base_weights=base_weights,
        perturber=perturber,
        folder=folder,
        device=device,
        dtype=compute,
        quantised=dtype in KINDS,
        classifies=model.get_output_embeddings() is None,
        known_tokens=known,
        kept=KeptStates(cut, device, compute) if cut else None,
    )


def _end_by_mask(model: PretrainedModel) -> None:
    """Make a causal classifier find the end of a text by the mask.

    transformers looks for the padding token instead, which may occur in a text or not exist. It then takes
    one of the text's outputs. Therefore all outputs of a text are made equal to the output at its last token.
    """
    if CAUSAL_HEAD not in dict(model.named_parameters()):
        return
    ends: list[Any] = []

    def note(_: nn.Module, __: Any, given: dict[str, Any]) -> None:
        mask = given.get("attention_mask")
        ends[:] = [-1 if mask is None else mask.sum(1) - 1]

    def choose_last(_: nn.Module, __: Any, output: Tensor) -> Tensor:
        if output.dim() < 3:  # kept states, one for each text
            return output
        rows = torch.arange(len(output), device=output.device)
        return output[rows, ends[0]][:, None].expand_as(output)  # (R, T, classes)

    settings = model.config.get_text_config()
    settings.pad_token_id = settings.pad_token_id or 0  # it needs one for a batch
    model.register_forward_pre_hook(note, with_kwargs=True)
    model.score.register_forward_hook(choose_last)


def named_dtype(name: str, device: torch.device) -> str:
    """Return the name of the dtype that AUTO stands for on a device; return other names unchanged."""
    suits = "float32" if device.type == "cpu" else "bfloat16"
    return suits if name == AUTO else name


def compute_dtype(name: str, device: torch.device, stored: torch.dtype) -> torch.dtype:
    """Return the dtype that layers compute in for a `--dtype`. For quantised weights it is the dtype that
    AUTO stands for."""
    if name == STORED:
        return stored
    return FLOATS[named_dtype(AUTO if name in KINDS else name, device)]


def stored_dtype(folder: Path) -> torch.dtype:
    """Return the float dtype of a folder's stored tensors; float32 if they have more than one."""
    found = {DTYPES[stored.dtype] for stored in float_tensors(folder).values()}
    return found.pop() if len(found) == 1 else torch.float32


def store_rows(site: TargetSite, first: int, rows: Tensor) -> None:
    """Write rows (n, in) of a target's W from row `first` on, rounding each number once."""
    if isinstance(site.module, QuantisedLinear):
        site.module.store(first, rows)
    else:
        matrix(site)[first : first + rows.shape[0]].copy_(rows)


def matrix(site: TargetSite) -> Tensor:
    """Return a target that is not quantised as W (out_features, in_features), sharing its memory."""
    return view(getattr(site.module, site.parameter).data, site.form)


def auto(labels: int) -> Any:
    """Return transformers' loader of models; with `labels`, its loader of classifiers."""
    return AutoModelForSequenceClassification if labels else AutoModelForCausalLM


def _settings(folder: Path, labels: int) -> Any:
    """Return the model's configuration; with `labels`, that many classes for the head."""
    settings = model_config.configuration(folder)
    if labels:
        settings.num_labels = labels
    return settings


def _examine(folder: Path, labels: int) -> None:
    examination.require_sound(folder, examination.part_of(labels))


def read_skeleton(folder: Path, labels: int) -> PretrainedModel:
    """Return the model's modules without memory for their weights. The time that this takes is not bounded.

    Raises UserError MODEL_UNSUPPORTED or MODEL_UNSAFE.
    """
    return with_user_errors(folder, lambda: _skeleton(folder, labels))


def _skeleton(folder: Path, labels: int) -> PretrainedModel:
    silence_transformers()
    settings = _settings(folder, labels)
    _check_architecture(folder, settings, labels)
    with torch.device("meta"):
        return auto(labels).from_config(settings, trust_remote_code=False)


def _check_architecture(folder: Path, settings: Any, labels: int) -> None:
    """Raise UserError MODEL_UNSUPPORTED for a model of a kind that cannot be trained here."""
    if getattr(settings, "is_encoder_decoder", False):
        what = "reads with one half and writes with another (an encoder and a decoder)"
    elif type(settings) not in auto(labels)._model_mapping and settings is settings.get_text_config():
        wanted = "classifier of texts" if labels else "language model"
        what = f"is of the type {settings.model_type}, of which transformers has no {wanted}"
    else:
        return
    raise UserError(
        Code.MODEL_UNSUPPORTED,
        f"the model in {folder} {what}",
        "Take a language model such as Llama or Qwen, or an encoder of texts such as BERT; those train a "
        "head for classes as well.",
    )


def readable(folder: Path, labels: int, most: int) -> int:
    """Return the number of tokens in a text that the model in a folder can read, up to `most`. The time that
    this takes is not bounded.

    The number is found by trial, with one of the model's blocks and random weights: tables of positions begin
    at 0, 1 or 2, and no key of a configuration shows where. Raises UserError MODEL_UNSUPPORTED or
    MODEL_UNSAFE.
    """
    settings = _settings(folder, labels)
    settings.get_text_config().num_hidden_layers = 1
    whole = auto(labels).from_config(settings, dtype=torch.bfloat16, trust_remote_code=False)
    body = whole.base_model.eval()
    token = int(settings.get_text_config().pad_token_id == 0)  # padding takes no position

    def fails(tokens: int) -> bool:
        ids = torch.full((1, tokens), token)
        try:
            with torch.inference_mode():
                body(input_ids=ids, attention_mask=torch.ones_like(ids))
        except Exception:  # each model's code fails in its own way
            return True
        return False

    if fails(1) or not fails(most):  # a failure at one token says nothing of longer texts
        return most
    return bisect_left(range(1, most), True, key=fails)


def silence_transformers() -> None:
    """Silence transformers, because this module checks and reports a model's faults itself."""
    _library_log.disable_progress_bar()
    _library_log.set_verbosity_error()


def _weights(folder: Path, dtype: torch.dtype, labels: int) -> PretrainedModel:
    if labels:
        _check_head(folder, _skeleton(folder, labels), labels)
    silence_transformers()
    with model_config.vetted(folder) as view:
        model, report = auto(labels).from_pretrained(
            view,
            config=_settings(folder, labels),
            dtype=dtype,  # config.json's may be narrower than the files'
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    _fill_head(model, report["missing_keys"])
    absent = sorted(set(report["missing_keys"]) - set(_head_keys(model, report["missing_keys"])))
    absent += sorted(str(key) for key in report["mismatched_keys"])
    if absent:  # transformers would fill them with different random numbers on every node
        raise ValueError(f"its files lack {absent[0]}")
    return model.eval().requires_grad_(False)


def _fill_head(model: PretrainedModel, missing: Any) -> None:
    """Give a missing classification head the same weights on every node (SPEC R2).

    The linear head of a causal model begins at zero. Matrices of other heads get small random numbers from a
    stream keyed by the matrix's name. Vectors keep transformers' values, ones in norms and zeros in biases.
    """
    for name in _head_keys(model, missing):
        parameter = model.get_parameter(name).data
        if parameter.dim() < 2:
            continue
        if name == CAUSAL_HEAD:
            parameter.zero_()
            continue
        draws = stream(derive_key(b"sfnode head", name.encode()), 0, parameter.numel()) >> np.uint64(40)
        spread = torch.from_numpy(draws.astype(np.float32)) / 2**23 - 1  # exact, from -1 to 1
        parameter.copy_(spread.view(parameter.shape) * HEAD_SPREAD)


def _head_keys(model: PretrainedModel, missing: Any) -> list[str]:
    """Return the missing parameters that belong to a classification head or to its pooler."""
    outside = {name for name, _ in _outside(model)}
    return sorted(name for name in missing if name in outside or (".pooler." in name and outside))


def _outside(model: PretrainedModel) -> Iterator[tuple[str, Tensor]]:
    """Yield the parameters of a classifier outside its body."""
    if model.get_output_embeddings() is None:
        body = f"{model.base_model_prefix}."
        yield from ((name, one) for name, one in model.named_parameters() if not name.startswith(body))


def with_user_errors(folder: Path, action: Callable[[], T]) -> T:
    """Return the result of a call that reads a model; raise its errors as UserError MODEL_UNSUPPORTED."""
    try:
        return action()
    except UserError:
        raise
    except Exception as error:  # transformers documents no common base of what it raises
        raise unsupported(folder, first_line(error)) from error


def _check_finite(folder: Path, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Raise UserError MODEL_UNSUPPORTED for weights that are not finite."""
    for name, tensor in tensors:
        if tensor.numel() and not all(end.isfinite() for end in tensor.aminmax()):
            raise UserError(
                Code.MODEL_UNSUPPORTED,
                f"the weights in {folder} are broken: {name} holds NaN or infinity",
                "Take another copy of the model: one of a training that failed computes nothing.",
            )


def _check_head(folder: Path, skeleton: PretrainedModel, labels: int) -> None:
    """Raise UserError MODEL_UNSUPPORTED for a classification head whose number of classes is not `labels`. A
    missing head is accepted."""
    found, body = float_tensors(folder), f"{skeleton.base_model_prefix}."
    for name, parameter in skeleton.named_parameters():
        stored = None if name.startswith(body) else found.get(name)
        if stored is not None and stored.shape != parameter.shape and len(parameter) == labels:
            raise UserError(
                Code.MODEL_UNSUPPORTED,
                f"the classification head in {folder} is one for {stored.shape[0]} classes ({name}), "
                f"and the task has {labels}",
                "Give task.verbalizer a label for each class of the model, in the order of its outputs, or "
                "take a model without a head, which gets a new one.",
            )


def _check_vectors(sites: tuple[TargetSite, ...], dtype: str, compute: torch.dtype) -> None:
    """Raise UserError DEVICE if vectors are trained in half precision. There a change of 0.001 to a norm's
    weight of 1 is lost."""
    vector = next((site.target.name for site in sites if site.form is Form.VECTOR), None)
    if vector is not None and dtype != STORED and compute not in (torch.float32, torch.float64):
        name = str(compute).removeprefix("torch.")
        raise UserError(
            Code.DEVICE,
            f"the run trains {vector}, a vector, and {name} is too coarse for its changes",
            "Use --dtype float32, or join a run that trains matrices only.",
        )


def unsupported(folder: Path, reason: str) -> UserError:
    return UserError(
        Code.MODEL_UNSUPPORTED,
        f"{folder} cannot be trained: {reason}",
        "Choose other layers (model.target_modules of `sfnode init`), or a model that transformers loads "
        "without code of its own, such as OPT or Llama.",
    )


DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""torch's float types, keyed by their names in the safetensors format."""


InFile = tuple[model_files.StoredTensor, int]
"""The location of a tensor in a file, and the checksum of its bytes."""


class BaseWeights:
    """The base weights of the targets, keyed by number of the target."""

    def __init__(
        self, sites: Sequence[TargetSite], stored: dict[str, model_files.StoredTensor], prefix: str
    ) -> None:
        """Record the origin of each target's weight; the model must hold the base weights now.

        `stored`: the tensors of the files, keyed by name. `prefix`: a prefix that names may have in the files
        alone, or in the model alone.
        """
        self._forms = [site.form for site in sites]
        self._origins = [_origin(site, stored, prefix) for site in sites]

    def read(self, number: int) -> Tensor:
        """Return W (out, in) of a target, on the CPU, in the stored dtype.

        Raises UserError MODEL_DIGEST if the file has changed, MODEL_NOT_FOUND if it cannot be read.
        """
        origin = self._origins[number]
        parameter = origin if isinstance(origin, Tensor) else _read(*origin)
        return view(parameter, self._forms[number])


def float_tensors(folder: Path) -> dict[str, model_files.StoredTensor]:
    """Return the float tensors in a base model's folder, keyed by name. Raises UserError MODEL_*."""
    return {
        name: stored for name, stored in model_files.stored_tensors(folder).items() if stored.dtype in DTYPES
    }


def _origin(site: TargetSite, stored: dict[str, model_files.StoredTensor], prefix: str) -> InFile | Tensor:
    """Return the origin of a target's base weight: its place in a file if the file holds the same numbers,
    otherwise a copy.

    transformers loads some models under other names than the stored ones, or splits and joins tensors. So the
    numbers are compared, and not only the names.
    """
    parameter: Tensor = getattr(site.module, site.parameter).data
    name = (
        site.target.name if site.target.name.endswith(f".{site.parameter}") else f"{site.target.name}.weight"
    )
    for candidate in (name, f"{prefix}.{name}", name.removeprefix(f"{prefix}.")):
        one = stored.get(candidate)
        if one is not None and one.shape == tuple(parameter.shape):
            raw = _bytes(one)
            if torch.equal(_tensor(raw, one).to(parameter.device, parameter.dtype), parameter):
                return one, _checksum(raw)
    return parameter.clone().cpu()


def _read(stored: model_files.StoredTensor, checksum: int) -> Tensor:
    raw = _bytes(stored)
    if _checksum(raw) != checksum:
        raise UserError(
            Code.MODEL_DIGEST,
            f"{stored.file} has changed since the base model was loaded from it",
            "Put the run's own base model back and start the node again.",
        )
    return _tensor(raw, stored)


def _checksum(raw: Tensor) -> int:
    buffer: Any = raw.numpy()
    return zlib.crc32(buffer)


def _bytes(stored: model_files.StoredTensor) -> Tensor:
    """Return the raw bytes of a stored tensor. They are read, not mapped, so that they can be freed after
    use."""
    raw = torch.empty(stored.size, dtype=torch.uint8)
    buffer: Any = raw.numpy()
    try:
        with patiently(lambda: stored.file.open("rb")) as handle:
            handle.seek(stored.offset)
            if handle.readinto(buffer) < stored.size:
                raise OSError(errno.ENODATA, "it is shorter than it was")
    except OSError as error:
        raise UserError(
            Code.MODEL_NOT_FOUND,
            f"the base model can no longer be read from {stored.file}: {error.strerror}",
            "Put it back and start the node again.",
        ) from error
    return raw


def _tensor(raw: Tensor, stored: model_files.StoredTensor) -> Tensor:
    return raw.view(DTYPES[stored.dtype]).view(stored.shape)
