"""Which links a node should have: whom to dial, whom to let in, whom to give up. Pure decisions.

Who opens links, who waits and what time it is are others' business; the daemon and the simulator ask the same
questions. All chance is in the address book's generator.

Ids and inbound connections cost an attacker nothing, so neither may decide who our neighbours are:
- Links that we open ourselves go to peers that we chose at random, and inbound links cannot take their
  places: to eclipse a node one has to fill its address book as well, and then half of what it dials are
  peers that it has met before.
- Addresses cost more than ids: a range of them gets a bounded number of links.
- The oldest links and the most useful ones are never given up for a newcomer. An attacker who floods a node
  with connections competes for what is left, and pays by being useful.
- Every node now and then opens a link to a random peer and gives up the least useful one. So a swarm that
  fell into halves grows together again, and nobody stays surrounded for ever.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from ipaddress import ip_address
from typing import NamedTuple

from sfnode.runtime.book import AddressBook

TARGET_LINKS = 6
"""Enough for a random graph of any size to hang together when a third of all nodes vanish."""

MAX_LINKS = 12
"""All of a node's links, so that its memory and its uplink have a bound."""

MIN_OUTBOUND = 2
"""Links that we chose ourselves and keep whatever happens; with two, a random graph still hangs together."""

WANTED_OUTBOUND = 3
"""We dial up to here even when others have filled the target: one more than the least, as one may fail."""

MAX_INBOUND = MAX_LINKS - WANTED_OUTBOUND - 1
"""What others may open: room remains for the links we want and a probe. More than TARGET_LINKS, so that
newcomers find room everywhere."""

MAX_OUTBOUND_OF_RANGE = 2
MAX_INBOUND_OF_RANGE = 4
"""Links to public addresses of one range. A swarm that lives in one range still hangs together (two links
of each node's own choice are enough for that) and has twice the room that its newcomers need."""

SETTLE_TIME = 30.0
"""Seconds in which a new link may show its use before it can be given up. It also bounds how fast a flood of
newcomers can replace one another."""

BLANK_TIME = 5.0
"""Seconds after which a peer that has shown nothing at all need not be kept: a full Summary has arrived by
then, and whoever takes part has something to say. Given up it is not let in again for a while. So mute peers
may take every place at once, but not hold it, and each honest one that gets in stays."""

OLDEST_KEPT = 3
MOST_USEFUL_KEPT = 3
"""Links that no newcomer replaces: those that have stood longest, and those that brought most news."""

HALF_LIFE = 300.0
"""Seconds after which what a link has brought counts half."""


class Standing(NamedTuple):
    """A link as seen from here."""

    peer: str
    outbound: bool
    since: float
    """When it began."""
    range: str = ""
    """Of the peer's address: see `address_range`."""
    useful: float = 0.0
    """Updates that it was the first to bring; older ones count less: see `decayed`."""
    blank: bool = False
    """Whether the peer has shown nothing so far."""


class Verdict(NamedTuple):
    """Whether to accept an inbound link, and whose link to give up for it."""

    accept: bool
    instead_of: str = ""


REFUSED = Verdict(False)


def whom_to_dial(
    links: Sequence[Standing], dialling: Collection[str], book: AddressBook, now: float
) -> list[str]:
    """Peers to open links to now, besides those that are being dialled (whose links do not stand yet)."""
    peers = _in_turn(links, book, book.candidates(now))
    return _choose(links, dialling, book, peers, missing(links) - len(dialling))


def missing(links: Sequence[Standing]) -> int:
    """How many more links a node should open."""
    wanted = max(TARGET_LINKS - len(links), WANTED_OUTBOUND - _count(links, outbound=True))
    return max(0, min(wanted, MAX_LINKS - len(links)))


def whom_to_probe(
    links: Sequence[Standing], dialling: Collection[str], book: AddressBook, now: float
) -> list[str]:
    """One peer of any kind that is no neighbour, to open a link to beyond the target; nobody without room."""
    count = min(1, MAX_LINKS - len(links) - len(dialling))
    return _choose(links, dialling, book, book.candidates(now), count)


def whom_to_let_in(newcomer: Standing, links: Sequence[Standing], book: AddressBook, now: float) -> Verdict:
    """About a link that a peer without one has opened to us."""
    inbound = [link for link in links if not link.outbound]
    if book.refused(newcomer.peer, now):
        return REFUSED
    if newcomer.range and _of_range(inbound, newcomer.range) >= MAX_INBOUND_OF_RANGE:
        return REFUSED
    if len(inbound) < MAX_INBOUND and len(links) < MAX_LINKS:
        return Verdict(True)
    return _replaceable(links, now)


