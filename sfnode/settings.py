"""The settings of one node: the one source of their defaults, bounds and choices.

Flat and typed: a field is a flag of `sfnode join`, an environment variable, a key of the configuration file
(`sfnode.cli.options` derives the flags from the fields) and an argument of `Settings(...)` in a program.
Nothing here reads the environment or a file. What is the same for every node of a run: `sfnode.manifest`.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field, field_validator

from sfnode.defaults import DATA_DIR, KEYS_DIR, SEARCH, located
from sfnode.limits import Limits
from sfnode.manifest.sections import Section
from sfprotocol import fields, invitation

if TYPE_CHECKING:
    from sfnode.manifest.training import Training


def _name(value: str) -> str:
    """The name as it may be told to others (SPEC K2). Raises ValueError."""
    if fault := fields.text_fault(value):
        raise ValueError(f"{fault}; take up to {fields.MAX_NAME} bytes of visible characters")
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

EVERYWHERE = ("/ip4/0.0.0.0/tcp/0", "/ip6/::/tcp/0")
"""Addresses to listen on: all of this machine. A kernel without IPv6 has only the first."""


class Settings(Section):
    """Settings of one node on its machine. What stands below a field is also the help of its option.

    Raises pydantic's ValidationError (a ValueError) for a field that is unknown or out of bounds.
    """

    model_config = ConfigDict(use_attribute_docstrings=True)

    data_dir: Annotated[Path, AfterValidator(located), Field(validate_default=True)] = DATA_DIR
    run: Path | None = None
    run_id: str = ""
    """Refuse to join a run whose id does not begin so; where no peer is a node, all of it."""
    peers: tuple[str, ...] = ()
    contacts_url: Annotated[str, AfterValidator(_url)] = ""
    """Web page with the run's contacts, asked when no peer is there.  [default: the link's]"""
    role: Literal["trainer", "relay"] = "trainer"
    """trainer; or relay: no model, forwards only."""
    model: Path | None = None
    """Base model, if not where the run says."""
    share_model: bool | None = None
    """Give model and data to nodes that lack them.  [default: trainers do]"""
    data: Path | None = None
    """Train on this private file; its rows never leave this machine."""
    test: Path | None = None
    """The run's test data, where it names them without a digest."""
    validation: Path | None = None
    """The run's validation data, where it names them without a digest."""
    skip_bad_rows: bool = False
    """Leave out rows of --data that do not fit, and say which."""
    verifier: tuple[str, ...] = ()
    """A function of yours that may score answers."""
    shard: tuple[int, int] | None = None  # (k, n), where k counts from 0
    """Train on part K of N of the rows: every N-th row, from row K on."""
    device: str = "cpu"
    """One or more, separated by commas: the node's steps are measured on all of them (`engine.trainer`)."""
    dtype: Literal["auto", "float32", "bfloat16", "float16", "int8", "nf4"] = "auto"
    """Numbers of the model: auto, float32, bfloat16, float16, int8 or nf4."""
    queries: int = Field(default=0, ge=0, le=64)
    """Mini-batches in one forward pass.  [default: 1, or 64 of a head alone]"""

    def queries_of(self, training: Training) -> int:
        """Return the mini-batches of a step of a run with these numbers."""
        return self.queries or (HEAD_QUERIES if training.features else 1)

    steps: int = Field(default=0, ge=0)
    """Leave after so many updates.  [default: no limit]"""
    until_complete: bool = False
    """Leave when the run is complete and the neighbours agree."""
    follow: bool = False
    """Go on in the next run that its organiser announces."""
    host_maddrs: tuple[str, ...] = EVERYWHERE
    announce_maddrs: tuple[str, ...] = ()
    """Tell others this address, of a forwarded port."""
    auto_relay: bool = False
    """Let others come through a relay: behind a router or firewall."""
    trusted_relays: tuple[str, ...] = ()
    """Relays for --auto-relay; others of the run serve when these are gone.  [default: the peers]"""
    circuit_relay: bool | None = None
    """Relay connections of others.  [default: relays do]"""
    client_mode: bool = False
    """Listen nowhere; only connect to others."""
    limits: Limits = Limits()
    """`--limit` and `--threads` on the command line."""
    display_name: Name = ""
    """Name that others see: public, of your choice."""
    team: Name = ""
    """The team that your work counts for, too."""
    organise: bool = False
    """Decide what counts, with the organiser's key."""
    alone: bool = False
    """Do not wait for peers: nobody has decisions that are not here."""
    search: bool = SEARCH
    """Look along every epoch how far to go, and at which rate to go on."""
    guard: bool = True
    """Go back to the best seal when the model gets worse; end when it gets no better."""
    renew_bases: int | None = Field(default=None, ge=0, lt=1 << 32)
    """Make new bases from gradients after so many updates; 0: never.  [default: 96 or more in a reward run,
    else 0]"""
    history: Literal["all", "checkpoint"] = "all"
    """The updates to keep: all of them, or those after the last checkpoint but one."""
    from_checkpoint: bool = False
    """Begin with the newest checkpoint, instead of all updates before it."""
    keys_dir: Annotated[Path, AfterValidator(located), Field(validate_default=True)] = KEYS_DIR
    """Folder of the organiser's keys."""
    admission: Literal["anyone", "approve", "links"] | None = None
    """Newcomers to admit uninvited.  [default: anyone; in a private run approve]"""
    noise: float = Field(default=0.0, ge=0, le=1000)
    """Noise on what is told with --data, in units of one row (docs/security.md)."""
    noise_epsilon: float = Field(default=0.0, ge=0, le=1000)
    """Tell no more of a row of --data than this, by noise that lasts for a run (docs/security.md)."""
    noise_clip: float = Field(default=0.0, ge=0, le=1e9)
    """The largest slope, or length of a row's gradient, that is told with noise.  [default: the run's]"""
    passphrase_file: Path | None = None
    """Open the organiser's key with its first line.  [default: ask]"""
    invitation: Annotated[str, Field(pattern=INVITATION, max_length=MAX_INVITATION)] = ""
    """Ticket that admits this node, if no link does: a secret, so rather set the variable."""
    metrics: tuple[str, int] | None = None
    """Serve metrics for Prometheus here."""
    export_every: int = Field(default=0, ge=0, le=65_536)
    """Export the model every so many rounds.  [default: never]"""
    samples: int = Field(default=4, ge=0, le=16)
    """Test rows whose answers are recorded for the dashboard; 0: none."""
    notify: Annotated[str, AfterValidator(_command)] = ""
    """Run CMD EVENT TEXT when complete, worse, offline or organised by another."""
    log_to: tuple[str, ...] = ()
    """Record figures: jsonl:FILE, tensorboard:FOLDER, wandb:PROJECT."""

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
        """Whether the node does not hold the weights that a whole model has."""
        return self.dtype in ("int8", "nf4")

    @property
    def noisy(self) -> bool:
        """Whether what the node tells has noise."""
        return bool(self.noise or self.noise_epsilon)

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
