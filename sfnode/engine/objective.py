"""Things that the objectives of runs share, which differ by task (`losses`, `reward_objective`): rows, and
breaking off.

A trainer has one objective, which says what an update measures and evaluates the model at the weights that
are asked about. Rows of a run that everybody has are read here when they are first asked for, and once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sfnode.engine.forward import Perturb
from sfnode.errors import Code, UserError
from sfnode.manifest import Manifest
from sfnode.tasks import calibration, dataset
from sfnode.tasks.dataset import HeldOut
from sfnode.tasks.fitting import Fitting
from sfnode.tasks.prompts import Row
from sfnode.tasks.public_files import ELSEWHERE, NOWHERE, Places

KeepGoing = Callable[[], bool]
"""Asked now and then whether a long measurement should go on."""

RowLosses = Callable[[Perturb, KeepGoing], NDArray[np.float64]]
"""Measures the losses of some rows, (rows,), where the first argument moves the weights. Raises UserError
PAUSED."""

OWN = b""
"""Stands for the digest of weights that nobody asks about again."""

BASE = b"base"
"""Stands for the digest of the base model's cores."""


def always() -> bool:
    """Go on whatever happens."""
    return True


def paused() -> UserError:
    """Return the error of a measurement that was broken off."""
    return UserError(
        Code.PAUSED,
        "the node was paused while it measured the model",
        "Ask again; a node that is paused already measures all the same.",
    )


class Held(NamedTuple):
    """Some of the rows that nobody trains on."""

    which: HeldOut
    limit: int
    """Number of rows that was asked for; 0: as many as the manifest says."""
    rows: Sequence[Row]


class RunRows:
    """The public rows of one run."""

    def __init__(
        self,
        manifest: Manifest,
        tokenizer: Any,
        places: Places = NOWHERE,
        public: Sequence[dataset.Row] | None = None,
    ) -> None:
        """`places` is where the run's data may be; `public` are its training rows, if they were read
        already."""
        self._manifest = manifest
        self.fitting = Fitting(manifest.task, tokenizer)
        self.places = places
        self._public = None if public is None else dataset.select(list(public), calibration.CALIBRATION_ROWS)
        self._some: list[dataset.Row] | None = None
        self._held_out: dict[tuple[dataset.HeldOut, int], Held] = {}

    def held_out(self, which: dataset.HeldOut, limit: int = 0) -> Held:
        """Return `limit` (0: as many as the manifest says) of the rows on which models are measured.

        Raises UserError as `dataset.held_out_rows`.
        """
        if (which, limit) not in self._held_out:
            data, task = self._manifest.data, self._manifest.task
            found = dataset.held_out_rows(data, task, which, limit, self.places)
            self._held_out[which, limit] = Held(which, limit, self.fitting.of(found))
        return self._held_out[which, limit]

    def training(self) -> list[dataset.Row]:
        """Return the public training rows. Raises UserError as `dataset.training_rows`."""
        return dataset.training_rows(self._manifest.data, self._manifest.task, self.places)

    def some(self) -> list[dataset.Row]:
        """Return up to CALIBRATION_ROWS of them. Raises UserError as `training`."""
        if self._some is None:
            public = self.training() if self._public is None else self._public
            self._some = self.fitting.of(dataset.select(public, calibration.CALIBRATION_ROWS))
        return self._some

    def training_if_any(self) -> list[dataset.Row]:
        """Return the public training rows; none if they are not within reach. Raises UserError DATA_MALFORMED
        and the like."""
        return _if_any(self.training)

    def some_if_any(self) -> list[dataset.Row]:
        """Return up to CALIBRATION_ROWS of them; as `training_if_any`."""
        return _if_any(self.some)


def _if_any(read: Callable[[], list[dataset.Row]]) -> list[dataset.Row]:
    try:
        return read()
    except UserError as error:
        if error.code not in (Code.DATA_NEEDED, *ELSEWHERE):
            raise
        return []
