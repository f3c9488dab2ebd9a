"""The vectors of first-order runs (U11): a run from its manifest to its weights, and what moves."""

from __future__ import annotations

import hashlib
import math
import struct
from typing import Any

import msgpack
import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sfprotocol import decisions, seeds, signing, wire_codec
from sfprotocol.decisions import FACTOR_ONE, UNIT_ONE, Admit, Bases, Close, Decision, Move, RateFrom, Seal
from sfprotocol.messages import EpochScalars, Feed, Form, Segment
from sfprotocol.run_state import RunState, multiplier, named_digest
from sfprotocol.validation import tag
from tests.protocol.vectors import manifest
from tests.protocol.vectors.plain import SECRETS, origin, plain
from tests.protocol.vectors.weights import bases_digest, bases_listing, bits, moved

TARGETS = (("a", 3, 10), ("b", 3, 5))
RANK, ROWS, COLUMNS, CELLS = 4, 3, 4, 24
DELTA, LIMIT = 2.0**-10, 78
FORM = Form(1, CELLS)
SALT = bytes(range(8))

FIELDS: dict[str, Any] = manifest.ORGANISED | {
    "protocol": 4,
    "model": manifest.ORGANISED["model"]
    | {"targets": [f"{name}:{out}x{into}" for name, out, into in TARGETS]},
    "task": manifest.ORGANISED["task"] | {"loss": "calibrated", "prior": [0, 1, -65536, 7]},
    "organised": manifest.ORGANISED["organised"] | {"subspace_epochs": 2},
    "training": manifest.ORGANISED["training"]
    | {"rank": RANK, "estimator": "first-order", "norm_limit": LIMIT, "basis": "published"}
    | {"learning_rate": 0.875, "scalar_bits": 8, "scalar_delta": DELTA, "scalar_limit": 127},
}

LABELS = ((0, 0, 0, 1, 2, 3), (0, 1, 1, 2))
"""Epochs of the updates of either member."""

NORMS = ((60, 78, 79, 9, 39, 50), (30, 10, 77, 20))
"""Approximate norms of the updates. Some are above their label's limit, or too far below it."""


def blob(subspace: int) -> bytes:
    """Return the bases of a subspace (U11)."""
    size = sum(ROWS * out + COLUMNS * into for _, out, into in TARGETS)
    words = seeds.stream(seeds.derive_key(b"sfnode vector of first-order bases"), subspace * size, size)
    return ((words % np.uint64(255)).astype(np.int64) - 127).astype(np.int8).tobytes()


def values(member: int, step: int) -> tuple[int, ...]:
    """Return the scalars of an update whose norm is near that in NORMS."""
    words = seeds.stream(seeds.derive_key(bytes([member])), CELLS * step, CELLS)
    drawn = (words % np.uint64(2001)).astype(np.int64) - 1000
    scaled = np.rint(drawn * (NORMS[member][step] / math.sqrt(int((drawn**2).sum())))).astype(int).tolist()
    return tuple(scaled)


def vectors() -> dict[str, Any]:
    training = FIELDS["training"] | {"bases": _digest(blob(0)).hex()}
    told = manifest.manifest_vector(FIELDS | {"training": training})
    run_id = bytes.fromhex(told["run_id"])
    return {
        **told,
        "form": plain(FORM._asdict()),
        "forms": [
            {"scalar_bytes": form.scalar_bytes, "cells": form.cells, "segment_updates": form.segment_updates}
            for form in (
                FORM,
                Form(2, CELLS),
                Form(1, 16_384),
                Form(2, 8192),
                Form(1, 1344),
                Form(2, 336),
                Form(2, 0),
            )
        ],
        "segments": [_segment(run_id, form) for form in (FORM, Form(2, CELLS))],
        "invalid segments": _bad_segments(),
        "decisions": [
            {"name": name, "decision": plain(seal), "encoding": decisions.encode(seal).hex()}
            for name, seal in _seals().items()
        ],
        "invalid decisions": _bad_decisions(),
        "counting": [_run_state(limit) for limit in (LIMIT, 0)],
        "moves": [
            {"limit": limit, "values": list(update), "moves": RateFrom(0, 1, UNIT_ONE, limit).moves(update)}
            for limit, update in _borders()
        ],
        "multipliers": [
            {"rate": rate, "unit": unit, "factor": factor, "weight": multiplier(rate, factor, unit)}
            for rate, unit, factor in (
                (3 << 30, UNIT_ONE, FACTOR_ONE),
                (214_748_365, 12_345, 3000),
                (1, UNIT_ONE, FACTOR_ONE - 1),
                (1, 1, 1),
                (2**32 - 1, 2**32 - 1, 2**16 - 1),
            )
        ],
        "run": _run(run_id),
    }


def _digest(content: bytes) -> bytes:
    return bases_digest(bases_listing(content))


# -- what travels ------------------------------------------------------------------------------------------


