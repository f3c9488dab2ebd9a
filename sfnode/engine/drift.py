"""Drift of a model from its base model: the distance between their weights, and the change of predictions on
texts outside the task. The texts are the lines of NEUTRAL, each with the base model's continuation. Drift
shows how much the model forgets, which happens in long runs of evolution strategies.

This module only measures; no result feeds back into a run. It knows cores, bases and a model, but neither
updates nor the task.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from sfnode.engine import forward
from sfnode.engine.forward import Pass
from sfnode.engine.generation import AnswerPlan, AnswerRequest, generate, prompt_ids
from sfnode.engine.subspace import PublishedBasis, Subspace
from sfnode.engine.trainable_model import TrainableModel
from sfnode.models.loader import LoadedModel
from sfnode.models.quantized import row_blocks
from sfnode.schema.measurements import LayerDrift, LayeredDrift

NEUTRAL = """\
The harbour is quiet in the early morning. A few boats lie at the wall, and the water moves slowly by.
Rain that falls on the hills takes about two days to reach the river, and a week more to arrive at the sea.
The library opens at nine on weekdays. Visitors may borrow up to six books, which are due after four weeks.
To bake this bread, mix the flour with warm water, add a little salt, and let the dough rest for an hour.
My brother works as an engineer in a small town, where he looks after the bridges and the railway.
Most birds of this kind leave in autumn. They fly by night and rest in the fields during the day.
The committee met on Tuesday to talk about the new road, and will meet again when the plans are ready.
A triangle with three equal sides also has three equal angles, each of which measures sixty degrees.
She put the letter on the table, closed the window, and went out to see whether the train had come.
In winter the lake freezes from its edges inwards, because shallow water loses its warmth more quickly.
The price of wheat rose a little in March, fell again in April, and has hardly changed since then.
Please keep this door closed. If you need help, ring the bell, and somebody will be with you shortly.
Early maps of the coast were drawn by sailors, who measured the depth of the water with a rope.
When the children had finished their work, they carried the chairs inside and swept the floor.
"""
"""Texts that belong to no task, one on each line. They were written for measuring drift."""

WRITTEN = 16
"""Number of tokens that the base model appends to each line of NEUTRAL, by greedy decoding."""

TOKENS = 512
"""Maximum number of tokens whose predictions are compared. A few hundred tokens give the mean KL divergence
to within a few percent, and take a fraction of a second on small models."""

KEPT_ENTRIES = 1 << 25
"""Maximum number of the base model's log-probabilities that are kept in memory. They take 128 MiB, and
suffice for 220 tokens with a vocabulary of 150,000."""


def drift(model: TrainableModel) -> LayeredDrift:
    """Return the distance of the current weights from the base weights. For a language model the result also
    has the change of predictions on the lines of NEUTRAL and on the base model's continuation of each line.

    Raises UserError BASES_MISSING, BASES_UNUSABLE, MODEL_*, OUT_OF_MEMORY.
    """
    model.restore()
    changes = norms(model.space, model.scale, model.decay.faded(model.core.cores()))
    if "norms" not in model.of_base:
        model.of_base["norms"] = [_base_norm(model.loaded, n) for n in range(len(changes))]
    base_norms: list[float] = model.of_base["norms"]
    layers = [
        LayerDrift(name=target.name, norm=change, distance=_ratio(change, base))
        for target, change, base in zip(model.space.targets, changes, base_norms, strict=True)
    ]
    norm = math.hypot(*changes)
    kl, tokens = (None, 0) if model.loaded.classifies else _kl(model)
    distance = _ratio(norm, math.hypot(*base_norms))
    return LayeredDrift(norm=norm, distance=distance, kl=kl, tokens=tokens, layers=layers)


def _kl(model: TrainableModel) -> tuple[float, int]:
    """Return the mean of KL(base || now) in nats per token, and the number of tokens over which the mean is
    taken. These are the tokens of NEUTRAL, and of the base model's continuation of each line."""
    if "log_probs" not in model.of_base:
        with model.weights.at_base():
            passes = _passes(model.loaded)
            model.of_base["log_probs"] = [(this, _log_probs(model.loaded, this).cpu()) for this in passes]
    model.weights.rebuild()
    total, tokens = 0.0, 0
    for this, base in model.of_base["log_probs"]:  # (tokens, vocabulary) each
        now = _log_probs(model.loaded, this).cpu()
        total += float((base.exp() * (base - now)).double().sum())
        tokens += len(base)
    mean = total / max(1, tokens)
    return (math.inf if math.isnan(mean) else max(0.0, mean)), tokens


