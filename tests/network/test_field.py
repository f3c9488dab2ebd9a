"""A volunteer's network: addresses that change, relays that go, slow names, IPv6 only, routers that forget.

The scenes are those of `benchmarks.field`, which also plays the long ones, with the real waits.
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

WITHIN = 30.0
"""Seconds from the return of the network to a node's next update at another node (docs/reliability.md)."""

RELAYED_WITHIN = 60.0
"""Seconds from the death of a relay until two nodes that it joined meet through another."""


@pytest.mark.parametrize(
    ("scene", "within"),
    [
        pytest.param(partial(scenes.moves, gap=0), WITHIN, id="another address"),
        pytest.param(partial(scenes.relay_dies, later=True, named=False), RELAYED_WITHIN, id="relay dies"),
        pytest.param(partial(scenes.slow_names, delay=5, cut=0), WITHIN, id="slow names"),
        pytest.param(scenes.sixth, WITHIN, id="IPv6 only"),
        pytest.param(
            partial(scenes.forgotten, idle=5, seconds=20), WITHIN, id="router forgets idle connections"
        ),
    ],
)
def test_a_node_goes_on_by_itself(tmp_path: Path, scene: Callable[[Field], Figures], within: float) -> None:
    with field(tmp_path, forked=True) as made:
        figures = scene(made)
        print(figures)
        no_tracebacks(made.nodes.values())
    assert max(figures.values()) < within, figures
