"""Whether the hub of models can be reached, found out in seconds.

Its library asks again and again before it gives up: for 24 s on a machine without a network, for 90 s where
the name server is silent. Opens a connection and closes it; what is fetched there, others know.
"""

from __future__ import annotations

import socket
import threading
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from huggingface_hub import constants

PATIENCE = 5.0
"""Seconds for the name and the connection: a lost first packet is sent again after 1 s, a second after 3."""

_PORTS = {"http": 80, "https": 443}


def silence() -> str:
    """Why nothing can be had from the hub; empty if a connection can be opened to it, or to the proxy that
    leads there."""
    if constants.HF_HUB_OFFLINE:
        return "it is not to be asked (HF_HUB_OFFLINE)"
    opened = threading.Event()
    knocking = threading.Thread(target=_knock, args=(_door(constants.ENDPOINT), opened), daemon=True)
    knocking.start()
    knocking.join(PATIENCE)  # a question to a name server cannot be called off, only left alone
    return "" if opened.is_set() else "it does not answer"


def _door(endpoint: str) -> tuple[str, int]:
    """Where connections to this address begin."""
    hub = urlsplit(endpoint)
    host = hub.hostname or ""
    proxies = {} if proxy_bypass(host) else getproxies()
    proxy = proxies.get(hub.scheme) or proxies.get("all")
    if not proxy:
        return host, hub.port or _PORTS[hub.scheme]
    way = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    return way.hostname or "", way.port or _PORTS.get(way.scheme, 1080)


def _knock(door: tuple[str, int], opened: threading.Event) -> None:
    try:
        socket.create_connection(door, PATIENCE).close()
    except (OSError, ValueError):  # ValueError: what is no host name, or no port
        return
    opened.set()
