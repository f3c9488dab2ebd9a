"""Simulated runs: an open run, and organised runs of a few seconds, with keys, policies and judgements.

Topologies are at the end.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from math import isqrt
from random import Random

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sfnode.manifest import FIRST_ORDER_VERSION, Manifest
from sfnode.manifest.sections import Data, Model, OrganisedSection
from sfnode.manifest.task import Task
from sfnode.manifest.training import Training
from sfnode.models.bases import FILE
from sfnode.organising.policy import Admission, OrganiserPolicy
from sfnode.organising.steps import Judgement, at_rate
from sfprotocol.decisions import RateFrom
from sfprotocol.messages import Feed
from sfprotocol.model_listing import ListedFile, encode, hash_bases, hash_piece
from sfprotocol.run_state import RunState
from sfprotocol.signing import Verify, verifies

MAX_REMEMBERED = 200_000
"""Maximum number of cached signatures. They take 40 MB."""


def signing_key(seed: int, name: str) -> Ed25519PrivateKey:
    """Return the key of the node called `name`, in the run with this seed."""
    secret = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=32, person=b"sfnode-sim").digest()
    return Ed25519PrivateKey.from_private_bytes(secret)


def origin_of(key: Ed25519PrivateKey) -> bytes:
    return key.public_key().public_bytes_raw()


def remembering() -> Verify:
    """Return a function that checks signatures as `verifies` does, with a cache of results. The oldest result
    is dropped first."""
    known: dict[tuple[bytes, Feed, int, bytes, bytes], bool] = {}

    def verify(run_id: bytes, feed: Feed, stop: int, chain: bytes, signature: bytes) -> bool:
        question = (run_id, feed, stop, chain, signature)
        answer = known.get(question)
        if answer is None:
            if len(known) >= MAX_REMEMBERED:
                del known[next(iter(known))]
            answer = known[question] = verifies(*question)
        return answer

    return verify


OPEN_RUN = Manifest(
    name="simulated",
    model=Model(source="none", digest="0" * 64, targets=("a:8x4", "b:4x8")),
    task=Task(kind="text", template="{text}"),
    data=Data(train="builtin:reviews:train"),
    training=Training(rank=4, epoch_updates=256, update_budget=1 << 20, scalar_limit=1000),
)

ORGANISER, SUCCESSOR = "organiser", "successor"
"""Names of the keys that sign decisions, before and after a succession."""

DEPUTIES = ("deputy-1", "deputy-2", "deputy-3")

VOTES = 2

RATE = 1 << 22
"""Rate of the first epoch, in units of 2^-32."""


def falling(run_state: RunState) -> Judgement:
    """Count all updates, at a rate that falls to 0 when the budget is reached."""
    left = max(0, run_state.budget - run_state.counted)
    judged = at_rate(RATE * left // max(1, run_state.budget))(run_state)
    return replace(judged, rates=tuple(_whole(run_state, rate) for rate in judged.rates))


def _whole(run_state: RunState, rate: RateFrom) -> RateFrom:
    """Return `rate` with the unit and the limit that its epoch has now."""
    return run_state.rate_from(rate.epoch)._replace(epoch=rate.epoch, rate=rate.rate)


POLICY = OrganiserPolicy(
    target_updates=48,
    longest_epoch=4.0,
    seal_wait=5.0,
    admission=Admission.ANYONE,
    admissions_per_minute=600.0,
    work_bits=0,
    quota=64,
    young_share=0.5,
    share=0.5,
    amend_after=40.0,
    checkpoint_epochs=3,
    update_forwards=8,
)
"""Policy for runs that last seconds."""

SELDOM = replace(POLICY, longest_epoch=12.0)
"""Policy for runs with elections. Such runs take minutes, so their epochs are longer."""

FACTORS = (0, 2048, 4096, 6963)
"""Factors of seals judged at random: 0, 1/2, 1 and 1.7."""


def blob(manifest: Manifest) -> bytes:
    """Return the bytes of a first-order run's published bases. The engine of integers does not use them."""
    _, rows, columns = manifest.core_shape
    targets = manifest.model.parsed_targets()
    return bytes(1 for t in targets for _ in range(t.out_features * rows + t.in_features * columns))


def first_order(manifest: Manifest, targets: int) -> Manifest:
    """Return the manifest with first-order updates, which have 16 cells for each of `targets` matrices."""
    numbers = {"estimator": "first-order", "basis": "published", "scalar_bits": 8, "scalar_limit": 127}
    limit = {"norm_limit": round(16 * math.sqrt(16 * targets))}
    model = manifest.model.model_copy(
        update={"targets": tuple(f"m{number}:8x4" for number in range(targets))}
    )
    training = manifest.training.model_copy(update=numbers | limit)
    made = manifest.model_copy(update={"protocol": 4, "model": model, "training": training})
    content = blob(made)
    listing = encode([ListedFile(FILE, len(content), hash_piece(content))])
    named = training.model_copy(update={"bases": hash_bases(listing).hex()})
    return made.model_copy(update={"training": named})


