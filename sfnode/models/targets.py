"""Choice of the parameters of a model that are trained, and the view of each as a matrix.

Linear layers are chosen by patterns as in PEFT's `target_modules`; embeddings, biases and norms by one switch
each. An error about a parameter that cannot be trained gives its name and the reason. The model may be on the
`meta` device, without memory for weights. This module knows nothing of files, bases or updates, and runs no
model.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from enum import Enum, auto
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from transformers.pytorch_utils import Conv1D

from sfnode.manifest.sections import Target

PretrainedModel = Any
"""A model of transformers. The library's own types change from release to release."""

ALL_LINEAR = "all-linear"
"""Pattern for every linear layer except the language-model head."""

UPPER_LINEAR = "upper-linear"
"""Pattern for the linear layers in the last blocks of a deep model."""

VALUES = "values"
"""Pattern for the linear layers that make the values of attention. If one layer makes queries, keys and
values, the pattern stands for every linear layer."""

VALUE_LAYERS = ("v_proj", "value", "v_lin", "v")
"""Names, in transformers' models, of the layers that make the values of attention."""

UPPER = 2 / 5
"""Share of a deep model's blocks that count as its last ones. If the answers of a task are words, slopes have
the most signal for their noise in these blocks (docs/research-log.md). The input of the first of these blocks
is computed once for each text."""

DEEP = 8
"""Minimum number of blocks of a deep model. In a model with fewer blocks, all blocks count as the last
ones."""

_POSITIONS = re.compile(r"(.+\.)?(wpe|position_embeddings?)")
"""Names of the tables in transformers' models that have a row for each position."""

_PLAIN = "transformers.models.falcon.modeling_falcon.FalconLinear"
"""The one subclass of nn.Linear in transformers that only repeats its parent's code."""


class Form(Enum):
    """Memory layout of a parameter, relative to the matrix W (out, in) of a target."""

    LINEAR = auto()
    """(out, in), W itself."""
    CONV1D = auto()
    """(in, out)."""
    EMBEDDING = auto()
    """(in, out): a row of `out` numbers for each of `in` tokens or positions."""
    VECTOR = auto()
    """(n,), for W of shape (n, 1)."""


class TargetSite(NamedTuple):
    """Location of a target in a model."""

    target: Target
    module: nn.Module
    parameter: str
    """The module's attribute: "weight", "bias" or a norm's name for its vectors."""
    form: Form


class Selection(NamedTuple):
    """Choice of what a run trains."""

    modules: tuple[str, ...] = (ALL_LINEAR,)
    """Patterns for linear layers: names of modules, endings of such names, or regular expressions."""
    embeddings: bool = False
    biases: bool = False
    norms: bool = False


DEFAULT = Selection()
"""All linear layers and nothing else."""


def choose(model: PretrainedModel, selection: Selection) -> list[Target]:
    """Return the selected targets in the model's own order, a module's weight before its vectors.

    Raises ValueError with a readable reason in three cases: a pattern matches nothing or another kind of
    module, a chosen parameter cannot be trained, or nothing is chosen.
    """
    named = {name for pattern in selection.modules for name in _matching(model, pattern)}
    known = _sites(model)
    wanted = {
        site.target.name
        for name, site in known.items()
        if name in named or _switched_on(model, name, site, selection, named)
    }
    targets = [site.target for name, site in known.items() if name in wanted and name == site.target.name]
    if not targets:
        raise ValueError("nothing in it is chosen for training")
    _check_shared(model, known, targets)
    return targets


def locate(model: PretrainedModel, targets: Sequence[Target]) -> tuple[TargetSite, ...]:
    """Return the site of every target. Raises ValueError with the name of a missing target, and the
    reason."""
    known = _sites(model)
    for target in targets:
        if target.name not in known:
            instead = _instead(model, target.name, known)
            raise ValueError(f"it has no {target}, which the run trains: {instead}")
        if known[target.name].target != target:
            raise ValueError(f"it has {known[target.name].target} where the run trains {target}")
    _check_shared(model, known, targets)
    return tuple(known[target.name] for target in targets)


