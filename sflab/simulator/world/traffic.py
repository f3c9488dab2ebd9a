"""Traffic of a network: messages and bytes by type, copies, and how long deliveries took."""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Traffic:
    """Traffic of a whole network since the last `forget`."""

    messages: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)
    """Bytes that honest nodes sent, by type of message; frames with their length prefix."""
    copies_sent: int = 0
    """Updates in segments that honest nodes sent."""
    deliveries: int = 0
    """Updates that honest nodes admitted from others."""
    latencies: array[float] = field(default_factory=lambda: array("d"))
    """Seconds from when an update is due to be signed to its admission by a node that was up all the time."""

    def forget(self) -> None:
        """Begin anew."""
        self.messages.clear()
        self.bytes.clear()
        self.copies_sent = self.deliveries = 0
        self.latencies = array("d")

    @property
    def copies(self) -> float:
        """Payload copies sent per delivery."""
        return self.copies_sent / self.deliveries if self.deliveries else 0.0


def quantiles(values: array[float]) -> tuple[float, float, float]:
    """Return the median, the 99th percentile and the largest; zeros if there are no values."""
    if not values:
        return 0.0, 0.0, 0.0
    ordered = sorted(values)
    last = len(ordered) - 1
    return ordered[last // 2], ordered[-(-last * 99 // 100)], ordered[last]
