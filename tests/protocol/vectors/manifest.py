"""The vectors of manifests: their bytes, their ids and invalid ones. The encoder is written from the rule."""

from __future__ import annotations

import hashlib
from typing import Any

import msgpack

from sfprotocol import seeds
from tests.protocol.vectors.plain import SECRETS, origin, weak_origins

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
    "protocol": 3,
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

HEADED: dict[str, Any] = OPEN | {
    "model": OPEN["model"] | {"targets": ["score:2x3"]},
    "task": OPEN["task"] | {"kind": "sequence-classification"},
    "training": OPEN["training"] | {"basis": "features", "features": "AYABGAAAfwAB"},
}

CENTRED: dict[str, Any] = OPEN | {
    "task": OPEN["task"] | {"loss": "centred", "prior": [0, -65536, 2147483647, -2147483647]}
}

GROUPS: dict[str, Any] = OPEN | {"training": OPEN["training"] | {"group": 8}}

FORMATS: dict[str, Any] = OPEN | {
    "training": OPEN["training"] | {"epsilons": {"bfloat16": 0.0078125, "float16": 0.004}}
}

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


def vectors() -> dict[str, Any]:
    """Return a manifest of version 1, eight of version 2, and invalid changes to one of version 2."""
    return {
        **manifest_vector(MANIFEST),
        "version 2": [
            {"admission": fields["admission"], **manifest_vector(fields)}
            for fields in (
                *(OPEN, ORGANISED, PUBLISHED, HEADED, CENTRED, CHILD, GROUPS),
                *(FORMATS, SHARED_DATA, DECAYING, REWARD),
            )
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


def manifest_vector(fields: dict[str, Any]) -> dict[str, Any]:
    """Return a manifest with its bytes and its run id (M2, M3)."""
    canonical = msgpack.packb(_by_key(fields), use_bin_type=True)
    run_id = hashlib.blake2b(canonical, digest_size=32, person=b"sfnode-manifest").hexdigest()
    return {"manifest": fields, "canonical": canonical.hex(), "run_id": run_id}


def _invalid_manifests() -> list[dict[str, Any]]:
    """Return changes that make the organised manifest invalid, with the broken rules."""
    said, training = ORGANISED["organised"], ORGANISED["training"]
    organiser, deputies = said["organiser"], said["deputies"]
    changes: list[tuple[str, str, dict[str, Any]]] = [
        ("votes of half of the deputies", "O1", {"deputies": deputies[:2], "votes": 1}),
        ("more votes than deputies", "O1", {"votes": 4}),
        ("one deputy twice", "O1", {"deputies": [deputies[0]] * 3}),
        ("the organiser as a deputy", "O1", {"deputies": [organiser, *deputies[1:]]}),
        ("a key of all zeros", "O1", {"organiser": "00" * 32}),
        ("a deputy's key of small order", "O1", {"deputies": [weak_origins()[3].hex(), *deputies[1:]]}),
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
        {"name": "features without their table", "rule": "M1", "training": training | {"basis": "features"}},
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
