"""One copy of the built-in model for all tests here: to load it takes longer than most of them."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pytest

from sfnode.engine import trainer
from sfnode.experiments import problem
from sfnode.models.loader import LoadedModel, store_rows


@pytest.fixture(autouse=True)
def one_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(problem, "load_model", _at_base)


@lru_cache
def _loaded(digest: str, device: str) -> LoadedModel:
    return trainer.load_model(_manifests[digest], None, trainer.usable_device(device), "float32")


_manifests: dict[str, Any] = {}


def _at_base(manifest: Any, _override: None, device: Any, _dtype: str) -> LoadedModel:
    _manifests[manifest.model.digest] = manifest
    found = _loaded(manifest.model.digest, str(device))
    for number, site in enumerate(found.sites):
        store_rows(site, 0, found.base_weights.read(number))
    return found
