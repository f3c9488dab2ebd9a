"""The settings of an organiser: what it may decide by itself, and how often."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from sfnode.manifest import Manifest
from sfnode.organising.evaluation.evidence import alike
from sfnode.organising.steps import Steps
from sfnode.settings import Settings


class Admission(Enum):
    """The join requests that are granted without asking the owner, whose word an invitation is."""

    LINKS = "links"
    """Those with an invitation; no others are kept."""
    APPROVE = "approve"
    """Those with an invitation; the others wait for the owner."""
    ANYONE = "anyone"
    """Those with an invitation or with a proof of work."""


FEW_DIMENSIONS = 2048
"""Dimensions of a subspace up to which an epoch may move losses far and help all the same
(`line_search.LARGE_MOVE`)."""

WORK_BITS = 22
"""Leading zero bits of a newcomer's proof of work: some seconds of one core, in Python."""

SEAL_WAIT, SEARCH_WAIT = 120.0, 600.0
"""Seconds that a seal waits for its evaluation, and for a line search: two hundred rows at seven places each,
by a model that takes a third of a second for a row; or for answers to them, which take a pass for each token.
Nothing is closed meanwhile until the rate has settled."""

USUAL_ROWS = 256
"""Validation rows of a run that takes all of a source of its own: a search asks for no more."""

REWARDED_BASES = 96
"""Updates for which the bases of a reward run serve, or an epoch's if that has more: six groups of 16, after
which SmolLM2 had 0.56 of its answers right, and 0.80 after six more along other bases, in one emulated run
(docs/research-log.md)."""


LEAST_EPOCH = 0.5
"""Seconds for which an epoch is open at least: a close and a seal, with what they say of each feed, cost
every node more than the updates of half a second; and no epochs are burnt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrganiserPolicy:
    """The settings of an organiser; those of a daemon are `policy_of` its run."""

    target_updates: int
    """Updates that may be named with which an epoch is closed: the manifest's `epoch_updates`. With searches
    epochs begin shorter."""
    longest_epoch: float = 600.0
    """Seconds after which an epoch is closed, however few updates it has, if one of them has waited as long:
    people who watch see their updates count within a coffee break."""
    seal_wait: float
    """Seconds that a closed epoch waits for its evaluation before it is sealed unchecked: trainers go on
    meanwhile, so this only delays what is said of it. With 0 nothing is evaluated."""
    admission: Admission = Admission.LINKS
    admission_burst: int = 64
    """Admissions at once: a class of students joins within a minute."""
    admissions_per_minute: float = 30.0
    """Admissions in the long run. Each is a decision that everybody keeps for ever."""
    work_bits: int = WORK_BITS
    quota: int
    """Updates of one member that a close names at most, and those of one feed with one label: as many as an
    epoch has, so that a run of one is not slowed down. Who admits strangers sets a small part of it: one that
    reaches the target alone can close epochs as fast as it likes."""
    search_rows: int = 0
    """Validation rows, on which a line search sets factors and rates (`searching`); 0: the judge alone does,
    `target_updates` is what every epoch has, and the shares below are of the organiser's time."""
    origins: bool = False
    """Whether it is measured what each member's work brings, before a seal, and seals skip that of members
    whom the evidence does not speak for (`origins`). Only with searches."""
    kept: bool = False
    """Whether a row costs next to nothing, as states that enter a linear head are kept: every epoch is
    measured on all of them. Of thousands of updates 32 rows say which agree with these 32 rows."""
    alike: float = 1.0
    """Updates that say as much about their author as one that is measured alone."""
    revokes: bool = True
    """Whether members whose work evidently does harm are revoked, and it is taken back since that began.
    Nothing else would undo what was sealed before the evidence was there; by accident it befalls one honest
    member in 10,000 at most, as useless work alone is only skipped."""
    guard: bool = False
    """Whether the run goes back to its best seal when it gets worse, and ends when it no longer improves
    (`guard`), where it is evaluated."""
    renew_updates: int = 0
    """Updates for which published bases serve until others, made at sealed weights, take their place; 0:
    for ever. An epoch has no more than that; the one that is open while bases are made ends with them."""
    update_forwards: int
    """Example-forwards that an update takes."""
    steps: Steps | None = None
    """Steps of a first-order run; None in any other."""
    patience: int = 0
    """Rounds with no better evaluation than the best one after which the guard ends the run there; 0: it
    looks for evident changes, and goes back from harm alone."""
    least_epoch: float = LEAST_EPOCH
    """Seconds for which an epoch is open at least."""
    young_share: float = 1 / 5
    """Share of all example-forwards of the swarm that searches and evaluations may take while the rate has
    not settled and the run is young, when harm is most likely."""
    share: float = 1 / 20
    """The same share later."""
    witnesses: int = 1
    """Peers that must have told how much of the control feed they have before a restarted organiser signs."""
    amend_after: float | None = 86_400.0
    """Seconds for which named steps of a feed may be missing, while there are peers to ask, until the feed
    ends before them; None: only the owner ends feeds. Nothing is sealed meanwhile, so a day: a machine that
    was switched off for the night comes back. It gives up work that was named, and an origin has to begin a
    new feed."""

    checkpoint_epochs: int | None = 10
    """Seals between two checkpoints, from which late joiners may start; None: none are signed."""

    @property
    def longest(self) -> int:
        """Most updates that an epoch has, unless they wait."""
        return min(self.target_updates, self.renew_updates or self.target_updates)


MEASURING = 1 / 10
"""Share of all example-forwards of a first-order run that measurements may take."""

EVALUATIONS = 6
"""Evaluations for which a tenth of a first-order run's forwards pays at least, or they are of fewer rows: of
the base model, of the end and one between, which leaves half of it for what members bring."""

LEAST_EVALUATED = 64
"""Rows of an evaluation, whatever it costs: fewer say nothing."""

HEAD_PATIENCE = 12
"""Rounds without a better evaluation after which a head is as good as it gets: with exact gradients of the
same rows the loss on validation rows falls and then rises, and is not noisy. With 9 of them AG News ended
0.003 higher."""

HEAD_EPOCH = 1.0
"""Seconds for which the rounds of a head last at least, where an update is nearly free: 35 of them, the most
that one took to its best, take less than a minute; and who joins meanwhile still finds a run that goes on."""


def steps_of(manifest: Manifest, rate: int) -> Steps | None:
    """Return the steps of a run, of which `rate` is the first rate; None if it is no first-order run."""
    numbers = manifest.training
    if not numbers.is_first_order:
        return None
    head = manifest.task.kind == "sequence-classification" and manifest.core_shape[0] == 1
    return Steps(rate, numbers.epoch_updates, head, drawn=manifest.task.is_rewarded)


def is_wary(manifest: Manifest) -> bool:
    """Return whether an epoch that moves losses far is taken for noise unless it evidently helps: so it is in
    more than FEW_DIMENSIONS, but not of rewards, which jump."""
    return manifest.dimensions > FEW_DIMENSIONS and not manifest.task.is_rewarded


def policy_of(manifest: Manifest, settings: Settings) -> OrganiserPolicy:
    """Return an organiser's policy: anyone may join, unless its owner or a private run says otherwise; rates
    are found by line searches if it says so, and the run has validation rows; published bases are made anew
    every `renew_bases` updates, if not 0, or, if that is left open, as suits a reward run; with validation
    rows a guard may watch over it."""
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
