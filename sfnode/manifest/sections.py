"""Tables of the manifest: base model and targets, sources of rows, and admission (open or organised).

Tables are frozen and strict, and have one canonical order. The task and the hyperparameters have modules of
their own.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal
from unicodedata import normalize

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from sfnode.errors import Code, UserError
from sfprotocol.signing import sound

Hex32 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
"""32 bytes as lower-case hex digits."""


MAX_EPOCHS = 65_536
"""Maximum number of epochs of a run. The epoch of a segment then takes at most three bytes (SPEC S4)."""


class Section(BaseModel):
    """A frozen table of the manifest. Unknown keys are errors, so that a typo cannot pass silently."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def sorted_keys(value: Any) -> Any:
    """Return the value with the keys of every map in the order of their UTF-8 bytes."""
    if isinstance(value, dict):
        return {key: sorted_keys(value[key]) for key in sorted(value)}  # code points sort as UTF-8 does
    if isinstance(value, list):
        return [sorted_keys(item) for item in value]
    return value


FILE_KINDS = (".tsv", ".csv", ".jsonl", ".parquet")
"""Suffixes of files with rows, in upper or lower case."""

BUILTIN, HUB = "builtin:", "hf:"
"""Prefix of the names of models and rows that come with this package, and prefix of the names of rows on the
hub."""

DataRole = Literal["train", "test", "validation"]
"""Purposes of a run's rows."""

MOST_ROWS = (1 << 64) - 1
"""Maximum value of a field that has a number of rows: the largest integer that MessagePack encodes. The run
id is computed from that encoding."""


def is_file(source: str) -> bool:
    """Return whether a source of rows is a file, rather than a data set with a public name."""
    return source.lower().endswith(FILE_KINDS) and not source.startswith((HUB, BUILTIN))


class Data(Section):
    """Sources of rows.

    A source is a file (.tsv .csv .jsonl .parquet), `hf:OWNER/NAME[@COMMIT][:CONFIG]:SPLIT` or
    `builtin:NAME:SPLIT`. `train` may be empty if a run trains on private data only: every trainer then brings
    its own rows with `--data`. Validation rows come from `validation`. If that is empty, they are
    `validation_limit` rows of the training data, on which then nobody trains (SPEC R9). The organiser judges
    updates on validation rows, and no model is tested on them. `digests` has the digests of sources that are
    files, keyed by role (SPEC B9). Nodes download such files from each other, so a file's name is only a
    label. A manifest never names a path on the machine that reads it.
    """

    train: str = ""
    test: str = ""
    train_limit: int = Field(default=0, ge=0, le=MOST_ROWS)
    train_min_words: int = Field(default=0, ge=0, le=MOST_ROWS)
    test_limit: int = Field(default=0, ge=0, le=MOST_ROWS)
    validation: str = ""
    validation_limit: int = Field(default=0, ge=0, le=MOST_ROWS)
    digests: dict[DataRole, Hex32] = Field(default_factory=dict)

    def source(self, role: DataRole) -> str:
        """Return the source of these rows; empty if there is none."""
        found: str = getattr(self, role)
        return found

    def testing_as_training(self) -> Data:
        """Return data whose training rows are the test rows, without any other rows."""
        digests: dict[DataRole, str] = {"train": self.digests["test"]} if "test" in self.digests else {}
        return Data(train=self.test, train_limit=self.test_limit, digests=digests)

    @property
    def withheld(self) -> int:
        """Number of training rows on which nobody trains, because they are validation rows."""
        return 0 if self.validation else self.validation_limit

    @model_validator(mode="after")
    def _apart(self) -> Data:
        if self.validation and self.validation in (self.train, self.test):
            raise ValueError("validation rows are neither trained nor tested on: name a source of their own")
        if self.withheld and not self.train:
            raise ValueError("validation_limit needs training data to take the rows from, or validation")
        if self.withheld and self.train == self.test:
            raise ValueError("validation rows of the training data would be tested on: name other test data")
        if any(not is_file(self.source(role)) for role in self.digests):
            raise ValueError("digests are of sources that are files, .tsv, .csv, .jsonl or .parquet")
        return self


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

    def core_shape(self, rank: int) -> tuple[int, int]:
        """Return the rows and columns of the target's core in a first-order run of this rank (SPEC U11)."""
        return min(rank, self.out_features), min(rank, self.in_features)


class Parent(Section):
    """State of another run that serves as the base model (SPEC M7)."""

    run_id: Hex32
    epoch: int = Field(ge=0, lt=(1 << 32) - 1)
    """Epoch of the seal."""
    digest: Hex32
    """Core digest of the state at the seal."""

    def __str__(self) -> str:
        return f"run {self.run_id[:16]} after round {self.epoch}"


