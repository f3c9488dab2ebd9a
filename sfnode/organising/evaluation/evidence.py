"""Evidence about members, by the contribution of their work in each epoch as measured before the seal.

The engine measures it (`sfnode.engine.line`), from one gradient on validation rows whatever the number of
origins. Its figures stand in the control feed as Worth decisions (SPEC O16). The evidence here is a function
of these alone, so all readers of the feed know for whom it speaks.

Theory of operation. If the scalars of n updates are useless (random signs), their score z adds up to a random
walk with steps of variance 1 / n, however large the scalars are. If they were measured, it drifts by
m sqrt(n). Updates of one mini-batch share its peculiarities, and n counts as many independent updates as
would say as much (`alike`). m is estimated from the swarm, by the median over its members. The test asks for
SHARE of that, because a useful member with rows of another kind agrees less with the validation rows. With
d = SHARE * m, two sums over epochs follow, and a comparison:

    for       the log-likelihood ratio of `drifts by d` against `does not`: sum of d sqrt(n) z - d^2 n / 2.
              It is kept at or below MOST_EVIDENCE, so that a member that turns hostile is found as soon as a
              newcomer. One epoch of new work adds no more than that, and takes twice as much at most
              (LEAST_BY_EPOCH). Work is skipped while the sum is below TRUSTED_FROM, where it begins (a lower
              bound where hardly any evidence comes: SOON). Skipped work counts after all (is recounted) once
              the sum, in which skipped work is included, is above RECOUNTED_FROM; so nobody can hide bad work
              behind good. Waiting costs little, and work that has counted stays. Just before a run ends all
              waiting work of members above RECOUNTED_AT_LAST counts, with a factor of its own.
    agreement the member's likely drift as a share of the usual one, as members differ: how far its scores lie
              from the median member's in the same epochs, shrunk by as much as chance alone makes members
              differ (empirical Bayes; DerSimonian and Laird 1986). Work is skipped while that is below
              WORTHWHILE, too. The sum above asks whether the scores of one member alone tell it from a
              useless one. That takes hundreds of updates where scores say little; a member that teaches a
              wrong label differs from the others long before.
    against   the wealth that bets against `does no harm`, a drift that is not below 0: the product of
              e^(-d sqrt(n) z - d^2 n / 2), spread over all beginnings. By Ville's inequality it exceeds
              1 / FALSE_REVOCATIONS with that probability at most, however long the run is. On average it only
              grows where the drift is below -d / 2: useless work is skipped, never revoked.

In a first-order run one cosine of an update with the slopes says as much as hundreds of scalars, and there
are few updates. A score covers SCORED_ROUNDS, and tells by itself, beside the median member's. The evidence
is the log-likelihood ratio of `as good as others` against `of no use`, s z - s^2 / 2, with the usual score s
(at least LEAST_SCORE) and a member's score z. Work is skipped while the evidence is below LIKELY. The further
it falls below twice LIKELY, the higher it must rise before work counts again, up to TRUSTED_FROM. Otherwise a
member that flips signs would count again merely because later scores say less. Nothing is added up, and
nobody is revoked. Limits bound the harm of a round, and a skipped member does none.

Scores do not depend on the size of scalars. Work that weighs far more in one epoch than the updates of others
(OUTLIER) is skipped by the seal of that epoch and never recounted. A member that often makes such work is
skipped (OFTEN), and EXTREME work takes evidence to make good. Work that is merely large is found by its size
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
"""Number of units of a published score in one standard deviation."""

HOSTILE = 0.3
"""Assumed maximum share of hostile members. As it is below a half, the median member is an honest one."""

TRUSTED_FROM = 0.0
"""Minimum evidence, a log-likelihood ratio, at which work counts at once. A member without measurements has
just as much. With a minimum of log 3/7 twice as much useless work counted (docs/research-log.md). At log 3/7
a member is as likely useful as not, if a share of HOSTILE is hostile."""

DOUBTED = -2.0
"""Score below which a member's work in an epoch of a linear head is skipped, until it is measured again.

