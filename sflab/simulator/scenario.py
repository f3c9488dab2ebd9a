"""A scenario: everything that a run needs besides its seed, as data."""

from __future__ import annotations

from dataclasses import dataclass, field

from sflab.simulator.adversaries.actors import Attack
from sflab.simulator.faults.kinds import Fault
from sflab.simulator.world.hardware import Hardware
from sfnode.transport.memory import CALM, Conditions


@dataclass(frozen=True, slots=True)
class Load:
    """The updates that are made while the faults last."""

    rate: float = 4.0
    """Times a second that some node finishes updates, in the whole network."""
    most: int = 8
    """Most updates that are finished at once."""
    origins: int = 0
    """Number of nodes that compute; 0 means all, up to the number that `runner` allows."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits that a run must keep besides convergence; None where there is no limit."""

    p99: float | None = None
    """Seconds from the signing of an update to its admission, 99th percentile over honest nodes."""
    worst: float | None = None
    copies: float | None = None
    """Payload copies sent per delivery."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One row of the table."""

    name: str
    says: str
    """One sentence."""
    topology: str = "random"
    nodes: int = 16
    seconds: float = 20.0
    """Seconds that the faults last."""
    settle: float = 30.0
    """Seconds of virtual time within which all must be equal once the faults are over."""
    conditions: Conditions = CALM
    hardware: Hardware = field(default_factory=Hardware)
    load: Load = field(default_factory=Load)
    faults: tuple[Fault, ...] = ()
    attack: Attack | None = None
    organised: bool = False
    """Whether an organiser, on the first node, says what counts."""
    stand_ins: int = 0
    """Honest nodes that stand in for the organiser, itself among them; adversaries that do come on top."""
    judged: bool = False
    """Whether its seals have factors of all kinds, rates of coming epochs, and skip and recount feeds."""
    first_order: bool = False
    """Whether an update has a scalar for every cell, whatever the seed: so it is in organised runs with every
    fourth one."""
    limits: Limits = field(default_factory=Limits)
