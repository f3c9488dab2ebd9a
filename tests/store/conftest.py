"""Fixtures for tests of the store: a log, and a swarm of an organised run whose nodes keep logs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sfnode.store.log import UpdateLog
from tests.store.helpers import RUN_ID
from tests.store.organised import Logged


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "updates.sqlite"


@pytest.fixture
def log(path: Path) -> Iterator[UpdateLog]:
    with UpdateLog.open(path, RUN_ID) as log:
        yield log


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Logged]:
    logged = Logged(tmp_path)
    yield logged
    logged.close_logs()