Scores are no random walk there. Thousands of updates are measured on one member's few hundred rows, and each
epoch's on the same validation rows. Any chance disagreement of these rows continues from epoch to epoch, and
adds up to any evidence. So one honest member of four was skipped in all of a run on SST-2. Hence nothing is
added up and nobody revoked. A score is the worth's over the rows (SPEC O16).
"""

SCORED_ROUNDS = 16
"""Number of rounds over which a score is taken in a first-order run, about as many as a run has. Noise
hides the direction of one round's updates, and their sum shows it. With 8 rounds three members who
flip signs cost seven nodes 5 % of their gain, with 16 rounds 3 % (benchmarks/first_order.py)."""

LEAST_SCORE = 0.7
"""Minimum score assumed for the usual member in a first-order run. Hostile members may pull the median down,
or little may be left to learn; members who drift the other way are told from this score. With 0 three who
flip signs cost 9 % of the gain; with 1.5 a fifth more honest work was skipped."""

LIKELY = math.log(HOSTILE / (1 - HOSTILE))
"""Minimum evidence at which work continues to count in a first-order run, where evidence is measured anew and
not added up. It is the log odds of HOSTILE."""

RECOUNTED_FROM = 1.0
"""Minimum evidence at which skipped work counts after all, if it was made at no larger rate than the present
one. Otherwise work of members of all kinds has spoilt runs (docs/research-log.md). The minimum is above
TRUSTED_FROM, as a third of useless members comes back to that at some time."""

GAIN_BY_COST = 3.0
"""Gain of a useful update, as a multiple of the cost of a useless one. Line searches take about half of the
best step. There the gain is three quarters of slope times step, and the cost one quarter."""

RECOUNTED_AT_LAST = math.log(HOSTILE / (1 - HOSTILE) / GAIN_BY_COST)
"""Minimum evidence at which skipped work counts just before a run ends. At this evidence such work gains as
much as it costs, if a share of HOSTILE is useless."""

WORTHWHILE = 1 / (1 + GAIN_BY_COST)
"""Minimum drift, as a share of the usual drift, at which an update gains more than it costs."""

SOON = 1 / 8
"""Minimum evidence, as one epoch brings it for a useful member on average, with which work must wait below
TRUSTED_FROM. If epochs bring less, the bound is lower, down to RECOUNTED_AT_LAST, from which on work gains as
much as it costs. Otherwise waiting would never end where scores say hardly anything."""

MOST_EVIDENCE = 2.0
"""Maximum evidence kept for a member. A useless member reaches it in one of e^2 = 7 cases. From there one of
55 honest members with the usual drift falls below TRUSTED_FROM."""

LEAST_BY_EPOCH = -2 * MOST_EVIDENCE
"""Minimum (largest negative) evidence that one epoch of a feed brings for new work; the maximum is
MOST_EVIDENCE. So flipped work loses up to twice what good work gains. Updates of an epoch were measured at
the same weights, in the middle of the same step. Where others have spoilt these, hundreds are wrong at once,
which is one event. Without this minimum one such epoch took 30. Its author waited until the end, as later
epochs bring less."""

SHARE = 2 / 3
"""Share of the usual drift that the test asks for. On average evidence then favours every member with more
than a third of the usual drift. If the test asked for the full drift, every second honest member would be
skipped at some time. If it asked for half, half as much again of useless work would count."""

FALSE_REVOCATIONS = 1e-4
"""Share of harmless members who are revoked by accident in a whole run."""

LEAST_MEMBERS = 3
"""Minimum number of measured members from whom anything is concluded about vouched members, unless their work
is skipped already. Of two nobody can say which one is usual. Strangers are still judged by vouched members
(`references`)."""

MEMORY = 0.95
"""Factor by which each measured epoch of a member reduces the weight of its earlier measurements, in its
drift and in its share of outliers. The drift of all members falls as a run continues. With 0.98, where it had
fallen from 0.7 to 0.1, three times as many epochs of honest newcomers were skipped (docs/research-log.md)."""

LONG_MEMORY = 0.98
"""MEMORY for comparisons of members in the same epochs, in which nothing falls. With 0.95 a seventh less of
flipped work was skipped."""

OUTLIER = 16.0
"""Weight of a feed's updates above which the feed is an outlier, as a multiple of the median member's.

