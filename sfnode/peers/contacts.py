"""Current contacts of a run on a web server: the file `run.json`, which invitation links may name by its URL
(SPEC N6).

An invitation link does not change, but the addresses of peers do. So organisers put this file on a web
server; `sfnode invite --run-json` and `sfnode publish page` write it. It is not signed: a reader takes only
addresses from it, and refuses every peer whose run is not that of the link.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any

from sfnode.daemon_thread import in_daemon_thread
from sfnode.errors import Code, UserError
from sfnode.printable import read_json
from sfprotocol import invitation
from sfprotocol.errors import LocalProtocolError
from sfprotocol.invitation import Invitation

MAX_FILE = 65_536
"""Maximum size of the file, in bytes: 32 addresses take 8 KiB, and writers of a run's page may add fields."""

FETCH_DEADLINE = 10.0
"""Deadline, in seconds, for the whole file to arrive (SPEC N6). A web server usually takes less than one
second."""

_CHUNK = 8_192

ASK_FOR_A_LINK = "Ask whoever invited you for a new link (`sfnode invite` there)."


def text(said: Mapping[str, Any], written_at: float, **more: Any) -> str:
    """Return the text of `run.json`: the fields of an `InviteResult`, and the fields `more` of a run's page.

    `written_at` is in seconds since 1970. Readers ignore unknown fields.
    """
    updated = datetime.fromtimestamp(written_at, UTC).isoformat(timespec="seconds")
    return json.dumps({**said, **more, "updated": updated}, indent=2, ensure_ascii=False) + "\n"


def write(path: Path, said: Mapping[str, Any], **more: Any) -> None:
    """Write the result of `text` to `path`, all or nothing, as a web server may read the file at any
    moment."""
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_text(text(said, time.time(), **more), encoding="utf-8")
        os.replace(partial, path)
    except OSError as error:
        raise UserError(
            Code.BAD_OPTION, f"cannot write {path}: {error.strerror}", "Name a file in a folder of yours."
        ) from error


def read(data: bytes, url: str) -> Invitation:
    """Return the run and its contacts in the bytes of a `run.json`. Raises UserError CONTACTS_UNUSABLE."""
    try:
        found = read_json(data)
        run_id = bytes.fromhex(found["run_id"])
        said = invitation.invite(int(found["protocol"]), run_id, [str(one) for one in found["addresses"]])
        invitation.write(said)  # checks that there are a run id of 32 bytes and an address
    except (ValueError, LookupError, TypeError, LocalProtocolError) as error:
        raise _unusable(url, f"it is no run.json ({type(error).__name__})") from None
    return said


def naming(link: str, url: str) -> str:
    """Return the invitation link `link` with `url`, the address of the run's page, added."""
    return invitation.write(replace(invitation.read(link), url=url))


async def fetch(url: str) -> Invitation:
    """Return the run and its contacts that are published at `url`. Raises UserError CONTACTS_UNUSABLE.

    Takes at most FETCH_DEADLINE. A query to a name server that does not answer is abandoned with its thread.
    """
    try:
        async with asyncio.timeout(FETCH_DEADLINE):
            data = await in_daemon_thread(
                lambda: download(url, time.monotonic() + FETCH_DEADLINE), "contacts"
            )
            return read(data, url)
    except (OSError, ValueError, HTTPException) as error:  # TimeoutError is an OSError
        why = str(getattr(error, "reason", "") or error) or "no answer in time"
        raise _unusable(url, why) from error


def download(url: str, deadline: float) -> bytes:
    """Return the bytes that a web server has at `url`. Raises OSError, HTTPException, and ValueError if there
    are more than MAX_FILE bytes."""
    from urllib import request as web
    from urllib.error import HTTPError

    opener = web.OpenerDirector()  # unlike `build_opener` without files, FTP and data
    for handler in (
        *(web.ProxyHandler(), web.HTTPHandler(), web.HTTPSHandler()),
        *(web.HTTPRedirectHandler(), web.HTTPDefaultErrorHandler(), web.HTTPErrorProcessor()),
    ):
        opener.add_handler(handler)
    request = web.Request(url, headers={"Accept": "application/json", "User-Agent": "sfnode"})
    try:
        with opener.open(request, timeout=FETCH_DEADLINE / 2) as answer:
            return _bounded(answer, deadline)
    except HTTPError as error:
        error.close()
        raise


def _bounded(answer: IO[bytes], deadline: float) -> bytes:
    data = b""
    while chunk := answer.read(_CHUNK):
        data += chunk
        if len(data) > MAX_FILE:
            raise ValueError(f"it has more than {MAX_FILE:,} bytes")
        if time.monotonic() > deadline:
            raise TimeoutError("it comes too slowly")
    return data


def _unusable(url: str, why: str) -> UserError:
    return UserError(
        Code.CONTACTS_UNUSABLE,
        f"there are no contacts of a run at {url}: {why}",
        f"Is this machine online, and the address right? {ASK_FOR_A_LINK}",
    )
