"""The settings of one node: the one source of their defaults, bounds and choices.

Flat and typed: a field is a flag of `sfnode join`, an environment variable, a key of the configuration file
(`sfnode.cli.options` derives the flags from the fields) and an argument of `Settings(...)` in a program.
Nothing here reads the environment or a file. What is the same for every node of a run: `sfnode.manifest`.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, Field, field_validator

from sfnode.defaults import DATA_DIR, KEYS_DIR, SEARCH, located
from sfnode.limits import Limits
from sfnode.manifest.sections import Section
from sfprotocol import invitation, names

if TYPE_CHECKING:
    from sfnode.manifest.training import Training


def _name(value: str) -> str:
    """The name as it may be told to others (SPEC K2). Raises ValueError."""
    if fault := names.fault(value):
        raise ValueError(f"{fault}; take up to {names.MAX_NAME} bytes of visible characters")
    return value


def _url(value: str) -> str:
    """The URL as links have it (SPEC N6). Raises ValueError."""
    if value and not invitation.is_url(value):
        raise ValueError(f"give it as {invitation.URL_FORM}")
    return value


def _command(value: str) -> str:
    """The command, which has to be one that can be split into words. Raises ValueError."""
    if value and not any(shlex.split(value)[:1]):
        raise ValueError("name the program to run, such as notify-send, with what it is told first")
    return value


INVITATION = "^([1-9][0-9]{0,9}:([0-9a-f]{2}){16,32})?$"
MAX_INVITATION = 75
"""A number of ten digits, a colon, and the 16 to 32 bytes of a secret in hex; or nothing."""

MAX_DEVICES = 16
"""Devices of a node: as many GPUs as the largest machines have. Each has a replica of the model and a thread,
and on a CPU, whose cores all replicas share, far fewer are of use."""

Name = Annotated[str, AfterValidator(_name)]


HEAD_QUERIES = 64
"""Mini-batches of a step of a run that trains a head alone: together they cost little more than one, and a
segment of so many takes 2.5 bytes an update (SPEC S4)."""


class Settings(Section):
    """Settings of one node on its machine; `sfnode join --help` explains each field.

    Raises pydantic's ValidationError (a ValueError) for a field that is unknown or out of bounds.
    """

    data_dir: Annotated[Path, AfterValidator(located), Field(validate_default=True)] = DATA_DIR
    run: Path | None = None
    run_id: str = ""
    """Hex; a run whose id does not begin so is refused."""
    peers: tuple[str, ...] = ()
    contacts_url: Annotated[str, AfterValidator(_url)] = ""
    """The web page with the run's current contacts, for this node and for its links (SPEC N6); empty: the one
    that it was told of before."""
    role: Literal["trainer", "relay"] = "trainer"
    model: Path | None = None
    share_model: bool | None = None
    """None: trainers do, relays do not."""
    data: Path | None = None
    test: Path | None = None
    validation: Path | None = None
    """Files with test and validation rows, where the run names them without a digest."""
    skip_bad_rows: bool = False
    """Leave out rows of `data` that do not fit the task."""
    verifier: tuple[str, ...] = ()
    """Plug-ins MODULE:FUNCTION of this machine that may score answers, if they are the run's verifiers."""
    shard: tuple[int, int] | None = None
    """(k, n): every n-th row of the training data, from row k on; k counts from 0."""
    device: str = "cpu"
    """One or more, separated by commas: the node's steps are measured on all of them (`engine.replicas`)."""
    dtype: Literal["auto", "float32", "bfloat16", "float16", "int8", "nf4"] = "auto"
    queries: int = Field(default=0, ge=0, le=64)
    """Mini-batches evaluated in one batched forward pass; 0: as many as the run suggests."""

    def queries_of(self, training: Training) -> int:
        """Return the mini-batches of a step of a run with these numbers."""
        return self.queries or (HEAD_QUERIES if training.features else 1)

    steps: int = Field(default=0, ge=0)
    """Updates to make before the node leaves; 0: no limit."""
    until_complete: bool = False
    follow: bool = False
    """Go on in the run as which this one goes on, as its organiser announces, in a folder beside."""
    host_maddrs: tuple[str, ...] = ("/ip4/0.0.0.0/tcp/0",)
    announce_maddrs: tuple[str, ...] = ()
    auto_relay: bool = False
    trusted_relays: tuple[str, ...] = ()
    """Relays that `auto_relay` may use; if empty, the peers."""
    circuit_relay: bool | None = None
    """None: relays do, trainers do not."""
    client_mode: bool = False
    limits: Limits = Limits()
    """`--limit` and `--threads` on the command line."""
    display_name: Name = ""
    team: Name = ""
    organise: bool = False
    """Decide what counts, with the organiser's key in `keys_dir`."""
    alone: bool = False
    """Believe that nobody has more of the decisions than this node: an organiser then waits for no peers."""
    search: bool = SEARCH
    """Find factors and rates by line searches on validation rows, as the organiser."""
    guard: bool = True
    """Go back to the best seal when the run gets worse, and end it when it no longer improves, as the
    organiser, where the run has validation rows."""
    renew_bases: int | None = Field(default=None, ge=0, lt=1 << 32)
    """Updates for which published bases serve until the organiser makes others at sealed weights; 0: for
    ever; None: what suits the task and this node (`organising.policy`)."""
    history: Literal["all", "checkpoint"] = "all"
    """The updates of an organised run that are kept: all, or those that a checkpoint does not stand for."""
    from_checkpoint: bool = False
    """Begin with the newest checkpoint of an organised run, instead of all updates; or go on with it after a
    long absence."""
    keys_dir: Annotated[Path, AfterValidator(located), Field(validate_default=True)] = KEYS_DIR
    admission: Literal["anyone", "approve", "links"] | None = None
    """Whoever is admitted without an invitation; None: anyone with a proof of work, or
    in a private run those whom the owner approves."""
    noise: float = Field(default=0.0, ge=0, le=1000)
    """Standard deviation of the noise on this node's scalars, in units of what one row can change."""
    noise_clip: float = Field(default=0.0, ge=0, le=1e9)
    """The largest slope that is told where there is noise; 0: the largest that the run can tell."""
    passphrase_file: Path | None = None
    """The file whose first line opens the organiser's key, if that is encrypted."""
    invitation: Annotated[str, Field(pattern=INVITATION, max_length=MAX_INVITATION)] = ""
    """`NUMBER:HEX`, the ticket of a link (SPEC N5): what the node shows to be admitted."""
    metrics: tuple[str, int] | None = None
    """Host and port of `GET /metrics` on TCP; it is a route of the control socket in any case."""
    export_every: int = Field(default=0, ge=0, le=65_536)
    """Seals of an organised run after which the model is exported to the node's folder; 0: never."""
    samples: int = Field(default=4, ge=0, le=16)
    """Test rows whose answers by the base model and later ones are recorded as the run goes; 0: none."""
    notify: Annotated[str, AfterValidator(_command)] = ""
    """A command that is run when the run completes, the model gets worse, or the node is offline."""
    log_to: tuple[str, ...] = ()
    """Loggers that are fed while the node runs, as `sfnode.loggers.open` reads them: `jsonl:FILE`."""

    @field_validator("device")
    @classmethod
    def _devices_have_names(cls, value: str) -> str:
        named = [name.strip() for name in value.split(",")]
        if not all(named):
            raise ValueError("name devices as cpu, cuda, cuda:1, mps, several as cuda:0,cuda:1")
        if len(named) > MAX_DEVICES:
            raise ValueError(f"there are {len(named)} devices, and {MAX_DEVICES} can share the work")
        known = [name if ":" in name else f"{name}:0" for name in named if not name.startswith("cpu")]
        if twice := next((name for name in known if known.count(name) > 1), None):
            raise ValueError(f"{twice} is named twice, which takes its memory twice and makes it no faster")
        return ",".join(named)

    @property
    def quantised(self) -> bool:
        """Whether the node does not hold the weights that a whole model has, and no gradients of them."""
        return self.dtype in ("int8", "nf4")

    @property
    def devices(self) -> tuple[str, ...]:
        """Devices that compute; the first one also evaluates."""
        return tuple(self.device.split(","))

    @field_validator("shard")
    @classmethod
    def _shard_exists(cls, value: tuple[int, int] | None) -> tuple[int, int] | None:
        if value is not None and not 0 <= value[0] < value[1]:
            raise ValueError("a shard is (k, n) with 0 <= k < n")
        return value
