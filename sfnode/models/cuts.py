"""Cuts of a model in two: a part below, which no training changes, and the part that is trained.

The hidden states at the cut are computed once for each text (`kept_states`), and the trained part runs from
them. There are two kinds of cuts. At a cut before a linear head the states of a text are one row, and only
the head remains to be computed. At a cut between two of the model's blocks the states are one row for each
token. The model's own code then still makes positions, masks and rotary tables; only the blocks below the cut
are skipped. A trial on the model shows whether the part above the cut computes the same as in a whole pass,
so no list of architectures is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from sfnode.models.targets import Form, PretrainedModel, TargetSite, blocks_of

HEADS = ("score", "classifier", "classifier.out_proj")
"""Names of the layers whose outputs are the logits of transformers' classifiers."""

TRIED = (2, 6)
"""Number of sequences in a cut's trial batch, and number of tokens in each."""

TOLERANCE = 1e-3
"""Maximum difference that rounding may cause in a layer's output, relative to the largest output."""

Run = Callable[[], Tensor]
"""Function that runs the whole model on some texts, and returns its outputs."""


class Head:
    """The cut before a linear head whose outputs are the model's."""

    name = "head-by-mask"
    """Name that tells this cut from other cuts of the same model, usable in a file's name."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self.features: int = module.in_features

    def rows(self, tokens: int) -> int:
        """Return the number of rows that the hidden states of a text of `tokens` tokens have at the cut."""
        return 1

    def states(self, run: Run) -> Tensor:
        """Return the hidden states at the cut, (texts, rows, features), of the texts on which `run` runs the
        model. Runs as little of the model as possible."""
        with instead({self._module: lambda hidden: hidden}):
            return run()[:, None]  # (texts, features)

    def outputs(self, states: Tensor, run: Run) -> Tensor:
        """Return the outputs that `run` has when it starts from these hidden states at the cut, (texts, rows,
        features). Nothing below the cut is computed, and the current perturbation applies."""
        found: Tensor = self._module(states[:, 0])
        return found


class Blocks:
    """The cut after some of a model's first blocks."""

    def __init__(self, below: Sequence[nn.Module], output: Any) -> None:
        """`below`: the blocks below the cut. `output`: the output of the last of them, for a batch (texts,
        rows)."""
        self._below = below
        self._tuple = len(output) if isinstance(output, tuple) else 0
        """Length of the tuple that a block returns; 0 if the block returns the hidden states alone.
        Transformers' releases and model families differ in this."""
        self.name = f"block{len(below)}"
        self.features = hidden(output).shape[-1]

    def rows(self, tokens: int) -> int:
        return tokens

    def states(self, run: Run) -> Tensor:
        def stop(_: nn.Module, __: Any, output: Any) -> None:
            raise _Passed(hidden(output))

        handle = self._below[-1].register_forward_hook(stop)
        try:
            run()
        except _Passed as passed:
            return passed.states
        finally:
            handle.remove()
        raise RuntimeError(f"the model does not pass {self.name} any more")

    def outputs(self, states: Tensor, run: Run) -> Tensor:
        passed: dict[Any, Any] = dict.fromkeys(self._below, lambda hidden, *_, **__: self._like(hidden))
        with instead(passed | {self._below[-1]: lambda *_, **__: self._like(states)}):
            return run()

    def _like(self, states: Tensor) -> Any:
        return (states, *[None] * (self._tuple - 1)) if self._tuple else states


ModelCut = Head | Blocks
"""A cut through a model."""


class _Passed(Exception):  # noqa: N818 (no error: ends a pass of which the rest is not needed)
    def __init__(self, states: Tensor) -> None:
        super().__init__()
        self.states = states


