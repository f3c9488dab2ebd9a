"""The DHT of a node: hivemind's DHTNode with bounds, in which no stranger's record outlasts or hides others'.

In hivemind as it is whatever expires last wins: of a full storage the entry that expires first gives way, a
stranger's cached copy of a roster hides the stored one, an answer that claims to expire never ends the
search, and one bad entry spoils the whole answer. Here it is left to chance what is kept and given where
there is too much, every answer counts alike, and bad entries are left out. What remains: whoever announces
more ids, or more often, has more of a full roster, since ids cost nothing and p2pd does not say whence a call
comes.

Imports hivemind, and with it torch. Knows records only as their validator does.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from heapq import heapify
from random import Random
from typing import Any

from hivemind.dht.node import DHTNode
from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DHTLocalStorage, DictionaryDHTValue
from hivemind.dht.validation import DHTRecord
from hivemind.p2p import P2P
from hivemind.utils.serializer import MSGPackSerializer
from hivemind.utils.timed_storage import TimedStorage, ValueWithExpiration

from sfnode.transport.libp2p.keys import PeerKey, is_signed, peer_of_public
from sfnode.transport.roster import MAX_ANSWER, MAX_ROSTER, SignedRecords

MAX_TOPICS = 32
"""Most rosters that this node stores for others; full ones take 45 MiB. A swarm has one."""

_GHOSTS = 4
"""Times that hivemind's heap of expirations may be longer than what is stored, before it is tidied: every
store adds to it, and nothing is taken out before it has expired."""


class RosterStorage(DHTLocalStorage):  # type: ignore[misc]
    """A DHT node's storage of rosters. Where one is full, an entry drawn at random gives way."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        self.own: set[DHTID] = set()
        """Keys of the rosters in which this node itself is; these never give way to others."""
        self._random = random

    def get(self, key: DHTID) -> ValueWithExpiration[Any] | None:
        """Return a copy with at most MAX_ANSWER entries: a search of our own adds to what it is given."""
        item = TimedStorage.get(self, key)
        if item is None:
            return None
        return ValueWithExpiration(_copied(item.value, self._random), item.expiration_time)

    def store(self, key: DHTID, value: bytes, expiration_time: float, subkey: Any = None) -> bool:
        """Store an entry of a roster; anything else is refused."""
        return subkey is not None and self.store_subkey(key, subkey, value, expiration_time)

    def store_subkey(self, key: DHTID, subkey: Any, value: bytes, expiration_time: float) -> bool:
        """Store an entry unless there is one of that peer which expires as late; return whether it is new."""
        item = TimedStorage.get(self, key)
        roster = DictionaryDHTValue() if item is None else item.value
        held = roster.get(subkey)
        if expiration_time < time.time() or (held and held.expiration_time >= expiration_time):
            return False
        if held is None and len(roster) >= MAX_ROSTER:
            del roster[self._random.choice(list(roster.data))]
        roster.store(subkey, value, expiration_time)
        if item is None and len(self.data) >= MAX_TOPICS:
            del self[self._random.choice([other for other in self.data if other not in self.own])]
        if item is None or expiration_time > item.expiration_time:
            TimedStorage.store(self, key, roster, expiration_time)
        for heap_of in (roster, self):
            _tidy(heap_of)
        return True


def _copied(roster: DictionaryDHTValue, random: Random) -> DictionaryDHTValue:
    copy = DictionaryDHTValue()
    for subkey, entry in _some(list(roster.items()), random):
        copy.store(subkey, entry.value, entry.expiration_time)
    return copy


def _some(entries: list[Any], random: Random) -> Iterable[Any]:
    return entries if len(entries) <= MAX_ANSWER else random.sample(entries, MAX_ANSWER)


def _tidy(storage: TimedStorage[Any, Any]) -> None:
    """Drop from the heap what is no longer stored, or stored with another expiration."""
    if len(storage.expiration_heap) > _GHOSTS * (len(storage.data) + 1):
        storage.expiration_heap = list(storage.key_to_heap.values())
        heapify(storage.expiration_heap)


class _Answers:
    """The checks of what others send: entries of rosters, in answers and to be stored."""

    def __init__(self, protocol: Any, random: Random) -> None:
        self._protocol = protocol
        self._find = protocol.call_find
        self._random = random

    def keep_valid(self, key: bytes, roster: DictionaryDHTValue) -> bool:
        """Remove all but MAX_ANSWER entries, and those that are not valid, in place; return True.

        Drawn first, so that a check costs the same whatever is sent. Replaces hivemind's check, which refuses
        the whole for one bad entry: two clocks that differ by a second would be enough for that.
        """
        entries = dict(_some(list(roster.data.items()), self._random))
        roster.clear()
        roster.maxsize = float("inf")
        roster.latest_expiration_time = float("-inf")
        for subkey, (value, expiration_time) in entries.items():
            record = DHTRecord(key, self._protocol.serializer.dumps(subkey), value, expiration_time)
            if self._protocol.record_validator.validate(record):
                roster.store(subkey, value, expiration_time)
        return True

    async def find(self, peer: Any, keys: Any) -> Any:
        """Ask a peer as hivemind does; its answer expires when its last valid entry does."""
        found = await self._find(peer, keys)
        return found and {key: (_dated(item), nearest) for key, (item, nearest) in found.items()}


def _dated(item: ValueWithExpiration[Any] | None) -> ValueWithExpiration[Any] | None:
    if item is None or not isinstance(item.value, DictionaryDHTValue) or not item.value.data:
        return None
    return ValueWithExpiration(item.value, item.value.latest_expiration_time)


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
    protocol.storage = protocol.cache = RosterStorage(random)
    answers = _Answers(protocol, random)
    protocol._validate_dictionary = answers.keep_valid
    protocol.call_find = answers.find
    return dht