def _segment(run_id: bytes, form: Form) -> dict[str, Any]:
    """Return a segment of three updates with two labels, its chain heads and its bytes."""
    least = -(2 ** (8 * form.scalar_bytes - 1)) + 1
    some = [tuple(least + 3 * step if cell == step else cell for cell in range(CELLS)) for step in range(3)]
    feed = Feed(origin(SECRETS[0]), 0)
    parts = (EpochScalars(0, (some[0],)), EpochScalars(3, tuple(some[1:])))
    heads = [signing.genesis(run_id, feed)]
    for epoch, update in zip((0, 3, 3), some, strict=True):
        heads.append(signing.extend(heads[-1], [EpochScalars(epoch, (update,))]))
    key = Ed25519PrivateKey.from_private_bytes(SECRETS[0])
    signature = key.sign(signing.head_message(run_id, feed, 3, heads[-1]))
    message = Segment(seeds.feed_key(run_id, *feed), 0, parts, signature)
    return {
        "scalar_bytes": form.scalar_bytes,
        "cells": form.cells,
        "chains": [head.hex() for head in heads],
        "message": plain(message),
        "encoding": wire_codec.encode(message, *form).hex(),
    }


def _bad_segments() -> list[dict[str, str]]:
    def encoded(parts: list[Any]) -> str:
        return bytes(msgpack.packb([1, 0, 5, 0, parts, bytes(64)], use_bin_type=True)).hex()

    return [
        {"name": name, "rule": rule, "encoding": encoded(parts)}
        for name, rule, parts in (
            ("no scalars", "C6", [[0, b""]]),
            ("a scalar of an update is missing", "C6", [[0, bytes(2 * CELLS - 1)]]),
            ("a scalar too many", "C6", [[0, bytes(CELLS + 1)]]),
            ("an update in two parts", "C6", [[0, bytes(CELLS // 2)], [1, bytes(CELLS // 2)]]),
            ("more than 24 KiB", "C7", [[0, bytes(FORM.width * (FORM.segment_updates + 1))]]),
        )
    ]


# -- decisions ---------------------------------------------------------------------------------------------


def _seals() -> dict[str, Seal]:
    least, most = RateFrom(9, 0, 1, 1), RateFrom(12, 2**32 - 1, 2**32 - 1, 2**32 - 1)
    return {
        "seal with unit and limit": Seal(7, (), (), bytes(32), 4096, (least, most)),
        "seal with a rate alone": Seal(7, (), (), bytes(32), 4096, (RateFrom(9, 5),)),
    }


def _bad_decisions() -> list[dict[str, str]]:
    def encoded(*rate: int) -> str:
        return bytes(msgpack.packb([2, 0, [], [], bytes(32), 4096, [rate], []], use_bin_type=True)).hex()

    return [
        {"name": name, "encoding": encoded(*rate)}
        for name, rate in (
            ("a limit of 0", (1, 5, UNIT_ONE, 0)),
            ("a unit of 0", (1, 5, 0, 5)),
            ("a unit without a limit", (1, 5, UNIT_ONE)),
            ("a unit of 33 bits", (1, 5, 2**32, 5)),
            ("a limit of 33 bits", (1, 5, UNIT_ONE, 2**32)),
            ("a field more", (1, 5, UNIT_ONE, 5, 5)),
        )
    ]


def _run_state(norm_limit: int) -> dict[str, Any]:
    """Return the effect of seals in a first-order run, or in a run without a limit."""
    run = RunState(budget=100, rate=3 << 30, norm_limit=norm_limit)
    steps = []
    for decision in (
        Close(0, SALT, ()),
        Seal(0, (), (), bytes(32), 4096, (RateFrom(2, 9, 99, 999),)),
        Seal(0, (), (), bytes(32), 4096, (RateFrom(2, 8),)),
        Close(1, SALT, ()),
        Seal(1, (), (), bytes(32), 4096, (RateFrom(3, 7), RateFrom(4, 6, 66, 666))),  # of both kinds
        Seal(1, (), (), bytes(32), 4096, ()),
    ):
        record = decisions.encode(decision)
        run.apply(decisions.read(record))
        rates = [list(run.rate_from(epoch)) for epoch in range(5)]
        steps.append({"record": record.hex(), "sealed": run.sealed, "rates": rates})
    return {"budget": 100, "rate": 3 << 30, "norm_limit": norm_limit, "steps": steps}


def _borders() -> list[tuple[int, tuple[int, ...]]]:
    """Return updates whose sum of squares is at a limit or next to it."""
    return [
        (80, (80, 0, 0, 0)),
        (80, (80, 1, 0, 0)),
        (80, (79, 12, 3, 2)),  # 6,398
        (80, (-79, 12, 3, 2)),
        (80, (6, 0, 0, 8)),  # 64 times 100 is the limit's square
        (80, (5, 7, 5, 0)),  # 99
        (80, (10, 1, 0, 0)),
        (80, (0, 0, 0, 0)),
        (81, (10, 1, 1, 0)),  # 64 times 102 is below 6,561, times 103 above
        (81, (10, 1, 1, 1)),
        (1, (0, 1, 0, 0)),
        (1, (0, 0, 0, 0)),
        (2**32 - 1, (127, 127, 127, 127)),
    ]


# -- a run -------------------------------------------------------------------------------------------------


def _run(run_id: bytes) -> dict[str, Any]:
    """Return a run of two members with two sets of bases: its decisions, the weight of each update, the
    cores and the weights of the model."""
    run_state = RunState(
        budget=1000, rate=7 << 29, norm_limit=LIMIT, bases=_digest(blob(0)), subspace_epochs=2
    )
    records = [decisions.encode(one) for one in _story(run_id)]
    for record in records:
        run_state.apply(decisions.read(record))
    assert run_state.sealed == 3, "every decision is to change something"
    cores = np.zeros((2, CELLS), object)
    updates = []
    for member, labels in enumerate(LABELS):
        stops = run_state.live(64 * member, len(labels))
        for step, label in enumerate(labels):
            told, rate = values(member, step), run_state.rate_from(label)
            factor = next(run.factor for run in stops if step < run.stop)
            weight = multiplier(rate.rate, factor, rate.unit) if rate.moves(told) else 0
            cores[label // 2] += np.array(told, object) * weight
            updates.append(
                {"member": member, "step": step, "label": label, "values": list(told)}
                | {"factor": factor, "weight": str(weight)}
            )
    return {
        "members": [origin(secret).hex() for secret in SECRETS],
        "decisions": [record.hex() for record in records],
        "counted": run_state.counted,
        "updates": updates,
        "cores": [[str(entry) for entry in core] for core in cores],
        "core_digest": _core_digest(cores),
        "bases": [{"blob": blob(number).hex(), "digest": _digest(blob(number)).hex()} for number in (0, 1)],
        "targets": _targets(cores),
    }


def _head(run_id: bytes, member: int, stop: int) -> bytes:
    told = (EpochScalars(LABELS[member][step], (values(member, step),)) for step in range(stop))
    return signing.extend(signing.genesis(run_id, Feed(origin(SECRETS[member]), 0)), told)


def _story(run_id: bytes) -> list[Decision]:
    def move(member: int, first: int, stop: int, zeros: int = 0) -> Move:
        return Move(64 * member, stop - first, tag(SALT, _head(run_id, member, stop)), zeros)

    def named(*stops: int) -> bytes:
        heads = ((64 * member, stop, _head(run_id, member, stop)) for member, stop in enumerate(stops))
        return named_digest(run_id, heads)

    return [
        *(Admit(origin(secret), 100, 0) for secret in SECRETS),
        Bases(1, _digest(blob(1))),
        Close(0, SALT, (move(0, 0, 3, 1), move(1, 0, 1))),
        Seal(
            0,
            (),
            (),
            named(3, 1),
            3000,
            (RateFrom(2, 50_000_001, 12_345, 40), RateFrom(3, 7 << 28, 70_000, 60)),
        ),
        Close(1, SALT, (move(0, 3, 4, 1), move(1, 1, 3, 1))),
        Seal(1, (), (), named(4, 3), 4096, ()),
        Close(2, SALT, (move(0, 4, 5), move(1, 3, 4))),
        Seal(2, (64,), (), named(5, 3), 4096, ()),
    ]


def _core_digest(cores: Any) -> str:
    hasher = hashlib.blake2b(digest_size=32)
    for subspace, core in enumerate(cores):
        if any(core):
            hasher.update(struct.pack(">Q", subspace) + struct.pack(f"<{CELLS}q", *core))
    return hasher.hexdigest()


def _targets(cores: Any) -> list[dict[str, Any]]:
    """Return base and weights of each target (U8, U11), with numpy alone."""
    found, begin = [], 0
    for number, (name, out, into) in enumerate(TARGETS):
        base = (np.arange(out * into, dtype=np.float32) - 7) / np.float32(3)
        weights = base.reshape(out, into).astype(np.float64)
        scale = DELTA * 2.0**-32 * 2.0 ** -(3 + out.bit_length() // 2) * 2.0 ** -(3 + into.bit_length() // 2)
        for subspace, core in enumerate(cores):
            entries = np.frombuffer(blob(subspace), np.int8)[begin:].astype(object)
            u = entries[: out * ROWS].reshape(out, ROWS)
            v = entries[out * ROWS : out * ROWS + into * COLUMNS].reshape(into, COLUMNS)
            weights = moved(weights, u, core.reshape(2, ROWS, COLUMNS)[number], v, scale)
        begin += out * ROWS + into * COLUMNS
        rows = weights.astype(np.float32)
        found.append(
            {"name": name, "scale": scale, "base": [bits(entry) for entry in base]}
            | {"weights": [[bits(entry) for entry in row] for row in rows]}
        )
    return found