def cut_of(model: PretrainedModel, sites: Sequence[TargetSite], device: torch.device) -> ModelCut | None:
    """Return the highest cut below all targets of a model on `device`; None if there is none.

    There is no cut if the first block or its input is trained (embeddings, or a head that is tied to them),
    if the model has no list of blocks, or if a cut would change the model's outputs.
    """
    if _is_head(model, sites):
        return Head(sites[0].module)
    blocks = blocks_of(model)
    trained = {site.module for site in sites}
    if not blocks or not trained.isdisjoint([model.get_input_embeddings(), *blocks[0].modules()]):
        return None  # as in most runs; this is known without a pass
    try:
        with torch.inference_mode():
            return _tried(model, blocks, trained, device)
    except Exception:  # a model's code may fail in any way if blocks are skipped
        return None


def _is_head(model: PretrainedModel, sites: Sequence[TargetSite]) -> bool:
    """Return whether only a classifier's linear head is trained."""
    if model.get_output_embeddings() is not None or len(sites) != 1:
        return False
    return sites[0].target.name.removesuffix(".weight") in HEADS and sites[0].form is Form.LINEAR


def _tried(
    model: PretrainedModel, blocks: list[nn.Module], trained: set[nn.Module], device: torch.device
) -> ModelCut | None:
    """Return the cut after the last block that ends before the first trained layer is called. None if a pass
    from this cut on does not compute the same as the whole pass."""

    def run(first: int = 0) -> Tensor:
        return _outputs(model, device, first)

    whole = list(_calls(model, run))
    called = [module for module, _ in whole]
    if [module for module in called if module in blocks] != blocks or not trained <= set(called):
        return None
    first = min(called.index(module) for module in trained)
    below = [module for module in called[:first] if module in blocks]
    if not below:
        return None
    last = called.index(below[-1])
    cut = Blocks(below, whole[last][1])
    states = cut.states(run).float()
    if states.shape != (*TRIED, cut.features):
        return None
    cut.states(lambda: run(1))  # overwrites any state of lower blocks that a model keeps aside
    short = list(_calls(model, lambda: cut.outputs(states.to(model.dtype), run)))
    behind = [module for module, _ in short].index(below[-1])
    return cut if _same(whole[last:], short[behind:]) else None


def _calls(model: PretrainedModel, run: Run) -> Iterable[tuple[nn.Module, Any]]:
    """Run a model; return each called module with its output, in the order in which the calls ended."""
    calls: list[tuple[nn.Module, Any]] = []
    handles = [
        module.register_forward_hook(lambda called, _, output: calls.append((called, output)))
        for module in model.modules()
    ]
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    return calls


def _outputs(model: PretrainedModel, device: torch.device, first: int) -> Tensor:
    """Return a model's outputs for a batch without padding, with tokens from `first` on."""
    known = len(model.get_input_embeddings().weight)
    tokens = ((torch.arange(TRIED[0] * TRIED[1], device=device) + first) % known).view(TRIED)
    writes = model.get_output_embeddings() is not None
    cache = {"use_cache": False} if writes else {}
    found: Tensor = model(input_ids=tokens, attention_mask=torch.ones_like(tokens), **cache).logits
    return found


def _same(whole: Sequence[tuple[nn.Module, Any]], short: Sequence[tuple[nn.Module, Any]]) -> bool:
    """Return whether the same modules were called, with the same outputs except for rounding."""
    if [module for module, _ in whole] != [module for module, _ in short]:
        return False
    pairs = zip((output for _, output in whole), (output for _, output in short), strict=True)
    return all(_near(one, other) for one, other in pairs if isinstance(one, Tensor))


def _near(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(
        one, other, rtol=TOLERANCE, atol=TOLERANCE * float(one.abs().max())
    )


def hidden(output: Any) -> Tensor:
    """Return the hidden states in a block's output."""
    found: Tensor = output[0] if isinstance(output, tuple) else output
    return found


@contextmanager
def instead(forwards: Mapping[Any, Callable[..., Any]]) -> Iterator[None]:
    """Call these functions instead of the modules' own `forward` within the block."""
    own = {module: vars(module).get("forward") for module in forwards}
    for module, forward in forwards.items():
        module.forward = forward
    try:
        yield
    finally:
        for module, its in own.items():
            if its is None:  # its class has it
                del module.forward
            else:
                module.forward = its
