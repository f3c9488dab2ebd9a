"""The two kinds of error in the protocol: ours and the other side's.

`LocalProtocolError` means that this node's own code broke a rule. The error stops the node.
`RemoteProtocolError` means that a peer broke a rule. The node then drops the message or the link, and goes
on.
"""


class ProtocolError(Exception):
    """Base class of both kinds of error."""


class LocalProtocolError(ProtocolError):
    """This node broke a rule of SPEC.md."""


class RemoteProtocolError(ProtocolError):
    """A peer broke the rule of SPEC.md that `rule` names."""

    def __init__(self, rule: str, reason: str) -> None:
        super().__init__(f"{rule}: {reason}")
        self.rule = rule
        self.reason = reason
