"""Evidence about members, from the contribution of their work in each epoch as measured before the seal.

The engine measures contributions (`sfnode.engine.line`) with one gradient on validation rows, whatever the
number of origins. They are published in the control feed as Worth decisions (SPEC O16). The evidence here is
a function of these decisions alone, so all readers of the feed come to the same evidence.

Theory of operation. The score z of n updates of a feed in one epoch has variance 1. Its mean is 0 if the
scalars are useless (random signs), however large they are. If the scalars were measured, its mean is
m sqrt(n), and m is called the drift. Updates of one mini-batch share its peculiarities; n is the number of
independent updates that would say as much (`alike`). The usual m is estimated as a median over the members of
the swarm. A useful member whose rows are of another kind agrees less with the validation rows. The test
therefore expects only d = SHARE * m of a useful member. Two sums over epochs follow, and a comparison:

    for       the log-likelihood ratio of `drifts by d` against `does not drift`: the sum of
              d sqrt(n) z - d^2 n / 2. It is kept at or below MOST_EVIDENCE, so that a member that turns
              hostile is found as soon as a hostile newcomer. One epoch of new work adds MOST_EVIDENCE at
              most, and takes away twice as much at most (LEAST_BY_EPOCH). Work is skipped while the sum is
              below TRUSTED_FROM, its value at the start (or below a lower value if epochs bring hardly any
              evidence: SOON). Skipped work counts after all (is recounted) once the sum is above
              RECOUNTED_FROM. Skipped work is part of the sum, so nobody can hide bad work behind good work.
              Waiting costs little, and work that has counted stays. Just before a run ends, all waiting work
              of members whose sum is above RECOUNTED_AT_LAST counts, with a factor of its own.
    agreement the member's likely drift as a share of the usual drift. It follows from the distance between
              the scores of the member and of the median member in the same epochs. The distance is shrunk by
              the part that chance alone explains (empirical Bayes; DerSimonian and Laird 1986). Work is also
              skipped while the agreement is below WORTHWHILE. The sum above asks whether the scores of one
              member alone distinguish it from a useless member. That takes hundreds of updates where scores
              say little; a member that teaches a wrong label differs from the others long before.
    against   the wealth of a bet against `does no harm` (a drift of 0 or more): the product of
              e^(-d sqrt(n) z - d^2 n / 2) over epochs, averaged over the epochs in which harm may have begun.
              By Ville's inequality the wealth of a harmless member exceeds 1 / FALSE_REVOCATIONS with a
              probability of at most FALSE_REVOCATIONS, however long the run is. On average it grows only if
              the drift is below -d / 2. Members who are merely useless are therefore skipped, not revoked.

A first-order run has few updates, but the cosine of one update with the slopes says as much as hundreds of
scalars. A score covers SCORED_ROUNDS rounds. The score is compared with the median member's score, and
nothing is added up from score to score. The evidence is the log-likelihood ratio of `as good as others`
against `of no use`: s z - s^2 / 2, where s is the usual score (at least LEAST_SCORE) and z the member's
score. Work is skipped while the evidence is below LIKELY. If the evidence has fallen below twice LIKELY, it
must rise higher before work counts again: the further it fell the higher, up to TRUSTED_FROM. Otherwise a
member that flips signs would count again merely because later scores say less. Nobody is revoked. Limits
bound the harm of a round, and a skipped member does none.

Scores do not depend on the size of scalars. The seal of an epoch therefore skips work that weighs far more
than the updates of others (OUTLIER). Such work is never recounted. All work of a member that often makes such
work is skipped (OFTEN). EXTREME work sets its member's evidence back, so that good work must make up for it.
Large scalars that are no outliers are found by their size (`feeds`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from statistics import median
from typing import NamedTuple

from sfnode.manifest.training import Training
from sfnode.schema.measurements import StepShare
from sfnode.schema.node_state import Uncounted
from sfprotocol.decisions import INCARNATIONS, Admit, Decision, Part, Recount, Worth
from sfprotocol.messages import Feed
from sfprotocol.run_state import RunState
from sfprotocol.weighing import WORTH_ONE

SCORE_ONE = 1000
"""Published score that stands for one standard deviation."""

HOSTILE = 0.3
"""Assumed maximum share of hostile members. As it is below a half, the median member is an honest one."""

TRUSTED_FROM = 0.0
"""Minimum evidence, a log-likelihood ratio, at which work counts at once. A member without measurements has
exactly this evidence. With a minimum of log 3/7, twice as much useless work counted (docs/research-log.md).
At that minimum a member is as likely useful as useless if a share of HOSTILE is useless."""

DOUBTED = -2.0
"""Score below which a member's work is skipped until its next measurement, in a run that trains a linear
head.

