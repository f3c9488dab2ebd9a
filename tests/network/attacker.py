"""A hostile libp2p peer: a process that takes orders on stdin and answers on stdout, in JSON.

    {"attack": NAME, "address": MULTIADDR, "run": HEX, "seconds": 5}  ->  {"attack": NAME, "opened": ..., ...}
    {"mute": "silent" | "stalled"}  ->  {"address": MULTIADDR}, later {"left": NAME, "after": SECONDS}

Each attack comes from a new identity, so that a ban for one does not prevent the next. The peer uses
`hivemind.P2P` directly, or the p2pd of this object where that is faster. It runs at low priority, because a
real attacker would have its own machine.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from hivemind.p2p import P2P
from hivemind.p2p.p2p_daemon_bindings.utils import write_pbmsg
from hivemind.proto import p2pd_pb2

from sfprotocol import wire_codec
from sfprotocol.messages import ManifestRequest
from tests.network.hostile_client import (
    CHUNK,
    FAILURES,
    LINK,
    PATIENCE,
    PING,
    REQUEST,
    Client,
    Stream,
    framed,
    hang_up,
)

HELD = 300
"""Maximum number of streams held open at a time, more than a node serves."""

CANCELLED = 2_500
"""Number of streams that `cancelled_streams` opens and cancels, ten times as many as a node serves at once.
If each left its buffer of 64 KiB, they would take 160 MB."""

AT_ONCE = 64
"""Number of streams that `cancelled_streams` opens at a time."""

ZEROS = bytes(1 << 16)
FRAMES_AT_ONCE = 64


async def garbage(client: Client) -> None:
    """Send random bytes from the start of a stream."""
    await client.again_and_again(LINK, lambda s: client.pour(s[1], CHUNK))


async def oversized_frame(client: Client) -> None:
    """Send the largest length that three bytes can encode, and data after it."""

    async def say(stream: Stream) -> None:
        stream[1].write(b"\xff\xff\xff")
        await client.pour(stream[1], ZEROS)

    await client.again_and_again(LINK, say)


async def oversized_call(client: Client) -> None:
    """Send 2^40 as the length of a call to hivemind's DHT, and data after it.

    The length is encoded in turn as hivemind does (8 bytes, with and without the type byte before them) and
    as p2pd does (a varint).
    """
    lengths = (
        b"\0" + (1 << 40).to_bytes(8, "big"),
        (1 << 40).to_bytes(8, "big"),
        b"\x80\x80\x80\x80\x80\x20",
    )

    async def say(stream: Stream) -> None:
        stream[1].write(lengths[client.did["opened"] % len(lengths)])
        await client.pour(stream[1], ZEROS)

    await client.again_and_again(PING, say)


async def truncated_frames(client: Client) -> None:
    """Open as many links as possible. Each link gets the beginning of a frame, and never its end."""
    held: list[Stream] = []
    while client.on_time:
        if len(held) >= HELD:
            await asyncio.sleep(0.1)
        elif stream := await client.open(LINK):
            with suppress(*FAILURES):
                stream[1].write(client.hello() + b"\x00\xff\xff" + b"x" * 100)
                await stream[1].drain()
            held.append(stream)
    for stream in held:
        await hang_up(stream)


async def malformed_messages(client: Client) -> None:
    """Send messages that cannot be decoded, after a valid Hello."""
    frames = b"".join(framed(os.urandom(40)) for _ in range(FRAMES_AT_ONCE))
    await client.again_and_again(LINK, lambda s: client.pour(s[1], client.hello() + frames))


async def unknown_messages(client: Client) -> None:
    """Send messages of a type that does not exist, after a valid Hello."""

    async def say(stream: Stream) -> None:
        stream[1].write(client.hello())
        await client.pour(stream[1], framed(b"\x91\x63") * FRAMES_AT_ONCE)

    await client.again_and_again(LINK, say)


async def replayed_messages(client: Client) -> None:
    """Send the node's own messages back to it, after a valid Hello, as fast as it reads them."""

    async def say(stream: Stream) -> None:
        reader, writer = stream
        writer.write(client.hello())
        heard: list[bytes] = []
        while client.on_time:
            with suppress(TimeoutError):
                async with asyncio.timeout(0.3 if len(heard) < 2 else 0.001):
                    frame = await reader.readexactly(int.from_bytes(await reader.readexactly(3), "big"))
                    if frame[1] != 0:  # a second Hello would end the link
                        heard = [*heard[-15:], frame]
            if heard:
                burst = b"".join(map(framed, heard))
                writer.write(burst)
                async with asyncio.timeout(1.0):
                    await writer.drain()
                client.did["bytes"] += len(burst)

    await client.again_and_again(LINK, say)


