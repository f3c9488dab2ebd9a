"""The vectors are current, and the code gives the same results when it reads them."""

from __future__ import annotations

from dataclasses import asdict, is_dataclass, replace
from typing import Any

import msgpack
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sfnode.errors import UserError
from sfnode.manifest import Manifest
from sfnode.tasks.dataset import select
from sfprotocol import decisions, events, messages, seeds, signing, validation, wire_codec
from sfprotocol.control_feed import ControlFeed, election_message, statement_message
from sfprotocol.decisions import Part, RateFrom
from sfprotocol.errors import RemoteProtocolError
from sfprotocol.events import Action, Event, OwnUpdates
from sfprotocol.frontier import Frontier
from sfprotocol.machine import Machine
from sfprotocol.signing import signed_by
from tests.protocol.vectors import generate
from tests.protocol.vectors.plain import FOLDER, load, name_of

HEX_FIELDS = {
    "candidate",
    "ballot",
    "origin",
    "run_id",
    "signature",
    "digest",
    "manifest",
    "frame",
    "chain",
    "listing",
    "data",
    "key",
    "voucher",
}


SEEDS, MANIFEST, SIGNING, CODEC, FLOOD, ORGANISED = (
    load(f"{name}.json") for name in ("seeds", "manifest", "signing", "codec", "flood", "organised")
)


def test_the_files_are_what_the_generator_writes() -> None:
    kept = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.json")}
    assert generate.vectors() == kept, "run: make vectors"


# -- reading -----------------------------------------------------------------------------------------


def feed_of(fields: dict[str, Any]) -> messages.Feed:
    return messages.Feed(bytes.fromhex(fields["origin"]), fields["incarnation"])


def read_field(name: str, value: Any) -> Any:
    if name in HEX_FIELDS:
        return bytes.fromhex(value)
    if name in ("feed_key", "known", "nonce", "number", "heard"):
        return int(value)
    if name == "feed":
        return feed_of(value)
    if name in ("segment", "against", "ours", "kept", "proof"):
        return read(messages, value) if isinstance(value, dict) else value
    if name == "entries":
        return tuple(entry_of(entry) for entry in value)
    if name == "statements":
        return tuple(read(messages, said) for said in value)
    if name == "feed_keys":
        return tuple(int(key) for key in value)
    if name in ("chains", "hashes", "signatures"):
        return tuple(bytes.fromhex(item) for item in value)
    if name == "votes":
        return tuple(messages.Vote(vote["deputy"], bytes.fromhex(vote["signature"])) for vote in value)
    if name == "parts":
        return tuple(Part(*part) if isinstance(part, list) else updates_of(**part) for part in value)
    if name == "branches":
        pairs = ((read_field("parts", fields["parts"]), fields["signature"]) for fields in value)
        return tuple(messages.Branch(said, bytes.fromhex(signature)) for said, signature in pairs)
    return value


def entry_of(fields: dict[str, Any]) -> messages.Position | messages.Claim | messages.Ahead | messages.Entry:
    if "record" in fields:
        record, signature = (bytes.fromhex(fields[name]) for name in ("record", "signature"))
        return messages.Entry(fields["term"], record, signature)
    if "feed_key" in fields:
        return messages.Ahead(int(fields["feed_key"]), fields["next"])
    position = messages.Position(feed_of(fields), fields["next"])
    return messages.Claim(*position, bytes.fromhex(fields["tag"])) if "tag" in fields else position


def updates_of(epoch: int, scalars: list[Any]) -> messages.EpochScalars:
    return messages.EpochScalars(epoch, tuple(one if isinstance(one, int) else tuple(one) for one in scalars))


def read(module: Any, fields: dict[str, Any]) -> Any:
    """Return the message or event that this JSON describes."""
    values = {name: read_field(name, value) for name, value in fields.items() if name != "type"}
    kind = {"Petition": "JoinRequest"}.get(fields["type"], fields["type"])  # as `name_of` has it
    return getattr(module, kind)(**values)


def read_message(fields: dict[str, Any]) -> messages.Message:
    found: messages.Message = read(messages, fields)
    return found


def read_action(fields: dict[str, Any]) -> Action:
    if fields["type"] == "Transmit":
        return events.Transmit(fields["link"], read_message(fields["message"]))
    found: Action = read(events, fields)
    return found


# -- seeds, manifest ---------------------------------------------------------------------------------


