"""Local noise: what a node adds to its scalars before anybody sees them (Gaussian mechanism).

A scalar is clipped to [-clip, clip], so that no row of a mini-batch can change it by more than 2 clip,
whatever it says and however often it was drawn; and normal noise of `multiplier` times that is added. What
this is worth as (epsilon, delta) is accounted for in `sfnode.stats.privacy`. Rounding and the run's own limit
come afterwards and take nothing of it away. The noise comes from the operating system's generator.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from random import SystemRandom


@dataclass(frozen=True, slots=True)
class LocalNoise:
    """A clip and noise, in units of slopes."""

    multiplier: float
    """Standard deviation of the noise, in units of the most that one row can change."""
    clip: float
    draw: Callable[[float, float], float] = field(default=SystemRandom().normalvariate, repr=False)
    """Draws by mean and deviation, also for several threads, as replicas have: `gauss` may give two of them
    the same number."""

    def __call__(self, alpha: float) -> float:
        """Return what may be told of a slope; of a measurement that failed as if it were 0, as the row that
        made it fail may be the one to protect."""
        clipped = min(max(alpha, -self.clip), self.clip) if math.isfinite(alpha) else 0.0
        return clipped + self.draw(0.0, 2 * self.clip * self.multiplier)
