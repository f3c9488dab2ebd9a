"""Judgements of seals; rates, units and factors of a first-order run, as its seals sign them (SPEC U11).

    rate            that of a round, shared by those of its updates that count; a body's falls linearly with
                    the budget
    factor          1; less of a round in which more updates count than its rate was meant for
    unit            half of the limit is the usual norm of what members make
    limit           that of the manifest

What members make before they have heard of each other's is one step, of a gradient of more rows, and may go
no further than one update alone: so a round of four nodes and one of forty are the same step. Updates that
each went as far as one may made SmolLM2 diverge where they were six late (docs/research-log.md).

Units follow what the gradient becomes, down as far as it falls and up by 2 a round, as longer ones are cut.
What is shorter than an eighth of the limit moves nothing (SPEC U11), and takes no budget: rounds of such
updates are closed all the same, so that their unit comes down to them, by FALL at most. After IDLE_ROUNDS in
a row there is nothing left to learn, and the guard ends the run. Which norm is usual those say of whom
something has counted, by how much that was: work that is too short to count gives nobody a word. So it takes
half of what counts to move a unit, and then it cuts honest updates to a part of their length, for some
rounds.

Whoever judges a seal is injected. The judge that ships counts everything, at the manifest's rate; what is
here, a line search or a guard take its place, and nothing else has to change.

Everything is a function of the decisions and of what closes have named. Knows no time, and nobody who
measures.
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
"""Most that one seal recounts, 40 kB; the rest is for the next one."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """A judge's word on the oldest epoch without a seal."""

    factor: int = FACTOR_ONE
    """Units of 2^-12; what is recounted gets it, too."""
    skipped: frozenset[int] = frozenset()
    """Numbers of feeds that are not to count, as far as the epoch has moved them."""
    recounted: frozenset[Recount] = frozenset()
    """Named steps that are to count after all, as far as seals have skipped them."""
    rates: tuple[RateFrom, ...] = ()
    """Rates of coming epochs, those above the open one, in order."""


Judge = Callable[[RunState], Judgement]
"""Judges what the close of epoch `run_state.sealed` has named, once all of it is here and may be sealed."""


def at_rate(rate: int) -> Judge:
    """Return the judge that counts everything, at this rate in units of 2^-32."""

    def judge(run_state: RunState) -> Judgement:
        coming = run_state.open_epoch + 1
        if coming >= MAX_EPOCHS or rate == run_state.rate(coming):
            return Judgement()
        return Judgement(rates=(RateFrom(coming, rate),))

    return judge


LEAST_RATE = 1 / 32
"""Share of the first rate below which it does not fall: a run that is judged late, or whose budget is raised,
goes on slowly instead of not at all."""

FALL = 8
"""Most by which a unit falls in a round: work that counts is down to a quarter of the usual norm, and of what
does not nobody says that it is one gradient's and not an accident's."""

IDLE_ROUNDS = 4
"""Rounds in a row of updates that move nothing after which there is nothing left to learn: a label has its
unit before the round before it is sealed, so that units have come down by FALL twice."""


IDLE_DRAWN = 16
"""The same of answers that are drawn: where one of 200 is right, two in five of the rounds of six updates
have none."""


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps of a first-order run."""

    rate: int
    """The first rate of an update, in units of 2^-32: the manifest's."""
    updates: int
    """Updates of a round that has no more than it needs: the manifest's epoch_updates."""
    whole: bool
    """Whether an update is of all rows of its node, as a head's is: its noise does not ask for a rate that
    falls."""
    drawn: bool = False
    """Whether updates are of answers that are drawn, as by rewards: that of a mini-batch all of whose answers
    are as good is 0, and says nothing of how long others are."""

    @property
    def idle_rounds(self) -> int:
        """Rounds in a row of updates that move nothing after which there is nothing left to learn."""
        return IDLE_DRAWN if self.drawn else IDLE_ROUNDS

    def judged(
        self, run_state: RunState, judgement: Judgement, norms: Mapping[int, float], counts: int
    ) -> Judgement:
        """Return a judgement of the oldest epoch without a seal, with its factor and with rate and unit of
        the labels that come. `norms`: those of the members whose work its close has named, and its seal does
        not skip, as `feeds.HeldFeeds.norms`; `counts`: how many of these updates move anything."""
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
        """Return the factor with which a round goes no further than the first one may."""
        made = counts * run_state.rate(run_state.sealed)
        meant = self.updates * self.rate
        return FACTOR_ONE if made <= meant else max(1, FACTOR_ONE * meant // made)

    def _rate(self, run_state: RunState, counts: int) -> int:
        before = (sum(members.values()) for members in counted_rounds(run_state))
        usual = max(self.updates, int(median([counts, *islice(before, USUAL_OF - 1)])))
        spent = 0.0 if self.whole else (run_state.promised + usual) / run_state.budget  # once it is opened
        return max(1, round(self.rate * self.updates / usual * max(LEAST_RATE, 1 - spent)))

    def _unit(self, run_state: RunState, norms: Mapping[int, float]) -> int:
        """Return the unit of the labels that come; that of now where too few are there to say."""
        known, usual = run_state.rate_from(run_state.open_epoch + 1), usual_norm(run_state, norms)
        if usual is None or (self.drawn and not usual):
            return known.unit
        least = run_state.rate_from(run_state.sealed).unit / FALL
        most = UNIT_ONE * 2**62 // (self.rate * known.limit * max(1, run_state.budget))
        return max(1, min(round(max(least, 2 * usual / known.limit)), most, (1 << 32) - 1))


def usual_norm(run_state: RunState, norms: Mapping[int, float]) -> float | None:
    """Return the usual norm of an update, by those who tell it; None where most of them are not there."""
    telling = next(counted_rounds(run_state), None) or dict.fromkeys(norms, 1)
    told = sorted((norm, telling[member]) for member, norm in norms.items() if member in telling)
    half = sum(telling.values()) / 2
    if not told or sum(weight for _, weight in told) < half:
        return None
    half, below = sum(weight for _, weight in told) / 2, 0
    return next(norm for norm, weight in told if (below := below + weight) >= half)


def counted_rounds(run_state: RunState) -> Iterator[Counter[int]]:
    """Yield how many updates count of each member in sealed rounds of which any do, the last one first."""
    for epoch in reversed(range(run_state.sealed)):
        found = Counter[int]()
        for number in run_state.moved(epoch):
            found[number // INCARNATIONS] += run_state.counts(number, epoch)
        if +found:
            yield +found


def idle_rounds(run_state: RunState) -> int:
    """Return how many of the last sealed rounds, in a row, have named updates none of which moves; 0 in a
    zeroth-order run, where a scalar of 0 says nothing of what is left to learn."""
    if not run_state.rate_from(0).limit:
        return 0
    idle = 0
    for epoch in reversed(range(run_state.sealed)):
        if run_state.closed_updates(epoch) or not run_state.moved(epoch):
            break
        idle += 1
    return idle


def may_be_idle(run_state: RunState, members: set[int], most: int) -> bool:
    """Return whether a round may be closed that names updates of these members, none of which moves, where
    the run ends after so many."""
    telling = next(counted_rounds(run_state), Counter[int]())
    there = sum(weight for member, weight in telling.items() if member in members)
    return 2 * there >= sum(telling.values()) and idle_rounds(run_state) < most
