"""Fork proofs, which show that an origin has signed two histories of one feed (SPEC E1-E6).

Pure functions on segments, chain heads and signatures. The module fork_resolution decides whom to ask and
acts on proofs.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile

from sfprotocol.events import Examined
from sfprotocol.fields import Values
from sfprotocol.frontier import FeedState
from sfprotocol.messages import Branch, EpochScalars, Feed, Proof, RunParameters, Segment
from sfprotocol.segments import drop_updates, first_updates
from sfprotocol.signing import Verify, extend

Comparison = Proof | int | None
"""The result of comparing a peer's history of a feed with ours: a Proof if the two histories differ; the step
at which the shorter one ends if they are equal up to there; None if the peer's signature does not fit a
continuation of our history."""


def judge(run: RunParameters, state: FeedState, event: Examined, signed: Verify) -> Comparison:
    """Compare a peer's segment or proof with our own history of the feed, as read from the log (SPEC E2)."""
    if isinstance(event.against, Proof):
        return _adopted(event, event.against)
    found = _compare(run, event, event.against, signed)
    beside = _beside_cut(state, event, event.against) if isinstance(found, int) else None
    return beside or found


def _compare(run: RunParameters, event: Examined, theirs: Segment, signed: Verify) -> Comparison:
    head = extend(event.chain, theirs.parts)
    if not signed(run.run_id, event.feed, theirs.stop, head, theirs.signature):
        return None
    ours = event.ours
    pairs = zip(_updates(ours.parts), _updates(theirs.parts), strict=False)
    common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    if common == min(ours.count, theirs.count):
        return theirs.first + common
    fork = extend(event.chain, first_updates(ours.parts, common))
    one, other = (Branch(drop_updates(side.parts, common), side.signature) for side in (ours, theirs))
    return Proof(event.feed, theirs.first + common, (fork, fork), (one, other))


def _adopted(event: Examined, theirs: Proof) -> Proof | None:
    """Return the peer's proof if our history leads to it, else a proof that its history and ours differ."""
    if event.kept and event.kept.at == theirs.at and event.kept.chains[0] != theirs.chains[0]:
        return _apart(event.feed, theirs, event.kept.chains[0], _shorter(event.kept))
    if event.chain == theirs.chains[0]:
        return theirs
    return _apart(event.feed, theirs, event.chain, Branch(event.ours.parts, event.ours.signature))


def _beside_cut(state: FeedState, event: Examined, theirs: Segment) -> Proof | None:
    """Return the proof that the peer's signed history reaches our cut with another chain head than the
    cut's; None if it does not."""
    if event.kept is None or not state.forked_chain or not theirs.first <= state.forked <= theirs.stop:
        return None
    before = state.forked - theirs.first
    chain = extend(event.chain, first_updates(theirs.parts, before))
    if chain == state.forked_chain:
        return None
    return _apart(event.feed, event.kept, chain, Branch(drop_updates(theirs.parts, before), theirs.signature))


def _apart(feed: Feed, one: Proof, chain: bytes, branch: Branch) -> Proof:
    """Return a proof of two histories with different chain heads at the same step. The histories part at an
    unknown earlier step."""
    return Proof(feed, one.at, (one.chains[0], chain), (_shorter(one), branch))


def _shorter(proof: Proof) -> Branch:
    """Return the branch that follows the proof's first chain head. If both branches follow it, return the
    shorter one, to keep the new proof small: all nodes store it."""
    one, other = proof.branches
    shared = proof.chains[0] == proof.chains[1]
    return other if shared and _count(other) < _count(one) else one


def _count(branch: Branch) -> int:
    return sum(len(part.scalars) for part in branch.parts)


def holds(run: RunParameters, proof: Proof, signed: Verify) -> bool:
    """Return whether the proof shows two different signed histories (SPEC E1)."""
    firsts = [next(_updates(branch.parts), None) for branch in proof.branches]
    if proof.chains[0] == proof.chains[1] and (None in firsts or firsts[0] == firsts[1]):
        return False
    return all(
        signed(
            run.run_id, proof.feed, proof.at + _count(branch), extend(chain, branch.parts), branch.signature
        )
        for chain, branch in zip(proof.chains, proof.branches, strict=True)
    )


def _updates(parts: tuple[EpochScalars, ...]) -> Iterator[tuple[int, Values]]:
    return ((epoch, scalar) for epoch, scalars in parts for scalar in scalars)