Without a measured limit a scalar may be hundreds of times the usual size. With one, 8 times their root mean
square before the run and two to five times less later, hardly any outlier occurs, and evidence must do.
(Three who scaled on AG News were outliers one to nine times in a run of 25 epochs.) Scalars of honest nodes
have heavy tails. With 8 two in a hundred of their updates were an outlier's, and lost for good.
"""

EXTREME = 128.0
"""Weight, as a multiple of the median member's, above which rows of any kind cannot explain an outlier. It
sets its member's evidence so far back that good work must make up for it. Of 52 honest outliers among 60,000
updates without a limit the largest weighed 125 times as much as the median."""

OFTEN, NEWCOMER = 1 / 3, 3.0
"""Maximum share of a member's epochs in which oversized scalars may be accidents, and number of good epochs
that a newcomer is credited with. A member that blows scalars up by 30 is an outlier in six epochs of ten. Of
16 honest members without a limit, once the others had nothing left to learn, one was an outlier in one epoch
of seven, and nobody else in one of twenty."""

FAR = 2.0
"""Maximum difference of a member's drift from the usual one, as a multiple of the usual drift plus a standard
error. Larger differences are cut to it. Otherwise the chance differences of others would pass for real where
a few lie further off."""

MEDIAN_ERROR = 1.25
"""Standard error of a median of normal numbers, as a multiple of their mean's: the root of pi / 2."""

SQUARE, SQUARE_ERROR = 0.455, 1.06
"""Median of the square of a standard normal number, and its standard error for one number: half of the
reciprocal of the density there, which is 0.471."""

PARTS_PER_WORTH = 7_000
"""Maximum number of parts in one decision. At 28 bytes each they fit MAX_DECISION."""


DISPERSED = 5.0
"""Variance of an honest score in a first-order run, as a multiple of a random vector's. Cosines of
mini-batches of 8 with the validation gradient vary by 0.12, while chance makes 0.055 in 336 cells. Gradients
and their noise lie along the same few directions."""

UNLIKE = 0.1
"""Variance of the cosine of a mini-batch's gradient and the validation gradient, from one mini-batch to the
next: 0.31^2 for 32 answers of the untrained SmolLM2 (docs/research-log.md). It grows as a run learns."""


def alike(training: Training) -> float:
    """Return the number of updates that together say as much about their author as one update that is
    measured alone.

    A group's updates share one mini-batch. Its peculiarities show wherever two of them change the same cell
    of a core, which happens with probability 1 / rank^2 in each layer.
    """
    if training.is_first_order:
        return DISPERSED
    return 1 + UNLIKE * (training.batch_updates - 1) / training.rank**2


def parts_of(shares: Mapping[Feed, StepShare], run_state: RunState) -> tuple[Part, ...]:
    """Return the measurements as the parts of a Worth, ascending by feed; nothing if any figure is not
    finite."""
    figures = [figure for one in shares.values() for figure in (one.sum, one.squares, one.worth)]
    if not all(map(math.isfinite, figures)):
        return ()
    numbered = [(run_state.number(feed), one) for feed, one in shares.items() if one.updates]
    return tuple(sorted(_part(number, one) for number, one in numbered if number is not None))


def worths_of(epoch: int, rows: int, parts: Sequence[Part]) -> list[Worth]:
    """Return the decisions that publish these parts. Feeds are dealt out evenly among the decisions, because
    the usual score follows from one decision alone. Members who have come together would otherwise be
    compared with each other only."""
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
    """Number of independent updates."""
    score: float
    """Mean of their cosines beyond chance, in standard deviations."""


def _scored(part: Part, alike: float) -> FeedScore:
    return FeedScore(part.feed, part.updates / alike, part.score / SCORE_ONE / math.sqrt(alike))


