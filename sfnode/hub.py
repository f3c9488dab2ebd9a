"""The hub of models and data sets: whether it is reachable, and bounded downloads from it.

The hub's library retries for a long time: for 24 s without a network, for 90 s if the name server does not
answer. It also downloads files of any size until the disk is full, and a run may name files that a stranger
uploaded. This module does not know what the files mean.
"""

from __future__ import annotations

import re
import shutil
import socket
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from huggingface_hub import HfApi, constants, snapshot_download, try_to_load_from_cache
from huggingface_hub.utils.tqdm import tqdm

from sfnode.defaults import SPARE_BYTES
from sfnode.errors import Code, UserError
from sfnode.printable import size_text
from sfprotocol.model_listing import HASH_BYTES, MAX_LISTING, PIECE

PATIENCE = 5.0
"""Time limit for resolving the hub's name and connecting to it, in seconds. It allows for two losses of a
packet, which the system sends again after 1 s and after 3 s."""

MAX_WEIGHTS = MAX_LISTING // HASH_BYTES * PIECE
"""Maximum size of a model, 512 GiB. A larger model has no listing and cannot be shared (SPEC B1)."""

MAX_OTHER_FILE = 256 << 20
"""Maximum size, in bytes, of a file other than weights. Such a file is read into memory as a whole. The
largest known file of this kind has 40 MB."""

SLACK = 16 << 20
"""Number of bytes by which a download may exceed 1.25 times the announced size. Larger downloads than
announced are normal, because interrupted transfers request some bytes again."""

REVISION = re.compile(r"|refs/convert/parquet|(?!\.)[\w.-]{1,100}", re.ASCII)
"""Pattern of the commits, branches and tags that may be requested. They are checked, because a stranger's
manifest may contain any text as a revision."""

WEIGHTS = ".safetensors"
"""File name extension of files with weights."""

_PORTS = {"http": 80, "https": 443}


class HubFile(NamedTuple):
    """A file that the hub offers."""

    name: str
    size: int
    cached: bool
    """Whether the file was already downloaded."""


def unreachable() -> str | None:
    """Return the reason why nothing can be downloaded from the hub.

    Returns None if a connection to the hub, or to its proxy, can be opened.
    """
    if constants.HF_HUB_OFFLINE:
        return "it is not to be asked (HF_HUB_OFFLINE)"
    connected = threading.Event()
    address = _address(constants.ENDPOINT)
    thread = threading.Thread(target=_connect, args=(address, connected), daemon=True)
    thread.start()
    thread.join(PATIENCE)  # a query to a name server cannot be cancelled, only abandoned
    return None if connected.is_set() else "it does not answer"


def _address(endpoint: str) -> tuple[str, int]:
    """Return the host and port to connect to for the URL `endpoint`: those of the URL, or of the proxy for
    it."""
    hub = urlsplit(endpoint)
    host = hub.hostname or ""
    proxies = {} if proxy_bypass(host) else getproxies()
    proxy = proxies.get(hub.scheme) or proxies.get("all")
    if not proxy:
        return host, hub.port or _PORTS[hub.scheme]
    via = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    return via.hostname or "", via.port or _PORTS.get(via.scheme, 1080)


def _connect(address: tuple[str, int], connected: threading.Event) -> None:
    try:
        socket.create_connection(address, PATIENCE).close()
    except (OSError, ValueError):  # ValueError: not a host name, or not a port
        return
    connected.set()


def download(source: str, revision: str, patterns: Sequence[str], kind: str = "model") -> Path:
    """Download the files of a model (or a "dataset") whose names match `patterns`, and return their folder.

    Before the download, the announced sizes are compared with the limits above and with the free disk space.
    During the download, the received sizes are compared with the announced ones. Raises UserError
    MODEL_TOO_LARGE or DISK_FULL, and any error of the library.
    """
    try:
        found = offered(source, revision, patterns, kind)
    except Exception:
        with suppress(Exception):
            return kept(source, revision, patterns, kind)
        raise
    if kind == "model":
        _check_sizes(source, found)
    lacking = sum(file.size for file in found if not file.cached)
    require_room(lacking, source)
    return _snapshot(source, revision, patterns, kind, tqdm_class=_metered(source, lacking))


