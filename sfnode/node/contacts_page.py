"""The web page that lists a run's contacts, which are nodes and their addresses. A node finds its first peers
there, and other peers when it has lost all its links.

The address of the page comes from a link or the settings, and is kept in the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from random import Random

from sfnode.errors import UserError
from sfnode.logging import begins, log
from sfnode.manifest import Manifest
from sfnode.peers import contacts
from sfnode.peers.backoff import about, doubled
from sfnode.peers.invitations import check_same_run, compose, invite
from sfnode.settings import Settings
from sfnode.store.data_folder import DataDir
from sfnode.store.log import UpdateLog
from sfnode.transport.base import PeerRecord
from sfprotocol.invitation import Contact, Invitation

_URL = "contacts_url"
"""Key, in the log's meta table, of the address of the page."""

ALONE = 15.0
"""Time, in seconds, without a neighbour after which the page is requested. Dialling the known peers takes
less time. If the page does not help, the second request follows after the same time. Each later pause is
twice as long as the one before, up to SPACING."""

SPACING = 300.0
"""Maximum time, in seconds, between two requests for a page that did not help. It is long, so that nodes of
an abandoned run do not burden the page's server. A shorter time would not help: people who add peers to the
page by hand are no faster."""

Fetch = Callable[[str], Awaitable[Invitation]]


def known_url(given: str, update_log: UpdateLog) -> str:
    """Return the page's address: `given`, from the settings, after storing it. If `given` is empty, return
    the stored address."""
    kept = (update_log.get_meta(_URL) or b"").decode()
    if given and given != kept:
        update_log.set_meta(_URL, given.encode())
    return given or kept


def keep(path: Path, manifest: Manifest, met: Sequence[str], url: str) -> None:
    """Write an invitation to `path`, with the addresses `met` of peers. `sfnode invite` reads this file while
    the node does not run.

    Raises UserError NO_ADDRESS and BAD_OPTION.
    """
    said = invite(manifest, compose(manifest.run_id, [], met, url=url))
    contacts.write(path, said.model_dump())


async def followed(settings: Settings, data_dir: DataDir, fetch: Fetch = contacts.fetch) -> Settings:
    """Return the settings of a joining node. The peers that its page lists are put before the peers that the
    settings name.

    Raises UserError CONTACTS_UNUSABLE and WRONG_RUN, but only if the settings name no peers.
    """
    url = settings.contacts_url
    if not url or data_dir.manifest.exists() or settings.run:
        return settings
    begins("asking %s for peers", url)
    try:
        said = await fetch(url)
        check_same_run(said, settings.run_id, url, contacts.ASK_FOR_A_LINK)
    except UserError as error:
        if not settings.peers:
            raise
        log.warning("%s", error)
        return settings
    peers = tuple(dict.fromkeys((*said.addresses, *settings.peers)))
    return settings.model_copy(update={"peers": peers, "run_id": said.run_id.hex()})


async def keep_company(
    url: str,
    run_id: bytes,
    links: Callable[[], int],
    hear: Callable[[Sequence[PeerRecord]], None],
    random: Random,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Fetch the page and pass its peers to `hear` whenever the node has had no link for a while, until
    cancelled. `links` returns the number of links."""
    asked = 0
    """Number of requests for the page since the node last had a link."""
    while True:
        await sleep(about(doubled(ALONE, max(0, asked - 1), SPACING), random))
        if links():
            asked = 0
            continue
        asked += 1
        try:
            said = await contacts.fetch(url)
            check_same_run(said, run_id.hex(), url, contacts.ASK_FOR_A_LINK)
        except UserError as error:
            log.debug("%s", error)
        else:
            log.info("no peer is there; trying those on %s", url)
            hear([_record(contact) for contact in said.contacts])


def _record(contact: Contact) -> PeerRecord:
    addresses = tuple(f"{address}/p2p/{contact.peer}" for address in contact.addresses)
    return PeerRecord(contact.peer, addresses, role=0, known=0)
