"""The settings of an organiser: what it may decide by itself, and how often."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from sfnode.manifest import Manifest


class Admission(Enum):
    """The petitions that are granted without asking the owner, whose word an invitation is."""

    LINKS = "links"
    """Those with an invitation; no others are kept."""
    APPROVE = "approve"
    """Those with an invitation; the others wait for the owner."""
    ANYONE = "anyone"
    """Those with an invitation or with a proof of work."""


FEW_DIMENSIONS = 2048
"""Dimensions of a subspace up to which the rate that suits it can be told from a few dozen updates: of 24,576
random ones 256 say nothing."""

BOUNDS: dict[str, tuple[float, float]] = {
    "target_updates": (1, (1 << 32) - 1),  # an update budget is a u32
    "longest_epoch": (
        1.0,
        604_800.0,
    ),  # below a second decisions outweigh updates; a week is a long weekend off
    "seal_wait": (0.0, 86_400.0),  # 0: nothing is evaluated; a day: a large model on a slow machine
    "admission_burst": (1, 4096),  # at 150 bytes each that everybody keeps: 600 kB at once
    "admissions_per_minute": (0.01, 600.0),  # one in two hours, to ten a second: 130 MB of decisions a day
    "work_bits": (0, 40),  # 40: a month of one core; more cannot be told from "nobody"
    "quota": (1, (1 << 32) - 1),  # a u32 in Admit
    "search_rows": (0, 1 << 31),
    "renew_updates": (0, (1 << 32) - 1),
    "update_forwards": (1, 1 << 16),  # at most two for each row of a mini-batch
    "young_share": (0.0, 1.0),
    "share": (0.0, 1.0),
    "witnesses": (1, 64),  # a node has about six links, and a hub some dozens
    "checkpoint_epochs": (1, 65_536),  # as many as there are
    "amend_after": (
        10.0,
        31_536_000.0,
    ),  # in less than WANT_TIMEOUT a peer may not have answered; a year: practically never
}
"""The least and the most of each setting, with the reason where it is not plain."""


@dataclass(frozen=True, slots=True)
class OrganiserPolicy:
    """The settings of an organiser. Raises ValueError for one that is out of its bounds."""

    target_updates: int = 1024
    """Updates that may be named with which an epoch is closed: the manifest's `epoch_updates`. With searches
    epochs begin shorter."""
    longest_epoch: float = 600.0
    """Seconds after which an epoch is closed, however few updates it has, if one of them has waited as long:
    people who watch see their updates count within a coffee break."""
    seal_wait: float = 120.0
    """Seconds that a closed epoch waits for its evaluation before it is sealed unchecked: trainers go on
    meanwhile, so this only delays what is said of it. With 0 nothing is evaluated."""
    admission: Admission = Admission.LINKS
    admission_burst: int = 64
    """Admissions at once: a class of students joins within a minute."""
    admissions_per_minute: float = 30.0
    """Admissions in the long run. Each is a decision that everybody keeps for ever."""
    work_bits: int = 22
    """Leading zero bits of a newcomer's proof of work: some seconds of one core, in Python."""
    quota: int = 1024
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
    revokes: bool = True
    """Whether members whose work evidently does harm are revoked, and it is taken back since that began.
    Nothing else would undo what was sealed before the evidence was there; by accident it befalls one honest
    member in 10,000 at most, as useless work alone is only skipped."""
    size_rate: bool = False
    """Whether the first seal looks for the rate that suits the first subspace, too, and takes it where the
    manifest's is far off: with bases of gradients a rate that is too large leaves nothing to search in. For
    subspaces of FEW_DIMENSIONS; in those epochs may move losses far, too (`line_search.LARGE_MOVE`)."""
    guard: bool = False
    """Whether the run goes back to its best seal when it gets worse, and ends when it no longer improves
    (`guard`), where it is evaluated."""
    renew_updates: int = 0
    """Updates for which published bases serve until others, made at sealed weights, take their place; 0:
    for ever. An epoch has no more than that; the one that is open while bases are made ends with them."""
    update_forwards: int = 8
    """Example-forwards that an update takes."""
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

    def __post_init__(self) -> None:
        for name, (least, most) in BOUNDS.items():
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                raise ValueError(f"{name} is {value}; it has to be from {least:g} to {most:g}")


def has_few_dimensions(manifest: Manifest) -> bool:
    """Return whether the subspaces of a run have FEW_DIMENSIONS at most."""
    return len(manifest.model.targets) * manifest.training.rank**2 <= FEW_DIMENSIONS
