"""The model of a node's folder with the counted updates, for `sfnode export` and `sfnode eval`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sfnode.cli.data_folder import opened_run
from sfnode.cli.exit import warn
from sfnode.cli.progress import waiting
from sfnode.errors import Code, UserError
from sfnode.limits import Limits
from sfnode.resources.pauses import spare_cores
from sfnode.resources.sensors import Sensors
from sfnode.store.data_folder import Layout

if TYPE_CHECKING:
    from sfnode.engine.trainer import Trainer
    from sfnode.manifest import Manifest
    from sfnode.schema.history import Provenance
    from sfnode.store.checkout import Checkout
    from sfnode.store.log import UpdateLog
    from sfprotocol.machine import Machine
    from sfprotocol.messages import Feed
    from sfprotocol.weighing import Counted


DEVICES = ("cpu", "cuda", "mps", "xpu", "hpu", "npu", "mtia", "xla", "ipu", "maia", "privateuseone")
"""Names of the kinds of devices on which torch can compute."""


class TrainedModel(NamedTuple):
    """The model at a seal (by default the last one), or as of now."""

    trainer: Trainer
    digest: str
    """Digest in hex: at a seal the core digest of the updates that it counts, otherwise the state digest."""
    updates: int
    seal: int | None
    """Epoch of the seal; None in an open run, and with --as-of-now."""
    about: Provenance

    @property
    def moment(self) -> str:
        """Description of the state: the seal and the number of updates."""
        after = "" if self.seal is None else f"after round {self.seal}, "
        return f"{after}{self.updates} updates"


def load(
    data_dir: Path,
    model: Path | None,
    device: str,
    dtype: str,
    *,
    as_of_now: bool = False,
    epoch: int | None = None,
) -> TrainedModel:
    """Load the base model and apply the updates that count at the last seal, at the seal of `epoch`, or as of
    now.

    Warns on standard error about missing updates of the last seal. Raises UserError DATA_DIR_UNUSABLE,
    MODEL_*, DEVICE, BASES_*, UPDATES_LACKING if no seal is complete here; with an `epoch` also the errors of
    `checkout.at_seal`.
    """
    layout, sensors = Layout(data_dir), Sensors(device)
    with opened_run(data_dir) as (manifest, update_log):
        from sfnode.engine.loading import usable_device
        from sfnode.node import provenance
        from sfnode.node.startup import settled
        from sfnode.store.replay import state_digest

        usable_device(device)
        machine = settled(manifest.parameters(), update_log)
        checkout = None if as_of_now else _checked_out(machine, update_log, epoch)
        trainer = base_model(manifest, layout, model, device, dtype)
        # too many threads cost several times their gain (docs/benchmarks.md)
        trainer.use_threads(None, spare_cores(sensors.look(Limits()).free, None))
        frontier, names = machine.frontier, machine.cards.names()
        if frontier.run_state:
            trainer.use_bases(frontier.run_state.bases)
        if checkout:
            _replay(trainer, update_log, machine, checkout.counted, layout.checkpoints)
            digest, epoch = trainer.core.digest().hex(), checkout.epoch
            about = provenance.of_seal(machine.run, update_log.control(), names, checkout, digest)
            return TrainedModel(trainer, digest, checkout.updates, epoch, about)
        counted = {state.feed: machine.counted(state.feed) for state in frontier}
        _replay(trainer, update_log, machine, counted, layout.checkpoints)
        digest = state_digest(manifest, frontier).hex()
        about = provenance.of_now(counted, names, frontier.known, digest)
        return TrainedModel(trainer, digest, frontier.known, None, about)


def base_model(manifest: Manifest, layout: Layout, model: Path | None, device: str, dtype: str) -> Trainer:
    """Load the base model of the run in a node's folder, with the stored bases and data, for measurements.
    Raises UserError MODEL_* and DEVICE."""
    from sfnode.engine.trainer import Trainer
    from sfnode.store.named_files import model_of, places_of

    return Trainer.load(
        manifest,
        model_override=model_of(layout, model),
        device=device,
        dtype=dtype,
        training=False,
        bases=layout.bases,
        places=places_of(layout),
    )


def check(data_dir: Path, device: str) -> Manifest:
    """Return the manifest of the run in a folder, before anything slow is loaded.

    Raises UserError DATA_DIR_UNUSABLE if the folder has no run, DEVICE for a device that cannot exist.
    """
    if device.partition(":")[0] not in DEVICES:
        raise UserError(
            Code.DEVICE,
            f"there is no device {device!r}",
            "Use --device cpu, cuda, cuda:1 (the second GPU) or mps.",
        )
    with opened_run(data_dir) as (manifest, _):
        return manifest


def write(trained: TrainedModel, out: Path, form: str, rank: int | None = None) -> str:
    """Write the model to the new folder `out`, and return a description of what was written. Raises the
    errors of `Trainer.export`."""
    with waiting("writing the model"):
        fit = trained.trainer.export(out, "lora" if form == "lora" else "hf", trained.about, rank)
    shown = f"; {fit.in_words}" if fit else ""
    return f"wrote {out} ({trained.moment}, fingerprint {trained.digest}{shown})"


def best_epoch(data_dir: Path) -> int:
    """Return the epoch of the seal with the best evaluation, to which an organiser's guard would return.

    Raises UserError BAD_OPTION if no seal was evaluated.
    """
    from sfnode.organising.guard import best_seal
    from sfprotocol.decisions import read

    with opened_run(data_dir) as (_, update_log):
        best = best_seal(read(entry.record).decision for entry in update_log.control())
    if best is None:
        raise UserError(
            Code.BAD_OPTION,
            "no round of this run was evaluated, or all that were are taken back: nothing says which is best",
            "Export the last one; `sfnode log` lists the rounds.",
        )
    return best.epoch


def counted(manifest: Manifest, update_log: UpdateLog, *, as_of_now: bool) -> Mapping[Feed, Counted]:
    """Return, for each feed, the updates that `load` applies. Raises the errors of `load`, and prints the
    same warning."""
    from sfnode.node.startup import settled

    machine = settled(manifest.parameters(), update_log)
    checkout = None if as_of_now else _checked_out(machine, update_log)
    if checkout:
        return checkout.counted
    return {state.feed: machine.counted(state.feed) for state in machine.frontier}


def _checked_out(machine: Machine, update_log: UpdateLog, epoch: int | None = None) -> Checkout | None:
    """Return the state at the seal of `epoch` or, if that is None, at the last complete seal of an organised
    run; None for an open run."""
    from sfnode.store.checkout import at_seal, last_seal, warning

    if epoch is not None:
        return at_seal(machine.run, update_log.control(), machine.frontier.next, epoch)
    if machine.organised is None:
        return None
    checkout = last_seal(machine.run, update_log.control(), machine.frontier.next)
    lacking = warning(checkout.epoch, checkout.sealed, checkout.lacking)
    if lacking and checkout.epoch is None:
        raise lacking
    if lacking:
        warn(lacking)
    return checkout


def _replay(
    trainer: Trainer,
    update_log: UpdateLog,
    machine: Machine,
    counted: Mapping[Feed, Counted],
    checkpoints: Path,
) -> None:
    """Apply the updates that count, beginning with the newest stored checkpoint."""
    from sfnode.store import checkpoint
    from sfnode.store.checkout import whole
    from sfnode.store.replay import changes

    run_state = machine.frontier.run_state
    begins = checkpoint.start(checkpoints, run_state, update_log)
    if state := begins.state(trainer.manifest, run_state):
        trainer.begin(state.cores)
    done, total = 0, sum(max((run.stop for run in one.spans), default=0) for one in counted.values())
    with waiting("replaying the log") as advance:
        for batch in changes(
            update_log, begins.counted, whole(begins.counted, counted), machine.run.subspace_of
        ):
            trainer.apply(batch)
            done += len(batch.seeds)
            advance(done, total)
