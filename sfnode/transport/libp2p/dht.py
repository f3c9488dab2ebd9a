"""The DHT of a node: hivemind's DHTNode with bounds, so that no stranger's record can outlast or hide the
records of others.

Plain hivemind prefers entries that expire later, and a full storage drops the entry that expires first. A
copy of a roster that a stranger puts into the cache hides the stored roster. An answer that claims never to
expire ends the search. One bad entry makes a whole answer useless. A large answer is sent at every step of a
search. Here, a full roster stores and sends randomly drawn entries, all answers are used alike, and bad
entries are left out. One weakness remains: a stranger that announces more ids, or announces them more often,
gets more of a full roster. Ids cost nothing, and p2pd does not tell the address of a caller.

Other programs may share the DHT. Their peers store values of any kind. So a roster on such a peer may be full
of junk, or its key may hold another value, so that no record can be added. Therefore a search also asks the
nodes themselves, each of which stores its own record. To find these nodes, it searches for random keys near
the roster's key, under which nothing is stored. Other programs also expect this peer to store their data. It
does so within bounds.

Imports hivemind, and with it torch. Knows records only through their validator.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from heapq import heapify
from itertools import chain
from math import isfinite
from random import Random
from typing import Any

import msgpack
from hivemind.dht.node import DHTNode
from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DHTLocalStorage, DictionaryDHTValue
from hivemind.dht.validation import DHTRecord
from hivemind.p2p import P2P, PeerID
from hivemind.proto.dht_pb2 import FOUND_DICTIONARY, FindRequest
from hivemind.utils.serializer import MSGPackSerializer
from hivemind.utils.timed_storage import TimedStorage, ValueWithExpiration

from sfnode.transport.libp2p.calls import one_line
from sfnode.transport.libp2p.keys import PeerKey, is_signed, peer_of_public
from sfnode.transport.roster import MAX_ANSWER, MAX_ROSTER, SignedRecords

MAX_TOPICS = 32
"""Maximum number of rosters that this node stores for others. Full rosters take 45 MiB of memory together. A
swarm has one roster."""

MAX_OTHERS, MAX_OTHER_BYTES, MAX_OTHERS_BYTES = 4_096, 16 << 10, 8 << 20
"""Bounds on the data that this node stores for other programs: number of keys, bytes of one value, and bytes
of all values together. A dictionary has at most MAX_ANSWER entries, so that it fits into a message."""

_OVERHEAD = 400
"""Memory, in bytes, that a stored value takes besides its own bytes."""

REPLICAS = 8
"""Number of peers that are asked to store a record: those whose ids are nearest to the roster's key. Hivemind
asks five; three more are asked here because some may be away or refuse."""

ASKED = 20
"""Number of peers that a search asks for a roster: those whose ids are nearest to its key. In a small DHT
these are all peers, and so all nodes of the run."""

SEARCH_DEADLINE = 8.0
"""Deadline, in seconds, for finding the nearest peers. That takes several steps, and a dead peer may delay
each. After the deadline the node asks the peers that it knows, even if an attacker still invents further
peers."""

MAX_ENTRIES = 8_192
"""Maximum number of entries of a roster in one message: signed records need 500 bytes each, and a message has
at most 4 MiB. If there are more, most are too small to be records, and reading them would take seconds."""

_FREE_BITS = 96
"""Number of low bits of a key that are drawn at random to get another key near it. The other 64 bits are
enough to tell nodes apart."""

_GHOSTS = 4
"""Maximum length of hivemind's heap of expirations, in entries per stored value; a longer heap is tidied.
Every store adds an entry, which otherwise stays until it has expired."""

Entry = tuple[Any, ValueWithExpiration[bytes]]
"""An entry of a dictionary in the DHT: its subkey, which in a roster is a peer's id, and the stored value."""

log = logging.getLogger(__name__)


