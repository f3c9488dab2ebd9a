"""Panels of validators: what their findings say together, and who is not to be believed (SPEC O18).

The control feed names members; by the salt of a close five of them are its panel, and each measures what each
feed has brought, on rows of its own. A share of them may collude: they see who is on a panel, and lie only
where they are most of it. So what is done with findings is decided by simulation (docs/benchmarks.md):

    every figure is the median         what one or two say of five moves it within the noise of the others
    scores are bounded (BEYOND)        where liars are most of a panel they say no more than work can
    an outlier is one by all findings  it costs a member the work of an epoch for good
    findings that are far apart        are checked: the organiser measures itself, its figures are signed,
    (DISPUTED), or of other feeds      and who is far from them (EVIDENT) measures no more. Liars who are not
                                       the whole panel cannot hide that, so that they lie once or twice

So are those of a panel of which more than one says nothing, as who is quick may have shut out the others; and
those by which a member would be revoked, as that is for good: nothing is said of it without a check. Where
the organiser has no time for a check the medians stand. Differences are taken beside the usual one of two
findings: where a step goes too far for some rows but not for others, all scores of honest ones differ. Nobody
is accused where it goes too far for the organiser's own. Who is often silent is not waited for, but may tell.

    an epoch is     left when
    awaited         all findings are here, LATE after the first one, or FINDINGS_WAIT
    checked         the organiser's own figures are known, or that it has none
    settled         it is sealed

This module knows no one who measures, and nothing of commitments: what it hears was taken by the protocol.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from enum import Enum
from statistics import median, median_low
from typing import NamedTuple

from sfnode.organising.evaluation.evidence import OUTLIER, SCORE_ONE, MembersEvidence, weights_of, worths_of
from sfprotocol.counting import NEVER, Counting
from sfprotocol.decisions import INCARNATIONS, Announce, Decision, Part, Validators, Worth
from sfprotocol.events import FindingHeard
from sfprotocol.validators import panel

QUORUM = 3
"""Findings without which nothing is said of a feed: of two nobody can say which one is wrong."""

MISSING = 1
"""Members of a panel who may say nothing before what the others say is checked."""

BEYOND = 1.0
"""Standard deviations by which a score may exceed that of usual work of as many updates, either way, by the
finding that has the least of that. Without a bound one epoch in which liars are most of a panel decides for
long; one that does not grow with the updates would make the score of whoever has many a poor one."""

NOISE = 2.0
"""Variance of the difference of two scores of the same updates by other rows, at most: 1 of each."""

OPPOSITE = 2.0
"""Standard deviations from which on scores that go the other way are no accident."""

DISPUTED, EVIDENT = 3.0, 6.0
"""Natural logarithms of one over the chance with which honest findings differ as much, from which on they are
checked, and from which on a validator whose finding differs so from a check measures no more."""

FINDINGS_WAIT = 120.0
"""Seconds after which nobody is waited for if no finding has come: 128 forwards of half a second each, and as
much again until they are revealed."""

LATE = 25.0
"""Seconds after the first finding after which the others are not waited for: who has not committed then can
no longer do so, and who has reveals within 20 s."""

SILENCES, ASKED_AGAIN = 2, 8
"""Panels in a row of which a member has told nothing, after which it is not waited for; but at every so many
epochs it is, as it may be back, or others may have shut it out."""

MOST_ROWS, MOST = (1 << 32) - 1, (1 << 63) - 1
"""Largest numbers of rows and other figures that a decision can hold. A finding may have as large ones, of
which neither sums nor halves of sums need be in range."""


class PanelFinding(NamedTuple):
    """Figures that one validator has measured of an epoch."""

    rows: int
    parts: tuple[Part, ...]
    """Ascending by feed."""


# -- what findings say -----------------------------------------------------------------------------------


def middle(findings: Sequence[PanelFinding]) -> tuple[Part, ...]:
    """Return the median figures of every feed of which QUORUM findings tell, with bounded scores; as an
    outlier only who is one by all findings."""
    found = _medians(findings)
    weights, sure = weights_of(found), set[int]().union(*(_outliers(one.parts) for one in findings[:1]))
    sure.intersection_update(*(_outliers(one.parts) for one in findings))
    usual = min(map(_usual, findings), default=0.0)
    return tuple(_bounded(part, 1.0 if part.feed in sure else weights[part.feed], usual) for part in found)


def _outliers(parts: Sequence[Part]) -> set[int]:
    return {feed for feed, times in weights_of(parts).items() if times > OUTLIER}


def _usual(finding: PanelFinding) -> float:
    """Return the size of the usual feed's score by a finding, for one update."""
    sizes = [abs(part.score) / math.sqrt(part.updates) for part in finding.parts]
    return median(sizes) if sizes else 0.0


def _bounded(part: Part, times: float, usual: float) -> Part:
    """Return a part with a score that work can have, and a worth with which it evidently is no outlier if
    that of now weighs so many `times` as much as usual."""
    most = round(BEYOND * SCORE_ONE + usual * math.sqrt(part.updates))
    worth = round(part.worth * OUTLIER / 2 / times) if times > OUTLIER / 2 else part.worth
    return part._replace(worth=worth, score=max(-most, min(most, part.score)))