def norms(space: Subspace, scale: Callable[[int], float], cores: Mapping[int, NDArray[Any]]) -> list[float]:
    """Return the Frobenius norm of the change that these cores make to each target.

    A target's change is the sum of its changes in all subspaces, so its norm includes their cross terms. With
    P = [U_1 A_1, U_2 A_2, ...] and V = [V_1, V_2, ...] the norm is the square root of the sum of the entries
    of (P^T P) * (V^T V), an elementwise product. This way needs no matrix of the target's size. If P and V
    have so many columns that it would take more work, the change itself is computed in blocks instead.

    Cores and bases are integers. Scales, and sums of scaled terms, are rounded in float64. If the changes in
    the subspaces almost cancel, the error, relative to the sum of their norms, is about 1e-8 by the first way
    and 1e-16 in blocks. The norm is that of the change before weights are rounded to their own dtype.
    """
    merged = _by_bases(space, scale, cores)
    return [_norm(space, merged, number) for number in range(len(space.targets))]


def _by_bases(
    space: Subspace, scale: Callable[[int], float], cores: Mapping[int, NDArray[Any]]
) -> list[tuple[int, NDArray[Any]]]:
    """Return a pair (subspace, core) for each distinct set of bases: one subspace that has these bases, and
    the sum of the scaled cores of all subspaces that have them. Cores are (layers, rows, columns) float64, in
    units of the change of W along u v^T."""
    found: dict[int | str, tuple[int, NDArray[Any]]] = {}
    for subspace, core in cores.items():
        name = space.basis.digest(subspace) if isinstance(space.basis, PublishedBasis) else subspace
        _, before = found.get(name, (subspace, 0.0))
        found[name] = subspace, before + core * scale(subspace)
    return list(found.values())


def _norm(space: Subspace, cores: Sequence[tuple[int, NDArray[Any]]], number: int) -> float:
    if not cores:
        return 0.0
    target, sides = space.targets[number], []
    for subspace, core in cores:
        u, v = (side.cpu().double() for side in space.basis.matrices(subspace, number))
        sides.append((u, torch.from_numpy(core[number]), v))
    rows, columns, width = target.out_features, target.in_features, space.columns_of[1] * len(sides)
    if width * (rows + columns) < rows * columns:
        left = torch.cat([u @ a for u, a, _ in sides], 1)  # (out, k)
        right = torch.cat([v for *_, v in sides], 1)  # (in, k)
        square = max(0.0, float(((left.t() @ left) * (right.t() @ right)).sum()))
        return math.sqrt(square) * space.unit(number)
    square = 0.0
    for block in row_blocks(rows, columns):
        change = torch.zeros(len(range(rows)[block]), columns, dtype=torch.float64)
        for u, a, v in sides:
            change.addmm_(u[block] @ a, v.t())
        square += float(change.square().sum())
    return math.sqrt(square) * space.unit(number)


def _base_norm(loaded: LoadedModel, number: int) -> float:
    """Return the Frobenius norm of the base weights of a target."""
    base = loaded.base_weights.read(number)
    return math.sqrt(sum(float(base[rows].double().square().sum()) for rows in row_blocks(*base.shape)))


def _ratio(change: float, base: float) -> float:
    """Return a change divided by the norm of the base weights. If that norm is 0, return 0 without a change,
    and infinity otherwise."""
    return change / base if base else math.inf if change else 0.0


def _passes(loaded: LoadedModel) -> list[Pass]:
    """Return a pass over each line of NEUTRAL with the model's continuation. Together the passes have at most
    TOKENS targets, and fewer with a large vocabulary (KEPT_ENTRIES).

    All tokens of a pass except the first are targets.
    """
    vocabulary = loaded.model.config.get_text_config(decoder=True).vocab_size
    room = min(TOKENS, max(1, KEPT_ENTRIES // vocabulary))
    prompts: list[list[int]] = []
    left = room
    for line in filter(None, map(str.strip, NEUTRAL.splitlines())):
        if left > 0:
            prompts.append(prompt_ids(loaded, line, WRITTEN)[: left + 1])
            left -= len(prompts[-1]) - 1 + WRITTEN
    answers = generate(loaded, [AnswerRequest(prompt) for prompt in prompts], AnswerPlan(WRITTEN))
    found = []
    for prompt, answer in zip(prompts, answers, strict=True):
        ids = torch.tensor([*prompt, *answer.tokens][: room + 1], device=loaded.device)
        count = len(ids) - 1
        if count < 1:
            continue
        zeros = torch.zeros(count, dtype=torch.int64, device=loaded.device)
        columns = torch.arange(count, device=loaded.device)
        mask = torch.ones_like(ids[None])
        found.append(Pass(ids[None], mask, torch.zeros_like(mask), zeros, columns, ids[1:]))
        room -= count
    return found


def _log_probs(loaded: LoadedModel, this: Pass) -> Tensor:
    """Return the log-probabilities of all possible next tokens at the position of each target, (tokens,
    vocabulary), in float32 at least."""
    with torch.inference_mode():
        found = forward.logits(loaded, this)
        return found.to(torch.promote_types(found.dtype, torch.float32)).log_softmax(-1)
