"""Whether the model hub can be reached, found out in seconds.

Its library tries again and again before it gives up: for 24 s on a machine without a network, for 90 s where
the name server does not answer. Opens a connection and closes it; downloading is left to others.
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


def unreachable() -> str | None:
    """Return why nothing can be downloaded from the hub.

    None if a connection can be opened to it, or to the proxy that leads there.
    """
    if constants.HF_HUB_OFFLINE:
        return "it is not to be asked (HF_HUB_OFFLINE)"
    connected = threading.Event()
    address = _address(constants.ENDPOINT)
    thread = threading.Thread(target=_connect, args=(address, connected), daemon=True)
    thread.start()
    thread.join(PATIENCE)  # a query to a name server cannot be cancelled, only abandoned
    return None if connected.is_set() else "it does not answer"


def _address(endpoint: str) -> tuple[str, int]:
    """Return the host and port to connect to for this URL: its own, or its proxy's."""
    hub = urlsplit(endpoint)
    host = hub.hostname or ""
    proxies = {} if proxy_bypass(host) else getproxies()
    proxy = proxies.get(hub.scheme) or proxies.get("all")
    if not proxy:
        return host, hub.port or _PORTS[hub.scheme]
    via = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    return via.hostname or "", via.port or _PORTS.get(via.scheme, 1080)


def _connect(address: tuple[str, int], connected: threading.Event) -> None:
    try:
        socket.create_connection(address, PATIENCE).close()
    except (OSError, ValueError):  # ValueError: not a host name, or not a port
        return
    connected.set()
