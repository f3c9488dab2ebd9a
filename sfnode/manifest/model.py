"""The base model of a run, and which of its matrices are trained."""

from __future__ import annotations

import re

from pydantic import Field, field_validator

from sfnode.manifest.section import Hex32, Section
from sfnode.manifest.training import MAX_EPOCHS


class Target(Section):
    """One trained matrix, `name:OUTxIN` in the TOML: W has shape (out_features, in_features)."""

    name: str = Field(min_length=1, max_length=200)
    out_features: int = Field(ge=1, le=1 << 24)
    in_features: int = Field(ge=1, le=1 << 24)

    @classmethod
    def parse(cls, text: str) -> Target:
        form = re.fullmatch(r"(.+):([0-9]+)x([0-9]+)", text, re.ASCII)
        if form is None:
            raise ValueError(f"{text!r} is not of the form NAME:OUTxIN")
        return cls(name=form[1], out_features=int(form[2]), in_features=int(form[3]))

    def __str__(self) -> str:
        return f"{self.name}:{self.out_features}x{self.in_features}"


class Parent(Section):
    """The state of another run that a base model is (SPEC M7)."""

    run_id: Hex32
    epoch: int = Field(ge=0, lt=MAX_EPOCHS)
    """Epoch of the seal."""
    digest: Hex32
    """Core digest of what counted when it was sealed."""

    def __str__(self) -> str:
        return f"run {self.run_id[:16]} at the seal of epoch {self.epoch}"


class Model(Section):
    """The base model. `source`: `builtin:NAME`, a local folder, or a Hugging Face hub id."""

    source: str
    revision: str = ""
    digest: str = Field(pattern="^[0-9a-f]{64}$")
    listing: str = Field(default="", pattern="^([0-9a-f]{64})?$")
    """Hash of the listing by which nodes download the model from each other (SPEC B2); empty: they do not."""
    targets: tuple[str, ...] = Field(min_length=1, max_length=4096)
    parent: Parent | None = None
    """State of another run that the model is; None if it is none. The run's id commits to it."""

    @field_validator("targets")
    @classmethod
    def _targets_parse(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for text in value:
            Target.parse(text)
        if len(set(value)) != len(value):
            raise ValueError("a target is listed twice")
        return value

    def parsed_targets(self) -> tuple[Target, ...]:
        """Return the targets in the order in which layers are numbered."""
        return tuple(Target.parse(text) for text in self.targets)
