"""The files of deploy/ agree with each other and with the program. Needs no container engine."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from sfnode.cli.groups import LazyGroup
from sfnode.cli.main import cli

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
GRAFANA = DEPLOY / "grafana"

COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
DOCKERFILE = (ROOT / "Dockerfile").read_text()
DASHBOARD = json.loads((GRAFANA / "dashboards" / "sfnode.json").read_text())

WITH_OPTIONS = [
    DEPLOY / "compose.yaml",
    DEPLOY / "community" / "compose.yaml",
    DEPLOY / "README.md",
    DEPLOY / "systemd" / "sfnode.service",
    *sorted((DEPLOY / "kubernetes").glob("*.yaml")),
]

OPTION = re.compile(r"(?<![{\w])SFNODE_[A-Z_]+(?==|:|, value)")
"""A variable that is given to a node, not one that compose replaces."""


def variables(command: click.Command = cli) -> Iterator[str]:
    """Yield the environment variables of all options and arguments."""
    for parameter in command.params:
        yield from [parameter.envvar] if isinstance(parameter.envvar, str) else parameter.envvar or []
    inner_ones = command.load_all() if isinstance(command, LazyGroup) else getattr(command, "commands", {})
    for inner in inner_ones.values():
        yield from variables(inner)


def replaced(text: str) -> set[str]:
    """Return the variables that compose replaces in a text."""
    return set(re.findall(r"(?<!\$)\$\{(\w+)", text))


def test_containers_are_only_started_for_who_asks_for_them(request: pytest.FixtureRequest) -> None:
    asked = "containers" in request.config.getoption("markexpr")
    assert asked or not [item for item in request.session.items if item.get_closest_marker("containers")]


@pytest.mark.parametrize("file", WITH_OPTIONS, ids=lambda file: file.name)
def test_every_variable_that_a_node_is_given_is_an_option(file: Path) -> None:
    given = set(OPTION.findall(file.read_text()))
    own = {"SFNODE_MANIFEST", "SFNODE_BASE", "SFNODE_BUILD_BASE", "SFNODE_BUILD_NETWORK", "SFNODE_IMAGE"}
    assert given
    assert given - own - set(variables()) == set()


def test_every_variable_of_compose_is_described() -> None:
    table = (DEPLOY / "README.md").read_text()
    names = replaced((DEPLOY / "compose.yaml").read_text()) - {"HF_HUB_OFFLINE"}
    assert {name for name in names if f"`{name}`" not in table} == set()


def test_the_build_arguments_of_compose_are_those_of_the_dockerfile_with_the_same_defaults() -> None:
    declared = dict(re.findall(r"^ARG (\w+)=(.*)$", DOCKERFILE, re.MULTILINE))
    given = COMPOSE["x-node"]["build"]["args"]
    defaults = {name: re.sub(r"^\$\{\w+:?-(.*)\}$", r"\1", value) for name, value in given.items()}
    assert defaults == {name: declared[name] for name in given}


def test_prometheus_scrapes_the_services_that_run_nodes_at_their_port() -> None:
    (job,) = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())["scrape_configs"]
    (discovery,) = job["dns_sd_configs"]
    services = COMPOSE["services"].items()
    nodes = [name for name, service in services if "SFNODE_METRICS" in service.get("environment", {})]
    assert sorted(discovery["names"]) == sorted(nodes)
    assert COMPOSE["x-environment"]["SFNODE_METRICS"].endswith(f":{discovery['port']}")


def test_grafana_finds_its_dashboard_and_the_dashboard_its_source() -> None:
    (source,) = yaml.safe_load((GRAFANA / "provisioning/datasources/prometheus.yml").read_text())[
        "datasources"
    ]
    assert source["url"] == "http://prometheus:9090"
    asked = [panel["datasource"] for panel in DASHBOARD["panels"]]
    assert all(one == {"type": source["type"], "uid": source["uid"]} for one in asked)
    (provider,) = yaml.safe_load((GRAFANA / "provisioning/dashboards/sfnode.yml").read_text())["providers"]
    grafana = COMPOSE["services"]["grafana"]
    mounted = dict(volume.split(":")[:2] for volume in grafana["volumes"])
    assert mounted["./grafana/dashboards"] == provider["options"]["path"]
    assert mounted["./grafana/provisioning"] == "/etc/grafana/provisioning"
    home = Path(grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert home.parent == Path(provider["options"]["path"])
    assert (GRAFANA / "dashboards" / home.name).exists()


def test_panels_have_numbers_of_their_own_and_do_not_overlap() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for one, other in itertools.combinations([panel["gridPos"] for panel in panels], 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        above = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or above, (one, other)


def test_panels_ask_for_documented_metrics_only() -> None:
    documented = set(
        re.findall(r"^\| `(sfnode_\w+)` \|", (ROOT / "docs/metrics.md").read_text(), re.MULTILINE)
    )
    for panel in DASHBOARD["panels"]:
        asked = {name for target in panel["targets"] for name in re.findall(r"sfnode_\w+", target["expr"])}
        assert asked, panel["title"]
        assert asked <= documented, panel["title"]


def test_what_tells_whether_training_helps_or_harms_has_a_panel() -> None:
    asked = " ".join(target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"])
    watched = {"sfnode_metric", "sfnode_loss", "sfnode_reward", "sfnode_drift", "sfnode_drift_kl"}
    assert watched <= set(re.findall(r"sfnode_\w+", asked))


def kubernetes() -> Iterator[dict[str, Any]]:
    for file in (DEPLOY / "kubernetes").glob("*.yaml"):
        yield from yaml.safe_load_all(file.read_text())


def test_kubernetes_runs_nodes_as_the_image_s_user_with_nothing_writable_but_their_data() -> None:
    (user,) = re.findall(r"^USER (\d+):\d+$", DOCKERFILE, re.MULTILINE)
    sets = [document for document in kubernetes() if document["kind"] == "StatefulSet"]
    assert len(sets) == 3
    for document in sets:
        pod = document["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["runAsUser"] == int(user)
        (container,) = pod["containers"]
        assert container["args"][0] in cli.load_all()
        assert container["securityContext"]["readOnlyRootFilesystem"]
        writable = {one["mountPath"] for one in container["volumeMounts"] if not one.get("readOnly")}
        assert writable == {"/data", "/tmp"}


def test_kubernetes_services_lead_to_existing_pods_and_ports() -> None:
    documents = list(kubernetes())
    sets = {one["metadata"]["name"]: one["spec"] for one in documents if one["kind"] == "StatefulSet"}
    for service in (one for one in documents if one["kind"] == "Service"):
        spec = sets[service["metadata"]["name"]]
        assert spec["serviceName"] == service["metadata"]["name"]
        labels = spec["template"]["metadata"]["labels"]
        assert labels == service["spec"]["selector"] == spec["selector"]["matchLabels"]
        ports = {port["name"] for port in spec["template"]["spec"]["containers"][0]["ports"]}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports


def test_the_service_of_systemd_runs_a_command_that_exists() -> None:
    unit = (DEPLOY / "systemd" / "sfnode.service").read_text()
    (words,) = re.findall(r"^ExecStart=\S*/sfnode (.*)$", unit, re.MULTILINE)
    assert words.split()[0] in cli.load_all()
