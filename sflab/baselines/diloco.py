"""DiLoCo: many steps of AdamW at each client, then one outer step on their mean (Douillard et al. 2023), with
the compression of OpenDiLoCo (Jaghouar et al. 2024): none, FP16, or PowerSGD as hivemind has it.

The mean is that over all clients that are there, by an all-reduce between every two of them: links say only
who is there. hivemind's own compressors are methods of network clients that need its DHT, and only the
transport may import it; torch's need a process group. What they compute is here, on vectors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from sflab.baselines import vectors
from sflab.baselines.centralised import AdamW
from sflab.baselines.clients import Clients, Setup, VectorPart


class DiLoCo(Clients):
    """Clients that average what their round has changed. The learning rate is that of the inner AdamW;
    options: outer_rate and momentum of the outer Nesterov SGD, weight_decay of the inner optimiser."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.shared = self.x[0].clone()
        """(P,) model that a round begins with."""
        self.momentum = torch.zeros_like(self.shared)
        self._inner = AdamW(self.x, setup.learning_rate, setup.options["weight_decay"])
        self._behind = torch.zeros(setup.clients, dtype=torch.bool)
        """(N,) clients that were away in the last round, and fetch the model when they are back."""

    def local_step(self, client: int, number: int) -> float:
        """Take one client's step of AdamW."""
        loss, gradient = self.gradient(client, client, number)
        self._inner.step(client, gradient)
        return loss

    def communicate(self, number: int) -> None:
        """Average the pseudo-gradients and take the outer step; all clients begin again from its result."""
        present = self.setup.present(self.setup.round(number))
        if not present:
            return
        self._count_fetching(present)
        for client in present:
            self.x[client].neg_().add_(self.shared)  # pseudo-gradient: from where it is to where it was
        average = self.average(present)
        decay, rate = self.setup.options["momentum"], self.setup.options["outer_rate"]
        self.momentum.mul_(decay).add_(average)
        self.shared.sub_(average.add_(self.momentum, alpha=decay), alpha=rate)
        self.x.copy_(self.shared.expand_as(self.x))

    def average(self, present: Sequence[int]) -> Tensor:
        """Return the mean (P,) of the pseudo-gradients in those rows of x, and count what it costs."""
        self.traffic.add_all_reduce(present, self.problem.size, vectors.FLOAT)
        return vectors.mean(self.x, present)

    def _count_fetching(self, present: Sequence[int]) -> None:
        """Count the models that those who were away have fetched before this round, from the first who was
        not."""
        peers = [client for client in present if not self._behind[client]]
        for client in present:
            if self._behind[client] and peers:
                self.traffic.add((peers[0], client), vectors.dense(self.problem.size))
        self._behind.fill_(True)
        self._behind[list(present)] = False

    def tensors(self) -> dict[str, Tensor]:
        """Return the vectors, both optimisers' moments, and who is behind."""
        outer = {"shared": self.shared, "momentum": self.momentum, "behind": self._behind}
        return super().tensors() | outer | self._inner.tensors()


class HalfDiLoCo(DiLoCo):
    """DiLoCo whose all-reduce carries float16 both ways."""

    def average(self, present: Sequence[int]) -> Tensor:
        """Return the mean of the rounded pseudo-gradients, rounded again."""
        for client in present:
            _round_to_half(self.x[client])
        self.traffic.add_all_reduce(present, self.problem.size, vectors.HALF)
        mean = vectors.mean(self.x, present)
        _round_to_half(mean)
        return mean


class PowerSgdDiLoCo(DiLoCo):
    """DiLoCo whose all-reduce carries factors of rank `Setup.rank` (Vogels et al. 2019; `power_average`).

    As in hivemind, vectors and matrices that factors would not halve are sent in full.
    """

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._errors = torch.zeros_like(self.x)
        """(N, P) what compression has withheld from the mean so far, client by client."""
        self._factors = [
            vectors.fill_normal(
                torch.empty(shape[1], setup.rank, device=self.x.device),
                vectors.key(b"factor", setup.seed, number),
            )
            for number, (_, shape) in enumerate(self._matrices())
        ]
        """Q of the last round for each matrix, (n, r), which everybody has."""

    def average(self, present: Sequence[int]) -> Tensor:
        """Return the mean of the pseudo-gradients as far as it has the rank."""
        mean = vectors.mean(self.x, present)  # what is sent in full stays
        factored = 0
        for (span, shape), q in zip(self._matrices(), self._factors, strict=True):
            for client in present:
                self._errors[client, span].add_(self.x[client, span])
            memories = [self._errors[client, span].view(shape) for client in present]
            mean[span] = power_average(memories, q).flatten()
            factored += shape[0] * shape[1]
        rest = self.problem.size - factored
        left = sum(shape[0] * self.setup.rank for _, shape in self._matrices())
        right = sum(q.numel() for q in self._factors)
        self.traffic.add_all_reduce(present, left, vectors.FLOAT)
        self.traffic.add_all_reduce(present, right + rest, vectors.FLOAT)
        return mean

    def tensors(self) -> dict[str, Tensor]:
        """Return also the errors and the factors."""
        factors = {f"factor{number}": q for number, q in enumerate(self._factors)}
        return super().tensors() | {"errors": self._errors} | factors

    def _matrices(self) -> Iterator[tuple[slice, tuple[int, int]]]:
        """Yield place and shape of every part that is sent as factors."""
        first = 0
        for part in self.problem.parts:
            if worth_factoring(part, self.setup.rank):
                yield slice(first, first + part.size), (part.shape[0], part.size // part.shape[0])
            first += part.size


LEAST_SAVING = 0.5
"""Share of the numbers that factors must save: hivemind's min_compression_ratio."""


def worth_factoring(part: VectorPart, rank: int) -> bool:
    """Return whether PowerSGD sends a part as factors."""
    if len(part.shape) < 2:
        return False
    rows = part.shape[0]
    return 1 - rank * (rows + part.size // rows) / part.size >= LEAST_SAVING


def power_average(memories: Sequence[Tensor], q: Tensor) -> Tensor:
    """Return the mean of matrices (m, n) as far as one power iteration from q (n, r) finds it, (m, n).

    All in place: q becomes the next round's, and each matrix what the result lacks of it, to be added to the
    next round's (error feedback). Two all-reduces: of P (m, r), and of Q.
    """
    p = torch.stack([memory @ q for memory in memories]).mean(0)
    p = torch.linalg.qr(p).Q  # (m, r), orthonormal columns
    q.copy_(torch.stack([memory.t() @ p for memory in memories]).mean(0))
    found: Tensor = p @ q.t()
    for memory in memories:
        memory.sub_(found)
    return found


def _round_to_half(vector: Tensor) -> None:
    """Round to float16 in place, what is too large to its largest number, as hivemind does."""
    most = torch.finfo(torch.float16).max
    vector.copy_(vector.clamp(-most, most).half())
