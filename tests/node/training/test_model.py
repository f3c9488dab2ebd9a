"""What a running node asks its engine about, with nodes that count instead of computing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.node.helpers import SmallEngine, Swarm


async def test_between_the_two_states_of_a_way_no_step_is_made(swarm: Swarm) -> None:
    a = await swarm.first()
    await a.until(lambda: a.node.model.loaded)
    made: list[int] = []

    def noting(engine: SmallEngine) -> dict[int, Any]:
        made.append(len(engine.epochs))
        return {}

    def question(engine: Any, after: Mapping[int, Any]) -> int:
        return len(engine.epochs)

    a.engine.cores = lambda: noting(a.engine)  # type: ignore[method-assign]
    await a.until(lambda: len(a.engine.epochs) > 0)
    for _ in range(5):
        asked = await a.node.model.ask_of_step(question, dict, dict, "asking")
        assert asked == made[-1]
