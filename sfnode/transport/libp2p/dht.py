"""The DHT of a node: hivemind's DHTNode with bounds, in which no stranger's record outlasts or hides others'.

In hivemind as it is whatever expires last wins: of a full storage the entry that expires first gives way, a
stranger's cached copy of a roster hides the stored one, an answer that claims to expire never ends the
search, one bad entry spoils the whole answer, and a large one comes with every step of a search. Here it is
left to chance what is kept and given where there is too much, every answer counts alike, and bad entries are
left out. What remains: whoever announces more ids, or more often, has more of a full roster, since ids cost
nothing and p2pd does not say whence a call comes.

Other programs may share the DHT. Their peers store whatever anybody writes: a roster there may be full of
rubbish, or be something else than a roster, so that no record gets in. So a search asks the nodes themselves
as well, each of which has its own record, and finds its way by keys under which nobody has put anything. And
those programs count on this peer to keep what they store: it does, within bounds.

Imports hivemind, and with it torch. Knows records only as their validator does.
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
"""Most rosters that this node stores for others; full ones take 45 MiB. A swarm has one."""

MAX_OTHERS, MAX_OTHER_BYTES, MAX_OTHERS_BYTES = 4_096, 16 << 10, 8 << 20
"""Most keys that this node stores for other programs, most bytes of one value, and of all. A dictionary has
at most MAX_ANSWER entries, so that it fits into a message."""

_OVERHEAD = 400
"""Bytes that a stored value takes besides itself."""

REPLICAS = 8
"""Peers nearest to a roster that are to store a record: five as hivemind has it, and some that may be away or
refuse."""

ASKED = 20
"""Peers nearest to a roster that are asked for it: in a small DHT all, every node of the run among them."""

SEARCH_DEADLINE = 8.0
"""Seconds to find them, in rounds that each may meet a dead peer: whoever makes up peers without end does not
keep us from asking those that we know."""

MAX_ENTRIES = 8_192
"""Most entries of a roster in one message: signed records need 500 bytes each, and a message has 4 MiB. Empty
ones would take seconds to read."""

_FREE_BITS = 96
"""Low bits of a key that are drawn anew to find what is near it: 64 remain, by which nodes are told apart."""

_GHOSTS = 4
"""Times that hivemind's heap of expirations may be longer than what is stored, before it is tidied: every
store adds to it, and nothing is taken out before it has expired."""

Entry = tuple[Any, ValueWithExpiration[bytes]]
"""An entry of a dictionary in the DHT: its subkey, in a roster a peer's id, and what is stored there."""

log = logging.getLogger(__name__)


