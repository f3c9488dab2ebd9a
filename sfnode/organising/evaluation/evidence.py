"""Evidence about members, by what their work has brought in each epoch as it was measured before the seal.

The measurement is the engine's (`sfnode.engine.line`), from one gradient on validation rows whatever the
number of origins. Its figures stand in the control feed as Worth decisions (SPEC O16), and the evidence here
is a function of these alone: whoever has the feed knows for whom it speaks. Knows no time and nobody who
measures.

Theory of operation. The score z of n updates adds up to a random walk with steps of variance 1 / n if their
scalars are useless (random signs), however large they are, and drifts by m sqrt(n) if they were measured.
Updates that were measured on one mini-batch share what it is unlike others, and n counts as many as would say
as much apart (`alike`). m is estimated from the swarm, by the median over its members; of that the test takes
SHARE for a useful member, so that somebody with rows of another kind, whose scalars agree with the validation
rows less, is not taken for useless. Two sums over epochs follow, with d = SHARE * m, and a comparison:

    for       the log-likelihood ratio of `drifts by d` against `does not`: sum of d sqrt(n) z - d^2 n / 2.
              No more than MOST_EVIDENCE, so that who turns is found out as soon as who comes. Of new work one
              epoch says no more than that, and twice as much against it (LEAST_BY_EPOCH). Work is skipped
              while the sum is below TRUSTED_FROM, where it begins (further down where hardly any evidence
              comes: SOON), and counts after all (is recounted) once
              it is above RECOUNTED_FROM: it rises by what was skipped, too, so that nobody has hidden bad
              work behind good. To wait costs little, and what has counted stays. Just before a run ends all
              counts that waits, of whoever is above RECOUNTED_AT_LAST, with a factor of its own.
    agreement what the member's drift is likely to be, in terms of the usual one, as members differ: how far
              its scores lie from the median member's in the same epochs, drawn towards the mean by as much as
              chance alone makes members differ (empirical Bayes; DerSimonian and Laird 1986). Work is skipped
              while that is below WORTHWHILE, too. The sum above asks whether scores of one member alone tell
              it from a useless one, which takes hundreds of updates where they say little; who teaches a
              wrong label differs from the others long before.
    against   the wealth that bets against `does no harm`, a drift that is not below 0: the product of
              e^(-d sqrt(n) z - d^2 n / 2), spread over all beginnings. By Ville's inequality
              it exceeds 1 / FALSE_REVOCATIONS with that probability at most, however long the run is. On
              average it only grows where the drift is below -d / 2: useless work is skipped, never revoked.

In a first-order run an update's cosine with the slopes says what hundreds of scalars say, and there are few
of them: a score is of SCORED_ROUNDS at once, and tells by itself, beside that of the median member. It is the
log-likelihood ratio of `as good as others` against `of no use`, with s the usual score, LEAST_SCORE at least,
and z that of a member: s z - s^2 / 2. Work is skipped while that is below LIKELY. Where it has been below
twice that, it has to come as far above LIKELY, or above TRUSTED_FROM: later scores say less, and who flips
signs would count again for that. Nothing is added up, and nobody revoked: what a round can do at worst is
bounded by limits, and whoever is skipped does nothing.

Scores do not depend on the size of scalars. What weighs far more in one epoch than the updates of others
(OUTLIER) is skipped by the seal of that epoch and never recounted; who makes such work again and again is
skipped (OFTEN), and what is EXTREME takes evidence to make good. Less far, it is its size that tells
(`feeds`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from statistics import median
from typing import NamedTuple

from sfnode.manifest.training import Training
from sfnode.schema.evaluation import StepShare
from sfnode.schema.node_state import Uncounted
from sfprotocol.decisions import INCARNATIONS, Admit, Decision, Part, Recount, Worth
from sfprotocol.messages import Feed
from sfprotocol.run_state import RunState
from sfprotocol.weighing import WORTH_ONE

SCORE_ONE = 1000
"""A standard deviation: scores are counted in units of 10^-3."""

HOSTILE = 0.3
"""Share of members that may be hostile. The median is one of honest members' as long as it is below a
half."""

TRUSTED_FROM = 0.0
"""Evidence from which on work counts at once: that of somebody of whom nothing was measured yet. With log 3/7
asked for, where of as many members as may be hostile one is as likely useful as not, twice as much of useless
work counted (docs/research-log.md)."""

DOUBTED = -2.0
"""Score of a member's work in an epoch below which it is skipped along a linear head, until it is measured
again. There scores are no random walk: thousands of updates are measured on one member's few hundred rows,
and each epoch's on the same rows for validation. What these rows happen to disagree about goes on from epoch
to epoch, and adds up to any evidence: one honest member of four was skipped in all of a run on SST-2. So
nothing is added up, and nobody revoked; a score is that of the worth over the rows (SPEC O16)."""

SCORED_ROUNDS = 16
"""Rounds of which a score is in a first-order run: about all that it has. Of one round's updates it says
little: added up they say by their direction what their noise hides in each. With 8, three who flip signs cost
seven nodes 5 % of their gain, and with 16 it was 3 (benchmarks/first_order.py)."""

LEAST_SCORE = 0.7
"""Score of the usual member that is assumed at least in a first-order run: where hostile members pull the
median down, or nothing is left to learn, who drifts the other way is told from that. With 0, three who flip
signs cost 9 % of the gain, and with 1.5 a fifth more honest work was skipped."""

LIKELY = math.log(HOSTILE / (1 - HOSTILE))
"""Evidence from which on work goes on to count in a first-order run, where it is not added up but measured
anew: as many members may be hostile."""

RECOUNTED_FROM = 1.0
"""Evidence from which on work counts that was skipped, if it was made at no larger rate than that of now: of
members of all kinds it has spoilt runs otherwise (docs/research-log.md). Of useless members a third comes
back to TRUSTED_FROM at some time."""

GAIN_BY_COST = 3.0
"""Gain of a useful update, in terms of what a useless one costs: near half of the best step, which line
searches take, three quarters of its slope and a quarter of it."""

RECOUNTED_AT_LAST = math.log(HOSTILE / (1 - HOSTILE) / GAIN_BY_COST)
"""The same for what waits just before a run ends: with as many hostile members as there may be, work of
members with that evidence gains as much as it costs, if the others are useless."""

WORTHWHILE = 1 / (1 + GAIN_BY_COST)
"""Share of the usual drift from which on an update gains more than it costs."""

SOON = 1 / 8
"""Evidence for a useful member that one epoch brings on average, and more, with which work waits as soon as
it is below TRUSTED_FROM. The less there is the nearer does the bound come to RECOUNTED_AT_LAST, from which on
work gains as much as it costs: where scores say hardly anything, who waits would wait for good."""

MOST_EVIDENCE = 2.0
"""Most evidence that is kept for a member. A useless one comes to it in one of e^2 = 7 cases; an honest one
with the usual drift falls from there below TRUSTED_FROM in one of 55."""

LEAST_BY_EPOCH = -2 * MOST_EVIDENCE
"""Evidence that one epoch of a feed takes from new work at most; it brings MOST_EVIDENCE at most, as flipped
work takes twice as much as good work brings. Updates of an epoch were measured at the same weights, and in
the middle of the same step: where others have spoilt these, hundreds are wrong at once, and that is one
event. Added up, one such epoch took 30, and its author waited until the end, as later epochs bring less."""

SHARE = 2 / 3
"""Share of the usual drift that is asked for. On average evidence is for whoever has half of that, a third of
the usual drift; with all of it asked for, every second honest member would be skipped at some time, and with
half of it half as much again of useless work would count."""

FALSE_REVOCATIONS = 1e-4
"""Share of members who do no harm that are revoked by accident, in the whole of a run."""

LEAST_MEMBERS = 3
"""Measured members without which nothing is concluded of those whom somebody vouches for, unless their work
is skipped already: of two nobody can say which one is usual. Of strangers it is still told by those
(`references`)."""

MEMORY = 0.95
"""Weight of what was measured before, for each measured epoch of a member, in its drift, and in how often it
was an outlier: the drift of all falls as a run goes on. With 0.98, where it had fallen from 0.7 to 0.1, three
times as many epochs of honest newcomers were skipped (docs/research-log.md)."""

LONG_MEMORY = 0.98
"""The same where members are compared with each other in the same epochs, which does not fall. With 0.95 a
seventh less of flipped work was skipped."""

OUTLIER = 16.0
"""Times as much as the median member's updates that those of an outlier weigh: without a measured limit a
scalar may be hundreds of times as large as they usually are. With one, which is 8 times their root mean
square before the run and two to five times less of it later, hardly anybody gets there (three who scaled on
AG News did, one to nine times in a run of 25 epochs), and evidence has to do.
Scalars of honest nodes have heavy tails, so that with 8 two in a hundred updates of theirs were an outlier's,
and lost for good."""

EXTREME = 128.0
"""Times as much with which it is no measurement, whatever the rows: that takes as much evidence again to make
good. Of 52 honest outliers of 60,000 updates without a limit the largest weighed 125 times as much."""

OFTEN, NEWCOMER = 1 / 3, 3.0
"""Share of a member's epochs from which on scalars that are too large are no accident, and the epochs without
them that are put to its credit as it comes. Who blows scalars up by 30 is an outlier in six epochs of ten; of
16 honest members without a limit, once the others had nothing left to learn, one was in one of seven, and
nobody else in one of twenty."""

FAR = 2.0
"""Usual drifts, and standard errors, by which members are taken to differ from the usual one at most: for a
few who lie further off, what is chance in the others would pass for their own."""

MEDIAN_ERROR = 1.25
"""Standard error of a median beside that of a mean of normal numbers: the root of pi / 2."""

SQUARE, SQUARE_ERROR = 0.455, 1.06
"""Median of the square of a standard normal number, and its standard error with one of them: half of the
reciprocal of the density there, which is 0.471."""

PARTS_PER_WORTH = 7_000
"""Parts of one decision: at 28 bytes each at most they fit MAX_DECISION."""


DISPERSED = 5.0
"""Variance of an honest score in a first-order run, in terms of what chance makes of a random vector: cosines
of mini-batches of 8 with the validation gradient vary by 0.12, and 0.055 is chance in 336 cells. Gradients
and their noise lie along the same few directions."""

UNLIKE = 0.1
"""Variance of the cosine of a mini-batch's gradient and that of validation rows, from one mini-batch to the
next: 0.31^2 for 32 answers of SmolLM2 as it is (docs/research-log.md). It grows as a run learns."""


def alike(training: Training) -> float:
    """Return how many updates say as much about their author as one that is measured alone.

    Those of a group have one mini-batch, and what it is unlike others shows wherever two of them move the
    same entry of a core, of which the chance is 1 / rank^2 in each layer.
    """
    if training.is_first_order:
        return DISPERSED
    return 1 + UNLIKE * (training.batch_updates - 1) / training.rank**2


def parts_of(shares: Mapping[Feed, StepShare], run_state: RunState) -> tuple[Part, ...]:
    """Return what was measured as it is told, ascending by feed; nothing if something of it is no number."""
    figures = [figure for one in shares.values() for figure in (one.sum, one.squares, one.worth)]
    if not all(map(math.isfinite, figures)):
        return ()
    numbered = [(run_state.number(feed), one) for feed, one in shares.items() if one.updates]
    return tuple(sorted(_part(number, one) for number, one in numbered if number is not None))


def worths_of(epoch: int, rows: int, parts: Sequence[Part]) -> list[Worth]:
    """Return the decisions that tell these figures. Each has feeds from all over: what is usual follows from
    one decision, and those who have come together would be among themselves in theirs."""
    count = math.ceil(len(parts) / PARTS_PER_WORTH)
    return [Worth(epoch, rows, tuple(parts[first::count])) for first in range(count)]


def _part(number: int, one: StepShare) -> Part:
    score = one.sum / math.sqrt(one.squares) if one.squares > 0 else 0.0
    most = (1 << 63) - 1
    worth = max(-most, min(most, round(one.worth * WORTH_ONE)))
    return Part(number, one.updates, worth, round(score * SCORE_ONE))


class FeedScore(NamedTuple):
    """Finding about the updates of one feed in an epoch."""

    feed: int
    updates: float
    """Independent ones."""
    score: float
    """Standard deviations of their mean beyond chance."""


def _scored(part: Part, alike: float) -> FeedScore:
    return FeedScore(part.feed, part.updates / alike, part.score / SCORE_ONE / math.sqrt(alike))


@dataclass(slots=True)
class Evidence:
    """Evidence about one member."""

    updates: int = 0
    """Updates that were measured."""
    worth: int = 0
    """Sum of their worths with factor 1, in units of 10^-9 nats."""
    useful: float = 0.0
    """Log-likelihood ratio for a useful member, MOST_EVIDENCE at most, of which one epoch is a part only."""
    balance: float = 0.0
    """The same with all that epochs bring and take: what was skipped counts by that."""
    harm_since: int | None = None
    """The epoch in which evidence of harm began to grow; None if there is none. Stays once `harmful`."""
    harmful: bool = False
    """Whether it is evident that its work does harm; stays."""
    bound: float = TRUSTED_FROM
    """Evidence from which on its work counts."""
    agreement: float = 1.0
    """Its likely drift, in terms of the usual one."""
    _drift: float = 0.0
    """Sum of sqrt(n) z, of which earlier epochs are forgotten."""
    weight: float = 0.0
    """Sum of n, likewise: updates of which the drift is known."""
    beyond: float = 0.0
    """Sum of sqrt(n) z - n mu, likewise, where mu is the median member's mean score in an epoch."""
    usual: float = 0.0
    """Sum of n mu, likewise."""
    compared: float = 0.0
    """Sum of n, likewise: updates of which it is known how they compare."""
    _rounds: list[tuple[int, float]] = field(default_factory=list)
    """The last epochs in which it was measured, with its updates, in a first-order run."""
    _epochs: int = 0
    _latest: float = NEWCOMER
    """Measured epochs, of which earlier ones are forgotten."""
    _outlying: float = 0.0
    """Those in which it was an outlier, likewise."""
    _harm: float = 0.0
    """Evidence of harm since `harm_since`."""
    _doubt: float = -math.inf
    """Logarithm of the wealth against `does no harm`."""

    @property
    def doubt(self) -> Uncounted | None:
        """Reason for which its work does not count; None if it does."""
        if not self._sound:
            return Uncounted.HARMFUL if self.harmful else Uncounted.OFTEN_LARGE
        if self.useful < self.bound:
            return Uncounted.UNPROVEN
        return Uncounted.UNLIKE if self.agreement < WORTHWHILE else None

    @property
    def trusted(self) -> bool:
        """Whether its work counts."""
        return self.doubt is None

    @property
    def recounted(self) -> bool:
        """Whether work counts after all that was skipped."""
        return self.trusted and self.balance >= RECOUNTED_FROM

    @property
    def recounted_at_last(self) -> bool:
        """The same just before a run ends."""
        return self.balance >= RECOUNTED_AT_LAST and self._sound

    @property
    def _sound(self) -> bool:
        """Whether its work evidently does no harm, and has about the size of others' work."""
        return not self.harmful and self.outlier_share <= OFTEN

    @property
    def outlier_share(self) -> float:
        """Share of its latest measured epochs in which it was an outlier."""
        return self._outlying / self._latest

    @property
    def drift(self) -> float:
        """Mean score of an update."""
        return self._drift / self.weight if self.weight else 0.0

    def drifts(self, parts: Sequence[FeedScore], usual: float | None) -> None:
        """Take in the scores of its feeds in one epoch as part of the drift; `usual`: the median member's,
        None if too few were there to tell."""
        drift, updates = _drift(parts), _updates(parts)
        self._drift = MEMORY * self._drift + updates * drift
        self.weight = MEMORY * self.weight + updates
        if usual is None:
            return
        self.beyond = LONG_MEMORY * self.beyond + updates * (drift - usual)
        self.usual = LONG_MEMORY * self.usual + updates * usual
        self.compared = LONG_MEMORY * self.compared + updates

    def sized(self, weight: float) -> None:
        """Take note of the weight of its work in an epoch: the largest of its feeds."""
        self._latest = MEMORY * self._latest + 1
        self._outlying = MEMORY * self._outlying + (weight > OUTLIER)
        if weight > EXTREME:
            self.useful = min(self.useful, RECOUNTED_AT_LAST) - MOST_EVIDENCE
            self.balance = min(self.balance, self.useful)

    def ask(self, expected: float) -> None:
        """Say what evidence its work needs to count, by what an epoch was expected to bring: of all its feeds
        together, or one more with a single update would lower the bound."""
        share = min(1.0, expected / SOON)
        self.bound = TRUSTED_FROM + (1 - share) * (RECOUNTED_AT_LAST - TRUSTED_FROM)

    def measured(self, part: Part) -> None:
        """Add up what was measured."""
        self.updates += part.updates
        self.worth += part.worth

    def lately(self, epoch: int, parts: Sequence[FeedScore]) -> Weighted:
        """Take note of a member's work in an epoch of a first-order run; return its score, and the updates of
        the rounds that it is of."""
        updates = _updates(parts)
        self._rounds = [one for one in self._rounds if one[0] > epoch - SCORED_ROUNDS] + [(epoch, updates)]
        score = sum(one.updates * one.score for one in parts) / updates
        return Weighted(score, sum(made for _, made in self._rounds))

    def beside(self, score: float, usual: float) -> None:
        """Take in its score, where that of the usual member would be this."""
        usual = max(LEAST_SCORE, usual)
        if self.trusted:
            self.bound = LIKELY
        else:
            self.bound = min(TRUSTED_FROM, max(self.bound, 3 * LIKELY - self.useful))
        self.useful = self.balance = usual * (score - usual / 2)

    def latest(self, parts: Sequence[FeedScore]) -> None:
        """Take in what was measured in an epoch of a linear head, forgetting what was before."""
        self.useful = self.balance = _drift(parts) * math.sqrt(_updates(parts))
        self.bound = DOUBTED

    def take(self, epoch: int, part: FeedScore, drift: float) -> None:
        """Take in what was measured in an epoch, where a useful member has at least this drift."""
        self._epochs += 1
        score, tilt = part.score, drift * math.sqrt(part.updates)
        brings = tilt * score - tilt**2 / 2
        self.balance = min(MOST_EVIDENCE, self.balance + brings)
        at_once = max(LEAST_BY_EPOCH, min(MOST_EVIDENCE, brings))
        self.useful = min(MOST_EVIDENCE, self.useful + at_once)
        if self.harmful:
            return
        against = -tilt * score - tilt**2 / 2
        begins = -math.log(self._epochs * (self._epochs + 1))  # prior of a beginning here; they add up to 1
        self._doubt = _added(self._doubt, begins) + against
        self._harm = max(0.0, self._harm + against)
        if not self._harm:
            self.harm_since = None
        elif self.harm_since is None:
            self.harm_since = epoch
        self.harmful = self.harm_since is not None and self._doubt >= -math.log(FALSE_REVOCATIONS)


