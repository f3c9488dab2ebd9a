"""Packet loss, partitions and NAT in one network namespace: netfilter rules set without the program iptables.

    ip netns exec NAME python netfilter.py loss 0.05 | deaf [ADDRESS ...] | masquerade DEVICE | none

The kernel takes rules over a netlink socket (linux/netfilter/nf_tables.h). This module writes the messages
that `iptables-nft` writes for `-m statistic --mode random -j DROP`, `-s ADDRESS -j DROP` and `-j MASQUERADE`,
because a machine that can make namespaces may lack iptables. Each command replaces all earlier rules. Rules
are removed with their namespace, so there is nothing to clean up. Uses only the standard library, because it
runs under `python -I -S`.
"""

from __future__ import annotations

import socket
import struct
import sys

NETLINK_NETFILTER = 12
SUBSYSTEM = 10 << 8
NEW_TABLE, DELETE_TABLE, NEW_CHAIN, NEW_RULE = 0, 2, 3, 6
BATCH_BEGIN, BATCH_END = 0x10, 0x11
REQUEST, ACKNOWLEDGE, CREATE, APPEND = 0x1, 0x4, 0x400, 0x800
NESTED = 0x8000
IPV4 = 2
INPUT, POSTROUTING = 1, 4
FILTER_PRIORITY, NAT_PRIORITY = 0, 100
TABLE = "sfnode"

REGISTER = 1
OUT_DEVICE = 7
RANDOM = 1
IP_HEADER = 1
DROP_CODE = 0
DEVICE_NAME_BYTES = 16


def attribute(kind: int, value: bytes) -> bytes:
    """Return one netlink attribute, padded to four bytes."""
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def nested(kind: int, *values: bytes) -> bytes:
    return attribute(kind | NESTED, b"".join(values))


def text(kind: int, value: str) -> bytes:
    return attribute(kind, value.encode() + b"\0")


def number(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack(">I", value))


def message(kind: int, flags: int, sequence: int, *attributes: bytes, resource: int = 0) -> bytes:
    body = struct.pack("=BB", IPV4 if resource == 0 else 0, 0) + struct.pack(">H", resource)
    body += b"".join(attributes)
    return struct.pack("=IHHII", 16 + len(body), kind, flags | REQUEST, sequence, 0) + body


def expression(name: str, *attributes: bytes) -> bytes:
    return nested(1, text(1, name), nested(2, *attributes))


def equals(value: bytes) -> bytes:
    return expression("cmp", number(1, REGISTER), number(2, 0), nested(3, attribute(1, value)))


def drop() -> bytes:
    return expression("immediate", number(1, 0), nested(2, nested(2, number(1, DROP_CODE))))


def one_in(count: int) -> bytes:
    """Match one of `count` packets, at random."""
    chance = expression("numgen", number(1, REGISTER), number(2, count), number(3, RANDOM), number(4, 0))
    return chance + equals(bytes(4))


def coming_from(address: str) -> bytes:
    """Match packets with this source address in their IP header."""
    load = expression("payload", number(1, REGISTER), number(2, IP_HEADER), number(3, 12), number(4, 4))
    return load + equals(socket.inet_aton(address))


def leaving_by(device: str) -> bytes:
    name = device.encode().ljust(DEVICE_NAME_BYTES, b"\0")
    return expression("meta", number(1, REGISTER), number(2, OUT_DEVICE)) + equals(name)


def chain(name: str, kind: str, hook: int, priority: int) -> list[tuple[int, int, bytes]]:
    where = nested(4, number(1, hook), number(2, priority))
    return [(NEW_CHAIN, CREATE, text(1, TABLE) + text(3, name) + where + text(7, kind))]


def rule(chain_name: str, expressions: bytes) -> tuple[int, int, bytes]:
    return NEW_RULE, CREATE | APPEND, text(1, TABLE) + text(2, chain_name) + nested(4, expressions)


def commands(what: str, *arguments: str) -> list[tuple[int, int, bytes]]:
    """Return the messages that add the rules of command `what` to an empty table."""
    if what == "masquerade":
        into = rule("out", leaving_by(arguments[0]) + expression("masq"))
        return [*chain("out", "nat", POSTROUTING, NAT_PRIORITY), into]
    if what == "none":
        return []
    if what == "loss":
        matches = [one_in(round(1 / float(arguments[0])))]
    else:
        matches = [coming_from(address) for address in arguments] or [b""]
    dropped = [rule("in", match + drop()) for match in matches]
    return [*chain("in", "filter", INPUT, FILTER_PRIORITY), *dropped]


def put(*batch: tuple[int, int, bytes]) -> None:
    """Send a batch, which the kernel applies as a whole or not at all. Raises OSError with the kernel's error
    number."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER) as kernel:
        kernel.bind((0, 0))
        parts = [message(BATCH_BEGIN, 0, 0, resource=10)]
        for place, (kind, flags, attributes) in enumerate(batch, 1):
            parts.append(message(SUBSYSTEM | kind, flags | ACKNOWLEDGE, place, attributes))
        kernel.send(b"".join([*parts, message(BATCH_END, 0, len(batch) + 1, resource=10)]))
        kernel.settimeout(5)
        for _ in batch:
            code = -struct.unpack_from("=i", kernel.recv(65_536), 16)[0]
            if code:
                raise OSError(code, f"netfilter refuses: error {code}")


def main(what: str, *arguments: str) -> None:
    table = text(1, TABLE)
    put((NEW_TABLE, CREATE, table), (DELETE_TABLE, 0, table))  # there may be no table yet
    put((NEW_TABLE, CREATE, table), *commands(what, *arguments))


if __name__ == "__main__":
    main(*sys.argv[1:])
