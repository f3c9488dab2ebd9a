"""Tests of worths that are measured again and compared with the signed ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from sfnode.engine.core import Core, UpdateBatch
from sfnode.history.time_travel import TOLERANCE, remeasure
from sfnode.schema.history import Remeasured
from sfnode.schema.measurements import StepShare
from sfprotocol.decisions import Part, Worth
from sfprotocol.seeds import I64
from tests.node.helpers import manifest
from tests.store.folders import Folder, organised

MANIFEST = organised(manifest())


class Engine:
    """An engine that measures 0.01 for every update, and remembers what was asked."""

    def __init__(self) -> None:
        self.core = Core(*MANIFEST.core_shape)
        self.applied = 0
        self.asked: list[tuple[int, int, int, bool]] = []

    def apply(self, batch: UpdateBatch) -> None:
        self.core.add(batch)
        self.applied += len(batch.seeds)

    def cores(self) -> dict[int, I64]:
        return {subspace: core.copy() for subspace, core in self.core.cores().items()}

    def shares(
        self, after: Mapping[int, I64], updates: Sequence[tuple[UpdateBatch, I64]], rows: int, turn: int
    ) -> tuple[list[StepShare], int]:
        moves = {s for s in after if (after[s] != self.cores().get(s, 0)).any()}
        self.asked.append((self.applied, rows, turn, bool(moves)))
        return [StepShare(len(b.seeds), 1.0, 1.0, 0.01 * len(b.seeds), 0.0) for b, _ in updates], 0


def measured(folder: Path, worths: Sequence[int]) -> tuple[list[Remeasured], Engine]:
    engine = Engine()
    with Folder(folder, MANIFEST, "a", organises=True) as made:
        made.admit("a", "b")
        for epoch, worth in enumerate(worths):
            made.make(6)
            made.bring("b", [5, 5])
            made.close()
            made.decide(Worth(epoch, 8, (Part(0, 6, worth, 1000), Part(64, 2, 20_000_000, 1000))))
            made.seal(skipped=[64] if epoch == 0 else [])
        found = remeasure(MANIFEST, made.log, made.log.control(), 2, engine, lambda one: None)
    return found, engine


def test_figures_agree_within_the_tolerance(tmp_path: Path) -> None:
    most = round(60_000_000 * (1 + TOLERANCE))
    found, _ = measured(tmp_path / "node", [0, most, 80_000_000])
    assert [(one.epoch, one.said, one.found) for one in found] == [
        (1, most + 20_000_000, 80_000_000),
        (2, 100_000_000, 80_000_000),
    ]
    assert [one.agrees for one in found] == [True, False]


def test_they_are_measured_from_the_weights_before_the_epoch_on_the_rows_of_its_turn(tmp_path: Path) -> None:
    _, engine = measured(tmp_path / "node", [60_000_000] * 3)
    assert engine.asked == [(6, 8, 1, True), (14, 8, 2, True)], "what the first seal skipped is not there"
