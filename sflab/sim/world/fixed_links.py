"""Links of a fixed topology: opened again when they end.

`Keeper` keeps a fixed set of links, as if every node had been told its neighbours; `peering.Managed` lets
every node choose with the peer manager that ships. Neither knows what is sent over a link.
"""

from __future__ import annotations

from sflab.sim.world.network import End, Endpoint, Network

REDIAL = 1.0
"""Seconds after which a link that ended or could not be opened is tried again."""


class Keeper:
    """The links that were asked for."""

    fixed = True
    """Whether links stay where they were put."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._wanted: dict[str, dict[str, Endpoint]] = {}

    def want(self, one: Endpoint, other: Endpoint) -> None:
        """Keep a link between the two from now on."""
        self._wanted.setdefault(one.name, {})[other.name] = other
        self._wanted.setdefault(other.name, {})[one.name] = one
        self._open(one, other)

    def forget(self, one: Endpoint) -> None:
        """Keep no links with this one any more."""
        for other in self._wanted.pop(one.name, {}):
            self._wanted[other].pop(one.name, None)

    def neighbours(self, one: Endpoint) -> list[Endpoint]:
        return list(self._wanted.get(one.name, {}).values())

    def came(self, one: Endpoint) -> None:
        """Open the links of a node that is up (again)."""
        for other in self.neighbours(one):
            self._open(one, other)

    def lost(self, end: End) -> None:
        """Note that a link has ended, as the owner of `end` sees it."""
        one, other = end.owner, end.far.owner
        if other.name in self._wanted.get(one.name, {}):
            self._network.agenda.later(REDIAL, self._open, one, other)

    def blame(self, one: Endpoint, other: Endpoint) -> None:
        """Note that `one` has dropped a link because the other broke a rule; here nothing follows from it."""

    def dial(self, stranger: Endpoint, one: Endpoint) -> End | None:
        """Open a link from `stranger` to `one`; here everybody gets one."""
        return None if linked(stranger, one) else self._network.connect(stranger, one)

    def announce(self, one: Endpoint, address: str) -> None:
        """Put `one` into the roster; here nobody reads it."""

    def _open(self, one: Endpoint, other: Endpoint) -> None:
        if not (one.up and other.up) or linked(one, other):
            return  # who is away opens its links itself when it comes back
        if other.name in self._wanted.get(one.name, {}) and self._network.connect(one, other) is None:
            self._network.agenda.later(REDIAL, self._open, one, other)


def linked(one: Endpoint, other: Endpoint) -> bool:
    """Tell whether a link between the two is open at both ends."""
    return any(end.far.owner is other and end.far.open for end in one.ends.values())
