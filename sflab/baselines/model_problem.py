"""A language model as a function of one vector (`clients.VectorProblem`).

The model's parameters become views of the given vector, so nothing is copied. Gradients are accumulated into
one vector. Parameters and gradient are valid until the next call. The loss is the task's. Counters determine
which rows of a client's shard form a mini-batch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from sflab.baselines import vectors
from sfnode.engine import forward
from sfnode.engine.losses import EVALUATION_BATCH
from sfnode.errors import Code, UserError
from sfnode.manifest.task import Task
from sfnode.models import targets
from sfnode.models.loader import LoadedModel
from sfnode.schema.measurements import Evaluation
from sfnode.tasks import calibration
from sfnode.tasks.encoding import Encoded, Scored
from sfnode.tasks.mini_batches import Shard
from sfnode.tasks.prompts import Row
from sfprotocol.seeds import stream

Trained = Literal["full", "lora"]
"""Parameters in the vector: `full` for the targets that sfnode trains, `lora` for the adapters."""

LORA_ALPHA = 16.0
"""MeZO's alpha, for rank 8. The change of a weight is (alpha / r) B A, as PEFT scales it."""

QUERY_AND_VALUE = (("q_proj", "v_proj"), ("query", "value"), ("c_attn",), ("query_key_value",))
"""Names of the query and value projections in transformers' families of models: PEFT's defaults. Some
families have one matrix for query, key and value."""


class VectorPart(NamedTuple):
    """A parameter of the model: consecutive entries of the vector."""

    name: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of entries."""
        return math.prod(self.shape)


class ModelProblem:
    """A model, the shards of its clients and the held-out rows.

    `held_out` has rows under the keys `validation` and `test`. `rank` is the rank of the adapters of `lora`,
    which stay in the model. `public` has the rows with which a model is calibrated if the task's loss is
    centred. Nothing else may use the model's parameters while this object is in use: their values are those
    of the last vector.

    Raises UserError DEVICE if the trained weights are not float32, and MODEL_UNSUPPORTED if `lora` finds no
    query and value projections.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        task: Task,
        shards: Sequence[Sequence[Row]],
        held_out: Mapping[Any, Sequence[Row]],
        batch_size: int,
        seed: int,
        trained: Trained = "full",
        rank: int = 8,
        public: Sequence[Row] = (),
    ) -> None:
        self.batch_size = batch_size
        self._loaded, self._task = replace(loaded, kept=None), task  # methods may train other layers
        self._shards = [Shard(task, loaded.tokenizer, rows, batch_size, lambda: public) for rows in shards]
        self._held_out, self._public = held_out, public
        self._seed = seed
        self._latest: tuple[tuple[int, int], Encoded] | None = None
        if loaded.dtype != torch.float32 or (loaded.quantised and trained != "lora"):
            raise UserError(
                Code.DEVICE,
                "a baseline trains weights in float32, and the model is held in another precision",
                "Use --dtype float32 for this method.",
            )
        named = _adapters(loaded, rank, seed) if trained == "lora" else _targets(loaded)
        self._parameters = list(named.values())
        self.parts: Sequence[VectorPart] = tuple(
            VectorPart(name, tuple(parameter.shape)) for name, parameter in named.items()
        )
        self.size = sum(part.size for part in self.parts)
        self._start = torch.cat([parameter.detach().flatten() for parameter in self._parameters])
        self._gradient = torch.zeros_like(self._start)
        for parameter, view in zip(self._parameters, self._views(self._gradient), strict=True):
            parameter.requires_grad_(True)
            parameter.grad = view  # autograd adds to a gradient that is there

    def start(self) -> Tensor:
        """Return the base model's vector (P,). The adapters do not change the model yet."""
        return self._start.clone()

    def loss(self, x: Tensor, client: int, step: int) -> float:
        """Return the mean loss of a client's mini-batch at x (P,)."""
        self._place(x)
        with torch.no_grad():
            return float(self._losses(self._mini_batch(client, step)).double().mean())

    def gradient(self, x: Tensor, client: int, step: int) -> tuple[float, Tensor]:
        """Return the mean loss of a client's mini-batch at x (P,), and its gradient (P,). The gradient is
        valid until the next call."""
        self._place(x)
        self._gradient.zero_()
        losses = self._losses(self._mini_batch(client, step))
        losses.mean().backward()  # type: ignore[no-untyped-call]
        return float(losses.detach().double().mean()), self._gradient

    def evaluate(self, x: Tensor, which: str) -> Evaluation:
        """Measure the model of x (P,) on the held-out rows named `which`."""
        self._place(x)
        tokenizer, rows = self._loaded.tokenizer, self._held_out[which]
        return calibration.measure(self._task, tokenizer, rows, self._public, self.score, EVALUATION_BATCH)

    def score(self, encoded: Encoded) -> Scored:
        """Score a batch with the model of the last vector."""
        return forward.score_in_passes(self._loaded, encoded)

    def _place(self, x: Tensor) -> None:
        for parameter, view in zip(self._parameters, self._views(x), strict=True):
            parameter.data = view

    def _views(self, x: Tensor) -> list[Tensor]:
        pieces = torch.split(x, [part.size for part in self.parts])
        return [piece.view(part.shape) for piece, part in zip(pieces, self.parts, strict=True)]

    def _mini_batch(self, client: int, step: int) -> Encoded:
        """Return a client's mini-batch of a step. The last mini-batch is cached, because a two-point estimate
        uses it twice."""
        if self._latest is None or self._latest[0] != (client, step):
            key = vectors.key(b"batch", self._seed, client, step)
            self._latest = (client, step), self._shards[client].mini_batch(key)
        return self._latest[1]

    def _losses(self, encoded: Encoded) -> Tensor:
        """Return the loss of each example (B,), differentiable."""
        batch = forward.batch_of(encoded)
        found, numbers = [], []
        for sequences in forward.passes(self._loaded, batch, np.arange(len(batch.input_ids))):
            of_these = np.flatnonzero(np.isin(batch.sequences, sequences))
            this = forward.take(self._loaded, batch, sequences, of_these)
            found.append(forward.log_probs(self._loaded, this, None))
            numbers.append(of_these)
        order = torch.from_numpy(np.argsort(np.concatenate(numbers))).to(self._loaded.device)
        return encoded.losses(torch.cat(found)[order])


