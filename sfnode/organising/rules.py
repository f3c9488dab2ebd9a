"""The rules of an organiser, in the order in which they are due: each says what to sign now, if anything.

A rule is a function of what is known (`known`). It may ask for what has to be measured, made or worked out
first (`Knowledge.actions`); others carry that out.

A close names only what is here and what a peer has shown to hold, too, so that it cannot get lost with this
node. A peer that lies about it makes nothing worse than a run with one peer less: what is named is here. Of a
member a close names no more than its quota, over all its feeds and whatever the labels: nobody fills an epoch
with what is late. What is left comes next time, the feed first that has waited longest.

A seal counts all that its close has named, with the factor that the judge (`judging`) or a line search
(`searching`, which also says how long epochs are) has found, but for what has a verdict against it
(`verdicts`). What was skipped is recounted by a later seal if the judge says so, or once enough evidence
speaks for the member: what each feed has brought is measured first and signed, and the search goes along what
is left. Before the close that reaches the budget one that names nothing is made, if anything waits: its seal
recounts that, with a factor of its own by a search along it, and no rate follows.

What is named and lost here is fetched from peers like everything else. It is given up (`amend`) when it has
been missing for long (`OrganiserPolicy.amend_after`) while there were peers, and nothing of it has come.
Peers who say that they have it delay that, and no more.
"""

from __future__ import annotations

from collections.abc import Callable

from sfnode.organising import closing, making, owner_decisions, sealing
from sfnode.organising.known import Knowledge, times
from sfprotocol.decisions import Decision

Rule = Callable[[Knowledge, float], Decision | None]

RULES: tuple[Rule, ...] = (
    # a decision of the owner's that would change something
    owner_decisions.due,
    # an admission that needs no owner, at the rate that the policy allows (`admission`)
    lambda known, now: known.petitions.next(known.counting, now),
    # the result of an evaluation of an epoch that is sealed, or of the base model (`evaluating`)
    lambda known, _: known.evaluations.result(known.counting),
    # a return, or the end, that these results call for (`guard`)
    lambda known, _: known.guard.due(known.counting) if known.guard else None,
    # a worth that was measured, and what follows from it for a member (`verdicts`)
    lambda known, _: known.verdicts.sanction(known.counting),
    # nothing: what follows depends on how long feeds and the epoch have waited
    times,
    # a seal of the oldest closed epoch, once it is evaluated or has waited long enough
    sealing.due,
    # bases, once those of now have served for long enough
    making.bases_due,
    # a close, once enough updates may be named, or one has waited long enough
    closing.due,
    # an amendment of a feed of which named steps are not to be had from anybody (`feeds`)
    lambda known, now: known.feeds.lost(known.view, known.policy.amend_after, now),
    # a checkpoint of an epoch that nothing is expected to change any more
    making.checkpoint_due,
)


def due(known: Knowledge, now: float) -> Decision | None:
    """Return the first decision that is due; None if none is."""
    return next((decision for rule in RULES if (decision := rule(known, now)) is not None), None)
