"""A real Prometheus scrapes real nodes: it accepts their metrics, and no panel of our dashboards stays empty.

This stands for a test with Grafana, which no package registry here has: a panel of Grafana only asks these
expressions.
"""

from __future__ import annotations

import asyncio
import subprocess
import urllib.request
from pathlib import Path

import pytest

from sfnode.control.client import Client
from sfnode.store.data_folder import Layout
from tests.processes.helpers import LOOPBACK, PATIENCE, nodes, sfnode, until
from tests.processes.prometheus import ROOT, documented, free_port, programs, scraping, targets

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return programs(tmp_path_factory.mktemp("debian"))


def promtool(folder: Path, *arguments: object, text: str = "") -> None:
    """Run promtool. Assert that it finds no fault."""
    command = [str(folder / "promtool"), *map(str, arguments)]
    ended = subprocess.run(command, input=text, capture_output=True, text=True, timeout=PATIENCE)
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stdout


def test_the_configuration_of_the_compose_file_is_valid(folder: Path) -> None:
    promtool(folder, "check", "config", ROOT / "deploy" / "prometheus.yml")


def test_no_panel_is_empty_and_promtool_finds_no_fault(folder: Path, tmp_path: Path) -> None:
    made = sfnode(
        tmp_path, "init", "--model", "builtin:tiny", "--task", "reviews", "--set", "init.measure=no",
        "--set", "task.loss=plain", "--set", "training.epoch_updates=32", "--set", "data.validation_limit=16",
        "--set", "training.update_budget=1000000",
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    first, second = (f"127.0.0.1:{free_port()}" for _ in range(2))
    calm = *LOOPBACK, "--set", "node.samples=0", "--limit", "cpu=25"
    with nodes(tmp_path) as make, scraping(folder, tmp_path, [first, second]) as prometheus:
        organises = ["--run", "run.toml", "--organise", "--set", "organise.search=no"]
        organiser = make("organiser", *organises, "--metrics", first, *calm).start()
        make("member", organiser.link(), "--metrics", second, *calm).start()
        organiser.until_organised("an epoch is sealed", lambda said: said.sealed)
        client = Client(Layout(organiser.folder).control_socket)
        asyncio.run(client.evaluate(limit=16))  # without an evaluation the drift is unknown
        for target in targets():
            ask = prometheus.values if target.instant else prometheus.course
            until(f"{target.panel} has data", lambda ask=ask, target=target: ask(target.expression))
        for expression in documented():
            prometheus.values(expression)  # raises if Prometheus does not understand it
        for address in (first, second):
            with urllib.request.urlopen(f"http://{address}/metrics", timeout=PATIENCE) as answer:
                promtool(folder, "check", "metrics", text=answer.read().decode())
