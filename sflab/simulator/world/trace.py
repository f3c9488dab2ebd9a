"""Trace of a run: a hash over all frames (equal in equal runs), the last entries for debugging, and traffic.

Entries are kept as values, and formatted only when they are read.
"""

from __future__ import annotations

import hashlib
import struct
from array import array
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TextIO

from sfprotocol.messages import Feed, Hello, Message, Proof, Segment, Summary, Want

KEPT = 50_000
"""Number of entries kept to explain a failure."""

_moment = struct.Struct(">d").pack


class Entry(NamedTuple):
    """Event at a node. `other` is a second node concerned, if any."""

    when: float
    node: str
    what: str
    other: str
    detail: Any

    def text(self) -> str:
        return f"{self.when:10.4f}  {self.node:<8} {self.what:<9} {self.other:<8} {describe(self.detail)}"


class Trace:
    """The last entries, a hash over all frames and, if there is a file, all entries in it."""

    def __init__(self, file: TextIO | None = None) -> None:
        self._entries: deque[Entry] = deque(maxlen=KEPT)
        self._hash = hashlib.blake2b(digest_size=16)
        self._file = file

    def note(self, when: float, node: str, what: str, other: str = "", detail: Any = None) -> None:
        """Add an entry."""
        entry = Entry(when, node, what, other, detail)
        self._entries.append(entry)
        if self._file:
            self._file.write(entry.text() + "\n")

    def frame(self, when: float, frame: bytes) -> None:
        """Add a sent frame to the hash."""
        self._hash.update(_moment(when))
        self._hash.update(frame)

    def digest(self) -> str:
        return self._hash.hexdigest()

    def last(self, count: int, nodes: Iterable[str] = ()) -> list[str]:
        """Return the last entries that concern one of `nodes`, or any node, as text."""
        wanted = set(nodes)
        chosen: list[str] = []
        for entry in reversed(self._entries):
            if not wanted or entry.node in wanted or entry.other in wanted:
                chosen.append(entry.text())
            if len(chosen) == count:
                break
        return chosen[::-1]


def describe(detail: Any) -> str:
    """Format a message, an action or anything else in one line."""
    match detail:
        case None:
            return ""
        case Segment(feed_key=key, first=first, stop=stop, hops=hops):
            return f"Segment {key:016x} [{first}..{stop}) hops {hops}"
        case Summary(more=more, known=known, digest=digest, entries=entries):
            tail = " more" if more else ""
            return f"Summary known {known} digest {digest.hex()[:8]} {_entries(entries)}{tail}"
        case Want(entries=entries):
            return f"Want {_entries(entries)}"
        case Hello(known=known):
            return f"Hello known {known}"
        case Proof(feed=feed, at=at):
            return f"Proof {feed_name(feed)} at {at}"
        case bytes():
            return f"{len(detail)} bytes {detail[:16].hex()}"
        case _:
            return str(detail)[:200]


def _entries(entries: Iterable[Any]) -> str:
    listed = list(entries)
    shown = " ".join(f"{feed_name(entry.feed)}:{entry.next}" for entry in listed[:6])
    return f"({shown}{' ...' if len(listed) > 6 else ''})"


def feed_name(feed: Feed) -> str:
    return f"{feed.origin.hex()[:6]}.{feed.incarnation:x}"


def kind_of(message: Message | None) -> str:
    """Return the name of the message's type; Raw for bytes that are no message."""
    return "Raw" if message is None else type(message).__name__


@dataclass
class Traffic:
    """Traffic of a whole network."""

    messages: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)
    """Bytes of the frames that honest nodes sent, with their length prefix, keyed by type of message."""
    copies_sent: int = 0
    """Number of updates in segments that honest nodes sent."""
    deliveries: int = 0
    """Number of updates that honest nodes admitted from others."""
    latencies: array[float] = field(default_factory=lambda: array("d"))
    """Seconds from the making of each update to its admission by another node that was up all that time."""

    @property
    def copies(self) -> float:
        """Mean number of copies of an update that were sent, per delivery of an update."""
        return self.copies_sent / self.deliveries if self.deliveries else 0.0


def quantiles(values: array[float]) -> tuple[float, float, float]:
    """Return the median, the 99th percentile and the maximum; zeros without values."""
    if not values:
        return 0.0, 0.0, 0.0
    ordered = sorted(values)
    last = len(ordered) - 1
    return ordered[last // 2], ordered[-(-last * 99 // 100)], ordered[last]
