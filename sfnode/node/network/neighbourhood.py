"""The peers of a node: those that it was told of and has met, which it looks for and remembers.

Whom to dial and what to announce `peering` decides; here is what that needs to begin, and what is
kept of it for the next start.
"""

from __future__ import annotations

from contextlib import suppress

from sfnode.errors import UserError
from sfnode.node import startup
from sfnode.node.driver import Driver
from sfnode.node.joined import Joined
from sfnode.node.network import contacts
from sfnode.node.network.peering import Peering
from sfnode.peers.address_book import AddressBook
from sfnode.transport.base import PeerRecord

MODEL_SOURCES = 16
"""Peers that are asked for what has to come from peers: data, the base model, bases."""


class Neighbourhood:
    """The peers of one node."""

    def __init__(self, joined: Joined, driver: Driver, contacts_url: str) -> None:
        """`contacts_url` is the web page with the current contacts of the run; empty if none is known."""
        self.contacts_url = contacts_url
        self._joined = joined
        self._driver = driver
        random = joined.outside.random
        given, remembered = joined.settings.peers, startup.remembered_peers(joined.log)
        self.book = AddressBook(joined.transport.peer, given, remembered, random)
        self.peering = Peering(
            joined.transport,
            driver,
            topic=joined.manifest.run_id,
            book=self.book,
            own_record=self._record,
            remember=self._remember,
            random=random,
            rostered=not joined.manifest.organised.private,
        )

    def givers(self) -> list[str]:
        """Return addresses of peers that may have what this node lacks: data, model, bases, a checkpoint."""
        return self.book.nodes(MODEL_SOURCES)

    def nobody_else(self) -> bool:
        """Return whether peers of Hivemind's DHT are all that is known, and this node's record is all that
        they have of the run: they keep records, and there is no other."""
        roster = {record.peer for record in self.peering.roster}
        return self.book.plain_only and self.peering.alone and roster == {self._joined.transport.peer}

    def waits_for(self) -> str | None:
        """Return what a node waits for that knows nobody but peers of Hivemind's DHT, in words; None for any
        other."""
        if not self.book.plain_only or self._driver.pumps:
            return None
        if self._joined.manifest.organised.private:
            return (
                "a node of this private run, which is in no DHT: name one with --peers (without --peers the "
                "organiser's node begins it)"
            )
        if others := len({record.peer for record in self.peering.roster} - {self._joined.transport.peer}):
            return f"an answer of the nodes in the DHT of these peers: {others} are named"
        return "a node of the run in the DHT of these peers: none is named yet"

    async def keep_company(self) -> None:
        """Ask the page with contacts for peers whenever none is there; until cancelled."""
        links, run_id = self._driver.pumps, self._joined.manifest.run_id
        heard, random = self.peering.hear, self._joined.outside.random
        await contacts.keep_company(self.contacts_url, run_id, lambda: len(links), heard, random)

    def _remember(self, met: list[str]) -> None:
        """Keep the addresses of peers for the next start, and for links; called on another thread."""
        startup.remember_peers(self._joined.log, met)
        with suppress(UserError):
            contacts.keep(self._joined.data_dir.contacts, self._joined.manifest, met, self.contacts_url)

    def _record(self) -> PeerRecord:
        transport = self._joined.transport
        role = 0 if self._joined.settings.role == "trainer" else 1
        addresses = tuple(transport.addresses())
        return PeerRecord(transport.peer, addresses, role, self._joined.machine.frontier.known)