def view(parameter: Tensor, form: Form) -> Tensor:
    """Return the parameter as W (out, in), sharing its memory."""
    if form is Form.VECTOR:
        return parameter[:, None]  # (n,) -> (n, 1)
    return parameter if form is Form.LINEAR else parameter.t()


def _sites(model: PretrainedModel) -> dict[str, TargetSite]:
    """Return all trainable sites, keyed by name, in the model's own order.

    A parameter that several modules hold has one site under all their names. It is the site of the embedding
    if there is one (as with a tied language-model head), otherwise of the first module.
    """
    found = list(_all_sites(model))
    owners: dict[int, TargetSite] = {}
    for site in found:
        key = id(getattr(site.module, site.parameter))
        if key not in owners or (site.form is Form.EMBEDDING and owners[key].form is not Form.EMBEDDING):
            owners[key] = site
    return {site.target.name: owners[id(getattr(site.module, site.parameter))] for site in found}


def _all_sites(model: PretrainedModel) -> Iterator[TargetSite]:
    for name, module in model.named_modules():
        form = _form(module)
        if form is not None:
            yield _site(name, module, "weight", form)
        if form in (Form.LINEAR, Form.CONV1D) or "Norm" in type(module).__name__:
            for attribute, parameter in module.named_parameters(recurse=False):
                if parameter.dim() == 1:
                    yield _site(f"{name}.{attribute}", module, attribute, Form.VECTOR)


def _site(name: str, module: nn.Module, parameter: str, form: Form) -> TargetSite:
    out_features, in_features = view(getattr(module, parameter), form).shape
    return TargetSite(
        Target(name=name, out_features=out_features, in_features=in_features), module, parameter, form
    )


def _form(module: nn.Module) -> Form | None:
    """Return the form of a module's weight, or None for a module whose weight cannot be trained."""
    if _is_linear(module):
        return Form.CONV1D if isinstance(module, Conv1D) else Form.LINEAR
    return Form.EMBEDDING if _is_lookup(module) else None


def _is_linear(module: nn.Module) -> bool:
    """Return whether a module's call computes W x + b from its weight, and nothing else.

    A subclass may use its weight in another way, as quantised layers do. The output projection of
    nn.MultiheadAttention has the right `forward`, which is never called.
    """
    kind = type(module)
    if kind is NonDynamicallyQuantizableLinear:
        return False
    ordinary = kind.forward in (nn.Linear.forward, Conv1D.forward)
    return ordinary or f"{kind.__module__}.{kind.__qualname__}" == _PLAIN


def _is_lookup(module: nn.Module) -> bool:
    """Return whether a module's call looks up rows of its weight, perhaps times `embed_scale`.

    transformers' scaled word embeddings (Gemma's) add that factor to nn.Embedding. Other tables, such as
    OPT's of positions, are called with other arguments than row numbers.
    """
    if type(module).forward is nn.Embedding.forward:
        return True
    return isinstance(module, nn.Embedding) and hasattr(module, "embed_scale")


def _matching(model: PretrainedModel, pattern: str) -> list[str]:
    """Return the names of the modules that a pattern stands for. Raises ValueError if there are none, or if
    one of them cannot be trained."""
    groups = {ALL_LINEAR: _linear_layers, UPPER_LINEAR: _upper_layers, VALUES: _value_layers}
    every = groups.get(pattern.lower())
    matched = every(model) if every else _called(model, pattern)
    for name in matched:
        _check_trainable(name, model.get_submodule(name))
    return matched


def _linear_layers(model: PretrainedModel) -> list[str]:
    """Return the names of all linear layers except the language-model head. A classification head is
    included."""
    head = model.get_output_embeddings()
    return [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | Conv1D) and module is not head
    ]


