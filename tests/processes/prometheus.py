"""A real Prometheus, installed or Debian's, and what it is asked: every panel of our dashboard."""

from __future__ import annotations

import json
import math
import re
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parents[2]

DASHBOARDS = sorted((ROOT / "deploy" / "grafana" / "dashboards").glob("*.json"))
METRICS = ROOT / "docs" / "metrics.md"

GPU = {"sfnode_gpu_memory_bytes", "sfnode_gpu_busy", "sfnode_gpu_celsius", "sfnode_gpu_watts"}
"""Metrics that a node without a GPU does not have."""

DOWNLOAD_DEADLINE = 120.0
"""Seconds for 19 MB to come from a mirror of Debian's."""

_CONFIGURATION = """\
global: {{scrape_interval: 500ms, scrape_timeout: 500ms}}
scrape_configs:
  - job_name: sfnode
    static_configs: [{{targets: {targets}}}]
"""


class Prometheus(NamedTuple):
    """A Prometheus that answers at an address of this machine."""

    address: str
    container: str = ""

    def ask(self, path: str, **parameters: object) -> Any:
        """Return the data of an answer of its API."""
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"http://{self.address}/api/v1/{path}?{query}", timeout=30) as answer:
            return json.load(answer)["data"]

    def values(self, expression: str) -> list[float]:
        """Return the finite values of an expression now, of all its series."""
        result = self.ask("query", query=expression)
        scalar = result["resultType"] == "scalar"
        samples = [result["result"]] if scalar else [one["value"] for one in result["result"]]
        return [float(value) for _, value in samples if math.isfinite(float(value))]

    def course(self, expression: str) -> list[float]:
        """Return the finite values of an expression over the last minute, as a chart asks for them."""
        now = time.time()
        result = self.ask("query_range", query=expression, start=now - 60, end=now, step=1)["result"]
        return [float(value) for one in result for _, value in one["values"] if math.isfinite(float(value))]


class Target(NamedTuple):
    """An expression of a panel."""

    panel: str
    expression: str
    legend: str
    instant: bool
    """Whether the panel shows what is now, and not a course."""


def targets() -> Iterator[Target]:
    """Yield every expression of every panel, but those about a GPU alone."""
    for dashboard in DASHBOARDS:
        for panel in json.loads(dashboard.read_text())["panels"]:
            for one in panel["targets"]:
                if not set(re.findall(r"sfnode_\w+", one["expr"])) <= GPU:
                    yield Target(panel["title"], one["expr"], one["legendFormat"], one.get("instant", False))


def documented() -> Iterator[str]:
    """Yield every expression that the documentation recommends."""
    for line in METRICS.read_text().splitlines():
        if line.startswith("|") and (found := re.search(r"\| `([^`]*sfnode_[^`]*)` \|$", line)):
            yield found[1]


def programs(scratch: Path) -> Path:
    """Return the folder with `prometheus` and `promtool` of this machine, or with those of Debian's package,
    which need nothing else. Skips the test where neither is to be had."""
    if (installed := shutil.which("prometheus")) and shutil.which("promtool"):
        return Path(installed).parent
    script = "apt-get download -qq prometheus && dpkg-deb -x prometheus_*.deb . && rm prometheus_*.deb"
    ended = subprocess.run(["sh", "-c", script], cwd=scratch, capture_output=True, timeout=DOWNLOAD_DEADLINE)
    if ended.returncode:
        pytest.skip("no Prometheus: it is not installed, and apt-get has no such package")
    return scratch / "usr" / "bin"


def free_port() -> int:
    """Return a port of this machine on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def scraping(folder: Path, home: Path, addresses: list[str]) -> Iterator[Prometheus]:
    """Run the Prometheus of a folder, which scrapes these addresses twice a second."""
    port = free_port()
    (home / "prometheus.yml").write_text(_CONFIGURATION.format(targets=json.dumps(addresses)))
    files = f"--config.file={home / 'prometheus.yml'}", f"--storage.tsdb.path={home / 'prometheus'}"
    with (home / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [folder / "prometheus", *files, f"--web.listen-address=127.0.0.1:{port}"],
            stdout=log, stderr=log,
        )  # fmt: skip
    try:
        yield Prometheus(f"127.0.0.1:{port}")
    finally:
        process.kill()
        process.wait()
