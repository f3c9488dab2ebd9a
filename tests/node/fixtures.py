"""Fixtures of tests with whole nodes, at ten times their speed: intervals are short, nothing else differs.

A package that wants them imports them in its conftest.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sfnode import stats
from sfnode.modelshare import download
from sfnode.node import link_pump, organising, readiness
from sfnode.organising import organiser
from sfnode.peers import address_book, manager
from sfnode.transport.libp2p import health
from sfprotocol import anti_entropy, machine, pulls
from tests.node.helpers import Swarm
from tests.transport.helpers import no_complaints_of_asyncio

__all__ = ["no_complaints_of_asyncio"]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    quicken(monkeypatch)


def quicken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the intervals of nodes."""
    monkeypatch.setattr(manager, "CHECK_INTERVAL", 0.05)
    monkeypatch.setattr(manager, "LONELY_INTERVAL", 0.05)
    monkeypatch.setattr(health, "RESTART_SPACING", 0.05)
    monkeypatch.setattr(health, "RESTART_PAUSE", 0.05)
    monkeypatch.setattr(address_book, "BACKOFF_FIRST", 0.1)
    monkeypatch.setattr(link_pump, "LAST_FRAMES", 0.2)
    monkeypatch.setattr(machine, "SYNC_INTERVAL", 0.1)
    monkeypatch.setattr(pulls, "WANT_TIMEOUT", 1.0)
    monkeypatch.setattr(anti_entropy, "FULL_SUMMARY_BASE", 0.2)
    monkeypatch.setattr(machine, "ASK_TIMEOUT", 2.0)
    monkeypatch.setattr(readiness, "ASK_TIMEOUT", 2.0)
    monkeypatch.setattr(readiness, "SETTLE_TIME", 0.5)
    monkeypatch.setattr(stats, "MIN_AGE", 0.0)
    monkeypatch.setattr(stats, "AGE_FACTOR", 0)


def work_takes_no_time(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    """Make proofs of work easy, let organisers look often, and apply `changes` to their policy."""
    policy_of = organising.policy_of
    monkeypatch.setattr(organising, "WORK_BITS", 4)
    monkeypatch.setattr(
        organising, "policy_of", lambda *said: replace(policy_of(*said), work_bits=4, **changes)
    )
    monkeypatch.setattr(organiser, "LOOK_INTERVAL", 0.05)


@pytest.fixture
async def swarm(tmp_path: Path) -> AsyncIterator[Swarm]:
    """A run of 100,000 updates without nodes."""
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


def quicken_downloads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the intervals of downloads."""
    monkeypatch.setattr(download, "LOOK_INTERVAL", 0.05)
    monkeypatch.setattr(download, "MIN_PAUSE", 0.02)
    monkeypatch.setattr(download, "MAX_PAUSE", 0.1)
