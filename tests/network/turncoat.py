"""A node that says the opposite of what it measures, as loudly as the run allows.

    python tests/network/turncoat.py ... sfnode join ...

Everything but its scalars is honest: they have the wrong sign and the largest size. Whatever stands before
`join` on the command line is ignored, so that a test can put it in front of a node's command.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from sfnode.cli.main import main
from sfnode.engine import trainer

_measure = trainer.Trainer.step


def _step(self: trainer.Trainer, seeds: Sequence[int], epoch: int) -> Any:
    result = _measure(self, seeds, epoch)
    limit = self.manifest.training.scalar_limit
    return result._replace(scalars=tuple(-limit if scalar > 0 else limit for scalar in result.scalars))


if __name__ == "__main__":
    trainer.Trainer.step = _step  # type: ignore[method-assign]
    main(sys.argv[sys.argv.index("join") :])
