"""The line search at a seal: how far to go along an epoch's direction, and at which rate to continue.

With W the weights by the seals so far and D the sum that the epoch adds to them at factor 1, the loss of
held-out rows is measured at W + c D. Half of the best c is taken, because a full step along a noisy direction
overshoots in all others, and the next epoch comes back. (The accuracy of a run that had reached 0.98 fell to
0.85 on the way.) Where an epoch could have gone further, less than half is taken. The best step for
the present loss is short-sighted (Wu et al. 2018): noise stays in the weights, and later epochs bear less of
it. This module decides with numbers; it knows no model.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sfprotocol.decisions import RATE_ONE

AMOUNTS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Values of c at which losses are measured."""

SHARE = 0.5
"""Share of the best c that becomes the factor where the best c is less than 1."""

CAUTION = 1 / 4
"""Share of the best c that becomes the factor where the epoch could have gone further. Runs of the built-in
model at constant rates of 7.5e-4 and 1e-3 were destroyed at losses of 0.16 and 0.18. Until shortly before,
twice each epoch's step would have been better (docs/research-log.md)."""

FIRST_ROWS = 16
"""Rows with which a search begins. They suffice where the rate is wrong by 10 or more, and cost as much as 14
updates with mini-batches of 4. With fewer the standard error is itself a guess."""

SURE_ROWS = 128
"""Number of rows to which a search continues if it takes an epoch for harm or noise and is not sure, however
few rows it was given. Work that has cost ten times as much is at stake. With 16 rows three of 35 runs lost an
epoch that did help, and up to 18 % of their work (docs/research-log.md)."""

LEAST_ROWS = 8
"""Minimum number of rows for any conclusion."""

EVIDENCE = 2.0
"""Number of standard errors by which the best c must beat c = 1 before anything changes. With less evidence
factors oscillate once the easy part is learnt: of 50 factors 18 were 0 and 19 were 4."""

SURE = 3.0
"""Number of standard errors by which an epoch must do harm before nothing of it counts. With SURE_ROWS rows
or more EVIDENCE suffices. Without evidence of harm the rate is lowered, but the work counts: it is
everybody's."""

SUSPICION = 1.0
"""Number of standard errors by which a best c above 0 and up to 1 must beat c = 2 to show that the rate is at
its limit. Where the rate is so small that noise decides, losses are straight lines, so the best c is the
first or the last."""

LARGE_MOVE = 0.1
"""Root mean square change of the rows' losses, in nats, above which an epoch is taken for noise at too large
a rate, unless the mean loss evidently falls. Half of the epoch then counts, and the rate is halved.

At good rates epochs of the built-in run move losses by 0.02 to 0.06. Where nothing more is learnt they move
them by 0.2 and more. With bases of gradients good epochs move them as far, and their rate is known
(docs/research-log.md). A real model is moved as far while it learns. Of one such epoch 128 rows showed
nothing evident, while 32 others said +0.019 nats. A destroyed model is evident, as losses are convex in the
outputs. If an epoch does help, and does best on the way, half of that is taken without further evidence: all
of it would carry noise into the weights that no later epoch removes.
"""

DOUBTFUL_MOVE = 0.05
"""LARGE_MOVE for an epoch whose least loss was found before its end."""

YOUNG_STEP, LATER_STEP = 4.0, 2.0
"""Maximum divisor of a rate after one search, while the run is young and later. A rate is never more than
doubled. From a first rate that is 100 times too large it takes four searches. Later nothing changes so fast
but by chance."""

LATE_SCALE = 1 / 16
"""Factor on AMOUNTS for searches along recounted work. The rates at which it was made may be many times the
present ones, and its weights are long gone. It is also the factor where nothing better is evident."""

_START, _LEAST, _AS_IT_IS, _TWICE = (AMOUNTS.index(amount) for amount in (0.0, 0.25, 1.0, 2.0))


class SearchResult(NamedTuple):
    """Result of a search."""

    factor: float
    """Factor of the epoch; 1 where nothing better was evident."""
    best: float
    """Value of c with the least loss."""
    rows: int
    """Number of rows that were measured, at every c."""
    useful: bool = True
    """Whether the loss somewhere along the epoch is evidently less than at its beginning."""


