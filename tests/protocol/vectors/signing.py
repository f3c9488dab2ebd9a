"""The vectors of signed feeds: chains, segments, forgeries, digests of the state, cards, proofs of work."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sfprotocol import seeds, signing
from sfprotocol.frontier import Frontier
from sfprotocol.messages import Card, EpochScalars, Feed, RunParameters, Segment
from sfprotocol.own_feed import fresh
from sfprotocol.segments import first_updates
from sfprotocol.signing import card_message, extend, genesis, head_message
from tests.protocol.vectors.plain import RUN_ID, SECRETS, origin, plain, weak_origins

RUN = RunParameters(RUN_ID, epoch_updates=4, update_budget=40, scalar_bytes=2, scalar_limit=32767)
PARTS = (EpochScalars(0, (5, -7, 32767)), EpochScalars(1, (0, -32767)), EpochScalars(9, (1,)))


def vectors() -> dict[str, Any]:
    return {
        "run_id": RUN_ID.hex(),
        "feeds": [
            _signed_feed(secret, number) for secret, number in zip(SECRETS, (0, 2**32 - 1), strict=True)
        ],
        "state_digests": [*(_digest(count) for count in (0, 1, 2)), _cut_digest()],
        "cards": [_signed_card(SECRETS[0], *names) for names in (("Ann", ""), ("Zürich 東", "The Owls"))],
        "work": [_work(Feed(origin(SECRETS[0]), number)) for number in (0, 1, 2**32 - 1)],
        "first_with_work": [_first_with_work(start, bits) for start, bits in ((0, 8), (2**32 - 1, 12))],
        "weak_origins": [origin.hex() for origin in weak_origins()],
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
    """Return the digest of a feed that is cut at step 2 and of one that is cut at step 0."""
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
    work = signing.work(RUN_ID, *feed)
    return {**plain(feed), "work": work.to_bytes(32, "big").hex()}


def _first_with_work(start: int, bits: int) -> dict[str, Any]:
    """Return the first incarnation, from `start` on, with `bits` bits of work (SPEC I1, S7)."""
    frontier = Frontier(replace(RUN, work_bits=bits))
    found = fresh(frontier, origin(SECRETS[0]), start)
    return {"start": start, "bits": bits, **plain(found)}
