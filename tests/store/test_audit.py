"""The audit of a log: it recomputes everything and trusts nothing else."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sfnode.engine.core import Core
from sfnode.errors import Code, UserError
from sfnode.store.audit import audit
from sfnode.store.log import Record, UpdateLog
from sfprotocol.messages import EpochScalars
from tests.node.helpers import batch, feed_of, machine, manifest, record

RUN = manifest(update_budget=100, scalar_limit=1000)
HONEST = [record(RUN, "a", [1, -2, 3]), record(RUN, "b", [4] * 50), record(RUN, "a", [5], before=[1, -2, 3])]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[UpdateLog]:
    with UpdateLog.open(tmp_path / "updates.sqlite", RUN.run_id) as log:
        yield log


def test_an_honest_log_has_the_digests_that_a_node_had(log: UpdateLog) -> None:
    log.append(HONEST)
    proof = audit(RUN, log)
    assert (proof.feeds, proof.updates, proof.signatures) == (2, 54, 3)
    assert proof.digest == machine(RUN, log.tails()).frontier.digest().hex()
    core = Core(2, 4)
    for _, segment, _ in HONEST:
        core.add(batch(segment.feed_key, segment.first, segment.parts))
    assert proof.core_digest == core.digest().hex()


def test_an_empty_log_passes(log: UpdateLog) -> None:
    assert audit(RUN, log).updates == 0


def forged(honest: Record, *scalars: int) -> Record:
    """Return other content under the same signature."""
    return honest._replace(segment=replace(honest.segment, parts=(EpochScalars(0, scalars),)))


def of_another_run(scalars: list[int]) -> Record:
    """Return what the same author wrote elsewhere."""
    said = record(manifest("other"), "a", scalars)
    return said._replace(segment=replace(said.segment, feed_key=HONEST[0].segment.feed_key))


@pytest.mark.parametrize(
    "tampered",
    [
        [forged(HONEST[0], 1, -2, 4)],
        [HONEST[0], forged(HONEST[2], 6)],
        [HONEST[0]._replace(segment=replace(HONEST[0].segment, signature=bytes(64)))],
        [of_another_run([1, -2, 3])],
        [record(RUN, "a", [1001])],
        [record(RUN, "a", [1] * 101)],
    ],
    ids=["content", "tail", "signature", "run", "scalar", "budget"],
)
def test_a_log_that_was_tampered_with_is_refused(log: UpdateLog, tampered: list[Record]) -> None:
    """The file itself was written by somebody else, with sound checksums."""
    log.append([HONEST[1], *tampered])
    with pytest.raises(UserError) as finding:
        audit(RUN, log)
    assert finding.value.code == Code.LOG_CORRUPT
    assert feed_of("a").origin.hex()[:16] in finding.value.what


def test_missing_updates_in_the_middle_are_noticed(log: UpdateLog) -> None:
    log.append(HONEST)
    with sqlite3.connect(log.path) as db:
        db.execute("DELETE FROM segment WHERE first = 0 AND feed = 1")
    with pytest.raises(UserError) as finding:
        audit(RUN, log)
    assert finding.value.code == Code.LOG_CORRUPT
