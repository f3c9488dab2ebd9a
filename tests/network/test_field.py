"""A volunteer's network: changed addresses, lost relays, slow names, IPv6 only, routers that forget
connections.

The scenes are those of `benchmarks.field`, which also runs the long ones, with the real waits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.network import scenes
from tests.network.scenes import Field, Figures, field
from tests.network.swarm import no_tracebacks

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300), pytest.mark.usefixtures("namespaces")]

PATIENCE = 90.0
"""Seconds after which an update no longer arrives by itself, even on a busy machine. The limits of
docs/reliability.md are checked by benchmarks.field."""


@pytest.mark.parametrize(
    "scene",
    [
        pytest.param(partial(scenes.moves, gap=0), id="another address"),
        pytest.param(partial(scenes.relay_dies, later=True, named=False), id="relay dies"),
        pytest.param(partial(scenes.slow_names, delay=5, cut=0), id="slow names"),
        pytest.param(scenes.sixth, id="IPv6 only"),
        pytest.param(partial(scenes.forgotten, idle=5, seconds=20), id="router forgets idle connections"),
    ],
)
def test_a_node_goes_on_by_itself(tmp_path: Path, scene: Callable[[Field], Figures]) -> None:
    with field(tmp_path, forked=True) as made:
        figures = scene(made)
        print(figures)
        no_tracebacks(made.nodes.values())
    assert max(figures.values()) < PATIENCE, figures
