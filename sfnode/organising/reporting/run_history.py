"""The history of an organised run, computed from its control feed for all views, commands and pages.

`Results` has the published results and verdicts. A `RunHistory` adds the outcome of each epoch and member
(SPEC O16), and every decision in words. Both follow from the control feed alone, except for the names that
origins give themselves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Self

from sfnode.manifest.training import Training
from sfnode.organising.evaluation import health
from sfnode.organising.steps import Judgement
from sfnode.organising.verdicts import Verdicts
from sfnode.printable import called
from sfnode.schema.history import EpochEntry, HistoryEntry, OriginPart, Ranked, Verdict
from sfnode.schema.metrics import measured, metric_of, model_in_words
from sfnode.schema.node_state import Uncounted
from sfnode.schema.organising import EpochEvaluation
from sfprotocol.decisions import (
    FACTOR_ONE,
    INCARNATIONS,
    RATE_ONE,
    Admit,
    Amend,
    Announce,
    Bases,
    Budget,
    Checkpoint,
    Close,
    Decision,
    Elected,
    Evaluated,
    Finish,
    Invite,
    Oversized,
    Recorded,
    Recount,
    Revoke,
    RevokeInvitation,
    Seal,
    StandIns,
    Unknown,
    Validators,
    Void,
    Worth,
    read,
)
from sfprotocol.fields import NAMELESS, Names
from sfprotocol.messages import Entry, RunParameters, Succession
from sfprotocol.run_state import NEVER, RunState
from sfprotocol.weighing import Sum, worths

DIGITS = 16
"""Number of hex digits that texts show of keys and digests. They suffice for `sfnode organise` to recognise a
key."""


Called = Mapping[bytes, Names]
"""Names of origins, keyed by origin."""


class Results:
    """Results and verdicts that follow from the decisions. Each decision is read once, in order."""

    def __init__(self, training: Training | None = None) -> None:
        self.training = training
        self.read = 0, b""
        """Number of decisions that were read, and the signature of the last one. If the decision at this
        position still has this signature, all decisions before it are unchanged: only a succession replaces
        decisions, and the new ones have other signatures."""
        self.said: list[Decision] = []
        """Decisions that publish results or announcements, in order."""
        self.verdicts = Verdicts.of_run(training)
        """Verdicts on members."""

    def follow(self, entries: Sequence[Entry]) -> Self:
        """Take in the new decisions. Begin anew if earlier decisions have disappeared."""
        return self.read_on(lambda first: entries[first:])

    def read_on(self, control: Callable[[int], Sequence[Entry]]) -> Self:
        """Take in the new decisions as `follow` does. `control(first)` returns the decisions from position
        `first` on."""
        known, last = self.read
        entries = control(max(0, known - 1))
        if known and (not entries or entries[0].signature != last):
            self._begin()
            entries, known = control(0), 0
        for position, entry in enumerate(entries, max(0, known - 1)):
            if position >= known:
                self._take(position, entry, read(entry.record))
        self.read = max(0, known - 1) + len(entries), entries[-1].signature if entries else b""
        return self

    def _begin(self) -> None:
        """Forget all decisions."""
        Results.__init__(self, self.training)

    def _take(self, position: int, entry: Entry, recorded: Recorded) -> None:
        self.verdicts.take(recorded.decision)
        if isinstance(recorded.decision, Announce | Evaluated):
            self.said.append(recorded.decision)

    @property
    def evaluations(self) -> list[EpochEvaluation]:
        """Published results."""
        return health.evaluations(self.said)

    @property
    def announcements(self) -> list[str]:
        """Texts that were announced."""
        return [said.text for said in self.said if isinstance(said, Announce)]

    def verdict(self) -> health.HealthVerdict:
        """Return the health of the run."""
        guard = self.verdicts.guard
        assert guard is not None  # verdicts of a reader have a guard
        return guard.verdict()


class _Line(NamedTuple):
    """A decision in words. The words of seals and successions are completed only when they are shown."""

    position: int
    term: int
    kind: str
    text: str = ""
    epoch: int | None = None
    """Epoch that is closed or sealed."""


class RunHistory(Results):
    """History of a run, as its decisions tell it: epochs, members, and every decision in words."""

    def __init__(
        self, run: RunParameters, names: Called = MappingProxyType({}), training: Training | None = None
    ) -> None:
        """`names` may change later: words about a decision contain the names known when the decision is read.
        Without the manifest's `training` the reasons why seals leave work out are unknown."""
        super().__init__(training)
        self.run, self.names = run, names
        self.run_state = RunState.of(run)
        self.seals: list[Seal] = []
        """Seals of epochs, in their order."""
        self.worths: list[Worth] = []
        """Measurements of contributions, in order."""
        self._left_out: dict[Recount, Uncounted] = {}
        """Reasons why seals have left work out, keyed by this work, in order."""
        self._latest: dict[int, Uncounted | None] = {}
        """Reason why the last seal on a member's work left the work out, or None if it counted the work;
        keyed by member number."""
        self._lines: list[_Line] = []

    def _begin(self) -> None:
        self.__init__(self.run, self.names, self.training)  # type: ignore[misc]

    def _take(self, position: int, entry: Entry, recorded: Recorded) -> None:
        super()._take(position, entry, recorded)
        elected = isinstance(recorded.decision, Elected)  # the decision itself says that a term begins
        if not elected and entry.term != (self._lines[-1].term if self._lines else 0):
            self._lines.append(_Line(position, entry.term, "succession"))
        run_state, decision = self.run_state, recorded.decision
        sealed, closed = run_state.sealed, run_state.open_epoch
        run_state.apply(recorded)
        match decision:
            case Seal():
                if run_state.sealed > sealed:
                    self._judge(decision)
                    self.seals.append(decision)
                    self._lines.append(_Line(position, entry.term, "seal", "", decision.epoch))
                return
            case Close() if run_state.open_epoch == closed:
                return
            case Evaluated() if not health.evaluation(decision).base:  # shown with its seal
                return
            case Worth():
                self.worths.append(decision)
        kind, text = type(decision).__name__.lower(), in_words(decision, run_state, self.names)
        epoch = decision.epoch if isinstance(decision, Close) else None
        self._lines.append(_Line(position, entry.term, kind, text, epoch))

    def _judge(self, seal: Seal) -> None:
        """Record the feeds that a seal has left out, and why."""
        if not self.training:
            return
        for feed in self.run_state.moved(seal.epoch):
            reason = None
            if feed in seal.skipped:
                said = self.verdicts.on(feed, seal.epoch, self.run_state, _may_bring, Judgement())
                reason = self._left_out[Recount(feed, seal.epoch)] = said or Uncounted.JUDGE
            self._latest[feed // INCARNATIONS] = reason

    def reason(self, feed: int, epoch: int) -> Uncounted | None:
        """Return why a feed's updates in the close of `epoch` do not count now; None if they do."""
        run_state, named = self.run_state, Recount(feed, epoch)
        if epoch >= run_state.sealed:
            return Uncounted.WAITS
        if run_state.counts(feed, epoch):
            return None
        if run_state.is_skipped(named):
            return self._left_out.get(named, Uncounted.JUDGE)
        nothing = run_state.factor(feed, epoch) or not self.seals[epoch].factor
        return Uncounted.NOTHING if nothing else Uncounted.TAKEN_BACK

    def verdicts_on(self, member: int) -> list[Verdict]:
        """Return the verdicts on a member's work: for each of its feeds in each closed epoch the number of
        updates that count, and the reason why the other updates do not count."""
        return [
            Verdict(
                epoch=epoch,
                incarnation=feed % INCARNATIONS,
                named=self.run_state.named(feed, epoch) - self.run_state.named(feed, epoch - 1),
                counted=self.run_state.counts(feed, epoch),
                reason=self.reason(feed, epoch),
            )
            for epoch in range(self.run_state.open_epoch)
            for feed in self.run_state.moved(epoch)
            if feed // INCARNATIONS == member
        ]

    def members(self) -> list[Ranked]:
        """Return the contributions of members, ordered by worth and then by number of updates, the largest
        first."""
        sums, run_state = worths(self.run_state, self.worths), self.run_state
        numbers = range(len(run_state.members))
        known = {number: sums.get(number, Sum()) for number in numbers}
        counted = {number: run_state.counts_of(number) for number in numbers}

        def place(number: int) -> tuple[int, int, bytes]:
            return -known[number].worth, -counted[number], run_state.members[number].origin

        return [
            Ranked(
                rank=rank,
                origin=run_state.members[number].origin.hex(),
                name=name_of(run_state.members[number].origin, self.names),
                counted=counted[number],
                measured=known[number].updates,
                worth=known[number].worth,
                revoked=run_state.members[number].revoked < NEVER,
                left_out=self._latest.get(number),
            )
            for rank, number in enumerate(sorted(numbers, key=place), 1)
        ]

    def epochs(self) -> list[EpochEntry]:
        """Return the outcomes of sealed epochs."""
        evaluations = {one.epoch: one for one in self.evaluations if not one.base}
        return [self._epoch(seal, evaluations.get(seal.epoch)) for seal in self.seals]

    def entries(
        self, successions: Iterable[Succession] = (), arrivals: Sequence[int | None] = ()
    ) -> list[HistoryEntry]:
        """Return the decisions in order. An epoch's close and evaluation are part of the entry of its seal.
        `arrivals`: times at which decisions arrived on this node, by position. The times of the last
        decisions may be missing."""
        keys = {succession.term: succession.key for succession in successions}
        epochs, found = self.epochs(), list[HistoryEntry]()
        for position, term, kind, text, epoch in self._lines:
            if kind == "close" and epoch is not None and epoch < len(epochs):
                continue
            sealed = epochs[epoch] if kind == "seal" and epoch is not None else None
            said = self._sealed(sealed) if sealed else text or _succeeded(keys.get(term))
            arrived = arrivals[position] if position < len(arrivals) else None
            found.append(
                HistoryEntry(
                    position=position, term=term, kind=kind, text=said, arrived=arrived, epoch=sealed
                )
            )
        return found

    def _sealed(self, epoch: EpochEntry) -> str:
        seal = self.seals[epoch.epoch]
        again = sum(self.run_state.counts(*recount) for recount in seal.recounted)
        text = f"{epoch.counted:,} of {epoch.named:,} updates of round {epoch.epoch} count"
        left_out = Counter(self._left_out.get(Recount(feed, epoch.epoch)) for feed in seal.skipped)
        text += "".join(f", {feeds} left out ({reason})" for reason, feeds in left_out.items() if reason)
        return text + (f", and {again:,} of earlier ones that had been skipped" if again else "")

    def _epoch(self, seal: Seal, evaluation: EpochEvaluation | None) -> EpochEntry:
        counts, run_state = Counter[bytes](), self.run_state
        for number in run_state.moved(seal.epoch):
            counts[run_state.feed(number).origin] += run_state.counts(number, seal.epoch)
        return EpochEntry(
            epoch=seal.epoch,
            named=run_state.closed_updates(seal.epoch),
            counted=counts.total(),
            factor=seal.factor / FACTOR_ONE,
            rate=run_state.rate(seal.epoch) / RATE_ONE,
            digest=seal.digest.hex(),
            evaluation=evaluation,
            origins=parts(counts, self.names),
        )


def _may_bring(feed: int, epoch: int, run_state: RunState, labels: range) -> bool:
    """Return whether a close may list updates with one of these labels. Whether it does, only the log could
    tell."""
    return labels.start <= epoch


def parts(counts: Mapping[bytes, int], names: Called) -> list[OriginPart]:
    """Return the origins with at least one update. The origin with the most updates comes first."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [
        OriginPart(origin=origin.hex(), name=name_of(origin, names), updates=updates)
        for origin, updates in ordered
        if updates
    ]


def name_of(origin: bytes, names: Called) -> str | None:
    """Return the name that an origin gives itself; None if it gives none."""
    return names.get(origin, NAMELESS).name or None


def _succeeded(key: bytes | None) -> str:
    return "another key organises from here on" + (f": {key.hex()[:DIGITS]}" if key else "")


def in_words(decision: Decision, run_state: RunState, names: Called) -> str:
    """Return a decision in words. `run_state`: the state after the decision."""
    match decision:
        case Close(epoch=epoch, moves=moves):
            updates = sum(move.steps for move in moves)
            return f"closes round {epoch}, of {updates:,} updates, which are not judged yet"
        case Budget(updates=updates):
            return f"changes the budget to {updates:,} updates"
        case Finish():
            return "ends the run"
        case Bases(subspace=subspace, digest=digest):
            return f"publishes new directions of training, {digest.hex()[:DIGITS]}, number {subspace}"
        case Announce(text=text):
            return f"announces: {text}"
        case Evaluated():
            result = health.evaluation(decision)
            trained = metric_of(result.metric).trained
            loss = f"{trained.name} {trained.of(result.loss):.4f}"
            return f"tells of {model_in_words(result)}: {measured(result)}, {loss} {result.on_rows}"
        case Checkpoint(epoch=epoch, cores=cores):
            return f"states where the run is after round {epoch}, fingerprint {cores.hex()[:DIGITS]}"
        case Worth(epoch=epoch, rows=rows, parts=parts):
            return f"measures the work of {len(parts)} in round {epoch} on {rows:,} rows kept aside"
        case Oversized(epoch=epoch, feeds=feeds):
            return f"finds the work of {len(feeds)} in round {epoch} too large to count at once"
        case Unknown(kind=kind):
            return f"a decision of kind {kind}, which this version of sfnode does not know"
        case _:
            return _about_members(decision, run_state, names)


def _about_members(decision: Decision, run_state: RunState, names: Called) -> str:
    def member(number: int) -> str:
        if number >= len(run_state.members):
            return f"member {number}, nobody"
        return f"member {number}, {known_as(run_state.members[number].origin)}"

    def known_as(origin: bytes) -> str:
        return called(origin.hex()[:DIGITS], name_of(origin, names))

    match decision:
        case Admit(origin=origin, quota=quota, invitation=invitation):
            came = f", by invitation {invitation}" if invitation else ""
            whom = f"for {quota:,} updates a round" if quota else "as a stranger"
            return f"admits {known_as(origin)} {whom}{came}"
        case Invite(uses=uses):
            return f"publishes invitation {len(run_state.invitations)}, for {uses}"
        case Revoke(member=number, epoch=epoch):
            return f"revokes {member(number)} from round {epoch} on"
        case RevokeInvitation(invitation=number, epoch=epoch):
            return f"revokes invitation {number + 1}, and who came by it, from round {epoch} on"
        case Void(first=first, last=last, members=members):
            epochs = f"round {first}" if first == last else f"rounds {first} to {last}"
            whose = ", ".join(map(member, members))
            return f"takes back {epochs}{f' of {whose}' if members else ''}"
        case Validators(members=members):
            whom = ", ".join(map(member, members))
            return f"has rounds measured by {whom}" if members else "has no validators any more"
        case Amend(feed=feed, epoch=epoch):
            whose = member(feed // INCARNATIONS)
            return f"leaves out what round {epoch} has of {whose}, which is lost"
    return _about_stand_ins(decision)


def _about_stand_ins(decision: Decision) -> str:
    match decision:
        case StandIns(keys=keys) if keys:
            return f"names {len(keys)} who stand in for the organiser"
        case StandIns():
            return "nobody stands in any more"
        case Elected(key=key, ballots=ballots):
            return f"begins a new term: {len(ballots)} stand-ins have elected {key.hex()[:DIGITS]}"
    return str(decision)
