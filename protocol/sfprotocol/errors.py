"""The two ways in which something can go wrong in the protocol, and nobody else's.

`LocalProtocolError` means that this node's own code broke a rule: it is loud and stops the node.
`RemoteProtocolError` means that the other side did: it costs the message or the link, never the process.
"""


class ProtocolError(Exception):
    """Base of both kinds."""


class LocalProtocolError(ProtocolError):
    """We broke a rule of SPEC.md ourselves."""


class RemoteProtocolError(ProtocolError):
    """A peer broke a rule of SPEC.md. `rule` names it, as in SPEC.md."""

    def __init__(self, rule: str, reason: str) -> None:
        super().__init__(f"{rule}: {reason}")
        self.rule = rule
        self.reason = reason
