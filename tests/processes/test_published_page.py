"""A published page in a real browser: its first screen and contrasts. Nothing moves, and nothing is
fetched."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from sfnode.publish.asking import NodeAnswers, PageContact
from sfnode.publish.page import PageSample
from sfnode.publish.site import PublishedFolder
from sfnode.store.log import UpdateLog
from sfprotocol.fields import NAMELESS, Names
from tests.processes.test_dashboard import PALE, SCREENS, artefacts, browser, program
from tests.publish.helpers import link_to
from tests.publish.runs import HOSTILE, manifest_of, write_run

__all__ = ["artefacts", "program"]

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

RUN = manifest_of(description="Tells good film reviews from bad ones.")
NAMES = [HOSTILE, NAMELESS, *(Names(f"Member {n}", f"Team {n % 3}") for n in range(10))]
SAMPLES = [
    PageSample("the cook was hardly clumsy . it was", "good", "bad", "good", 11, 0.0, 1.0),
    PageSample("nobody liked the songs . it was", "bad", "bad", "bad", 11, 1.0, 1.0),
]

FIRST = ["h1", ".lead", "#quality", ".huge"]
"""Parts that must be on the first screen: what the run is, and whether its model becomes better."""


@pytest.fixture
def page_file(tmp_path: Path) -> Path:
    write_run(tmp_path / "node", RUN, NAMES, updates=600, epochs=12)
    with UpdateLog.open(tmp_path / "node" / "updates.sqlite", RUN.run_id, read_only=True) as log:
        told = NodeAnswers(PageContact(link_to(RUN), (), "internet"), True, 1234.0, SAMPLES)
        site = PublishedFolder(tmp_path / "page", tmp_path / "node", title="Film reviews, read together")
        site.publish(RUN, log, told, datetime(2026, 11, 23, 12, tzinfo=UTC))
    return tmp_path / "page" / "index.html"


async def test_a_page_is_readable_on_every_screen_and_fetches_nothing(
    page_file: Path, program: str, artefacts: Path
) -> None:
    faults: list[str] = []
    async with browser(program) as chromium:
        for name in ("desktop", "desktop-dark", "phone"):
            screen = SCREENS[name]
            page = await chromium.new_page(**screen)
            page.on("console", lambda said: faults.append(said.text))
            page.on(
                "request", lambda asked: faults.append(asked.url) if asked.url != page_file.as_uri() else None
            )
            await page.goto(page_file.as_uri())
            await page.screenshot(path=artefacts / f"page-{name}.png", full_page=True)
            for part in FIRST:
                box = await page.locator(part).bounding_box()
                assert box, part
                assert box["y"] + box["height"] <= screen["viewport"]["height"], part
            assert await page.evaluate("document.documentElement.scrollWidth") <= screen["viewport"]["width"]
            assert await page.evaluate(PALE) == []
            assert await page.locator(".chart:visible").count() == 1
            await page.locator("summary", has_text="All 12 members").click()
            assert HOSTILE.name in await page.inner_text("details")
            await page.close()
    assert [one for one in faults if not one.startswith("data:image/svg")] == []
