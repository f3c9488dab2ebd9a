"""Evaluation of a trainable model: of its weights as of now, of the base model, and towards later cores.

Unless the loss of a run is plain, answers are compared less the model's prior over them, which is measured
here, too, or the manifest's. What is found of the base model is kept: it does not change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from sfnode.engine import line, samples
from sfnode.engine.generation import complete
from sfnode.engine.losses import BASE, OWN, KeepGoing, always, line_rows
from sfnode.engine.trainable_model import TrainableModel
from sfnode.manifest.task import PRIOR_ONE
from sfnode.schema.evaluation import Evaluation
from sfnode.tasks import calibration, dataset
from sfnode.tasks.encoding import Prior
from sfprotocol.seeds import I64


@contextmanager
def _weights(model: TrainableModel, *, base: bool) -> Iterator[bytes]:
    """Have the base weights within the block, or those as of now, and yield the digest that they go by."""
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
    """Measure the rebuilt model as of now on `limit` of these rows (0: as many as the manifest says).

    Raises UserError DATA_*, and PAUSED when `keep_going`, asked now and then, says no.
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
    """Measure the base model like `evaluate`, once; `calibrated`: less its own prior.

    Raises as `evaluate` does, and with `calibrated` as `prior`.
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
    """Measure the model at `amount` of the way to the cores `after` like `evaluate`."""
    if not amount:  # what does not count makes nothing older
        return evaluate(model, 0, keep_going, rows)
    with line.line_to(model, after).at(amount) as perturb:
        return model.objective.evaluate(model.run_rows.held_out(rows), OWN, keep_going, perturb)


def prior(model: TrainableModel, keep_going: KeepGoing = always) -> Prior:
    """Return the prior over the task's answers of the model as of now, (K,). Raises as `Priors.of`."""
    model.rebuild()
    return model.priors.of(model.core.digest(), keep_going)


def named_prior(model: TrainableModel) -> dict[str, float]:
    """Return the prior of the model as of now by answer, with 0 for the likeliest. Raises as `prior`
    does."""
    parts = (part / PRIOR_ONE for part in calibration.for_manifest(prior(model)))
    return dict(zip(model.manifest.task.verbalizer.values(), parts, strict=True))


def base_prior(model: TrainableModel, keep_going: KeepGoing = always) -> Prior:
    """Return the same of the base model. Raises as `prior` does."""
    with _weights(model, base=True) as of:
        return model.priors.of(of, keep_going)


def answer(model: TrainableModel, rows: int, *, base: bool) -> list[samples.Answered]:
    """Return how the model as of now, or the base model, answers `rows` test rows, for everybody the same
    ones: by turns of each class. Scores are less the prior where the loss is not plain.

    Raises UserError DATA_*, and as `prior` does.
    """
    chosen = line_rows(model.manifest.task, model.run_rows.held_out("test").rows)[:rows]
    with _weights(model, base=base) as of:
        return model.objective.answer(chosen, of)


def generate(model: TrainableModel, prompt: str, tokens: int) -> tuple[str, str]:
    """Return what the base model and the model as of now write after `prompt`, in at most `tokens`
    tokens.

    Raises UserError BAD_OPTION for a model that classifies.
    """
    with _weights(model, base=True):
        (base,) = complete(model.loaded, [prompt], tokens)
    (now,) = complete(model.loaded, [prompt], tokens)
    return base, now


def read_test_rows(model: TrainableModel) -> None:
    """Read the test rows, so that questions about them read no file. Any thread may call this: it touches
    nothing that training uses. Raises UserError DATA_*."""
    model.run_rows.held_out("test")