def _added(one: float, other: float) -> float:
    """Return the logarithm of the sum of two numbers of which these are the logarithms."""
    most = max(one, other)
    return most + math.log(math.exp(one - most) + math.exp(other - most))


class MembersEvidence:
    """The evidence about all members of a run, by the figures in its control feed."""

    def __init__(self, *, kept: bool = False, alike: float = 1.0, summed: bool = False) -> None:
        """`kept`: the run trains a linear head, of which every epoch is measured on all rows; `summed`: it is
        a first-order run, whose scores are of some rounds at once."""
        self._kept, self._alike, self._summed = kept, alike, summed
        self.forget()

    @classmethod
    def of(cls, training: Training) -> MembersEvidence:
        """Return that of a run with these numbers."""
        first_order = training.is_first_order
        return cls(kept=training.trains_a_head, alike=alike(training), summed=first_order)

    def forget(self) -> None:
        """Forget what decisions have told: they are read anew."""
        self.members: dict[int, Evidence] = {}
        """Evidence by the number of the member."""
        self.harmful: set[int] = set()
        """Members whose work evidently does harm."""
        self.outliers: set[Recount] = set()
        """Feeds and epochs that are skipped for good."""
        self.vouched: set[int] = set()
        """Members for whom the organiser or an invitation vouches."""
        self._numbers: dict[bytes, int] = {}
        """Numbers of members by origin."""

    def take(self, decision: Decision) -> None:
        """Take in a decision: the figures of an epoch, or for whom somebody vouches."""
        match decision:
            case Worth():
                self._measured(decision)
            case Admit(origin=origin, quota=quota):
                number = self._numbers.setdefault(origin, len(self._numbers))
                self.vouched.update([number] if quota else [])

    def _measured(self, said: Worth) -> None:
        parts = [part for part in said.parts if part.updates]
        for part in parts:
            self.members.setdefault(part.feed // INCARNATIONS, Evidence()).measured(part)
        figures = _by_member(parts)
        members = {member: [_scored(part, self._alike) for part in made] for member, made in figures.items()}
        if self._summed:
            self._compare_sums(said.epoch, members)
            return
        if self._kept:
            for member, made in members.items():
                self.members[member].latest(made)
            return
        telling, told_of = references(members, self.vouched.__contains__)
        least = self._drifts(members, telling, told_of)
        weighed = [part for member in told_of for part in figures[member]]
        weights = _weights({member: figures[member] for member in telling}, weighed)
        outliers = (feed for feed, weight in weights.items() if weight > OUTLIER)
        self.outliers.update(Recount(feed, said.epoch) for feed in outliers)
        for member, made in members.items():
            evidence, drift = self.members[member], least.get(member, 0.0)
            evidence.ask(drift**2 * _updates(made))
            for scored in made:
                evidence.take(said.epoch, scored, drift)
            evidence.sized(max(weights.get(part.feed, 1.0) for part in made))
            if evidence.harmful:
                self.harmful.add(member)
        self._compare()

    def _compare_sums(self, epoch: int, members: Mapping[int, Sequence[FeedScore]]) -> None:
        """Take in the scores of a first-order run. One of fewer updates is expected to be less, as the root
        of their number."""
        found = {member: self.members[member].lately(epoch, made) for member, made in members.items()}
        telling, told_of = references(members, self.vouched.__contains__)
        if not told_of:
            return
        usual = weighted_median(found[member] for member in telling)
        updates = weighted_median(Weighted(found[member].weight, 1.0) for member in telling)
        for member in told_of:
            score, made = found[member]
            self.members[member].beside(score, usual * min(1.0, math.sqrt(made / updates)))

    def _drifts(
        self, members: Mapping[int, Sequence[FeedScore]], telling: set[int], told_of: set[int]
    ) -> dict[int, float]:
        """Take in the drifts of an epoch; return the drift that is asked of members of whom it is told.

        Of whom nobody tells, nothing is concluded while their work counts. Those whose work is skipped are
        judged by what is usual of all such members, themselves too: they would wait for good otherwise.
        """
        known = {member: members[member] for member in telling}
        alone = {member: made for member, made in members.items() if member not in told_of}
        waiting = {member for member in alone if not self.trusts(member)}
        usual: dict[int, float] = {}
        if told_of:
            usual |= dict.fromkeys(told_of, weighted_median(map(_weighted_drift, known.values())))
        if waiting:
            usual |= dict.fromkeys(waiting, max(0.0, weighted_median(map(_weighted_drift, alone.values()))))
        for member, made in members.items():
            self.members[member].drifts(made, usual.get(member))
        least = dict.fromkeys(told_of, SHARE * self._usual_drift(known, others=not telling & told_of))
        return least | dict.fromkeys(waiting, SHARE * self._usual_drift(alone))

    def doubt(self, member: int) -> Uncounted | None:
        """Return why the work of a member is not to count, as far as is known; None if it is."""
        known = self.members.get(member)
        return known.doubt if known else None

    def trusts(self, member: int) -> bool:
        """Return whether the work of a member is to count, as far as is known."""
        return self.doubt(member) is None

    def _compare(self) -> None:
        """Say of members what their drifts are likely to be, as they differ from each other.

        With n known updates a mean score has a variance of 1 / n by chance. By how much more mean scores vary
        (method of moments) members differ, if that is more than a standard error of it; where they do not,
        each of them is the usual one. They are compared epoch by epoch: as the drift of all falls, who has
        come late would differ from the others otherwise. And with the median member: who makes most of the
        updates would itself be the mean.
        """
        for one in self.members.values():
            one.agreement = 1.0
        found = [one for one in self.members.values() if one.compared and not one.harmful]
        if len(found) < LEAST_MEMBERS:
            return
        weights = [one.compared for one in found]
        distances = [one.beyond / one.compared for one in found]
        middle = weighted_median(map(Weighted, distances, weights))
        usual = [one.usual / one.compared + middle for one in found]
        most = [FAR * (max(0.0, drift) + 1 / math.sqrt(n)) for drift, n in zip(usual, weights, strict=True)]
        beyond = [distance - middle for distance in distances]
        beyond = [max(-far, min(far, value)) for far, value in zip(most, beyond, strict=True)]
        shares = _shares(beyond, weights)
        if not any(shares):
            return
        mean = _mean(beyond, shares)
        likely = [mean + share * (value - mean) for share, value in zip(shares, beyond, strict=True)]
        likely = [1 + one / drift if drift > 0 else 1.0 for one, drift in zip(likely, usual, strict=True)]
        reference = weighted_median(map(Weighted, likely, weights))
        for known, drift in zip(found, likely, strict=True):
            known.agreement = drift / reference if reference > 0 else 1.0

    def _usual_drift(self, members: Mapping[int, Sequence[FeedScore]], *, others: bool = False) -> float:
        """Return the drift of an honest member, as far as the parts of these members tell; 0 if there is
        none, or the median is not above 0.

        From the median of squares, less what noise makes of it and a standard error of that: who flips signs
        drifts as far as the others, and the median of the drifts themselves is that of the lesser honest ones
        then. No more than these parts have by their own median, beyond noise: where the whole step goes too
        far, or few bend it, scores say nothing of single members. Where that is evident, it is what they have
        if it is asked of `others`, who cannot lower it: what spoils their work has spoilt all work.
        """
        if not members:
            return 0.0
        known = [self.members[member] for member in members]
        enough = weighted_median(Weighted(one.weight, one.weight) for one in known) / 2
        chosen = [one for one in known if one.weight >= enough]

        def usually(of: Callable[[Evidence], float]) -> float:
            return weighted_median(Weighted(of(one), one.weight) for one in chosen)

        if usually(lambda one: one.drift) <= 0:
            return 0.0
        noise = (SQUARE + SQUARE_ERROR / math.sqrt(len(chosen))) * usually(lambda one: 1 / one.weight)
        usual = math.sqrt(max(0.0, usually(lambda one: one.drift**2) - noise))
        now = weighted_median(map(_weighted_drift, members.values()))
        most = now + 2 * _noise(sum(map(_updates, members.values())))
        return max(0.0, min(usual, now if others and most < usual else most))


def references(members: Collection[int], vouched: Callable[[int], bool]) -> tuple[set[int], set[int]]:
    """Return which of an epoch's members tell what is usual, and of whom: all of all, or where they are too
    few for that, those who are vouched for of strangers. There may be none."""
    if len(members) >= LEAST_MEMBERS:
        return set(members), set(members)
    telling = set(filter(vouched, members))
    return telling, set(members) - telling if telling else set()


def _weights(members: Mapping[int, Sequence[Part]], parts: Sequence[Part]) -> dict[int, float]:
    """Return the weights of parts in terms of the median one of these members; 1 if there are none."""
    weights = (Weighted(median(map(_weight, one)), _updates(one)) for one in members.values())
    usual = weighted_median(weights) if members else 0.0
    return {part.feed: _weight(part) / usual if usual else 1.0 for part in parts}


class Weighted(NamedTuple):
    """A figure of a member, and the updates that it is of."""

    value: float
    weight: float


def weighted_median(figures: Iterable[Weighted]) -> float:
    """Return the median of members by their updates, one of whom counts half as much as all others at most.

    By heads a hundred strangers with an update each would say what is usual; by updates alone, who makes most
    of them.
    """
    known = sorted(figures)
    total = sum(one.weight for one in known)
    weights = [min(one.weight, (total - one.weight) / 2) for one in known]
    half, below = sum(weights) / 2, list(accumulate(weights))
    low = next(one.value for one, sum_ in zip(known, below, strict=True) if sum_ >= half)
    return (low + next((one.value for one, s in zip(known, below, strict=True) if s > half), low)) / 2


def _weighted_drift(parts: Sequence[FeedScore]) -> Weighted:
    return Weighted(_drift(parts), _updates(parts))


def _updates(parts: Iterable[Part | FeedScore]) -> float:
    return sum(part.updates for part in parts)


def _by_member(parts: Sequence[Part]) -> dict[int, list[Part]]:
    """Return the parts of each member: one with many feeds is no more than one in a median."""
    found: dict[int, list[Part]] = {}
    for part in parts:
        found.setdefault(part.feed // INCARNATIONS, []).append(part)
    return found


def _drift(parts: Sequence[FeedScore]) -> float:
    """Return the mean score of an update of these."""
    return sum(part.score * math.sqrt(part.updates) for part in parts) / _updates(parts)


def _mean(values: Sequence[float], weights: Sequence[float]) -> float:
    """Return the weighted mean."""
    return sum(weight * value for weight, value in zip(weights, values, strict=True)) / sum(weights)


def _shares(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Return which share of each value's distance from their mean is its own and not chance, where chance has
    a variance of 1 / weight; 0 for all if chance explains by how much they differ."""
    mean, total, free = _mean(values, weights), sum(weights), len(values) - 1
    beyond = sum(weight * (value - mean) ** 2 for weight, value in zip(weights, values, strict=True)) - free
    if beyond <= math.sqrt(2 * free):
        return [0.0] * len(values)
    spread = beyond / (total - sum(weight**2 for weight in weights) / total)
    return [spread / (spread + 1 / weight) for weight in weights]


def _noise(updates: float) -> float:
    """Return the standard error of the median of drifts that are known from so many updates in all."""
    return MEDIAN_ERROR / math.sqrt(updates)


def _weight(part: Part) -> float:
    """Return about what an update of a feed weighs, in units of 10^-9 nats: of n updates whose signs mean
    nothing the worth is about sqrt(n) of it, and with a score of z it is z times as much."""
    return abs(part.worth) / max(1.0, abs(part.score) / SCORE_ONE) / math.sqrt(part.updates)
