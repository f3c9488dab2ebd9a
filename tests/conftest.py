"""What all tests share: `--device`, threads that go back, Hypothesis without its deadline."""

from __future__ import annotations

import asyncio
import atexit
import gc
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import uvloop
from hypothesis import settings

from scripts import real_model as real_model_script
from sfnode.errors import Code, UserError

VARIABLE = "SFNODE_DEVICE"
"""The command line's own variable, so that processes which tests start inherit it."""

CACHE = "XDG_CACHE_HOME"
"""The variable by which the processes of tests remember together which models they have examined."""

ENGINE_PATIENCE = 15.0
"""Seconds for an engine to end what it does, on a busy machine."""

settings.register_profile("sfnode", deadline=None)  # a busy machine takes as long as it takes
settings.load_profile("sfnode")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`pytest --device cuda` runs the suite with the models on another device than the CPU."""
    parser.addoption("--device", default="", metavar="NAME", help="where models run, cpu if not given")


def pytest_configure(config: pytest.Config) -> None:
    os.environ["HF_HUB_OFFLINE"] = "1"  # the hub's library reads it once, when it is imported
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a script's background jobs ignore it
    if CACHE not in os.environ:  # as in the workers of pytest-xdist, which share it
        folder = tempfile.TemporaryDirectory(prefix="sfnode-cache-")
        atexit.register(folder.cleanup)
        os.environ[CACHE] = folder.name
    if name := config.getoption("--device"):
        os.environ[VARIABLE] = name


def pytest_collection_finish() -> None:
    """Keep the collector of garbage from looking, again and again, through what stays: modules and tests."""
    gc.collect()
    gc.freeze()


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Coroutines run on the daemon's own kind of event loop."""
    return {"uvloop": uvloop.new_event_loop}


def pytest_report_header(config: pytest.Config) -> str:
    return f"models run on: {os.environ.get(VARIABLE, 'cpu')}"


@pytest.fixture(autouse=True)
def no_engine_stays() -> Iterator[None]:
    """A test ends every node that it starts: an engine that goes on would train beside the tests after it."""
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        if thread.name == "engine":
            thread.join(ENGINE_PATIENCE)
            assert not thread.is_alive(), "an engine thread outlives its test"


@pytest.fixture(autouse=True)
def threads_stay() -> Iterator[None]:
    """A bench or a node in a test sets torch's threads for the whole process: give them back."""
    before = torch.get_num_threads()
    yield
    if torch.get_num_threads() != before:
        torch.set_num_threads(before)


@pytest.fixture(scope="session")
def real_model() -> Path:
    """The folder of the real model, which takes half a minute to make, and so is kept outside of the tree;
    tests of it are skipped without the packages that hold it."""
    try:
        real_model_script.write(real_model_script.FOLDER)
    except UserError as error:
        if error.code is not Code.EXTRA_MISSING:
            raise
        pytest.skip(str(error))
    return real_model_script.FOLDER
