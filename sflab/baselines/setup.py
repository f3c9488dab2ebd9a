"""The setup of a baseline: the problem, the clients, who is linked with whom, and its numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from sflab.baselines.problem import VectorProblem


@dataclass(frozen=True)
class Setup:
    """Circumstances of one run of one method."""

    problem: VectorProblem
    clients: int
    edges: Callable[[int], Sequence[tuple[int, int]]]
    """Undirected links of communication round n. A client without any is away: it neither trains nor
    communicates in that round (unless it is the only client there is)."""
    seed: int
    """All chance of the method follows from it."""
    learning_rate: float
    epsilon: float = 1e-3
    """Distance of the two points of a zeroth-order estimate, in units of a normal vector, as MeZO's."""
    rank: int = 8
    """Rank of the factors that PowerSGD sends."""
    local_steps: int = 5
    """Local steps between two rounds of communication."""
    options: Mapping[str, float] = field(default_factory=dict)
    """Numbers that only this method has (`registry`)."""

    def round(self, step: int) -> int:
        """Return the round of communication that local step `step` belongs to."""
        return step // self.local_steps

    def links(self, number: int) -> list[tuple[int, int]]:
        """Return the links of round `number`, each once, the lower client first, in order."""
        return sorted({(min(link), max(link)) for link in self.edges(number) if link[0] != link[1]})

    def present(self, number: int) -> list[int]:
        """Return the clients that take part in round `number`."""
        if self.clients == 1:
            return [0]
        return sorted({client for link in self.links(number) for client in link})
