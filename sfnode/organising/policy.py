"""The settings of an organiser: what it may decide by itself, and how often."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from sfnode.manifest import Manifest
from sfnode.organising.evaluation.evidence import alike
from sfnode.organising.steps import Steps
from sfnode.settings import Settings


class Admission(Enum):
    """Kinds of join requests that are granted without asking the owner. An invitation always suffices, as it
    comes from the owner."""

    LINKS = "links"
    """Requests with an invitation are granted. Others are dropped."""
    APPROVE = "approve"
    """Requests with an invitation are granted. Others wait for the owner."""
    ANYONE = "anyone"
    """Requests with an invitation or a proof of work are granted."""


FEW_DIMENSIONS = 2048
"""Maximum number of dimensions of a subspace in which an epoch that moves losses far
(`line_search.LARGE_MOVE`) is not taken for noise."""

WORK_BITS = 22
"""Number of leading zero bits required of a newcomer's proof of work. Computing the proof takes some seconds
of one core in Python."""

SEAL_WAIT, SEARCH_WAIT = 120.0, 600.0
"""Maximum seconds for which a seal waits for a plain evaluation, and for a line search or an evaluation of
written answers. A search measures 200 rows at seven points, and each of these 1,400 losses may take a third
of a second. A written answer takes one forward pass for each token. Until the rate has settled, no epoch is
closed while a seal waits."""

USUAL_ROWS = 256
"""Maximum number of validation rows for a search if the run has a separate source of validation rows without
a limit."""

REWARDED_BASES = 96
"""Number of updates after which a zeroth-order reward run gets new bases. If an epoch has more updates, new
bases are made after every epoch. 96 updates are six groups of 16. In one emulated run the share of right
answers of SmolLM2 was 0.56 after six groups, and 0.80 after six more along other bases
(docs/research-log.md)."""


LEAST_EPOCH = 0.5
"""Default minimum length of an epoch, in seconds. A close and a seal cost every node more than the updates of
half a second do, and the number of epochs in a run is limited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrganiserPolicy:
    """Settings of an organiser; `policy_of` returns those of a daemon's organiser."""

    target_updates: int
    """Number of updates with which an epoch is closed: the manifest's `epoch_updates`. With line searches the
    first epochs are shorter."""
    longest_epoch: float = 600.0
    """Maximum seconds for which an update waits before the open epoch is closed, even if the epoch has few
    updates. People who watch then see their updates count within a coffee break."""
    seal_wait: float
    """Seconds for which a closed epoch waits for its evaluation before it is sealed unchecked. Trainers
    continue during that time. With 0 no epoch is evaluated."""
    admission: Admission = Admission.LINKS
    admission_burst: int = 64
    """Maximum number of admissions at once: enough for a class of students that joins within a minute."""
    admissions_per_minute: float = 30.0
    """Maximum mean rate of admissions. Each admission is a decision that every node keeps for ever."""
    work_bits: int = WORK_BITS
    quota: int
    """Maximum number of one member's updates in a close, and of one feed's updates with one epoch label. If
    the quota is as large as an epoch, a run of one member is not slowed down. Strangers get a small part of
    the quota, because a member that reaches the target alone can close epochs as fast as it likes."""
    search_rows: int = 0
    """Number of validation rows for line searches, which set factors and rates (`searching`). With 0 the
    judge alone sets them, every epoch has `target_updates` updates, and `young_share` and `share` are shares
    of the organiser's time."""
    origins: bool = False
    """Whether each member's contribution is measured before a seal, and seals skip the work of members
    without enough evidence (`evidence`). Needs searches."""
    kept: bool = False
    """Whether measuring a row costs next to nothing, because the run trains a linear head whose inputs are
    kept. Every epoch is then measured on all validation rows. A measurement on 32 rows would only show which
    of thousands of updates agree with these 32 rows."""
    alike: float = 1.0
    """Number of updates that together say as much about their author as one independent update
    (`evidence.alike`)."""
    revokes: bool = True
    """Whether members whose work evidently does harm are revoked, and their work since the harm began is
    voided. Nothing else undoes work that was sealed before there was evidence. At most one honest member in
    10,000 is revoked by accident. Work that is merely useless is only skipped."""
    guard: bool = False
    """Whether the run goes back to its best seal when it gets worse, and ends when it no longer improves
    (`guard`). Needs evaluations."""
    renew_updates: int = 0
    """Number of updates after which published bases are replaced with new ones, made at the weights after the
    last seal; 0 for never. An epoch has no more updates than this number, and is closed early once new bases
    are published."""
    update_forwards: int
    """Cost of one update in example-forwards. One example-forward is a forward pass of one example."""
    steps: Steps | None = None
    """Schedule of rates and units of a first-order run; None for any other run."""
    patience: int = 0
    """Number of rounds without a better evaluation after which the guard ends the run at the best seal. With
    0 the guard reacts only to evident changes, and goes back only after harm."""
    least_epoch: float = LEAST_EPOCH
    """Minimum length of an epoch in seconds."""
    young_share: float = 1 / 5
    """Maximum share of the swarm's forward passes that line searches and evaluations take until the rate has
    settled. Without searches: maximum share of the organiser's time for evaluations while the run is young.
    Harm is most likely in these periods."""
    share: float = 1 / 20
    """Maximum share of the swarm's forward passes that line searches and evaluations take once the rate has
    settled. Without searches: maximum share of the organiser's time for evaluations once the run is no longer
    young."""
    witnesses: int = 1
    """Minimum number of peers that must say that they have no more decisions before a restarted organiser
    signs."""
    amend_after: float | None = 86_400.0
    """Seconds for which listed steps of a feed may be missing, while there are peers to ask, before the feed
    is ended at the last close whose steps are held; None if only the owner ends feeds. No epoch is sealed in
    the meantime. A machine that was off for the night is back after a day. An amendment gives up listed work,
    and the origin must begin a new feed."""

    checkpoint_epochs: int | None = 10
    """Number of seals between two checkpoints; None for no checkpoints. Late joiners may start from a
    checkpoint."""

    @property
    def longest(self) -> int:
        """Target number of updates of the longest epochs. A close may list more updates if more are
        waiting."""
        return min(self.target_updates, self.renew_updates or self.target_updates)


