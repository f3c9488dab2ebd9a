"""Write the test vectors beside this file from the reference implementation (SPEC.md says what they pin).

    python protocol/vectors/generate.py

Deterministic: the same code writes the same bytes. Byte strings are written in hexadecimal, 64-bit integers
as decimal strings. Knows nothing of sfnode; the manifest is encoded here a second time, from the rule.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import struct
from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import conversations
import decided
import msgpack
import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from plain import plain

import examples
from sfprotocol import PROTOCOL_VERSION, invitation, model_listing, proof_of_work, seeds, wire_codec
from sfprotocol.frontier import Frontier
from sfprotocol.messages import Card, EpochScalars, Feed, RunParameters, Segment
from sfprotocol.own_feed import fresh
from sfprotocol.segments import first_updates
from sfprotocol.signing import card_message, extend, genesis, head_message

HERE = Path(__file__).parent
RUN_ID = bytes(range(32))
SECRETS = (b"\x01" * 32, b"\x02" * 32)


def origin(secret: bytes) -> bytes:
    return Ed25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def integers(values: Iterable[int]) -> list[str]:
    return [str(int(value)) for value in values]


# -- seeds.json --------------------------------------------------------------------------------------


def seed_vectors() -> dict[str, Any]:
    return {
        "splitmix64": [
            {"key": str(key), "values": integers(seeds.stream(key, 0, 5))}
            for key in (0, 1, 1234567, 0x9E3779B97F4A7C15, 2**64 - 1)
        ],
        "feeds": [
            _feed_seeds(Feed(origin(secret), number)) for secret in SECRETS for number in (0, 2**32 - 1)
        ],
        "coordinates": [
            _coordinates(seed, rank) for seed in (0, 1, 2**63, 2**64 - 1) for rank in (4, 32, 1024)
        ],
        "basis": [
            _basis(epoch, layer, side, rows, rank)
            for epoch, layer, side, rows, rank in ((0, 0, "U", 6, 4), (0, 0, "V", 6, 4), (7, 145, "V", 5, 32))
        ],
        "batches": [
            {"seed": str(seed), "rows": rows, "chosen": seeds.batch_rows(seed, 8, rows).tolist()}
            for seed, rows in ((0, 10), (2**64 - 1, 1024), (6457827717110365317, 67349))
        ],
        "balanced_batches": [
            _balanced(seed, size, sizes)
            for seed, size, sizes in (
                (0, 4, (7, 3)),
                (2**64 - 1, 8, (256, 0, 255, 513)),
                (6457827717110365317, 3, (30000, 30001, 29999, 1)),
            )
        ],
        "token_draws": [
            {"seed": str(seed), "draws": [integers(_drawn(key)) for key in seeds.token_keys(seed, 3)]}
            for seed in (0, 2**64 - 1, 6457827717110365317)
        ],
        "groups": [_group(m, rows) for m, rows in ((2, 1), (3, 2), (8, 4))],
        "selections": [
            {"purpose": purpose, "rows": rows, "count": count, "chosen": _selected(purpose, rows, count)}
            for purpose in ("sfnode row selection", "sfnode validation rows")
            for rows, count in ((10, 3), (1000, 12))
        ],
    }


def _drawn(key: np.uint64) -> seeds.U64:
    """Return the draws of the first tokens of an answer (R11)."""
    return seeds.token_draws(np.full(4, key), np.arange(4))


def _selected(purpose: str, rows: int, count: int) -> list[int]:
    """Return the rows with the smallest values (R9)."""
    values = seeds.stream(seeds.derive_key(purpose.encode()), 0, rows)
    chosen: list[int] = np.sort(np.argsort(values)[:count]).tolist()
    return chosen


def _balanced(seed: int, batch_size: int, sizes: tuple[int, ...]) -> dict[str, Any]:
    """Return a balanced mini-batch: the class of each row, and its place in its class (R8)."""
    classes, rows = seeds.balanced_rows(seed, batch_size, sizes)
    return {"seed": str(seed), "sizes": list(sizes), "classes": classes.tolist(), "rows": rows.tolist()}


def _group(size: int, rows: int) -> dict[str, Any]:
    """Return the losses of a group's points, row by row, and the scalars that they are (U2); and of a step
    in it, whose seed draws the mini-batch (R8)."""
    epsilon, delta, limit = Fraction(1, 1024), Fraction(1, 64), 20_000
    drawn = seeds.stream(size, 0, size * rows).reshape(size, rows).tolist()
    losses = [[Fraction(value >> 40, 1 << 24) for value in point] for point in drawn]
    total = [sum(row) for row in zip(*losses, strict=True)]
    alphas = [
        sum(one - (all_ - one) / (size - 1) for one, all_ in zip(point, total, strict=True)) / rows / epsilon
        for point in losses
    ]
    step = 3 * size + size // 2
    return {
        "group": size,
        "step": step,
        "step_that_draws": step - step % size,
        "losses": [[float(loss) for loss in point] for point in losses],
        "epsilon": float(epsilon),
        "scalar_delta": float(delta),
        "scalar_limit": limit,
        "scalars": [round(min(max(alpha / delta, -limit), limit)) for alpha in alphas],
    }


def _feed_seeds(feed: Feed) -> dict[str, Any]:
    key = seeds.feed_key(RUN_ID, *feed)
    return {
        "run_id": RUN_ID.hex(),
        **plain(feed),
        "feed_key": str(key),
        "seeds": integers(seeds.update_seeds(key, 0, 4)),
        "seed_of_step_1000000": integers(seeds.update_seeds(key, 1_000_000, 1))[0],
    }


def _coordinates(seed: int, rank: int) -> dict[str, Any]:
    found = seeds.coordinates(np.array([seed], dtype=np.uint64), 6, rank)
    names = ("row", "column", "sign")
    lists = {name: values[0].tolist() for name, values in zip(names, found, strict=True)}
    return {"seed": str(seed), "layers": 6, "rank": rank, **lists}


def _basis(epoch: int, layer: int, side: str, rows: int, rank: int) -> dict[str, Any]:
    signs = seeds.basis_signs(RUN_ID, epoch, layer, side, rows, rank)
    return {
        "run_id": RUN_ID.hex(),
        "epoch": epoch,
        "layer": layer,
        "side": side,
        "rank": rank,
        "rows": ["".join("-" if sign < 0 else "+" for sign in row) for row in signs.tolist()],
    }


# -- weights.json ------------------------------------------------------------------------------------


def weight_vectors() -> dict[str, Any]:
    """Rates, and the weights of one small matrix; computed from the rules U7 and U8, with numpy alone."""
    cores = {0: [(0, 1, 350), (3, 2, -77)], 2: [(0, 1, -9), (1, 1, 32_767)]}
    aging = {subspace: [(1, 2, 2**36 + subspace)] for subspace in (0, 1, 3, 11)}
    huge = {1: [(0, 0, 2**62), (1, 3, -(2**61) - 12345), (2, 2, 2**40 + 1)]}
    return {
        "rates": [
            _rates(schedule, rate, epoch_updates, budget)
            for schedule, rate in (("constant", 6e-6), ("linear", 1e-3), ("cosine", 1e-3), ("cosine", 0.1))
            for epoch_updates, budget in ((1024, 4096), (1000, 2500), (1, 65536), (4096, 1))
        ],
        "weights": [
            _weights("cosine", cores, 0.05),
            _weights("linear", cores, 6e-6),
            _weights("organised", huge | {0: [(0, 1, 123_456_789)]}, 2.0**-20),
            _weights("linear", cores, 6e-6, bases=True),
            _weights("organised", huge | {0: [(0, 1, 123_456_789)]}, 2.0**-24, bases=True),
            _weights("organised", aging, 0.1, decay=0.9),
        ],
    }


def published_bases(rows: tuple[int, ...], rank: int) -> bytes:
    """Return a blob (R10) for one target or more: U, V, U, V, ... with so many rows, all entries from a
    stream."""
    words = seeds.stream(seeds.derive_key(b"sfnode vector of bases"), 0, sum(rows) * rank)
    return ((words % np.uint64(255)).astype(np.int64) - 127).astype(np.int8).tobytes()


def bases_listing(blob: bytes) -> bytes:
    """Return the listing of a blob (R10)."""
    hashes = b"".join(
        model_listing.hash_piece(blob[at : at + model_listing.PIECE])
        for at in range(0, len(blob), model_listing.PIECE)
    )
    return model_listing.encode([model_listing.ListedFile("bases", len(blob), hashes)])


def rate(schedule: str, learning_rate: float, epoch: int, epochs: int) -> np.float32:
    """Return the rate of an epoch (U7)."""
    x = epoch / epochs
    f = {"constant": 1.0, "linear": 1.0 - x, "cosine": 0.5 * (1.0 + math.cos(math.pi * x))}[schedule]
    return np.float32(learning_rate * f)


def _rates(schedule: str, learning_rate: float, epoch_updates: int, budget: int) -> dict[str, Any]:
    epochs = -(-budget // epoch_updates)
    chosen = sorted({0, 1, 2, epochs // 3, epochs // 2, epochs - 1} & set(range(epochs)))
    return {
        "schedule": schedule,
        "learning_rate": learning_rate,
        "epoch_updates": epoch_updates,
        "update_budget": budget,
        "epochs": epochs,
        "rates": [
            {"epoch": epoch, "bits": _bits(rate(schedule, learning_rate, epoch, epochs))} for epoch in chosen
        ],
    }


def _weights(
    schedule: str,
    cores: dict[int, list[tuple[int, int, int]]],
    factor: float,
    *,
    bases: bool = False,
    decay: float = 1.0,
) -> dict[str, Any]:
    """Weights of a matrix of 3 x 5 at rank 4, for layer 0, with random or published bases. `factor`: the
    learning rate, or of an organised run, whose rates are in its cores, scalar_delta."""
    rank, shape, delta = 4, (3, 5), 1 / 64 if schedule != "organised" else factor
    values = [1.0, -0.5, 3.0e-5, 1 / 3, -2.7182818, 0.1, 1e-8, -0.04, 12.5, 0.0, 7e-3, -0.9, 0.25, 1.5, -6.0]
    base = np.array(values, np.float32).reshape(shape)
    blob = published_bases(shape, rank)
    weights = base.astype(np.float64)
    terms, powers = [], [1.0]
    for _ in range(max(cores)):
        powers.append(powers[-1] * decay)
    for epoch in sorted(cores):
        core = np.zeros((rank, rank), object)
        for row, column, value in cores[epoch]:
            core[row, column] = value
        u, v = (
            seeds.basis_signs(RUN_ID, epoch, 0, side, size, rank).astype(object)
            for side, size in zip("UV", shape, strict=True)
        )
        if bases:
            entries = np.frombuffer(blob, np.int8).reshape(-1, rank).astype(object)
            u, v = entries[: shape[0]], entries[shape[0] :]
        scale = (
            delta * 2.0**-32 if schedule == "organised" else float(rate(schedule, factor, epoch, 4)) * delta
        )
        scale = scale * 2.0**-6 if bases else scale
        largest = int(np.abs(u).max() * np.abs(v).max())
        parts = [(1, core)]
        if float(np.abs(core.astype(np.float64)).sum()) * largest >= 2.0**53:
            places = (32, 0) if largest == 1 else (48, 32, 16, 0)
            width = 64 // len(places)
            parts = [(2**at, core >> at if at == places[0] else (core >> at) % 2**width) for at in places]
        for unit, part in parts:
            term = (u @ part @ v.T).astype(np.float64) * (scale * powers[max(cores) - epoch] * unit)
            weights = weights - term
        entries = [{"row": i, "column": j, "value": str(a)} for i, j, a in cores[epoch]]
        power = {"power": powers[max(cores) - epoch]} if decay != 1 else {}
        terms.append({"epoch": epoch, "scale": scale, **power, "core": entries})
    result = weights.astype(np.float32)
    return {
        "run_id": RUN_ID.hex(),
        "schedule": schedule,
        "learning_rate": factor if schedule != "organised" else None,
        "epochs": 4,
        "scalar_delta": delta,
        **({"decay": decay} if decay != 1 else {}),
        "rank": rank,
        "layer": 0,
        "bases": _blob(blob) if bases else None,
        "base": [[_bits(entry) for entry in row] for row in base],
        "terms": terms,
        "weights": [[_bits(entry) for entry in row] for row in result],
        "bfloat16": [[_bfloat16(entry) for entry in row] for row in result],
    }


def _blob(blob: bytes) -> dict[str, str]:
    listing = bases_listing(blob)
    digest = hashlib.blake2b(listing, digest_size=32, person=b"sfnode-bases").hexdigest()
    return {"blob": blob.hex(), "listing": listing.hex(), "digest": digest}


def _bits(value: np.float32) -> str:
    """Return the bits of a binary32 number in hexadecimal, the sign first."""
    return struct.pack(">f", value).hex()


def _bfloat16(value: np.float32) -> str:
    """Return the upper half of the bits after rounding to nearest, ties to even; of finite numbers."""
    bits = int(_bits(value), 16)
    return f"{(bits + 0x7FFF + (bits >> 16 & 1)) >> 16:04x}"


# -- manifest.json -----------------------------------------------------------------------------------

MANIFEST: dict[str, Any] = {
    "protocol": 1,
    "name": "sst2-opt",
    "admission": "open",
    "model": {
        "source": "builtin:tiny",
        "revision": "",
        "digest": "ab" * 32,
        "listing": "cd" * 32,
        "targets": ["model.decoder.layers.0.fc1:384x96", "model.decoder.layers.0.fc2:96x384"],
    },
    "task": {
        "kind": "classification",
        "template": "{sentence} It was",
        "label_field": "label",
        "verbalizer": {"1": "great", "0": "terrible", "é": "so-so", "z": "?"},
        "candidates_field": "",
        "completion": "",
        "messages_field": "messages",
        "metric": "",
        "max_tokens": 256,
    },
    "data": {
        "train": "hf:glue:sst2:train",
        "test": "",
        "train_limit": 1024,
        "train_min_words": 0,
        "test_limit": 0,
    },
    "training": {
        "rank": 32,
        "basis": "random",
        "epsilon": 0.001,
        "learning_rate": 6e-06,
        "schedule": "linear",
        "batch_size": 4,
        "epoch_updates": 1024,
        "update_budget": 4096,
        "scalar_bits": 16,
        "scalar_delta": 0.015625,
        "scalar_limit": 32767,
    },
}


OPEN: dict[str, Any] = MANIFEST | {
    "protocol": 2,
    "data": MANIFEST["data"] | {"validation": "", "validation_limit": 128},
    "open": {"quota": 2048, "work_bits": 21},
    "organised": {
        "organiser": "",
        "deputies": [],
        "votes": 1,
        "quota": 0,
        "subspace_epochs": 1,
        "private": False,
    },
    "extensions": {},
}

ORGANISED: dict[str, Any] = OPEN | {
    "admission": "organised",
    "open": {"quota": 0, "work_bits": 0},
    "data": OPEN["data"] | {"validation": "validation.tsv", "validation_limit": 0},
    "training": OPEN["training"] | {"schedule": "constant"},
    "organised": {
        "organiser": origin(SECRETS[0]).hex(),
        "deputies": [origin(bytes([number]) * 32).hex() for number in (2, 3, 4)],
        "votes": 2,
        "quota": 4096,
        "subspace_epochs": 16,
        "private": True,
    },
    "extensions": {"1": "", "77": "00ff"},
}


PUBLISHED: dict[str, Any] = OPEN | {
    "training": OPEN["training"] | {"basis": "published", "bases": bytes(range(32)).hex()}
}

CENTRED: dict[str, Any] = OPEN | {
    "task": OPEN["task"] | {"loss": "centred", "prior": [0, -65536, 2147483647, -2147483647]},
}

GROUPS: dict[str, Any] = OPEN | {"training": OPEN["training"] | {"group": 8}}

DECAYING: dict[str, Any] = ORGANISED | {"training": ORGANISED["training"] | {"decay": 0.99}}

SHARED_DATA: dict[str, Any] = OPEN | {
    "data": OPEN["data"]
    | {"train": "rows.tsv", "test": "rows.tsv", "validation": "more rows.jsonl", "validation_limit": 0}
    | {"digests": {"train": "12" * 32, "validation": "34" * 32}}
}

CHILD: dict[str, Any] = OPEN | {
    "model": OPEN["model"] | {"parent": {"run_id": "12" * 32, "epoch": 65535, "digest": "34" * 32}}
}

REWARD: dict[str, Any] = OPEN | {
    "task": OPEN["task"]
    | {
        "kind": "reward",
        "template": "{question}\n",
        "verbalizer": {},
        "verifier": {
            "kind": "sum",
            "terms": [
                {"weight": 0.25, "verifier": {"kind": "format", "contains": ["####"]}},
                {
                    "weight": 0.75,
                    "verifier": {
                        "kind": "extract",
                        "begin": "####",
                        "then": {"kind": "numeric", "column": "answer", "which": "first", "absolute": 0.5},
                    },
                },
            ],
        },
        "answer_tokens": 64,
        "temperature": 0.7,
        "stop": ["\n\n", "Q:"],
    }
}


def manifest_vectors() -> dict[str, Any]:
    """Return a manifest of version 1, eight of version 2, and fields that none of version 2 may have."""
    return {
        **_manifest(MANIFEST),
        "version 2": [
            {"admission": fields["admission"], **_manifest(fields)}
            for fields in (OPEN, ORGANISED, PUBLISHED, CENTRED, CHILD, GROUPS, SHARED_DATA, DECAYING, REWARD)
        ],
        "rates": [
            {"learning_rate": rate, "rate": str(units)}
            for rate, units in ((6e-6, 25770), (1e-3, 4294967), (1.5 * 2**-32, 2), (2.5 * 2**-32, 2))
        ],
        "invalid": _invalid_manifests(),
        "row_selections": [
            {"purpose": purpose, "rows": rows, "limit": limit, "chosen": _smallest(purpose, rows, limit)}
            for purpose in ("sfnode row selection", "sfnode validation rows")
            for rows, limit in ((10, 3), (1024, 8))
        ],
    }


def _smallest(purpose: str, rows: int, limit: int) -> list[int]:
    values = seeds.stream(seeds.derive_key(purpose.encode()), 0, rows).tolist()
    return [index for index, value in enumerate(values) if sum(other < value for other in values) < limit]


def _manifest(fields: dict[str, Any]) -> dict[str, Any]:
    canonical = msgpack.packb(_by_key(fields), use_bin_type=True)
    run_id = hashlib.blake2b(canonical, digest_size=32, person=b"sfnode-manifest").hexdigest()
    return {"manifest": fields, "canonical": canonical.hex(), "run_id": run_id}


def _invalid_manifests() -> list[dict[str, Any]]:
    """Return changes to the organised manifest that make it one to be refused, with the rules."""
    said, training = ORGANISED["organised"], ORGANISED["training"]
    organiser, deputies = said["organiser"], said["deputies"]
    changes: list[tuple[str, str, dict[str, Any]]] = [
        ("votes of half of the deputies", "O1", {"deputies": deputies[:2], "votes": 1}),
        ("more votes than deputies", "O1", {"votes": 4}),
        ("one deputy twice", "O1", {"deputies": [deputies[0]] * 3}),
        ("the organiser as a deputy", "O1", {"deputies": [organiser, *deputies[1:]]}),
        ("a key of all zeros", "O1", {"organiser": "00" * 32}),
        ("a deputy's key of small order", "O1", {"deputies": [_weak_origins()[3].hex(), *deputies[1:]]}),
        ("no quota", "O1", {"quota": 0}),
        ("no epoch for a subspace", "O1", {"subspace_epochs": 0}),
    ]
    return [
        *({"name": name, "rule": rule, "organised": change} for name, rule, change in changes),
        {"name": "an organiser in an open run", "rule": "O1", "admission": "open"},
        {
            "name": "published bases without a digest",
            "rule": "M1",
            "training": training | {"basis": "published"},
        },
        {
            "name": "a digest of bases that are random",
            "rule": "M1",
            "training": training | {"bases": "00" * 32},
        },
        {"name": "a group of one", "rule": "M1", "training": training | {"group": 1}},
        {"name": "too large a group", "rule": "M1", "training": training | {"group": 65}},
        {"name": "no groups, said", "rule": "M2", "training": training | {"group": 0}},
        {"name": "a decay that leaves nothing", "rule": "M1", "training": training | {"decay": 0.0}},
        {"name": "a decay above 1", "rule": "M1", "training": training | {"decay": 1.01}},
        {"name": "no decay, said", "rule": "M2", "training": training | {"decay": 1.0}},
        {"name": "work in an organised run", "rule": "M1", "open": {"quota": 0, "work_bits": 1}},
        {
            "name": "a quota of an open run in an organised one",
            "rule": "M1",
            "open": {"quota": 1, "work_bits": 0},
        },
        *(
            {"name": name, "rule": rule, "data": ORGANISED["data"] | {"digests": change}}
            for name, rule, change in _invalid_digests()
        ),
        *({"name": name, "rule": rule, "task": change} for name, rule, change in _invalid_losses()),
        *(
            {"name": name, "rule": rule, "task": REWARD["task"] | change}
            for name, rule, change in _invalid_rewards()
        ),
        {"name": "a critical extension", "rule": "M5", "extensions": {"2": ""}},
        {"name": "an extension with a leading zero", "rule": "M5", "extensions": {"01": ""}},
    ]


def _invalid_digests() -> list[tuple[str, str, dict[str, str]]]:
    return [
        ("a digest of data on the hub", "M1", {"train": "00" * 32}),
        ("a digest of data that there are not", "M1", {"test": "00" * 32}),
        ("a digest of data of no such role", "M1", {"validate": "00" * 32}),
        ("a short digest of data", "M1", {"validation": "00" * 31}),
        ("no digests of data, said", "M2", {}),
    ]


def _invalid_losses() -> list[tuple[str, str, dict[str, Any]]]:
    return [
        ("a loss that there is not", "M1", {"loss": "centered"}),
        ("an optional key with the value that it has without it", "M2", {"loss": "plain"}),
        ("a prior without a centred loss", "M1", {"prior": [0, 0, 0, 0]}),
        ("a prior without a part for each class", "M1", {"loss": "centred", "prior": [0, 0, 0]}),
        ("a part of a prior that is too large", "M1", {"loss": "centred", "prior": [0, 0, 0, 1 << 31]}),
    ]


def _invalid_rewards() -> list[tuple[str, str, dict[str, Any]]]:
    exact = {"kind": "exact", "column": "answer"}
    return [
        ("a verifier of a task whose answers are not written", "M1", {"kind": "text"}),
        ("rewards without a verifier", "M1", {"verifier": {}}),
        ("a verifier of no such kind", "M1", {"verifier": {"kind": "classifier"}}),
        (
            "a key of a verifier with the value that it has without it",
            "M2",
            {"verifier": exact | {"strip": True}},
        ),
        ("answers without tokens", "M1", {"answer_tokens": 0}),
        ("no room for a prompt", "M1", {"answer_tokens": 256}),
        ("too low a temperature", "M1", {"temperature": 0.01}),
        ("no temperature, said", "M2", {"temperature": 0.0}),
        ("too many texts that end an answer", "M1", {"stop": ["a"] * 9}),
        ("an empty text that ends an answer", "M1", {"stop": [""]}),
    ]


def _by_key(value: Any) -> Any:
    if isinstance(value, list):
        return [_by_key(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {key: _by_key(value[key]) for key in sorted(value, key=str.encode)}


# -- signing.json ------------------------------------------------------------------------------------

RUN = RunParameters(RUN_ID, epoch_updates=4, update_budget=40, scalar_bytes=2, scalar_limit=32767)
PARTS = (EpochScalars(0, (5, -7, 32767)), EpochScalars(1, (0, -32767)), EpochScalars(9, (1,)))


def signing_vectors() -> dict[str, Any]:
    return {
        "run_id": RUN_ID.hex(),
        "feeds": [
            _signed_feed(secret, number) for secret, number in zip(SECRETS, (0, 2**32 - 1), strict=True)
        ],
        "state_digests": [*(_digest(count) for count in (0, 1, 2)), _cut_digest()],
        "cards": [_signed_card(SECRETS[0], *names) for names in (("Ann", ""), ("Zürich 東", "The Owls"))],
        "work": [_work(Feed(origin(SECRETS[0]), number)) for number in (0, 1, 2**32 - 1)],
        "first_with_work": [_first_with_work(start, bits) for start, bits in ((0, 8), (2**32 - 1, 12))],
        "weak_origins": [origin.hex() for origin in _weak_origins()],
    }


def _signed_feed(secret: bytes, incarnation: int) -> dict[str, Any]:
    feed = Feed(origin(secret), incarnation)
    start = genesis(RUN_ID, feed)
    return {
        "secret": secret.hex(),
        **plain(feed),
        "genesis": start.hex(),
        "updates": _chain(start),
        "segments": [plain(segment) for segment in segments(secret, feed)],
        "forgeries": [
            {"what": what, "segment": plain(segment)}
            for what, segment in forgeries(segments(secret, feed)[-1])
        ],
    }


def _signed_card(secret: bytes, name: str, team: str) -> dict[str, Any]:
    card = Card(Feed(origin(secret), 7), 257, name, team, bytes(64))
    message = card_message(RUN_ID, card)
    signature = Ed25519PrivateKey.from_private_bytes(secret).sign(message)
    return {"card": plain(replace(card, signature=signature)), "signed": message.hex()}


def _chain(chain: bytes) -> list[dict[str, Any]]:
    links = []
    for epoch, scalars in PARTS:
        for scalar in scalars:
            chain = extend(chain, [EpochScalars(epoch, (scalar,))])
            links.append({"epoch": epoch, "scalar": scalar, "chain": chain.hex()})
    return links


def segments(secret: bytes, feed: Feed) -> list[Segment]:
    """Return the feed in three segments, then the last two joined, then all of it (SPEC S6)."""
    cuts = [(0, PARTS[:1]), (3, PARTS[1:2]), (5, PARTS[2:]), (3, PARTS[1:]), (0, PARTS)]
    return [_segment(secret, feed, first, parts) for first, parts in cuts]


def _segment(secret: bytes, feed: Feed, first: int, parts: tuple[EpochScalars, ...]) -> Segment:
    segment = Segment(seeds.feed_key(RUN_ID, *feed), first, parts, b"")
    upto = PARTS[: PARTS.index(parts[-1]) + 1]
    message = head_message(RUN_ID, feed, segment.stop, extend(genesis(RUN_ID, feed), upto))
    return replace(segment, signature=Ed25519PrivateKey.from_private_bytes(secret).sign(message))


def forgeries(whole: Segment) -> list[tuple[str, Segment]]:
    """Return segments that must not verify on an empty feed."""
    other_scalar = (EpochScalars(0, (5, -7, 32766)), *whole.parts[1:])
    other_epoch = (*whole.parts[:2], EpochScalars(8, (1,)))
    signature = bytes([whole.signature[0] ^ 1]) + whole.signature[1:]
    group_order = 2**252 + 27742317777372353535851937790883648493
    big = int.from_bytes(whole.signature[32:], "little") + group_order
    return [
        ("another scalar", replace(whole, parts=other_scalar)),
        ("another epoch", replace(whole, parts=other_epoch)),
        ("the last update cut off", replace(whole, parts=whole.parts[:2])),
        ("one bit of the signature", replace(whole, signature=signature)),
        (
            "S not below the group order",
            replace(whole, signature=whole.signature[:32] + big.to_bytes(32, "little")),
        ),
    ]


def _digest(count: int) -> dict[str, Any]:
    frontier = Frontier(RUN)
    for secret, parts in zip(SECRETS[:count], (PARTS, PARTS[:1]), strict=False):
        feed = Feed(origin(secret), 3)
        updates = sum(len(part.scalars) for part in parts)
        frontier.advance(feed, updates, extend(genesis(RUN_ID, feed), parts), parts[-1].epoch)
    return _written(frontier)


def _cut_digest() -> dict[str, Any]:
    """Return a feed that is cut at step 2, and one of which nothing counts."""
    frontier = Frontier(RUN)
    for secret, parts, at in zip(SECRETS, (PARTS, ()), (2, 0), strict=True):
        feed = Feed(origin(secret), 3)
        updates = sum(len(part.scalars) for part in parts)
        start = genesis(RUN_ID, feed)
        if updates:
            frontier.advance(feed, updates, extend(start, parts), parts[-1].epoch)
        frontier.cut(feed, at, extend(start, first_updates(PARTS, at)))
    return _written(frontier)


def _written(frontier: Frontier) -> dict[str, Any]:
    entries = [
        {
            **plain(s.feed),
            "next": s.next,
            "chain": s.chain.hex(),
            "cut": s.cut if s.cut_chain else None,
            "tag": s.claim().tag.hex(),
        }
        for s in frontier
    ]
    return {"frontier": entries, "digest": frontier.digest().hex()}


def _work(feed: Feed) -> dict[str, Any]:
    work = proof_of_work.value(RUN_ID, *feed)
    return {**plain(feed), "work": work.to_bytes(32, "big").hex()}


def _first_with_work(start: int, bits: int) -> dict[str, Any]:
    """Return the first incarnation from `start` on with so many bits of work (SPEC I1, S7)."""
    frontier = Frontier(replace(RUN, work_bits=bits))
    found = fresh(frontier, origin(SECRETS[0]), start)
    return {"start": start, "bits": bits, **plain(found)}


def _weak_origins() -> list[bytes]:
    """Return keys of small order, then encodings of y that are not below the prime (SPEC S5)."""
    prime = 2**255 - 19
    eight = 0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7
    values = [0, 1, prime - 1, eight, prime - eight, eight + 2**255, prime, prime + 1, prime + 3, 2**255 - 1]
    return [value.to_bytes(32, "little") for value in values]


# -- codec.json --------------------------------------------------------------------------------------


def codec_vectors() -> dict[str, Any]:
    valid: list[dict[str, Any]] = []
    for name, message, scalar_bytes in examples.messages():
        encoding = wire_codec.encode(message, scalar_bytes).hex()
        valid.append(
            {"name": name, "scalar_bytes": scalar_bytes, "message": plain(message), "encoding": encoding}
        )
    invalid = [
        {"name": name, "rule": rule, "encoding": encoding.hex()}
        for name, rule, encoding in examples.bad_encodings()
    ]
    return {"valid": valid, "invalid": invalid}


# -- sharing.json ------------------------------------------------------------------------------------

FILES = {
    "config.json": b"{}",
    "model.safetensors": bytes(model_listing.PIECE) + bytes(range(256)) * 4096 + b"the last piece",
}
"""The first piece of the second file is all zeros, the second counts bytes, the third is a few words."""


ROWS = b"text\tlabel\na fine day\t1\n"
"""A file of data (B9)."""


def sharing_vectors() -> dict[str, Any]:
    files = [_listed(name, content) for name, content in FILES.items()]
    encoded = model_listing.encode(files)
    pieces = [
        {"name": piece.name, "offset": piece.offset, "size": piece.size, "hash": piece.hash.hex()}
        for piece in model_listing.decode(encoded).pieces()
    ]
    rows = model_listing.encode([_listed("data", ROWS)])
    return {
        "listing": encoded.hex(),
        "hash": model_listing.hash_listing(encoded).hex(),
        "parts": pieces,
        "data": {"file": ROWS.decode(), "listing": rows.hex(), "digest": model_listing.hash_data(rows).hex()},
    }


def _listed(name: str, content: bytes) -> model_listing.ListedFile:
    cuts = range(0, len(content), model_listing.PIECE)
    hashes = b"".join(model_listing.hash_piece(content[cut : cut + model_listing.PIECE]) for cut in cuts)
    return model_listing.ListedFile(name, len(content), hashes)


# -- invitations.json --------------------------------------------------------------------------------


def invitation_vectors() -> dict[str, Any]:
    first, second = f"Qm{'a' * 44}", f"Qm{'b' * 44}"
    several = (
        f"/ip4/203.0.113.7/tcp/31337/p2p/{first}",
        f"/ip6/2001:db8::7/tcp/31337/p2p/{first}",
        f"/dns/run.example/tcp/31337/p2p/{second}",
        f"/ip4/203.0.113.7/tcp/31337/p2p/{first}/p2p-circuit/p2p/{second}",
    )
    valid = [invitation.invite(PROTOCOL_VERSION, RUN_ID, addresses) for addresses in (several[:1], several)]
    valid.append(replace(valid[0], ticket=invitation.Ticket(3, bytes(range(16)))))
    valid.append(replace(valid[0], url="https://run.example/reviews/run.json"))
    valid.append(replace(valid[2], url="http://[2001:db8::7]:8080"))
    link = invitation.write(valid[0])
    newer = bytes([invitation.VERSION + 1]) + b"whatever comes"
    return {
        "valid": [
            {
                "protocol": one.protocol,
                "run_id": one.run_id.hex(),
                "addresses": list(one.addresses),
                "ticket": [one.ticket.invitation, one.ticket.secret.hex()] if one.ticket else None,
                "url": one.url,
                "link": invitation.write(one),
            }
            for one in valid
        ],
        "invalid": [
            {
                "name": "a character differs",
                "rule": "N1",
                "link": f"{link[:40]}_{link[41:]}",
            },
            {"name": "the last character is missing", "rule": "N1", "link": link[:-1]},
            {"name": "another scheme", "rule": "N1", "link": link.replace("sfnode:", "https:")},
            {"name": "nothing in it", "rule": "N1", "link": "sfnode:"},
            {"name": "of a later version", "rule": "N2", "link": _link(newer)},
            {"name": "of version 0", "rule": "N2", "link": _link(b"\x00")},
            {"name": "without peers", "rule": "N3", "link": _link(_body(1, RUN_ID, []))},
            {"name": "a short run id", "rule": "N3", "link": _link(_body(1, RUN_ID[1:], [[first, ["/a"]]]))},
            {"name": "one peer twice", "rule": "N3", "link": _link(_body(1, RUN_ID, [[first, ["/a"]]] * 2))},
            {
                "name": "a ticket in a link of version 1",
                "rule": "N3",
                "link": _link(_body(1, RUN_ID, [[first, ["/a"]]], [1, bytes(16)])),
            },
            {
                "name": "a short secret",
                "rule": "N5",
                "link": _link(b"\x02" + _body(1, RUN_ID, [[first, ["/a"]]], [1, bytes(15)])[1:]),
            },
            {
                "name": "an empty ticket",
                "rule": "N5",
                "link": _link(b"\x02" + _body(1, RUN_ID, [[first, ["/a"]]], None)[1:]),
            },
            {
                "name": "a URL that is no web page",
                "rule": "N6",
                "link": _link(b"\x03" + _body(1, RUN_ID, [[first, ["/a"]]], None, "file:///etc/passwd")[1:]),
            },
            {
                "name": "a URL with credentials",
                "rule": "N6",
                "link": _link(b"\x03" + _body(1, RUN_ID, [[first, ["/a"]]], None, "https://a:b@c/")[1:]),
            },
            {"name": "a space in a way", "rule": "N3", "link": _link(_body(1, RUN_ID, [[first, ["/a b"]]]))},
        ],
    }


def _body(*fields: Any) -> bytes:
    return b"\x01" + bytes(msgpack.packb(fields, use_bin_type=True))


def _link(body: bytes) -> str:
    checksum = hashlib.blake2b(body, digest_size=4, person=b"sfnode-link").digest()
    return "sfnode:" + base64.urlsafe_b64encode(body + checksum).decode().rstrip("=")


# -- all ---------------------------------------------------------------------------------------------


def vectors() -> dict[str, str]:
    """Return the text of every file by its name."""
    files = {
        "seeds.json": seed_vectors(),
        "weights.json": weight_vectors(),
        "manifest.json": manifest_vectors(),
        "signing.json": signing_vectors(),
        "codec.json": codec_vectors(),
        "flood.json": conversations.conversations(),
        "sharing.json": sharing_vectors(),
        "invitations.json": invitation_vectors(),
        "organised.json": decided.organised_vectors(),
    }
    return {name: json.dumps(value, indent=1, ensure_ascii=False) + "\n" for name, value in files.items()}


if __name__ == "__main__":
    for name, text in vectors().items():
        (HERE / name).write_text(text, encoding="utf-8")
