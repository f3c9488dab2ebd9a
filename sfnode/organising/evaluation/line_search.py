"""The line search at a seal: how far to go along an epoch's direction, and at which rate to continue.

Let W be the weights after the seals so far, and D the sum that the epoch adds to them at factor 1. The loss
of held-out rows is measured at W + c D for several c. The factor is half of the best c. A full step along a
noisy direction would overshoot in all other directions, and the next epoch would have to come back. (In one
run the accuracy fell from 0.98 to 0.85 in between.) If the best c is above 2, less than half of it is taken,
because the step that is best for the present loss is short-sighted (Wu et al. 2018): noise stays in the
weights, and later epochs bear less of it. This module decides from losses alone; it knows no model.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sfprotocol.decisions import RATE_ONE

AMOUNTS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Multiples c of an epoch's step at which losses are measured."""

SHARE = 0.5
"""Share of the best c (the multiple of the step with the least loss) that becomes the factor, if the best c
is at most 1."""

CAUTION = 1 / 4
"""Share of the best c (the multiple of the step with the least loss) that becomes the factor, if the best c
is above 2. Large steps are a risk even where they look best. Runs of the built-in model at constant rates of
7.5e-4 and 1e-3 were destroyed after they had reached losses of 0.16 and 0.18. Until shortly before, a step
twice as long would have been better in each epoch (docs/research-log.md)."""

FIRST_ROWS = 16
"""Number of rows with which a search begins. They suffice if the rate is wrong by a factor of 10 or more, and
cost as much as 14 updates with mini-batches of 4. With fewer rows the standard error would itself be a
guess."""

SURE_ROWS = 128
"""Number of rows to which a search continues if an epoch seems to do harm or to be noise and this is not
certain, even if the search was given fewer rows. The work at stake has cost ten times as much as the rows.
With 16 rows three of 35 runs lost an epoch that did help, which had up to 18 % of their work
(docs/research-log.md)."""

LEAST_ROWS = 8
"""Minimum number of rows for any conclusion."""

EVIDENCE = 2.0
"""Number of standard errors by which the best multiple c of the step must beat c = 1 before the factor
changes. With less evidence factors oscillate once the easy part is learnt: in one run 18 of 50 factors were
0, and 19 were 4."""

SURE = 3.0
"""Number of standard errors by which an epoch must do harm before its factor is 0. With at least SURE_ROWS
rows, EVIDENCE standard errors suffice. Without such evidence the rate is lowered, but the epoch counts, as it
is the work of all members."""

SUSPICION = 1.0
"""Number of standard errors by which the best multiple c of the step, if it is above 0 and at most 1, must
beat c = 2 to show that the rate is at its limit. A rate that is far too small does not look like this: losses
are then linear in c, and the best c is the first or the last."""

LARGE_MOVE = 0.1
"""Root mean square change of the rows' losses, in nats, above which an epoch is taken for noise at too large
a rate, unless the mean loss evidently falls. Such an epoch counts half, and the rate is halved.

At good rates epochs of the built-in run move losses by 0.02 to 0.06 nats. When nothing more is learnt, they
move losses by 0.2 nats or more. Good epochs along bases from gradients move losses as far, so subspaces of
few dimensions are exempt (`policy.FEW_DIMENSIONS`). A real model's losses move as far while it learns. In one
epoch of a real model 128 rows showed no evident change, while 32 other rows showed a rise of 0.019 nats. A
destroyed model is always evident, as losses are convex in the outputs. If an epoch evidently helps, but its
least loss is at a c below 1, half of that c is taken without further evidence. A whole c would carry noise
into the weights that no later epoch removes.
"""

DOUBTFUL_MOVE = 0.05
"""Root mean square change of the rows' losses, in nats, above which an epoch is taken for noise if its loss
is least at less than its whole step (at a c below 1). LARGE_MOVE is the bound for other epochs."""

YOUNG_STEP, LATER_STEP = 4.0, 2.0
"""Maximum divisor of a rate after one search: until the rate has settled, and later. A rate is never more
than doubled. Lowering a first rate that is 100 times too large takes four searches. Later a result that calls
for a larger change is due to chance."""

LATE_SCALE = 1 / 16
"""Factor on AMOUNTS for searches along recounted work. Such work may have been made at many times the present
rate, and at weights that are long gone. LATE_SCALE is also the factor of the recounted work if no other
factor is evidently better."""

_START, _LEAST, _AS_IT_IS, _TWICE = (AMOUNTS.index(amount) for amount in (0.0, 0.25, 1.0, 2.0))


class SearchResult(NamedTuple):
    """Result of a search."""

    factor: float
    """Factor of the epoch; 1 if no other factor was evidently better."""
    best: float
    """Multiple c of the epoch's step with the least loss."""
    rows: int
    """Number of rows whose losses were measured at all multiples of the step."""
    useful: bool = True
    """Whether the least loss along the epoch's direction is evidently less than the loss without the
    epoch."""


