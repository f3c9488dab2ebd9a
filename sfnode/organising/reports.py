"""Reports that a node of an organised run can give, whether the organiser is here or not.

Reads the run's decisions and what counts by them; changes nothing. How reports are asked for others know.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from typing import Protocol

from sfnode.manifest import Manifest
from sfnode.organising import health
from sfnode.organising.admission import invited, work
from sfnode.organising.organiser import State
from sfnode.schema.organising import (
    Change,
    EpochEvaluation,
    HealthStatus,
    Members,
    MemberStatus,
    OrganiserStatus,
    PetitionList,
    PetitionStatus,
    SuccessionFile,
)
from sfnode.schema.views import OriginsQuery
from sfprotocol.control_feed import ControlFeed
from sfprotocol.counting import NEVER, Counting
from sfprotocol.decisions import Announce, Decision, Evaluated, Invite, Recorded, Void, read
from sfprotocol.messages import Petition
from sfprotocol.organised import Organised

EVALUATIONS, ANNOUNCEMENTS = 20, 10
"""Most that are told, the last ones: as many as fit a screen."""


class Desk(Protocol):
    """The organiser of a node that has its key."""

    @property
    def state(self) -> State: ...

    def petitions(self) -> list[Petition]:
        """Return those that wait for the owner."""
        ...

    async def wish(self, decision: Decision) -> str | None:
        """Sign the owner's decision, or return the reason for which it would change nothing."""
        ...


class Reports:
    """Reports on one organised run."""

    def __init__(self, manifest: Manifest, organised: Organised) -> None:
        self._manifest = manifest
        self._organised = organised
        self._noted: list[Decision] = []
        """The decisions so far that say how the model does, or are announcements."""
        self._read, self._chain = 0, b""
        """Decisions that were looked through, and the chain hash after them."""

    @property
    def counting(self) -> Counting:
        return self._organised.counting

    @property
    def _feed(self) -> ControlFeed:
        return self._organised.control.feed

    def status(self, desk: Desk | None) -> OrganiserStatus:
        """Return the state of the run; `desk` is the organiser if it is here."""
        counting, feed, noted = self.counting, self._feed, self._look()
        verdict = health.verdict(noted)
        return OrganiserStatus(
            run_id=self._manifest.run_id.hex(),
            run_name=self._manifest.name,
            term=feed.term,
            decisions=feed.stop,
            chain=feed.chain.hex(),
            incomplete=feed.behind,
            frozen=feed.frozen,
            unsupported=counting.unsupported,
            open_epoch=counting.open_epoch,
            sealed=counting.sealed,
            counted=counting.counted,
            budget=counting.budget,
            complete=counting.complete,
            quota=self._manifest.organised.quota,
            members=len(counting.members),
            invitations=len(counting.invitations),
            behind=self._organised.behind,
            organiser=desk.state.value if desk else None,
            petitions=len(desk.petitions()) if desk else None,
            health=HealthStatus(
                worse=verdict.health is health.Health.WORSE,
                latest=_evaluation(verdict.latest),
                base=_evaluation(verdict.base),
                best=_evaluation(verdict.best),
                worse_than=_evaluations(verdict.worse_than),
            ),
            evaluations=_evaluations(said for said in noted if isinstance(said, Evaluated))[-EVALUATIONS:],
            announcements=[said.text for said in noted if isinstance(said, Announce)][-ANNOUNCEMENTS:],
        )

    def members(self, query: OriginsQuery) -> Members:
        """Return a page of the members, in the order of their admission."""
        found = [n for n, one in enumerate(self.counting.members) if one.origin.hex().startswith(query.find)]
        page = found[query.offset : query.offset + query.limit]
        invitations = {id(one): number for number, one in enumerate(self.counting.invitations, 1)}
        return Members(
            total=len(found), offset=query.offset, members=[self._member(n, invitations) for n in page]
        )

    def petitions(self, desk: Desk | None) -> PetitionList:
        """Return the newcomers that wait for the owner: none where the organiser is not."""
        run_id = self._manifest.run_id
        waiting = desk.petitions() if desk else []
        return PetitionList(
            petitions=[
                PetitionStatus(
                    origin=petition.origin.hex(),
                    work=work(run_id, petition.origin, petition.nonce),
                    invitation=petition.invitation or None,
                    invited=invited(run_id, petition, self.counting),
                )
                for petition in waiting
            ]
        )

    def changes(self, decision: Decision) -> list[Change]:
        """Return the numbers of the run that a decision would change as things stand."""
        after = deepcopy(self.counting)
        after.apply(Recorded(decision))
        new = _numbers(after)
        return [
            Change(name=name, before=before, after=new[name])
            for name, before in _numbers(self.counting).items()
            if before != new[name]
        ]

    def invitation(self, decision: Decision) -> int | None:
        """Return the number, counted from 1, of the invitation that a signed decision has published."""
        keys = [invitation.key for invitation in self.counting.invitations]
        return 1 + keys.index(decision.key) if isinstance(decision, Invite) and decision.key in keys else None

    def proposal(self, key: str, kept: int | None) -> SuccessionFile:
        """Return the succession by which `key` (hex) would sign after the first `kept` decisions, unsigned.

        Raises ValueError if there are not so many, or if it is not known how many there are.
        """
        feed = self._feed
        if kept is None and feed.behind:
            raise ValueError("decisions are lacking here that the last succession keeps")
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
        """Return a row; `invitations` has the numbers of invitations by the identity of the object."""
        member = self.counting.members[number]
        return MemberStatus(
            number=number,
            origin=member.origin.hex(),
            quota=member.quota,
            invitation=invitations[id(member.invitation)] if member.invitation else None,
            revoked=None if member.revoked == NEVER else member.revoked,
            counted=self.counting.counts_of(number),
        )

    def _look(self) -> list[Decision]:
        """Look through the decisions that are new; through all if those from before are not here any more."""
        feed = self._feed
        if feed.stop < self._read or feed.chains[self._read] != self._chain:
            self._noted, self._read = [], 0
        decisions = (read(entry.record).decision for entry in feed.entries[self._read :])
        self._noted += [said for said in decisions if isinstance(said, Announce | Evaluated | Void)]
        self._read, self._chain = feed.stop, feed.chain
        return self._noted


def _evaluation(said: Evaluated | None) -> EpochEvaluation | None:
    if said is None:
        return None
    base = said.metric.startswith(health.BASE)
    return EpochEvaluation(**dict(health.measured(said)), epoch=said.epoch, base=base)


def _evaluations(said: Iterable[Evaluated]) -> list[EpochEvaluation]:
    return [evaluation for evaluation in map(_evaluation, said) if evaluation]


def _numbers(counting: Counting) -> dict[str, int]:
    """Return what an owner's decision may change."""
    return {
        "members": len(counting.members),
        "quotas": sum(member.quota for member in counting.members),
        "revoked members": sum(member.revoked != NEVER for member in counting.members),
        "invitations": len(counting.invitations),
        "revoked invitations": sum(one.revoked != NEVER for one in counting.invitations),
        "updates that count": counting.counted,
        "update budget": counting.budget,
        "run complete": int(counting.complete),
    }