class LineSearch:
    """Search along one epoch's direction. It asks for losses of rows, in order, until it knows enough."""

    def __init__(self, rows: int, *, wary: bool = True, scale: float = 1.0) -> None:
        """`rows`: maximum number of rows, but see SURE_ROWS. `wary`: whether an epoch that moves losses far
        is taken for noise unless it evidently helps. `scale` times AMOUNTS are searched."""
        self._most, self._sure, self._scale = rows, max(rows, SURE_ROWS), scale
        self._wary = wary
        self._losses: NDArray[np.float64] = np.zeros((0, len(AMOUNTS)))

    @property
    def amounts(self) -> tuple[float, ...]:
        """Values of c at which losses are wanted."""
        return tuple(self._scale * amount for amount in AMOUNTS)

    @property
    def wanted(self) -> range:
        """Numbers of the rows whose losses are wanted next; empty once the search is over."""
        known = len(self._losses)
        found = self._found()
        bad = known >= LEAST_ROWS and found.factor < 1.0 and not found.useful  # harm, or noise
        most = self._sure if bad else self._most
        if known >= most or (known >= LEAST_ROWS and self._is_clear(bad)):
            return range(known, known)
        return range(known, min(most, max(FIRST_ROWS, 2 * known)))

    def take(self, losses: NDArray[np.float64]) -> None:
        """Take the losses of the wanted rows, (rows, AMOUNTS); of fewer if there are no more."""
        if len(losses) < len(self.wanted):
            self._most = self._sure = len(self._losses) + len(losses)
        self._losses = np.concatenate([self._losses, losses])

    @property
    def found(self) -> SearchResult:
        """Result by the rows so far."""
        found = self._found()
        return found._replace(factor=self._scale * found.factor, best=self._scale * found.best)

    def _found(self) -> SearchResult:
        """Return the result for a scale of 1."""
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
        """Return the index of the largest c up to which each c evidently does better than the one before."""
        reach = _AS_IT_IS
        while reach + 1 < len(AMOUNTS) and self._gain(reach + 1, reach) > EVIDENCE:
            reach += 1
        return reach

    def _does_harm(self) -> bool:
        """Return whether the loss is evidently less without the epoch, on enough rows."""
        needed = EVIDENCE if len(self._losses) >= SURE_ROWS else SURE
        return self._gain(_START, _AS_IT_IS) > needed

    def _is_clear(self, bad: bool) -> bool:
        best = self._best()
        if bad:
            return best == _START and self._does_harm() and self._gain(_START, _LEAST) > EVIDENCE
        doubted = {_TWICE: _START, _AS_IT_IS: _TWICE}.get(best, _AS_IT_IS)
        return self._gain(best, doubted) > EVIDENCE

    def _best(self) -> int:
        """Return the index of the c with the least mean loss; the index of 0 where no mean is finite."""
        means = self._losses.mean(0)
        return int(np.where(np.isfinite(means), means, math.inf).argmin())

    def _gain(self, place: int, over: int) -> float:
        """Return by how many standard errors one c does better than another, row by row; infinity if only it
        gives numbers."""
        if place == over:
            return 0.0
        before, after = self._losses[:, over], self._losses[:, place]
        if not np.isfinite(before).all():
            return math.inf  # also where none is finite: then the epoch is worth nothing
        gains = before - after
        error = float(gains.std(ddof=1)) / math.sqrt(len(gains))
        mean = float(gains.mean())
        return mean / error if error else math.copysign(math.inf, mean) if mean else 0.0

    def _move(self) -> float:
        """Return by how much the epoch moves the losses of rows, root mean square."""
        moves = self._losses[:, _AS_IT_IS] - self._losses[:, _START]
        return math.sqrt(float((moves**2).mean()))


def next_rate(rate: int, found: SearchResult, *, young: bool) -> int:
    """Return the rate that follows from the searched epoch's rate, in the same units."""
    least = 1 / (YOUNG_STEP if young else LATER_STEP)
    return min(max(1, round(rate * max(found.factor, least))), RATE_ONE - 1)