Scores of different epochs are not independent in such a run. Thousands of updates come from a member's few
hundred rows, and all epochs are scored on the same validation rows. A chance disagreement between these rows
continues from epoch to epoch, and its sum would pass for evidence. With sums, one honest member of four was
skipped throughout a run on SST-2. Therefore nothing is added up, and nobody is revoked. The score of a feed
in an epoch is here its worth in standard errors over the rows (SPEC O16).
"""

SCORED_ROUNDS = 16
"""Number of rounds that a score covers in a first-order run, about as many as a run has. Noise hides the
direction of the updates of one round; the sum over rounds shows it. Three members who flip signs cost seven
honest nodes 5 % of their gain if a score covers 8 rounds, and 3 % if it covers 16
(benchmarks/first_order.py)."""

LEAST_SCORE = 0.7
"""Minimum score assumed for the usual member in a first-order run. The median score may be lower, if hostile
members pull it down or little is left to learn. With this minimum, members with evidently negative scores are
recognised even then. With a minimum of 0, three members who flip signs cost 9 % of the gain; with 1.5, a
fifth more honest work was skipped."""

LIKELY = math.log(HOSTILE / (1 - HOSTILE))
"""Minimum evidence at which work continues to count in a first-order run. There each measurement replaces the
evidence, and nothing is added up. The value is the log odds of HOSTILE."""

RECOUNTED_FROM = 1.0
"""Minimum evidence at which skipped work counts after all, if it was made at the present rate or a smaller
one. Work at larger rates has spoilt runs, whoever made it (docs/research-log.md). The minimum is above
TRUSTED_FROM, because the evidence of a third of useless members returns to TRUSTED_FROM at some time."""

GAIN_BY_COST = 3.0
"""Gain from a useful update, as a multiple of the cost of a useless update. Line searches take about half of
the best step. For half of the best step the gain is three quarters of slope times step, and the cost one
quarter."""

RECOUNTED_AT_LAST = math.log(HOSTILE / (1 - HOSTILE) / GAIN_BY_COST)
"""Minimum evidence at which skipped work counts just before a run ends. At this evidence the expected gain
from such work equals its expected cost, if a share of HOSTILE is useless."""

WORTHWHILE = 1 / (1 + GAIN_BY_COST)
"""Minimum drift, as a share of the usual drift, at which an update gains more than it costs."""

SOON = 1 / 8
"""Minimum evidence that an epoch must bring for a useful member on average if TRUSTED_FROM is to be the bound
below which work waits. If epochs bring less, the bound is lower, down to RECOUNTED_AT_LAST, at which work
gains as much as it costs. Otherwise work would wait without end where scores say hardly anything."""

MOST_EVIDENCE = 2.0
"""Maximum evidence kept for a member. A useless member reaches this maximum in one of e^2 = 7 cases. Of
honest members who have reached it and have the usual drift, one in 55 falls below TRUSTED_FROM later."""

LEAST_BY_EPOCH = -2 * MOST_EVIDENCE
"""Lower bound of the evidence that one epoch of a feed adds when it is decided whether new work counts
(`Evidence.useful`); the upper bound is MOST_EVIDENCE. An epoch of flipped work thus loses up to twice the
evidence that an epoch of good work gains. All updates of an epoch are measured at the same weights, in the
middle of the same step. Where others have spoilt these weights, hundreds of updates are wrong at once, for a
single reason. Without this bound one such epoch lowered a member's evidence by 30. Later epochs could not
make up for that, so the member's work waited until the end of the run."""

