"""AdamW on the rows of a matrix, by torch's own function for it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim.adamw import adamw


class AdamW:
    """Moments of Adam for every row of x (N, P), with torch's usual betas and epsilon."""

    def __init__(self, x: Tensor, learning_rate: float, weight_decay: float) -> None:
        self._x = x
        self._rate, self._decay = learning_rate, weight_decay
        self.first = torch.zeros_like(x)
        self.second = torch.zeros_like(x)
        self.steps = torch.zeros(len(x))

    def step(self, row: int, gradient: Tensor) -> None:
        """Take a step of one row against its gradient (P,)."""
        adamw(
            [self._x[row]],
            [gradient],
            [self.first[row]],
            [self.second[row]],
            [],
            [self.steps[row]],
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=self._rate,
            weight_decay=self._decay,
            eps=1e-8,
            maximize=False,
        )

    def tensors(self) -> dict[str, Tensor]:
        """Return by name the tensors that steps change."""
        return {"first": self.first, "second": self.second, "steps": self.steps}
