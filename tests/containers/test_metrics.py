"""A real Prometheus sees the swarm: every node is scraped, every panel has data, no alert fires."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.containers.docker import run
from tests.containers.swarm import TRAINERS, Swarm, execute, inspect, until, until_status
from tests.processes.prometheus import GPU, METRICS, Prometheus, Target, documented, targets

pytestmark = [pytest.mark.containers, pytest.mark.timeout(3600)]

DEVICES = {"sfnode_device_updates_total", "sfnode_device_update_seconds", "sfnode_device_failed"}
TRAINERS_ONLY = {"sfnode_loss", "sfnode_reward", "sfnode_quota_left", *DEVICES}
"""Metrics that a relay does not have: it has no model, and is no member of the run."""

ELSEWHERE = {"sfnode_reward", "sfnode_metric_reward", "sfnode_drift", "sfnode_drift_kl"}
"""Metrics of reward runs, and of nodes that were asked for an evaluation."""

_SCRAPE = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:9100/metrics').read().decode())"


def scraped(container: str) -> dict[str, dict[str, float]]:
    """Return /metrics of a container: the values of each metric by their labels."""
    found = re.findall(r"^(\w+)(\{.*\})? (\S+)$", execute(container, "python", "-c", _SCRAPE), re.MULTILINE)
    values: dict[str, dict[str, float]] = {}
    for name, labels, value in found:
        values.setdefault(name, {})[labels] = float(value)
    return values


def in_the_table() -> set[str]:
    return set(re.findall(r"^\| `(sfnode_\w+)` \|", METRICS.read_text(), re.MULTILINE))


def scraped_targets(prometheus: Prometheus) -> list[dict[str, Any]]:
    return list(prometheus.ask("targets", state="active")["activeTargets"])


def takes_part(status: dict[str, Any]) -> bool:
    """Return whether a node has neighbours and, unless it is a relay, a loss."""
    return bool(status["links"]) and (status["role"] == "relay" or status["loss"] is not None)


def test_every_node_answers_with_the_documented_metrics(swarm: Swarm, trainers: list[str]) -> None:
    names = in_the_table() - GPU - ELSEWHERE
    assert len(names) > 20
    for container in swarm.nodes():
        now = until_status("it takes part", container, takes_part)
        said = scraped(container)
        expected = names - TRAINERS_ONLY if now["role"] == "relay" else names
        assert expected - set(said) == set()
        assert said["sfnode_updates_known_total"][""] >= now["known"]
        (info,) = said["sfnode_info"]
        assert f'peer="{now["peer"]}"' in info


def test_prometheus_finds_and_scrapes_every_node(
    swarm: Swarm, trainers: list[str], prometheus: Prometheus
) -> None:
    addresses = {
        inspect(node, "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}") + ":9100"
        for node in swarm.nodes()
    }

    def all_up() -> bool:
        seen = scraped_targets(prometheus)
        up = {target["labels"]["instance"] for target in seen if target["health"] == "up"}
        return up == addresses and len(seen) == len(addresses)

    until("all targets are up", all_up, lambda: json.dumps(scraped_targets(prometheus)))


def test_prometheus_does_not_run_as_root(prometheus: Prometheus) -> None:
    _, *users = run("docker", "top", prometheus.container, "-eo", "uid,pid").splitlines()
    assert users
    assert "0" not in {line.split()[0] for line in users}


def asked_by(target: Target) -> set[str]:
    """Return the metrics of a panel's expression."""
    return set(re.findall(r"sfnode_\w+", target.expression))


def least(target: Target) -> int:
    """Return the number of series of a panel's expression: one, or one for each node with the metric."""
    if "{{instance}}" not in target.legend:
        return 1
    trainers = TRAINERS + 1  # one of them organises
    only_trainers = asked_by(target) <= TRAINERS_ONLY
    return trainers if only_trainers else trainers + 1


def test_every_panel_of_the_dashboard_has_data_of_every_node(
    prometheus: Prometheus, trainers: list[str]
) -> None:
    everywhere = [target for target in targets() if not asked_by(target) <= ELSEWHERE]
    for target in everywhere:
        seen = until(
            f"{target.panel} has {least(target)} series",
            lambda target=target: enough(prometheus.values(target.expression), least(target)),
            lambda target=target: json.dumps(prometheus.ask("query", query=target.expression)),
        )
        print(f"panel {target.panel}: {len(seen)} series, such as {seen[0]:.3f}")


def enough(seen: list[float], least: int) -> list[float] | None:
    return seen if len(seen) >= least else None


def test_prometheus_understands_every_expression_in_the_docs_and_no_alert_fires(
    prometheus: Prometheus, trainers: list[str]
) -> None:
    for expression in documented():
        seen = prometheus.values(expression)
        alarm = re.search(r"(==|>) \d+$", expression)
        assert not (alarm and seen), f"{expression} is {seen}"
        print(f"{expression}: {len(seen)} series")