@dataclass(slots=True)
class Evidence:
    """Evidence about one member."""

    updates: int = 0
    """Number of measured updates."""
    worth: int = 0
    """Sum of their worths at factor 1, in units of 10^-9 nats."""
    useful: float = 0.0
    """Evidence that the member is useful, as a log-likelihood ratio; at most MOST_EVIDENCE. One epoch changes
    it by a bounded amount."""
    balance: float = 0.0
    """The same ratio without that bound. It decides whether skipped work counts."""
    harm_since: int | None = None
    """Epoch in which evidence of harm began to grow; None if there is none. Stays once `harmful`."""
    harmful: bool = False
    """Whether the member's work evidently does harm. Stays once it is set."""
    bound: float = TRUSTED_FROM
    """Minimum evidence at which the member's work counts."""
    agreement: float = 1.0
    """Likely drift of the member, as a multiple of the usual drift."""
    _drift: float = 0.0
    """Discounted sum of sqrt(n) z over epochs."""
    weight: float = 0.0
    """Discounted sum of n: updates with a known drift."""
    beyond: float = 0.0
    """Discounted sum of sqrt(n) z - n mu, where mu is the median member's mean score in an epoch."""
    usual: float = 0.0
    """Discounted sum of n mu."""
    compared: float = 0.0
    """Discounted sum of n over epochs with a known mu."""
    _rounds: list[tuple[int, float]] = field(default_factory=list)
    """Last measured epochs of a first-order run, as pairs (epoch, number of updates)."""
    _epochs: int = 0
    _latest: float = NEWCOMER
    """Discounted number of measured epochs."""
    _outlying: float = 0.0
    """Discounted number of epochs in which the member was an outlier."""
    _harm: float = 0.0
    """Evidence of harm since epoch `harm_since`."""
    _doubt: float = -math.inf
    """Logarithm of the wealth that bets against `does no harm`."""

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
        """Share of the latest measured epochs in which the member was an outlier."""
        return self._outlying / self._latest

    @property
    def drift(self) -> float:
        """Mean score of an update."""
        return self._drift / self.weight if self.weight else 0.0

    def drifts(self, parts: Sequence[FeedScore], usual: float | None) -> None:
        """Add the scores of the member's feeds in one epoch to its drift. `usual` is the median member's
        drift, or None if too few members tell it."""
        drift, updates = _drift(parts), _updates(parts)
        self._drift = MEMORY * self._drift + updates * drift
        self.weight = MEMORY * self.weight + updates
        if usual is None:
            return
        self.beyond = LONG_MEMORY * self.beyond + updates * (drift - usual)
        self.usual = LONG_MEMORY * self.usual + updates * usual
        self.compared = LONG_MEMORY * self.compared + updates

    def sized(self, weight: float) -> None:
        """Note the weight of the member's work in an epoch: the largest of its feeds."""
        self._latest = MEMORY * self._latest + 1
        self._outlying = MEMORY * self._outlying + (weight > OUTLIER)
        if weight > EXTREME:
            self.useful = min(self.useful, RECOUNTED_AT_LAST) - MOST_EVIDENCE
            self.balance = min(self.balance, self.useful)

    def ask(self, expected: float) -> None:
        """Set `bound`, the evidence that the member's work needs to count. `expected`: evidence that the
        epoch was expected to bring, by all feeds of the member together. Otherwise one more feed with a
        single update would lower the bound."""
        share = min(1.0, expected / SOON)
        self.bound = TRUSTED_FROM + (1 - share) * (RECOUNTED_AT_LAST - TRUSTED_FROM)

    def measured(self, part: Part) -> None:
        """Add a measurement to the sums."""
        self.updates += part.updates
        self.worth += part.worth

    def lately(self, epoch: int, parts: Sequence[FeedScore]) -> Weighted:
        """Note the member's work in an epoch of a first-order run. Return its score, and the number of
        updates in the rounds that the score covers."""
        updates = _updates(parts)
        self._rounds = [one for one in self._rounds if one[0] > epoch - SCORED_ROUNDS] + [(epoch, updates)]
        score = sum(one.updates * one.score for one in parts) / updates
        return Weighted(score, sum(made for _, made in self._rounds))

    def beside(self, score: float, usual: float) -> None:
        """Set the evidence by the member's score and the usual member's."""
        usual = max(LEAST_SCORE, usual)
        if self.trusted:
            self.bound = LIKELY
        else:
            self.bound = min(TRUSTED_FROM, max(self.bound, 3 * LIKELY - self.useful))
        self.useful = self.balance = usual * (score - usual / 2)

    def latest(self, parts: Sequence[FeedScore]) -> None:
        """Set the evidence by the last measurement alone, as for a linear head."""
        self.useful = self.balance = _drift(parts) * math.sqrt(_updates(parts))
        self.bound = DOUBTED

    def take(self, epoch: int, part: FeedScore, drift: float) -> None:
        """Add the measurement of an epoch in which a useful member has at least this drift."""
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
    """Return the logarithm of the sum of two numbers, given their logarithms."""
    most = max(one, other)
    return most + math.log(math.exp(one - most) + math.exp(other - most))


