"""A line with a delay: takes TCP connections and passes every byte on some time later, in both directions.

    python network_delay.py LISTEN_HOST LISTEN_PORT TARGET_HOST TARGET_PORT SECONDS

For kernels without netem. Prints a line when it listens. Standard library only: it runs under `python -I -S`.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress

CHUNK = 65_536
WINDOW = 64
"""Chunks under way in one direction; beyond that nothing more is read, as on a real line."""

Arrival = tuple[float, bytes]


async def take(reader: asyncio.StreamReader, line: asyncio.Queue[Arrival], seconds: float) -> None:
    """Note when each chunk is due at the other end; an empty one is the end."""
    clock = asyncio.get_running_loop().time
    chunk = b"something"
    while chunk:
        with suppress(OSError):
            chunk = b""
            chunk = await reader.read(CHUNK)
        await line.put((clock() + seconds, chunk))


async def hand_out(line: asyncio.Queue[Arrival], writer: asyncio.StreamWriter) -> None:
    clock = asyncio.get_running_loop().time
    with suppress(OSError):
        while (arrival := await line.get())[1]:
            await asyncio.sleep(max(0.0, arrival[0] - clock()))
            writer.write(arrival[1])
            await writer.drain()
    writer.close()


async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seconds: float) -> None:
    """One direction of one connection."""
    line: asyncio.Queue[Arrival] = asyncio.Queue(WINDOW)
    taking = asyncio.create_task(take(reader, line, seconds))
    await hand_out(line, writer)
    taking.cancel()


async def main(host: str, port: str, target: str, target_port: str, seconds: str) -> None:
    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(target, int(target_port))
        except OSError:
            writer.close()
            return
        there = carry(reader, far_writer, float(seconds))
        back = carry(far_reader, writer, float(seconds))
        await asyncio.gather(there, back)

    server = await asyncio.start_server(accept, host, int(port))
    print("listening", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
