"""Events for the peer manager, and its actions: frozen data, no behaviour.

The host gives each link a number, which is unique from the start of a node to its end.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from sfnode.transport.base import PeerRecord

LinkId = int


class Presence(Enum):
    """Whether a node takes part in the network."""

    OPEN = "open"
    """The node dials, lets peers in and announces itself."""
    AWAY = "away"
    """The node has no links and contacts nobody, until it is OPEN again."""
    LEAVING = "leaving"
    """The node keeps its present links until it ends, and neither opens nor accepts further links."""


class Reason(Enum):
    """Reason for closing a link."""

    UNWANTED = "there is no room for it"
    DOUBLE = "there is another link with this peer"
    GAVE_WAY = "another peer is of more use"
    MUTE = "the peer has shown nothing"
    SILENT = "the peer has not sent a single frame"
    AWAY = "this node is to have no links"


# -- events --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Wake:
    """The time that `next_deadline` returned has come."""


@dataclass(frozen=True, slots=True)
class LinkCount:
    """Facts about one link since it was opened."""

    link: LinkId
    heard: bool
    """Whether a frame has arrived."""
    useful: int | None = None
    """Number of updates that this link was the first to bring; None while the protocol's state
    machine does not know the link."""
    blank: bool = True
    """Whether the peer has neither claimed nor taken any update so far. Ignored while `useful` is None."""


@dataclass(frozen=True, slots=True)
class Observed:
    """The present state of the links and the node. The host sends it before every event whose outcome may
    depend on that state."""

    links: tuple[LinkCount, ...]
    addresses: tuple[str, ...]
    """Full addresses under which others reach this node."""


@dataclass(frozen=True, slots=True)
class LinkOpened:
    """This node or the peer has opened a link. The manager answers with Carry or Close."""

    link: LinkId
    peer: str
    outbound: bool
    address: str = ""
    """Address of the other end as seen from here; empty if unknown."""


@dataclass(frozen=True, slots=True)
class LinkEnded:
    """A link has ended; either side may have closed it."""

    link: LinkId
    heard: bool
    """Whether a frame has ever arrived."""


@dataclass(frozen=True, slots=True)
class DialFailed:
    """A peer could not be reached, or is no node."""

    peer: str
    plain: bool = False
    """Whether the peer answered but does not speak our protocol."""


@dataclass(frozen=True, slots=True)
class Announced:
    """The roster has taken our record."""

    addresses: tuple[str, ...]
    """Our addresses, as announced."""


@dataclass(frozen=True, slots=True)
class AnnounceFailed:
    """The roster has not taken our record."""


@dataclass(frozen=True, slots=True)
class Found:
    """A search of the roster has returned these records."""

    records: tuple[PeerRecord, ...]


@dataclass(frozen=True, slots=True)
class FindFailed:
    """A search of the roster has failed."""


@dataclass(frozen=True, slots=True)
class BootstrapAnswered:
    """A bootstrap attempt has ended."""

    peer: str
    answered: bool


@dataclass(frozen=True, slots=True)
class PeerFaulted:
    """A peer broke a rule of the protocol, and its link is being dropped."""

    peer: str


@dataclass(frozen=True, slots=True)
class Restarted:
    """The transport was broken and works again. For each link that was open before, a LinkEnded has come or
    will come."""


@dataclass(frozen=True, slots=True)
class PresenceChanged:
    """The owner, or the node's shutdown, has changed whether the node takes part in the network."""

    presence: Presence


OfLinks = Observed | LinkOpened | LinkEnded | DialFailed | PeerFaulted
OfRoster = Announced | AnnounceFailed | Found | FindFailed | BootstrapAnswered
Event = Wake | OfLinks | OfRoster | Restarted | PresenceChanged


# -- actions -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Dial:
    """Open a link to this peer; report LinkOpened or DialFailed."""

    peer: str
    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StopDial:
    """Cancel a dial under way; report nothing."""

    peer: str


@dataclass(frozen=True, slots=True)
class Carry:
    """Carry the protocol over this link, after every earlier Remember is durable (SPEC I2) and `instead_of`
    is closed. Report LinkEnded."""

    link: LinkId
    instead_of: LinkId | None = None


@dataclass(frozen=True, slots=True)
class Close:
    """Close this link. LinkEnded need not be reported."""

    link: LinkId
    reason: Reason


@dataclass(frozen=True, slots=True)
class Announce:
    """Put our record into the roster for `ttl` seconds; report Announced or AnnounceFailed."""

    ttl: float


@dataclass(frozen=True, slots=True)
class Find:
    """Search the roster; report Found or FindFailed."""


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """Join the roster's network through this peer; report BootstrapAnswered."""

    peer: str
    address: str


@dataclass(frozen=True, slots=True)
class StopBootstrap:
    """Cancel a bootstrap attempt under way; report nothing."""

    peer: str


@dataclass(frozen=True, slots=True)
class Remember:
    """Store these addresses durably for the next start of this node."""

    addresses: tuple[str, ...]


Action = Dial | StopDial | Carry | Close | Announce | Find | Bootstrap | StopBootstrap | Remember