class Storage(DHTLocalStorage):  # type: ignore[misc]
    """Storage of a DHT node, for rosters and for a bounded amount of data of other programs in the same DHT.

    A new entry replaces a random entry of a full roster. Nothing else is stored under the key of a roster.
    Data of other programs is not sent to new peers: it would fill the first message to them.
    """

    def __init__(self, random: Random, is_record: Callable[[DHTRecord], bool]) -> None:
        super().__init__()
        self.own: set[DHTID] = set()
        """Keys of rosters with this node's own record. Such a roster is never dropped to make room for
        another."""
        self.random = random
        self._is_record = is_record
        self._others = DHTLocalStorage(maxsize=MAX_OTHERS)
        self._bytes = 0
        """Number of bytes stored for other programs since their part of the storage was last emptied, with
        overhead."""

    def get(self, key: DHTID) -> ValueWithExpiration[Any] | None:
        """Return a copy of the roster of that key, with at most MAX_ANSWER entries. If there is none, return
        the other data stored under the key."""
        if key not in self:
            return self._others.get(key)
        copy = DictionaryDHTValue()
        for subkey, entry in self.roster(key):
            copy.store(subkey, entry.value, entry.expiration_time)
        return ValueWithExpiration(copy, copy.latest_expiration_time)

    def roster(self, key: DHTID) -> list[Entry]:
        """Return at most MAX_ANSWER records of the roster of that key."""
        item = TimedStorage.get(self, key)
        return self._drawn(item.value) if item else []

    def store(self, key: DHTID, value: bytes, expiration_time: float, subkey: Any = None) -> bool:
        """Store a value, or an entry of a dictionary; return whether it is new."""
        if subkey is None:
            return self._keep(key, value, expiration_time)
        return self.store_subkey(key, subkey, value, expiration_time)

    def store_subkey(self, key: DHTID, subkey: Any, value: bytes, expiration_time: float) -> bool:
        """Store an entry of a dictionary, which may be a roster. Return whether the entry is new."""
        entry = ValueWithExpiration(value, expiration_time)
        if self.records(key.to_bytes(), [(subkey, entry)]):
            return self._enter(key, subkey, value, expiration_time)
        return self._keep(key, value, expiration_time, subkey)

    def records(self, key: bytes, entries: Iterable[Entry]) -> list[Entry]:
        """Return the entries that are records in the roster of that key."""
        dumps = MSGPackSerializer.dumps
        return [one for one in entries if self._is_record(DHTRecord(key, dumps(one[0]), *one[1]))]

    def records_of(self, key: bytes, roster: DictionaryDHTValue) -> list[Entry]:
        """Return the records among at most MAX_ANSWER entries drawn at random from a roster. So the cost of
        checking an answer is bounded, however large the answer is."""
        return self.records(key, self._drawn(roster))

    def take(self, key: bytes, sent: DictionaryDHTValue) -> bool:
        """Reduce, in place, a dictionary that another peer has sent. At most MAX_ANSWER entries are drawn. Of
        these only records are kept, or all if none is a record. Return True always, so that hivemind uses the
        reduced dictionary.

        Replaces hivemind's check, which refuses the whole dictionary if one entry is bad. Clocks that differ
        by a second are enough to make an entry bad.
        """
        drawn = self._drawn(sent)
        kept = self.records(key, drawn) or drawn
        sent.clear()
        sent.maxsize = float("inf")
        for subkey, entry in kept:
            sent.store(subkey, entry.value, entry.expiration_time)
        return True

    def _drawn(self, roster: DictionaryDHTValue) -> list[Entry]:
        entries = list(roster.items())
        return entries if len(entries) <= MAX_ANSWER else self.random.sample(entries, MAX_ANSWER)

    def _enter(self, key: DHTID, subkey: Any, value: bytes, expiration_time: float) -> bool:
        """Store a record, unless it has expired or the stored record of that peer lasts at least as long;
        return whether it was stored."""
        item = TimedStorage.get(self, key)
        roster = DictionaryDHTValue() if item is None else item.value
        held = roster.get(subkey)
        if expiration_time < time.time() or (held and held.expiration_time >= expiration_time):
            return False
        if held is None and len(roster) >= MAX_ROSTER:
            del roster[self.random.choice(list(roster.data))]
        roster.store(subkey, value, expiration_time)
        if item is None and len(self.data) >= MAX_TOPICS:
            del self[self.random.choice([other for other in self.data if other not in self.own])]
        if item is None or expiration_time > item.expiration_time:
            TimedStorage.store(self, key, roster, expiration_time)
        for heap_of in (roster, self):
            _tidy(heap_of)
        return True

    def _keep(self, key: DHTID, value: bytes, expiration_time: float, subkey: Any = None) -> bool:
        """Store data of another program, unless it is too large or its key has a roster. When all such data
        together exceeds MAX_OTHERS_BYTES, all earlier data is deleted; other peers store it, too."""
        if key in self or len(value) > MAX_OTHER_BYTES or not isfinite(expiration_time):
            return False
        held = self._others.get(key)
        full = held and isinstance(held.value, DictionaryDHTValue) and len(held.value) >= MAX_ANSWER
        if full and subkey not in held.value:
            return False
        self._bytes += len(value) + _OVERHEAD
        if self._bytes > MAX_OTHERS_BYTES:
            self._others.clear()
            self._bytes = len(value) + _OVERHEAD
        new: bool = self._others.store(key, value, expiration_time, subkey)
        return new


