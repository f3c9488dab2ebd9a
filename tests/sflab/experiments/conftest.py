"""Problems and the built-in model are loaded and described once for all tests here, because that takes longer
than most tests."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pytest

from sflab.experiments import problem
from sflab.experiments.cell import Cell, Place
from sflab.experiments.problem import LoadedProblem
from sfnode.engine import loading
from sfnode.engine.loading import usable_device
from sfnode.models import loader
from sfnode.models.loader import LoadedModel, store_rows
from tests.cli.conftest import sfnode

__all__ = ["sfnode"]

LOAD = problem.load
DESCRIBE = lru_cache(loader.describe)


@pytest.fixture(autouse=True)
def one_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(problem, "load_model", lambda manifest, *_: _model(manifest.model.digest, manifest))
    monkeypatch.setattr(problem, "load", _at_base)
    monkeypatch.setattr(loader, "describe", DESCRIBE)


class Ignored:
    """A parameter that a cache ignores."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0


def _model(digest: str, manifest: Any) -> LoadedModel:
    return _loaded_model(digest, Ignored(manifest))


@lru_cache
def _loaded_model(_digest: str, manifest: Ignored) -> LoadedModel:
    return loading.load_model(manifest.value, None, usable_device("cpu"), "float32")


@lru_cache
def _loaded(_name: str, cell: Ignored, place: Place) -> LoadedProblem:
    return LOAD(cell.value, place)


def _at_base(cell: Cell, place: Place) -> LoadedProblem:
    found = _loaded(cell.name, Ignored(cell), place)
    for number, site in enumerate(found.loaded.sites):
        store_rows(site, 0, found.loaded.base_weights.read(number))
    return found
