"""Tests of the control socket and its client: answers of a running node, and errors for invalid requests."""

from __future__ import annotations

import asyncio
import io
import socket
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from sfnode.control import client as client_module
from sfnode.control.client import Client
from sfnode.errors import Code, UserError
from sfnode.schema.measurements import Evaluation, NodeEvaluation
from tests.node.helpers import SmallEngine, Swarm
from tests.refusals import refused
from tests.swarm.helpers import COMMONEST, PROBE


async def ask(path: Path, method: str, route: str, body: bytes | None = None) -> tuple[int, Any]:
    """Send a request without a client. Return the status, and the JSON of the answer."""
    async with (
        aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path))) as session,
        session.request(method, f"http://node{route}", data=body and io.BytesIO(body)) as response,
    ):
        return response.status, await response.json()


async def test_status_tells_who_and_where_and_how_far(swarm: Swarm) -> None:
    a, b = await swarm.first(), await swarm.join("b")
    await b.until(lambda: b.machine.own in a.machine.frontier and a.machine.own in b.machine.frontier)
    status = await b.client.status()
    assert status.run_id == swarm.run.run_id.hex()
    assert (status.peer, status.addresses, status.role) == ("b", [b.address], "trainer")
    assert status.own_updates <= status.known <= b.known
    assert status.feed_count == 2
    assert status.own_updates <= status.contributed <= status.known
    (link,) = status.links
    assert (link.peer, link.role) == ("a", "trainer")
    assert status.bytes_sent > status.segment_bytes_sent > 0
    assert status.log_bytes > 0


async def test_digest_is_that_of_the_cores_at_that_very_moment(swarm: Swarm) -> None:
    """This also holds while updates arrive. The digest never mixes two moments."""
    a, b = await swarm.first(), await swarm.join("b")
    await b.until(lambda: b.known > 50)
    for node in (a, b) * 10:
        counted = await node.node.model.ask(lambda engine: len(engine.applied))  # type: ignore[attr-defined]
        assert counted[0].known == counted[1]
    answer = await a.client.digest()
    assert len(answer.core_digest) == 64


async def test_evaluate_measures_the_base_or_the_model_as_of_now(swarm: Swarm) -> None:
    a = await swarm.first()
    await a.until(lambda: a.known > 10)
    base = await a.client.evaluate(base=True, limit=5)
    assert (base.value, base.low, base.high, base.count, base.digest) == (0.0, 0.0, 0.1, 5, None)
    now = await a.client.evaluate()
    assert now.value > 10
    assert (now.low, now.high) == (now.value - 1, now.value + 1)
    assert len(now.digest) == 64
    assert (base.probe, now.probe) == (None, None)


async def test_a_linear_probe_stands_beside_the_model_if_it_is_asked_for(swarm: Swarm) -> None:
    a = await swarm.first()
    await a.until(lambda: a.node.model.loaded)
    a.engine.probe = lambda limit: PROBE
    a.engine.baselines = lambda limit: (COMMONEST,)
    found = await a.client.evaluate(probe=True)
    assert (found.probe, found.baselines) == (PROBE, (COMMONEST,))
    assert (await a.client.evaluate(base=True, probe=True)).probe is None


async def test_the_status_says_what_the_model_is_asked_until_it_has_answered(swarm: Swarm) -> None:
    a = await swarm.first()
    await a.until(lambda: a.node.model.loaded)
    a.engine.endless = True
    asking = asyncio.create_task(a.client.evaluate())
    await a.until(lambda: a.engine.measuring.is_set())
    doing = (await a.client.status()).doing
    assert doing.what == "measuring the model on the test rows"
    assert 0 <= doing.seconds < 60
    a.engine.endless = False
    await asking
    assert (await a.client.status()).doing is None


async def test_the_status_does_not_take_waiting_for_a_step_for_what_is_asked(swarm: Swarm) -> None:
    swarm.node("a", make_engine=SmallEngine)
    a = await swarm.first()
    await a.until(lambda: a.engine and a.engine.stepping.is_set())
    a.engine.endless = True
    asking = asyncio.create_task(a.client.evaluate())
    await a.until(lambda: bool(a.node.model._asked))
    assert (await a.client.status()).doing is None
    a.engine.steps.release(1_000)
    await a.until(lambda: a.engine.measuring.is_set())
    assert (await a.client.status()).doing
    a.engine.endless = False
    await asking


