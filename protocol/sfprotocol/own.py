"""Our own feed, and whether we may extend it (SPEC I1-I3).

A feed must never be continued from two histories. A log that was restored from a backup, or a copied data
folder, looks like an honest past but may lack what we have said since; so a node with a past asks first.
Knows nothing of links: the machine says what peers have.
"""

from __future__ import annotations

from collections.abc import Callable

from sfprotocol.messages import Feed


class OwnFeed:
    """Our feed and the proof that nobody knows more of it than our log; a relay has no feed."""

    def __init__(self, feed: Feed | None, draw: Callable[[], int], *, proven: bool, ask_until: float) -> None:
        """`draw` gives a random incarnation (32 bits); `proven`: nobody else can know more of `feed`."""
        self.feed = feed
        self.proven = proven
        self._draw = draw
        self._ask_until = ask_until

    @property
    def deadline(self) -> float:
        """When to stop asking; infinity when there is nothing to ask."""
        return float("inf") if self.proven or self.feed is None else self._ask_until

    def hear(self, ours: int, theirs: int, *, informed: bool) -> None:
        """A peer that has told us everything has our feed up to step `theirs`, our log up to `ours`.

        `informed`: of all other feeds it has at least as much as our log. Then what it lacks of ours is most
        likely a tail that we never sent. A peer that knows nothing of us may have joined a minute ago.
        """
        self.proven = self.proven or (theirs > 0 and (informed or theirs >= ours))

    def renew(self) -> Feed:
        """A new incarnation, of which nobody can know yet."""
        assert self.feed is not None
        self.feed = Feed(self.feed.origin, self._draw())
        self.proven = True
        return self.feed
