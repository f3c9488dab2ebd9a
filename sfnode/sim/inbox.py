"""What waits for the machine of one node: events in order, and not too many frames of one link at a time.

As in the daemon, a link of which enough frames wait is not read; its further frames stay outside, in the
order in which they came, until the machine gets round to it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from sfprotocol.events import Event, LinkId, Received

MAX_UNHANDLED = 32
"""Frames of one link that may wait among the events (as `runtime.pump`)."""

MAX_OUTSIDE = 4096
"""Frames of one link that wait outside, in buffers of the system; further ones would not be sent."""


@dataclass(frozen=True, slots=True)
class Compute:
    """Not for the machine: the engine has time to make so many updates."""

    updates: int


class Inbox:
    """Of one node."""

    def __init__(self) -> None:
        self._events: deque[Event | Compute] = deque()
        self._waiting: dict[LinkId, int] = {}
        self._outside: dict[LinkId, deque[bytes]] = {}
        self.refused = 0
        """Frames for which there was no room even outside."""

    def __len__(self) -> int:
        return len(self._events)

    def put(self, event: Event | Compute) -> None:
        self._events.append(event)

    def put_frame(self, link: LinkId, frame: bytes) -> None:
        waiting = self._waiting.get(link, 0)
        if waiting < MAX_UNHANDLED:
            self._waiting[link] = waiting + 1
            self._events.append(Received(link, frame))
            return
        outside = self._outside.setdefault(link, deque())
        if len(outside) < MAX_OUTSIDE:
            outside.append(frame)
        else:
            self.refused += 1

    def take(self) -> Event | Compute:
        event = self._events.popleft()
        if isinstance(event, Received):
            self._handled(event.link)
        return event

    def forget(self, link: LinkId) -> None:
        """The link has ended, and what waits outside with it."""
        self._outside.pop(link, None)
        self._waiting.pop(link, None)

    def clear(self) -> None:
        self._events.clear()
        self._waiting.clear()
        self._outside.clear()

    def _handled(self, link: LinkId) -> None:
        waiting = self._waiting.pop(link, 0) - 1
        if outside := self._outside.get(link):
            self._events.append(Received(link, outside.popleft()))
            waiting += 1
        if waiting > 0:
            self._waiting[link] = waiting
