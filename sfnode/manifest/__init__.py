"""The run manifest, which all nodes of a run share.

A manifest is the immutable description of one training run; the run id is its canonical hash. It is written
as TOML by `sfnode init` and travels between nodes as canonical MessagePack (SPEC M1-M3). Its tables are in
modules of this package. These modules know fields and their bounds; they load neither models nor data.

Manifests of version 1 can be read: they have fewer keys, and missing keys have the values that change
nothing. A key that was added within a version is omitted if it has its default value, so that older runs keep
their id.

Strangers see the sources of the base model and of rows without the folders of a machine (`public_name`).
"""

from __future__ import annotations

import hashlib
import math
import re
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args

import msgpack
import tomli_w
from pydantic import Field, ValidationError, field_validator, model_validator

from sfnode.errors import Code, UserError
from sfnode.manifest.sections import (
    BUILTIN,
    HUB,
    Data,
    DataRole,
    Model,
    OpenSection,
    OrganisedSection,
    Section,
    is_file,
    sorted_keys,
)
from sfnode.manifest.task import ANSWERS, READING, Task
from sfnode.manifest.training import Training
from sfnode.printable import command, read_toml, size_text
from sfprotocol.decisions import RATE_ONE
from sfprotocol.fields import text_fault
from sfprotocol.messages import (
    ELECTED_TERMS,
    MAX_UPDATE_BYTES,
    OLDEST_VERSION,
    PROTOCOL_VERSION,
    Authority,
    RunParameters,
)

MAX_MANIFEST_BYTES = 192 * 1024
"""Maximum size of an encoded manifest. It fits one frame; the targets of a 7B model take 20 KiB."""

MAX_DESCRIPTION = 600
"""Maximum size of a run's description, in bytes of UTF-8: a paragraph, which fits the first screen of a phone
(SPEC M8)."""

MAX_CORE_BYTES = 1 << 27
"""Maximum size of the core of one subspace, in bytes. It has room for 4,096 matrices at rank 64, for 1,024
matrices at rank 128, or for 16 matrices at rank 1,024. A model of 70B parameters has some 600 matrices, whose
core takes 5 MB at rank 32. To compute the digest of a core of the maximum size takes 0.1 s, however few
updates are in that core (SPEC M9)."""

MAX_CORES_BYTES = 1 << 32
"""Maximum size of the cores of all subspaces together, in bytes. Every node holds them. A run usually has 16
subspaces; with a model of 70B parameters it may have 870 at rank 32. The digest of all cores takes some 5 s
(SPEC M9)."""

FIRST_ORDER_VERSION = 4
"""Version of the protocol that added first-order updates and stand-ins."""

MAX_QUOTA_BYTES = 128 << 20
"""Maximum bytes of a member's updates with one epoch label. In a zeroth-order run `MAX_QUOTA` allows the same
number of bytes."""

KNOWN_EXTENSIONS: frozenset[int] = frozenset()
"""Kinds of manifest extensions that this version understands."""

ADDED_IN_2: dict[str, Any] = {
    "open": True,
    "organised": True,
    "extensions": True,
    "data": {"validation", "validation_limit"},
}
"""Keys that a manifest of version 1 does not have."""

OMITTED_AT_DEFAULT: dict[str, frozenset[str]] = {
    "": frozenset({"description"}),
    "data": frozenset({"digests"}),
    "model": frozenset({"outputs", "parent"}),
    "task": frozenset({"loss", "prior", "verifier", "answer_tokens", "temperature", "stop"}),
    "training": frozenset({"bases", "decay", "epsilons", "estimator", "features", "group", "norm_limit"}),
}
"""Keys that a manifest omits if they have their default value (SPEC M2), keyed by table. The empty name
stands for the manifest itself."""

ExtensionKind = Annotated[str, Field(pattern="^(0|[1-9][0-9]{0,3})$")]
"""Decimal number below 10,000 without leading zeros."""

