"""A container engine for tests: found or started, given a base image, and asked through its command line.

What cannot be had here ends as a skip that says why. Where images come from is the environment's to say:
SFNODE_TEST_BASE names a base image (and SFNODE_TEST_BUILD_BASE one to build in); without it, a base is made
with debootstrap, and the packages are those that this machine's pip finds.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]

SUITE, SUITE_PYTHON = "bookworm", (3, 11)
"""The release of Debian that a base is made of, and its Python: packages are fetched for that."""

BASE, BUILD_BASE = "sfnode-test-base", "sfnode-test-build-base"

ENGINE_DEADLINE = 60.0
BUILD_DEADLINE = 1500.0
"""Seconds to build an image: torch alone is unpacked, stripped and copied for minutes on a busy machine."""

COMMAND_DEADLINE = 300.0


class Bases(NamedTuple):
    """What the image is made of, what it is built in, and the network for that."""

    base: str
    build_base: str
    network: str


def run(*command: object, deadline: float = COMMAND_DEADLINE, **options: object) -> str:
    """A command's output; it must succeed."""
    words = [str(word) for word in command]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=deadline, check=False, **options)  # type: ignore[call-overload]
    assert ended.returncode == 0, f"{' '.join(words)} failed:\n{ended.stdout[-4000:]}\n{ended.stderr[-4000:]}"
    return str(ended.stdout)


def succeeds(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, timeout=30, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


@contextmanager
def engine(scratch: Path) -> Iterator[None]:
    """An engine that answers; one that had to be started is stopped at the end."""
    if shutil.which("docker") is None:
        pytest.skip("no container test: the command docker is not installed")
    if succeeds("docker", "info"):
        yield
        return
    if shutil.which("dockerd") is None or os.geteuid() != 0:
        pytest.skip(
            "no container test: no engine answers, and none can be started (that takes root and dockerd)"
        )
    with (scratch / "dockerd.log").open("wb") as log:
        daemon = subprocess.Popen(["dockerd"], stdout=log, stderr=log, start_new_session=True)
    try:
        _wait_for(daemon, scratch / "dockerd.log")
        yield
    finally:
        daemon.terminate()
        daemon.wait(ENGINE_DEADLINE)


def _wait_for(daemon: subprocess.Popen[bytes], log: Path) -> None:
    give_up = time.monotonic() + ENGINE_DEADLINE
    while not succeeds("docker", "info"):
        if daemon.poll() is not None or time.monotonic() > give_up:
            daemon.kill()
            last = log.read_text(errors="replace").splitlines()[-3:]
            pytest.skip(f"no container test: the engine does not start here: {' / '.join(last)}")
        time.sleep(0.5)


def compose_command() -> list[str]:
    if succeeds("docker", "compose", "version"):
        return ["docker", "compose"]
    if shutil.which("docker-compose"):
        return ["docker-compose"]
    pytest.skip("no container test: there is neither docker compose nor docker-compose")


def build_environment() -> dict[str, str]:
    """The classic builder where the newer one is not installed."""
    newer = succeeds("docker", "buildx", "version")
    return {} if newer else {"DOCKER_BUILDKIT": "0", "COMPOSE_DOCKER_CLI_BUILD": "0"}


def bases(scratch: Path) -> Bases:
    """The images named in the environment, or else images made here."""
    if given := os.environ.get("SFNODE_TEST_BASE"):
        build_base = os.environ.get("SFNODE_TEST_BUILD_BASE", "")
        return Bases(given, build_base, os.environ.get("SFNODE_TEST_BUILD_NETWORK", "default"))
    if shutil.which("debootstrap") is None or os.geteuid() != 0:
        pytest.skip(
            "no container test: SFNODE_TEST_BASE names no image, and debootstrap and root are needed for one"
        )
    if sys.version_info[:2] != SUITE_PYTHON:
        pytest.skip(f"no container test: packages for Python {SUITE_PYTHON} are needed, this is another")
    if not _exists(BASE):
        _debootstrap(scratch / "root")
    return Bases(BASE, _with_packages(scratch), "none")


def _exists(image: str) -> bool:
    return succeeds("docker", "image", "inspect", image)


def _debootstrap(root: Path) -> None:
    """Images of a Debian with Python and little else, and of one to build in."""
    packages = "python3-venv,ca-certificates,tini"
    run("debootstrap", "--variant=minbase", f"--include={packages}", SUITE, root, deadline=BUILD_DEADLINE)
    _import(root, BASE)
    run("chroot", root, "apt-get", "update", "-qq")
    run("chroot", root, "apt-get", "install", "-qq", "-y", "--no-install-recommends", "binutils")
    _import(root, BUILD_BASE)
    shutil.rmtree(root)


def _import(root: Path, image: str) -> None:
    """The image of this root file system, without what nobody reads in a container."""
    for clutter in (
        "usr/share/doc",
        "usr/share/man",
        "usr/share/locale",
        "var/cache/apt",
        "var/lib/apt/lists",
    ):
        shutil.rmtree(root / clutter, ignore_errors=True)
    archive = root.with_suffix(".tar")
    run("tar", "-C", root, "-cf", archive, ".")
    run("docker", "import", archive, image)
    archive.unlink()


def _with_packages(scratch: Path) -> str:
    """An image to build in that has all packages as files, so that the build needs no network."""
    described = [ROOT / "pyproject.toml", *sorted((ROOT / "constraints").glob("*.txt"))]
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in described)).hexdigest()[:12]
    image = f"{BUILD_BASE}:{digest}"
    if not _exists(image):
        context = scratch / "packages"
        context.mkdir()
        _fetch(context / "files")
        (context / "Dockerfile").write_text(
            f"FROM {BUILD_BASE}\nCOPY files /packages\nENV PIP_NO_INDEX=1 PIP_FIND_LINKS=/packages\n"
        )
        run("docker", "build", "-t", image, context, env=os.environ | build_environment())
        shutil.rmtree(context)
    return image


def _fetch(folder: Path) -> None:
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--wheel-dir", folder]
    torch, others = ROOT / "constraints" / "torch.txt", ROOT / "constraints" / "ci.txt"
    run(*pip, "-r", torch, deadline=BUILD_DEADLINE)
    run(*pip, "--find-links", folder, "-c", others, ROOT, "hatchling>=1.25", deadline=BUILD_DEADLINE)
    for own in folder.glob("sfnode-*.whl"):
        own.unlink()
