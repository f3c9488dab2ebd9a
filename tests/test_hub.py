"""Tests of the hub: whether it is reachable, and downloads, with real sockets on loopback."""

from __future__ import annotations

import shutil
import socket
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from huggingface_hub import constants

from sfnode import hub
from sfnode.errors import Code, UserError
from sfnode.models import model_files
from tests.hub_server import REVISION, Offer, Offering, offering
from tests.refusals import refused

__all__ = ["offering"]

NOBODY = "http://192.0.2.1"
"""Address in a network that is reserved for documentation."""


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unset the proxies of this machine."""
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
    """The library would retry for half a minute."""
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    begun = time.monotonic()
    with pytest.raises(UserError, match="from the hub: it does not answer") as refusal:
        model_files.resolve("nobody/nothing", "", None)
    assert refusal.value.code is Code.MODEL_NOT_FOUND
    assert time.monotonic() - begun < 3


def test_a_hub_that_is_not_to_be_asked_is_not_asked(door: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", f"http://{door}")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="HF_HUB_OFFLINE"):
        model_files.resolve("nobody/nothing", "", None)


def test_what_was_fetched_before_serves_while_the_hub_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files are in the layout of the hub's own cache."""
    revision = "27dcfa74d334bc871f3234de431e71c6eeba5dd6"
    kept = tmp_path / "models--nobody--kept" / "snapshots" / revision
    kept.parent.mkdir(parents=True)
    kept.symlink_to(model_files.EMBEDDED / "tiny")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    assert model_files.resolve("nobody/kept", revision, None) == kept


# -- what is downloaded ------------------------------------------------------------------------------


def model(**changes: Offer) -> dict[str, Offer]:
    """Return the files of the smallest model, some of them changed."""
    files_here = (file for file in (model_files.EMBEDDED / "tiny").iterdir() if not file.name.startswith("."))
    honest = {file.name: Offer(file.stat().st_size, file.read_bytes()) for file in files_here}
    return honest | {name.replace("_json", ".json"): offer for name, offer in changes.items()}


def refusal() -> UserError:
    with pytest.raises(UserError) as refused:
        model_files.resolve("nobody/model", "", None)
    return refused.value


def test_a_model_of_the_hub_is_downloaded(offering: Offering) -> None:
    offering(model())
    assert model_files.digest(model_files.resolve("nobody/model", "", None)) == model_files.digest(
        model_files.EMBEDDED / "tiny"
    )


@pytest.mark.parametrize(
    ("file", "size", "spare", "code", "says"),
    [
        ("model-2.safetensors", hub.MAX_WEIGHTS, 0, Code.MODEL_TOO_LARGE, ""),
        ("tokenizer.json", hub.MAX_OTHER_FILE + 1, 0, Code.MODEL_TOO_LARGE, "tokenizer.json"),
        ("README.md", 1, shutil.disk_usage("/").total * 1000, Code.DISK_FULL, ""),
    ],
)
def test_a_model_for_which_no_memory_no_disk_or_no_listing_has_room_is_not_begun(
    file: str,
    size: int,
    spare: int,
    code: Code,
    says: str,
    offering: Offering,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = offering(model() | {file: Offer(size, b"")})
    monkeypatch.setattr(hub, "SPARE_BYTES", spare)
    error = refusal()
    assert error.code is code
    assert says in error.what
    assert not made.sent


def test_a_hub_that_sends_more_than_it_announced_is_cut_off(
    offering: Offering, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "SLACK", 1 << 20)
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1 << 16)
    made = offering(model(tokenizer_json=Offer(10, bytes(64 << 20))))
    assert refusal().code is Code.MODEL_TOO_LARGE
    assert made.sent["tokenizer.json"] < 16 << 20


def test_what_was_downloaded_before_serves_while_the_hub_refuses(offering: Offering) -> None:
    made = offering(model())
    found = model_files.resolve("nobody/model", REVISION, None)
    made.offers.clear()
    made.RequestHandlerClass = BaseHTTPRequestHandler  # answers 501 to everything
    assert model_files.resolve("nobody/model", REVISION, None) == found


@pytest.mark.parametrize("revision", ["../../../../secret", "/etc/passwd", "..", ".hidden", "a/b", "x\0"])
def test_a_revision_is_no_place_here(revision: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The library would read a commit from a file of that name in its cache."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(hub, "unreachable", lambda: "it does not answer")
    with pytest.raises(ValueError, match="no revision"):
        hub.kept("nobody/model", revision, model_files.DOWNLOAD)
    with refused(Code.MODEL_NOT_FOUND):
        model_files.resolve("nobody/model", revision, None)