async def questions(client: Client) -> None:
    """Ask for the run's manifest repeatedly."""

    async def say(stream: Stream) -> None:
        stream[1].write(framed(wire_codec.encode(ManifestRequest())))
        async with asyncio.timeout(PATIENCE):
            client.did["answered"] += len(await stream[0].read()) > 0

    await asyncio.gather(*(client.again_and_again(REQUEST, say) for _ in range(8)))


async def cancelled_streams(client: Client) -> None:
    """Open CANCELLED streams, and close each before it is answered. This attack has no time limit."""
    order = p2pd_pb2.Request(
        type=p2pd_pb2.Request.STREAM_OPEN,
        streamOpen=p2pd_pb2.StreamOpenRequest(peer=client.peer.to_bytes(), proto=[LINK]),
    )
    connect = client.p2p._client.control.daemon_connector.open_connection

    async def some(count: int) -> None:
        for number in range(count):
            try:
                reader, writer = await connect()
                await write_pbmsg(writer, order)
                if number % 2:  # close half of them only when the stream exists
                    async with asyncio.timeout(PATIENCE):
                        await reader.read(1)
                client.did["opened"] += 1
                writer.transport.abort()
            except FAILURES:
                client.did["refused"] += 1

    await asyncio.gather(*(some(CANCELLED // AT_ONCE + 1) for _ in range(AT_ONCE)))


ATTACKS: dict[str, Callable[[Client], Awaitable[None]]] = {
    attack.__name__: attack
    for attack in (
        garbage,
        oversized_frame,
        oversized_call,
        truncated_frames,
        malformed_messages,
        unknown_messages,
        replayed_messages,
        questions,
        cancelled_streams,
    )
}


async def attack(order: dict[str, Any]) -> dict[str, Any]:
    client = Client(order["address"], bytes.fromhex(order["run"]))
    await client.connect()
    client.until = time.monotonic() + order["seconds"]
    try:
        began = time.monotonic()
        await ATTACKS[order["attack"]](client)
        return {"attack": order["attack"], "seconds": time.monotonic() - began, **client.did}
    finally:
        await client.p2p.shutdown()


async def mute(how: str, made: list[P2P]) -> dict[str, Any]:
    """Start a peer that sends nothing: "silent" from the start, or "stalled" after its Hello."""
    p2p = await P2P.create(dht_mode="client", auto_nat=False, nat_port_map=False)

    async def hold(_: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        began = time.monotonic()
        with suppress(*FAILURES):
            if how == "stalled":
                writer.write(
                    framed(await reader.readexactly(int.from_bytes(await reader.readexactly(3), "big")))
                )
            while await reader.read(1 << 16):
                pass
        tell({"left": how, "after": time.monotonic() - began})

    made.append(p2p)
    await p2p.add_binary_stream_handler(LINK, hold)
    return {"address": str((await p2p.get_visible_maddrs())[0])}


def tell(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


async def main() -> None:
    os.nice(10)
    loop = asyncio.get_running_loop()
    orders = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    mutes: list[P2P] = []
    tell({"ready": True})
    while line := await orders.readline():
        order = json.loads(line)
        try:
            tell(await (mute(order["mute"], mutes) if "mute" in order else attack(order)))
        except Exception as error:  # reported by the test
            tell({"failed": f"{type(error).__name__}: {error}"})
    await asyncio.gather(*(p2p.shutdown() for p2p in mutes))


if __name__ == "__main__":
    asyncio.run(main())
