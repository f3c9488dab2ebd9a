"""A hub on loopback, as much of one as the hub's library needs to read one repository."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

import pytest
from huggingface_hub import constants

POLL = 0.01
"""Seconds in which a server notices that it is to end."""

REVISION = "27dcfa74d334bc871f3234de431e71c6eeba5dd6"


class Offer(NamedTuple):
    """A file as this hub lists it, and what it sends."""

    listed: int
    content: bytes


class Hub(ThreadingHTTPServer):
    """As much of the hub as its library needs for one model or data set."""

    daemon_threads = True

    def __init__(self, offers: dict[str, Offer]) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.offers = offers
        self.sent: Counter[str] = Counter()
        """Bytes by file."""
        self.asked: list[str] = []
        """Paths that were asked for."""


class _Answers(BaseHTTPRequestHandler):
    server: Hub

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        if self.path.startswith("/api/"):
            self._tell_files()
            return
        name = self._name()
        self._head(name)
        with suppress(OSError):  # the library has hung up
            content = self.server.offers[name].content
            for start in range(0, len(content), 1 << 16):
                self.wfile.write(content[start : start + (1 << 16)])
                self.server.sent[name] += 1 << 16

    def do_HEAD(self) -> None:
        self._head(self._name(), length=True)

    def _name(self) -> str:
        return unquote(self.path.partition("?")[0].partition("/resolve/")[2].partition("/")[2])

    def _tell_files(self) -> None:
        sizes = {name: offer.listed for name, offer in self.server.offers.items()}
        tree = [{"type": "file", "path": name, "size": size, "oid": name} for name, size in sizes.items()]
        info = {"id": "nobody/model", "sha": REVISION,
                "siblings": [{"rfilename": name, "size": size} for name, size in sizes.items()]}  # fmt: skip
        body = json.dumps(tree if "/tree/" in self.path else info).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _head(self, name: str, *, length: bool = False) -> None:
        """A file comes without a length, as compressed ones do."""
        self.send_response(200)
        self.send_header("ETag", f'"{name.replace("/", "-")}"')
        self.send_header("X-Repo-Commit", REVISION)
        if length:
            self.send_header("Content-Length", str(self.server.offers[name].listed))
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


Offering = Callable[[dict[str, Offer]], Hub]


@pytest.fixture
def offering(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Offering]:
    """`offering(files)`: a hub with these files of any repository, and an empty cache."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    hubs: list[Hub] = []

    def start(offers: dict[str, Offer]) -> Hub:
        hubs.append(made := Hub(offers))
        threading.Thread(target=made.serve_forever, args=(POLL,), daemon=True).start()
        address = f"http://127.0.0.1:{made.server_port}"
        monkeypatch.setattr(constants, "ENDPOINT", address)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        return made

    yield start
    for one in hubs:
        one.shutdown()
        one.server_close()
