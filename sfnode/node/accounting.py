"""The worth of local noise, as (epsilon, delta), and the noise for an epsilon, by Google's dp-accounting.

Assumed is what `engine.estimator` and `tasks.mini_batches` do: neighbours are shards in which one row is
another one (of the same class, where mini-batches are balanced); each update draws `drawn` of `rows` rows
with replacement, in a way that nobody else knows, and one row changes its clipped scalar by 2 clip at most,
however often it was drawn. (In a first-order run, where each row's own gradient is clipped, none is drawn
twice.) The library knows no sampling with replacement. Its bound for sampling without it (Wang, Balle and
Kasiviswanathan 2019) holds here as well: its proof asks for the chance that a row is drawn, at most drawn /
rows, and for the sensitivity, which does not grow with the number of copies. Updates compose.

Where every row is drawn, as by a head's gradients, all updates together are one Gaussian mechanism, whose
epsilon is known exactly (Balle and Wang 2018): 7 % less than by the bound. Of n rows one in the place of
another changes the mean of clipped gradients by 2 clip / n at most: by so much where theirs are opposite.

The `together` updates of a group share the rows that are drawn, so that one row changes all of them: as a
vector by 2 clip times the root of their number. They count as one draw with noise that is smaller by as much.
"""

from __future__ import annotations

import math
from typing import Any

from sfnode.errors import Code, UserError
from sfnode.manifest import Manifest
from sfnode.settings import Settings

DELTA = 1e-5
"""The chance with which epsilon may not hold; for shards of up to some ten thousand rows."""


def library() -> Any:
    """Return dp_accounting. Raises UserError EXTRA_MISSING."""
    try:
        import dp_accounting.gaussian_mechanism
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
    draws, multiplier = math.ceil(updates / together), multiplier / math.sqrt(together)
    if drawn >= rows:
        return float(dp.gaussian_mechanism.get_epsilon_gaussian(multiplier / math.sqrt(draws), delta))
    noisy = dp.GaussianDpEvent(multiplier)
    one = dp.SampledWithoutReplacementDpEvent(rows, drawn, noisy)
    accountant = dp.rdp.RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_ONE)
    accountant.compose(one, draws)
    return float(accountant.get_epsilon(delta))


EXACTNESS = 1e-3
"""Share by which a multiplier may be larger than need be."""


def multiplier(most: float, drawn: int, rows: int, updates: int, together: int = 1) -> float:
    """Return about the least noise with which epsilon is `most` at most after so many updates, of which
    `together` share a mini-batch. Takes some seconds. Raises UserError as `epsilon`."""
    low, high = 0.0, 1.0
    while epsilon(high, drawn, rows, updates, together=together) > most:
        low, high = high, 2 * high
    while high - low > EXACTNESS * high:
        middle = (low + high) / 2
        enough = epsilon(middle, drawn, rows, updates, together=together) <= most
        low, high = (low, middle) if enough else (middle, high)
    return high


def most_updates(manifest: Manifest) -> int:
    """Return how many updates a node that keeps to an epsilon makes at most: what its quota is in the rounds
    that the budget is meant for, and no more than all of it."""
    numbers, organised = manifest.training, manifest.organised
    in_rounds = organised.quota * numbers.epochs if organised.organiser else numbers.update_budget
    return min(in_rounds, numbers.update_budget)


def multiplier_of(settings: Settings, manifest: Manifest, odds: tuple[int, int]) -> float:
    """Return the noise of a node that draws so many of so many rows. Raises UserError as `epsilon`."""
    if settings.noise:
        return settings.noise
    most, together = most_updates(manifest), manifest.training.batch_updates
    return multiplier(settings.noise_epsilon, *odds, most, together)