SHARE = 2 / 3
"""Share of the usual drift that the test expects of a useful member. On average evidence then favours every
member with more than a third of the usual drift. If the test expected the full drift, every second honest
member would be skipped at some time. If it expected half of the usual drift, one and a half times as much
useless work would count."""

FALSE_REVOCATIONS = 1e-4
"""Maximum share of harmless members who are revoked by accident in a whole run."""

LEAST_MEMBERS = 3
"""Minimum number of measured members from whom anything is concluded about vouched members whose work counts.
Of two members nobody can say which one is usual. With fewer members, strangers are still judged by the
vouched members (`references`)."""

MEMORY = 0.95
"""Factor on the weight of a member's earlier measurements, in its drift and in its share of outliers, for
each newly measured epoch. Earlier measurements must fade, as the drift of all members falls during a run. In
a run in which the drift fell from 0.7 to 0.1, a factor of 0.98 skipped three times as many epochs of honest
newcomers (docs/research-log.md)."""

LONG_MEMORY = 0.98
"""Factor on the weight of a member's earlier differences from the usual member, for each newly measured
epoch. It is larger than MEMORY, because these differences do not fall during a run as drifts do. With 0.95,
one seventh less of the work of members who flip signs was skipped than with 0.98."""

OUTLIER = 16.0
"""Weight of a feed's updates above which the feed is an outlier, as a multiple of the median member's.

Without a measured scalar limit a scalar may be hundreds of times the usual size. A measured limit is 8 times
the root mean square of scalars before the run; as a multiple of later scalars it is two to five times
smaller. With such a limit there is hardly any outlier, and evidence must suffice. (On AG News each of three
members who scaled their scalars was an outlier in one to nine epochs of 25.) Scalars of honest nodes have
heavy tails. If OUTLIER were 8, two in a hundred of the updates of honest nodes would be part of an outlier,
and would never count.
"""

EXTREME = 128.0
"""Weight, as a multiple of the median member's, above which no kind of rows can explain an outlier. Such an
outlier sets its member's evidence so far back that good work must make up for it. Among 60,000 updates
without a scalar limit there were 52 honest outliers; the largest had 125 times the median weight."""

OFTEN, NEWCOMER = 1 / 3, 3.0
"""Maximum share of a member's epochs with oversized work or outliers up to which these are taken for
accidents; and number of good epochs with which a newcomer is credited. A member that multiplies its scalars
by 30 is an outlier in six epochs of ten. Of 16 honest members without a scalar limit, one was an outlier in
one epoch of seven, when the others had nothing left to learn; each other member was an outlier in fewer than
one epoch of twenty."""

FAR = 2.0
"""Maximum difference of a member's drift from the usual drift, as a multiple of the sum of the usual drift
and a standard error. Larger differences are reduced to this maximum. Otherwise a few members with large
differences would make the chance differences of all others look real."""

MEDIAN_ERROR = 1.25
"""Standard error of the median of normal numbers, as a multiple of the standard error of their mean: the root
of pi / 2."""

SQUARE, SQUARE_ERROR = 0.455, 1.06
"""Median of the square of a standard normal number, and the standard error of the median of n such squares
times sqrt(n). The latter is 1 / (2 p), where p = 0.471 is the density of the square at its median."""

PARTS_PER_WORTH = 7_000
"""Maximum number of feeds whose measurements fit into one Worth decision. Each takes a part of 28 bytes, and
the decision at most MAX_DECISION."""


DISPERSED = 5.0
"""Variance of an honest member's score in a first-order run, as a multiple of the variance for random
vectors. Cosines between gradients of 8 rows and the validation gradient have a standard deviation of 0.12.
For random vectors in 336 cells it is 0.055. Gradients are less random, because they and their noise lie along
the same few directions."""

UNLIKE = 0.1
"""Variance over mini-batches of the cosine between a mini-batch's gradient and the validation gradient:
0.31^2 for 32 answers of the untrained SmolLM2 (docs/research-log.md). It grows as a run learns."""