def _upper_layers(model: PretrainedModel) -> list[str]:
    """Return the names of all linear layers (`_linear_layers`). Of a deep model, layers in the lower blocks
    are left out."""
    blocks = blocks_of(model)
    lower = blocks[: len(blocks) - round(UPPER * len(blocks))] if len(blocks) >= DEEP else []
    below = {module for block in lower for module in block.modules()}
    return [name for name in _linear_layers(model) if model.get_submodule(name) not in below]


def _value_layers(model: PretrainedModel) -> list[str]:
    """Return the names of the linear layers whose own names are in VALUE_LAYERS; of all linear layers if
    there are no such layers."""
    every = _linear_layers(model)
    return [name for name in every if name.rpartition(".")[2] in VALUE_LAYERS] or every


def blocks_of(model: PretrainedModel) -> list[nn.Module]:
    """Return the blocks of a model, the first block first. They are the members of the list of modules that
    has the most parameters."""
    rows = (module for module in model.modules() if isinstance(module, nn.ModuleList))
    return list(max(rows, key=lambda row: sum(one.numel() for one in row.parameters()), default=()))


def _called(model: PretrainedModel, pattern: str) -> list[str]:
    """Return the modules whose names equal this text, end in it, or match it as a regular expression."""
    names = [name for name, _ in model.named_modules() if name]
    matched = [name for name in names if name == pattern or name.endswith(f".{pattern}")]
    if not matched:
        try:
            matched = [name for name in names if re.fullmatch(pattern, name)]
        except re.error as error:
            raise ValueError(f"{pattern!r} is no module's name and no regular expression: {error}") from error
    if not matched:
        trainable = [name for name, module in model.named_modules() if _form(module) is not None]
        raise ValueError(f"it has no module {pattern!r}; {_near(pattern, trainable)}")
    return matched


def _check_trainable(name: str, module: nn.Module) -> None:
    if _form(module) is not None:
        return
    kind = type(module).__name__
    if isinstance(module, nn.Linear | Conv1D):
        raise ValueError(f"{name} is a {kind}, which is not computed as an ordinary linear layer is")
    raise ValueError(f"{name} is a {kind}, no linear layer")


def _switched_on(
    model: PretrainedModel, name: str, site: TargetSite, selection: Selection, named: set[str]
) -> bool:
    """Return whether the selection trains all sites of this site's kind: embeddings, biases or norms."""
    if site.form is Form.EMBEDDING:
        is_token = site.module is model.get_input_embeddings()
        return selection.embeddings and (is_token or _POSITIONS.fullmatch(name) is not None)
    if site.form is not Form.VECTOR:
        return False
    if not _is_linear(site.module):
        return selection.norms
    is_head = site.module is model.get_output_embeddings()
    return selection.biases and (not is_head or name.removesuffix(f".{site.parameter}") in named)


def _check_shared(model: PretrainedModel, known: dict[str, TargetSite], targets: Sequence[Target]) -> None:
    """Raise ValueError for a target whose parameter two modules share. Only an embedding and the
    language-model head that is tied to it may share one."""
    chosen = {target.name for target in targets}
    head = model.get_output_embeddings()
    for name, site in known.items():
        owner = site.target.name
        tied = site.form is Form.EMBEDDING and model.get_submodule(name) is head
        if name != owner and owner in chosen and not tied:
            raise ValueError(f"{name} and {owner} share one parameter, which cannot be trained")


def _instead(model: PretrainedModel, name: str, known: Iterable[str]) -> str:
    """Return a text about a missing target: the kind of the module with its name, or similar names."""
    modules = dict(model.named_modules())
    if name in modules:
        return f"{name} is a {type(modules[name]).__name__} there"
    return _near(name, known)


def _near(name: str, names: Iterable[str]) -> str:
    """Return similar names as text: whole names, or their endings."""
    known = list(names)
    endings = dict.fromkeys(part.rpartition(".")[2] for part in known)
    close = get_close_matches(name, [*endings, *known], 3)
    return f"close to it: {', '.join(close)}" if close else f"there are {', '.join(list(endings)[:12])}"
