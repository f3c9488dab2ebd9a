"""Checks a whole update log from genesis: chains, signatures, rules; needs no model (SPEC S1-S6, U3-U6)."""

from __future__ import annotations

from typing import NamedTuple

from sfnode.config import Manifest
from sfnode.engine.core import Core
from sfnode.errors import Code, UserError
from sfnode.runtime.replay import batch_of
from sfnode.store.log import Record, UpdateLog
from sfprotocol.admission import fault, verify
from sfprotocol.frontier import Frontier
from sfprotocol.messages import RunParameters


class Audit(NamedTuple):
    """What was checked, and the digests that follow from it, in hex."""

    run_id: str
    feeds: int
    updates: int
    signatures: int
    digest: str
    core_digest: str


def audit(manifest: Manifest, update_log: UpdateLog) -> Audit:
    """Replay everything from genesis. Raises UserError LOG_CORRUPT where it does not verify."""
    run = manifest.parameters()
    frontier = Frontier(run)
    core = Core(len(manifest.model.targets), manifest.training.rank)
    signatures = 0
    for record in update_log.records():
        chain = _checked(run, frontier, record)
        segment = record.segment
        frontier.advance(record.feed, segment.stop, chain, segment.parts[-1].epoch)
        core.add(batch_of(segment.feed_key, segment.first, segment.parts))
        signatures += 1
    return Audit(
        run_id=run.run_id.hex(),
        feeds=len(frontier),
        updates=frontier.known,
        signatures=signatures,
        digest=frontier.digest().hex(),
        core_digest=core.digest().hex(),
    )


def state_digest(manifest: Manifest, update_log: UpdateLog) -> str:
    """The state digest of what is in the log, without checking it."""
    frontier = Frontier(manifest.parameters())
    for tail in update_log.tails():
        frontier.advance(tail.feed, tail.next, tail.chain, tail.epoch)
    return frontier.digest().hex()


def _checked(run: RunParameters, frontier: Frontier, record: Record) -> bytes:
    """The chain head after this record, recomputed and verified."""
    state, segment = frontier.state(record.feed), record.segment
    admitted = verify(run, state, segment)
    if admitted is None or segment.first != state.next:
        problem = fault(run, state, segment) or "its signature does not verify here"
        raise UserError(
            Code.LOG_CORRUPT,
            f"step {segment.first} of the feed of {record.feed.origin.hex()[:16]}: {problem}",
            "This log was damaged or tampered with. Remove the folder's updates.sqlite and join again.",
        )
    return admitted[1]
