"""Lines in the log of a node by which its owner follows the run: progress, and alarms that begin and end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sfnode.logging import log
from sfnode.schema.metrics import trained_by
from sfnode.schema.status import AlarmStatus, Status
from sfnode.sizes import pace, part_of, span

REPORT_INTERVAL = 10.0
"""Seconds between lines of progress in the log."""

REPORTED = {"state", "known", "update_budget", "epoch", "own_updates", "updates_per_second", "loss", "digest"}
"""Fields of the status that such a line has, for programs."""


class ProgressLog:
    """Tells the log, regularly, what `status` says."""

    def __init__(self, status: Callable[[], Status]) -> None:
        self._status = status
        self._told: frozenset[str] = frozenset()
        """Numbers of the alarms that the log tells of."""

    async def run(self) -> None:
        """Write a line now and then, until cancelled."""
        while True:
            await asyncio.sleep(REPORT_INTERVAL)
            s = self._status()
            self._sound(s.alarms)
            trained = trained_by(s.task)
            loss = "" if s.loss is None else f"  {trained.name} {trained.of(s.loss):.3f}"
            done = part_of(s.organised.counted if s.organised else s.known, s.update_budget)
            count = f" count, {s.known:,} are here" if s.organised else ""
            left = f", {span(s.seconds_left)} left" if s.seconds_left else ""
            doing = f"  {s.doing.what}, {span(s.doing.seconds)}" if s.doing else ""
            log.info(
                "%s  %s updates%s%s  own %s at %s%s  links %d  digest %s%s",
                s.state, done, count, left, f"{s.own_updates:,}", pace(s.updates_per_second), loss,
                len(s.links), s.digest[:12], doing,
                extra=s.model_dump(include=REPORTED),
            )  # fmt: skip

    def _sound(self, alarms: list[AlarmStatus]) -> None:
        """Log the alarms that are new, and which are over."""
        for alarm in alarms:
            if alarm.code not in self._told:
                log.error(
                    "%s: %s. %s", alarm.code, alarm.what, alarm.fix,
                    extra={"code": alarm.code, "fix": alarm.fix},
                )  # fmt: skip
        now = frozenset(alarm.code for alarm in alarms)
        for code in sorted(self._told - now):
            log.info("%s is over", code)
        self._told = now