@pytest.mark.parametrize("vector", SEEDS["features"])
def test_bases_of_a_head(vector: dict[str, Any]) -> None:
    run_id, place = bytes.fromhex(vector["run_id"]), (vector["subspace"], vector["layer"])
    u, v, scales = vector["u"], vector["v"], vector["scales"]
    classes, rank = len(u), len(u[0])
    key = seeds.derive_key(run_id, b"basis", *(part.to_bytes(8, "big") for part in place), b"U")
    for column in range(rank):
        values = seeds.stream(key, column * classes, classes)
        order = sorted(range(classes), key=lambda one, values=values: int(values[one]))  # type: ignore[misc]
        assert [u[one][column] for one in order] == [
            *[8] * (classes // 2),
            *[0] * (classes % 2),
            *[-8] * (classes // 2),
        ]
    signs = seeds.basis_signs(run_id, *place, "V", len(scales), rank).tolist()
    (targets,) = seeds.basis_signs(run_id, *place, "B", 1, rank).tolist()
    square = sum(mean**2 for mean in vector["means"])
    for column, wanted in enumerate(targets):
        entries = [scale * row[column] for scale, row in zip(scales, signs, strict=True)]
        lacking = 4096 * wanted - sum(map(int.__mul__, vector["means"], entries))
        added = [(2 * mean * lacking + square) // (2 * square) for mean in vector["means"]]
        found = [max(-127, min(127, sum(pair))) for pair in zip(entries, added, strict=True)]
        assert [row[column] for row in v] == found


@pytest.mark.parametrize("vector", SEEDS["token_draws"])
def test_draws_of_tokens(vector: dict[str, Any]) -> None:
    mixed = seeds.mix64(np.array([int(vector["seed"]) ^ int.from_bytes(b"tokens", "big")], np.uint64))
    keys = seeds.stream(int(mixed[0]), 0, len(vector["draws"]))
    assert seeds.token_keys(int(vector["seed"]), len(keys)).tolist() == keys.tolist()
    for key, draws in zip(keys, vector["draws"], strict=True):
        places = np.arange(len(draws))
        assert seeds.token_draws(np.full(len(draws), key), places).tolist() == [int(draw) for draw in draws]
        assert [int(value) >> 33 for value in seeds.stream(int(key), 0, len(draws))] == [
            int(d) for d in draws
        ]


@pytest.mark.parametrize("vector", SEEDS["selections"])
def test_selections_of_rows(vector: dict[str, Any]) -> None:
    values = seeds.stream(seeds.derive_key(vector["purpose"].encode()), 0, vector["rows"])
    smaller = (values[:, None] > values[None, :]).sum(1)  # (rows,)
    assert np.flatnonzero(smaller < vector["count"]).tolist() == vector["chosen"]
    if vector["purpose"] == "sfnode row selection":
        every = [{"number": number} for number in range(vector["rows"])]
        assert [row["number"] for row in select(every, vector["count"])] == vector["chosen"]


@pytest.mark.parametrize(
    "vector",
    [MANIFEST, *MANIFEST["version 2"]],
    ids=[
        "1",
        "open",
        "organised",
        "published",
        "features",
        "centred",
        "child",
        "groups",
        "formats",
        "data",
        "decay",
        "reward",
    ],
)
def test_manifests_have_these_bytes_and_these_ids(vector: dict[str, Any]) -> None:
    manifest = Manifest.model_validate(vector["manifest"])
    assert manifest.canonical().hex() == vector["canonical"]
    assert manifest.run_id.hex() == vector["run_id"]
    assert Manifest.from_canonical(bytes.fromhex(vector["canonical"]), "the vectors") == manifest


@pytest.mark.parametrize("vector", MANIFEST["invalid"], ids=lambda v: v["name"])
def test_manifests_that_are_refused(vector: dict[str, Any]) -> None:
    fields = MANIFEST["version 2"][1]["manifest"]
    change = {name: value for name, value in vector.items() if name not in ("name", "rule")}
    merged = {name: fields[name] | change[name] for name in ("organised", "task") if name in change}
    encoded = _sorted_map(fields | change | merged)
    with pytest.raises(UserError):
        Manifest.from_canonical(msgpack.packb(encoded), "the vectors")


def _sorted_map(value: Any) -> Any:
    if isinstance(value, list):
        return [_sorted_map(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {key: _sorted_map(value[key]) for key in sorted(value, key=str.encode)}


@pytest.mark.parametrize("task", [1, -1], ids=["classification", "reward"])
def test_all_of_what_makes_a_manifest_refused_is_the_change(task: int) -> None:
    fields = MANIFEST["version 2"][1]["manifest"] | {"task": MANIFEST["version 2"][task]["manifest"]["task"]}
    assert Manifest.from_canonical(msgpack.packb(_sorted_map(fields)), "the vectors").admission == "organised"


@pytest.mark.parametrize("vector", MANIFEST["rates"], ids=lambda v: v["rate"])
def test_first_rates(vector: dict[str, Any]) -> None:
    fields = MANIFEST["version 2"][1]["manifest"]
    training = fields["training"] | {"learning_rate": vector["learning_rate"]}
    rate = Manifest.model_validate(fields | {"training": training}).parameters().rate
    assert str(rate) == vector["rate"]


# -- signing -----------------------------------------------------------------------------------------

RUN = messages.RunParameters(bytes.fromhex(SIGNING["run_id"]), 4, 40, 2, 32767)


@pytest.mark.parametrize("vector", SIGNING["feeds"])
def test_segments_in_any_cut_are_admitted_and_forgeries_are_not(vector: dict[str, Any]) -> None:
    frontier, feed = Frontier(RUN), feed_of(vector)
    for forgery in vector["forgeries"]:
        segment = read(messages, forgery["segment"])
        assert validation.verify(RUN, frontier.state(feed), segment, signing.verifies) is None
    pieces = [read(messages, fields) for fields in vector["segments"]]
    assert validation.verify(RUN, frontier.state(feed), pieces[-1], signing.verifies)
    for segment in pieces[:2]:
        found = validation.verify(RUN, frontier.state(feed), segment, signing.verifies)
        fresh, chain, *_ = found or pytest.fail("refused")
        frontier.advance(feed, fresh.stop, chain, fresh.parts[-1].epoch)
    for segment in pieces[2:]:
        found = validation.verify(RUN, frontier.state(feed), segment, signing.verifies)
        fresh, chain, *_ = found or pytest.fail("refused")
        assert (fresh.first, chain.hex()) == (5, vector["updates"][-1]["chain"])


@pytest.mark.parametrize("vector", SIGNING["first_with_work"])
def test_first_incarnations_with_work(vector: dict[str, Any]) -> None:
    feed, start = feed_of(vector), vector["start"]
    below = signing.work_bound(vector["bits"])
    tried = ((start + offset) % 2**32 for offset in range(100_000))
    first = next(n for n in tried if signing.work(RUN.run_id, feed.origin, n) < below)
    assert first == feed.incarnation


@pytest.mark.parametrize("origin", SIGNING["weak_origins"])
def test_weak_origins_are_refused(origin: str) -> None:
    assert not signing.sound(bytes.fromhex(origin))


# -- codec -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("vector", CODEC["valid"], ids=lambda v: v["name"])
def test_messages_and_their_encodings(vector: dict[str, Any]) -> None:
    message, encoding = read_message(vector["message"]), bytes.fromhex(vector["encoding"])
    assert wire_codec.encode(message, vector["scalar_bytes"]) == encoding
    assert wire_codec.decode(encoding, vector["scalar_bytes"]) == message


@pytest.mark.parametrize("vector", CODEC["invalid"], ids=lambda v: v["name"])
def test_invalid_encodings_are_refused_for_the_rule_they_break(vector: dict[str, Any]) -> None:
    with pytest.raises(RemoteProtocolError) as refused:
        wire_codec.decode(bytes.fromhex(vector["encoding"]))
    assert refused.value.rule == vector["rule"]


def test_there_is_a_vector_for_every_message_type_and_every_rule_of_decoding() -> None:
    assert {vector["message"]["type"] for vector in CODEC["valid"]} == {
        name_of(kind) for kind in messages.Message.__args__
    }
    assert {vector["rule"] for vector in CODEC["invalid"]} == {
        "K2",
        *(f"C{n}" for n in (2, 3, 4, 5, 6, 7, 8)),
    }


# -- conversations -----------------------------------------------------------------------------------


def machine_of(fields: dict[str, Any]) -> Machine:
    run = replace(messages.RunParameters(b"", **FLOOD["run"]), run_id=bytes.fromhex(fields["run_id"]))
    frontier = Frontier(run)
    for entry in fields["frontier"]:
        chain = bytes.fromhex(entry["chain"])
        frontier.advance(feed_of(entry), entry["next"], chain, entry["epoch"])
    return Machine(
        run,
        frontier,
        own=fields["own"] and feed_of(fields["own"]),
        sign=Ed25519PrivateKey.from_private_bytes(bytes.fromhex(fields["secret"])).sign,
        draw_incarnation=lambda: int(fields["incarnation_to_draw"]),
        proven=fields["proven"],
        now=0.0,
    )


@pytest.mark.parametrize("vector", FLOOD["conversations"], ids=lambda v: v["name"])
def test_conversations(vector: dict[str, Any]) -> None:
    machines = {name: machine_of(fields) for name, fields in vector["machines"].items()}
    for step in vector["steps"]:
        event: Event = read(events, step["event"])
        actions = machines[step["machine"]].handle(event, step["now"])
        assert actions == [read_action(fields) for fields in step["actions"]]
    assert {name: m.frontier.digest().hex() for name, m in machines.items()} == vector["digests"]


def test_conversations_compute_something() -> None:
    kinds = {step["event"]["type"] for vector in FLOOD["conversations"] for step in vector["steps"]}
    silent = {"Received", "Wake", "Served", "Writable", "LinkUp", "LinkDown", "Examined"}
    assert kinds == {OwnUpdates.__name__, *silent}


# -- organised runs ----------------------------------------------------------------------------------


def as_json(value: Any) -> Any:
    """Return the JSON of a decision, or of a part of one."""
    if isinstance(value, RateFrom) and not value.limit:
        return list(value[:2])
    if isinstance(value, tuple):
        return [as_json(item) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        values = {name: as_json(item) for name, item in asdict(value).items()}
        return {"type": type(value).__name__, **values}
    return value.hex() if isinstance(value, bytes) else value


@pytest.mark.parametrize("vector", ORGANISED["decisions"], ids=lambda v: v["name"])
def test_decisions_and_their_encodings(vector: dict[str, Any]) -> None:
    recorded = decisions.decode(bytes.fromhex(vector["encoding"]))
    assert as_json(recorded.decision) == vector["decision"]
    assert as_json(recorded.extensions) == vector["extensions"]
    assert recorded.unsupported == vector["unsupported"]
    assert decisions.encode(*recorded).hex() == vector["encoding"]


@pytest.mark.parametrize("vector", ORGANISED["invalid"], ids=lambda v: v["name"])
def test_what_is_no_decision_is_refused(vector: dict[str, Any]) -> None:
    with pytest.raises(RemoteProtocolError, match="O2"):
        decisions.decode(bytes.fromhex(vector["encoding"]))


def test_unknown_decisions() -> None:
    for vector in ORGANISED["unknown"]:
        recorded = decisions.decode(bytes.fromhex(vector["encoding"]))
        assert recorded.decision == decisions.Unknown(vector["kind"])
        assert recorded.unsupported == vector["unsupported"]


def test_there_is_a_vector_for_every_decision() -> None:
    kinds = {kind.__name__ for kind in decisions.Decision.__args__} - {"Unknown"}
    assert {vector["decision"]["type"] for vector in ORGANISED["decisions"]} == kinds


def entry_from(vector: dict[str, Any]) -> messages.Entry:
    return messages.Entry(vector["term"], bytes.fromhex(vector["record"]), bytes.fromhex(vector["signature"]))


def test_an_election_and_what_a_stand_in_states() -> None:
    vector = ORGANISED["election"]
    run_id, organiser = bytes.fromhex(vector["run_id"]), bytes.fromhex(vector["organiser"])
    feed = ControlFeed(messages.Authority(run_id, organiser, (), 0, vector["terms"]))
    for position, entry in enumerate(vector["entries"]):
        assert feed.add(position, [entry_from(entry)]) == 1
        assert feed.chain.hex() == entry["chain"]
    elected = decisions.decode(feed.entries[1].record).decision
    assert isinstance(elected, decisions.Elected)
    assert (feed.term, feed.key) == (1, elected.key)
    by = election_message(run_id, 1, 1, feed.chains[1], elected.key)
    assert by.hex() == vector["elected_by"]
    for place, signature in elected.ballots:
        assert signed_by(feed.stand_ins[place], by, signature)
    said = wire_codec.decode(bytes.fromhex(vector["statement"]))
    assert isinstance(said, messages.Statement)
    assert said.chain == feed.chain
    assert statement_message(run_id, said).hex() == vector["stated"]
    assert signed_by(said.key, bytes.fromhex(vector["stated"]), said.signature)
    proof = wire_codec.decode(bytes.fromhex(vector["double_vote"]))
    assert isinstance(proof, messages.DoubleVote)
    assert proof.statements[0] == replace(said, entries=())
    assert feed.convict(proof)
