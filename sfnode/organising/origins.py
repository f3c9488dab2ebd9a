"""What each origin has brought in an epoch, as it was measured before the seal.

The measurement is the engine's (`sfnode.engine.slopes`), from one gradient on validation rows whatever the
number of origins. Knows no time and nobody who measures.
"""

from __future__ import annotations

from typing import NamedTuple

from sfprotocol.messages import Feed


class Brought(NamedTuple):
    """What the updates of one feed that a close has named would do to the loss on validation rows.

    With q the scalar of an update, s, i and j its signs and coordinates (SPEC R6), and G the derivatives of
    the validation loss by the entries of every layer's core at the middle of the step that the epoch makes,
    p = sum over layers of s * G[i, j] is the scalar that the validation rows would have given.
    """

    feed: Feed
    updates: int
    """Named updates."""
    sum: float
    """Sum of q * p over the updates: positive if they lower the validation loss."""
    squares: float
    """Sum of (q * p)^2: the variance of `sum` if the signs of the scalars were tosses of a coin."""
    worth: float
    """Nats by which they lower the validation loss with factor 1: the Aumann-Shapley value of the feed in the
    epoch's step, by the midpoint rule. The worths of all feeds add up to the whole step's, to third order."""
    error: float
    """Standard error of `worth` over the validation rows."""
