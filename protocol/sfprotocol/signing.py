"""Chain hashes and Ed25519 signatures of feeds, and proofs of work (SPEC S1-S7, O13).

Every update extends its feed's hash chain; an origin signs the chain head after the last update of a segment.
The chain head commits to the run, the origin, the incarnation and every (step, epoch, scalar) since the empty
feed. So one signature vouches for all earlier updates of the feed. The signature of one branch of a fork does
not verify for the other branch.

A proof of work is a number for which the hash of run id, origin and number (the proof-of-work hash) is small.
In an organised run the number is the nonce of a join request. In an open run it is a feed's incarnation, so
that the feed's name is its proof.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Iterator

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from sfprotocol.messages import Card, EpochScalars, Feed

Sign = Callable[[bytes], bytes]
"""A function that signs a message with the node's own Ed25519 key; returns 64 bytes."""

Verify = Callable[[bytes, Feed, int, bytes, bytes], bool]
"""A function with the arguments and the result of `verifies`. A simulated swarm uses one with a cache, so
that it checks each signature once."""

_PRIME = 2**255 - 19
_ORDER_EIGHT = 0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7
_WEAK = {0, 1, _PRIME - 1, _ORDER_EIGHT, _PRIME - _ORDER_EIGHT}
"""The y-coordinates of the curve's eight points of small order. Anybody can sign for such a key."""

_CHAIN = b"sfnode-chain"
_HEAD = b"sfnode-head"
_CARD = b"sfnode-card"
_INTRODUCTION = b"sfnode-introduction"
_link = struct.Struct(">Ih").pack
_label = struct.Struct(">I").pack


def genesis(run_id: bytes, feed: Feed) -> bytes:
    """Return the chain hash of the feed before its first update (SPEC S1); 32 bytes."""
    name = run_id + feed.origin + feed.incarnation.to_bytes(8, "big")
    return hashlib.blake2b(name, digest_size=32, person=_CHAIN).digest()


def extend(chain: bytes, parts: Iterable[EpochScalars]) -> bytes:
    """Return the chain hash after these updates (SPEC S2).

    For each update, the new chain hash is BLAKE2b-256(chain | epoch as u32 | each scalar as i16), big-endian.
    """
    blake2b = hashlib.blake2b
    for epoch, scalars in parts:
        for told in scalars:
            if isinstance(told, int):
                link = _link(epoch, told)
            else:
                link = _label(epoch) + struct.pack(f">{len(told)}h", *told)
            chain = blake2b(chain + link, digest_size=32).digest()
    return chain


def head_message(run_id: bytes, feed: Feed, stop: int, chain: bytes) -> bytes:
    """Return the message that an origin signs: the chain head of its feed after `stop` updates (SPEC S3)."""
    return b"".join(
        (_HEAD, run_id, feed.origin, feed.incarnation.to_bytes(8, "big"), stop.to_bytes(8, "big"), chain)
    )


def sound(origin: bytes) -> bool:
    """Return whether this public key may be used: all implementations of Ed25519 agree on its signatures, and
    nobody can sign for it without the private key (SPEC S5)."""
    y = int.from_bytes(origin, "little") & ((1 << 255) - 1)
    return y < _PRIME and y not in _WEAK


def verifies(run_id: bytes, feed: Feed, stop: int, chain: bytes, signature: bytes) -> bool:
    """Return whether `signature` is the origin's valid signature over this chain head (SPEC S5)."""
    return signed_by(feed.origin, head_message(run_id, feed, stop, chain), signature)


def card_message(run_id: bytes, card: Card) -> bytes:
    """Return the message that an origin signs for a card (SPEC K1)."""
    numbers = card.feed.incarnation.to_bytes(8, "big") + card.step.to_bytes(8, "big")
    texts = (text.encode() for text in (card.name, card.team))
    lengths_and_texts = (bytes((len(text),)) + text for text in texts)
    return b"".join((_CARD, run_id, card.feed.origin, numbers, *lengths_and_texts))


def introduction_message(run_id: bytes, origin: bytes, peer: str) -> bytes:
    """Return the message that an origin signs to state that this peer is its node (SPEC L6)."""
    return b"".join((_INTRODUCTION, run_id, origin, peer.encode()))


def signed_by(origin: bytes, message: bytes, signature: bytes) -> bool:
    """Return whether `signature` was made with the key of `origin` over `message` (SPEC S5)."""
    if not sound(origin):
        return False
    try:
        Ed25519PublicKey.from_public_bytes(origin).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


WORK_BITS = 256
"""Number of bits of a proof-of-work hash."""

_WORK = b"sfnode-work"
_ASK_EVERY = 4096
"""Number of hashes computed between two calls of `interrupted`. They take some milliseconds."""


def work(run_id: bytes, origin: bytes, number: int) -> int:
    """Return the proof-of-work hash of a number, as an integer. A smaller hash takes more work to find."""
    named = run_id + origin + number.to_bytes(8, "big")
    return int.from_bytes(hashlib.blake2b(named, digest_size=WORK_BITS // 8, person=_WORK).digest(), "big")


def work_bound(bits: int) -> int:
    """Return the number below which a proof-of-work hash has at least `bits` leading zero bits."""
    return 1 << (WORK_BITS - bits)


def solutions(
    run_id: bytes,
    origin: bytes,
    below: int,
    numbers: Iterable[int],
    interrupted: Callable[[], bool] = lambda: False,
) -> Iterator[int]:
    """Yield those of `numbers` whose proof-of-work hash is less than `below`, until `interrupted` returns
    True."""
    begun = hashlib.blake2b(run_id + origin, digest_size=WORK_BITS // 8, person=_WORK)
    threshold = min(below, (1 << WORK_BITS) - 1).to_bytes(WORK_BITS // 8, "big")
    for tried, number in enumerate(numbers):
        if not tried % _ASK_EVERY and interrupted():
            return
        hasher = begun.copy()
        hasher.update(number.to_bytes(8, "big"))
        if hasher.digest() < threshold:
            yield number
