"""Whether the hub can be reached: asked of real sockets on loopback."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from sfnode.errors import Code, UserError
from sfnode.models import files, hub

NOBODY = "http://192.0.2.1"
"""A network for documentation."""


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever this machine has to go through."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", NOBODY)
    monkeypatch.setattr(hub, "PATIENCE", 0.3)


@pytest.fixture
def door() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def test_a_hub_that_listens_answers(door: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", f"http://{door}")
    assert hub.unreachable() is None


def test_behind_a_proxy_it_is_the_proxy_that_counts(door: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for proxy in (door, f"http://{door}"):
        monkeypatch.setenv("http_proxy", proxy)
        assert hub.unreachable() is None
    monkeypatch.setenv("no_proxy", "192.0.2.1")
    assert hub.unreachable() == "it does not answer"


@pytest.mark.parametrize("endpoint", [NOBODY, "http://127.0.0.1:1", "http://nowhere.invalid", "http://x" * 9])
def test_a_model_on_a_hub_that_is_silent_is_given_up_in_time(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library would ask for half a minute."""
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    begun = time.monotonic()
    with pytest.raises(UserError, match="from the hub: it does not answer") as refusal:
        files.resolve("nobody/nothing", "", None)
    assert refusal.value.code is Code.MODEL_NOT_FOUND
    assert time.monotonic() - begun < 3


def test_a_hub_that_is_not_to_be_asked_is_not_asked(door: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", f"http://{door}")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="HF_HUB_OFFLINE"):
        files.resolve("nobody/nothing", "", None)


def test_what_was_fetched_before_serves_while_the_hub_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the layout of the hub's own cache."""
    revision = "27dcfa74d334bc871f3234de431e71c6eeba5dd6"
    kept = tmp_path / "models--nobody--kept" / "snapshots" / revision
    kept.parent.mkdir(parents=True)
    kept.symlink_to(files.EMBEDDED / "tiny")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    assert files.resolve("nobody/kept", revision, None) == kept
