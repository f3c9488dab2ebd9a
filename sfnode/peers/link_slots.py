"""Selection of links: which peers to dial, to let in and to give up. Pure functions.

`peers.manager` calls them. The only randomness is that of the address book's order.

Ids and inbound connections cost an attacker nothing, so neither may decide who our neighbours are:
- Links of our own choice go to random peers, and inbound links cannot take their places. To eclipse a node an
  attacker must fill its address book, too. Even then half of the peers that the node dials are peers that it
  has met before.
- Addresses cost more than ids: a range of addresses gets a bounded number of links.
- The oldest and the most useful links are never given up for a newcomer. An attacker who floods a node with
  connections competes for the other links, and pays by being useful.
- Now and then every node opens a link to a random peer and gives up the least useful one. So the halves of a
  split swarm merge again, and no node stays surrounded for ever.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from ipaddress import ip_address
from typing import NamedTuple

from sfnode.peers.address_book import AddressBook

TARGET_LINKS = 6
"""Target number of links: with it, a random graph of any size stays connected after the loss of a third of
its nodes."""

MAX_LINKS = 12
"""Maximum number of links of a node. It bounds the node's memory and upload."""

MIN_OUTBOUND = 2
"""Minimum number of links of our own choice: this node does not give them up while there is nobody else to
dial. With two such links for each node, a random graph is still connected."""

WANTED_OUTBOUND = 3
"""Target number of links of our own choice, even when there are TARGET_LINKS inbound links: MIN_OUTBOUND, and
one more that may fail."""

MAX_INBOUND = MAX_LINKS - WANTED_OUTBOUND - 1
"""Maximum number of inbound links. It leaves room for the links of our own choice and one probe. It exceeds
TARGET_LINKS, so that newcomers find room at any node."""

MAX_OUTBOUND_OF_RANGE = 2
MAX_INBOUND_OF_RANGE = 4
"""Maximum numbers of links to public addresses of one range: links of our own choice, and inbound links. In a
swarm within one range, two links of each node's own choice still connect all nodes, and there is room for
twice as many inbound links as that."""

SETTLE_TIME = 30.0
"""Minimum age, in seconds, of a link that is given up, so that each link has time to prove useful. It also
bounds the rate at which newcomers of a flood replace one another."""

BLANK_TIME = 5.0
"""Time, in seconds, after which a peer that has neither claimed nor taken any update may be given up. By then
a full Summary should have arrived, in which every honest peer has something to report. A stranger that is
given up is then refused for a while. So mute peers may take every free place at once but cannot keep it, and
each honest peer that gets a link stays."""

OLDEST_KEPT = 3
MOST_USEFUL_KEPT = 3
"""Numbers of links that no newcomer replaces: the OLDEST_KEPT oldest links, and the MOST_USEFUL_KEPT links
that brought the most updates."""

HALF_LIFE = 300.0
"""Time, in seconds, after which an update that a link has brought counts as half an update."""


class LinkFacts(NamedTuple):
    """The facts about one link on which decisions depend."""

    peer: str
    outbound: bool
    """Whether the link is of our own choice."""
    since: float
    """Time at which the link was opened."""
    range: str | None = None
    """Range of the peer's address; None if the number of links to it is not bounded (see `address_range`)."""
    useful: float = 0.0
    """Number of updates that the link was the first to bring. Older updates count less (see `decayed`)."""
    blank: bool = False
    """Whether the peer has neither claimed nor taken any update so far."""


class InboundVerdict(NamedTuple):
    """Whether to accept an inbound link, and the peer whose link to give up for it."""

    accept: bool
    instead_of: str | None = None


REFUSED = InboundVerdict(False)


def whom_to_dial(
    links: Sequence[LinkFacts], dialling: Collection[str], book: AddressBook, now: float
) -> list[str]:
    """Return the peers to dial now, without those that are being dialled."""
    peers = _in_turn(links, book, book.candidates(now))
    return _choose(links, dialling, book, peers, missing(links) - len(dialling))