MEASURING = 1 / 10
"""Share of a first-order run's example-forwards that measurements may take."""

EVALUATIONS = 6
"""Number of evaluations that the share MEASURING must pay for. If it cannot pay for them, evaluations are
made on fewer rows. Three of the six are planned evaluations: of the base model, at the end, and one in
between. The cost of the other three is spent on measuring contributions."""

LEAST_EVALUATED = 64
"""Minimum number of rows of an evaluation, whatever it costs. A result on fewer rows says nothing."""

HEAD_PATIENCE = 12
"""Number of rounds without a better evaluation after which a first-order run of a head is taken to improve no
longer. With exact gradients of the same rows in every round the validation loss is not noisy: it falls and
then rises. With a patience of 9 rounds the loss on AG News ended 0.003 higher."""

HEAD_EPOCH = 1.0
"""Minimum length of a round in a first-order run of a head, in seconds. As updates are nearly free, rounds
would otherwise be very short. With this length, the longest run of a head reached its best model after 35
rounds, in less than a minute. People who join within that time should still find the run going on."""


def steps_of(manifest: Manifest, rate: int) -> Steps | None:
    """Return the schedule of a first-order run whose first rate, in units of 2^-32, is `rate`; None for any
    other run."""
    numbers = manifest.training
    if not numbers.is_first_order:
        return None
    head = manifest.task.kind == "sequence-classification" and manifest.core_shape[0] == 1
    return Steps(rate, numbers.epoch_updates, head, drawn=manifest.task.is_rewarded)


def is_wary(manifest: Manifest) -> bool:
    """Return whether an epoch that moves losses far is taken for noise unless it evidently helps. That is so
    in subspaces of more than FEW_DIMENSIONS dimensions, except in reward runs: rewards change in leaps."""
    return manifest.dimensions > FEW_DIMENSIONS and not manifest.task.is_rewarded


def policy_of(manifest: Manifest, settings: Settings) -> OrganiserPolicy:
    """Return the policy of an organiser.

    Anyone may join, unless the settings say otherwise or the run is private. Line searches find the rates if
    the settings say so and the run has validation rows. Published bases are made anew every `renew_bases`
    updates. Without this setting they are made anew only in zeroth-order reward runs. A guard watches over
    the run if the settings say so and it has validation rows.
    """
    search, renew_bases = settings.search, settings.renew_bases
    data, numbers = manifest.data, manifest.training
    if renew_bases is None:
        renewing = manifest.task.is_rewarded and not numbers.is_first_order
        renew_bases = max(REWARDED_BASES, numbers.epoch_updates) if renewing else 0
    validates = bool(data.validation or data.validation_limit)
    rows, steps = data.validation_limit or USUAL_ROWS, steps_of(manifest, manifest.parameters().rate)
    kept = numbers.trains_a_head or bool(steps and steps.whole)
    if steps and not kept:
        forwards = numbers.update_budget * manifest.update_forwards
        rows = min(rows, max(LEAST_EVALUATED, int(MEASURING * forwards / EVALUATIONS)))
    policy = OrganiserPolicy(
        target_updates=numbers.epoch_updates,
        admission=Admission(settings.admission or ("approve" if manifest.organised.private else "anyone")),
        quota=manifest.organised.quota,
        seal_wait=0.0 if not validates else SEARCH_WAIT if search or manifest.task.is_rewarded else SEAL_WAIT,
        search_rows=rows if search and validates else 0,
        origins=search and validates,
        kept=kept,
        alike=alike(numbers),
        renew_updates=renew_bases if numbers.bases else 0,
        guard=settings.guard and validates,
        update_forwards=manifest.update_forwards,
    )
    if steps is None:
        return policy
    policy = replace(policy, steps=steps, young_share=MEASURING, share=MEASURING)
    return replace(policy, patience=HEAD_PATIENCE, least_epoch=HEAD_EPOCH) if steps.whole else policy
