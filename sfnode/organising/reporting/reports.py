"""Reports that a node of an organised run can give, whether or not it has the organiser.

The module reads the run's decisions and what counts according to them; it changes nothing. Time is an
argument (seconds of any monotonic clock).
"""

from __future__ import annotations

import math
from copy import deepcopy
from typing import Protocol

from sfnode.manifest import Manifest
from sfnode.organising.admission import invited, work
from sfnode.organising.evaluation import health
from sfnode.organising.evaluation.evidence import FALSE_REVOCATIONS, RECOUNTED_AT_LAST, Evidence
from sfnode.organising.organiser import OrganiserState
from sfnode.organising.owner_decisions import link_in
from sfnode.organising.reporting.alarms import ALONE_FIX, Restarted, alarms
from sfnode.organising.reporting.run_history import Results
from sfnode.printable import command, part_of
from sfnode.schema.metrics import model_in_words, result_in_words, value_in_words
from sfnode.schema.node_state import HEALTH_WORDS, Wait
from sfnode.schema.organising import (
    Change,
    EpochEvaluation,
    EvidenceStatus,
    HealthStatus,
    JoinRequestList,
    JoinRequestStatus,
    Members,
    MemberStatus,
    OfferStatus,
    OrganiserStatus,
    StandInStatus,
    SubspaceBases,
    SuccessionFile,
)
from sfnode.schema.status import AlarmStatus, RunStatus, WaitStatus
from sfprotocol.control_feed import ControlFeed
from sfprotocol.decisions import (
    INCARNATIONS,
    Announce,
    Bases,
    Decision,
    Invite,
    Recorded,
    Seal,
    read,
)
from sfprotocol.join_requests import SEND_AGAIN
from sfprotocol.messages import Feed, JoinRequest
from sfprotocol.organised import Membership, Organised
from sfprotocol.run_state import NEVER, RunState
from sfprotocol.weighing import WORTH_ONE

EVALUATIONS, ANNOUNCEMENTS = 200, 10
"""Maximum numbers of evaluations and of announcements in a report; the latest are shown. A chart and a screen
have no room for more."""

DOUBTED = 100
"""Maximum number of members that a report lists because their work does not count for lack of evidence.
Nobody looks through more."""

LOOK_INTERVAL = 5.0
"""Seconds between two looks at the updates that wait for the organiser. A look takes 1.5 us for each feed."""

SILENT_TIME = 900.0
"""Seconds for which updates may wait without a decision before there is an alarm. An organiser closes an
epoch after ten minutes, however few updates it has (`OrganiserPolicy.longest_epoch`)."""

UNANSWERED_TIME = 2 * SEND_AGAIN
"""Seconds after which a join request without an answer probably waits for the run's owner."""

CUT_OFF = (
    "the organiser is here, and more than half of those who stand in do not answer: it decides nothing until "
    "they do, and they may elect another. Look at this machine's network, and ask them whether they are up"
)

KEY_DIGITS = 8
"""Number of hex digits of a newcomer's key that the owner types to admit it."""


class Signing(Protocol):
    """The organiser on a node that has the organiser's key."""

    @property
    def state(self) -> OrganiserState: ...

    @property
    def restarted(self) -> Restarted | None:
        """Wait of an organiser that does not sign yet."""
        ...

    @property
    def cut_off(self) -> bool:
        """Whether the organiser may sign, but too few stand-ins answer."""
        ...

    @property
    def guarded(self) -> bool:
        """Whether a guard takes back work when the run gets worse."""
        ...

    def join_requests(self) -> list[JoinRequest]:
        """Return the join requests that wait for the owner."""
        ...

    def offers(self) -> dict[int, bytes]:
        """Return the keys with which members offer to stand in, keyed by member number."""
        ...


