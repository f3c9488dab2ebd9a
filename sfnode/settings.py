"""The settings of one node, with their defaults, bounds and choices.

The settings are flat and typed. Each field is a flag of `sfnode join`, an environment variable, a key of the
configuration file and an argument of `Settings(...)` in a program (`sfnode.cli.options` derives the flags
from the fields). This module reads neither the environment nor a file. Settings that all nodes of a run share
are in `sfnode.manifest`.
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
    """Return the name if it may be published (SPEC K2). Raises ValueError."""
    if fault := fields.text_fault(value):
        raise ValueError(f"{fault}; take up to {fields.MAX_NAME} bytes of visible characters")
    return value


def _url(value: str) -> str:
    """Return the URL if an invitation link may contain it (SPEC N6). Raises ValueError."""
    if value and not invitation.is_url(value):
        raise ValueError(f"give it as {invitation.URL_FORM}")
    return value


def _command(value: str) -> str:
    """Return the command if it can be split into words. Raises ValueError."""
    if value and not any(shlex.split(value)[:1]):
        raise ValueError("name the program to run, such as notify-send, with what it is told first")
    return value


INVITATION = "^([1-9][0-9]{0,9}:([0-9a-f]{2}){16,32})?$"
MAX_INVITATION = 75
"""Maximum length of an invitation: a number of ten digits, a colon, and a secret of 16 to 32 bytes in hex."""

MAX_DEVICES = 16
"""Maximum number of devices of a node: as many GPUs as the largest machines have. Each device has a replica
of the model and a thread. On a CPU, whose cores all replicas share, far fewer replicas are useful."""

Name = Annotated[str, AfterValidator(_name)]


HEAD_QUERIES = 64
"""Default number of mini-batches in a step of a run that trains only a head. 64 mini-batches cost little more
than one mini-batch, and in a segment of 64 updates each update takes 2.5 bytes (SPEC S4)."""

EVERYWHERE = ("/ip4/0.0.0.0/tcp/0", "/ip6/::/tcp/0")
"""Addresses to listen on: all interfaces of this machine. Without IPv6 in the kernel, only the first is
used."""


class Settings(Section):
    """Settings of one node on its machine. The text below a field is also the help of its option.

    Raises pydantic's ValidationError (a ValueError) for a field that is unknown or out of bounds.
    """

    model_config = ConfigDict(use_attribute_docstrings=True)

    data_dir: Annotated[Path, AfterValidator(located), Field(validate_default=True)] = DATA_DIR
    run: Path | None = None
    run_id: str = ""
    """Refuse to join a run whose id does not begin so. Where no peer is a node, give the whole id."""
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
    """Train on this private file. Its rows never leave this machine."""
    test: Path | None = None
    """The run's test data, if the run names them without a digest."""
    validation: Path | None = None
    """The run's validation data, if the run names them without a digest."""
    skip_bad_rows: bool = False
    """Leave out rows of --data that do not fit, and list them."""
    verifier: tuple[str, ...] = ()
    """Your own function, which may score answers."""
    shard: tuple[int, int] | None = None  # (k, n), where k counts from 0
    """Train on part K of N of the rows: every N-th row, from row K on."""
    device: str = "cpu"
    """One or more devices, separated by commas. The node's steps are measured on all of them
    (`engine.trainer`)."""
    dtype: Literal["auto", "float32", "bfloat16", "float16", "int8", "nf4"] = "auto"
    """Number format of the model: auto, float32, bfloat16, float16, int8 or nf4."""
    queries: int = Field(default=0, ge=0, le=64)
    """Mini-batches in one forward pass.  [default: 1, or 64 of a head alone]"""

    def queries_of(self, training: Training) -> int:
        """Return the number of mini-batches of a step, for a run whose manifest has the section
        `training`."""
        return self.queries or (HEAD_QUERIES if training.features else 1)

    steps: int = Field(default=0, ge=0)
    """Leave after this number of updates.  [default: no limit]"""
    until_complete: bool = False
    """Leave when the run is complete and the neighbours agree."""
    follow: bool = False
    """Continue in the next run that its organiser announces."""
    host_maddrs: tuple[str, ...] = EVERYWHERE
    announce_maddrs: tuple[str, ...] = ()
    """Address of a forwarded port to publish to others."""
    auto_relay: bool = False
    """Let others connect through a relay, behind a router or firewall."""
    trusted_relays: tuple[str, ...] = ()
    """Relays for --auto-relay; others of the run serve when these are gone.  [default: the peers]"""
    circuit_relay: bool | None = None
    """Relay connections of others.  [default: relays do]"""
    client_mode: bool = False
    """Listen nowhere; only connect to others."""
    limits: Limits = Limits()
    """`--limit` and `--threads` on the command line."""
    display_name: Name = ""
    """Your name for others: public, of your choice."""
    team: Name = ""
    """The team for which your work counts, too."""
    organise: bool = False
    """Decide what counts, with the organiser's key."""
    alone: bool = False
    """Do not wait for peers: no decisions are missing here."""
    search: bool = SEARCH
    """Search along every epoch for its factor and the next rate."""
    guard: bool = True
    """Return to the best seal if the model gets worse; end if it gets no better."""
    renew_bases: int | None = Field(default=None, ge=0, lt=1 << 32)
    """Make new bases from gradients after this number of updates; 0: never.  [default: 96 or more in a reward
    run, else 0]"""
    history: Literal["all", "checkpoint"] = "all"
    """Updates to keep: all of them, or those after the last checkpoint but one."""
    from_checkpoint: bool = False
    """Begin with the newest checkpoint instead of all earlier updates."""
    keys_dir: Annotated[Path, AfterValidator(located), Field(validate_default=True)] = KEYS_DIR
    """Folder of the organiser's keys."""
    admission: Literal["anyone", "approve", "links"] | None = None
    """Newcomers to admit uninvited.  [default: anyone; in a private run approve]"""
    noise: float = Field(default=0.0, ge=0, le=1000)
    """Noise on updates from --data, in units of one row (docs/security.md)."""
    noise_epsilon: float = Field(default=0.0, ge=0, le=1000)
    """Limit on what updates reveal of a row of --data, by noise that lasts for a run (docs/security.md)."""
    noise_clip: float = Field(default=0.0, ge=0, le=1e9)
    """Largest slope, or length of a row's gradient, that is sent with noise.  [default: the run's]"""
    passphrase_file: Path | None = None
    """Open the organiser's key with the first line of this file.  [default: ask]"""
    invitation: Annotated[str, Field(pattern=INVITATION, max_length=MAX_INVITATION)] = ""
    """Ticket that admits this node, if no link does. A secret: better set the variable."""
    metrics: tuple[str, int] | None = None
    """Serve metrics for Prometheus here."""
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
    def noisy(self) -> bool:
        """Whether the node adds noise to its updates."""
        return bool(self.noise or self.noise_epsilon)

    @property
    def devices(self) -> tuple[str, ...]:
        """Names of the devices that compute. The first device also evaluates."""
        return tuple(self.device.split(","))

    @field_validator("shard")
    @classmethod
    def _shard_exists(cls, value: tuple[int, int] | None) -> tuple[int, int] | None:
        if value is not None and not 0 <= value[0] < value[1]:
            raise ValueError("a shard is (k, n) with 0 <= k < n")
        return value