def may_keep(link: Standing, links: Sequence[Standing]) -> bool:
    """About a link that we have opened, now that its address is known; `links` are the others."""
    outbound = [other for other in links if other.outbound]
    crowded = bool(link.range) and _of_range(outbound, link.range) >= MAX_OUTBOUND_OF_RANGE
    return len(links) < MAX_LINKS and not crowded


def whom_to_give_up(links: Sequence[Standing], now: float) -> str:
    """The least useful link that we have opened, if there are more links than wanted; nobody otherwise."""
    if len(links) <= TARGET_LINKS or _count(links, outbound=True) <= WANTED_OUTBOUND:
        return ""
    kept = _oldest(links)
    spare = [link for link in links if link.outbound and link.peer not in kept and _settled(link, now)]
    return min(spare, key=lambda link: (link.useful, -link.since, link.peer)).peer if spare else ""


def whom_to_let_go(links: Sequence[Standing], now: float) -> list[str]:
    """Links that we have opened to peers that turn out to have nothing to say."""
    return [link.peer for link in links if link.outbound and _stale(link, now)]


def decayed(useful: float, elapsed: float) -> float:
    """What is left after `elapsed` seconds of what a link has brought."""
    return float(useful * 0.5 ** (elapsed / HALF_LIFE))


def address_range(address: str) -> str:
    """The range of addresses to which a multiaddress belongs, or "" if its number of links has no bound.

    Public addresses of one /16 (IPv6: /32) have most likely one owner, or one whom it costs little to have
    them. Private and loopback ones are exempt: there the whole swarm is one laboratory or one machine, and
    whoever is that near needs no such attack. A relayed peer belongs to the range of its relay, which could
    invent any number of peers; a name to itself.
    """
    kind, _, rest = address.lstrip("/").partition("/")
    host = rest.partition("/")[0]
    if kind.startswith("dns"):
        return host.lower()
    if kind == "p2p" and "/p2p-circuit" in address:
        return host
    if kind not in ("ip4", "ip6"):
        return ""
    try:
        ip = ip_address(host.partition("%")[0])
    except ValueError:
        return ""
    if ip.version == 6 and ip.ipv4_mapped:
        ip = ip.ipv4_mapped
    if not ip.is_global:
        return ""
    return ip.packed[: 2 if ip.version == 4 else 4].hex()


def _choose(
    links: Sequence[Standing], dialling: Collection[str], book: AddressBook, peers: Iterable[str], count: int
) -> list[str]:
    """The first `count` of `peers` that are not neighbours, of ranges that are not crowded."""
    if count <= 0:
        return []
    busy = {link.peer for link in links} | set(dialling)
    ranges = [link.range for link in links if link.outbound]
    ranges += [range_of(book.ways(peer)) for peer in dialling]
    chosen: list[str] = []
    for peer in peers:
        if peer in busy:
            continue
        where = range_of(book.ways(peer))
        if where and ranges.count(where) >= MAX_OUTBOUND_OF_RANGE:
            continue
        chosen.append(peer)
        ranges.append(where)
        if len(chosen) == count:
            break
    return chosen


def range_of(ways: Iterable[str]) -> str:
    """The first range among the ways to a peer. A hint only: `may_keep` judges by where it was found."""
    return next(filter(None, map(address_range, ways)), "")


def _in_turn(links: Sequence[Standing], book: AddressBook, peers: Iterable[str]) -> list[str]:
    """However many strangers fill the roster, half of the peers that we choose are known to us otherwise; and
    however many we know, half are strangers."""
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


def _replaceable(links: Sequence[Standing], now: float) -> Verdict:
    """Room for a newcomer at the cost of the least useful inbound link that nothing protects, or of one with
    a peer that has nothing to say."""
    blank = [link.peer for link in links if not link.outbound and _stale(link, now)]
    if blank:
        return Verdict(True, blank[0])
    best = sorted(links, key=lambda link: (-link.useful, link.since, link.peer))
    kept = _oldest(links) | {link.peer for link in best[:MOST_USEFUL_KEPT] if link.useful > 0}
    spare = [link for link in links if not link.outbound and link.peer not in kept and _settled(link, now)]
    if not spare:
        return REFUSED
    return Verdict(True, min(spare, key=lambda link: (link.useful, -link.since, link.peer)).peer)


def _oldest(links: Sequence[Standing]) -> set[str]:
    order = sorted(links, key=lambda link: (link.since, link.peer))
    return {link.peer for link in order[:OLDEST_KEPT]}


def _stale(link: Standing, now: float) -> bool:
    return link.blank and now - link.since >= BLANK_TIME


def _settled(link: Standing, now: float) -> bool:
    return now - link.since >= SETTLE_TIME


def _count(links: Sequence[Standing], *, outbound: bool) -> int:
    return sum(link.outbound == outbound for link in links)


def _of_range(links: Sequence[Standing], where: str) -> int:
    return sum(link.range == where for link in links)
