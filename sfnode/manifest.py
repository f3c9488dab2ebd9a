"""The run manifest: what all nodes of a run share.

A manifest is the immutable description of one training run; the run id is its canonical hash. It is written
as TOML by `sfnode init` and travels between nodes as canonical MessagePack (SPEC M1-M3). This module knows
fields and their bounds; it does not load models or data.

Manifests of version 1 can be read: they have fewer keys, which then have the values that change nothing. A
key that was added within a version is left out where it has such a value, so that older runs keep their id.
"""

from __future__ import annotations

import hashlib
import math
import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

import msgpack
import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from sfnode.errors import Code, UserError
from sfprotocol import PROTOCOL_VERSION
from sfprotocol.decisions import RATE_ONE
from sfprotocol.messages import Authority, RunParameters
from sfprotocol.names import fault
from sfprotocol.signing import sound

MAX_MANIFEST_BYTES = 192 * 1024
"""Size limit of an encoded manifest: it fits one frame, and the targets of a 7B model take 20 KiB."""

MAX_EPOCHS = 65_536
"""Most epochs of a run: the epoch of a segment then takes at most three bytes (SPEC S4)."""

MAX_DESCRIPTION = 600
"""Bytes of UTF-8 in a run's description: a paragraph, which fits the first screen of a phone (SPEC M8)."""

MAX_DEPUTIES = 64
"""Most deputies of a run: the votes of all of them take 5 kB."""

MAX_QUOTA = 1 << 20
"""Largest quota: 256 full segments, so that the 64 feeds of one admission make nobody hold more than 128 MiB
of 16-bit scalars for an epoch."""

MAX_WORK_BITS = 26
"""Most bits of work of a feed: of the 2^32 incarnations of an origin, 64 have that much on average."""

MAX_GROUP = 64
"""Most updates of a group: the mean of the 63 others adds a 63rd to a scalar's variance, and more would take
that down by no more than that; an auditor measures a whole group for one scalar, and 64 groups in a step fill
a segment (SPEC S4)."""

MAX_ANSWER_TOKENS = 4096
"""Most tokens of an answer of a reward run: verifiers look at no more characters (docs/verifiers.md)."""

LEAST_TEMPERATURE, MOST_TEMPERATURE = 1 / 64, 64.0
"""Bounds of a temperature that is not 0: beyond them the likeliest token, or any, would be drawn."""

MAX_STOPS, MAX_STOP = 8, 64
"""Most texts that end an answer, and characters of each: they are looked for after every token."""

KNOWN_EXTENSIONS: frozenset[int] = frozenset()
"""Kinds of extensions of a manifest that this version understands."""

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
    "model": frozenset({"parent"}),
    "task": frozenset({"loss", "prior", "verifier", "answer_tokens", "temperature", "stop"}),
    "training": frozenset({"bases", "decay", "group"}),
}
"""Keys, by table, that a manifest does not have where they have their default value (SPEC M2); the empty name
stands for the manifest itself."""

FILE_KINDS = (".tsv", ".csv", ".jsonl", ".parquet")
"""Ends of the names of files with rows."""

DataRole = Literal["train", "test", "validation"]
"""Purposes of a run's rows."""

PUBLISHED_UNIT = 2.0**-3
"""Value of an entry of 1 of published bases (SPEC R10): a column of root mean square 1, as those of random
bases are, has entries of root mean square 8, and an outlier may be 15.9."""

ExtensionKind = Annotated[str, Field(pattern="^(0|[1-9][0-9]{0,3})$")]
"""A decimal number below 10,000 without leading zeros."""

HexBytes = Annotated[str, Field(pattern="^([0-9a-f]{2})*$")]
"""Bytes as lower-case hex digits."""

Hex32 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
"""32 bytes as lower-case hex digits."""


MOST_ROWS = (1 << 64) - 1
"""The largest integer that the encoding behind the run id has (MessagePack)."""


PRIOR_ONE = 1 << 16
"""One nat in a prior of the manifest: exact in every language, and finer than any measurement."""

MOST_PRIOR = (1 << 31) - 1
"""Largest part of a prior: 32,768 nats, more than the logarithm of any probability of binary32."""


