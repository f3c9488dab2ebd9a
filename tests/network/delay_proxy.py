"""A TCP proxy that forwards every byte with the same delay, in both directions.

    python delay_proxy.py LISTEN_HOST LISTEN_PORT TARGET_HOST TARGET_PORT SECONDS

For kernels without netem. Prints a line when it listens. Uses only the standard library, because it runs
under `python -I -S`.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress

CHUNK = 65_536
WINDOW = 64
"""Maximum number of chunks in flight in one direction. When it is reached, nothing more is read, as on a real
line."""

Arrival = tuple[float, bytes]


async def receive(reader: asyncio.StreamReader, line: asyncio.Queue[Arrival], seconds: float) -> None:
    """Queue each chunk with the time at which to deliver it. An empty chunk marks the end."""
    clock = asyncio.get_running_loop().time
    chunk = b"not empty"
    while chunk:
        with suppress(OSError):
            chunk = b""
            chunk = await reader.read(CHUNK)
        await line.put((clock() + seconds, chunk))


async def deliver(line: asyncio.Queue[Arrival], writer: asyncio.StreamWriter) -> None:
    clock = asyncio.get_running_loop().time
    with suppress(OSError):
        while (arrival := await line.get())[1]:
            await asyncio.sleep(max(0.0, arrival[0] - clock()))
            writer.write(arrival[1])
            await writer.drain()
    writer.close()


async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seconds: float) -> None:
    """Forward one direction of one connection, with a delay of `seconds`."""
    line: asyncio.Queue[Arrival] = asyncio.Queue(WINDOW)
    receiving = asyncio.create_task(receive(reader, line, seconds))
    await deliver(line, writer)
    receiving.cancel()


async def main(host: str, port: str, target: str, target_port: str, seconds: str) -> None:
    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(target, int(target_port))
        except OSError:
            writer.close()
            return
        there = forward(reader, far_writer, float(seconds))
        back = forward(far_reader, writer, float(seconds))
        await asyncio.gather(there, back)

    server = await asyncio.start_server(accept, host, int(port))
    print("listening", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