class Storage(DHTLocalStorage):  # type: ignore[misc]
    """A DHT node's storage: rosters, and a little of what other programs keep in the same DHT.

    Where a roster is full, an entry drawn at random gives way. Where there is one, nothing else is stored.
    What others keep is not handed over to peers that come: it would fill their first message.
    """

    def __init__(self, random: Random, is_record: Callable[[DHTRecord], bool]) -> None:
        super().__init__()
        self.own: set[DHTID] = set()
        """Keys of the rosters in which this node itself is; these never give way to others."""
        self.random = random
        self._is_record = is_record
        self._others = DHTLocalStorage(maxsize=MAX_OTHERS)
        self._bytes = 0
        """Bytes that have been stored for others since nothing was."""

    def get(self, key: DHTID) -> ValueWithExpiration[Any] | None:
        """Return a copy of a roster with at most MAX_ANSWER entries, or what else is stored there."""
        if key not in self:
            return self._others.get(key)
        copy = DictionaryDHTValue()
        for subkey, entry in self.roster(key):
            copy.store(subkey, entry.value, entry.expiration_time)
        return ValueWithExpiration(copy, copy.latest_expiration_time)

    def roster(self, key: DHTID) -> list[Entry]:
        """Return records of the roster of that key, at most MAX_ANSWER."""
        item = TimedStorage.get(self, key)
        return self._drawn(item.value) if item else []

    def store(self, key: DHTID, value: bytes, expiration_time: float, subkey: Any = None) -> bool:
        """Store a value, or an entry of a dictionary; return whether it is new."""
        if subkey is None:
            return self._keep(key, value, expiration_time)
        return self.store_subkey(key, subkey, value, expiration_time)

    def store_subkey(self, key: DHTID, subkey: Any, value: bytes, expiration_time: float) -> bool:
        """Store an entry of a dictionary, be it a record of a roster or not; return whether it is new."""
        entry = ValueWithExpiration(value, expiration_time)
        if self.records(key.to_bytes(), [(subkey, entry)]):
            return self._enter(key, subkey, value, expiration_time)
        return self._keep(key, value, expiration_time, subkey)

    def records(self, key: bytes, entries: Iterable[Entry]) -> list[Entry]:
        """Return those of the entries that are records in the roster of that key."""
        dumps = MSGPackSerializer.dumps
        return [one for one in entries if self._is_record(DHTRecord(key, dumps(one[0]), *one[1]))]

    def records_of(self, key: bytes, roster: DictionaryDHTValue) -> list[Entry]:
        """Return those among MAX_ANSWER entries: drawn first, so that it costs the same whatever is sent."""
        return self.records(key, self._drawn(roster))

    def take(self, key: bytes, sent: DictionaryDHTValue) -> bool:
        """Remove what is not to be stored from a dictionary that somebody sends for that, in place; return
        True: all but its records if it has any, of others all but MAX_ANSWER entries.

        Replaces hivemind's check, which refuses the whole for one bad entry: two clocks that differ by a
        second would be enough for that.
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
        """Store a record unless there is one of that peer which expires as late."""
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
        """Store what is no record, unless it is too large or in the place of a roster. Where all of it is too
        much it is forgotten: other peers have it, too."""
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
    """Drop from the heap what is no longer stored, or stored with another expiration."""
    if len(storage.expiration_heap) > _GHOSTS * (len(storage.data) + 1):
        storage.expiration_heap = list(storage.key_to_heap.values())
        heapify(storage.expiration_heap)


class _Reader(MSGPackSerializer):  # type: ignore[misc]
    """hivemind's serializer; of a roster it reads what may be a record, and nothing of one with too many."""

    @classmethod
    def _decode_ext_types(cls, code: int, data: bytes) -> Any:
        if cls._ext_type_codes.get(code) is DictionaryDHTValue:
            return _read_roster(data)
        return super()._decode_ext_types(code, data)


def _read_roster(data: bytes) -> DictionaryDHTValue:
    """Return a roster from the form that `DictionaryDHTValue.packb` writes; an empty one if that has too many
    entries, as peers forget who refuses what they hand over. Raises TypeError and others.

    Other subkeys than texts are left out: where two expire together, hivemind cannot compare them.
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

    `deadline` is that of one message and its answer, in seconds.
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
    # Strangers may store into the cache, too, and what is there hides what expires earlier.
    protocol.storage = protocol.cache = storage = Storage(random, validator.validate)
    protocol.serializer = _Reader
    protocol._validate_dictionary = storage.take
    protocol._validate_record = lambda *_: True  # the storage tells records from what others keep
    return dht


async def put_record(dht: DHTNode, roster: str, own: str, value: Any, expiration_time: float) -> bool:
    """Store this node's own record, under its peer id `own`: here, where whoever asks this node finds it, and
    at the peers nearest to the roster. Return whether one of these took it; True if there is no other peer.
    """
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
    """Return the values in a roster by peer id, of each peer the one that expires last: what the nearest
    peers answer, and what is stored here of others. This node's own is among them only if others have it.
    """
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
    """Return peers that answer, those nearest to a key first, without this node: at most ASKED that a search
    finds, and as many that this node knows already, whatever others make of the search.

    It goes by another key near to it: with every step of one by the key itself would come what peers have
    stored there, be it megabytes of rubbish.
    """
    near = DHTID(key ^ dht.protocol.storage.random.getrandbits(_FREE_BITS))
    found = dict(dht.protocol.routing_table.get_nearest_neighbors(key, ASKED, exclude=dht.node_id))
    with suppress(TimeoutError):
        async with asyncio.timeout(SEARCH_DEADLINE):
            found |= (await dht.find_nearest_nodes([near], k_nearest=ASKED, exclude_self=True))[near]
    return [found[node] for node in sorted(found, key=key.xor_distance) if found[node] not in dht.blacklist]


async def _ask(dht: DHTNode, peer: PeerID, key: DHTID) -> list[Entry]:
    """Return the records in a roster as one peer has it; none if there is no usable answer.

    hivemind's own call would forget a peer that does not answer; this one may have too much to say of a key.
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