class LineSearch:
    """Search along one epoch's direction. It requests losses of rows, in order, until the result is certain
    enough."""

    def __init__(self, rows: int, *, wary: bool = True, scale: float = 1.0) -> None:
        """`rows`: maximum number of rows, except where SURE_ROWS allows more. `wary`: whether an epoch that
        moves losses far is taken for noise unless it evidently helps. `scale`: factor on AMOUNTS, the
        multiples of the step at which losses are measured."""
        self._most, self._sure, self._scale = rows, max(rows, SURE_ROWS), scale
        self._wary = wary
        self._losses: NDArray[np.float64] = np.zeros((0, len(AMOUNTS)))

    @property
    def amounts(self) -> tuple[float, ...]:
        """Multiples of the epoch's step at which losses are wanted."""
        return tuple(self._scale * amount for amount in AMOUNTS)

    @property
    def wanted(self) -> range:
        """Indices of the rows whose losses are wanted next; empty once the search is over."""
        known = len(self._losses)
        found = self._found()
        bad = known >= LEAST_ROWS and found.factor < 1.0 and not found.useful  # harm, or noise
        most = self._sure if bad else self._most
        if known >= most or (known >= LEAST_ROWS and self._is_clear(bad)):
            return range(known, known)
        return range(known, min(most, max(FIRST_ROWS, 2 * known)))

    def take(self, losses: NDArray[np.float64]) -> None:
        """Take in the losses of the wanted rows, (rows, len(AMOUNTS)). If there are fewer rows than were
        wanted, no more rows exist."""
        if len(losses) < len(self.wanted):
            self._most = self._sure = len(self._losses) + len(losses)
        self._losses = np.concatenate([self._losses, losses])

    @property
    def found(self) -> SearchResult:
        """Result from the rows measured so far."""
        found = self._found()
        return found._replace(factor=self._scale * found.factor, best=self._scale * found.best)

    def _found(self) -> SearchResult:
        """Return the result as if `scale` were 1."""
        rows = len(self._losses)
        if rows < LEAST_ROWS:
            return SearchResult(1.0, 1.0, rows, useful=False)
        best = self._best()
        useful = self._gain(best, _START) > EVIDENCE
        half = SearchResult(SHARE * AMOUNTS[best], AMOUNTS[best], rows, useful)
        far = self._wary and self._move() > LARGE_MOVE
        if best < _AS_IT_IS and (self._gain(best, _AS_IT_IS) > EVIDENCE or (far and useful)):
            return half if best != _START or self._does_harm() else half._replace(factor=SHARE)
        if not useful and (far or (self._wary and best < _AS_IT_IS and self._move() > DOUBTFUL_MOVE)):
            return half._replace(factor=SHARE)
        if best > _TWICE:
            reach = self._reach()
            return SearchResult(max(1.0, CAUTION * AMOUNTS[reach]), AMOUNTS[reach], rows, useful)
        at_its_limit = _START < best <= _AS_IT_IS and self._gain(best, _TWICE) > SUSPICION
        return half if at_its_limit else half._replace(factor=1.0)

    def _reach(self) -> int:
        """Return the index of the largest c, from c = 1 on, up to which each c is evidently better than the c
        before."""
        reach = _AS_IT_IS
        while reach + 1 < len(AMOUNTS) and self._gain(reach + 1, reach) > EVIDENCE:
            reach += 1
        return reach

    def _does_harm(self) -> bool:
        """Return whether the loss is evidently less without the epoch."""
        needed = EVIDENCE if len(self._losses) >= SURE_ROWS else SURE
        return self._gain(_START, _AS_IT_IS) > needed

    def _is_clear(self, bad: bool) -> bool:
        best = self._best()
        if bad:
            return best == _START and self._does_harm() and self._gain(_START, _LEAST) > EVIDENCE
        doubted = {_TWICE: _START, _AS_IT_IS: _TWICE}.get(best, _AS_IT_IS)
        return self._gain(best, doubted) > EVIDENCE

    def _best(self) -> int:
        """Return the index of the c with the least mean loss; the index of c = 0 if no mean is finite."""
        means = self._losses.mean(0)
        return int(np.where(np.isfinite(means), means, math.inf).argmin())

    def _gain(self, place: int, over: int) -> float:
        """Return by how many standard errors, paired by rows, the c at index `place` is better than the c at
        index `over`; infinity if losses at `over` are not finite."""
        if place == over:
            return 0.0
        before, after = self._losses[:, over], self._losses[:, place]
        if not np.isfinite(before).all():
            return math.inf  # also if no loss is finite: the epoch is then worthless
        gains = before - after
        error = float(gains.std(ddof=1)) / math.sqrt(len(gains))
        mean = float(gains.mean())
        return mean / error if error else math.copysign(math.inf, mean) if mean else 0.0

    def _move(self) -> float:
        """Return the root mean square change of the rows' losses by the epoch at c = 1."""
        moves = self._losses[:, _AS_IT_IS] - self._losses[:, _START]
        return math.sqrt(float((moves**2).mean()))


def next_rate(rate: int, found: SearchResult, *, young: bool) -> int:
    """Return the next rate that follows from the `rate` of the searched epoch and the result. Both rates have
    the same unit."""
    least = 1 / (YOUNG_STEP if young else LATER_STEP)
    return min(max(1, round(rate * max(found.factor, least))), RATE_ONE - 1)
