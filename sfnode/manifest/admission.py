"""Admission to a run: the price of an open one, the organiser of an organised one."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from sfnode.manifest.section import Hex32, Section
from sfnode.manifest.training import MAX_EPOCHS
from sfprotocol.signing import sound

MAX_DEPUTIES = 64
"""Most deputies of a run: the votes of all of them take 5 kB."""

MAX_QUOTA = 1 << 20
"""Largest quota: 256 full segments, so that the 64 feeds of one admission make nobody hold more than 128 MiB
of 16-bit scalars for an epoch."""

MAX_WORK_BITS = 26
"""Most bits of work of a feed: of the 2^32 incarnations of an origin, 64 have that much on average."""


class Open(Section):
    """The price of taking part in an open run, and what it buys; in an organised run 0."""

    quota: int = Field(default=0, ge=0, lt=1 << 32)
    """Updates that one feed may have in all; 0 if only the budget bounds them (SPEC U6)."""
    work_bits: int = Field(default=0, ge=0, le=MAX_WORK_BITS)
    """Leading zero bits of the proof of work in the name of a feed (SPEC S7)."""


class Organised(Section):
    """Those whose decisions say what counts in an organised run (SPEC O1); in an open run the defaults."""

    organiser: Hex32 | Literal[""] = ""
    """Ed25519 public key that signs the decisions, until the deputies name another."""
    deputies: tuple[Hex32, ...] = Field(default=(), max_length=MAX_DEPUTIES)
    """Keys of those who together can name another organiser."""
    votes: int = Field(default=1, ge=1)
    """Deputies that it takes: more than half of them, so that they cannot decide two things."""
    quota: int = Field(default=0, ge=0, le=MAX_QUOTA)
    """Updates of one feed with one epoch label that an admission allows unless it says otherwise."""
    subspace_epochs: int = Field(default=1, ge=1, le=MAX_EPOCHS)
    """Epochs that share the bases of one subspace."""
    private: bool = False
    """Whether nodes keep out of the public roster: peers are told by links and addresses alone."""

    @model_validator(mode="after")
    def _trustworthy(self) -> Organised:
        keys = [key for key in (self.organiser, *self.deputies) if key]
        if any(not sound(bytes.fromhex(key)) for key in keys):
            raise ValueError("a key is weak: anybody could sign for it")
        if len(set(keys)) != len(keys):
            raise ValueError("the organiser and the deputies have different keys")
        if not len(self.deputies) < 2 * self.votes <= 2 * max(1, len(self.deputies)):
            raise ValueError("votes is more than half of the deputies, and not more than all of them")
        if self.organiser and not self.quota:
            raise ValueError("an organised run needs a quota of at least 1")
        chosen = self.deputies, self.quota, self.subspace_epochs, self.private
        if not self.organiser and chosen != ((), 0, 1, False):
            raise ValueError("an open run has no organiser, and none of what comes with one")
        return self
