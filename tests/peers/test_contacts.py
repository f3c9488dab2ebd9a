"""Contacts of a run on a web server: written files can be read, and wrong ones are refused."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from sfnode.errors import Code, UserError
from sfnode.peers import contacts
from sfprotocol import invitation
from tests.refusals import fails_with

RELAY = "/ip4/9.9.9.9/tcp/31337/p2p/QmRelay"
NODE = "/dns4/run.example/tcp/31337/p2p/QmNode"
SAID = {"link": "sfnode:x", "run_id": "ab" * 32, "protocol": 4, "addresses": [RELAY, NODE]}

Answer = Callable[[BaseHTTPRequestHandler], None]


@contextmanager
def web_server(answer: Answer) -> Iterator[str]:
    """Serve what `answer` writes; yield the address of the server."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def page(data: bytes) -> Answer:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.end_headers()
        request.wfile.write(data)

    return answer


async def test_what_one_writes_others_fetch(tmp_path: Path) -> None:
    contacts.write(tmp_path / "run.json", SAID, purpose="reviews that are read")
    with web_server(page(Path(tmp_path / "run.json").read_bytes())) as url:  # noqa: ASYNC240 (a test)
        said = await contacts.fetch(f"{url}/run.json")
    assert (said.run_id.hex(), said.addresses, said.ticket) == ("ab" * 32, (RELAY, NODE), None)
    assert json.loads(contacts.text(SAID, 0.0))["updated"] == "1970-01-01T00:00:00+00:00"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"<html>not found</html>",
        b"[" * 60_000,
        json.dumps(SAID | {"run_id": "ab"}).encode(),
        json.dumps(SAID | {"addresses": []}).encode(),
        json.dumps(SAID | {"addresses": ["run.example", 7]}).encode(),
        json.dumps(SAID | {"protocol": None}).encode(),
    ],
)
def test_what_is_no_run_json_is_refused(data: bytes) -> None:
    with fails_with(Code.CONTACTS_UNUSABLE):
        contacts.read(data, "https://run.example")


def test_of_many_contacts_as_many_are_taken_as_a_link_holds() -> None:
    many = [f"/ip4/9.9.9.9/tcp/{way}/p2p/Qm{peer}" for peer in range(100) for way in range(9)]
    said = contacts.read(json.dumps(SAID | {"addresses": many}).encode(), "")
    assert len(said.addresses) == invitation.MAX_PEERS * invitation.MAX_ADDRESSES


def redirecting(request: BaseHTTPRequestHandler) -> None:
    request.send_response(302)
    request.send_header("Location", "file:///etc/hostname")
    request.end_headers()


def missing(request: BaseHTTPRequestHandler) -> None:
    request.send_error(404)


@pytest.mark.parametrize("answer", [missing, redirecting, page(b" " * (contacts.MAX_FILE + 1))])
async def test_a_web_server_that_has_no_run_json_is_named_in_the_error(answer: Answer) -> None:
    with web_server(answer) as url, fails_with(Code.CONTACTS_UNUSABLE) as refusal:
        await contacts.fetch(url)
    assert url in refusal.value.what


async def test_a_web_server_that_is_not_there_or_never_ends_costs_a_bounded_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(contacts, "FETCH_DEADLINE", 0.2)

    ended = threading.Event()

    def hanging(_: BaseHTTPRequestHandler) -> None:
        ended.wait(5)

    with pytest.raises(UserError, match="refused"):
        await contacts.fetch("http://127.0.0.1:1/run.json")
    with web_server(hanging) as url:
        with pytest.raises(UserError) as refusal:
            await contacts.fetch(url)
        ended.set()
    assert refusal.value.code == Code.CONTACTS_UNUSABLE