def alike(training: Training) -> float:
    """Return the number of updates that together say as much about their author as one independent update.

    A group's updates share one mini-batch. Two of these updates share its peculiarities wherever they change
    the same cell of a core. In each layer they do so with probability 1 / rank^2.
    """
    if training.is_first_order:
        return DISPERSED
    return 1 + UNLIKE * (training.batch_updates - 1) / training.rank**2


def parts_of(shares: Mapping[Feed, StepShare], run_state: RunState) -> tuple[Part, ...]:
    """Return the measurements of feeds as parts of a Worth decision, in ascending order of feed numbers;
    empty if any figure is not finite."""
    figures = [figure for one in shares.values() for figure in (one.sum, one.squares, one.worth)]
    if not all(map(math.isfinite, figures)):
        return ()
    numbered = [(run_state.number(feed), one) for feed, one in shares.items() if one.updates]
    return tuple(sorted(_part(number, one) for number, one in numbered if number is not None))


def worths_of(epoch: int, rows: int, parts: Sequence[Part]) -> list[Worth]:
    """Return the Worth decisions that publish these parts. The usual score is found from one decision alone.
    Feeds are therefore distributed in turn among the decisions; otherwise members who joined at the same time
    would be compared only with each other."""
    count = math.ceil(len(parts) / PARTS_PER_WORTH)
    return [Worth(epoch, rows, tuple(parts[first::count])) for first in range(count)]


def _part(number: int, one: StepShare) -> Part:
    score = one.sum / math.sqrt(one.squares) if one.squares > 0 else 0.0
    most = (1 << 63) - 1
    worth = max(-most, min(most, round(one.worth * WORTH_ONE)))
    return Part(number, one.updates, worth, round(score * SCORE_ONE))


class FeedScore(NamedTuple):
    """Score of one feed's updates in an epoch."""

    feed: int
    updates: float
    """Number of independent updates that say as much as the feed's updates (`alike`)."""
    score: float
    """Agreement of the updates with the validation rows, in standard deviations of useless updates."""


def _scored(part: Part, alike: float) -> FeedScore:
    return FeedScore(part.feed, part.updates / alike, part.score / SCORE_ONE / math.sqrt(alike))