async def test_an_evaluation_that_fails_is_an_answer_and_not_the_end(swarm: Swarm) -> None:
    a = await swarm.first()
    await a.until(lambda: a.known > 0)

    def missing(limit: int, wanted: object) -> Evaluation:
        raise UserError(Code.DATA_NOT_FOUND, "there are no test rows", "")

    a.engine.evaluate = missing
    with pytest.raises(UserError) as refusal:
        await a.client.evaluate()
    assert "there are no test rows" in refusal.value.what
    a.engine.evaluate = lambda limit, wanted: 1 / 0
    assert await ask(a.layout.control_socket, "POST", "/evaluate") == (
        500,
        {"error": "ZeroDivisionError: division by zero"},
    )
    known = a.known
    await a.until(lambda: a.known > known)


async def test_a_loss_that_is_no_number_survives_the_way(swarm: Swarm) -> None:
    a = await swarm.first()
    await a.until(lambda: a.known > 0)
    inf, nan = float("inf"), float("nan")
    odd = Evaluation(metric="perplexity", value=inf, low=1.0, high=inf, loss=nan, count=1)
    a.engine.evaluate = lambda limit, wanted: odd
    answer = await a.client.evaluate()
    assert answer.value == float("inf")
    assert answer.loss != answer.loss
    assert "NaN" in NodeEvaluation.model_dump_json(answer)


async def test_nonsense_is_answered_with_an_error(swarm: Swarm) -> None:
    a = await swarm.first()
    for method, route, body, status, word in (
        ("POST", "/evaluate", b"{", 400, "JSON"),
        ("POST", "/evaluate", b"[]", 400, "the request"),
        ("POST", "/evaluate", b'{"limit": -1}', 400, "limit"),
        ("POST", "/evaluate", b'{"bass": true}', 400, "bass"),
        ("POST", "/evaluate", bytes(2_000_000), 413, "Large"),
        ("GET", "/nothing", None, 404, "Not Found"),
        ("GET", "/leave", None, 405, "Not Allowed"),
    ):
        answered, answer = await ask(a.layout.control_socket, method, route, body)
        assert (answered, word in answer["error"]) == (status, True), (method, route, body and body[:20])


async def test_the_socket_is_its_users_alone_and_goes_with_the_node(swarm: Swarm) -> None:
    a = await swarm.first()
    path = a.layout.control_socket
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    await a.client.leave()
    await a.ended()
    assert not path.exists()


async def test_a_socket_that_a_killed_node_left_is_no_obstacle(swarm: Swarm) -> None:
    a = swarm.node("a")
    a.folder.mkdir()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(a.layout.control_socket))
    with refused(Code.NODE_NOT_RUNNING):
        await a.client.status()
    await swarm.first()
    assert (await a.client.status()).peer == "a"


# -- the client ----------------------------------------------------------------------------------------


async def test_without_a_node_the_client_says_where_it_looked(tmp_path: Path) -> None:
    for path in (tmp_path / "control.sock", tmp_path / ("long" * 50) / "control.sock"):
        with refused(Code.NODE_NOT_RUNNING, str(path.parent)):
            await Client(path).status()


@asynccontextmanager
async def impostor(path: Path, text: str, delay: float = 0.0) -> AsyncIterator[None]:
    """Answer every request at a socket with this text."""

    async def handle(_: web.BaseRequest) -> web.Response:
        await asyncio.sleep(delay)
        return web.Response(text=text)

    runner = web.ServerRunner(web.Server(handle), shutdown_timeout=0.05)
    await runner.setup()
    await web.UnixSite(runner, str(path)).start()
    yield
    await runner.cleanup()


@pytest.mark.parametrize("text", ["", "hello", "{}", '{"version": 3}'])
async def test_an_answer_of_something_else_is_an_error(tmp_path: Path, text: str) -> None:
    async with impostor(tmp_path / "control.sock", text):
        with refused(Code.NODE_NOT_ANSWERING, "another version"):
            await Client(tmp_path / "control.sock").status()


async def test_a_node_that_does_not_answer_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "ANSWER_DEADLINE", 0.05)
    async with impostor(tmp_path / "control.sock", "{}", delay=1):
        with refused(Code.NODE_NOT_ANSWERING):
            await Client(tmp_path / "control.sock").leave()


async def test_a_question_under_way_does_not_hold_up_the_end(swarm: Swarm) -> None:
    a = swarm.node("a", make_engine=SmallEngine)
    await swarm.first()
    await a.until(lambda: a.engine and a.engine.stepping.is_set())
    asking = asyncio.create_task(a.client.evaluate())
    await a.until(lambda: a.node.model.thread and a.node.model.thread._open)
    await a.stop()
    with refused(Code.NODE_NOT_RUNNING):
        await asking
    a.engine.steps.release()  # it ends the step that the stopped node has not finished
