"""A real Prometheus, of this machine or from Debian's package, and the expressions of our dashboards to ask
it."""

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
"""Timeout, in seconds, for downloading 19 MB from a Debian mirror."""

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
        """Call Prometheus' API, and return the data of the answer."""
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"http://{self.address}/api/v1/{path}?{query}", timeout=30) as answer:
            return json.load(answer)["data"]

    def values(self, expression: str) -> list[float]:
        """Return the present finite values of an expression, for all its series."""
        result = self.ask("query", query=expression)
        scalar = result["resultType"] == "scalar"
        samples = [result["result"]] if scalar else [one["value"] for one in result["result"]]
        return [float(value) for _, value in samples if math.isfinite(float(value))]

    def course(self, expression: str) -> list[float]:
        """Return the finite values of an expression over the last minute, with the query that a chart
        makes."""
        now = time.time()
        result = self.ask("query_range", query=expression, start=now - 60, end=now, step=1)["result"]
        return [float(value) for one in result for _, value in one["values"] if math.isfinite(float(value))]


class Target(NamedTuple):
    """An expression of a panel."""

    panel: str
    expression: str
    legend: str
    instant: bool
    """Whether the panel shows only the present value."""


def targets() -> Iterator[Target]:
    """Yield all expressions of all panels, except those that are only about GPUs."""
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
    """Return the folder of `prometheus` and `promtool` on this machine. If they are not installed, extract
    Debian's package, which needs no others. Skip the test if neither is available."""
    if (installed := shutil.which("prometheus")) and shutil.which("promtool"):
        return Path(installed).parent
    script = "apt-get download -qq prometheus && dpkg-deb -x prometheus_*.deb . && rm prometheus_*.deb"
    ended = subprocess.run(["sh", "-c", script], cwd=scratch, capture_output=True, timeout=DOWNLOAD_DEADLINE)
    if ended.returncode:
        pytest.skip("no Prometheus: it is not installed, and apt-get has no such package")
    return scratch / "usr" / "bin"


def free_port() -> int:
    """Return a free port of this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def scraping(folder: Path, home: Path, addresses: list[str]) -> Iterator[Prometheus]:
    """Run the Prometheus of `folder` within the block. It scrapes these addresses twice a second."""
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
