"""What a scenario is: everything that a run needs besides its seed, as data."""

from __future__ import annotations

from dataclasses import dataclass, field

from sfnode.sim.faults import CALM, Hardware, Trouble, Weather
from sfnode.sim.hostile import Attack


@dataclass(frozen=True, slots=True)
class Load:
    """The updates that are made while the troubles last."""

    rate: float = 4.0
    """How many times a second somebody has finished some, in the whole network."""
    most: int = 8
    """Updates that are finished at once, at most."""
    origins: int = 0
    """How many nodes compute; 0 means all, up to the number that `runner` allows."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What is required besides convergence; None where nothing is."""

    p99: float | None = None
    """Seconds from the making of an update to its admission, 99th percentile over honest nodes."""
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
    """How long the troubles last."""
    settle: float = 30.0
    """Seconds of virtual time within which all must be equal once the troubles are over."""
    weather: Weather = CALM
    hardware: Hardware = field(default_factory=Hardware)
    load: Load = field(default_factory=Load)
    troubles: tuple[Trouble, ...] = ()
    attack: Attack | None = None
    limits: Limits = field(default_factory=Limits)