class Model(Section):
    """Base model. `source`: `builtin:NAME`, OWNER/NAME on the Hugging Face hub, or the label of a folder. A
    node gets such a folder from peers, unless the node's owner names one."""

    source: str
    revision: str = ""
    digest: str = Field(pattern="^[0-9a-f]{64}$")
    listing: str = Field(default="", pattern="^([0-9a-f]{64})?$")
    """Hash of the listing with which nodes download the model from each other (SPEC B2); empty if nodes
    cannot do that."""
    targets: tuple[str, ...] = Field(min_length=1, max_length=4096)
    outputs: tuple[Annotated[int, Field(ge=-1, lt=4096)], ...] = Field(default=(), max_length=4096)
    """Index of the base classifier's output for each class of the task, in the verbalizer's order (SPEC M1).
    All are -1 if the head begins anew. Empty if the outputs are the classes in their order."""
    parent: Parent | None = None
    """State of another run that serves as the base model; None if the base model is no such state. The run id
    commits to this field."""

    @field_validator("targets")
    @classmethod
    def _targets_parse(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for text in value:
            Target.parse(text)
        if len(set(value)) != len(value):
            raise ValueError("a target is listed twice")
        return value

    @field_validator("outputs")
    @classmethod
    def _all_or_none(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if set(value) != {-1} and sorted(value) != list(range(len(value))):
            raise ValueError("outputs are those of a classifier in another order, or -1 for all of them")
        return value

    def parsed_targets(self) -> tuple[Target, ...]:
        """Return the targets in the order in which layers are numbered."""
        return tuple(Target.parse(text) for text in self.targets)


MAX_DEPUTIES = 64
"""Maximum number of deputies of a run. All votes together take 5 kB."""

MAX_QUOTA = 1 << 20
"""Maximum quota: 256 full segments. With this quota the 64 feeds of one admission take at most 128 MiB of
16-bit scalars for an epoch."""

MAX_WORK_BITS = 26
"""Maximum number of leading zero bits that may be required of the proof of work in the name of a feed. Of the
2^32 incarnations of an origin, 64 have so many on average."""


class OpenSection(Section):
    """Proof of work that a feed of an open run needs, and the quota that a feed then has. In an organised run
    both are 0."""

    quota: int = Field(default=0, ge=0, lt=1 << 32)
    """Maximum number of updates of one feed in the whole run; 0 if only the budget bounds them (SPEC U6)."""
    work_bits: int = Field(default=0, ge=0, le=MAX_WORK_BITS)
    """Required leading zero bits of the proof of work in the name of a feed (SPEC S7)."""


class OrganisedSection(Section):
    """Keys and quotas of an organised run, in which signed decisions say what counts (SPEC O1). In an open
    run all fields have their defaults."""

    organiser: Hex32 | Literal[""] = ""
    """Ed25519 public key that signs the decisions, until the deputies name another."""
    deputies: tuple[Hex32, ...] = Field(default=(), max_length=MAX_DEPUTIES)
    """Keys that together can name another organiser."""
    votes: int = Field(default=1, ge=1)
    """Number of deputies who must agree on another organiser. It is more than half of all deputies, so that
    they cannot name two organisers."""
    quota: int = Field(default=0, ge=0, le=MAX_QUOTA)
    """Maximum number of updates of one feed with one epoch label, unless an admission sets another
    maximum."""
    subspace_epochs: int = Field(default=1, ge=1, le=MAX_EPOCHS)
    """Epochs that share the bases of one subspace."""
    private: bool = False
    """Whether nodes stay out of the public roster. Peers then find each other only by links and addresses."""

    @model_validator(mode="after")
    def _trustworthy(self) -> OrganisedSection:
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


LONGEST_NAME = 60
"""Maximum length of a name that `run_name` makes, in characters; the manifest allows 64."""


def run_name(said: str, usual: str = "") -> str:
    """Return the name for a run that is nearest to a title: `Support Tickets` becomes `Support-Tickets`.
    Raises UserError BAD_OPTION if nothing is left of the title, and `usual` is empty."""
    plain = normalize("NFKD", said.replace("ß", "ss")).encode("ascii", "ignore").decode()
    if name := re.sub(r"[^A-Za-z0-9._-]+", "-", plain).strip("-._")[:LONGEST_NAME] or usual:
        return name
    raise UserError(
        Code.BAD_OPTION,
        f"{said!r} is no name of a run",
        "Give it one of the letters a to z and digits; its description may have any others.",
    )