def kept(source: str, revision: str, patterns: Sequence[str], kind: str = "model") -> Path:
    """Return the folder with the files of a model (or a "dataset") that were downloaded before. Raises any
    error of the library."""
    return _snapshot(source, revision, patterns, kind, local_files_only=True)


def _snapshot(source: str, revision: str, patterns: Sequence[str], kind: str, **how: Any) -> Path:
    if not REVISION.fullmatch(revision):  # the library opens a file with this name
        raise ValueError(f"there is no revision {revision!r}")
    return Path(
        snapshot_download(
            source, repo_type=kind, revision=revision or None, allow_patterns=list(patterns), **how
        )
    )


def commit_of(source: str, revision: str, kind: str) -> str:
    """Return the commit to which a revision refers now. An empty `revision` is the newest commit. Raises any
    error of the library."""
    return str(HfApi().repo_info(source, revision=revision or None, repo_type=kind).sha)


def _check_sizes(source: str, found: Iterable[HubFile]) -> None:
    total = 0
    for file in found:
        most = MAX_WEIGHTS if file.name.endswith(WEIGHTS) else MAX_OTHER_FILE
        total += file.size
        if file.size > most or total > MAX_WEIGHTS:
            size = size_text(file.size if file.size > most else total)
            raise _too_large(f"{source} has {size} up to {file.name}, where {size_text(most)} are allowed")


def offered(
    source: str, revision: str, patterns: Iterable[str] = ("*",), kind: str = "model"
) -> list[HubFile]:
    """Return the files of a model (or a "dataset") whose names match `patterns`, with the sizes that the hub
    states."""
    info: Any = HfApi().repo_info(source, revision=revision or None, repo_type=kind, files_metadata=True)
    names = {file.rfilename: file.size or 0 for file in info.siblings or ()}
    return [
        HubFile(name, size, isinstance(_cached(source, name, info.sha, kind), str))
        for name, size in names.items()
        if any(fnmatchcase(name, pattern) for pattern in patterns)
    ]


def _cached(source: str, name: str, revision: str | None, kind: str) -> object:
    return try_to_load_from_cache(source, name, revision=revision, repo_type=kind)


def require_room(size: int, what: str) -> None:
    """Raise UserError DISK_FULL unless the hub's cache has room for `size` bytes."""
    folder = Path(constants.HF_HUB_CACHE)
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if size and size + SPARE_BYTES > free:
        raise UserError(
            Code.DISK_FULL,
            f"{what} needs {size_text(size)} in {constants.HF_HUB_CACHE}, where {size_text(free)} are free",
            "Make room, or name a folder on a larger disk with the environment variable HF_HOME.",
        )


def _metered(source: str, expected: int) -> type[tqdm]:
    """Return a class of progress bars that stop a download when it exceeds the announced size or fills the
    disk.

    A progress bar is the only object to which the library reports every piece of a file.
    """

    most = expected + expected // 4 + SLACK

    class Metered(tqdm):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            self._counts_bytes = options.get("unit") == "B"
            self._arrived = 0
            super().__init__(*arguments, **options)  # type: ignore[no-untyped-call]

        def update(self, n: float | None = 1) -> bool | None:
            if self._counts_bytes:
                self._arrived += int(n or 0)
                if self._arrived > most:
                    raise _too_large(f"the hub announced {size_text(expected)} of {source} and sends more")
                require_room(1, source)
            return super().update(n)  # type: ignore[no-any-return]

    return Metered


def _too_large(what: str) -> UserError:
    return UserError(
        Code.MODEL_TOO_LARGE,
        what,
        "If you trust whoever started the run, get the model in another way and name it with --model.",
    )
