"""Records of a running node: figures for its loggers, and lines of progress and alarms in its log.

The figures come from the status, the reports and the evaluations: nothing is measured here. `sfnode.loggers`
writes the figures and handles failures.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import sfnode
from sfnode.loggers import Kind, LoggedRecord, Logger
from sfnode.logging import log
from sfnode.node.run_context import RunContext
from sfnode.node.startup import in_thread
from sfnode.organising.reporting.reports import Reports
from sfnode.printable import pace, part_of, span
from sfnode.schema.metrics import doing_in_words, trained_by
from sfnode.schema.node_state import NodeState
from sfnode.schema.status import AlarmStatus, Status
from sfprotocol.decisions import FACTOR_ONE, RATE_ONE

if TYPE_CHECKING:
    from sfnode.schema.measurements import Evaluation, NodeEvaluation
    from sfnode.schema.organising import EpochEvaluation

RECORD_INTERVAL = 10.0
"""Interval, in seconds, between records of the kinds "step" and "traffic". Both together take some 400 bytes
each time, and 4 MB a day."""

STEP = {"known", "own_updates", "updates_per_second", "loss"}
TRAFFIC = {"bytes_sent", "bytes_received", "segment_bytes_sent", "updates_sent"}
"""Fields of the status in records of the kind "step" (STEP) and of the kind "traffic" (TRAFFIC)."""

METRIC = re.compile("[a-z][a-z0-9_]{0,31}")
"""Pattern of the names of metrics that are used as names of curves. Other names are replaced, because a
metric's name may be text from a stranger."""


class Recorder:
    """The records of one node. The node calls `after_round` and `evaluated`; `run` reads all other
    figures."""

    def __init__(
        self, node: RunContext, logger: Logger, reports: Reports | None, status: Callable[[], Status]
    ) -> None:
        self._node = node
        self._logger = logger
        self._reports = reports
        self._status = status
        self._sealed = self._reports.run_state.sealed if self._reports else 0
        """Number of seals that were recorded, or that the log had at the start."""
        self._published = self._reports.evaluations()[-1:] if self._reports else []
        """List of one evaluation: the last published one that was recorded, or that the log had at the start.
        The list is empty if there is no such evaluation."""

    def begin(self) -> None:
        """Begin the records with the run and the settings that determine this node's figures."""
        node = self._node
        settings = {
            "manifest": node.manifest.model_dump(mode="json", exclude={"model": {"targets"}}),
            "run_id": node.manifest.run_id.hex(),
            "sfnode": sfnode.__version__,
            **node.settings.model_dump(mode="json", include={"role", "device", "dtype", "queries", "shard"}),
        }
        self._logger.begin(node.manifest.name, settings)

    async def run(self) -> None:
        """Record regularly until cancelled, and once more at the end. Then close the loggers."""
        try:
            while True:
                self._look()
                await asyncio.sleep(RECORD_INTERVAL)
        finally:
            self._look()
            await in_thread(self._logger.close)

    def after_round(self) -> None:
        """Record the seals that the driver's last round has brought."""
        if self._reports is None or self._reports.run_state.sealed == self._sealed:
            return
        run_state, seals = self._reports.run_state, self._reports.seals(self._sealed)
        self._sealed = run_state.sealed
        for seal in seals:
            rate, factor = run_state.rate(seal.epoch) / RATE_ONE, seal.factor / FACTOR_ONE
            values: dict[str, float] = {"epoch": seal.epoch, "factor": factor, "rate": rate}
            if seal is seals[-1]:  # the number counted after earlier seals is not known any more
                values["counted"] = run_state.counted
            self._record("epoch", values)

    def evaluated(self, evaluation: NodeEvaluation) -> None:
        """Record an evaluation on the test rows, for which the owner asked this node."""
        of = _which(evaluation.base, evaluation.calibrated)
        values = _scores(of, evaluation)
        if drift := evaluation.drift:
            values |= {"drift_distance": drift.distance}
            values |= {} if drift.kl is None else {"drift_kl": drift.kl}
        self._logger.record(LoggedRecord("evaluation", evaluation.known, values))

    def _look(self) -> None:
        status = self._status()
        self._record("step", status.model_dump(include=STEP, exclude_none=True))
        self._record("traffic", {"links": len(status.links), **status.model_dump(include=TRAFFIC)})
        for evaluation in self._news():
            of = f"validation_{_which(evaluation.base, evaluation.calibrated)}"
            self._record("evaluation", {f"{of}epoch": evaluation.epoch, **_scores(of, evaluation)})

    def _news(self) -> list[EpochEvaluation]:
        """Return the evaluations published since the last call."""
        found = self._reports.evaluations() if self._reports else []
        known = [place for place, one in enumerate(found, 1) if [one] == self._published]
        self._published = found[-1:]
        return found[known[-1] :] if known else found

    def _record(self, kind: Kind, values: Mapping[str, float]) -> None:
        self._logger.record(LoggedRecord(kind, self._node.machine.frontier.known, values))


def _which(base: bool, calibrated: bool) -> str:
    """Return the prefix of a model's figures: `calibrated_`, `base_`, or the empty string for the trained
    model."""
    return ("calibrated_" if calibrated else "base_") if base else ""


def _scores(of: str, evaluation: Evaluation) -> dict[str, float]:
    """Return the figures of an evaluation, keyed by their names with the prefix `of`."""
    metric = evaluation.metric if METRIC.fullmatch(evaluation.metric) else "score"
    names = {metric: evaluation.value, "low": evaluation.low, "high": evaluation.high}
    return {f"{of}{name}": value for name, value in {**names, "loss": evaluation.loss}.items()}


REPORT_INTERVAL = 10.0
"""Seconds between lines of progress in the log."""

REPORTED = {"state", "known", "update_budget", "epoch", "own_updates", "updates_per_second", "loss", "digest"}
"""Fields of the status that a progress line of the log contains for programs."""


async def log_progress(status: Callable[[], Status]) -> None:
    """Log lines of progress and alarms regularly, until cancelled."""
    alarms, complete = frozenset[str](), False
    while True:
        await asyncio.sleep(REPORT_INTERVAL)
        s, was = status(), complete
        alarms, complete = _log_alarms(s.alarms, alarms), s.state is NodeState.COMPLETE
        if was and complete:
            continue
        trained = trained_by(s.task)
        loss = "" if s.loss is None else f"  {trained.name} {trained.of(s.loss):.3f}"
        done = part_of(s.organised.counted if s.organised else s.known, s.update_budget)
        count = f" count, {s.known:,} are here" if s.organised else ""
        left = f", {span(s.seconds_left)} left" if s.seconds_left else ""
        doing = f"  {doing_in_words(s.doing)}" if s.doing else ""
        log.info(
            "%s  %s updates%s%s  own %s at %s%s  links %d%s",
            s.state, done, count, left, f"{s.own_updates:,}", pace(s.updates_per_second), loss,
            len(s.links), doing,
            extra=s.model_dump(include=REPORTED),
        )  # fmt: skip


def _log_alarms(alarms: list[AlarmStatus], before: frozenset[str]) -> frozenset[str]:
    """Log the new alarms, and the end of earlier ones. Return the numbers of the present alarms."""
    for alarm in alarms:
        if alarm.code not in before:
            log.error(
                "%s: %s. %s", alarm.code, alarm.what, alarm.fix,
                extra={"code": alarm.code, "fix": alarm.fix},
            )  # fmt: skip
    now = frozenset(alarm.code for alarm in alarms)
    for code in sorted(before - now):
        log.info("%s is over", code)
    return now
