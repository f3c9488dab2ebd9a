"""Cards: what origins call themselves, signed and passed on (SPEC K1-K5).

A courtesy for those who look at a run. Cards are no part of its state: no digest covers them, nothing waits
for them, and one that gets lost is told again with the next link. A card goes the way its feed goes, behind
the update it counts from, so that nobody needs to know who has it already.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from sfprotocol.events import Action, Transmit
from sfprotocol.flood import Link
from sfprotocol.frontier import FeedState, Frontier
from sfprotocol.messages import Card, Feed
from sfprotocol.names import NAMELESS, Names
from sfprotocol.signing import Sign, card_message, signed_by

CARD_STEPS = 256
"""Updates that an origin makes between two cards of a feed: whoever floods names pays for it with work."""


class Cards:
    """The newest card of every feed, and what we want to be called ourselves."""

    def __init__(self, run_id: bytes, kept: Iterable[Card], own: Names) -> None:
        """`kept`: those that were noted before, already verified."""
        self._run_id = run_id
        self._own = own
        self._cards = {card.feed: card for card in kept}

    def __iter__(self) -> Iterator[Card]:
        return iter(self._cards.values())

    def get(self, feed: Feed) -> Card | None:
        """The newest card of `feed`."""
        return self._cards.get(feed)

    def names(self, frontier: Frontier) -> dict[bytes, Names]:
        """What every origin is called: by the newest card of the feed that it has used last."""
        ordered = sorted(self._cards.values(), key=lambda card: (frontier.state(card.feed).epoch, card.step))
        return {card.feed.origin: Names(card.name, card.team) for card in ordered}

    def is_due(self, state: FeedState, step: int) -> bool:
        """Whether a card of this feed that counts from `step` on would be a newer one (SPEC K3)."""
        known = self._cards.get(state.feed)
        return (known.step + CARD_STEPS if known else 1) <= step <= state.next

    def is_signed(self, card: Card) -> bool:
        """Whether it is its origin's (SPEC K1)."""
        return signed_by(card.feed.origin, card_message(self._run_id, card), card.signature)

    def keep(self, card: Card) -> None:
        """This is the newest card of its feed from now on."""
        self._cards[card.feed] = card

    def sign_own(self, state: FeedState, sign: Sign) -> Card | None:
        """A card for our own feed, if others do not know yet what we want to be called and one is due."""
        known = self._cards.get(state.feed)
        if self._own == (Names(known.name, known.team) if known else NAMELESS):
            return None
        if not self.is_due(state, state.next):
            return None
        card = Card(state.feed, state.next, *self._own, bytes(64))
        return replace(card, signature=sign(card_message(self._run_id, card)))

    def tell(self, link: Link, feed: Feed) -> list[Action]:
        """Send the card of `feed` to a peer that has these updates from us (SPEC K4)."""
        card = self._cards.get(feed)
        if card is None or not link.cards.get(feed, 0) < card.step <= link.sent.get(feed, 0):
            return []
        link.cards[feed] = card.step
        return [Transmit(link.id, card)]