def missing(links: Sequence[LinkFacts]) -> int:
    """Return the number of links that a node should still open."""
    wanted = max(TARGET_LINKS - len(links), WANTED_OUTBOUND - _count(links, outbound=True))
    return max(0, min(wanted, MAX_LINKS - len(links)))


def whom_to_probe(
    links: Sequence[LinkFacts], dialling: Collection[str], book: AddressBook, now: float
) -> list[str]:
    """Return at most one peer to dial beyond the target number of links: a peer that is no neighbour, if
    there is room."""
    count = min(1, MAX_LINKS - len(links) - len(dialling))
    return _choose(links, dialling, book, book.candidates(now), count)


def whom_to_let_in(
    newcomer: LinkFacts, links: Sequence[LinkFacts], book: AddressBook, now: float
) -> InboundVerdict:
    """Decide about an inbound link of a peer that is no neighbour yet."""
    inbound = [link for link in links if not link.outbound]
    if book.refused(newcomer.peer, now):
        return REFUSED
    if newcomer.range and _of_range(inbound, newcomer.range) >= MAX_INBOUND_OF_RANGE:
        return REFUSED
    if len(inbound) < MAX_INBOUND and len(links) < MAX_LINKS:
        return InboundVerdict(True)
    return _replaceable(links, now)


def may_keep(link: LinkFacts, links: Sequence[LinkFacts]) -> bool:
    """Return whether to keep a link that this node has just opened, now that its address is known. `links`
    are the node's other links."""
    outbound = [other for other in links if other.outbound]
    crowded = bool(link.range) and _of_range(outbound, link.range) >= MAX_OUTBOUND_OF_RANGE
    return len(links) < MAX_LINKS and not crowded


def whom_to_give_up(links: Sequence[LinkFacts], now: float) -> str | None:
    """Return the peer of the least useful link of our own choice that may be given up; None if there is no
    such link, or there are no more links than wanted."""
    if len(links) <= TARGET_LINKS or _count(links, outbound=True) <= WANTED_OUTBOUND:
        return None
    kept = _oldest(links)
    spare = [link for link in links if link.outbound and link.peer not in kept and _settled(link, now)]
    return min(spare, key=_worth).peer if spare else None


def whom_to_let_go(
    links: Sequence[LinkFacts], dialling: Collection[str], book: AddressBook, now: float
) -> list[str]:
    """Return the peers of our own choice to give up as mute: for BLANK_TIME they have neither claimed nor
    taken any update. MIN_OUTBOUND links of our own choice are kept, unless there are peers to dial
    instead."""
    mute = [link.peer for link in links if link.outbound and _stale(link, now)]
    if not mute:
        return []
    others = [link for link in links if link.peer not in mute]
    instead = _choose(others, [*dialling, *mute], book, book.candidates(now), len(mute))
    spare = _count(links, outbound=True) - MIN_OUTBOUND + len(instead)
    return mute[: max(0, spare)]


def decayed(useful: float, elapsed: float) -> float:
    """Return the value to which `useful` has decayed after `elapsed` seconds."""
    return float(useful * 0.5 ** (elapsed / HALF_LIFE))


def address_range(address: str) -> str | None:
    """Return the range of a multiaddress; None if the number of links to it is not bounded.

    Public addresses of one /16 (IPv6: /32) most likely have one owner, or cost their owner little. Private
    and loopback addresses are exempt: there the whole swarm is in one laboratory or on one machine, where an
    attacker needs no second address. A relayed peer has the range of its relay, which could invent any number
    of peers. A DNS name is a range of its own.
    """
    kind, _, rest = address.lstrip("/").partition("/")
    host = rest.partition("/")[0]
    if kind.startswith("dns"):
        return host.lower() or None
    if kind == "p2p" and "/p2p-circuit" in address:
        return host or None
    if kind not in ("ip4", "ip6"):
        return None
    try:
        ip = ip_address(host.partition("%")[0])
    except ValueError:
        return None
    if ip.version == 6 and ip.ipv4_mapped:
        ip = ip.ipv4_mapped
    if not ip.is_global:
        return None
    return ip.packed[: 2 if ip.version == 4 else 4].hex()


