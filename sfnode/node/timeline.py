"""The timeline of an organised run, for views: what was decided, from the log, with what became of it."""

from __future__ import annotations

from collections.abc import Mapping

from sfnode.organising.reporting.chronicle import chronicle
from sfnode.schema.history import HistoryEntry
from sfnode.schema.views import Timeline, TimelineEntry
from sfnode.store.log import UpdateLog
from sfnode.store.replay import kept_control
from sfprotocol.messages import RunParameters, Succession
from sfprotocol.names import Names


class Decided:
    """The timeline in one log. For one thread."""

    def __init__(self, update_log: UpdateLog, run: RunParameters) -> None:
        self._log, self._run = update_log, run
        self._entries: list[TimelineEntry] = []
        self._read = b""
        """Signature of the last decision that was read; decisions change only by more of them, or by a
        succession, which signs the next one itself."""

    def last(self, limit: int, names: Mapping[bytes, Names]) -> Timeline:
        """Return the last entries, with the names of origins as they were when the last decision came. Reads
        all decisions when some are new: 30 us for each."""
        kept = kept_control(self._log)
        signature = kept.entries[-1].signature if kept.entries else b""
        if signature != self._read:
            successions = (message for message in kept.authority if isinstance(message, Succession))
            self._entries = [_line(one) for one in chronicle(self._run, kept.entries, successions, names)]
            self._read = signature
        return Timeline(total=len(self._entries), entries=self._entries[: -limit - 1 : -1])


def _line(entry: HistoryEntry) -> TimelineEntry:
    epoch = entry.epoch
    return TimelineEntry(
        position=entry.position or 0,
        kind=entry.kind,
        text=entry.text,
        epoch=epoch.epoch if epoch else None,
        counted=epoch.counted if epoch else None,
        origins=len(epoch.origins) if epoch else None,
        evaluation=epoch.evaluation if epoch else None,
    )
