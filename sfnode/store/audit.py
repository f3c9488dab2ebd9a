"""Checks a whole update log from genesis: chains, signatures, rules; needs no model (SPEC S1-S6, U3-U6)."""

from __future__ import annotations

from sfnode.engine.core import Core
from sfnode.errors import Code, UserError
from sfnode.manifest import Manifest
from sfnode.schema.results import VerifyResult
from sfnode.store.log import CutRecord, Record, UpdateLog
from sfnode.store.replay import Piece, batch_of, frontier_of
from sfprotocol import wire_codec
from sfprotocol.errors import RemoteProtocolError
from sfprotocol.fork_proofs import holds
from sfprotocol.frontier import Frontier
from sfprotocol.messages import Feed, Proof, RunParameters
from sfprotocol.segments import first_updates
from sfprotocol.signing import verifies
from sfprotocol.validation import Verified, fault, verify


def audit(manifest: Manifest, update_log: UpdateLog) -> VerifyResult:
    """Replay everything from genesis. Raises UserError LOG_CORRUPT where it does not verify."""
    run = manifest.parameters()
    frontier = Frontier(run)
    for cut in update_log.cuts():
        _check_cut(run, cut)
        frontier.cut(cut.feed, cut.at, cut.chain)
    core = Core(len(manifest.model.targets), manifest.training.rank)
    signatures = 0
    for record in update_log.records():
        if not frontier.state(record.feed).open:
            continue  # behind a cut
        segment, _, counted, chain = _checked(run, frontier, record)
        frontier.advance(record.feed, segment.first + counted, chain, segment.parts[-1].epoch)
        core.add(batch_of([Piece(segment.feed_key, segment.first, first_updates(segment.parts, counted))]))
        signatures += 1
    return VerifyResult(
        run_id=run.run_id.hex(),
        feeds=len(frontier),
        updates=frontier.known,
        signatures=signatures,
        digest=frontier.digest().hex(),
        core_digest=core.digest().hex(),
    )


def state_digest(manifest: Manifest, update_log: UpdateLog) -> str:
    """The state digest of what is in the log, without checking it."""
    return frontier_of(manifest.parameters(), update_log).digest().hex()


def _checked(run: RunParameters, frontier: Frontier, record: Record) -> Verified:
    """Return the part of this record that counts, recomputed and verified."""
    state, segment = frontier.state(record.feed), record.segment
    admitted = verify(run, state, segment, verifies)
    if admitted is None or segment.first != state.next:
        problem = fault(run, state, segment) or "its signature does not verify here"
        raise _damaged(record.feed, segment.first, problem)
    return admitted


def _check_cut(run: RunParameters, cut: CutRecord) -> None:
    """Check that the proof proves the cut."""
    try:
        proof = wire_codec.decode(cut.proof, run.scalar_bytes)
    except RemoteProtocolError as error:
        raise _damaged(cut.feed, cut.at, f"its proof of a fork cannot be read: {error}") from error
    proven = isinstance(proof, Proof) and (proof.feed, proof.cut) == (cut.feed, cut.at)
    if not (proven and isinstance(proof, Proof) and holds(run, proof, verifies)):
        raise _damaged(cut.feed, cut.at, "its proof of a fork proves nothing")


def _damaged(feed: Feed, step: int, problem: str) -> UserError:
    return UserError(
        Code.LOG_CORRUPT,
        f"step {step} of the feed of {feed.origin.hex()[:16]}: {problem}",
        "This log was damaged or tampered with. Remove the folder's updates.sqlite and join again.",
    )
