"""The DHT of a node: no stranger's record outlasts, hides or crowds out those of others."""

from __future__ import annotations

import time
from random import Random

import msgpack
import pytest
from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.dht.validation import DHTRecord
from hivemind.utils.serializer import MSGPackSerializer

from sfnode.transport.libp2p import dht
from sfnode.transport.libp2p.keys import PeerKey, is_signed, peer_id, peer_of_public
from sfnode.transport.roster import MAX_ANSWER, MAX_ROSTER, MAX_TTL, SignedRecords

TOPIC = DHTID.generate("a roster")


def topics(count):
    return [DHTID.generate(f"roster {number}") for number in range(count)]


@pytest.fixture
def storage():
    return dht.Storage(Random(1), lambda record: b"forged" not in record.value)


@pytest.fixture
def soon():
    return time.time() + 60


def names(storage, topic=TOPIC):
    return set(storage.data[topic].value.data)


# -- what is kept --------------------------------------------------------------------------------------


def test_a_newer_record_of_a_peer_takes_the_place_of_the_older(storage, soon):
    assert storage.store(TOPIC, b"old", soon, subkey="a")
    assert storage.store(TOPIC, b"new", soon + 1, subkey="a")
    assert storage.get(TOPIC).value.get("a").value == b"new"


def test_an_older_record_that_is_repeated_changes_nothing(storage, soon):
    """hivemind would drop the newer one when the older expires."""
    storage.store(TOPIC, b"new", soon + 1, subkey="a")
    assert not storage.store(TOPIC, b"old", soon, subkey="a")
    roster = storage.data[TOPIC].value
    assert roster.get("a").value == b"new"
    assert roster.key_to_heap["a"].expiration_time == soon + 1


def test_in_a_full_roster_a_newcomer_takes_the_place_of_anybody(storage, soon):
    """The expiry of the others does not matter. Otherwise 512 records of a stranger would keep all others
    out."""
    for number in range(MAX_ROSTER):
        storage.store(TOPIC, b"", soon + 60 + number / 1000, subkey=f"stranger {number}")
    for number in range(100):
        assert storage.store(TOPIC, b"", soon, subkey=f"honest {number}")
        assert len(names(storage)) == MAX_ROSTER
    assert sum(name.startswith("honest") for name in names(storage)) > 80


def test_strangers_with_other_rosters_do_not_displace_our_own(storage, soon):
    storage.own.add(TOPIC)
    storage.store(TOPIC, b"", soon, subkey="a")
    for topic in topics(10 * dht.MAX_TOPICS):
        assert storage.store(topic, b"", soon + 60, subkey="stranger")
    assert names(storage) == {"a"}
    assert len(storage.data) == dht.MAX_TOPICS


def test_a_record_that_has_expired_is_neither_taken_nor_given(storage):
    assert not storage.store(TOPIC, b"", time.time() - 1, subkey="a")
    assert storage.get(TOPIC) is None


def test_announcing_ever_again_takes_no_memory(storage, soon):
    for number in range(5000):
        storage.store(TOPIC, b"", soon + number / 1000, subkey="a")
    assert len(storage.expiration_heap) < 20
    assert len(storage.data[TOPIC].value.expiration_heap) < 20


# -- what is given -------------------------------------------------------------------------------------


def test_of_a_full_roster_chance_decides_what_is_given(storage, soon):
    for number in range(MAX_ROSTER):
        storage.store(TOPIC, b"", soon + number / 1000, subkey=number)
    given = [set(storage.get(TOPIC).value.data) for _ in range(2)]
    assert len(given[0]) == len(given[1]) == MAX_ANSWER
    assert given[0] != given[1]


def test_what_a_search_adds_to_its_result_does_not_get_into_the_storage(storage, soon):
    storage.store(TOPIC, b"", soon, subkey="a")
    storage.get(TOPIC).value.store("b", b"", soon)
    assert names(storage) == {"a"}


# -- what others send ----------------------------------------------------------------------------------


def roster(*subkeys, value=b"", expires=None, maxsize=None):
    made = DictionaryDHTValue(maxsize)
    for subkey in subkeys:
        made.store(subkey, value, expires or time.time() + 60)
    return made


def test_one_bad_entry_does_not_spoil_an_answer(storage):
    found = roster("good", "fine")
    found.store("bad", b"forged", time.time() + 60)
    assert {name for name, _ in storage.records_of(TOPIC.to_bytes(), found)} == {"good", "fine"}
    assert storage.take(TOPIC.to_bytes(), found)
    assert set(found.data) == {"good", "fine"}