class Section(BaseModel):
    """A frozen table of the manifest; unknown keys are errors, so that a typo cannot pass silently."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


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


class Task(Section):
    """The meaning of a row of data: `template` is the prompt, and an answer follows it.

    The fields of a row are named in braces, `{field}` or `{field|filter}` (sfnode/tasks/templates.py lists
    the filters). A space sets the answer off unless the prompt ends or the answer begins in white space.

    classification: `verbalizer` maps the row's label to the answer;
    sequence-classification: `template` is all the text, which `{separator}` may part in two, and `verbalizer`
    maps the row's label to the name of a class; a model with a classification head gives the classes scores,
    in the verbalizer's order;
    choice: the row brings its candidates (`candidates_field`), the answer is `completion` with `{candidate}`
    filled in, and `label_field` has the right one (its text, its index, or a list of texts);
    completion: the answer is `completion`; text: there is no answer, the loss is on the whole of `template`;
    chat: `messages_field` holds a conversation, the loss is on what the assistant says in it;
    reward: the model writes the answer, of at most `answer_tokens` tokens and up to one of the texts `stop`;
    the loss is 1 less what the `verifier` gives it. Tokens are the likeliest ones, or drawn at a
    `temperature` (docs/rewards.md).

    `metric`: accuracy, f1 (macro-averaged, of a classification), or, if empty, what is usual for the kind.

    `loss` of the kinds with a verbalizer: plain, or centred (SPEC T5), where mini-batches are balanced and
    scores are compared less their means. `prior`: the base model's over the answers, in the verbalizer's
    order and in units of 2^-16 nats, for nodes without public training rows; none if it is empty.
    """

    kind: Literal[
        "classification", "sequence-classification", "choice", "completion", "text", "chat", "reward"
    ]
    template: str = ""
    label_field: str = "label"
    verbalizer: dict[str, str] = Field(default_factory=dict)
    candidates_field: str = ""
    completion: str = ""
    messages_field: str = Field(default="messages", min_length=1)
    metric: Literal["", "accuracy", "f1"] = ""
    max_tokens: int = Field(default=256, ge=8, le=65_536)
    loss: Literal["plain", "centred"] = "plain"
    prior: tuple[Annotated[int, Field(ge=-MOST_PRIOR, le=MOST_PRIOR)], ...] = ()
    verifier: dict[str, Any] = Field(default_factory=dict)
    """A verifier as `verifiers.specs` writes it, without keys that have their default."""
    answer_tokens: int = Field(default=0, ge=0, le=MAX_ANSWER_TOKENS)
    temperature: float = Field(default=0.0, ge=0, le=MOST_TEMPERATURE)
    stop: tuple[Annotated[str, Field(min_length=1, max_length=MAX_STOP)], ...] = Field(
        default=(), max_length=MAX_STOPS
    )

    @field_validator("verifier", mode="before")
    @classmethod
    def _as_written(cls, value: Any) -> Any:
        if not value:
            return {}
        from sfnode.verifiers import specs  # a tenth of a second, which other runs save

        return specs.read(value).model_dump(mode="json")

    @field_validator("verbalizer")
    @classmethod
    def _in_canonical_order(cls, value: dict[str, str]) -> dict[str, str]:
        found: dict[str, str] = _sorted(value)  # its order numbers the classes: on every node that of SPEC M2
        return found

    @property
    def labelled(self) -> bool:
        """Whether each row has one of the verbalizer's labels."""
        return self.kind in ("classification", "sequence-classification")

    @property
    def has_slopes(self) -> bool:
        """Whether the loss of a row changes smoothly with the weights: else there is no line search, no rate
        and no worth by slopes, and there are no bases made for the task."""
        return self.kind != "reward"

    @model_validator(mode="after")
    def _complete(self) -> Task:
        words = [word.strip() for word in self.verbalizer.values()]
        if not self.template and self.kind != "chat":
            raise ValueError(f"the task kind {self.kind} needs a template")
        if self.labelled and (len(set(words)) < max(2, len(words)) or "" in words):
            raise ValueError("a classification needs a verbalizer with two or more different words")
        if self.kind in ("choice", "completion") and not self.completion:
            raise ValueError(f"the task kind {self.kind} needs a completion")
        if self.kind == "choice" and not self.candidates_field:
            raise ValueError("the task kind choice needs a candidates_field")
        if self.loss == "centred" and not self.labelled:
            raise ValueError(f"the task kind {self.kind} has no classes whose scores could be centred")
        if self.prior and (self.loss == "plain" or len(self.prior) != len(self.verbalizer)):
            raise ValueError("a prior has a number for each class of a task whose loss is centred")
        if self.metric and not self.labelled and (self.kind, self.metric) != ("choice", "accuracy"):
            raise ValueError(f"the task kind {self.kind} cannot be measured by {self.metric}")
        self._check_answers()
        return self

    def _check_answers(self) -> None:
        """Raise ValueError unless a reward run, and no other, has what it takes to write answers."""
        if self.kind != "reward":
            if self.verifier or self.answer_tokens or self.temperature or self.stop:
                raise ValueError(f"the task kind {self.kind} has no answers that are written and verified")
            return
        if not self.verifier:
            raise ValueError("the task kind reward needs a verifier")
        if not 0 < self.answer_tokens < self.max_tokens:
            raise ValueError(
                "the task kind reward needs answer_tokens, fewer than the max_tokens of prompt and answer"
            )
        if 0 < self.temperature < LEAST_TEMPERATURE:
            raise ValueError(f"temperature is 0 or at least {LEAST_TEMPERATURE:g}")