def _medians(findings: Sequence[PanelFinding]) -> tuple[Part, ...]:
    said: dict[int, list[Part]] = {}
    for finding in findings:
        for part in finding.parts:
            said.setdefault(part.feed, []).append(part)
    return tuple(_median(parts) for _, parts in sorted(said.items()) if len(parts) >= QUORUM)


def _median(parts: Sequence[Part]) -> Part:
    score, worth = (
        max(-MOST, min(MOST, round(median(figures))))
        for figures in zip(*((p.score, p.worth) for p in parts), strict=True)
    )
    return parts[0]._replace(worth=worth, score=score)


def _rows(findings: Sequence[PanelFinding]) -> int:
    """Return the rows of all findings together, as if all had as many as the median one."""
    return min(MOST_ROWS, len(findings) * median_low(finding.rows for finding in findings))


class Apart(NamedTuple):
    """A difference between what two say of an epoch."""

    doubt: float = 0.0
    """Natural logarithm of one over the chance, at least, with which honest ones differ as much."""
    feed: int = 0
    """The feed of which they say most different things."""


def apart(ours: Iterable[Part], theirs: Iterable[Part]) -> Apart:
    """Return how far apart two are in their scores, beside the difference of what they say of the usual feed.

    Where a step goes too far for our rows all scores by these are smaller, so that a share of theirs is no
    difference either, unless we evidently say the opposite. By the tail of a sum of squares of normal
    numbers: it exceeds k + 2 sqrt(k x) + 2 x in one of e^x cases at most (Laurent and Massart, 2000).
    """
    said, other = ({part.feed: part.score / SCORE_ONE for part in parts} for parts in (ours, theirs))
    both = sorted(said.keys() & other.keys())
    if not both:
        return Apart()
    one, two = (_centred([scores[feed] for feed in both]) for scores in (said, other))
    size = math.hypot(*two)
    share = sum(x * y for x, y in zip(one, two, strict=True)) / size**2 if size else 1.0
    share = 1.0 if share * size < -OPPOSITE else min(1.0, max(0.0, share))
    off = [(x - share * y) ** 2 / NOISE for x, y in zip(one, two, strict=True)]
    root = math.sqrt(max(0.0, 2 * sum(off) - len(off))) - math.sqrt(len(off))
    return Apart(max(0.0, root) ** 2 / 4, both[off.index(max(off))])


def _centred(scores: Sequence[float]) -> list[float]:
    usual = median(scores)
    return [score - usual for score in scores]


def disputed(findings: Sequence[PanelFinding], members: int) -> bool:
    """Return whether one of these is far from their middle, calls another feed an outlier or tells of other
    feeds than the rest; or too many of so many members of a panel are missing."""
    if len(findings) < members - MISSING:
        return True
    if len({frozenset(part.feed for part in finding.parts) for finding in findings}) > 1:
        return True
    found = _medians(findings)
    if any(apart(finding.parts, found).doubt > DISPUTED for finding in findings):
        return True
    return len({frozenset(_outliers(finding.parts)) for finding in findings}) > 1


# -- panels ----------------------------------------------------------------------------------------------


class Says(Enum):
    """The word of the panel of an epoch."""

    NOTHING = "fewer findings than QUORUM, or none as yet"
    AGREED = "figures that are signed, or to be signed"
    DISPUTED = "figures that the organiser is to check"


