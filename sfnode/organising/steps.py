"""Judgements of seals; rates, units and factors of a first-order run, as its seals sign them (SPEC U11).

    rate            the rate of a round, divided by the usual number of updates that count; falls as the
                    budget is used up, except for heads
    factor          1; less if more updates of a round count than its rate was meant for
    unit            set so that the usual norm of members' updates is half of the limit
    limit           the manifest's `norm_limit`

Updates that members make before they have heard of each other's updates are together one step, along a
gradient of more rows. The step may go no further than one update alone, so a round of four nodes and a round
of forty go equally far. In a run in which each update went as far as a step may, SmolLM2 diverged when each
gradient was taken six updates before it was applied (docs/research-log.md).

Units follow the norm of the gradient. They fall as far as the norm does. They at most double in a round:
updates longer than the limit are cut to the limit, which is twice the usual norm. An update shorter than an
eighth of the limit changes nothing (SPEC U11), and uses no budget. Rounds of such updates are closed
nevertheless, so that the unit falls, by a factor of FALL at most. After IDLE_ROUNDS such rounds in a row
nothing is left to learn, and the guard ends the run. The usual norm is the median over members whose work has
counted, weighted by how much of it counted. Work that is too short to count has no weight. So only members
who have made half of the counted work can change a unit. If they abuse this, honest updates are cut to a part
of their length for some rounds.

The judge of a seal is injected. The shipped judge counts everything, at the manifest's rate. The schedule of
this module, a line search or a guard may replace its judgement.

Everything is a function of the decisions and of the updates that closes have listed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from statistics import median

from sfprotocol.decisions import FACTOR_ONE, INCARNATIONS, UNIT_ONE, RateFrom, Recount
from sfprotocol.quotas import USUAL_OF
from sfprotocol.run_state import MAX_EPOCHS, RunState

RECOUNTS_PER_SEAL = 4096
"""Maximum number of recounts in one seal; they take 40 kB. Later seals have the other recounts."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """A judge's decisions on the oldest epoch without a seal."""

    factor: int = FACTOR_ONE
    """Factor in units of 2^-12, for the epoch's work and recounted work."""
    skipped: frozenset[int] = frozenset()
    """Numbers of feeds whose work in this epoch does not count."""
    recounted: frozenset[Recount] = frozenset()
    """Work that counts after all, as far as earlier seals have skipped it."""
    rates: tuple[RateFrom, ...] = ()
    """Rates of epochs after the open one, in order."""


Judge = Callable[[RunState], Judgement]
"""Function that judges the updates in the close of epoch `run_state.sealed`, once the node holds all of
them."""


def at_rate(rate: int) -> Judge:
    """Return a judge that counts everything, at `rate` in units of 2^-32."""

    def judge(run_state: RunState) -> Judgement:
        coming = run_state.open_epoch + 1
        if coming >= MAX_EPOCHS or rate == run_state.rate(coming):
            return Judgement()
        return Judgement(rates=(RateFrom(coming, rate),))

    return judge


LEAST_RATE = 1 / 32
"""Minimum rate, as a share of the first rate. With this minimum, a run whose seals come late or whose budget
is raised continues slowly instead of stopping."""

FALL = 8
"""Maximum divisor of a unit from one round to the next. Updates with less than a quarter of the usual norm
change nothing. A round of such updates may be an accident, and says little about the usual gradient."""

IDLE_ROUNDS = 4
"""Number of consecutive rounds without an update that changes the weights after which nothing is taken to be
left to learn. The unit of a round is fixed before the previous round is sealed, so units have fallen twice
after these rounds, each time by a factor of FALL."""


IDLE_DRAWN = 16
"""IDLE_ROUNDS for a run whose answers are drawn, as in a reward run. If one answer of 200 is right, two of
five rounds with six updates of 32 answers have no right answer."""


