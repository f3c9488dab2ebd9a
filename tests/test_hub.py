"""Whether the hub can be reached, and what is taken from it: asked of real sockets on loopback."""

from __future__ import annotations

import json
import shutil
import socket
import threading
import time
from base64 import b64decode
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from huggingface_hub import constants

from sfnode import hub
from sfnode.errors import Code, UserError
from sfnode.models import files
from tests.hub_server import POLL, REVISION, Offer, Offering, offering

__all__ = ["offering"]

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


# -- what is downloaded ------------------------------------------------------------------------------


def model(**changes: Offer) -> dict[str, Offer]:
    """The files of the smallest model, some of them changed."""
    files_here = (file for file in (files.EMBEDDED / "tiny").iterdir() if not file.name.startswith("."))
    honest = {file.name: Offer(file.stat().st_size, file.read_bytes()) for file in files_here}
    return honest | {name.replace("_json", ".json"): offer for name, offer in changes.items()}


def refusal() -> UserError:
    with pytest.raises(UserError) as refused:
        files.resolve("nobody/model", "", None)
    return refused.value


def test_a_model_of_the_hub_is_downloaded(offering: Offering) -> None:
    offering(model())
    assert files.digest(files.resolve("nobody/model", "", None)) == files.digest(files.EMBEDDED / "tiny")


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
    found = files.resolve("nobody/model", REVISION, None)
    made.offers.clear()
    made.RequestHandlerClass = BaseHTTPRequestHandler  # answers 501 to everything
    assert files.resolve("nobody/model", REVISION, None) == found


@pytest.mark.parametrize("revision", ["../../../../secret", "/etc/passwd", "..", ".hidden", "a/b", "x\0"])
def test_a_revision_is_no_place_here(revision: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The library would read a file of that name in its cache, for the commit in it."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(hub, "unreachable", lambda: "it does not answer")
    with pytest.raises(ValueError, match="no revision"):
        hub.kept("nobody/model", revision, files.DOWNLOAD)
    with pytest.raises(UserError) as refused:
        files.resolve("nobody/model", revision, None)
    assert refused.value.code is Code.MODEL_NOT_FOUND


# -- what is uploaded --------------------------------------------------------------------------------


class Writable(ThreadingHTTPServer):
    """As much of the hub as its library needs to make a model and put files into it."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Takes)
        self.role, self.private = "write", {"ann/taken": False}
        self.broken = False
        self.files: dict[str, bytes] = {}


class _Takes(BaseHTTPRequestHandler):
    server: Writable

    def do_GET(self) -> None:
        name = self.path.removeprefix("/api/models/")
        if self.path == "/api/whoami-v2" and self.headers["Authorization"] != "Bearer hf_ann":
            self._answer({"error": "Invalid username or password."}, 401)
        elif self.path == "/api/whoami-v2":
            token = {"accessToken": {"role": self.server.role}}
            self._answer({"name": "ann", "orgs": [{"name": "owls"}], "auth": token})
        elif name in self.server.private:
            self._answer({"id": name, "sha": REVISION, "private": self.server.private[name], "siblings": []})
        else:
            self._answer({"error": "Repository not found"}, 404)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        address = f"http://127.0.0.1:{self.server.server_port}"
        if self.path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked.get('organization') or 'ann'}/{asked['name']}"
            self.server.private[name] = asked.get("private", asked.get("visibility") == "private")
            self._answer({"url": f"{address}/{name}"})
        elif self.server.broken:
            self._answer({"error": "out of order"}, 500)
        elif "/preupload/" in self.path:
            named = [one["path"] for one in json.loads(body)["files"]]
            plain = {"uploadMode": "regular", "shouldIgnore": False}
            self._answer({"files": [{"path": path, **plain} for path in named]})
        elif "/commit/" in self.path:
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    self.server.files[line["value"]["path"]] = b64decode(line["value"]["content"])
            name = self.path.removeprefix("/api/models/").partition("/commit/")[0]
            self._answer({"commitUrl": f"{address}/{name}/commit/{REVISION}", "commitOid": REVISION})
        else:
            self._answer({})

    def _answer(self, what: object, status: int = 200) -> None:
        body = json.dumps(what).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if status == 404:
            self.send_header("X-Error-Code", "RepoNotFound")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def writable(monkeypatch: pytest.MonkeyPatch) -> Iterator[Writable]:
    """A hub on which Ann may write."""
    with Writable() as made:
        threading.Thread(target=made.serve_forever, args=(POLL,), daemon=True).start()
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{made.server_port}")
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # its client speaks to another host
        monkeypatch.setenv("HF_TOKEN", "hf_ann")
        yield made
        made.shutdown()


@pytest.fixture
def export(tmp_path: Path) -> Path:
    """A finished export, as far as the hub is concerned."""
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "README.md").write_text("---\nlibrary_name: transformers\n---\n# reviews\n")
    (folder / "model.safetensors").write_bytes(bytes(range(256)) * 8)
    return folder


@pytest.mark.parametrize("name", ["ann/new", "owls/new"])
def test_an_export_is_uploaded_whole_and_private(name: str, writable: Writable, export: Path) -> None:
    hub.check(name, public=False)
    assert name not in writable.private
    address = hub.push(export, name, public=False)
    assert address == f"http://127.0.0.1:{writable.server_port}/{name} (private)"
    assert writable.private[name]
    assert writable.files == {file.name: file.read_bytes() for file in export.iterdir()}


def test_it_is_public_if_that_is_said(writable: Writable, export: Path) -> None:
    with pytest.raises(UserError, match="SF010: ann/taken is on the hub already, where everybody sees it"):
        hub.check("ann/taken", public=False)
    hub.check("ann/taken", public=True)
    assert hub.push(export, "ann/new", public=True).endswith("/ann/new (public)")


@pytest.mark.parametrize(
    ("name", "token", "role", "code", "says"),
    [
        ("ann", "hf_ann", "write", Code.BAD_OPTION, "'ann' is no name of a model"),
        ("ann/a/b", "hf_ann", "write", Code.BAD_OPTION, "is no name of a model"),
        ("bob/new", "hf_ann", "write", Code.UPLOAD_REFUSED, "that of ann, who is not bob and not a member"),
        ("ann/new", "hf_ann", "read", Code.UPLOAD_REFUSED, "for reading only"),
        ("ann/new", "hf_bob", "write", Code.UPLOAD_REFUSED, "Invalid"),
        ("ann/new", "", "write", Code.UPLOAD_REFUSED, "there is no token"),
    ],
)
def test_what_the_hub_would_refuse_is_refused_first(
    name: str,
    token: str,
    role: str,
    code: Code,
    says: str,
    writable: Writable,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", "/nowhere")
    writable.role = role
    with pytest.raises(UserError) as refused:
        hub.check(name, public=False)
    assert refused.value.code is code
    assert says in refused.value.what


def test_a_hub_that_is_silent_is_said_at_once() -> None:
    with pytest.raises(UserError, match="SF029: nothing can be uploaded to the hub: it does not answer"):
        hub.check("ann/new", public=False)


def test_an_upload_that_fails_leaves_the_export_and_the_command_that_goes_on(
    writable: Writable, export: Path
) -> None:
    writable.broken = True
    with pytest.raises(UserError) as failed:
        hub.push(export, "ann/new", public=False)
    assert failed.value.code is Code.UPLOAD_FAILED
    assert failed.value.fix.endswith(f"The export is complete: `hf upload ann/new {export}` puts it there.")
    assert len(list(export.iterdir())) == 2