class Panels:
    """The findings about closed epochs that have no seal yet, as one organiser has heard them."""

    def __init__(self, known: MembersEvidence, now: float) -> None:
        """`known`: the evidence about members by the decisions so far, which others keep up to date."""
        self._known = known
        self._heard: dict[int, dict[int, PanelFinding]] = {}
        """Findings by epoch and validator."""
        self._epoch, self._since, self._first = -1, now, now
        """The epoch that is the next to be sealed, since when, and when the first finding about it came."""
        self._panel: tuple[int, ...] = ()
        """Its panel."""
        self._expected: set[int] = set()
        """Members of the panel who are waited for."""
        self._silences: dict[int, int] = {}
        """Epochs in a row, by validator, for which it was waited, and of which it has told nothing as yet."""
        self._settled, self._unchecked = -1, -1
        """The latest epoch of which figures are signed, or to be; and that could not be checked."""
        self._judged: tuple[tuple[int, ...], bool] = (), False
        """Whether findings are in doubt, after what that follows from."""
        self._gone: dict[int, str] = {}
        """Validators who are to measure no more, with what is announced of them."""
        self._announcing: list[str] = []

    def hear(self, heard: FindingHeard, counting: Counting, now: float) -> None:
        """Take in the first finding of a member of the panel of an epoch that has no seal yet."""
        epoch = heard.epoch
        if heard.member not in _panel(counting, epoch):
            return
        self._forget(counting.sealed)
        self._silences.pop(heard.member, None)
        known = self._heard.setdefault(epoch, {})
        self._first = now if not known else self._first
        named = {
            feed: counting.named(feed, epoch) - counting.named(feed, epoch - 1)
            for feed in counting.moved(epoch)
        }
        parts = (part._replace(updates=named[part.feed]) for part in heard.parts if part.feed in named)
        known.setdefault(heard.member, PanelFinding(heard.rows, tuple(parts)))

    def _forget(self, before: int) -> None:
        """Forget what was heard of earlier epochs."""
        self._heard = {epoch: found for epoch, found in self._heard.items() if epoch >= before}

    def is_awaited(self, counting: Counting, now: float) -> bool:
        """Return whether findings about the next epoch to be sealed are waited for."""
        epoch = counting.sealed
        if self._epoch != epoch:
            self._epoch, self._since = epoch, now
            self._panel, self._expected = _panel(counting, epoch), set[int]()
            self._forget(epoch)
            self._expect(counting)
        known = self._heard.get(epoch, {})
        if epoch <= self._settled or self._expected <= known.keys():
            return False
        return now < (self._first + LATE if known else self._since + FINDINGS_WAIT)

    def _expect(self, counting: Counting) -> None:
        """Make out who of the panel is waited for, and count it as silent until it is heard."""
        silences = self._silences
        again = self._epoch % ASKED_AGAIN == 0
        expected = {one for one in self._panel if again or silences.get(one, 0) < SILENCES}
        if len(expected) < QUORUM or not counting.moved(self._epoch):
            return
        self._expected = expected
        for member in expected - self._heard.get(self._epoch, {}).keys():
            silences[member] = silences.get(member, 0) + 1

    def says(self, epoch: int) -> Says:
        """Return what is known of the next epoch to be sealed, once nobody is waited for any more."""
        findings = list(self._heard.get(epoch, {}).values())
        if epoch <= self._settled:
            return Says.AGREED
        if len(findings) < QUORUM:
            return Says.NOTHING
        if self._unchecked == epoch:
            return Says.AGREED
        facts = epoch, len(findings), len(self._panel), len(self._known.said)
        if self._judged[0] != facts:  # to judge takes a second with 4,096 feeds: not at each look
            harmful = self._found_harmful_by(epoch, middle(findings))
            self._judged = facts, bool(harmful) or disputed(findings, len(self._panel))
        return Says.DISPUTED if self._judged[1] else Says.AGREED

    def _found_harmful_by(self, epoch: int, parts: tuple[Part, ...]) -> set[int]:
        return self._known.found_harmful_by(Worth(epoch, 0, parts))

    def settle(self, epoch: int, *, check: bool) -> list[Worth]:
        """Return what is to be signed of an epoch for which nobody is waited any more, once: nothing where
        it is in doubt and there is time to `check` it."""
        says = self.says(epoch)
        if epoch <= self._settled or says is Says.NOTHING or (says is Says.DISPUTED and check):
            return []
        self._settled, findings = epoch, list(self._heard[epoch].values())
        parts = middle(findings)
        while harmful := self._found_harmful_by(epoch, parts):  # without these others may be the usual ones
            parts = tuple(part for part in parts if part.feed // INCARNATIONS not in harmful)
        return worths_of(epoch, _rows(findings), parts)

    def checked(self, epoch: int, own: list[Worth]) -> list[Worth]:
        """Take in the organiser's own figures of an epoch, none if it has failed to measure it; return what
        is to be signed of them."""
        parts = [part for worth in own for part in worth.parts]
        if not parts:
            self._unchecked = epoch
            return []
        sound = median(part.score for part in parts) > 0
        for member, finding in sorted(self._heard.get(epoch, {}).items() if sound else ()):
            off = apart(finding.parts, parts)
            if off.doubt > EVIDENT:
                self._gone[member] = _accusation(epoch, member, off.feed, finding.parts, parts)
        late, self._settled = epoch <= self._settled, max(epoch, self._settled)
        return [] if late else own

    def due(self, counting: Counting) -> Decision | None:
        """Return what is to be signed of validators who are to measure no more: those who are left, and then
        an announcement. Those go, too, whose own work is revoked."""
        if self._announcing:
            return Announce(self._announcing.pop(0))
        named = counting.validators
        left = tuple(n for n in named if n not in self._gone and counting.members[n].revoked == NEVER)
        self._announcing = [self._gone[member] for member in named if member in self._gone]
        self._gone.clear()
        return Validators(left) if left != named else None


def _panel(counting: Counting, epoch: int) -> tuple[int, ...]:
    """Return the members who are to measure an epoch that is closed and has no seal; nobody of another."""
    if not counting.sealed <= epoch < counting.open_epoch:
        return ()
    salt, members = counting.drawn_from(epoch)
    return panel(members, salt)


def _accusation(epoch: int, member: int, feed: int, said: Iterable[Part], own: Iterable[Part]) -> str:
    """Return what is told of a validator who is to measure no more."""
    theirs, ours = (
        next(part.score / SCORE_ONE for part in parts if part.feed == feed) for parts in (said, own)
    )
    return (
        f"member {member} measures no more as a validator: of round {epoch} it gave the work of member "
        f"{feed // INCARNATIONS} a score of {theirs:+.1f}; measured again by the organiser it is {ours:+.1f}"
    )