@dataclass(slots=True)
class Evidence:
    """Evidence about one member."""

    updates: int = 0
    """Number of measured updates."""
    worth: int = 0
    """Sum of the worths of these updates at factor 1, in units of 10^-9 nats."""
    useful: float = 0.0
    """Evidence that the member is useful, as a log-likelihood ratio; at most MOST_EVIDENCE. Its change by one
    epoch of a feed is bounded, too (LEAST_BY_EPOCH)."""
    balance: float = 0.0
    """Evidence that the member is useful, like `useful`, but without a bound on its change by one epoch. This
    value decides whether skipped work is recounted."""
    harm_since: int | None = None
    """Epoch in which evidence of harm began to grow; None if there is no such evidence. Fixed once `harmful`
    is set."""
    harmful: bool = False
    """Whether the member's work evidently does harm. Never reset."""
    bound: float = TRUSTED_FROM
    """Minimum evidence at which the member's work counts."""
    agreement: float = 1.0
    """Likely drift of the member, as a multiple of the usual drift."""
    _drift: float = 0.0
    """Discounted sum of sqrt(n) z over epochs, where z is the score of n updates."""
    weight: float = 0.0
    """Discounted number of the member's independent updates over all measured epochs."""
    beyond: float = 0.0
    """Discounted sum over epochs of n (m - mu): n independent updates of the member have the mean score m,
    and the median member's mean score is mu."""
    usual: float = 0.0
    """Discounted sum over epochs of n mu: the member has n independent updates, and the median member's mean
    score is mu."""
    compared: float = 0.0
    """Discounted number of the member's independent updates in epochs in which it was compared with
    others."""
    _rounds: list[tuple[int, float]] = field(default_factory=list)
    """Measured epochs among the last SCORED_ROUNDS of a first-order run, as pairs (epoch, number of
    updates)."""
    _epochs: int = 0
    _latest: float = NEWCOMER
    """Discounted number of measured epochs."""
    _outlying: float = 0.0
    """Discounted number of epochs in which the member was an outlier."""
    _harm: float = 0.0
    """Evidence of harm since epoch `harm_since`."""
    _doubt: float = -math.inf
    """Logarithm of the wealth of the bet against `does no harm`."""

    @property
    def doubt(self) -> Uncounted | None:
        """Reason why the member's work does not count; None if it does."""
        if not self._sound:
            return Uncounted.HARMFUL if self.harmful else Uncounted.OFTEN_LARGE
        if self.useful < self.bound:
            return Uncounted.UNPROVEN
        return Uncounted.UNLIKE if self.agreement < WORTHWHILE else None

    @property
    def trusted(self) -> bool:
        """Whether the member's work counts."""
        return self.doubt is None

    @property
    def recounted(self) -> bool:
        """Whether the member's skipped work counts after all."""
        return self.trusted and self.balance >= RECOUNTED_FROM

    @property
    def recounted_at_last(self) -> bool:
        """Whether the member's skipped work counts just before a run ends."""
        return self.balance >= RECOUNTED_AT_LAST and self._sound

    @property
    def _sound(self) -> bool:
        """Whether the member's work is not evidently harmful, and has about the size of others' work."""
        return not self.harmful and self.outlier_share <= OFTEN

    @property
    def outlier_share(self) -> float:
        """Share of measured epochs in which the member was an outlier. Older epochs have less weight."""
        return self._outlying / self._latest

    @property
    def drift(self) -> float:
        """Mean score of the member's updates. Older updates have less weight."""
        return self._drift / self.weight if self.weight else 0.0

    def drifts(self, parts: Sequence[FeedScore], usual: float | None) -> None:
        """Add the scores of the member's feeds in one epoch to the member's drift. `usual` is the median
        member's drift in this epoch; None if this member is not compared with others."""
        drift, updates = _drift(parts), _updates(parts)
        self._drift = MEMORY * self._drift + updates * drift
        self.weight = MEMORY * self.weight + updates
        if usual is None:
            return
        self.beyond = LONG_MEMORY * self.beyond + updates * (drift - usual)
        self.usual = LONG_MEMORY * self.usual + updates * usual
        self.compared = LONG_MEMORY * self.compared + updates

    def sized(self, weight: float) -> None:
        """Record the weight of the member's work in an epoch: the largest weight among its feeds."""
        self._latest = MEMORY * self._latest + 1
        self._outlying = MEMORY * self._outlying + (weight > OUTLIER)
        if weight > EXTREME:
            self.useful = min(self.useful, RECOUNTED_AT_LAST) - MOST_EVIDENCE
            self.balance = min(self.balance, self.useful)

    def ask(self, expected: float) -> None:
        """Set `bound`, the evidence that the member's work needs to count. `expected`: evidence that all
        feeds of the member together were expected to bring in the epoch. With the evidence of one feed alone,
        another feed with a single update would lower the bound."""
        share = min(1.0, expected / SOON)
        self.bound = TRUSTED_FROM + (1 - share) * (RECOUNTED_AT_LAST - TRUSTED_FROM)

    def measured(self, part: Part) -> None:
        """Add a measurement to `updates` and `worth`."""
        self.updates += part.updates
        self.worth += part.worth

    def lately(self, epoch: int, parts: Sequence[FeedScore]) -> Weighted:
        """Record the member's work in an epoch of a first-order run. Return the member's score, and the
        number of its updates in the rounds that the score covers."""
        updates = _updates(parts)
        self._rounds = [one for one in self._rounds if one[0] > epoch - SCORED_ROUNDS] + [(epoch, updates)]
        score = sum(one.updates * one.score for one in parts) / updates
        return Weighted(score, sum(made for _, made in self._rounds))

    def beside(self, score: float, usual: float) -> None:
        """Set the evidence and its bound from the member's score and the usual member's score."""
        usual = max(LEAST_SCORE, usual)
        if self.trusted:
            self.bound = LIKELY
        else:
            self.bound = min(TRUSTED_FROM, max(self.bound, 3 * LIKELY - self.useful))
        self.useful = self.balance = usual * (score - usual / 2)

    def latest(self, parts: Sequence[FeedScore]) -> None:
        """Set the evidence to the score in the last measurement alone, for a linear head."""
        self.useful = self.balance = _drift(parts) * math.sqrt(_updates(parts))
        self.bound = DOUBTED

    def take(self, epoch: int, part: FeedScore, drift: float) -> None:
        """Add the score of one feed in an epoch. `drift`: minimum drift that is expected of a useful member
        in that epoch."""
        self._epochs += 1
        score, tilt = part.score, drift * math.sqrt(part.updates)
        brings = tilt * score - tilt**2 / 2
        self.balance = min(MOST_EVIDENCE, self.balance + brings)
        at_once = max(LEAST_BY_EPOCH, min(MOST_EVIDENCE, brings))
        self.useful = min(MOST_EVIDENCE, self.useful + at_once)
        if self.harmful:
            return
        against = -tilt * score - tilt**2 / 2
        begins = -math.log(self._epochs * (self._epochs + 1))  # prior of a beginning here; priors add up to 1
        self._doubt = _added(self._doubt, begins) + against
        self._harm = max(0.0, self._harm + against)
        if not self._harm:
            self.harm_since = None
        elif self.harm_since is None:
            self.harm_since = epoch
        self.harmful = self.harm_since is not None and self._doubt >= -math.log(FALSE_REVOCATIONS)


