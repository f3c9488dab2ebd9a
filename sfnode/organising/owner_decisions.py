"""The owner's decisions: which of them would change something now, and why the others would not.

An invalid decision would have no effect on the run state, so it is not signed, and the owner is told why.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from copy import copy
from typing import TYPE_CHECKING

from sfnode.organising.events import AnswerOwner
from sfprotocol.decisions import (
    INCARNATIONS,
    Admit,
    Amend,
    Announce,
    Bases,
    Budget,
    Decision,
    Finish,
    Invite,
    Recorded,
    Revoke,
    RevokeInvitation,
    StandIns,
    Void,
    encode,
)
from sfprotocol.errors import RemoteProtocolError
from sfprotocol.run_state import MAX_MEMBERS, Member, PublishedInvitation, RunState

if TYPE_CHECKING:
    from sfnode.organising.known import Knowledge

_REPLACED = "budget", "finished"
"""Parts of the run state that a Budget or a Finish replaces."""


def refusal(run_state: RunState, wanted: Decision) -> str | None:
    """Return the reason why a decision would change nothing or may not be signed; None if it can be
    signed."""
    try:
        encode(wanted)
    except RemoteProtocolError as error:
        return error.reason
    if run_state.unsupported:
        return "decisions of a later version were made, and what counts since is not known here"
    holds, reason = _holds(run_state, wanted)
    return None if holds else reason


def _holds(run_state: RunState, wanted: Decision) -> tuple[bool, str]:
    """Return whether a decision would change something, and the reason to give if it would not."""
    match wanted:
        case Admit(origin=origin, quota=quota, invitation=invitation):
            if (number := run_state.member_number(origin)) is not None:
                return quota > run_state.quotas.own(number), "admitted before, with no smaller quota"
            full = len(run_state.members) >= MAX_MEMBERS
            reason = "no room for a member, or an invitation that it has to show"
            return not full and not invitation, reason
        case Invite(uses=uses):
            return bool(uses), "an invitation that nobody may use"
        case Revoke(member=number, epoch=epoch) | RevokeInvitation(invitation=number, epoch=epoch):
            known: Sequence[Member | PublishedInvitation] = run_state.members
            known = known if isinstance(wanted, Revoke) else run_state.invitations
            holds = number < len(known) and epoch < known[number].revoked
            return holds, "no such member or invitation, or revoked before"
        case Void():
            return _voids(run_state, wanted), "nothing counts by the seals of these epochs and members"
        case Amend(feed=feed, epoch=epoch):
            before = run_state.named(feed, epoch - 1)
            return before < run_state.named(feed), "no close from this one on lists steps of it"
        case Bases(subspace=subspace, digest=digest):
            holds = run_state.may_begin(subspace) and run_state.own_bases(subspace) != digest
            reason = "an epoch of the subspace is open or over, or it has these bases"
            return holds, f"bases of this run are random, or {reason}"
        case Budget():
            return _replaces(run_state, wanted), "this is the budget"
        case Finish():
            return _replaces(run_state, wanted), "the run is finished"
        case Announce() | StandIns():
            return True, ""
    return False, "the organiser decides this by itself"


def due(known: Knowledge, now: float) -> Decision | None:
    """Return the first of the owner's decisions that would change something; None if there is none. Also tell
    the owner that the decisions before it are refused."""
    while known.wanted:
        decision = known.wanted.pop(0)
        reason = known.stopped or refusal(known.run_state, decision)
        if reason is None:
            return decision
        known.unanswered.remove(decision)
        known.actions.append(AnswerOwner(decision, reason))
    return None


def _replaces(run_state: RunState, wanted: Budget | Finish) -> bool:
    """Return whether a Budget or a Finish would change anything. They only replace values, so they can be
    tried on a shallow copy."""
    after = copy(run_state)
    after.apply(Recorded(wanted))
    return any(getattr(after, name) != getattr(run_state, name) for name in _REPLACED)


def _voids(run_state: RunState, void: Void) -> bool:
    """Return whether a Void takes back any work that counts."""
    if not (
        void.first <= void.last < run_state.sealed and all(m < len(run_state.members) for m in void.members)
    ):
        return False
    return any(
        run_state.counts(feed, epoch)
        for epoch in range(void.first, void.last + 1)
        for feed in run_state.moved(epoch)
        if not void.members or feed // INCARNATIONS in void.members
    )


# -- announcements that a run continues as another one, for people and for nodes that follow ---------------

FORM = "This run goes on as another one; nodes that were started with --follow go there: sfnode join {}"
"""Text of the announcement; the link replaces the braces."""

_FORM = re.compile(re.escape(FORM).replace(r"\{\}", r"(sfnode:[A-Za-z0-9_-]+)"))


def announcement(link: str) -> str:
    """Return the text of the announcement that this run continues as another run, to which `link` leads."""
    return FORM.format(link)


def link_in(text: str) -> str | None:
    """Return the link in an announcement that this run continues as another run; None for any other text."""
    found = _FORM.fullmatch(text)
    return found[1] if found else None