class MembersEvidence:
    """Evidence about all members of a run, by the measurements in its control feed."""

    def __init__(self, *, kept: bool = False, alike: float = 1.0, summed: bool = False) -> None:
        """`kept`: the run trains a linear head, and every epoch is measured on all rows. `summed`: it is a
        first-order run, whose scores cover several rounds."""
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
        """Take in the scores of a first-order run. Expected scores grow with the root of the number of
        updates."""
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
        """Take in the drifts of an epoch. Return the drift that is asked of each member who can be judged,
        keyed by member number.

        If too few members are there to show the usual drift, nothing is concluded about members whose work
        counts. Members whose work is skipped would then wait for good, so they are judged by the usual drift
        of all such members, themselves included.
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
        """Estimate the drift of each member from its differences to the others.

        With n known updates a mean score has a variance of 1 / n by chance. Members differ by the variance
        beyond that (method of moments), if it exceeds its standard error; otherwise all of them are usual.
        They are compared epoch by epoch, because latecomers would differ from the others otherwise as the
        drift of all falls. They are compared with the median member, because the member with most updates
        would itself be the mean.
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
        """Return the drift of an honest member, by the parts of these members; 0 if there is none, or the
        median is not positive.

        It is the median of squares, less the noise in it and the noise's standard error. A member that flips
        signs drifts as far as the others; the median of the drifts themselves would be a lesser honest one's.
        It is at most the median drift of these parts, beyond noise: where the whole step goes too far, or few
        members bend it, scores say nothing about single members. Where this bound evidently holds and the
        drift is asked of `others`, who cannot lower it, it is the median drift itself. What spoils their work
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
    """Return the members of an epoch whose figures show what is usual, and the members who are judged by it.
    Usually both sets are all members. If there are fewer than LEAST_MEMBERS, strangers are judged by the
    vouched members; without any vouched member both sets are empty."""
    if len(members) >= LEAST_MEMBERS:
        return set(members), set(members)
    telling = set(filter(vouched, members))
    return telling, set(members) - telling if telling else set()


def _weights(members: Mapping[int, Sequence[Part]], parts: Sequence[Part]) -> dict[int, float]:
    """Return the weights of parts as multiples of these members' median; 1 if there are no members."""
    weights = (Weighted(median(map(_weight, one)), _updates(one)) for one in members.values())
    usual = weighted_median(weights) if members else 0.0
    return {part.feed: _weight(part) / usual if usual else 1.0 for part in parts}


class Weighted(NamedTuple):
    """A member's figure, and its number of updates."""

    value: float
    weight: float


def weighted_median(figures: Iterable[Weighted]) -> float:
    """Return the median of members by their updates, where no member counts more than half as much as all
    others.

    Counted by heads, a hundred strangers with an update each would decide the median. Counted by updates
    alone, the member with most of them would.
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
    """Return the parts of each member. A member with many feeds counts once in a median."""
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
    """Return which share of each value's distance from their mean is real rather than chance, where chance
    has variance 1 / weight; 0 for all if chance explains the differences."""
    mean, total, free = _mean(values, weights), sum(weights), len(values) - 1
    beyond = sum(weight * (value - mean) ** 2 for weight, value in zip(weights, values, strict=True)) - free
    if beyond <= math.sqrt(2 * free):
        return [0.0] * len(values)
    spread = beyond / (total - sum(weight**2 for weight in weights) / total)
    return [spread / (spread + 1 / weight) for weight in weights]


def _weight(part: Part) -> float:
    """Return about the weight of one update of a feed, in units of 10^-9 nats. The worth of n updates with
    random signs is about sqrt(n) times that, and z times as much with a score of z."""
    return abs(part.worth) / max(1.0, abs(part.score) / SCORE_ONE) / math.sqrt(part.updates)