def _added(one: float, other: float) -> float:
    """Return the logarithm of the sum of two numbers whose logarithms are `one` and `other`."""
    most = max(one, other)
    return most + math.log(math.exp(one - most) + math.exp(other - most))


class MembersEvidence:
    """Evidence about all members of a run, from the measurements in its control feed."""

    def __init__(self, *, kept: bool = False, alike: float = 1.0, summed: bool = False) -> None:
        """`kept`: the run trains a linear head, and every epoch is measured on all rows. `alike`: result of
        the function `alike`. `summed`: the run is a first-order run, whose scores cover several rounds."""
        self._kept, self._alike, self._summed = kept, alike, summed
        self.forget()

    @classmethod
    def of(cls, training: Training) -> MembersEvidence:
        """Return the evidence of a run with this training section."""
        first_order = training.is_first_order
        return cls(kept=training.trains_a_head, alike=alike(training), summed=first_order)

    def forget(self) -> None:
        """Forget all decisions, which will be read anew."""
        self.members: dict[int, Evidence] = {}
        """Evidence about members, keyed by member number."""
        self.harmful: set[int] = set()
        """Members whose work evidently does harm."""
        self.outliers: set[Recount] = set()
        """Work (feed and epoch) that is skipped for good."""
        self.vouched: set[int] = set()
        """Members that the organiser or an invitation vouches for."""
        self._numbers: dict[bytes, int] = {}
        """Numbers of members, keyed by origin."""

    def take(self, decision: Decision) -> None:
        """Take in a decision: an epoch's measurements, or an admission."""
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
        """Take in the scores of one round of a first-order run. The score expected of a member grows with the
        square root of its number of updates."""
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
        """Take in the drifts of an epoch. Return the minimum drift expected of each member who can be judged,
        keyed by member number.

        Members in `told_of` are judged by the usual drift of those in `telling`. Of other members, nothing is
        concluded about those whose work counts. Those whose work is skipped would then wait for ever. They
        are therefore judged by the usual drift of all members outside `told_of`, themselves included.
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
        """Return why the work of a member does not count, as far as is known; None if it counts."""
        known = self.members.get(member)
        return known.doubt if known else None

    def trusts(self, member: int) -> bool:
        """Return whether the work of a member counts, as far as is known."""
        return self.doubt(member) is None

    def _compare(self) -> None:
        """Estimate the agreement of each member from its differences to the others.

        The mean score of n updates has a variance of 1 / n by chance. The variance between members beyond
        that is taken for real (method of moments) if it exceeds its standard error; otherwise all members are
        taken for usual. Members are compared within each epoch: the drift of all falls during a run, so
        latecomers would otherwise seem to differ. They are compared with the median member, because the
        member with most updates would dominate a mean.
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
        """Return the drift of a usual honest member, estimated from these members; 0 if there is no member,
        or the median drift is not positive.

        The estimate is the root of the median squared drift, less the noise in it and the noise's standard
        error. A member that flips signs drifts as far as the others, but backwards. Without squares the
        median would therefore be the drift of a weaker honest member. The estimate is bounded by the median
        drift in this epoch plus two standard errors. Where the whole step goes too far, or a few members bend
        it, scores say nothing about single members.

        If the bound is below the estimate, the median drift of the epoch is returned for `others`: the drift
        is then expected of other members, who cannot lower this median. What spoils the work of these members
        has spoilt all work.
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
        updates = sum(map(_updates, members.values()))
        most = now + 2 * MEDIAN_ERROR / math.sqrt(updates)
        return max(0.0, min(usual, now if others and most < usual else most))


def references(members: Collection[int], vouched: Callable[[int], bool]) -> tuple[set[int], set[int]]:
    """Return the members of an epoch whose figures show what is usual, and the members who are judged by
    these figures. Usually both sets are all members. If there are fewer than LEAST_MEMBERS, strangers are
    judged by the vouched members; without any vouched member both sets are empty."""
    if len(members) >= LEAST_MEMBERS:
        return set(members), set(members)
    telling = set(filter(vouched, members))
    return telling, set(members) - telling if telling else set()


def _weights(members: Mapping[int, Sequence[Part]], parts: Sequence[Part]) -> dict[int, float]:
    """Return the weight of each part as a multiple of the median of `members`, keyed by feed; 1 if there are
    no members."""
    weights = (Weighted(median(map(_weight, one)), _updates(one)) for one in members.values())
    usual = weighted_median(weights) if members else 0.0
    return {part.feed: _weight(part) / usual if usual else 1.0 for part in parts}


class Weighted(NamedTuple):
    """A figure about a member, and the member's number of updates as the figure's weight."""

    value: float
    weight: float


def weighted_median(figures: Iterable[Weighted]) -> float:
    """Return the median of members' figures, weighted with their updates. No member has more than half of the
    weight that all others have together.

    Without weights, a hundred strangers with one update each would decide the median. Without the bound on
    weights, the member with most updates would decide it.
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
    """Return the parts of each member, keyed by member number, so that a member with many feeds counts once
    in a median."""
    found: dict[int, list[Part]] = {}
    for part in parts:
        found.setdefault(part.feed // INCARNATIONS, []).append(part)
    return found


def _drift(parts: Sequence[FeedScore]) -> float:
    """Return the mean score of an update in these parts."""
    return sum(part.score * math.sqrt(part.updates) for part in parts) / _updates(parts)


def _mean(values: Sequence[float], weights: Sequence[float]) -> float:
    """Return the weighted mean."""
    return sum(weight * value for weight, value in zip(weights, values, strict=True)) / sum(weights)


def _shares(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Return for each value the share of its distance from the mean that is real rather than chance. Chance
    has the variance 1 / weight. All shares are 0 if chance explains the differences."""
    mean, total, free = _mean(values, weights), sum(weights), len(values) - 1
    beyond = sum(weight * (value - mean) ** 2 for weight, value in zip(weights, values, strict=True)) - free
    if beyond <= math.sqrt(2 * free):
        return [0.0] * len(values)
    spread = beyond / (total - sum(weight**2 for weight in weights) / total)
    return [spread / (spread + 1 / weight) for weight in weights]


def _weight(part: Part) -> float:
    """Return the approximate weight of one update of a feed, in units of 10^-9 nats. The worth of n updates
    is about sqrt(n) times this weight if their signs are random, and z sqrt(n) times if their score is z."""
    return abs(part.worth) / max(1.0, abs(part.score) / SCORE_ONE) / math.sqrt(part.updates)