@dataclass(frozen=True, slots=True)
class Steps:
    """Schedule of a first-order run's steps."""

    rate: int
    """Rate of an update in the first round, from the manifest, in units of 2^-32."""
    updates: int
    """Number of updates of a usual round: the manifest's epoch_updates."""
    whole: bool
    """Whether an update covers all rows of its node, as the updates of a head do. Such updates have little
    noise, and need no falling rate."""
    drawn: bool = False
    """Whether updates follow from drawn answers, as with rewards. The update of a mini-batch whose answers
    are all equally good is 0, which says nothing about the norm of other updates."""

    @property
    def idle_rounds(self) -> int:
        """Number of consecutive rounds without an update that changes the weights after which nothing is
        taken to be left to learn."""
        return IDLE_DRAWN if self.drawn else IDLE_ROUNDS

    def judged(
        self, run_state: RunState, judgement: Judgement, norms: Mapping[int, float], counts: int
    ) -> Judgement:
        """Return the judgement on the oldest epoch without a seal, with its factor, and with the rate and the
        unit that apply from the coming epoch on.

        `norms`: norms of the updates of those members whose work the epoch's close lists and its seal does
        not skip (`feeds.HeldFeeds.norms`). `counts`: number of these updates that change the weights.
        """
        coming = run_state.open_epoch + 1
        judgement = replace(
            judgement, factor=min(judgement.factor, self._factor(run_state, counts)), rates=()
        )
        if coming >= MAX_EPOCHS:
            return judgement
        known = run_state.rate_from(coming)
        rate, unit = self._rate(run_state, counts), self._unit(run_state, norms)
        said = known._replace(epoch=coming, rate=rate, unit=unit)
        return judgement if said[1:] == known[1:] else replace(judgement, rates=(said,))

    def _factor(self, run_state: RunState, counts: int) -> int:
        """Return the factor with which the epoch goes no further than a usual round at the first rate."""
        made = counts * run_state.rate(run_state.sealed)
        meant = self.updates * self.rate
        return FACTOR_ONE if made <= meant else max(1, FACTOR_ONE * meant // made)

    def _rate(self, run_state: RunState, counts: int) -> int:
        before = (sum(members.values()) for members in counted_rounds(run_state))
        usual = max(self.updates, int(median([counts, *islice(before, USUAL_OF - 1)])))
        spent = 0.0 if self.whole else (run_state.promised + usual) / run_state.budget  # when it opens
        return max(1, round(self.rate * self.updates / usual * max(LEAST_RATE, 1 - spent)))

    def _unit(self, run_state: RunState, norms: Mapping[int, float]) -> int:
        """Return the unit of the coming labels; the present unit if there are too few members to find the
        usual norm."""
        known, usual = run_state.rate_from(run_state.open_epoch + 1), usual_norm(run_state, norms)
        if usual is None or (self.drawn and not usual):
            return known.unit
        least = run_state.rate_from(run_state.sealed).unit / FALL
        most = UNIT_ONE * 2**62 // (self.rate * known.limit * max(1, run_state.budget))
        return max(1, min(round(max(least, 2 * usual / known.limit)), most, (1 << 32) - 1))


def usual_norm(run_state: RunState, norms: Mapping[int, float]) -> float | None:
    """Return the usual norm of an update: the median of `norms`, weighted with how much of each member's work
    counted in the last round in which any work did. None if `norms` lacks the members who made more than half
    of that work."""
    telling = next(counted_rounds(run_state), None) or dict.fromkeys(norms, 1)
    told = sorted((norm, telling[member]) for member, norm in norms.items() if member in telling)
    half = sum(telling.values()) / 2
    if not told or sum(weight for _, weight in told) < half:
        return None
    half, below = sum(weight for _, weight in told) / 2, 0
    return next(norm for norm, weight in told if (below := below + weight) >= half)


def counted_rounds(run_state: RunState) -> Iterator[Counter[int]]:
    """Yield the numbers of updates that count, keyed by member number, for each sealed round with such
    updates. The last round comes first."""
    for epoch in reversed(range(run_state.sealed)):
        found = Counter[int]()
        for number in run_state.moved(epoch):
            found[number // INCARNATIONS] += run_state.counts(number, epoch)
        if +found:
            yield +found


def idle_rounds(run_state: RunState) -> int:
    """Return the number of consecutive latest sealed rounds in which no update changes the weights. For a
    zeroth-order run return 0, as a scalar of 0 says nothing about how much is left to learn."""
    if not run_state.rate_from(0).limit:
        return 0
    idle = 0
    for epoch in reversed(range(run_state.sealed)):
        if run_state.closed_updates(epoch) or not run_state.moved(epoch):
            break
        idle += 1
    return idle


def may_be_idle(run_state: RunState, members: set[int], most: int) -> bool:
    """Return whether a round of these members may be closed although its updates change nothing. These
    members must have made half of the work in the last round that counted. Fewer than `most` rounds that
    change nothing may precede directly."""
    telling = next(counted_rounds(run_state), Counter[int]())
    there = sum(weight for member, weight in telling.items() if member in members)
    return 2 * there >= sum(telling.values()) and idle_rounds(run_state) < most
