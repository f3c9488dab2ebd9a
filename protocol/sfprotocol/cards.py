"""Cards: the names that origins give themselves, signed and passed on (SPEC K1-K5).

Cards show names to people who watch a run. They are no part of its state: no digest covers them, nothing
waits for them, and a lost card is sent again when the next link comes up. A node sends a card to the same
peers as the card's feed, after the first `step` updates of the feed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from sfprotocol.events import Action, Counters, KeepCard, LinkId, Transmit
from sfprotocol.fields import NAMELESS, Names
from sfprotocol.frontier import FeedState, Frontier
from sfprotocol.link import Link
from sfprotocol.messages import Card, Feed
from sfprotocol.rate_limit import FORGERY_COST
from sfprotocol.signing import Sign, card_message, signed_by

CARD_STEPS = 256
"""Minimum number of updates between two cards of a feed. An origin that wants to show many names must
therefore make many updates."""


class Cards:
    """The newest card of every feed, and the names for our own feed."""

    def __init__(
        self,
        frontier: Frontier,
        links: dict[LinkId, Link],
        counters: Counters,
        *,
        kept: Iterable[Card],
        own: Names,
        sign: Sign,
    ) -> None:
        """`kept` are the stored cards, already verified; `own` are our own names."""
        self._frontier = frontier
        self._links = links
        self._counters = counters
        self._own = own
        self._sign = sign
        self._cards = {card.feed: card for card in kept}

    def __iter__(self) -> Iterator[Card]:
        return iter(self._cards.values())

    def forget(self, feed: Feed) -> None:
        """Forget the card of `feed`."""
        self._cards.pop(feed, None)

    def names(self, among: Collection[bytes] | None = None) -> dict[bytes, Names]:
        """Return the name and team of each origin, or only of the origins in `among`, keyed by origin. If an
        origin has cards of several feeds, the card of the feed with the latest epoch is used."""
        cards = list(self._cards.values())  # an atomic copy: another thread may ask while cards arrive
        if among is not None:
            cards = [card for card in cards if card.feed.origin in among]
        ordered = sorted(cards, key=lambda card: (self._frontier.state(card.feed).epoch, card.step))
        return {card.feed.origin: Names(card.name, card.team) for card in ordered}

    def heard(self, link: Link, card: Card, now: float) -> list[Action]:
        """Store and forward a card if it is due and its signature is valid.

        A card is not due if it is too old, or if its `step` lies after the stored updates. Such a card counts
        as waste of the link, like any frame that brings nothing new. Raises RemoteProtocolError (SPEC L8) if
        the sender has wasted too much.
        """
        if not self._is_due(self._frontier.state(card.feed), card.step):
            return []
        if not signed_by(card.feed.origin, self._message(card), card.signature):
            link.waste.charge(FORGERY_COST, len(self._frontier), now)
            return []
        link.cards[card.feed] = card.step
        self._counters.cards += 1
        return self._keep(card)

    def sign_own(self, feed: Feed) -> list[Action]:
        """Sign a card for our feed if the feed's last card has other names than ours, and a new card is due
        (SPEC K5)."""
        known, state = self._cards.get(feed), self._frontier.state(feed)
        if self._own == (Names(known.name, known.team) if known else NAMELESS):
            return []
        if not self._is_due(state, state.next):
            return []
        card = Card(feed, state.next, *self._own, bytes(64))
        return self._keep(replace(card, signature=self._sign(self._message(card))))

    def tell(self, link: Link, feed: Feed) -> list[Action]:
        """Send the peer the card of `feed`, if we have sent the peer the updates before the card's `step`. Do
        nothing if the peer has this card (SPEC K4)."""
        card = self._cards.get(feed)
        if card is None or not link.cards.get(feed, 0) < card.step <= link.outbox.sent.get(feed, 0):
            return []
        link.cards[feed] = card.step
        return [Transmit(link.id, card)]

    def _is_due(self, state: FeedState, step: int) -> bool:
        """Return whether a card of this feed with this `step` may replace the stored one (SPEC K3). It must
        be at least CARD_STEPS updates newer, and the updates before `step` must be stored here."""
        known = self._cards.get(state.feed)
        return (known.step + CARD_STEPS if known else 1) <= step <= state.next

    def _keep(self, card: Card) -> list[Action]:
        self._cards[card.feed] = card
        told = [self.tell(link, card.feed) for link in self._links.values()]
        return [KeepCard(card), *(action for actions in told for action in actions)]

    def _message(self, card: Card) -> bytes:
        return card_message(self._frontier.run.run_id, card)