HexBytes = Annotated[str, Field(pattern="^([0-9a-f]{2})*$")]
"""Bytes as lower-case hex digits."""


def run_id_of(canonical: bytes) -> bytes:
    """Return the id of the run with this canonical manifest: its BLAKE2b-256, 32 bytes (SPEC M3)."""
    return hashlib.blake2b(canonical, digest_size=32, person=b"sfnode-manifest").digest()


class Manifest(Section):
    """Description of one training run. Manifests with equal canonical bytes describe the same run."""

    protocol: int = Field(default=OLDEST_VERSION, ge=1, lt=1 << 32)
    """First protocol version that has everything that the run needs."""
    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9][a-zA-Z0-9._-]{0,63}$")] = "run"
    description: str = ""
    """Purpose of the run, in plain text, for participants and for people who watch (SPEC M8)."""
    admission: Literal["open", "organised"] = "open"
    open: OpenSection = OpenSection()
    organised: OrganisedSection = OrganisedSection()
    model: Model
    task: Task
    data: Data
    training: Training = Training()
    extensions: dict[ExtensionKind, HexBytes] = Field(default_factory=dict)
    """Fields that later versions add, keyed by kind. A node that does not know an even kind cannot take part
    (SPEC M5)."""

    @field_validator("description")
    @classmethod
    def _readable(cls, value: str) -> str:
        if problem := text_fault(value, MAX_DESCRIPTION):
            raise ValueError(problem)
        return value

    @model_validator(mode="after")
    def _encodable(self) -> Manifest:
        try:
            self.canonical()
        except UnicodeEncodeError as error:  # as for bytes of a command line that are not UTF-8
            raise ValueError("a text has bytes that are not UTF-8") from error
        return self

    @model_validator(mode="after")
    def _bounded(self) -> Manifest:
        shape = f"the core of {len(self.model.targets)} targets at rank {self.training.rank}"
        if self.core_bytes > MAX_CORE_BYTES:
            raise ValueError(
                f"{shape} takes {size_text(self.core_bytes)}, and {size_text(MAX_CORE_BYTES)} is the most"
            )
        epochs = 1 if self.organised.organiser else self.training.epochs
        if self.core_bytes * epochs > MAX_CORES_BYTES:
            raise ValueError(
                f"{shape} takes {size_text(self.core_bytes)} for each of {epochs} epochs, and "
                f"{size_text(MAX_CORES_BYTES)} is the most for all: longer epochs need less"
            )
        return self

    @model_validator(mode="after")
    def _first_order(self) -> Manifest:
        """Check the conditions of a run with gradients (SPEC U11)."""
        if self.protocol < FIRST_ORDER_VERSION and (
            self.training.is_first_order or self.task.loss == "calibrated"
        ):
            raise ValueError(f"first-order updates came with protocol {FIRST_ORDER_VERSION}")
        if not self.training.is_first_order:
            return self
        if not self.organised.organiser:
            raise ValueError("a first-order run is organised: its rates, units and limits are signed")
        if self.task.loss == "centred":
            raise ValueError("rows of a first-order run are separate: its loss is plain or calibrated")
        if len({one.core_shape(self.training.rank) for one in self.model.parsed_targets()}) > 1:
            raise ValueError("all targets of a first-order run have cores of one shape: take a smaller rank")
        width = self.parameters().form.width
        if width > MAX_UPDATE_BYTES:
            raise ValueError(
                f"an update would have {width:,} bytes, and {MAX_UPDATE_BYTES:,} are the most: take a "
                "smaller rank, or fewer targets"
            )
        most = max(self.organised.quota, 2 * self.training.epoch_updates)  # of a stranger at first (SPEC O20)
        if most * width > MAX_QUOTA_BYTES:
            raise ValueError(
                f"a quota, or two rounds, of {most:,} updates of {width:,} bytes is more than "
                f"{size_text(MAX_QUOTA_BYTES)}, the most that anybody must hold of a member and round"
            )
        return self

    @model_validator(mode="after")
    def _consistent(self) -> Manifest:
        validates = self.data.validation or self.data.validation_limit
        priced = self.open != OpenSection()
        centred = self.task.loss == "centred"
        if centred and self.training.batch_size < 2:
            raise ValueError("a centred loss needs a batch_size of 2 or more: one row has no mean but itself")
        added = (
            self.description
            or self.organised.organiser
            or self.extensions
            or self.training.basis != "random"
            or self.training.epsilons
            or self.training.group
            or self.training.decay != 1
            or self.data.digests
            or centred
            or self.task.kind == "reward"
            or self.model.parent
        )
        if self.protocol == 1 and (added or validates or priced):
            raise ValueError("a run of version 1 has nothing of what version 2 has added")
        if self.training.features:
            self._check_head()
        if (self.admission == "organised") != bool(self.organised.organiser):
            raise ValueError("a run is organised if it names an organiser, and open otherwise")
        if self.organised.organiser and priced:
            raise ValueError(
                "in an organised run the organiser admits: it has no quota and no work of open runs"
            )
        if self.organised.organiser and self.training.schedule != "constant":
            raise ValueError(
                "the rates of an organised run follow from its seals: schedule is constant; others are for "
                "open runs"
            )
        if not self.organised.organiser and self.training.decay != 1:
            raise ValueError(
                "only an organised run has a decay: in an open one anybody could label an update with the "
                "last epoch, and so make all others old"
            )
        if self.organised.organiser and not 0 < self._rate() < RATE_ONE:
            raise ValueError("the learning_rate of an organised run is a multiple of 2^-32 below 1")
        return self

    def _check_head(self) -> None:
        """Raise ValueError unless the run trains a linear head on features whose scales it gives."""
        features = len(self.training.scales_and_means())
        wide = [target.in_features for target in self.model.parsed_targets()]
        if self.task.kind != "sequence-classification" or wide != [features]:
            raise ValueError(
                f"a run with scales of {features} features trains the head of a sequence-classification, "
                "which sees as many, and nothing else"
            )

    def fields(self) -> dict[str, Any]:
        """Return the keys of a manifest of this version, with their values as in JSON."""
        found = self.model_dump(mode="json", exclude=ADDED_IN_2 if self.protocol == 1 else None)
        for table, keys in OMITTED_AT_DEFAULT.items():
            section: Section = getattr(self, table) if table else self
            usual, told = type(section).model_fields, found[table] if table else found
            for key in keys:
                if getattr(section, key) == usual[key].get_default(call_default_factory=True):
                    del told[key]
        return found

    def canonical(self) -> bytes:
        """Return the manifest as canonical MessagePack (SPEC M2): all fields, maps sorted by key, floats as
        float64."""
        encoded: bytes = msgpack.packb(sorted_keys(self.fields()), use_bin_type=True)
        return encoded

    @property
    def core_shape(self) -> tuple[int, int, int]:
        """Shape of the core of a subspace: number of layers, and rows and columns for each layer (SPEC U4,
        U11)."""
        rank, targets = self.training.rank, self.model.parsed_targets()
        rows, columns = targets[0].core_shape(rank) if self.training.is_first_order else (rank, rank)
        return len(targets), rows, columns

    @property
    def basis_columns(self) -> tuple[int, int]:
        """Numbers of columns of U and of V of every target: the rows and columns of a core."""
        _, rows, columns = self.core_shape
        return rows, columns

    @property
    def dimensions(self) -> int:
        """Dimensions of a subspace: the entries of its core."""
        return math.prod(self.core_shape)

    @property
    def core_bytes(self) -> int:
        """Bytes of the core of a subspace."""
        return 8 * self.dimensions

    @property
    def update_forwards(self) -> int:
        """Cost of an update in example-forwards. In a reward run the cost is the number of written answers
        that take as long as the update."""
        numbers, rows = self.training, self.training.batch_size
        gradient = 3 * rows  # a backward pass takes as long as two
        if self.task.is_rewarded:
            return math.ceil(ANSWERS * (rows + READING * gradient) / numbers.batch_updates)
        return gradient if numbers.is_first_order else numbers.points * rows

    @property
    def run_id(self) -> bytes:
        """Run id, 32 bytes: `run_id_of` the canonical bytes."""
        return run_id_of(self.canonical())

    def parameters(self) -> RunParameters:
        """Return the parameters of the run for the protocol machine."""
        t = self.training
        return RunParameters(
            run_id=self.run_id,
            epoch_updates=t.epoch_updates,
            update_budget=t.update_budget,
            scalar_bytes=t.scalar_bits // 8,
            scalar_limit=t.scalar_limit,
            organised=self._authority(),
            rate=self._rate() if self.organised.organiser else 0,
            subspace_epochs=self.organised.subspace_epochs,
            bases=bytes.fromhex(t.bases),
            quota=self.open.quota,
            work_bits=self.open.work_bits,
            last_subspace=MAX_CORES_BYTES // self.core_bytes - 1,
            version=self.protocol,
            cells=self.dimensions if t.is_first_order else 0,
            norm_limit=t.norm_limit,
        )

    def _authority(self) -> Authority | None:
        said = self.organised
        if not said.organiser:
            return None
        deputies = tuple(bytes.fromhex(key) for key in said.deputies)
        terms = ELECTED_TERMS if self.protocol >= FIRST_ORDER_VERSION else 1
        return Authority(self.run_id, bytes.fromhex(said.organiser), deputies, said.votes, terms)

    def _rate(self) -> int:
        """Return the learning rate in units of 2^-32. Halves are rounded to even; the multiplication is
        exact."""
        return round(self.training.learning_rate * RATE_ONE)

    def current(self, source: str) -> Manifest:
        """Return this manifest if nodes of this version can take part in its run.

        Raises UserError OLDER_PROTOCOL if they cannot; `source` tells in the error where the manifest comes
        from.
        """
        if self.protocol < OLDEST_VERSION:
            raise UserError(
                Code.OLDER_PROTOCOL,
                f"the run of {source} speaks protocol {self.protocol}, which had no protection against "
                f"strangers' keys; this sfnode takes part in runs of protocol {OLDEST_VERSION} and later",
                "Make a new run with `sfnode init`. What was trained is not lost: `sfnode verify`, `sfnode "
                "eval` and `sfnode export --out FOLDER` go on reading the folder.",
            )
        return self

    def to_toml(self) -> str:
        # a multi-line string would turn \r\n into \n, and so change the run id
        return tomli_w.dumps(self.fields(), multiline_strings=b"\r" not in self.canonical())

    @classmethod
    def from_toml(cls, path: Path) -> Manifest:
        """Read a manifest file. Raises UserError BAD_MANIFEST or NEWER_PROTOCOL."""
        try:
            fields = read_toml(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            why = "it is no text (UTF-8)" if isinstance(error, UnicodeDecodeError) else why
            fix = "Write one with `sfnode init`, or get the run's own with `sfnode join --peers ADDRESS`."
            if is_file(str(path)):
                why, fix = "its name is that of data", f"Make a run of it: {command('sfnode', 'init', path)}"
            raise UserError(Code.BAD_MANIFEST, f"cannot read the run manifest {path}: {why}", fix) from error
        return cls._checked(fields, str(path))

    @classmethod
    def from_canonical(cls, encoded: bytes, source: str) -> Manifest:
        """Decode a manifest from a peer. Bytes that are not canonical are refused."""
        if len(encoded) > MAX_MANIFEST_BYTES:
            raise _unsound(source, "is too large")
        try:
            fields = msgpack.unpackb(encoded, raw=False, strict_map_key=True)
        except (ValueError, RecursionError, msgpack.UnpackException) as error:
            raise _unsound(source, f"does not decode: {error}") from error
        manifest = cls._checked(fields, source)
        if manifest.canonical() != encoded:
            raise _unsound(source, "is not in canonical form")
        return manifest

    @classmethod
    def _checked(cls, fields: Any, source: str) -> Manifest:
        version = fields.get("protocol") if isinstance(fields, dict) else None
        if isinstance(version, int) and PROTOCOL_VERSION < version < 1 << 32:
            raise UserError(
                Code.NEWER_PROTOCOL,
                f"the run of {source} speaks protocol {version}; this sfnode speaks {PROTOCOL_VERSION}",
                "Upgrade: pip install --upgrade sfnode",
            )
        try:
            manifest = cls.model_validate(fields)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(str(part) for part in first["loc"]) or "the file"
            reason = first["msg"].removeprefix("Value error, ")
            raise UserError(
                Code.BAD_MANIFEST,
                f"the run manifest {source} is not valid: {where}: {reason}",
                "Correct that field, or write a fresh manifest with `sfnode init`.",
            ) from error
        unknown = {int(kind) for kind in manifest.extensions} - KNOWN_EXTENSIONS
        critical = [kind for kind in unknown if kind % 2 == 0]
        if critical:
            raise UserError(
                Code.NEWER_PROTOCOL,
                f"the run of {source} has an extension that this sfnode does not know (kind {min(critical)})",
                "Upgrade: pip install --upgrade sfnode",
            )
        return manifest


def _unsound(source: str, fault: str) -> UserError:
    """Return the error for the manifest of a peer."""
    what = f"the manifest from {source} {fault}"
    return UserError(Code.BAD_MANIFEST, what, "Join through another peer.")


_PART = r"(?!\.)[\w.-]{1,96}(?<!\.)"
"""Part of a name on the hub, which allows 96 characters."""

_ON_HUB = re.compile(f"{_PART}/{_PART}", re.ASCII)

_SHIPPED = re.compile(f"{BUILTIN}[\\w-]+(:\\w+)?", re.ASCII)

_ROWS = re.compile(f"hf:({_PART}/{_PART})(?:@([0-9a-f]{{40}}))?(?::({_PART}))?:({_PART})", re.ASCII)


class HubRows(NamedTuple):
    """Split of a data set on the hub, `hf:OWNER/NAME[@COMMIT][:CONFIG]:SPLIT`."""

    name: str
    commit: str
    """Commit of the data set; empty for its newest commit."""
    config: str
    split: str

    def __str__(self) -> str:
        pinned = f"@{self.commit}" if self.commit else ""
        return ":".join(part for part in (f"{HUB}{self.name}{pinned}", self.config, self.split) if part)


def hub_rows(source: str) -> HubRows | None:
    """Return the rows on the hub that a source names; None if the source names no such rows."""
    found = _ROWS.fullmatch(source)
    return HubRows(*(part or "" for part in found.groups())) if found else None


def names_folders(manifest: Manifest) -> bool:
    """Return whether a manifest names folders of a machine, as older manifests may. Such a manifest should
    not be published."""
    sources = (manifest.model.source, *map(manifest.data.source, get_args(DataRole)))
    return any(public_name(source) != source for source in sources)


def is_on_hub(source: str) -> bool:
    """Return whether a source has the form of a model's name on the hub, OWNER/NAME. It does not matter
    whether this machine has files under that name."""
    return _ON_HUB.fullmatch(source) is not None and not is_file(source)


def public_name(source: str) -> str:
    """Return the name of a source that everybody may know: its name on the hub or in this package, or else
    the last part of its path."""
    named = _SHIPPED.fullmatch(source) or is_on_hub(source) or hub_rows(source)
    return source if named else re.split(r"[/\\\\]", source.rstrip("/\\"))[-1]
