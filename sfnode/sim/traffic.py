"""What was sent and what became of it: messages and bytes by type, copies, and how long deliveries took."""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Traffic:
    """Of a whole network, since the last `forget`."""

    messages: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)
    """By type of message, frames with their length prefix, as honest nodes sent them."""
    copies_sent: int = 0
    """Updates in segments that honest nodes sent."""
    deliveries: int = 0
    """Updates that honest nodes admitted from others."""
    latencies: array[float] = field(default_factory=lambda: array("d"))
    """Seconds from the making of an update to its admission by a node that was there all the time."""

    sent: int = 0
    arrived: int = 0
    lost: int = 0
    repeated: int = 0
    """Frames that arrive once more than they were sent."""
    dropped: int = 0
    """Frames for a link that had ended before they arrived."""
    flying: int = 0

    def forget(self) -> None:
        """Begin anew, except for the balance of frames."""
        self.messages.clear()
        self.bytes.clear()
        self.copies_sent = self.deliveries = 0
        self.latencies = array("d")

    @property
    def balanced(self) -> bool:
        """Whether every frame is accounted for."""
        return self.sent + self.repeated == self.arrived + self.lost + self.dropped + self.flying

    @property
    def copies(self) -> float:
        """Payload copies sent per delivery."""
        return self.copies_sent / self.deliveries if self.deliveries else 0.0


def quantiles(values: array[float]) -> tuple[float, float, float]:
    """The median, the 99th percentile and the largest; zeros if there are none."""
    if not values:
        return 0.0, 0.0, 0.0
    ordered = sorted(values)
    last = len(ordered) - 1
    return ordered[last // 2], ordered[-(-last * 99 // 100)], ordered[last]
