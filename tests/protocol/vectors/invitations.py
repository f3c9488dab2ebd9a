"""The vectors of invitation links, valid and invalid."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import replace
from typing import Any

import msgpack

from sfprotocol import invitation
from sfprotocol.messages import OLDEST_VERSION
from tests.protocol.vectors.plain import RUN_ID


def vectors() -> dict[str, Any]:
    first, second = f"Qm{'a' * 44}", f"Qm{'b' * 44}"
    several = (
        f"/ip4/203.0.113.7/tcp/31337/p2p/{first}",
        f"/ip6/2001:db8::7/tcp/31337/p2p/{first}",
        f"/dns/run.example/tcp/31337/p2p/{second}",
        f"/ip4/203.0.113.7/tcp/31337/p2p/{first}/p2p-circuit/p2p/{second}",
    )
    valid = [invitation.invite(OLDEST_VERSION, RUN_ID, addresses) for addresses in (several[:1], several)]
    valid.append(replace(valid[0], ticket=invitation.Ticket(3, bytes(range(16)))))
    valid.append(replace(valid[0], url="https://run.example/reviews/run.json"))
    valid.append(replace(valid[2], url="http://203.0.113.7:8080/~ann/100%25/"))
    link = invitation.write(valid[0])
    newer = bytes([invitation.VERSION + 1]) + b"whatever comes"
    return {
        "valid": [
            {
                "protocol": one.protocol,
                "run_id": one.run_id.hex(),
                "addresses": list(one.addresses),
                "ticket": [one.ticket.invitation, one.ticket.secret.hex()] if one.ticket else None,
                "url": one.url,
                "link": invitation.write(one),
            }
            for one in valid
        ],
        "invalid": [
            {"name": "a character differs", "rule": "N1", "link": f"{link[:40]}_{link[41:]}"},
            {"name": "the last character is missing", "rule": "N1", "link": link[:-1]},
            {"name": "another scheme", "rule": "N1", "link": link.replace("sfnode:", "https:")},
            {"name": "nothing in it", "rule": "N1", "link": "sfnode:"},
            {"name": "of a later version", "rule": "N2", "link": _link(newer)},
            {"name": "of version 0", "rule": "N2", "link": _link(b"\x00")},
            {"name": "without peers", "rule": "N3", "link": _link(_body(1, RUN_ID, []))},
            {"name": "a short run id", "rule": "N3", "link": _link(_body(1, RUN_ID[1:], [[first, ["/a"]]]))},
            {"name": "one peer twice", "rule": "N3", "link": _link(_body(1, RUN_ID, [[first, ["/a"]]] * 2))},
            {
                "name": "a ticket in a link of version 1",
                "rule": "N3",
                "link": _link(_body(1, RUN_ID, [[first, ["/a"]]], [1, bytes(16)])),
            },
            {
                "name": "a short secret",
                "rule": "N5",
                "link": _link(b"\x02" + _body(1, RUN_ID, [[first, ["/a"]]], [1, bytes(15)])[1:]),
            },
            {
                "name": "an empty ticket",
                "rule": "N5",
                "link": _link(b"\x02" + _body(1, RUN_ID, [[first, ["/a"]]], None)[1:]),
            },
            {
                "name": "a URL that is no web page",
                "rule": "N6",
                "link": _link(b"\x03" + _body(1, RUN_ID, [[first, ["/a"]]], None, "file:///etc/passwd")[1:]),
            },
            {
                "name": "a URL with credentials",
                "rule": "N6",
                "link": _link(b"\x03" + _body(1, RUN_ID, [[first, ["/a"]]], None, "https://a:b@c/")[1:]),
            },
            {
                "name": "a URL that a shell would interpret",
                "rule": "N6",
                "link": _link(
                    b"\x03" + _body(1, RUN_ID, [[first, ["/a"]]], None, "https://run.example/$(id)")[1:]
                ),
            },
            {"name": "a space in a way", "rule": "N3", "link": _link(_body(1, RUN_ID, [[first, ["/a b"]]]))},
            {"name": "a command in it", "rule": "N3", "link": _link(_body(1, RUN_ID, [[first, ["/`id`"]]]))},
        ],
    }


def _body(*fields: Any) -> bytes:
    return b"\x01" + bytes(msgpack.packb(fields, use_bin_type=True))


def _link(body: bytes) -> str:
    checksum = hashlib.blake2b(body, digest_size=4, person=b"sfnode-link").digest()
    return "sfnode:" + base64.urlsafe_b64encode(body + checksum).decode().rstrip("=")
