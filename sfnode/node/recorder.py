"""Feeds the loggers of a running node with what its status, its reports and its evaluations say.

Measures nothing itself. Where records go, and what fails there, is for `sfnode.loggers`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

import sfnode
from sfnode.loggers.record import Kind, Logger, Record
from sfnode.node.startup import in_thread
from sfprotocol.decisions import FACTOR_ONE

if TYPE_CHECKING:
    from sfnode.node.running import RunningNode
    from sfnode.schema.evaluation import Evaluation, NodeEvaluation
    from sfnode.schema.organising import EpochEvaluation
    from sfnode.schema.status import RunStatus, Status

RECORD_INTERVAL = 10.0
"""Seconds between records: some 400 bytes each time, 4 MB a day."""

RATE_ONE = 1 << 32
"""The unit in which a run counts rates (SPEC O5)."""

METRIC = re.compile("[a-z][a-z0-9_]{0,31}")
"""Names of metrics that become names of curves; the organiser's are a stranger's text."""


class Recorder:
    """The records of one node."""

    def __init__(self, node: RunningNode, logger: Logger) -> None:
        self._node = node
        self._logger = logger
        self._sealed = node.reports.counting.sealed if node.reports else 0
        """Seals that were recorded, or were here before."""
        self._published: dict[bool, EpochEvaluation | None] = {}
        """The last evaluation that was recorded of what the organiser has published, by whether it is of the
        base model."""

    async def run(self) -> None:
        """Record regularly, and once more at the end; then close the loggers."""
        node = self._node
        settings = {
            "manifest": node.manifest.model_dump(mode="json", exclude={"model": {"targets"}}),
            "run_id": node.manifest.run_id.hex(),
            "sfnode": sfnode.__version__,
            **node.settings.model_dump(mode="json", include={"role", "device", "dtype", "queries", "shard"}),
        }
        self._logger.begin(node.manifest.name, settings)
        try:
            while True:
                self._look()
                await asyncio.sleep(RECORD_INTERVAL)
        finally:
            self._look()
            await in_thread(self._logger.close)

    def evaluated(self, evaluation: NodeEvaluation) -> None:
        """Record an evaluation on the test rows that this node was asked for."""
        if self._node.settings.log_to:
            of = "base_" if evaluation.base else ""
            self._logger.record(Record("evaluation", evaluation.known, _scores(of, evaluation)))

    def _look(self) -> None:
        status = self._node.status()
        step = {
            "known": status.known,
            "own_updates": status.own_updates,
            "updates_per_second": status.updates_per_second,
        }
        self._record("step", status, step if status.loss is None else {"loss": status.loss, **step})
        traffic = {
            "links": len(status.links),
            "bytes_sent": status.bytes_sent,
            "bytes_received": status.bytes_received,
            "segment_bytes_sent": status.segment_bytes_sent,
            "updates_sent": status.updates_sent,
        }
        self._record("traffic", status, traffic)
        if status.organised:
            self._look_at_seals(status, status.organised)

    def _look_at_seals(self, status: Status, run: RunStatus) -> None:
        """Record the seals that are new, and what the organiser has measured on the validation rows."""
        reports = self._node.reports
        assert reports is not None  # the run is organised
        seals, self._sealed = reports.seals(self._sealed), run.sealed
        for seal in seals:
            rate = reports.counting.rate(seal.epoch) / RATE_ONE
            values = {"epoch": seal.epoch, "factor": seal.factor / FACTOR_ONE, "rate": rate}
            last = {"counted": run.counted} if seal is seals[-1] else {}  # of those before nobody knows
            self._record("epoch", status, {**values, **last})
        for evaluation in (run.health.base, run.health.latest):
            if evaluation and evaluation != self._published.get(evaluation.base):
                self._published[evaluation.base] = evaluation
                of = "validation_base_" if evaluation.base else "validation_"
                self._record(
                    "evaluation", status, {f"{of}epoch": evaluation.epoch, **_scores(of, evaluation)}
                )

    def _record(self, kind: Kind, status: Status, values: Mapping[str, float]) -> None:
        self._logger.record(Record(kind, status.known, values))


def _scores(of: str, evaluation: Evaluation) -> dict[str, float]:
    """Return an evaluation as numbers whose names begin with `of`."""
    metric = evaluation.metric if METRIC.fullmatch(evaluation.metric) else "score"
    names = {metric: evaluation.value, "low": evaluation.low, "high": evaluation.high}
    return {f"{of}{name}": value for name, value in {**names, "loss": evaluation.loss}.items()}