def _tidy(storage: TimedStorage[Any, Any]) -> None:
    """Shorten a heap of expirations that is too long: drop the entries of values that were deleted or have
    another expiration now."""
    if len(storage.expiration_heap) > _GHOSTS * (len(storage.data) + 1):
        storage.expiration_heap = list(storage.key_to_heap.values())
        heapify(storage.expiration_heap)


class _Reader(MSGPackSerializer):  # type: ignore[misc]
    """hivemind's serializer, which here reads only those entries of a roster that may be records. A roster
    with too many entries is read as empty."""

    @classmethod
    def _decode_ext_types(cls, code: int, data: bytes) -> Any:
        if cls._ext_type_codes.get(code) is DictionaryDHTValue:
            return _read_roster(data)
        return super()._decode_ext_types(code, data)


def _read_roster(data: bytes) -> DictionaryDHTValue:
    """Return a roster from the format that `DictionaryDHTValue.packb` writes. Raises TypeError and others.

    If there are too many entries, returns an empty roster. An error instead would make the sender drop this
    peer from its routing table. Subkeys that are not text are left out, because hivemind cannot compare them
    when two entries expire together.
    """
    roster = DictionaryDHTValue()
    try:
        _, _, entries = msgpack.unpackb(data, raw=False, max_array_len=MAX_ENTRIES)
    except ValueError:
        return roster
    for subkey, value, expiration_time in entries:
        if isinstance(subkey, str) and isinstance(value, bytes) and isinstance(expiration_time, float):
            roster.store(subkey, value, expiration_time)
    return roster


async def create_dht(p2p: P2P, key: PeerKey, client_mode: bool, random: Random, deadline: float) -> DHTNode:
    """Create a DHT node with bounded memory, without hivemind's caches and their background tasks.

    `deadline` is the time for one message and its answer, in seconds.
    """
    validator = SignedRecords(
        key, decode=MSGPackSerializer.loads, peer_of=peer_of_public, is_signed=is_signed
    )
    dht = await DHTNode.create(
        p2p=p2p,
        node_id=DHTID.generate(source=p2p.peer_id.to_bytes()),  # the same after a restart
        wait_timeout=deadline,
        backoff_rate=1.0,  # a peer that was away is asked again after 5 s, however long it was away
        cache_locally=False,
        cache_nearest=0,
        cache_on_store=False,
        cache_refresh_before_expiry=0,
        reuse_get_requests=False,
        client_mode=client_mode,
        record_validator=validator,
    )
    protocol = dht.protocol
    # Strangers may store into the cache, too, and its entries hide stored ones that expire earlier.
    protocol.storage = protocol.cache = storage = Storage(random, validator.validate)
    protocol.serializer = _Reader
    protocol._validate_dictionary = storage.take
    protocol._validate_record = lambda *_: True  # the storage tells records from other programs' data
    return dht