def manifest(seed: int) -> Manifest:
    """Return the manifest of an organised run with keys of this seed."""
    organised = OrganisedSection(
        organiser=origin_of(signing_key(seed, ORGANISER)).hex(),
        deputies=tuple(origin_of(signing_key(seed, name)).hex() for name in DEPUTIES),
        votes=VOTES,
        quota=POLICY.quota,
        subspace_epochs=4,
    )
    training = OPEN_RUN.training.model_copy(update={"learning_rate": RATE / 2**32})
    return OPEN_RUN.model_copy(
        update={"admission": "organised", "organised": organised, "training": training}
    )


def with_stand_ins(manifest: Manifest) -> Manifest:
    """Return the manifest in the protocol version that has stand-ins."""
    return manifest.model_copy(update={"protocol": FIRST_ORDER_VERSION})


def anything(run_state: RunState) -> Judgement:
    """Judge at random, seeded by the decisions, so that a restarted organiser makes the same judgement."""
    random, coming = Random(f"{run_state.decisions}/judge"), run_state.open_epoch + 1
    rates = {coming + random.randint(0, 3): random.randint(0, 1 << 23) for _ in range(random.randint(0, 2))}
    earlier = [skipped for number in range(len(run_state.members)) for skipped in run_state.skipped(number)]
    return Judgement(
        random.choice(FACTORS),
        frozenset(number for number in run_state.moved(run_state.sealed) if random.random() < 0.2),
        frozenset(skipped for skipped in earlier if random.random() < 0.5),
        tuple(_anyhow(_whole(run_state, RateFrom(*rate)), random) for rate in sorted(rates.items())),
    )


def _anyhow(rate: RateFrom, random: Random) -> RateFrom:
    """Return the rate of a first-order run with a random unit and limit."""
    if not rate.limit:
        return rate
    unit, limit = random.choice((1, 1 << 14, 1 << 18)), random.randint(rate.limit // 2, 2 * rate.limit)
    return rate._replace(unit=unit, limit=max(1, min(limit, 1 << 12)))


# -- topologies: functions from the names of nodes to pairs of neighbours -----------------------


Pairs = list[tuple[str, str]]

CYCLES = 3
"""Number of random rings through all nodes. Their union is the random regular graph of degree 6."""

LEAVES = 8
"""Number of neighbours of a star's middle: the links that may be opened to one node, minus some for nodes
that join later."""


def ring(names: Sequence[str], random: Random) -> Pairs:
    return [*pairwise(names), (names[-1], names[0])] if len(names) > 2 else list(pairwise(names))


def line(names: Sequence[str], random: Random) -> Pairs:
    return list(pairwise(names))


def star(names: Sequence[str], random: Random) -> Pairs:
    """Star around the first node or, with more than LEAVES other nodes, a star of stars."""
    return [(names[number // LEAVES], name) for number, name in enumerate(names[1:])]


def grid(names: Sequence[str], random: Random) -> Pairs:
    """Grid as square as possible, every node linked with the four around it."""
    width = max(1, isqrt(len(names)))
    beside = [(a, b) for n, (a, b) in enumerate(pairwise(names), 1) if n % width]
    return beside + list(zip(names, names[width:], strict=False))


def regular(names: Sequence[str], random: Random) -> Pairs:
    """Random connected graph: the union of CYCLES rings. Nodes have degree 6, or less where rings share a
    link."""
    pairs: dict[tuple[str, str], None] = {}
    for _ in range(CYCLES):
        order = list(names)
        random.shuffle(order)
        pairs.update(dict.fromkeys((min(pair), max(pair)) for pair in ring(order, random)))
    return list(pairs)


def bridge(names: Sequence[str], random: Random) -> Pairs:
    """Two random clusters with one link between them."""
    half = len(names) // 2
    one, other = names[:half], names[half:]
    return [*regular(one, random), *regular(other, random), (one[-1], other[0])]


TOPOLOGIES: dict[str, Callable[[Sequence[str], Random], Pairs]] = {
    "ring": ring,
    "grid": grid,
    "random": regular,
    "star": star,
    "line": line,
    "bridge": bridge,
}

MANAGED = "managed"
"""Topology without given pairs, in which every node finds its neighbours itself."""


def topologies() -> list[str]:
    """Return the names of all topologies."""
    return [*TOPOLOGIES, MANAGED]
