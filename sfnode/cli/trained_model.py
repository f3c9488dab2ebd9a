"""The model of a node's folder with everything in its log applied, for `sfnode export` and `sfnode eval`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sfnode.cli.data_folder import opened_run
from sfnode.cli.progress import waiting

if TYPE_CHECKING:
    from sfnode.engine.trainer import Trainer
    from sfnode.store.log import UpdateLog
    from sfprotocol.machine import Machine


class TrainedModel(NamedTuple):
    """A model as of now."""

    trainer: Trainer
    digest: str
    """State digest, in hex."""
    updates: int


def load(data_dir: Path, model: Path | None, device: str, dtype: str) -> TrainedModel:
    """Load the base model and apply the log. Raises UserError DATA_DIR_UNUSABLE, MODEL_* or DEVICE."""
    from sfnode.engine.trainer import Trainer
    from sfnode.modelshare.sharing import model_of
    from sfnode.node.startup import settled
    from sfnode.store.data_folder import Layout

    layout = Layout(data_dir)
    with opened_run(data_dir) as (manifest, update_log):
        model = model_of(layout, model)
        trainer = Trainer.load(manifest, model_override=model, device=device, dtype=dtype, training=False)
        machine = settled(manifest.parameters(), update_log)
        _replay(trainer, update_log, machine, layout.checkpoints)
        return TrainedModel(trainer, machine.frontier.digest().hex(), machine.frontier.known)


def _replay(trainer: Trainer, update_log: UpdateLog, machine: Machine, checkpoints: Path) -> None:
    """Apply everything in the log that counts, beginning with the newest checkpoint that is here."""
    from sfnode.store import checkpoint
    from sfnode.store.replay import changes

    counted = {state.feed: machine.counted(state.feed) for state in machine.frontier}
    counting = machine.frontier.counting
    stated, applied = checkpoint.start(checkpoints, counting, update_log)
    if stated and counting:
        trainer.begin(checkpoint.load(checkpoints, trainer.manifest, counting, stated).cores)
    done, total = 0, machine.frontier.known
    with waiting("replaying the log") as advance:
        for batch in changes(update_log, applied, counted, machine.run.subspace_epochs):
            trainer.apply(batch)
            done += len(batch.seeds)
            advance(done, total)
