"""FedKSeed and DeComFL: zeroth-order training with a server that exchanges seeds and scalars only.

In both, a round's clients begin from one model, take local steps along directions that seeds name, and send
the server their scalars; everybody rebuilds the next model from the scalars' mean. Models are linear in the
scalars, so that this is the mean of the clients' vectors, and that is how it is computed here. What is sent
is counted, and kept so that a test can replay it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from sflab.baselines import vectors
from sflab.baselines.clients import Clients, Setup
from sfprotocol.seeds import stream


class SeedServer(Clients):
    """Clients whose models a server makes equal in every round. It is number `Setup.clients` of an edge."""

    def communicate(self, number: int) -> None:
        """Give all clients the mean of those who are there, and count what that takes."""
        present = self.setup.present(self.setup.round(number))
        if present:
            self.x.copy_(vectors.mean(self.x, present).expand_as(self.x))
            self.exchange(present)

    def exchange(self, present: Sequence[int]) -> None:
        """Count a round's messages, and keep what they say."""
        raise NotImplementedError

    def descend(self, client: int, scalar: float) -> None:
        """Move a client along the direction of its last estimate."""
        self.x[client].add_(self.z, alpha=-self.setup.learning_rate * scalar)


class FedKSeed(SeedServer):
    """FedKSeed (Qin et al., ICML 2024): all directions come from K seeds that are fixed at the start.

    A model is K numbers, the sums of each seed's scalars, weighted by 1 / clients: a client gets those and
    sends (seed, scalar) for every local step. Option: candidates, K. Seeds are drawn uniformly (FedKSeed-Pro
    draws them by their importance).
    """

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._candidates = int(setup.options["candidates"])
        self.sums = torch.zeros(self._candidates, dtype=torch.float64)
        """(K,) what a model is made of: start - learning_rate * sum_k sums[k] * z(k)."""
        self._own = torch.zeros(setup.clients, self._candidates, dtype=torch.float64)
        """(N, K) scalars of this round's local steps."""
        self._steps = torch.zeros(setup.clients, dtype=torch.int64)
        """(N,) local steps of this round."""

    def candidate(self, number: int) -> int:
        """Return candidate seed `number`."""
        return vectors.key(b"candidate", self.setup.seed, number)

    def local_step(self, client: int, number: int) -> float:
        """Take one client's zeroth-order step along a candidate that it draws."""
        draw = int(stream(vectors.key(b"choice", self.setup.seed, client, number), 0, 1)[0])
        chosen = draw % self._candidates
        scalar, loss = self.two_point(client, number, self.candidate(chosen))
        self.descend(client, scalar)
        self._own[client, chosen] += scalar
        self._steps[client] += 1
        return loss

    def exchange(self, present: Sequence[int]) -> None:
        """Count K sums to each client, and a seed and a scalar from it for each local step."""
        self.sums += self._own[list(present)].sum(0) / len(present)
        server = self.setup.clients
        for client in present:
            steps = int(self._steps[client])
            self.traffic.add((server, client), vectors.FLOAT * self._candidates)
            self.traffic.add((client, server), (vectors.SEED + vectors.FLOAT) * steps)
        self._own.zero_()
        self._steps.zero_()

    def tensors(self) -> dict[str, Tensor]:
        """Return the vectors, the sums, and the round so far."""
        return super().tensors() | {"sums": self.sums, "own": self._own, "steps": self._steps}


class DeComFl(SeedServer):
    """DeComFL (Li et al., ICLR 2025, Algorithm 1): all clients step along one direction at a time.

    The server sends a round's seeds, gets each client's scalars and sends their means; a client that was away
    gets seeds and means of what it has missed. The estimate here is the symmetric one, which costs as many
    forward passes as the paper's (f(x + mu z) - f(x)) / mu, with one direction a step.
    """

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.scalars: dict[int, float] = {}
        """Mean scalar of each step of finished rounds, the server's history."""
        self._pending: dict[int, list[float]] = {}
        """Scalars of the clients in each step of this round."""
        self._known = torch.zeros(setup.clients, dtype=torch.int64)
        """(N,) how much of the history each client has."""

    def direction(self, number: int) -> int:
        """Return the seed of everybody's direction in step `number`."""
        return vectors.key(b"common direction", self.setup.seed, number)

    def local_step(self, client: int, number: int) -> float:
        """Take one client's zeroth-order step along the common direction."""
        scalar, loss = self.two_point(client, number, self.direction(number))
        self.descend(client, scalar)
        self._pending.setdefault(number, []).append(scalar)
        return loss

    def exchange(self, present: Sequence[int]) -> None:
        """Count this round's seeds and means and what was missed to each client, and its scalars from it."""
        before, server = len(self.scalars), self.setup.clients
        self.scalars |= {step: sum(scalars) / len(present) for step, scalars in self._pending.items()}
        steps = len(self._pending)
        for client in present:
            missed = before - int(self._known[client])
            self.traffic.add((server, client), (vectors.SEED + vectors.FLOAT) * (missed + steps))
            self.traffic.add((client, server), vectors.FLOAT * steps)
        self._known[list(present)] = len(self.scalars)
        self._pending.clear()

    def state(self) -> Mapping[str, Any]:
        """Return also the history and the round so far."""
        return {**super().state(), "scalars": dict(self.scalars), "pending": dict(self._pending)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from such a state."""
        super().restore(state)
        self.scalars = dict(state["scalars"])
        self._pending = {step: list(scalars) for step, scalars in state["pending"].items()}

    def tensors(self) -> dict[str, Tensor]:
        """Return the vectors, and what each client knows."""
        return super().tensors() | {"known": self._known}
