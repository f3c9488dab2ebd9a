"""A container engine for tests: found or started, given a base image, and used through its command line.

A test is skipped, with the reason, if something is unavailable here. SFNODE_TEST_BASE names a base image, and
SFNODE_TEST_BUILD_BASE one to build in. Without them the base is that of the Dockerfile if the engine can
fetch it, otherwise one made with debootstrap. Packages are those that this machine's pip finds.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]

SUITE, SUITE_PYTHON = "bookworm", (3, 11)
"""Release of Debian that a base image is made of, and its Python, for which packages are downloaded."""

BASE, BUILD_BASE = "sfnode-test-base", "sfnode-test-build-base"

ENGINE_DEADLINE = 60.0
BUILD_DEADLINE = 1500.0
"""Seconds to build an image: unpacking, stripping and copying torch alone takes minutes on a busy machine."""

COMMAND_DEADLINE = 300.0

PULL_DEADLINE = 180.0
"""Seconds to pull an image from a registry before it counts as unavailable."""

EXTRAS = ("nvml", "datasets")
"""Extras of sfnode that the image has."""

INSTALLER, LOADER = "uv>=0.8", "peft>=0.13"
"""Packages with which a volunteer installs sfnode, and which load an exported adapter."""

PUBLIC_BASE = "python:3.11-slim"
"""Default base image of the Dockerfile."""


class Bases(NamedTuple):
    """The base image, the image to build in, and the network of the build."""

    base: str
    build_base: str = ""
    network: str = "default"


def run(*command: object, deadline: float = COMMAND_DEADLINE, **options: object) -> str:
    """Return a command's output; it must succeed."""
    words = [str(word) for word in command]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=deadline, check=False, **options)  # type: ignore[call-overload]
    assert ended.returncode == 0, f"{' '.join(words)} failed:\n{ended.stdout[-4000:]}\n{ended.stderr[-4000:]}"
    return str(ended.stdout)


def succeeds(*command: str, deadline: float = 30.0) -> bool:
    try:
        return subprocess.run(command, capture_output=True, timeout=deadline, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


@contextmanager
def timed(what: str) -> Iterator[None]:
    """Print how long the block took: shown with `pytest -s`."""
    started = time.monotonic()
    yield
    print(f"{what}: {time.monotonic() - started:.0f} s", flush=True)


@contextmanager
def engine(scratch: Path) -> Iterator[None]:
    """Find an engine that answers, or start one and stop it at the end."""
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
    """Return the environment that selects the classic builder where the newer one is not installed."""
    newer = succeeds("docker", "buildx", "version")
    return {} if newer else {"DOCKER_BUILDKIT": "0", "COMPOSE_DOCKER_CLI_BUILD": "0"}


def bases(scratch: Path) -> Bases:
    """Return the images named in the environment, or the public ones, or images made here."""
    if given := os.environ.get("SFNODE_TEST_BASE"):
        build_base = os.environ.get("SFNODE_TEST_BUILD_BASE", "")
        return Bases(given, build_base, os.environ.get("SFNODE_TEST_BUILD_NETWORK", "default"))
    if pulled(PUBLIC_BASE):
        return Bases(PUBLIC_BASE)
    if shutil.which("debootstrap") is None or os.geteuid() != 0:
        pytest.skip(
            f"no container test: the engine cannot fetch {PUBLIC_BASE}, SFNODE_TEST_BASE names no other "
            "image, and to make one takes debootstrap and root"
        )
    if sys.version_info[:2] != SUITE_PYTHON:
        pytest.skip(f"no container test: packages for Python {SUITE_PYTHON} are needed, this is another")
    return Bases(BASE, _made_here(scratch), "none")


def pulled(image: str) -> bool:
    """Return whether the engine can pull an image from a registry."""
    return succeeds("docker", "pull", "--quiet", image, deadline=PULL_DEADLINE)


def exists(image: str) -> bool:
    """Return whether the engine has an image, such as one of an earlier test."""
    return succeeds("docker", "image", "inspect", image)


def _debootstrap(root: Path) -> None:
    """Make images of a minimal Debian with Python, and of one to build in."""
    packages = "python3-venv,ca-certificates,tini"
    run("debootstrap", "--variant=minbase", f"--include={packages}", SUITE, root, deadline=BUILD_DEADLINE)
    _import(root, BASE)
    run("chroot", root, "apt-get", "update", "-qq")
    run("chroot", root, "apt-get", "install", "-qq", "-y", "--no-install-recommends", "binutils")
    _import(root, BUILD_BASE)
    shutil.rmtree(root)


def _import(root: Path, image: str) -> None:
    """Import this root file system as an image, without documentation."""
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


def _made_here(scratch: Path) -> str:
    """Make the base image, and one to build in that has all packages as files, so that the build needs no
    network. Returns the name of the latter."""
    described = [*_wanted(), *(file.read_text() for file in sorted((ROOT / "constraints").glob("*.txt")))]
    digest = hashlib.sha256("\n".join(described).encode()).hexdigest()[:12]
    image = f"{BUILD_BASE}:{digest}"
    if not (exists(BASE) and exists(image)):
        with timed("base image and packages"), ThreadPoolExecutor(1) as beside:
            fetching = beside.submit(_fetch, scratch / "packages" / "files")
            if not (exists(BASE) and exists(BUILD_BASE)):
                _debootstrap(scratch / "root")
            fetching.result()
            _add_packages(scratch / "packages", image)
    return image


def _wanted() -> list[str]:
    """Return the requirements of the image and of what is installed beside it, except sfnode itself."""
    described = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project, tools = described["project"], described["build-system"]["requires"]
    extras = [one for extra in EXTRAS for one in project["optional-dependencies"][extra]]
    return [*project["dependencies"], *extras, *tools, INSTALLER, LOADER]


def _fetch(folder: Path) -> None:
    """Download wheels of everything that is installed in containers."""
    constraints = [word for name in ("torch", "ci") for word in ("-c", ROOT / "constraints" / f"{name}.txt")]
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--wheel-dir", folder]
    run(*pip, *constraints, *_wanted(), deadline=BUILD_DEADLINE)


def _add_packages(context: Path, image: str) -> None:
    (context / "Dockerfile").write_text(
        f"FROM {BUILD_BASE}\nCOPY files /packages\nENV PIP_NO_INDEX=1 PIP_FIND_LINKS=/packages\n"
    )
    run("docker", "build", "-t", image, context, env=os.environ | build_environment())
    shutil.rmtree(context)