async def put_record(dht: DHTNode, roster: str, own: str, value: Any, expiration_time: float) -> bool:
    """Store this node's own record under its peer id `own`: at the peers nearest to the roster's key, and in
    this node itself, because searches also ask this node. Return whether another peer has stored the record;
    True if there are no other peers."""
    protocol, key = dht.protocol, DHTID.generate(roster)
    record = DHTRecord(
        key.to_bytes(), protocol.serializer.dumps(own), protocol.serializer.dumps(value), expiration_time
    )
    signed = protocol.record_validator.sign_value(record)
    protocol.storage.own.add(key)
    protocol.storage.store(key, signed, expiration_time, subkey=own)
    peers = (await _nearest(dht, key))[:REPLICAS]
    taken = await asyncio.gather(
        *(protocol.call_store(peer, [key], [signed], [expiration_time], [own]) for peer in peers)
    )
    return not peers or any(answer and answer[0] for answer in taken)


async def find_records(dht: DHTNode, roster: str, own: str) -> dict[str, Any]:
    """Return the values in a roster, keyed by peer id. They come from the answers of the nearest peers, and
    from other peers' records stored here. If a peer has several values, the one that expires last is used.
    This node's own value is included only if another peer has sent it."""
    protocol, key = dht.protocol, DHTID.generate(roster)
    answers = await asyncio.gather(*(_ask(dht, peer, key) for peer in await _nearest(dht, key)))
    here = protocol.storage.roster(key)
    found: dict[str, ValueWithExpiration[bytes]] = {}
    for peer, entry in [*(one for one in here if one[0] != own), *chain.from_iterable(answers)]:
        if peer not in found or entry.expiration_time > found[peer].expiration_time:
            found[peer] = entry
    strip, loads = protocol.record_validator.strip_value, protocol.serializer.loads
    return {peer: loads(strip(DHTRecord(b"", b"", *entry))) for peer, entry in found.items()}


async def _nearest(dht: DHTNode, key: DHTID) -> list[PeerID]:
    """Return other peers that are not blacklisted, those nearest to a key first: at most ASKED peers that a
    search has found, and at most ASKED known peers, which attackers that answer the search cannot hide.

    The search uses another key near this one. At every step of a search with the key itself, peers would send
    what they have stored under it, perhaps megabytes of junk.
    """
    near = DHTID(key ^ dht.protocol.storage.random.getrandbits(_FREE_BITS))
    found = dict(dht.protocol.routing_table.get_nearest_neighbors(key, ASKED, exclude=dht.node_id))
    with suppress(TimeoutError):
        async with asyncio.timeout(SEARCH_DEADLINE):
            found |= (await dht.find_nearest_nodes([near], k_nearest=ASKED, exclude_self=True))[near]
    return [found[node] for node in sorted(found, key=key.xor_distance) if found[node] not in dht.blacklist]


async def _ask(dht: DHTNode, peer: PeerID, key: DHTID) -> list[Entry]:
    """Return the records in one peer's copy of a roster; an empty list without a usable answer.

    This replaces hivemind's own call, which would forget a peer without a usable answer, even if the answer
    is merely too large.
    """
    protocol = dht.protocol
    question = FindRequest(keys=[key.to_bytes()], peer=protocol.node_info)
    try:
        answer = await protocol.get_stub(peer).rpc_find(question, timeout=protocol.wait_timeout)
        (result,) = answer.results
        if result.type != FOUND_DICTIONARY:
            return []
        records: list[Entry] = protocol.storage.records_of(
            key.to_bytes(), protocol.serializer.loads(result.value)
        )
        return records
    except Exception as error:  # strangers' bytes: decoders may raise anything
        log.debug("asking %s for a roster: %s", peer, one_line(error))
        return []