class Reports:
    """Reports on one organised run."""

    def __init__(self, manifest: Manifest, organised: Organised, now: float) -> None:
        self._manifest = manifest
        self._organised = organised
        self._head = self._feed.stop, self._feed.chain
        self._term = self._feed.term
        """Length, chain hash and term of the control feed at the last call of `news`."""
        self._sealed, self._sealed_at = self.run_state.sealed, float("-inf")
        """Number of seals at the last call of `news`, and the time at which the last seal came; minus
        infinity if no seal has come since the start."""
        self._waiting_since, self._look_at = float("inf"), now
        """Time from which updates have been waiting without a decision (infinite if no updates wait), and
        time of the next look at this."""
        self._results = Results(manifest.training)
        self._verdict = self._results.verdict()

    @property
    def run_state(self) -> RunState:
        return self._organised.run_state

    @property
    def _members(self) -> dict[int, Evidence]:
        return self._results.verdicts.evidence.members

    @property
    def elects(self) -> bool:
        """Whether members may stand in for the organiser. They may from version 4 of the protocol on."""
        return self._feed.authority.terms > 1

    @property
    def _feed(self) -> ControlFeed:
        return self._organised.control.feed

    @property
    def begun(self) -> int:
        """Position of the decision that began the present term."""
        return self._feed.begun

    def status(
        self, organising: Signing | None, now: float, term_since: int | None = None
    ) -> OrganiserStatus:
        """Return the state of the run. `organising`: the organiser, if it is on this node. `term_since`: time
        at which the first decision of the present term came, in seconds since 1970."""
        run_state, feed, results = self.run_state, self._feed, self._look()
        return OrganiserStatus(
            run_id=self._manifest.run_id.hex(),
            run_name=self._manifest.name,
            term=feed.term,
            term_since=term_since,
            stand_ins=self.stand_ins(now),
            decisions=feed.stop,
            chain=feed.chain.hex(),
            incomplete=feed.misses_decisions,
            frozen=feed.frozen,
            unsupported=run_state.unsupported,
            open_epoch=run_state.open_epoch,
            sealed=run_state.sealed,
            counted=run_state.counted,
            budget=run_state.budget,
            complete=run_state.complete,
            quota=self._manifest.organised.quota,
            members=len(run_state.members),
            invitations=len(run_state.invitations),
            behind=self._organised.missing_updates,
            bases=[SubspaceBases(subspace=one.subspace, digest=one.digest.hex()) for one in run_state.bases],
            next_subspace=run_state.next_subspace(),
            organiser=organising.state.value if organising else None,
            waits=_restarted(organising),
            petitions=len(organising.join_requests()) if organising else None,
            health=self._health(),
            evaluations=self.evaluations(),
            doubted=self._doubted(),
            announcements=results.announcements[-ANNOUNCEMENTS:],
        )

    def run(self, own: Feed | None, organising: Signing | None, now: float) -> RunStatus:
        """Return a short form of the state of the run, with what a node with the feed `own` may do in this
        run."""
        run_state = self.run_state
        member = self._member_of(own)
        return RunStatus(
            sealed=run_state.sealed,
            counted=run_state.counted,
            members=len(run_state.members),
            behind=self._organised.missing_updates,
            seconds_since_seal=self._since_seal(now),
            organiser=organising.state.value if organising else None,
            member=member,
            quota=None if member is None else self._organised.quota(member),
            room=None if member is None else self._organised.room(own),
            health=self._health(),
            evidence=self._evidence(member),
            announced=next(reversed(self._look().announcements), None),
            term=self._feed.term,
            stand_ins=len(self._feed.stand_ins),
            stand_ins_here=len(self._organised.control.elections.present(now)),
        )

    def stand_ins(self, now: float) -> list[StandInStatus]:
        """Return the stand-ins. Each is marked as present if it was heard recently."""
        feed, present = self._feed, self._organised.control.elections.present(now)
        return [
            StandInStatus(
                member=member,
                key=key.hex(),
                here=key in present,
                organises=key == feed.key,
                lied=key in feed.liars,
            )
            for key, member in feed.standing.items()
        ]

    def alarms(self, organising: Signing | None, now: float, own: Feed | None = None) -> list[AlarmStatus]:
        """Return the alarms that somebody must see to, the gravest first. `own`: the feed of this node."""
        self._look()
        waits = now - self._waiting_since
        silence = (waits, self._since_seal(now)) if waits >= SILENT_TIME else None
        about = self._verdict, self._feed, self.run_state, silence, self._evidence(self._member_of(own))
        if organising is None:
            return alarms(*about, here=False)
        return alarms(*about, here=True, guarded=organising.guarded, restarted=organising.restarted)

    def wait(self, own: Feed | None, asked: float | None, organising: Signing | None) -> WaitStatus | None:
        """Return the reason why a node may not make updates now; None if it may. `asked`: seconds since the
        node first asked to be admitted; None if it has not asked."""
        if own is None or self.run_state.complete:
            return None
        match self._organised.membership(own):
            case Membership.UNKNOWN:
                text = "a decision of the organiser is of a later version: upgrade sfnode"
                return WaitStatus(reason=Wait.UNKNOWN_DECISION, text=text)
            case Membership.STRANGER:
                return self._not_admitted(own, asked, organising)
            case Membership.REVOKED:
                text = "the organiser has revoked its admission, so that nothing it makes would count"
                why = self._said_of(own) or self._harm_of(own)
                return WaitStatus(reason=Wait.REVOKED, text=text + why)
            case Membership.AHEAD:
                text = "decisions are lacking here that its own updates follow from; peers are asked for them"
                return WaitStatus(reason=Wait.DECISIONS, text=text)
            case Membership.BEGINNING:
                text = "it waits for the state of the run with which it is to begin"
                return WaitStatus(reason=Wait.HISTORY, text=text)
            case Membership.OUTDATED:
                text = "the state with which it begins does not count any more, and a later one has to come"
                return WaitStatus(reason=Wait.HISTORY, text=text)
            case Membership.ENOUGH:
                text = "what is closed reaches the budget: the run is complete once that is judged"
                return WaitStatus(reason=Wait.SEALS, text=text)
            case Membership.MEMBER:
                return None if self._organised.room(own) else self._no_room(own, organising)

    def news(self, now: float) -> list[str]:
        """Return what has happened since the last call, one line for each event. Of several seals or results
        only the last one has a line."""
        feed, head = self._feed, self._head
        if now >= self._look_at:
            self._look_at = now + LOOK_INTERVAL
            waits = not self.run_state.complete and self._organised.unnamed > 0
            self._waiting_since = min(now, self._waiting_since) if waits else float("inf")
        succeeded, self._term = feed.term > self._term, feed.term
        lines = [f"{self._by()} with this run; there is nothing for you to do"] if succeeded else []
        if head == (feed.stop, feed.chain):
            return lines
        self._head, self._waiting_since, self._look_at = (feed.stop, feed.chain), float("inf"), now
        if self.run_state.sealed > self._sealed:
            self._sealed_at = now
        self._sealed = self.run_state.sealed
        if head[0] < feed.stop and feed.chains[head[0]] == head[1]:
            lines += self._lines([read(entry.record).decision for entry in feed.entries[head[0] :]])
        return lines

    def _by(self) -> str:
        member = self._feed.standing.get(self._feed.key or b"")
        return "another organiser goes on" if member is None else f"member {member}, who stood in, goes on"

    def evaluations(self) -> list[EpochEvaluation]:
        """Return the last published results on the validation rows, oldest first."""
        return self._look().evaluations[-EVALUATIONS:]

    def seals(self, since: int) -> list[Seal]:
        """Return the seals of the epochs from `since` on, in their order."""
        found: dict[int, Seal] = {}
        for entry in reversed(self._feed.entries):
            if len(found) >= self.run_state.sealed - since:
                break
            said = read(entry.record).decision
            if isinstance(said, Seal) and since <= said.epoch < self.run_state.sealed:
                found[said.epoch] = said
        return [found[epoch] for epoch in sorted(found)]

    def members(self, offset: int, limit: int, find: str) -> Members:
        """Return a page of the members, in the order of their admission."""
        found = [n for n, one in enumerate(self.run_state.members) if one.origin.hex().startswith(find)]
        page = found[offset : offset + limit]
        invitations = {id(one): number for number, one in enumerate(self.run_state.invitations, 1)}
        return Members(total=len(found), offset=offset, members=[self._member(n, invitations) for n in page])

    def join_requests(self, organising: Signing | None) -> JoinRequestList:
        """Return the newcomers that wait for the owner, and the offers to stand in; empty if the organiser is
        not on this node."""
        run_id = self._manifest.run_id
        waiting = organising.join_requests() if organising else []
        return JoinRequestList(
            petitions=[
                JoinRequestStatus(
                    origin=join_request.origin.hex(),
                    work=work(run_id, join_request.origin, join_request.nonce),
                    invitation=join_request.invitation or None,
                    invited=invited(run_id, join_request, self.run_state),
                )
                for join_request in waiting
            ],
            offers=[
                OfferStatus(member=member, key=key.hex(), own=key == self._organised.control.key)
                for member, key in sorted(organising.offers().items() if organising else ())
            ],
        )

    def changes(self, decision: Decision) -> list[Change]:
        """Return the figures of the run that a decision would change now."""
        after = deepcopy(self.run_state)
        after.apply(Recorded(decision))
        new = _numbers(after)
        return [
            Change(name=name, before=before, after=new[name])
            for name, before in _numbers(self.run_state).items()
            if before != new[name]
        ]

    def invitation(self, decision: Decision) -> int | None:
        """Return the number, counted from 1, of the invitation that a signed decision has published; None for
        any other decision."""
        keys = [invitation.key for invitation in self.run_state.invitations]
        return 1 + keys.index(decision.key) if isinstance(decision, Invite) and decision.key in keys else None

    def proposal(self, key: str, kept: int | None) -> SuccessionFile:
        """Return the unsigned succession that keeps the first `kept` decisions and names `key` (hex) as the
        key that signs all later ones. If `kept` is None, all decisions on this node are kept.

        Raises ValueError if this node has fewer than `kept` decisions. If `kept` is None, raises ValueError
        if decisions are known to be missing here, or if there are no decisions, as on a node that has just
        joined.
        """
        feed = self._feed
        if kept is None and feed.misses_decisions:
            raise ValueError("decisions are lacking here that the last succession keeps")
        claimed, peer = self._organised.control.claimed
        if kept is None and not 0 < feed.stop >= claimed:
            claim = f", and the neighbour {peer} says that it has {claimed}" if claimed else ""
            raise ValueError(f"{feed.stop} decisions are here{claim}")
        kept = feed.stop if kept is None else kept
        if kept > feed.stop:
            raise ValueError(f"there are {feed.stop} decisions here, not {kept}")
        return SuccessionFile(
            run_id=self._manifest.run_id.hex(),
            run_name=self._manifest.name,
            term=feed.next_term,
            kept=kept,
            chain=feed.chains[kept].hex(),
            key=key,
            deputies=list(self._manifest.organised.deputies),
            needed=self._manifest.organised.votes,
        )

    def _member(self, number: int, invitations: dict[int, int]) -> MemberStatus:
        """Return the status of a member. `invitations`: numbers of invitations, keyed by the identity (`id`)
        of their objects."""
        member = self.run_state.members[number]
        return MemberStatus(
            number=number,
            origin=member.origin.hex(),
            quota=self._organised.quota(number),
            vouched=not self.run_state.quotas.is_stranger(number),
            proven=self.run_state.credit(number) > 0,
            invitation=invitations[id(member.invitation)] if member.invitation else None,
            revoked=None if member.revoked == NEVER else member.revoked,
            counted=self.run_state.counts_of(number),
        )

    def _member_of(self, own: Feed | None) -> int | None:
        """Return the member number of the origin of feed `own`; None if it is no member."""
        number = self.run_state.number(own) if own else None
        return None if number is None else number // INCARNATIONS

    def _evidence(self, member: int | None) -> EvidenceStatus | None:
        """Return the evidence about a member; None if no work of it was measured."""
        self._look()
        known = None if member is None else self._members.get(member)
        if known is None or member is None:
            return None
        return EvidenceStatus(
            member=member,
            origin=self.run_state.members[member].origin.hex(),
            updates=known.updates,
            worth=known.worth,
            evidence=known.useful,
            bound=RECOUNTED_AT_LAST,
            counts_at_last=known.recounted_at_last,
            agreement=known.agreement,
            outlier_share=known.outlier_share,
            skipped=not known.trusted,
            harmful_since=known.harm_since if known.harmful else None,
        )

    def _doubted(self) -> list[EvidenceStatus]:
        self._look()
        members = self._members
        found = sorted((m for m in members if not members[m].trusted), key=lambda m: members[m].useful)
        return [one for one in map(self._evidence, found[:DOUBTED]) if one]

    def _health(self) -> HealthStatus:
        self._look()
        verdict = self._verdict
        return HealthStatus(
            verdict=verdict.health,
            latest=verdict.latest,
            base=verdict.base,
            calibrated=verdict.calibrated,
            best=verdict.best,
            worse_than=list(verdict.worse_than),
        )

    def sequel(self) -> str | None:
        """Return the link to the run as which this run continues, from the last announcement of such a link;
        None if there is none."""
        links = map(link_in, reversed(self._look().announcements))
        return next(filter(None, links), None)

    def _since_seal(self, now: float) -> float | None:
        return now - self._sealed_at if math.isfinite(self._sealed_at) else None

    def _not_admitted(self, own: Feed, asked: float | None, organising: Signing | None) -> WaitStatus:
        if organising is not None:
            why = _restarted(organising) or f"the organiser here is {organising.state.value}"
            return WaitStatus(reason=Wait.ORGANISER, text=f"not admitted yet: {why}")
        if asked is None:
            text = "not admitted yet: it computes the proof of work that asks for that"
            return WaitStatus(reason=Wait.WORK, text=text)
        text = "not admitted yet: it has asked for that"
        if asked >= UNANSWERED_TIME:
            digits = own.origin.hex()[:KEY_DIGITS]
            admits = f"the run's owner admits it with `{command('sfnode', 'organise', 'admit', digits)}`"
            begins = "nobody decides in this run yet: its owner starts a node with `sfnode join --organise`"
            text += f"; {admits if self._feed.stop else begins}"
        return WaitStatus(reason=Wait.JOIN_REQUEST, text=text)

    def _said_of(self, own: Feed) -> str:
        """Return the organiser's last announcement about an origin; empty if there is none."""
        named = [text for text in self._look().announcements if own.origin.hex()[:KEY_DIGITS] in text]
        return f". It says: {named[-1]}" if named else ""

    def _harm_of(self, own: Feed) -> str:
        """Return the measured harm that an origin's work does, in words; empty if no harm is evident."""
        found = self._evidence(self._member_of(own))
        if found is None or found.harmful_since is None:
            return ""
        loss = f"{-found.worth / WORTH_ONE:+.6f} by {found.updates} updates that were measured"
        return (
            ": its work has evidently raised the loss on the validation rows since round "
            f"{found.harmful_since} ({loss}), which befalls one honest node in "
            f"{1 / FALSE_REVOCATIONS:,.0f} by accident. If its rows, labels and --dtype are right, tell the "
            "run's owner, who may admit another key"
        )

    def _no_room(self, own: Feed, organising: Signing | None) -> WaitStatus:
        if why := _restarted(organising):
            return WaitStatus(reason=Wait.ORGANISER, text=why)
        number, epoch = self.run_state.number(own), self.run_state.open_epoch
        assert number is not None  # a member has feeds
        quota = self._organised.quota(number // INCARNATIONS)
        if not quota:
            made = f"it is new and the places of newcomers in round {epoch} are taken"
        elif not self.run_state.goes_on_with(number):
            made = "another node with its key goes on in its place, or no close lists this one yet"
        elif self._organised.labelled(own) >= quota:
            made = f"it has made the {quota} updates that it may make in round {epoch}"
        else:
            made = f"members have made all the updates that are of use in round {epoch}"
        until = "the deputies have handed over" if self._feed.frozen else "the organiser closes it"
        return WaitStatus(reason=Wait.QUOTA, text=f"{made}; it goes on when {until}")

    def _lines(self, decisions: list[Decision]) -> list[str]:
        run_state = self.run_state
        lines = [
            f"new directions of training, {said.digest.hex()[:16]}, are published"
            for said in decisions
            if isinstance(said, Bases) and run_state.own_bases(said.subspace) == said.digest
        ]
        if seals := [said.epoch for said in decisions if isinstance(said, Seal)]:
            count = f"{part_of(run_state.counted, run_state.budget)} updates count"
            lines.append(f"round {seals[-1]} counts: {count}")
        lines += [f"announced: {said.text}" for said in decisions if isinstance(said, Announce)]
        self._look()
        verdict = self._verdict
        if verdict.latest and verdict.latest in health.evaluations(decisions):
            others = [(model_in_words(one), one) for one in (verdict.base,) if one]
            others += [("best", one) for one in (verdict.best,) if one]
            beside = [f"{name} {value_in_words(one.metric, one.value)}" for name, one in others]
            words = HEALTH_WORDS[verdict.health]
            lines.append(", ".join([f"{words}: {result_in_words(verdict.latest)}", *beside]))
        return lines

    def _look(self) -> Results:
        """Take in the new decisions, and return the results of all decisions."""
        results, read = self._results, self._results.read
        if results.follow(self._feed.entries).read != read:
            self._verdict = results.verdict()
        return results


def _restarted(organising: Signing | None) -> str | None:
    """Return the reason why this node's organiser does not sign, and how to end that; None if it signs, or is
    not on this node."""
    restarted = organising.restarted if organising else None
    if organising and organising.cut_off:
        return CUT_OFF
    return f"{restarted.what}. {ALONE_FIX}" if restarted else None


def _numbers(run_state: RunState) -> dict[str, int]:
    """Return the figures of a run that an owner's decision may change, keyed by their names."""
    return {
        "members": len(run_state.members),
        "quotas": sum(map(run_state.quotas.own, range(len(run_state.members)))),
        "revoked members": sum(member.revoked != NEVER for member in run_state.members),
        "invitations": len(run_state.invitations),
        "revoked invitations": sum(one.revoked != NEVER for one in run_state.invitations),
        "updates that count": run_state.counted,
        "update budget": run_state.budget,
        "run complete": int(run_state.complete),
        "subspaces with bases of their own": len(run_state.bases),
    }
