"""`sfnode eval`: the base model and the trained model on the run's test rows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from sfnode.cli import options
from sfnode.cli.ending import fork_command
from sfnode.cli.exit import warn
from sfnode.cli.output import echo
from sfnode.cli.progress import waiting
from sfnode.dashboard.formatting import baselines_in_words, beside, probe_in_words
from sfnode.errors import Code, UserError
from sfnode.schema.metrics import better_by, by_class, drift_in_words, figure, metric_of, moved_in_words

if TYPE_CHECKING:
    from sfnode.cli.trained_model import TrainedModel
    from sfnode.engine.trainer import Trainer
    from sfnode.manifest import Manifest
    from sfnode.schema.measurements import Evaluation
    from sfnode.schema.results import EvalResult


@click.command("eval")
@options.model_options
@options.option(
    "--test-limit",
    "limit",
    type=click.IntRange(0),
    default=0,
    help="Use only so many test rows.  [default: as many as the manifest says]",
)
@options.verifier_option
@options.as_of_now_option
@options.details_option
@options.json_option
def evaluate(
    data_dir: Path,
    model: Path | None,
    device: str,
    dtype: str,
    limit: int,
    verifier: tuple[str, ...],
    as_of_now: bool,
    details: bool,
    as_json: bool,
) -> None:
    """Measure the base model and the trained model on the run's test rows.

    If the task has fixed answers, the base model is measured a second time, with its prior over the answers
    subtracted. The prior is measured on up to 512 training rows without their labels. Only a gain over the
    second result was learnt. If the run's loss is centred, the trained model's prior is subtracted, too. For
    a reward run the result is the share of right greedy answers, and their mean reward (docs/rewards.md).

    If only a linear head is trained, a linear probe is fitted here to the training rows whose states are
    stored, without another forward pass. It shows the result that one machine with all rows would reach.

    The drift is the distance between model and base model: in their weights, and in their predictions on text
    unrelated to the task.

    An organised run is measured at its last seal, an open run with all updates.
    """
    from sfnode.cli.trained_model import check, load
    from sfnode.store.data_folder import Layout
    from sfnode.store.named_files import NamedFiles
    from sfnode.tasks.verifying import permit

    manifest = check(data_dir, device)
    _require_test(manifest)
    permit(manifest.task, verifier or NamedFiles.read(Layout(data_dir)).verifier)
    trained = load(data_dir, model, device, dtype, as_of_now=as_of_now)
    result = _measured(trained, limit)
    lines = _lines(result, trained.moment, details, data_dir)
    echo(result.model_dump_json(indent=2) if as_json else "\n".join(lines))


def _require_test(manifest: Manifest) -> None:
    if not manifest.data.test:
        raise UserError(
            Code.DATA_NEEDED,
            "the run's manifest names no test data",
            "`sfnode export --out FOLDER` writes the model, to be measured on data of your own.",
        )


def _measured(trained: TrainedModel, limit: int) -> EvalResult:
    from sfnode.schema.results import EvalResult

    trainer = trained.trainer
    with waiting("measuring the base model"):
        before = trainer.evaluate_base(limit)
    calibrated = _calibrated(trainer, limit)
    with waiting("measuring the model"):
        after = trainer.evaluate(limit)
    with waiting("comparing with what is usual"):
        probe, baselines = trainer.probe(limit), trainer.baselines(limit)
    with waiting("measuring the drift"):
        drift = trainer.drift()
    return EvalResult(
        run_id=trainer.manifest.run_id.hex(),
        updates=trained.updates,
        digest=trained.digest,
        seal=trained.seal,
        before=before,
        calibrated=calibrated,
        after=after,
        probe=probe,
        baselines=baselines,
        loss=trainer.manifest.task.loss,
        prior=trainer.named_prior() if after.calibrated else None,
        drift=drift,
    )


def _calibrated(trainer: Trainer, limit: int) -> Evaluation | None:
    """Measure the base model with its prior subtracted. Return None for a task without such a prior. If the
    rows for the prior cannot be read, warn on standard error and return None."""
    manifest = trainer.manifest
    if not manifest.task.labelled or not (manifest.data.train or manifest.task.prior):
        return None
    try:
        with waiting("measuring the calibrated base model"):
            return trainer.evaluate_base(limit, calibrated=True)
    except UserError as error:
        warn(error)
        return None


def _lines(result: EvalResult, moment: str, details: bool, folder: Path) -> list[str]:
    before, other, after = result.before, result.calibrated, result.after
    if other and after.calibrated:  # as on the card and the dashboard
        before, other = other, before
    by = better_by(before.metric, before.value, after.value)
    name = metric_of(before.metric).name
    rows = {
        "before": before,
        "calibrated" if before is result.before else "uncalibrated": other,
        "after": after,
    }
    return [
        f"{name} (95 % interval) {after.on_rows}, {moment}",
        *([f"{'':12}  {meaning}"] if (meaning := metric_of(before.metric).meaning) else ()),
        *(f"{when:12}  {figure(one)}{beside(one)}" for when, one in rows.items() if one),
        *(f"{'':12}  {line}" for line in (by, by_class(after)) if line),
        f"{'change':12}  {moved_in_words(result.drift.distance)}",
        *([f"{'drift':12}  {drift_in_words(result.drift)}"] if details else ()),
        *([f"{'digest':12}  {result.digest}"] if details else ()),
        *baselines_in_words(result.baselines),
        *(probe_in_words(result.probe, fork_command(result.seal, folder)) if result.probe else ()),
    ]