def _targets(loaded: LoadedModel) -> dict[str, nn.Parameter]:
    """Return the targets that sfnode trains, keyed by name."""
    return {site.target.name: getattr(site.module, site.parameter) for site in loaded.sites}


def _adapters(loaded: LoadedModel, rank: int, seed: int) -> dict[str, nn.Parameter]:
    """Add an adapter to every query and value projection. Return the adapters' factors, keyed by name."""
    found: dict[str, nn.Parameter] = {}
    for target in _query_and_value(loaded):
        down = nn.Parameter(_down(target.name, rank, target.in_features, seed).to(loaded.device))
        up = nn.Parameter(torch.zeros(target.out_features, rank, device=loaded.device))
        _adapt(loaded.model.get_submodule(target.name), down, up)
        found |= {f"{target.name}.lora_A": down, f"{target.name}.lora_B": up}
    return found


def _query_and_value(loaded: LoadedModel) -> list[Any]:
    for names in QUERY_AND_VALUE:
        try:
            return targets.choose(loaded.model, targets.Selection(names))
        except ValueError:
            continue
    raise UserError(
        Code.MODEL_UNSUPPORTED,
        "the model has no query and value projections under a name known here, for LoRA to adapt",
        "Take a method without LoRA, or a model of the OPT, Llama, GPT-2, GPT-NeoX or BERT family.",
    )


def _down(name: str, rank: int, in_features: int, seed: int) -> Tensor:
    """Draw the factor A (r, in) from random integers. Its entries are uniform within +-1 / sqrt(in), as in
    PEFT."""
    drawn = stream(vectors.key(b"adapter " + name.encode(), seed), 0, rank * in_features) >> np.uint64(40)
    uniform = torch.from_numpy(drawn.astype(np.float32)) / 2**23 - 1  # exact, from -1 to 1
    return uniform.view(rank, in_features) / math.sqrt(in_features)


def _adapt(module: nn.Module, down: Tensor, up: Tensor) -> None:
    """Make a layer add (alpha / r) B A x to its output."""
    scale = LORA_ALPHA / down.shape[0]

    def add(_: nn.Module, given: tuple[Tensor, ...], out: Tensor) -> Tensor:
        return out + linear(linear(given[0], down), up) * scale

    module.register_forward_hook(add)
