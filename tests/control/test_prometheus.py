"""Tests of metrics: their values are those of the status, and all of them are documented."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from datetime import time
from pathlib import Path

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from sfnode.control import prometheus
from sfnode.control.prometheus import METRICS
from sfnode.errors import Code
from sfnode.limits import Limits
from sfnode.node.training import limiter
from sfnode.organising.reporting import alarms
from sfnode.resources import pauses
from sfnode.schema.node_state import NodeState
from sfnode.schema.status import DeviceStatus, GpuStatus, MachineStatus, Status
from tests.node.helpers import Node, Swarm, manifest
from tests.refusals import refused
from tests.schema.helpers import organised, rewarded, status

DOCS = Path(__file__).parents[2] / "docs"


async def scraped(node: Node) -> tuple[str, dict[str, dict[frozenset[tuple[str, str]], float]]]:
    """Return the content type, and the samples by name and labels, as Prometheus's own parser reads them."""
    connector = aiohttp.UnixConnector(str(node.layout.control_socket))
    async with aiohttp.ClientSession(connector=connector) as session, session.get("http://n/metrics") as got:
        return got.headers["Content-Type"], parsed(await got.text())


def parsed(text: str) -> dict[str, dict[frozenset[tuple[str, str]], float]]:
    found: dict[str, dict[frozenset[tuple[str, str]], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[frozenset(sample.labels.items())] = sample.value
    return found


async def test_a_scrape_of_the_control_socket_says_what_status_says(swarm_of: Callable[..., Swarm]) -> None:
    swarm = swarm_of(manifest(update_budget=20))
    a, b = await swarm.first(role="relay"), await swarm.join("b")
    await b.until(lambda: a.known == 20 and all(link.known == 20 for link in a.node.status().links))
    status = await a.client.status()
    kind, found = await scraped(a)
    assert kind.startswith("text/plain; version=")
    none: frozenset[tuple[str, str]] = frozenset()
    assert found["sfnode_updates_known_total"] == {none: 20.0} == {none: float(status.known)}
    assert found["sfnode_own_updates_total"] == {none: 0.0}
    assert found["sfnode_links"] == {none: 1.0}
    assert found["sfnode_update_budget"] == {none: float(status.update_budget)}
    assert found["sfnode_link_updates_known"] == {frozenset({("peer", "b"), ("role", "trainer")}): 20.0}
    assert found["sfnode_bytes_received_total"][none] >= status.bytes_received > 0
    assert found["sfnode_state"] == {frozenset({("state", name)}): name == status.state for name in NodeState}
    ((labels, one),) = found["sfnode_info"].items()
    assert dict(labels)["origin"] == "", "a relay has none"
    assert (dict(labels)["run_id"], dict(labels)["peer"], one) == (status.run_id, "a", 1.0)
    assert "sfnode_loss" not in found, "a relay has none"


async def test_metrics_on_tcp_answer_there_and_nothing_else(swarm: Swarm) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    a = await swarm.first(metrics=("127.0.0.1", port))
    async with aiohttp.ClientSession() as session:
        async with session.get(f"http://127.0.0.1:{port}/metrics") as answer:
            assert "sfnode_updates_known_total" in parsed(await answer.text())
        for method, route in (("GET", "/status"), ("POST", "/stop"), ("POST", "/metrics")):
            async with session.request(method, f"http://127.0.0.1:{port}{route}") as refused:
                assert refused.status in (404, 405)
    await a.stop()
    with socket.create_server(("127.0.0.1", port)):
        pass  # it let go of the port


def unasked() -> Status:
    raise AssertionError("nobody asks for metrics here")


async def test_a_port_that_is_taken_is_an_error_of_the_user() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, refused(Code.PORT_IN_USE, fix="--metrics"):
        await prometheus.serve(unasked, "127.0.0.1", taken.getsockname()[1])


async def test_an_address_that_is_not_of_this_machine_is_an_error_of_the_user() -> None:
    with refused(Code.BAD_OPTION):
        await prometheus.serve(unasked, "203.0.113.7", 0)


async def test_metrics_on_tcp_are_not_for_pages_of_other_sites() -> None:
    """A web page may give its host name this machine's address, or send its browser here."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    close = await prometheus.serve(unasked, "127.0.0.1", port)
    url = f"http://127.0.0.1:{port}/nothing"  # past the check there is no such page

    async def status(**headers: str) -> int:
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        async with aiohttp.ClientSession() as session, session.get(url, headers=names) as got:
            return got.status

    try:
        for host in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example"):
            assert await status(Host=host) == 421, host
        assert await status(Sec_Fetch_Site="cross-site") == 403
        assert await status(Origin="http://evil.example") == 403
        here = f"127.0.0.1:{port}", f"localhost:{port}", socket.gethostname()
        for host in (*here, "10.0.0.5:9100", "[::1]"):
            assert await status(Host=host) == 404, host
    finally:
        await close()


def test_the_documented_table_is_the_code() -> None:
    tables = re.findall(r"(?:^\|.*\n)+", (DOCS / "metrics.md").read_text(), flags=re.MULTILINE)
    rows = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in tables[0].splitlines()[2:]]
    described = [
        [f"`{m.name}`", m.kind, ", ".join(f"`{label}`" for label in m.labels), m.text] for m in METRICS
    ]
    assert [row[:3] for row in rows] == [one[:3] for one in described]
    assert [row[3].lower() for row in rows] == [one[3].lower().rstrip(".") for one in described]


def test_every_number_of_the_status_is_a_metric() -> None:
    """A number that is added to the status needs a metric, or an entry here."""
    apart = {"pid"}
    """Numbers that identify something and measure nothing."""
    numbers = {name for name, field in Status.model_fields.items() if field.annotation in (int, float)}
    source = Path(prometheus.__file__).read_text()
    assert {name for name in numbers - apart if f'"{name}"' not in source} == set()


def samples(seen: Status) -> dict[tuple[str, ...], float]:
    """Return all values of the metrics by name and labels."""
    return {(m.name, *sample.labels): sample.value for m in METRICS for sample in m.read(seen)}


def test_an_organised_run_shows_its_results_and_its_alarms() -> None:
    found = samples(status(**organised()))
    assert [found["sfnode_metric", "accuracy", of] for of in ("base", "best", "last")] == [0.5, 1.0, 0.848]
    ends = [found[f"sfnode_metric_{end}", "accuracy", "last"] for end in ("low", "high")]
    assert ends == pytest.approx([0.828, 0.868])
    assert [found["sfnode_alarm", code] for code in ("SF070", "SF072")] == [1.0, 0.0]
    assert found["sfnode_quota_left",] == 100.0
    assert ("sfnode_quota_left",) not in samples(status(**organised(room=None)))


def test_a_reward_run_has_rewards_and_no_losses() -> None:
    found = samples(status(**rewarded()))
    assert found["sfnode_reward",] == pytest.approx(0.94)
    assert [found["sfnode_metric_reward", "pass_at_1", of] for of in ("base", "last")] == pytest.approx(
        [0.4, 0.95]
    )
    assert (found["sfnode_drift",], found["sfnode_drift_kl",]) == (0.177, 0.003)
    assert not any(name in ("sfnode_loss", "sfnode_metric_loss") for name, *_ in found)
    others = samples(status(**organised(), loss=0.5))
    assert others["sfnode_loss",] == 0.5
    assert not any("reward" in name or "drift" in name for name, *_ in others)


def test_an_open_run_has_no_metrics_of_an_organised_one() -> None:
    known = {name for name, *_ in samples(status(**organised()))}
    assert known - {name for name, *_ in samples(status())} == {
        "sfnode_metric", "sfnode_metric_low", "sfnode_metric_high", "sfnode_metric_loss", "sfnode_alarm",
        "sfnode_epochs_sealed_total", "sfnode_updates_counted",
        "sfnode_updates_behind", "sfnode_quota_left", "sfnode_seal_age_seconds",
    }  # fmt: skip


def test_what_a_node_takes_of_its_machine_and_why_it_pauses_are_metrics() -> None:
    known = {"name": "H100", "memory": 2, "memory_total": 80, "celsius": None, "watts": None}
    gpus = [GpuStatus(device=f"cuda:{n}", busy=busy, **known) for n, busy in enumerate((0.5, 0.9))]
    machine = MachineStatus(
        device="cuda:0,cuda:1", cpu=1.5, cores=4.0, memory=300, memory_total=900, gpus=gpus
    )
    found = samples(status(machine=machine, paused_by=["mains"]))
    assert (found["sfnode_cpu_cores",], found["sfnode_cpu_cores_allowed",]) == (1.5, 4.0)
    assert (found["sfnode_memory_bytes",], found["sfnode_gpu_memory_bytes", "H100", "cuda:0"]) == (300.0, 2.0)
    assert [found["sfnode_gpu_busy", "H100", gpu.device] for gpu in gpus] == [0.5, 0.9]
    assert ("sfnode_gpu_celsius", "H100", "cuda:0") not in found, "nothing tells it"
    paused = {reason: found["sfnode_paused", reason] for reason in prometheus.PAUSES}
    assert paused == dict.fromkeys(paused, 0.0) | {"mains": 1.0}


def test_each_device_says_what_it_has_measured_and_whether_it_has_failed() -> None:
    one = DeviceStatus(name="cuda:0", updates=12, seconds=0.25, problem=None)
    other = DeviceStatus(name="cuda:1", updates=0, seconds=None, problem="no room")
    found = samples(status(devices=[one, other]))
    assert (
        found["sfnode_device_updates_total", "cuda:0"],
        found["sfnode_device_update_seconds", "cuda:0"],
    ) == (12.0, 0.25)
    assert ("sfnode_device_update_seconds", "cuda:1") not in found
    assert [found["sfnode_device_failed", name] for name in ("cuda:0", "cuda:1")] == [0.0, 1.0]


def test_every_reason_for_a_pause_has_a_metric() -> None:
    limits = {"hours": "1:00-2:00", "idle": 5, "mains": True, "not_while": "game", "celsius": 80}
    every = Limits.model_validate(limits | {"memory": 1, "mb_per_day": 1})
    bad = pauses.Readings(time(12, 0), 0.0, False, frozenset({"game"}), 99.0, 2, 2.0, day_bytes=10**6)
    reasons = {reason.limit for reason in pauses.pause_reasons(every, bad, ())}
    assert set(prometheus.PAUSES) == {limiter.ASKED_BY_OWNER, limiter.DISK, limiter.ROOM, *reasons}


def test_every_alarm_that_there_is_has_a_metric() -> None:
    source = Path(alarms.__file__).read_text()
    codes = {getattr(Code, name) for name in re.findall(r"Code\.(\w+)", source)}
    assert {f"SF{code:03d}" for code in codes} == set(prometheus.ALARMS)
