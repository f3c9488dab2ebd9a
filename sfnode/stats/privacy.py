"""The privacy that local noise gives, as (epsilon, delta), by Google's dp-accounting.

Assumed is what `engine.estimator` and `tasks.mini_batches` do: neighbours are shards in which one row is
another one (of the same class, where mini-batches are balanced); each update draws `drawn` of `rows` rows
with replacement, in a way that nobody else knows, and one row changes its clipped scalar by 2 clip at most,
however often it was drawn. The library knows no sampling with replacement. Its bound for sampling without it
(Wang, Balle and Kasiviswanathan 2019) holds here as well: its proof asks for the chance that a row is drawn,
at most drawn / rows, and for the sensitivity, which does not grow with the number of copies. Updates compose.

The `together` updates of a group share the rows that are drawn, so that one row changes all of them: as a
vector by 2 clip times the root of their number. They count as one draw with noise that is smaller by as much.
"""

from __future__ import annotations

import math
from typing import Any

from sfnode.errors import Code, UserError

DELTA = 1e-5
"""The chance with which epsilon may not hold; for shards of up to some ten thousand rows."""


def library() -> Any:
    """Return dp_accounting. Raises UserError EXTRA_MISSING."""
    try:
        import dp_accounting.rdp
    except ImportError as error:
        raise UserError(
            Code.EXTRA_MISSING,
            "local noise is accounted for by dp-accounting, which is not installed",
            'Install it: pip install "sfnode[privacy]".',
        ) from error
    return dp_accounting


def epsilon(
    multiplier: float, drawn: int, rows: int, updates: int, delta: float = DELTA, together: int = 1
) -> float:
    """Return epsilon after so many updates, of which `together` share a mini-batch; infinite without noise.
    Takes a quarter of a second.

    Raises UserError EXTRA_MISSING.
    """
    dp = library()
    if updates <= 0:
        return 0.0
    if multiplier <= 0:
        return float("inf")
    told = dp.GaussianDpEvent(multiplier / math.sqrt(together))
    one = dp.SampledWithoutReplacementDpEvent(rows, min(drawn, rows), told)
    accountant = dp.rdp.RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_ONE)
    accountant.compose(one, math.ceil(updates / together))
    return float(accountant.get_epsilon(delta))
