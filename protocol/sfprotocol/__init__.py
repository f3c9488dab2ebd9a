"""The SeedFlood wire protocol and its state machine (protocol/SPEC.md), pure.

Nothing here reads a clock, draws a random number, opens a socket or knows what a tensor is. The same code
therefore runs in the daemon, in the simulator and in the tests. `Machine` is the entry: it takes events and
returns actions.

The names below are the public ones. They are loaded when they are first used, so that `import sfprotocol`
costs nothing. Modules that are used whole are imported as such: wire_codec, seeds, signing, segments,
invitation, model_listing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sfprotocol.errors import LocalProtocolError, ProtocolError, RemoteProtocolError
    from sfprotocol.events import (
        Action,
        Admit,
        ContinueAs,
        Counters,
        Cut,
        Drop,
        Event,
        Examine,
        Examined,
        KeepCard,
        LinkDown,
        LinkId,
        LinkUp,
        OwnUpdates,
        Received,
        Serve,
        Served,
        ShowProof,
        Transmit,
        Wake,
        Writable,
    )
    from sfprotocol.frontier import FeedState, Frontier
    from sfprotocol.machine import Machine
    from sfprotocol.messages import (
        PROTOCOL_VERSION,
        Ahead,
        Branch,
        Card,
        Claim,
        EpochScalars,
        Feed,
        Goodbye,
        Have,
        Hello,
        ManifestReply,
        ManifestRequest,
        Message,
        PartReply,
        PartRequest,
        Position,
        Proof,
        Prune,
        RunParameters,
        Segment,
        Summary,
        Update,
        Want,
    )
    from sfprotocol.names import Names
    from sfprotocol.wire_codec import decode, encode

_MODULES = ("errors", "messages", "names", "wire_codec", "events", "frontier", "machine")
"""The modules that have public names, those that load least first."""

__all__ = [
    "PROTOCOL_VERSION",
    "Action",
    "Admit",
    "Ahead",
    "Branch",
    "Card",
    "Claim",
    "ContinueAs",
    "Counters",
    "Cut",
    "Drop",
    "EpochScalars",
    "Event",
    "Examine",
    "Examined",
    "Feed",
    "FeedState",
    "Frontier",
    "Goodbye",
    "Have",
    "Hello",
    "KeepCard",
    "LinkDown",
    "LinkId",
    "LinkUp",
    "LocalProtocolError",
    "Machine",
    "ManifestReply",
    "ManifestRequest",
    "Message",
    "Names",
    "OwnUpdates",
    "PartReply",
    "PartRequest",
    "Position",
    "Proof",
    "ProtocolError",
    "Prune",
    "Received",
    "RemoteProtocolError",
    "RunParameters",
    "Segment",
    "Serve",
    "Served",
    "ShowProof",
    "Summary",
    "Transmit",
    "Update",
    "Wake",
    "Want",
    "Writable",
    "decode",
    "encode",
]


def __getattr__(name: str) -> Any:
    """Load a public name from the module that defines it (PEP 562)."""
    if name in __all__:
        for module in (import_module(f"{__name__}.{module}") for module in _MODULES):
            if hasattr(module, name):
                return globals().setdefault(name, getattr(module, name))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
