"""The runtime at ten times its speed: intervals are short, nothing else is different."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop
from runtime_helpers import Swarm

from sfnode.runtime import book, history, leaving, links, node, pump, road
from sfprotocol import machine, sync


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "CHECK_INTERVAL", 0.05)
    monkeypatch.setattr(road, "LONELY_INTERVAL", 0.05)
    monkeypatch.setattr(road, "RESTART_SPACING", 0.05)
    monkeypatch.setattr(road, "RESTART_PAUSE", 0.05)
    monkeypatch.setattr(book, "BACKOFF_FIRST", 0.1)
    monkeypatch.setattr(pump, "LAST_WORDS", 0.2)
    monkeypatch.setattr(machine, "SYNC_INTERVAL", 0.1)
    monkeypatch.setattr(sync, "WANT_TIMEOUT", 1.0)
    monkeypatch.setattr(sync, "FULL_SUMMARY_BASE", 0.2)
    monkeypatch.setattr(machine, "ASK_TIMEOUT", 2.0)
    monkeypatch.setattr(node, "ASK_TIMEOUT", 2.0)
    monkeypatch.setattr(leaving, "SETTLE_TIME", 0.5)
    monkeypatch.setattr(history, "LEAST_AGE", 0.0)
    monkeypatch.setattr(history, "SPARING", 0)


@pytest.fixture
async def swarm(tmp_path: Path) -> AsyncIterator[Swarm]:
    """A run of a hundred thousand updates, nobody in it yet."""
    made = Swarm(tmp_path)
    yield made
    await made.stop()


@pytest.fixture
async def swarm_of(tmp_path: Path) -> AsyncIterator[Callable[..., Swarm]]:
    """`swarm_of(run, faults)`: as `swarm`, for another run or on another network."""
    made: list[Swarm] = []

    def make(*arguments: Any) -> Swarm:
        made.append(Swarm(tmp_path, *arguments))
        return made[-1]

    yield make
    for one in made:
        await one.stop()


@pytest.fixture(autouse=True)
def no_complaints_of_asyncio(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No `Task exception was never retrieved` and the like, neither during a test nor after it."""
    yield
    gc.collect(1)
    complaints = [r.getMessage() for when in ("setup", "call", "teardown") for r in caplog.get_records(when)
                  if r.name == "asyncio" and r.levelno >= logging.WARNING]  # fmt: skip
    assert complaints == []
