"""Tests of both clients, with and without validation, and of answers that are invalid."""

from __future__ import annotations

import asyncio
import inspect
import json
import math
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from sfnode import schema
from sfnode.control import client
from sfnode.control.client import FEEDS_PAGE, MAY_BE_NO_NUMBER, Client, SyncClient, plain, unchecked
from sfnode.errors import Code, UserError
from sfnode.limits import Limits
from sfnode.schema import status, views
from sfnode.schema.measurements import Evaluation
from tests.node.helpers import Swarm
from tests.refusals import refused

CALLS = [name for name, _ in inspect.getmembers(Client, inspect.iscoroutinefunction) if name[0] != "_"]


async def test_without_an_event_loop_the_answers_are_the_same(swarm: Swarm) -> None:
    a = await swarm.first(role="relay")
    path = a.layout.control_socket
    blocking, loop = SyncClient(path), Client(path)
    assert (await asyncio.to_thread(blocking.status)).run_id == (await loop.status()).run_id
    assert await asyncio.to_thread(blocking.digest) == await loop.digest()
    assert ((await loop.status()).state, (await loop.digest()).core_digest) == ("idle", None), "a relay"
    assert await asyncio.to_thread(blocking.every_feed) == await loop.every_feed() == []
    assert await asyncio.to_thread(blocking.limits) == await loop.limits()
    with refused(Code.BAD_OPTION, "a relay holds no model"):
        await asyncio.to_thread(blocking.evaluate)
    with pytest.raises(UserError, match="the node refuses: hours: '10-12' is not an interval"):
        await loop.limit({"hours": "10-12"})
    await asyncio.to_thread(blocking.leave)
    await a.ended()


async def test_unchecked_answers_have_the_same_fields(swarm: Swarm) -> None:
    a, b = await swarm.first(), await swarm.join("b")
    await b.until(lambda: b.machine.own in a.machine.frontier and a.machine.own in b.machine.frontier)
    loose = Client(b.layout.control_socket, checked=False)
    for name in ("status", "progress", "curves", "swarm", "origins", "limits"):
        seen = await getattr(loose, name)()
        model = type(await getattr(b.client, name)())
        assert list(vars(seen)) == list(model.model_fields)
        model.model_validate(plain(seen))
    assert (await loose.status()).links[0].peer == "a"


async def test_an_invitation_leads_to_the_run_and_to_this_node(swarm: Swarm) -> None:
    a = await swarm.first(role="relay")
    said = await a.client.invitation()
    assert (said.run_id, said.addresses) == (swarm.run.run_id.hex(), [a.address])
    assert said.link.startswith("sfnode:")


def test_both_clients_offer_the_same_calls() -> None:
    for name in CALLS:
        one, other = inspect.signature(getattr(Client, name)), inspect.signature(getattr(SyncClient, name))
        assert one == other, name
    assert {name for name in vars(SyncClient) if name[0] != "_"} == set(CALLS)


def test_making_a_client_touches_nothing(tmp_path: Path) -> None:
    Client(tmp_path / "nowhere" / "control.sock")
    SyncClient(tmp_path / "nowhere" / "control.sock")
    assert list(tmp_path.iterdir()) == []


def test_the_modules_of_the_schema_are_loaded_when_they_are_used() -> None:
    assert schema.status.Status is status.Status
    with pytest.raises(AttributeError, match="statue"):
        _ = schema.statue


def test_a_page_of_feeds_is_as_long_as_a_node_allows() -> None:
    assert FEEDS_PAGE == views.MAX_PAGE


# -- what is not validated -----------------------------------------------------------------------------


def models(module: Any) -> list[type[BaseModel]]:
    return [one for one in vars(module).values() if inspect.isclass(one) and issubclass(one, BaseModel)]


def test_every_number_that_json_may_have_no_word_for_is_read_as_one() -> None:
    """Rates, shares, times and sizes are always finite. Results of a model may be infinite or NaN."""
    times = ("rate", "seconds", "share", "per_second", "now", "interval", "differs_for", "latency", "uptime")
    finite = (*times, "noise", "clip", "delta", "evidence", "agreement", "bound")
    finite += ("cpu", "cores", "gpu", "busy", "celsius", "watts", "base_score")
    names = {
        name
        for model in (*models(status), *models(views), Evaluation)
        for name, field in model.model_fields.items()
        if float in flat(field.annotation) and model is not Limits
    }
    assert {name for name in names if not any(part in name for part in finite)} == set(MAY_BE_NO_NUMBER)


def flat(annotation: Any) -> set[Any]:
    """Return the types in an annotation."""
    return {annotation}.union(*(flat(part) for part in get_args(annotation)))


def test_a_name_like_a_number_stays_a_name_and_a_loss_becomes_a_number_again() -> None:
    text = json.dumps({"run_name": "NaN", "loss": "Infinity", "curve": {"loss": [None, 1.5, "NaN"]}})
    seen = unchecked(text.encode())
    assert (seen.run_name, seen.loss) == ("NaN", math.inf)
    assert seen.curve.loss[:2] == [None, 1.5]
    assert math.isnan(seen.curve.loss[2])


def test_a_field_that_is_missing_is_another_version_of_sfnode() -> None:
    with refused(Code.NODE_NOT_ANSWERING, "no field cores"):
        _ = unchecked(b'{"feeds": 3}').cores


# -- HTTP ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "received",
    [
        b"",
        b"hello",
        b"HTTP/1.1 200 OK\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: nine\r\n\r\n{}",
        b"HTTP/1.1 fine\r\nContent-Length: 2\r\n\r\n{}",
        b"SSH-2.0-OpenSSH\r\nContent-Length: 0\r\n\r\n",
    ],
)
def test_what_is_no_whole_answer_is_refused(received: bytes, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"."):
        client.http_response(received)
    with answering(tmp_path / "s", received), refused(Code.NODE_NOT_ANSWERING):
        SyncClient(tmp_path / "s").status()


def test_an_answer_is_read_to_its_end(tmp_path: Path) -> None:
    body = json.dumps(["x" * 300_000]).encode()
    received = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
    with answering(tmp_path / "s", received):
        assert SyncClient(tmp_path / "s", checked=False).status() == ["x" * 300_000]  # type: ignore[comparison-overlap]


@contextmanager
def answering(path: Path, received: bytes) -> Iterator[None]:
    """Listen on a socket, and answer one request with these bytes."""

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65_536)
            connection.sendall(received)

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        thread = threading.Thread(target=serve)
        thread.start()
        yield
        thread.join()
