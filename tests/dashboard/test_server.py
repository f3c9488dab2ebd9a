"""Tests of the web dashboard's server: answers, access, and its static files."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from sfnode.control.client import Client
from sfnode.control.server import serve
from sfnode.dashboard.server import STATIC, now_in_words, serving
from sfnode.dashboard.snapshot import Mood, Now
from sfnode.errors import Code
from sfnode.organising.evaluation.health import published
from sfnode.schema import views
from sfnode.store.data_folder import Layout
from tests.control.organised_node import OrganisedNode
from tests.node.helpers import Swarm
from tests.organising.bench import scores
from tests.refusals import refused
from tests.schema.helpers import organised, rewarded, status
from tests.wording import has

TOKEN = 'a "token"; that, nobody & guesses #1 = 100 %?'
HEADERS = {"Authorization": f"Bearer {TOKEN}"}


@asynccontextmanager
async def page_of(swarm: Swarm) -> AsyncIterator[str]:
    """Serve the dashboard with TOKEN, and yield its address without it."""
    a = await swarm.first()
    await a.until(lambda: a.known > 20)
    async with serving(a.client, "127.0.0.1", 0, TOKEN) as url:
        yield url.partition("?")[0]


@pytest.fixture
async def visitor() -> AsyncIterator[aiohttp.ClientSession]:
    """Yield an HTTP session with the token."""
    async with aiohttp.ClientSession(headers=HEADERS) as session:
        yield session


async def fetch(
    url: str, *, session: aiohttp.ClientSession | None = None, method: str = "GET", **options: Any
) -> tuple[int, str, Any]:
    """Return the status, the text and the headers of an answer."""
    if session is None:
        async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as fresh:
            return await fetch(url, session=fresh, method=method, **options)
    async with session.request(method, url, **options) as response:
        return response.status, await response.text(), response.headers


async def test_the_page_and_its_answers_are_served_with_a_strict_policy(
    swarm: Swarm, visitor: aiohttp.ClientSession
) -> None:
    async with page_of(swarm) as url:
        assert url.startswith("http://127.0.0.1:")
        answers = ["now", "curves", "origins", "history", "about", "own", "quality", "samples", "timeline"]
        for path in ("", "style.css", "app.js", "icon.svg", *(f"api/{name}" for name in answers)):
            status, text, headers = await fetch(url + path, session=visitor)
            assert (status, bool(text)) == (200, True), path
            policy = headers["Content-Security-Policy"]
            has(policy, "default-src 'none'", "require-trusted-types-for 'script'")
            assert "unsafe" not in policy
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert "Access-Control-Allow-Origin" not in headers
        assert (await fetch(url + "nothing", session=visitor))[0] == 404
        assert (await fetch(url + "..%2fserver.py", session=visitor))[0] == 404


async def test_what_it_answers_is_what_the_control_socket_says(
    swarm: Swarm, visitor: aiohttp.ClientSession
) -> None:
    async with page_of(swarm) as url, visitor as session:
        async with session.get(url + "api/now") as response:
            now = await response.json()
        assert now["status"]["run_id"] == swarm.run.run_id.hex()
        assert now["progress"]["update_budget"] == 100_000
        assert [node["kind"] for node in now["swarm"]["nodes"]] == ["self"]
        assert now["doing"][0].startswith("Training: ")
        assert now["doing"][1] == "warn"
        assert now["together"] == ["no neighbours", "warn"]
        assert (now["agreement"], now["limits"]) == ({}, {})
        async with session.post(url + "api/evaluate", json={}) as response:
            assert [m["base"] for m in (await response.json())["measurements"]] == [True, True, False]
        async with session.post(url + "api/evaluate", json={}) as response:
            assert [m["base"] for m in (await response.json())["measurements"]] == [True, True, False, False]
        async with session.post(url + "api/generate", json={"prompt": "It was", "tokens": 64}) as response:
            assert (await response.json())["base"] == "It was"
        async with session.post(url + "api/generate", json={"prompt": ""}) as response:
            assert (response.status, "prompt" in await response.text()) == (400, True)


async def test_it_directs_the_node_only_with_its_owner_s_consent_and_a_token(
    swarm: Swarm, visitor: aiohttp.ClientSession
) -> None:
    a = await swarm.first()
    orders = {"pause": {"seconds": 60}, "resume": {}, "limits": {"cpu": 50}, "leave": {}}
    async with serving(a.client, "127.0.0.1", 0, TOKEN) as url:
        page = url.partition("?")[0]
        for name, body in orders.items():
            status, text, _ = await fetch(f"{page}api/{name}", session=visitor, method="POST", json=body)
            assert (status, "--dashboard-control" in text) == (403, True), name
        for name in (*orders, "finish", "stop"):
            for path in (name, f"api/{name}", f"api/../{name}"):
                refusal = await fetch(page + path, session=visitor, method="POST", json={})
                assert refusal[0] in (403, 404, 405), path
        assert json.loads((await fetch(page + "api/about", session=visitor))[1])["control"] is False
    async with serving(a.client, "127.0.0.1", 0, control=True) as url:
        page, _, token = url.partition("?token=")
        for name, body in orders.items():
            assert (await fetch(f"{page}api/{name}", method="POST", json=body))[0] == 401, name
        headers = {"Authorization": f"Bearer {token}"}

        async def order(name: str, body: Any) -> int:
            return (await fetch(f"{page}api/{name}", method="POST", json=body, headers=headers))[0]

        assert json.loads((await fetch(page + "api/about", headers=headers))[1])["control"] is True
        assert await order("pause", {}) == 200
        assert (await a.client.status()).paused_by == ["asked"]
        assert await order("resume", {}) == 200
        assert await order("limits", {"cpu": 50}) == 200
        assert (await a.client.limits()).cpu == 50
        for name, body in (("pause", {"seconds": -1}), ("limits", {"nothing": 1}), ("limits", [1])):
            assert await order(name, body) in (400, 409), body
        assert await order("leave", {}) == 200
        await a.ended()


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
async def test_there_is_a_token_wherever_it_listens_as_others_use_this_machine_too(
    swarm: Swarm, host: str
) -> None:
    a = await swarm.first()
    async with serving(a.client, host, 0) as url, serving(a.client, host, 0) as other:
        page, _, token = url.partition("?token=")
        assert len(token) >= 32
        assert token not in other
        here = page.replace("0.0.0.0", "127.0.0.1")
        question = {"method": "POST", "json": {"prompt": "a"}}
        assert (await fetch(here + "api/generate", **question))[0] == 401
        headers = {"Authorization": f"Bearer {token}"}
        assert (await fetch(here + "api/generate", headers=headers, **question))[0] == 200


async def test_without_its_token_nobody_sees_anything(swarm: Swarm) -> None:
    async with page_of(swarm) as bare:
        for path in ("", "app.js", "api/now", "?token=wrong"):
            status, text, _ = await fetch(bare + path)
            assert status == 401
            assert "needs its token" in text
        for headers in ({"Authorization": TOKEN[:-1]}, {"Cookie": "sfnode-1=a; =; ;;"}):
            assert (await fetch(bare + "api/now", headers=headers))[0] == 401, headers
        posted = {"method": "POST", "json": {"prompt": "a"}}
        assert (await fetch(bare + "api/generate", **posted))[0] == 401
        assert (await fetch(bare + "api/generate", params={"token": TOKEN}, **posted))[0] == 401
        assert (await fetch(bare + "api/now", headers=HEADERS))[0] == 200
        port = int(bare.split(":")[2].partition("/")[0])  # bytes that are no text are a wrong token, too
        for header in (b"Authorization: Bearer \xff\xfe", b"Cookie: sfnode-%d=\xff" % port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(
                b"GET /api/now HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n" + header + b"\r\n\r\n"
            )
            assert (await reader.read()).startswith(b"HTTP/1.1 401 "), header
            writer.close()
            await writer.wait_closed()


async def test_the_address_with_the_token_opens_the_page_and_the_browser_keeps_it(swarm: Swarm) -> None:
    a = await swarm.first()
    async with (
        serving(a.client, "127.0.0.1", 0, TOKEN) as url,
        aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as session,
    ):
        async with session.get(url, allow_redirects=False) as response:
            assert (response.status, response.headers["Location"]) == (303, "/")
            cookie = response.headers["Set-Cookie"]
        has(cookie, "HttpOnly", "SameSite=Lax")
        assert "guesses" not in cookie
        bare = url.partition("?")[0]
        assert (await fetch(bare, session=session))[0] == 200
        assert (await fetch(bare + "api/now", session=session))[0] == 200


async def test_what_the_browser_keeps_opens_no_other_dashboard_and_none_after_a_restart(swarm: Swarm) -> None:
    """Browsers send cookies to all ports of the machine, so also to servers of other users."""
    a = await swarm.first()
    async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session:
        async with (
            serving(a.client, "127.0.0.1", 0, TOKEN) as url,
            session.get(url, allow_redirects=False) as response,
        ):
            ((name, kept),) = response.cookies.items()
            port, bare = int(name.removeprefix("sfnode-")), url.partition("?")[0]
            assert (await fetch(bare, headers={"Cookie": f"{name}={kept.value}"}))[0] == 200
        async with serving(a.client, "127.0.0.1", port, TOKEN):
            assert (await fetch(bare, headers={"Cookie": f"{name}={kept.value}"}))[0] == 401


async def test_a_name_that_a_stranger_has_pointed_here_is_refused(
    swarm: Swarm, visitor: aiohttp.ClientSession
) -> None:
    async with page_of(swarm) as url:
        port = url.split(":")[2].rstrip("/")
        for host in (f"evil.example:{port}", "evil.example", "", "[", "127.0.0.1.evil.example"):
            status, text, _ = await fetch(url + "api/now", session=visitor, headers={"Host": host})
            assert (status, "known under that name" in text) == (421, True), host
        for host in (f"localhost:{port}", f"127.0.0.1:{port}", f"[::1]:{port}"):
            assert (await fetch(url + "api/now", session=visitor, headers={"Host": host}))[0] == 200


async def test_a_page_of_another_site_cannot_make_the_node_work(
    swarm: Swarm, visitor: aiohttp.ClientSession
) -> None:
    async with page_of(swarm) as url:
        question: Any = {"session": visitor, "method": "POST", "data": b'{"prompt": "a"}'}
        json = {"Content-Type": "application/json"}
        for headers in (
            {"Content-Type": "text/plain"},
            {"Content-Type": "application/x-www-form-urlencoded"},
            json | {"Sec-Fetch-Site": "cross-site"},
            json | {"Sec-Fetch-Site": "same-site"},
            json | {"Origin": "http://evil.example"},
            json | {"Origin": "null"},
            json | {"Origin": url.rstrip("/").replace("127.0.0.1", "localhost")},
        ):
            for path in ("api/generate", "api/evaluate"):
                assert (await fetch(url + path, headers=headers, **question))[0] == 403, headers
        own = json | {"Sec-Fetch-Site": "same-origin", "Origin": url.rstrip("/")}
        assert (await fetch(url + "api/generate", headers=own, **question))[0] == 200
        elsewhere = {"Sec-Fetch-Site": "cross-site"}
        assert (await fetch(url + "api/history", session=visitor, headers=elsewhere))[0] == 403
        assert (await fetch(url, session=visitor, headers=elsewhere))[0] == 200  # a link to it


async def test_a_node_that_is_gone_is_said_so_and_a_busy_port_too(swarm: Swarm) -> None:
    absent = Client(Layout(swarm.folder / "nobody").control_socket)
    async with serving(absent, "127.0.0.1", 0, TOKEN) as url:
        status, text, _ = await fetch(url.partition("?")[0] + "api/now", headers=HEADERS)
        assert (status, "no node answers" in text) == (503, True)
        with refused(Code.PORT_IN_USE):
            async with serving(absent, "127.0.0.1", int(url.split(":")[2].partition("/")[0])):
                pass


def test_the_files_load_nothing_from_elsewhere_and_never_take_text_for_markup() -> None:
    for file in STATIC.iterdir():
        text = file.read_text()
        links = set(re.findall(r"(?:https?:)?//[\w.-]+\.\w+[^\s\"')]*", text)) - {
            "http://www.w3.org/2000/svg"
        }
        assert not links, file
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|style=", text
        ), file


async def test_an_organised_run_is_told_with_its_alarms_and_its_curve(tmp_path: Path) -> None:
    node = OrganisedNode()
    node.decide(published(0, scores(0.5), base=True), published(0, scores(0.9)), published(1, scores(0.3)))
    progress = views.Progress.model_construct()
    itself = views.SwarmNode(peer="a", kind="self", role="trainer", known=900, lag=0)
    alone = views.Swarm(nodes=[itself], edges=[])
    now = Now(status(role="trainer", **organised()), progress, alone)
    answer = now_in_words(now)
    assert answer["alarms"] == [("SF070: the run gets worse: so much. Do this first. Then that.", Mood.BAD)]
    assert (answer["trained"].name, answer["moved"]) == ("loss", "")
    rewards = now_in_words(now._replace(status=status(role="trainer", **rewarded())))
    assert rewards["trained"] == ("mean reward", True)
    assert rewards["moved"] == "The weights have moved by 18 %."
    node.api.status = lambda: now.status
    close = await serve(node.api, tmp_path / "control.sock")
    async with serving(Client(tmp_path / "control.sock"), "127.0.0.1", 0, TOKEN) as url:
        code, text, _ = await fetch(url.partition("?")[0] + "api/quality", headers=HEADERS)
    await close()
    told = json.loads(text)["quality"]
    assert (code, [(one["x"], one["value"]) for one in told["points"]]) == (200, [(0, 0.9), (1, 0.3)])
    assert told["headline"][0].startswith("Better by 34.8 points, but below its best: ")
    assert told["headline"][1] == "warn"
