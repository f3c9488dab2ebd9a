"""Tests that invalid JSON, TOML and MessagePack of others end in a numbered error."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import msgpack
import pytest

from sfnode.cli.main import cli, read_config
from sfnode.cli.succession import _read as read_succession
from sfnode.engine.using import ABOUT, task_in
from sfnode.errors import UserError
from sfnode.manifest import Manifest
from sfnode.models import model_config, model_files
from sfnode.peers import contacts
from sfnode.preparing.manifest import build
from sfnode.printable import read_json, read_toml
from sfnode.publish.run_file import RunFile
from sfnode.tasks import verifying

RUN = build({})


def within(opened: bytes, closed: bytes, depth: int) -> bytes:
    return opened * depth + b"1" + closed * depth


def as_json(**task: object) -> bytes:
    """Return the description of a task with these fields, and valid fields for other readers, as JSON."""
    said = RUN.task.model_dump(mode="json") | task
    return json.dumps({"task": said, "run_id": "ab" * 32, "addresses": ["/ip4/1.2.3.4/tcp/1/p2p/Q"]}).encode()


JSON = {
    "deep arrays": within(b"[", b"]", 100_000),
    "deep objects": within(b'{"task":', b"}", 100_000),
    "a deep field": within(b'{"task":{"template":', b"}}", 300),
    "a deep verifier": as_json(kind="reward", verifier={"kind": "json", "satisfies": {"items": [[[]]] * 99}}),
    "an integer of 5,000 digits": b'{"task":' + b"1" * 5_000 + b',"protocol":' + b"1" * 5_000 + b"}",
    "NaN": b'{"task":NaN,"protocol":NaN,"run_id":"' + b"ab" * 32 + b'","addresses":["a"]}',
    "an infinite number": b'{"task":1e999,"protocol":1e999,"run_id":"' + b"ab" * 32 + b'","addresses":["a"]}',
    "a list": b"[1]",
    "a number": b"3",
    "null": b"null",
    "nothing": b"",
    "no UTF-8": b'{"task":"\xff"}',
    "UTF-16": '{"task":1}'.encode("utf-16"),
    "zeros": bytes(100),
}

TOML = {
    "deep arrays": b"x = " + within(b"[", b"]", 900),
    "very deep arrays": b"x = " + within(b"[", b"]", 50_000),
    "deep tables": b"x = " + within(b"{a = ", b"}", 5_000),
    "deep keys": b"a" + b".a" * 5_000 + b" = 1",
    "a deep verifier": RUN.to_toml().encode().replace(
        b"[task]", b"[task]\nverifier = {a = " + within(b"[", b"]", 700) + b"}", 1
    ),
    "an integer of 5,000 digits": b"protocol = " + b"1" * 5_000,
    "an integer of 20,000 bits": b"protocol = 0x" + b"f" * 5_000,
    "no number": b"protocol = nan",
    "an impossible date": b"protocol = 9999-99-99",
    "no UTF-8": b"\xff",
    "zeros": bytes(100),
}  # fmt: skip

MESSAGEPACK = {
    "deep arrays": b"\x91" * 100_000 + b"\x90",
    "arrays just within the library's bounds": b"\x91" * 500 + b"\x90",
    "deep maps": b"\x81\xa1a" * 900 + b"\x80",
    "an extension": b"\xd4\x05a",
    "a text that is said to be long": b"\xdb\xff\xff\xff\xff",
    "a key that is no text": b"\x81\x90\x01",
    "no number": b"\x81\xa8protocol\xcb\x7f\xf8" + bytes(6),
    "nothing": b"",
    "a deep verifier": msgpack.packb(
        {**RUN.fields(), "task": {"verifier": json.loads("[" * 400 + "]" * 400)}}
    ),
}


def _file(folder: Path, name: str, data: bytes) -> Path:
    (folder / name).write_bytes(data)
    return folder / name


def export(folder: Path, data: bytes) -> object:
    _file(folder, ABOUT, data)
    return task_in(folder)


def model(folder: Path, data: bytes) -> object:
    return model_config.read(_file(folder, "config.json", data))


def index(folder: Path, data: bytes) -> object:
    _file(folder, model_files.INDEX, data)
    return model_files.weight_files(folder)


def header(folder: Path, data: bytes) -> object:
    _file(folder, "model.safetensors", len(data).to_bytes(8, "little") + data)
    return model_files.stored_tensors(folder)


def model_to_hash(folder: Path, data: bytes) -> object:
    return model_files._config(_file(folder, "config.json", data))


def verifier(folder: Path, data: bytes) -> object:
    return verifying.load(str(_file(folder, "verifier.json", data)))


def contacts_at(_: Path, data: bytes) -> object:
    return contacts.read(data, "https://example.org/run.json")


def run_file(_: Path, data: bytes) -> object:
    return RunFile.parse(data, "run.json")


def succession(folder: Path, data: bytes) -> object:
    return read_succession(_file(folder, "next.json", data))


READERS: list[Callable[[Path, bytes], object]] = [
    *(export, model, model_to_hash, index, header, verifier, contacts_at, run_file, succession)
]
AS_THEY_ARE = {
    (reader, name)
    for reader in (model, model_to_hash)
    for name in ("a deep field", "a deep verifier", "NaN", "an infinite number")
}
"""Configurations of models may contain such values. Their use is tested elsewhere."""


@pytest.mark.parametrize("name", JSON)
@pytest.mark.parametrize("reader", READERS)
def test_json_of_others(reader: Callable[[Path, bytes], object], name: str, tmp_path: Path) -> None:
    if (reader, name) in AS_THEY_ARE:
        assert reader(tmp_path, JSON[name])
        return
    with pytest.raises(UserError):
        reader(tmp_path, JSON[name])


@pytest.mark.parametrize("name", TOML)
def test_toml_of_others(name: str, tmp_path: Path) -> None:
    readers: list[Callable[[Path], object]] = [
        Manifest.from_toml,
        lambda path: verifying.load(str(path)),
        lambda path: read_config(path, cli, iter(())),
    ]
    for read in readers:
        with pytest.raises(UserError):
            read(_file(tmp_path, "run.toml", TOML[name]))


@pytest.mark.parametrize("name", MESSAGEPACK)
def test_messagepack_of_others(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError):
        Manifest.from_canonical(MESSAGEPACK[name], "a peer")


@pytest.mark.parametrize(
    "entry", ['"shape":[1e999],"data_offsets":[0,0]', '"shape":[1],"data_offsets":[NaN,0]']
)
def test_a_tensor_without_finite_numbers(entry: str, tmp_path: Path) -> None:
    with pytest.raises(UserError):
        header(tmp_path, b'{"t":{"dtype":"F32",' + entry.encode() + b"}}")


def test_what_is_right_is_read() -> None:
    assert read_json(b'{"a": [1, 2.5, "\xc3\xa9"]}') == {"a": [1, 2.5, "é"]}
    assert read_toml("a = [1, 2.5]") == {"a": [1, 2.5]}
