"""A logger for Weights & Biases. Where runs go, its own variables say: WANDB_MODE, WANDB_DIR and others.

wandb starts a process of its own, which does what the network takes; it ends with ours. It would send along
the command line (which may hold an invitation), the git state and standard output: all of that is off.
"""

from __future__ import annotations

from collections.abc import Mapping

import wandb

from sfnode.loggers.record import Record
from sfnode.logging import log

STEP = "step"
"""The x-axis of all curves. wandb's own step must not fall, and updates known may."""


class WeightsAndBiases:
    """One run of a project. Without credentials it is an offline run, which `wandb sync` uploads later."""

    def __init__(self, project: str) -> None:
        self._project = project
        self._run: wandb.Run | None = None

    def begin(self, name: str, settings: Mapping[str, object]) -> None:
        quiet = wandb.Settings(
            silent=True,
            console="off",
            disable_git=True,
            disable_code=True,
            disable_job_creation=True,
            x_disable_meta=True,
            x_disable_stats=True,
            x_disable_machine_info=True,
            x_save_requirements=False,
        )
        if wandb.setup().settings.mode == "online" and not wandb.login(prompt=False):
            log.info("no credentials for Weights & Biases: an offline run, which `wandb sync` uploads")
            quiet.mode = "offline"
        self._run = wandb.init(
            project=self._project, name=name, config=dict(settings), settings=quiet, reinit="create_new"
        )
        self._run.define_metric(STEP)
        self._run.define_metric("*", step_metric=STEP)

    def record(self, record: Record) -> None:
        assert self._run is not None  # begun
        values = {f"{record.kind}/{name}": value for name, value in record.values.items()}
        self._run.log({STEP: record.step, **values})

    def close(self) -> None:
        if self._run:
            self._run.finish()