def test_an_answer_with_thousands_of_entries_counts_for_a_few_and_costs_no_more():
    checked = []
    storage = dht.Storage(Random(1), lambda record: checked.append(record) or True)
    found = roster(*map(str, range(5000)))
    assert len(storage.records_of(TOPIC.to_bytes(), found)) == len(checked) == MAX_ANSWER
    storage.take(TOPIC.to_bytes(), found)
    assert len(checked) == 2 * len(found.data) == 2 * MAX_ANSWER


def test_an_answer_does_not_decide_how_much_is_kept_of_others(storage):
    found = roster("a", "b", maxsize=2)
    storage.take(TOPIC.to_bytes(), found)
    for number in range(10):
        found.store(number, b"", time.time() + 60)
    assert len(found.data) == 12


def test_of_an_answer_only_what_may_be_a_record_is_read():
    found = roster("good")
    for later, subkey in enumerate((7, ("a", "pair"))):
        found.store(subkey, b"", time.time() + 60 + later)
    found.store("text", "for bytes", time.time() + 60)
    with found.freeze():
        found.store("stale", b"", time.time() - 1)
        sent = MSGPackSerializer.dumps(found)
    assert set(dht._Reader.loads(sent).data) == {"good"}


def test_an_answer_with_more_entries_than_records_have_room_is_not_read():
    """hivemind takes two seconds to read as many empty ones as fit into a message. Nor is it refused: a peer
    that hands it over would forget this one, and nobody would find it there."""
    found = roster(*map(str, range(dht.MAX_ENTRIES)))
    assert len(dht._Reader.loads(MSGPackSerializer.dumps(found)).data) == dht.MAX_ENTRIES
    found.store("one more", b"", time.time() + 60)
    assert not dht._Reader.loads(MSGPackSerializer.dumps(found))


# -- what other programs keep --------------------------------------------------------------------------


def test_what_other_programs_store_is_kept_for_them(storage, soon):
    other, plain = topics(2)
    assert storage.store(plain, b"forged value", soon)
    assert storage.store(other, b"forged a", soon, subkey=1)
    assert storage.store(other, b"forged b", soon + 1, subkey=("some", 2))
    assert storage.get(plain).value == b"forged value"
    assert set(storage.get(other).value.data) == {1, ("some", 2)}
    assert not list(storage.items()), "of which all would be handed over to each peer that comes"


def test_where_a_roster_is_nothing_else_gets_in_and_a_record_takes_the_place_of_anything(storage, soon):
    assert storage.store(TOPIC, b"forged", soon + 60)
    assert storage.store(TOPIC, b"", soon, subkey="a")
    assert names(storage) == {"a"}
    assert not storage.store(TOPIC, b"forged", soon + 60)
    assert not storage.store(TOPIC, b"forged", soon + 60, subkey="b")
    assert set(storage.get(TOPIC).value.data) == {"a"}


def test_what_they_store_has_bounds_and_leaves_rosters_alone(storage, soon):
    storage.store(TOPIC, b"", soon, subkey="a")
    key, *others = topics(2 * dht.MAX_OTHERS_BYTES // dht.MAX_OTHER_BYTES)
    assert not storage.store(key, bytes(dht.MAX_OTHER_BYTES + 1), soon)
    assert not storage.store(key, b"forged", float("inf"))
    for number in range(2 * MAX_ANSWER):
        assert storage.store(key, b"forged", soon, subkey=number) == (number < MAX_ANSWER)
    assert storage.store(key, b"forged again", soon + 1, subkey=1)
    for other in others:
        storage.store(other, b"forged".ljust(dht.MAX_OTHER_BYTES), soon)
    kept = [other for other in others if storage.get(other)]
    assert 0 < len(kept) <= dht.MAX_OTHERS_BYTES // dht.MAX_OTHER_BYTES
    assert names(storage) == {"a"}


# -- signatures ----------------------------------------------------------------------------------------


@pytest.fixture
def validators(keys):
    return [
        SignedRecords(
            PeerKey(path), decode=MSGPackSerializer.loads, peer_of=peer_of_public, is_signed=is_signed
        )
        for path in keys
    ]


def test_a_record_is_signed_by_the_key_from_which_the_peer_id_follows(keys, validators):
    subkey, value = msgpack.packb(peer_id(keys[0])), msgpack.packb(["anything"])
    plain = DHTRecord(TOPIC.to_bytes(), subkey, value, time.time() + MAX_TTL)
    own, foreign = (
        DHTRecord(plain.key, subkey, signer.sign_value(plain), plain.expiration_time)
        for signer in validators[:2]
    )
    assert all(validator.validate(own) for validator in validators)
    assert not any(validator.validate(foreign) for validator in validators)
    assert not validators[0].validate(plain)
    assert validators[1].strip_value(own) == value
