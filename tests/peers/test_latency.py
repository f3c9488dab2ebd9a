"""Introductions of neighbours: an origin counts only for the peer for which it has signed (SPEC L6)."""

from __future__ import annotations

import asyncio

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sfnode.peers.latency import ECHO, NeighbourLatencies, introduced, introduction

RUN_ID = b"r" * 32
KEY = Ed25519PrivateKey.from_private_bytes(b"k" * 32)
ORIGIN = KEY.public_key().public_bytes_raw()
SAID = introduction(RUN_ID, ORIGIN, "QmAda", KEY.sign)


def test_a_peer_shows_its_origin() -> None:
    assert SAID.startswith(ECHO)
    assert introduced(RUN_ID, "QmAda", SAID) == ORIGIN


@pytest.mark.parametrize(
    ("run_id", "peer", "answer"),
    [
        (RUN_ID, "QmEve", SAID),
        (b"x" * 32, "QmAda", SAID),
        (RUN_ID, "QmAda", ECHO),
        (RUN_ID, "QmAda", SAID[:-1]),
        (RUN_ID, "QmAda", SAID + b"x"),
        (RUN_ID, "QmAda", ECHO + bytes(96)),
    ],
)
def test_nobody_is_taken_for_an_origin_that_has_not_signed_for_this_peer_and_run(
    run_id: bytes, peer: str, answer: bytes
) -> None:
    assert introduced(run_id, peer, answer) is None


class Silent:
    """A transport on which nobody answers."""

    async def request(self, address: str, frame: bytes) -> bytes:
        return await asyncio.get_running_loop().create_future()


async def test_no_measurement_outlives_the_node_even_if_somebody_still_looks_at_it() -> None:
    tasks = asyncio.all_tasks()
    latency = NeighbourLatencies(Silent(), RUN_ID)  # type: ignore[arg-type]
    latency.look({"QmAda": "/ip4/127.0.0.1/tcp/1/p2p/QmAda"})
    assert asyncio.all_tasks() > tasks
    await latency.stop()
    latency.look({"QmEve": "/ip4/127.0.0.1/tcp/1/p2p/QmEve"})
    assert asyncio.all_tasks() == tasks
