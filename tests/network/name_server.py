"""A name server that answers every question with the same address, after a delay.

    python name_server.py ADDRESS SECONDS

Listens on 127.0.0.53, port 53, of its namespace. Questions about other record types get an empty answer,
after the same delay. Uses only the standard library, because it runs under `python -I -S`.
"""

from __future__ import annotations

import socket
import sys
import threading

ANSWER = bytes.fromhex("8180")
"""Flags: a response, recursion desired and available, no error."""

POINTER = bytes.fromhex("c00c")
"""Pointer to the name in the question, which begins at byte 12."""

A = 1


def reply(question: bytes, address: str) -> bytes:
    """Return the response to a question about one name (RFC 1035)."""
    end = question.index(0, 12) + 5
    asked = question[12:end]
    found = int.from_bytes(asked[-4:-2], "big") == A
    counts = b"".join(count.to_bytes(2, "big") for count in (1, found, 0, 0))
    record = (
        POINTER + asked[-4:] + (0).to_bytes(4, "big") + (4).to_bytes(2, "big") + socket.inet_aton(address)
    )
    return question[:2] + ANSWER + counts + asked + (record if found else b"")


def main(address: str, seconds: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.53", 53))
        print("ready", flush=True)
        while True:
            question, asker = server.recvfrom(4096)
            answer = reply(question, address)
            threading.Timer(float(seconds), server.sendto, (answer, asker)).start()


if __name__ == "__main__":
    main(*sys.argv[1:])
