"""Which parameters of a model are trained, and how each is seen as a matrix (DESIGN 6).

Linear layers are chosen by patterns in the manner of PEFT's `target_modules`; embeddings, biases and norms by
switch. What cannot be trained is refused with its name and the reason. A model whose weights have no memory
(on the `meta` device) does as well as a loaded one. Knows nothing of files, bases or updates; runs no model.
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

from sfnode import config

Network = Any
"""A transformers model; that library types its classes otherwise from release to release."""

ALL_LINEAR = "all-linear"
"""The pattern for every linear layer but the language-model head."""

_POSITIONS = re.compile(r"(.+\.)?(wpe|position_embeddings?)")
"""The names under which transformers' models keep a table with a row for each position."""

_PLAIN = "transformers.models.falcon.modeling_falcon.FalconLinear"
"""A subclass of nn.Linear that writes out what its parent does; transformers has no other."""


class Form(Enum):
    """How a parameter lies in memory, compared with the matrix W (out, in) that a target is."""

    LINEAR = auto()
    """(out, in), W itself."""
    CONV1D = auto()
    """(in, out)."""
    EMBEDDING = auto()
    """(in, out): a row, `out` wide, for each of `in` tokens or positions."""
    VECTOR = auto()
    """(n,), for W of shape (n, 1)."""


class Site(NamedTuple):
    """Where in a model a target is."""

    target: config.Target
    module: nn.Module
    parameter: str
    """The module's attribute: "weight", "bias" or whatever else a norm calls its vectors."""
    form: Form


class Selection(NamedTuple):
    """What a run trains."""

    modules: tuple[str, ...] = (ALL_LINEAR,)
    """Patterns for linear layers: names of modules, what their names end in, or regular expressions."""
    embeddings: bool = False
    biases: bool = False
    norms: bool = False


DEFAULT = Selection()
"""All linear layers and nothing else."""


def choose(model: Network, selection: Selection) -> list[config.Target]:
    """The targets that are selected, in the model's own order; a module's weight stands before its vectors.

    Raises ValueError, for a person to read, when a pattern matches nothing or what is no linear layer, when
    something chosen cannot be trained, and when nothing is chosen.
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


def locate(model: Network, targets: Sequence[config.Target]) -> tuple[Site, ...]:
    """The site of every target. Raises ValueError that names a target which is not there, and why."""
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
    """The parameter as W (out, in), sharing its memory."""
    if form is Form.VECTOR:
        return parameter[:, None]  # (n,) -> (n, 1)
    return parameter if form is Form.LINEAR else parameter.t()


def _sites(model: Network) -> dict[str, Site]:
    """Everything that can be trained, by name, in the model's own order.

    A parameter that several modules hold has one site, under all their names: that of the embedding if there
    is one (as with a language-model head tied to it), or else of the first.
    """
    found = list(_all_sites(model))
    owners: dict[int, Site] = {}
    for site in found:
        key = id(getattr(site.module, site.parameter))
        if key not in owners or (site.form is Form.EMBEDDING and owners[key].form is not Form.EMBEDDING):
            owners[key] = site
    return {site.target.name: owners[id(getattr(site.module, site.parameter))] for site in found}


def _all_sites(model: Network) -> Iterator[Site]:
    for name, module in model.named_modules():
        form = _form(module)
        if form is not None:
            yield _site(name, module, "weight", form)
        if form in (Form.LINEAR, Form.CONV1D) or "Norm" in type(module).__name__:
            for attribute, parameter in module.named_parameters(recurse=False):
                if parameter.dim() == 1:
                    yield _site(f"{name}.{attribute}", module, attribute, Form.VECTOR)


def _site(name: str, module: nn.Module, parameter: str, form: Form) -> Site:
    out_features, in_features = view(getattr(module, parameter), form).shape
    return Site(
        config.Target(name=name, out_features=out_features, in_features=in_features), module, parameter, form
    )


def _form(module: nn.Module) -> Form | None:
    """The form of a module's weight, or None for a module whose weight is not trained."""
    if _is_linear(module):
        return Form.CONV1D if isinstance(module, Conv1D) else Form.LINEAR
    return Form.EMBEDDING if _is_lookup(module) else None


def _is_linear(module: nn.Module) -> bool:
    """Whether a module computes W x + b from its weight when it is called, and nothing else.

    A subclass may store or use its weight in its own way (quantised layers do). The output projection of
    nn.MultiheadAttention has the right `forward`, which is never called.
    """
    kind = type(module)
    if kind is NonDynamicallyQuantizableLinear:
        return False
    ordinary = kind.forward in (nn.Linear.forward, Conv1D.forward)
    return ordinary or f"{kind.__module__}.{kind.__qualname__}" == _PLAIN


def _is_lookup(module: nn.Module) -> bool:
    """Whether a module returns the rows of its weight that its input numbers, perhaps times `embed_scale`.

    That factor is what transformers' scaled word embeddings (Gemma's) add to nn.Embedding. Others, such as
    OPT's table of positions, are called with something else than row numbers.
    """
    if type(module).forward is nn.Embedding.forward:
        return True
    return isinstance(module, nn.Embedding) and hasattr(module, "embed_scale")


def _matching(model: Network, pattern: str) -> list[str]:
    """The names of the modules that a pattern stands for, all of which can be trained. Raises ValueError."""
    matched = _linear_layers(model) if pattern.lower() == ALL_LINEAR else _called(model, pattern)
    for name in matched:
        _check_trainable(name, model.get_submodule(name))
    return matched


def _linear_layers(model: Network) -> list[str]:
    """Every linear layer but the language-model head; a classification head is one of them."""
    head = model.get_output_embeddings()
    return [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | Conv1D) and module is not head
    ]


def _called(model: Network, pattern: str) -> list[str]:
    """The modules of that name, or whose names end in it, or that match it as a regular expression."""
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


def _switched_on(model: Network, name: str, site: Site, selection: Selection, named: set[str]) -> bool:
    """Whether a site is trained because its kind is."""
    if site.form is Form.EMBEDDING:
        is_token = site.module is model.get_input_embeddings()
        return selection.embeddings and (is_token or _POSITIONS.fullmatch(name) is not None)
    if site.form is not Form.VECTOR:
        return False
    if not _is_linear(site.module):
        return selection.norms
    is_head = site.module is model.get_output_embeddings()
    return selection.biases and (not is_head or name.removesuffix(f".{site.parameter}") in named)


def _check_shared(model: Network, known: dict[str, Site], targets: Sequence[config.Target]) -> None:
    """One parameter in two modules would have to move in both; only an embedding and its head do."""
    chosen = {target.name for target in targets}
    head = model.get_output_embeddings()
    for name, site in known.items():
        owner = site.target.name
        tied = site.form is Form.EMBEDDING and model.get_submodule(name) is head
        if name != owner and owner in chosen and not tied:
            raise ValueError(f"{name} and {owner} share one parameter, which cannot be trained")


def _instead(model: Network, name: str, known: Iterable[str]) -> str:
    """What there is in place of a target that is not there."""
    modules = dict(model.named_modules())
    if name in modules:
        return f"{name} is a {type(modules[name]).__name__} there"
    return _near(name, known)


def _near(name: str, names: Iterable[str]) -> str:
    """Names like this one: whole ones, or what they end in."""
    known = list(names)
    endings = dict.fromkeys(part.rpartition(".")[2] for part in known)
    close = get_close_matches(name, [*endings, *known], 3)
    return f"close to it: {', '.join(close)}" if close else f"there are {', '.join(list(endings)[:12])}"
