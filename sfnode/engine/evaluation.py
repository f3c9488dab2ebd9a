"""Evaluation of a trainable model: at its current weights, at the base weights, and at points on the line
from the current weights to weights with later cores.

Unless the loss of a run is plain, the model's prior over the answers is subtracted from the answers' scores.
The prior is measured here, or given by the manifest. Results of the base model are kept, because the base
model does not change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from sfnode.engine import line, samples
from sfnode.engine.forward import KeepGoing, always
from sfnode.engine.generation import complete
from sfnode.engine.losses import BASE, OWN, line_rows
from sfnode.engine.trainable_model import TrainableModel
from sfnode.manifest.task import PRIOR_ONE
from sfnode.schema.measurements import Evaluation
from sfnode.tasks import calibration, dataset
from sfnode.tasks.encoding import Prior
from sfprotocol.seeds import I64


@contextmanager
def _weights(model: TrainableModel, *, base: bool) -> Iterator[bytes]:
    """Give the model the base weights, or the current ones, within the block. Yield the digest of the current
    core, or BASE for the base weights."""
    if base:
        model.restore()
        with model.weights.at_base():
            yield BASE
    else:
        model.rebuild()
        yield model.core.digest()


def evaluate(
    model: TrainableModel, limit: int = 0, keep_going: KeepGoing = always, rows: dataset.HeldOut = "test"
) -> Evaluation:
    """Rebuild the current weights, and measure the model on `limit` of the held-out rows that `rows` names
    (0: as many as the manifest says).

    Raises UserError DATA_*, and PAUSED if `keep_going`, which is called from time to time, returns False.
    """
    model.rebuild()
    return model.objective.evaluate(model.run_rows.held_out(rows, limit), model.core.digest(), keep_going)


def evaluate_base(
    model: TrainableModel,
    limit: int = 0,
    keep_going: KeepGoing = always,
    rows: dataset.HeldOut = "test",
    *,
    calibrated: bool = False,
) -> Evaluation:
    """Measure the base model as `evaluate` does, and keep the result. With `calibrated` the base model's own
    prior is subtracted from scores.

    Raises as `evaluate` does, and with `calibrated` also as `prior` does.
    """
    key = "evaluation", rows, limit, calibrated
    if key not in model.of_base:
        held = model.run_rows.held_out(rows, limit)
        with _weights(model, base=True):
            model.of_base[key] = model.objective.evaluate_base(held, keep_going, calibrated=calibrated)
    found: Evaluation = model.of_base[key]
    return found


def evaluate_towards(
    model: TrainableModel,
    after: Mapping[int, I64],
    amount: float,
    keep_going: KeepGoing = always,
    rows: dataset.HeldOut = "test",
) -> Evaluation:
    """Measure the model, as `evaluate` does, at a point on the line from the current weights (`amount` 0) to
    the weights with the cores `after` (`amount` 1)."""
    if not amount:  # on the line, updates of `after` that do not count would age the cores
        return evaluate(model, 0, keep_going, rows)
    with line.line_to(model, after).at(amount) as perturb:
        return model.objective.evaluate(model.run_rows.held_out(rows), OWN, keep_going, perturb)


def prior(model: TrainableModel, keep_going: KeepGoing = always) -> Prior:
    """Return the current model's prior over the task's K answers, (K,). Raises as `Priors.of` does."""
    model.rebuild()
    return model.priors.of(model.core.digest(), keep_going)


def named_prior(model: TrainableModel) -> dict[str, float]:
    """Return the current model's prior, keyed by answer, in nats: 0 for the likeliest answer, negative for
    others. Raises as `prior` does."""
    parts = (part / PRIOR_ONE for part in calibration.for_manifest(prior(model)))
    return dict(zip(model.manifest.task.verbalizer.values(), parts, strict=True))


def answer(model: TrainableModel, rows: int, *, base: bool) -> list[samples.Answered]:
    """Return the current model's answers to `rows` test rows, or with `base` the base model's answers. Every
    node takes the same rows, and their classes alternate. The prior is subtracted from the answers' scores
    unless the loss is plain.

    Raises UserError DATA_*, and as `prior` does.
    """
    chosen = line_rows(model.manifest.task, model.run_rows.held_out("test").rows)[:rows]
    with _weights(model, base=base) as of:
        return model.objective.answer(chosen, of)


def generate(model: TrainableModel, prompt: str, tokens: int) -> tuple[str, str]:
    """Return the texts that the base model and the current model write after `prompt`, each of at most
    `tokens` tokens.

    Raises UserError BAD_OPTION for a model that classifies.
    """
    with _weights(model, base=True):
        (base,) = complete(model.loaded, [prompt], tokens)
    (now,) = complete(model.loaded, [prompt], tokens)
    return base, now


def read_test_rows(model: TrainableModel) -> None:
    """Read the test rows, so that later evaluations read no file. Any thread may call this, because it
    touches nothing that training uses. Raises UserError DATA_*."""
    model.run_rows.held_out("test")