def is_file(source: str) -> bool:
    """Return whether a source of rows is a file, rather than a data set that has a name for everybody."""
    return source.endswith(FILE_KINDS) and not source.startswith(("hf:", "builtin:"))


class Data(Section):
    """The sources of rows.

    A file (.tsv .csv .jsonl .parquet), `hf:NAME[:CONFIG]:SPLIT` or `builtin:NAME:SPLIT`.
    `train` may be empty for a run on private data only: every trainer then brings its own with `--data`.
    Validation rows come from `validation`, or, if that is empty, are `validation_limit` rows of the training
    data, on which then nobody trains (SPEC R9); by them an organiser judges, and they are never tested on.
    `digests` name what is in sources that are files (SPEC B9): nodes get these from each other, and a source
    is no more than the file's name.
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
        """Return the source of these rows; an empty one if there is none."""
        found: str = getattr(self, role)
        return found

    def testing_as_training(self) -> Data:
        """Return data whose training rows are the test rows, with nothing beside them."""
        digests: dict[DataRole, str] = {"train": self.digests["test"]} if "test" in self.digests else {}
        return Data(train=self.test, train_limit=self.test_limit, digests=digests)

    @property
    def withheld(self) -> int:
        """Number of rows of the training data on which nobody trains, because they validate."""
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


class Training(Section):
    """The numbers of the update rule (DESIGN section 3). Learning rates are per update."""

    rank: int = Field(default=32, ge=1, le=1024)
    basis: Literal["random", "published"] = "random"
    bases: Hex32 | Literal[""] = ""
    """Digest of the published bases with which the run begins (SPEC R10); empty if they are random."""
    epsilon: float = Field(default=1e-3, gt=0, le=1)
    learning_rate: float = Field(default=6e-6, gt=0, le=1)
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    batch_size: int = Field(default=4, ge=1, le=4096)
    group: int = Field(default=0, ge=0, le=MAX_GROUP)
    """Updates that share a mini-batch, each measured at one point and compared with the others (SPEC U2); 0:
    each has a mini-batch of its own, and two points."""
    epoch_updates: int = Field(default=1024, ge=1, le=1 << 32)
    update_budget: int = Field(default=4096, ge=1, le=(1 << 32) - 1)
    decay: float = Field(default=1.0, gt=0, le=1)
    """Factor by which what an organised run has learnt shrinks with each subspace that follows (SPEC O17); 1:
    it stays."""
    scalar_bits: Literal[8, 16] = 16
    scalar_delta: float = Field(default=1 / 64, gt=0, allow_inf_nan=False)
    scalar_limit: int = Field(default=32_767, ge=1, le=32_767)

    @field_validator("rank")
    @classmethod
    def _power_of_two(cls, value: int) -> int:
        if value & (value - 1):
            raise ValueError("rank must be a power of two")
        return value

    @field_validator("group")
    @classmethod
    def _not_alone(cls, value: int) -> int:
        if value == 1:
            raise ValueError("a group has two updates or more, which are compared with each other; 0 is none")
        return value

    @model_validator(mode="after")
    def _bounds(self) -> Training:
        if self.scalar_limit > self.largest_scalar:
            raise ValueError(
                f"scalar_limit is at most {self.largest_scalar} when scalar_bits is {self.scalar_bits}"
            )
        if (self.basis == "published") != bool(self.bases):
            raise ValueError("bases is the digest of published bases; a run with random ones has none")
        if self.epochs > MAX_EPOCHS:
            raise ValueError(f"update_budget / epoch_updates is at most {MAX_EPOCHS}")
        return self

    @property
    def largest_scalar(self) -> int:
        """The largest scalar that `scalar_bits` hold."""
        return (1 << (self.scalar_bits - 1)) - 1

    @property
    def batch_updates(self) -> int:
        """Number of updates that are measured together, on one mini-batch: a group's, or one."""
        return self.group or 1

    @property
    def points(self) -> int:
        """Number of points at which an update measures its mini-batch."""
        return 1 if self.group else 2

    @property
    def update_forwards(self) -> int:
        """Number of example-forwards that an update takes."""
        return self.points * self.batch_size

    @property
    def epochs(self) -> int:
        """Number of epochs that the budget spans."""
        return -(-self.update_budget // self.epoch_updates)

    @property
    def unit(self) -> float:
        """The value of an entry of 1 of U and V."""
        return PUBLISHED_UNIT if self.bases else 1.0

    def with_random_bases(self) -> Training:
        """Return the same numbers with random bases, with which steps cost as much and no file is needed."""
        return self.model_copy(update={"basis": "random", "bases": ""})

    def rate(self, epoch: int) -> float:
        """Return the learning rate of the updates of `epoch`, counted from 0."""
        progress = epoch / self.epochs
        factor = {
            "constant": 1.0,
            "linear": 1.0 - progress,
            "cosine": 0.5 * (1.0 + math.cos(math.pi * progress)),
        }[self.schedule]
        return self.learning_rate * factor


class Manifest(Section):
    """One training run. Two manifests with equal canonical bytes are the same run."""

    protocol: int = Field(default=PROTOCOL_VERSION, ge=1)
    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9][a-zA-Z0-9._-]{0,63}$")] = "run"
    description: str = ""
    """Purpose of the run, in plain text, for those who may take part and those who watch (SPEC M8)."""
    admission: Literal["open", "organised"] = "open"
    open: Open = Open()
    organised: Organised = Organised()
    model: Model
    task: Task
    data: Data
    training: Training = Training()
    extensions: dict[ExtensionKind, HexBytes] = Field(default_factory=dict)
    """Fields that later versions add, by kind. Who does not know an even kind cannot take part (SPEC M5)."""

    @field_validator("description")
    @classmethod
    def _readable(cls, value: str) -> str:
        if problem := fault(value, MAX_DESCRIPTION):
            raise ValueError(problem)
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Manifest:
        validates = self.data.validation or self.data.validation_limit
        priced = self.open != Open()
        centred = self.task.loss == "centred"
        if centred and self.training.batch_size < 2:
            raise ValueError("a centred loss needs a batch_size of 2 or more: one row has no mean but itself")
        added = (
            self.description
            or self.organised.organiser
            or self.extensions
            or self.training.bases
            or self.training.group
            or self.training.decay != 1
            or self.data.digests
            or centred
            or self.task.kind == "reward"
            or self.model.parent
        )
        if self.protocol == 1 and (added or validates or priced):
            raise ValueError("a run of version 1 has nothing of what version 2 has added")
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

    def fields(self) -> dict[str, Any]:
        """Return the keys that a manifest of this version has, with their values as in JSON."""
        found = self.model_dump(mode="json", exclude=ADDED_IN_2 if self.protocol == 1 else None)
        for table, keys in OMITTED_AT_DEFAULT.items():
            section: Section = getattr(self, table) if table else self
            usual, told = type(section).model_fields, found[table] if table else found
            for key in keys:
                if getattr(section, key) == usual[key].get_default(call_default_factory=True):
                    del told[key]
        return found

    def canonical(self) -> bytes:
        """Return canonical MessagePack (SPEC M2): all fields, maps sorted by key, floats as float64."""
        encoded: bytes = msgpack.packb(_sorted(self.fields()), use_bin_type=True)
        return encoded

    @property
    def run_id(self) -> bytes:
        """32 bytes: BLAKE2b-256 of the canonical bytes (SPEC M3)."""
        return hashlib.blake2b(self.canonical(), digest_size=32, person=b"sfnode-manifest").digest()

    def parameters(self) -> RunParameters:
        """Return what the protocol machine needs to know of the run."""
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
        )

    def _authority(self) -> Authority | None:
        said = self.organised
        if not said.organiser:
            return None
        deputies = tuple(bytes.fromhex(key) for key in said.deputies)
        return Authority(self.run_id, bytes.fromhex(said.organiser), deputies, said.votes)

    def _rate(self) -> int:
        """Return the learning rate in units of 2^-32, halves rounded to even; exact but for that."""
        return round(self.training.learning_rate * RATE_ONE)

    def current(self, source: str) -> Manifest:
        """Return this manifest, which is from `source`, if nodes of this version can take part in its run.

        Raises UserError OLDER_PROTOCOL otherwise.
        """
        if self.protocol < PROTOCOL_VERSION:
            raise UserError(
                Code.OLDER_PROTOCOL,
                f"the run of {source} speaks protocol {self.protocol}, which had no protection against "
                f"strangers' keys; this sfnode takes part in runs of protocol {PROTOCOL_VERSION} only",
                "Make a new run with `sfnode init`. What was trained is not lost: `sfnode verify`, `sfnode "
                "eval` and `sfnode export` go on reading the folder.",
            )
        return self

    def to_toml(self) -> str:
        # a multi-line string would turn \r\n into \n, and the file would name another run
        return tomli_w.dumps(self.fields(), multiline_strings=b"\r" not in self.canonical())

    @classmethod
    def from_toml(cls, path: Path) -> Manifest:
        """Read a manifest file. Raises UserError BAD_MANIFEST or NEWER_PROTOCOL."""
        try:
            fields = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            why = "it is no text (UTF-8)" if isinstance(error, UnicodeDecodeError) else why
            raise UserError(
                Code.BAD_MANIFEST,
                f"cannot read the run manifest {path}: {why}",
                "Write one with `sfnode init`, or get the run's own with `sfnode join --peers ADDRESS`.",
            ) from error
        return cls._checked(fields, str(path))

    @classmethod
    def from_canonical(cls, encoded: bytes, source: str) -> Manifest:
        """Decode a manifest that came from a peer; bytes that are not canonical are refused."""
        if len(encoded) > MAX_MANIFEST_BYTES:
            raise UserError(
                Code.BAD_MANIFEST, f"the manifest from {source} is too large", "Join through another peer."
            )
        try:
            fields = msgpack.unpackb(encoded, raw=False, strict_map_key=True)
        except (ValueError, msgpack.UnpackException) as error:
            raise UserError(
                Code.BAD_MANIFEST,
                f"the manifest from {source} does not decode: {error}",
                "Join through another peer.",
            ) from error
        manifest = cls._checked(fields, source)
        if manifest.canonical() != encoded:
            raise UserError(
                Code.BAD_MANIFEST,
                f"the manifest from {source} is not in canonical form",
                "Join through another peer.",
            )
        return manifest

    @classmethod
    def _checked(cls, fields: Any, source: str) -> Manifest:
        version = fields.get("protocol") if isinstance(fields, dict) else None
        if isinstance(version, int) and version > PROTOCOL_VERSION:
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
            raise UserError(
                Code.BAD_MANIFEST,
                f"the run manifest {source} is not valid: {where}: {first['msg']}",
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


def _sorted(value: Any) -> Any:
    """Return the same value with the keys of every map in the order of their UTF-8 bytes."""
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}  # code points sort as UTF-8 does
    if isinstance(value, list):
        return [_sorted(item) for item in value]
    return value
