"""`pytest --device cuda` runs the suite with the models on another device than the CPU."""

from __future__ import annotations

import os

import pytest

VARIABLE = "SFNODE_DEVICE"
"""The command line's own variable, so that processes which tests start inherit it."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", default="", metavar="NAME", help="where models run, cpu if not given")


def pytest_configure(config: pytest.Config) -> None:
    if name := config.getoption("--device"):
        os.environ[VARIABLE] = name


def pytest_report_header(config: pytest.Config) -> str:
    return f"models run on: {os.environ.get(VARIABLE, 'cpu')}"