def _choose(
    links: Sequence[LinkFacts], dialling: Collection[str], book: AddressBook, peers: Iterable[str], count: int
) -> list[str]:
    """Return the first `count` of `peers` that are neither neighbours nor being dialled, and whose range has
    room for another link."""
    if count <= 0:
        return []
    busy = {link.peer for link in links} | set(dialling)
    ranges = [link.range for link in links if link.outbound]
    ranges += [range_of(book.addresses(peer)) for peer in dialling]
    chosen: list[str] = []
    for peer in peers:
        if peer in busy:
            continue
        where = range_of(book.addresses(peer))
        if where and ranges.count(where) >= MAX_OUTBOUND_OF_RANGE:
            continue
        chosen.append(peer)
        ranges.append(where)
        if len(chosen) == count:
            break
    return chosen


def range_of(addresses: Iterable[str]) -> str | None:
    """Return the range of the first of a peer's addresses that has one. It is a hint: `may_keep` knows the
    address that answered."""
    return next(filter(None, map(address_range, addresses)), None)


def _in_turn(links: Sequence[LinkFacts], book: AddressBook, peers: Iterable[str]) -> list[str]:
    """Return `peers` without neighbours, ordered so that half of the peers of our own choice are trusted and
    half are strangers, as far as there are enough peers of both kinds."""
    busy = {link.peer for link in links}
    known: list[str] = []
    strangers: list[str] = []
    for peer in peers:
        if peer not in busy:
            (known if book.trusted(peer) else strangers).append(peer)
    chosen = [book.trusted(link.peer) for link in links if link.outbound]
    first, second = (known, strangers) if 2 * sum(chosen) <= len(chosen) else (strangers, known)
    pairs = [peer for pair in zip(first, second, strict=False) for peer in pair]
    return pairs + first[len(second) :] + second[len(first) :]


def _replaceable(links: Sequence[LinkFacts], now: float) -> InboundVerdict:
    """Return the verdict on a newcomer for which there is no free place. The newcomer replaces the inbound
    link of a peer that has shown no updates within BLANK_TIME, or else the least useful inbound link that is
    not protected. Without such a link the newcomer is refused."""
    blank = [link.peer for link in links if not link.outbound and _stale(link, now)]
    if blank:
        return InboundVerdict(True, blank[0])
    best = sorted(links, key=lambda link: (-link.useful, link.since, link.peer))
    kept = _oldest(links) | {link.peer for link in best[:MOST_USEFUL_KEPT] if link.useful > 0}
    spare = [link for link in links if not link.outbound and link.peer not in kept and _settled(link, now)]
    if not spare:
        return REFUSED
    return InboundVerdict(True, min(spare, key=_worth).peer)


def _worth(link: LinkFacts) -> tuple[float, float, str]:
    """Return a sort key: the least useful link first, and among equally useful links the youngest."""
    return link.useful, -link.since, link.peer


def _oldest(links: Sequence[LinkFacts]) -> set[str]:
    order = sorted(links, key=lambda link: (link.since, link.peer))
    return {link.peer for link in order[:OLDEST_KEPT]}


def _stale(link: LinkFacts, now: float) -> bool:
    return link.blank and now - link.since >= BLANK_TIME


def _settled(link: LinkFacts, now: float) -> bool:
    return now - link.since >= SETTLE_TIME


def _count(links: Sequence[LinkFacts], *, outbound: bool) -> int:
    return sum(link.outbound == outbound for link in links)


def _of_range(links: Sequence[LinkFacts], where: str | None) -> int:
    return sum(link.range == where for link in links)
