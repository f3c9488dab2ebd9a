"""The vectors of first-order runs, checked by a reader with numpy alone and by the code."""

from __future__ import annotations

import hashlib
import struct
from typing import Any

import msgpack
import numpy as np
import pytest

from sfnode.engine.core import Core, UpdateBatch
from sfnode.manifest import Manifest
from sfprotocol import decisions, signing, wire_codec
from sfprotocol.decisions import RateFrom
from sfprotocol.errors import RemoteProtocolError
from sfprotocol.messages import EpochScalars, Form
from sfprotocol.run_state import multiplier
from tests.protocol.test_vectors import as_json, read_message
from tests.protocol.vectors.plain import load

VECTORS = load("first_order.json")
RUN = VECTORS["run"]
BYTES = bytes.fromhex


def sum_and_export() -> tuple[list[np.ndarray[Any, Any]], str, list[list[list[str]]]]:
    """Return the run's cores, core digest and weights by U8, U11, O8, O9 and D5, without code of sfnode."""
    run = msgpack.unpackb(BYTES(VECTORS["canonical"]))
    training, targets = run["training"], [t.split(":")[1].split("x") for t in run["model"]["targets"]]
    sizes = [(int(out), int(into)) for out, into in targets]
    rows, columns = (min(training["rank"], side) for side in sizes[0])
    rates = [(0, round(training["learning_rate"] * 2**32), 2**16, training["norm_limit"])]
    for seal in (one for one in (msgpack.unpackb(BYTES(d)) for d in RUN["decisions"]) if one[0] == 2):
        rates = [rate for rate in rates if not seal[6] or rate[0] < seal[6][0][0]] + [
            tuple(r) for r in seal[6]
        ]
    cores = [np.zeros((len(sizes), rows, columns), object) for _ in RUN["bases"]]
    for update in RUN["updates"]:
        _, rate, unit, limit = [one for one in rates if one[0] <= update["label"]][-1]
        scalars = np.array(update["values"], object)
        if (scalars**2).sum() <= limit**2 <= 64 * (scalars**2).sum():
            weight = rate * unit * update["factor"] >> 28
            cores[update["label"] // run["organised"]["subspace_epochs"]] += weight * scalars.reshape(
                cores[0].shape
            )
    told = (k.to_bytes(8, "big") + c.astype("<i8").tobytes() for k, c in enumerate(cores) if c.any())
    digest = hashlib.blake2b(b"".join(told), digest_size=32).hexdigest()
    exported, begin = [], 0
    for layer, (out, into) in enumerate(sizes):
        weights = (
            np.frombuffer(BYTES("".join(RUN["targets"][layer]["base"])), ">f4")
            .reshape(out, into)
            .astype(float)
        )
        scale = training["scalar_delta"] * 2.0**-32
        scale *= 2.0 ** -(3 + len(f"{out:b}") // 2) * 2.0 ** -(3 + len(f"{into:b}") // 2)
        for core, bases in zip(cores, RUN["bases"], strict=True):
            entries = np.frombuffer(BYTES(bases["blob"]), np.int8).astype(object)[begin:]
            u, v = (
                entries[: out * rows].reshape(out, rows),
                entries[out * rows :][: into * columns].reshape(into, columns),
            )
            whole = float(abs(core[layer]).sum()) * int(abs(u).max() * abs(v).max()) < 2**53
            cuts = [(0, core[layer])] if whole else [(48, core[layer] >> 48)]
            cuts += [] if whole else [(at, core[layer] >> at & 0xFFFF) for at in (32, 16, 0)]
            for at, part in cuts:
                weights -= scale * 2.0**at * (u @ part @ v.T).astype(float)
        begin += out * rows + into * columns
        exported.append([[struct.pack(">f", entry).hex() for entry in row] for row in weights])
    return cores, digest, exported


def test_a_reader_of_the_text_comes_to_the_same_sums_and_the_same_weights() -> None:
    cores, digest, exported = sum_and_export()
    assert [[str(entry) for entry in core.ravel()] for core in cores] == RUN["cores"]
    assert digest == RUN["core_digest"]
    assert exported == [target["weights"] for target in RUN["targets"]]


def test_the_run_has_what_a_reader_may_get_wrong() -> None:
    """The vectors contain updates that are too long, too short or skipped, and sums that take one part and
    four."""
    assert {update["weight"] == "0" for update in RUN["updates"]} == {True, False}
    assert {update["factor"] for update in RUN["updates"]} == {0, 3000, 4096}
    sums = [sum(abs(int(entry)) for entry in core[:12]) for core in RUN["cores"]]
    assert [127**2 * one >= 2**53 for one in sums] == [True, False]


def test_the_core_comes_to_the_same_sums() -> None:
    manifest = Manifest.from_canonical(BYTES(VECTORS["canonical"]), "the vector")
    core = Core(*manifest.core_shape)
    for update in RUN["updates"]:
        moved = np.array([update["values"]], np.int64) * int(update["weight"])
        subspace = manifest.parameters().subspace_of(update["label"])
        core.add(UpdateBatch(np.array([subspace]), np.zeros(1, np.uint64), moved))
    assert core.digest().hex() == RUN["core_digest"]


def test_the_manifest_says_in_which_form_updates_travel() -> None:
    manifest = Manifest.from_canonical(BYTES(VECTORS["canonical"]), "the vector")
    run = manifest.parameters()
    assert run.run_id.hex() == VECTORS["run_id"]
    assert run.form._asdict() == VECTORS["form"]
    assert (run.version, run.norm_limit) == (4, VECTORS["manifest"]["training"]["norm_limit"])
    for form in VECTORS["forms"]:
        assert Form(form["scalar_bytes"], form["cells"]).segment_updates == form["segment_updates"]


@pytest.mark.parametrize("vector", VECTORS["segments"], ids=lambda v: f"{v['scalar_bytes']} bytes")
def test_segments_and_their_chains(vector: dict[str, Any]) -> None:
    message, form = read_message(vector["message"]), Form(vector["scalar_bytes"], vector["cells"])
    assert wire_codec.encode(message, *form).hex() == vector["encoding"]
    assert wire_codec.decode(BYTES(vector["encoding"]), *form) == message
    chain, *heads = vector["chains"]
    for told in [(part.epoch, update) for part in message.parts for update in part.scalars]:
        by_hand = told[0].to_bytes(4, "big") + b"".join(
            one.to_bytes(2, "big", signed=True) for one in told[1]
        )
        expected = hashlib.blake2b(BYTES(chain) + by_hand, digest_size=32).hexdigest()
        chain = signing.extend(BYTES(chain), [EpochScalars(told[0], (told[1],))]).hex()
        assert chain == expected == heads.pop(0)


@pytest.mark.parametrize("vector", VECTORS["invalid segments"], ids=lambda v: v["name"])
def test_segments_of_another_form_are_refused(vector: dict[str, Any]) -> None:
    with pytest.raises(RemoteProtocolError) as refused:
        wire_codec.decode(BYTES(vector["encoding"]), *Form(**VECTORS["form"]))
    assert refused.value.rule == vector["rule"]


@pytest.mark.parametrize("vector", VECTORS["decisions"], ids=lambda v: v["name"])
def test_seals_with_unit_and_limit(vector: dict[str, Any]) -> None:
    recorded = decisions.decode(BYTES(vector["encoding"]))
    assert as_json(recorded.decision) == vector["decision"]
    assert decisions.encode(*recorded).hex() == vector["encoding"]


@pytest.mark.parametrize("vector", VECTORS["invalid decisions"], ids=lambda v: v["name"])
def test_units_and_limits_that_are_refused(vector: dict[str, Any]) -> None:
    with pytest.raises(RemoteProtocolError, match="O2"):
        decisions.decode(BYTES(vector["encoding"]))


@pytest.mark.parametrize(
    "vector", VECTORS["moves"], ids=lambda v: f"{v['limit']}-{sum(x * x for x in v['values'])}"
)
def test_what_moves_at_the_borders(vector: dict[str, Any]) -> None:
    squares, limit = sum(value**2 for value in vector["values"]), vector["limit"]
    assert vector["moves"] == (squares <= limit**2 <= 64 * squares)
    assert RateFrom(0, 1, 1, limit).moves(tuple(vector["values"])) == vector["moves"]


def test_weights_with_a_unit() -> None:
    for vector in VECTORS["multipliers"]:
        by_hand = vector["rate"] * vector["unit"] * vector["factor"] // 2**28
        assert multiplier(vector["rate"], vector["factor"], vector["unit"]) == vector["weight"] == by_hand
