"""The web page of a run's contacts: newcomers begin with it, and a node that is alone goes back to it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from sfnode.errors import Code, UserError
from sfnode.node import contacts_page
from sfnode.settings import Settings
from sfnode.store.data_folder import DataDir, open_data_dir
from sfnode.store.log import UpdateLog
from sfnode.transport.base import PeerRecord
from sfprotocol import invitation
from sfprotocol.invitation import Invitation
from sfprotocol.messages import OLDEST_VERSION
from tests.refusals import fails_with

PAGE = "https://run.example/run.json"
RUN = bytes(range(32))
MOVED = "/ip4/9.9.9.9/tcp/2/p2p/QmMoved"
GIVEN = "/ip4/9.9.9.9/tcp/1/p2p/QmGiven"


async def published(url: str) -> Invitation:
    assert url == PAGE
    return invitation.invite(OLDEST_VERSION, RUN, [MOVED])


async def gone(url: str) -> Invitation:
    raise UserError(Code.CONTACTS_UNUSABLE, f"nothing at {url}", "Ask again.")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[DataDir]:
    with open_data_dir(tmp_path / "node") as data_dir:
        yield data_dir


async def test_a_newcomer_tries_the_peers_of_the_page_before_those_of_the_link(folder: DataDir) -> None:
    settings = Settings(contacts_url=PAGE, peers=(GIVEN, MOVED))
    found = await contacts_page.followed(settings, folder, published)
    assert (found.peers, found.run_id) == ((MOVED, GIVEN), RUN.hex())


async def test_a_page_that_is_gone_costs_a_warning_only_if_the_link_has_peers(
    folder: DataDir, caplog: pytest.LogCaptureFixture
) -> None:
    settings = Settings(contacts_url=PAGE, peers=(GIVEN,))
    assert await contacts_page.followed(settings, folder, gone) == settings
    assert "SF055: nothing at https://run.example/run.json" in caplog.text
    with pytest.raises(UserError, match="nothing at"):
        await contacts_page.followed(Settings(contacts_url=PAGE), folder, gone)


async def test_a_page_of_another_run_leads_nowhere(folder: DataDir) -> None:
    with fails_with(Code.WRONG_RUN):
        await contacts_page.followed(Settings(contacts_url=PAGE, run_id="ff"), folder, published)


async def test_a_folder_that_has_its_run_does_not_wait_for_the_page(folder: DataDir) -> None:
    folder.manifest.touch()
    settings = Settings(contacts_url=PAGE)
    assert await contacts_page.followed(settings, folder, gone) == settings


def test_the_page_is_remembered_until_another_is_named(folder: DataDir) -> None:
    with UpdateLog.open(folder.log, RUN) as log:
        named = [contacts_page.known_url(given, log) for given in ("", PAGE, "", "https://new.example", "")]
    assert named == ["", PAGE, PAGE, "https://new.example", "https://new.example"]


async def test_a_node_without_neighbours_hears_of_the_peers_on_the_page(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(contacts_page, "ALONE", 0.0)
    monkeypatch.setattr(contacts_page.contacts, "fetch", published)
    links, heard = [1, 1, 0], asyncio.get_running_loop().create_future()
    work = contacts_page.keep_company(PAGE, RUN, lambda: links.pop(0), heard.set_result, Random(1))
    task = asyncio.create_task(work)
    assert await heard == [PeerRecord("QmMoved", (MOVED,), 0, 0)]
    assert links == []
    task.cancel()


async def test_a_page_that_does_not_help_is_asked_again_soon_at_first_then_ever_more_rarely(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(contacts_page.contacts, "fetch", gone)
    links, waits = [*[0] * 8, 1, 0, 0], list[float]()

    async def wait(seconds: float) -> None:
        waits.append(seconds)
        if not links:
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await contacts_page.keep_company(PAGE, RUN, lambda: links.pop(0), print, Random(1), wait)
    about = [15, 15, 30, 60, 120, 240, 300, 300, 300, 15, 15, 30]
    assert all(0.8 * usual <= wait <= 1.2 * usual for wait, usual in zip(waits, about, strict=True))
    assert len({wait / usual for wait, usual in zip(waits, about, strict=True)}) == len(about), "jitter"
