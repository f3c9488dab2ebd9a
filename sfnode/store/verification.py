"""Verifies a whole update log: chains, signatures and rules, without a model (SPEC S1-S6, U3-U6).

The verification begins at genesis, or at a checkpoint that the organiser has signed. In an organised run
decisions are verified first, because they determine which updates may be stored and which count. If the log
has all updates that a seal or checkpoint covers, the digest in the seal or checkpoint is compared with the
log. Missing updates are reported, but are no error.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sfnode.engine.core import Core
from sfnode.errors import Code, UserError
from sfnode.manifest import Manifest
from sfnode.schema.results import SealsResult, VerifyResult
from sfnode.store import checkpoint
from sfnode.store.checkout import Checkout, last_seal, whole
from sfnode.store.checkpoint import CheckpointState
from sfnode.store.known_feeds import beginning
from sfnode.store.log import CutRecord, Record, UpdateLog
from sfnode.store.replay import changes, kept_control, run_state_of, sound_control, state_digest
from sfnode.store.segment_encoding import UNSIGNED
from sfprotocol import decisions, wire_codec
from sfprotocol.checkpoints import Base, feeds_digest
from sfprotocol.control_sync import ControlSync
from sfprotocol.decisions import Checkpoint, Decision, Seal
from sfprotocol.errors import RemoteProtocolError
from sfprotocol.events import Counters
from sfprotocol.fork_proofs import holds
from sfprotocol.frontier import Frontier
from sfprotocol.messages import Entry, EpochScalars, Feed, Proof, RunParameters
from sfprotocol.run_state import RunState, named_digest
from sfprotocol.segments import drop_updates, first_updates, without_front
from sfprotocol.signing import Verify, extend, verifies
from sfprotocol.validation import Verified, fault, labelled_after, verify
from sfprotocol.weighing import Counted, live, named, once


def verify_log(
    manifest: Manifest,
    update_log: UpdateLog,
    state: CheckpointState | None = None,
    *,
    as_of_now: bool = False,
) -> VerifyResult:
    """Verify the whole log, from genesis or from `state`, the state of a usable checkpoint. In an organised
    run the core digest in the result is that of the last seal whose updates are all stored. With `as_of_now`
    it is that of all updates that count now.

    Raises UserError LOG_CORRUPT if the log is invalid, SEAL_DIFFERS if a digest in a seal or checkpoint
    differs from that of the log.
    """
    core = Core(*manifest.core_shape)
    return _Verification(manifest, update_log, core, state).result(as_of_now)


def state_to_begin_with(manifest: Manifest, update_log: UpdateLog, folder: Path) -> CheckpointState | None:
    """Return the state of the newest usable checkpoint in `folder`; None if there is no such checkpoint.
    Raises UserError as `checkpoint.start`, and LOG_CORRUPT."""
    run = manifest.parameters()
    run_state = run_state_of(run, update_log.control()) if run.organised else None
    return checkpoint.start(folder, run_state, update_log).state(manifest, run_state)


class _Verification:
    """The verification of one log. The core that is passed to it must be empty."""

    def __init__(
        self, manifest: Manifest, update_log: UpdateLog, core: Core, state: CheckpointState | None = None
    ) -> None:
        self._manifest = manifest
        self._run = run = manifest.parameters()
        self._log = update_log
        self._core = core
        self._begins = state
        self._added: dict[Feed, Counted] = {}
        """Updates in the core, with their weights, keyed by feed."""
        self._frontier = Frontier(run)
        self._entries = self._check_control() if run.organised else []
        self._heads: dict[Feed, dict[int, bytes]] = {}
        """Chain heads of each feed, keyed by step, for the steps at which a listed part of the feed ends or
        at which the feed is cut."""
        self._signatures = 0
        self._unsigned: dict[Feed, int] = {}
        """First step of the last verified row of each feed whose last verified row has no signature, keyed by
        feed."""
        self._bases = {base.feed: base for base in state.bases.values()} if state else {}
        for base in self._bases.values():
            self._frontier.advance(*base)
            self._heads[base.feed] = {base.step: base.chain}
        self._replay()

    def result(self, as_of_now: bool) -> VerifyResult:
        """Compare the log with the seals, and return the result of the verification."""
        checkout = last_seal(self._run, self._entries, self._frontier.next) if self._run.organised else None
        seals = self._check_seals(checkout) if checkout else None
        if checkout and not as_of_now:
            self._add(whole(self._added, checkout.counted))
        else:
            held, run_state = {state.feed: state.next for state in self._frontier}, self._frontier.run_state
            self._add(live(run_state, held) if run_state else {f: once(stop) for f, stop in held.items()})
        return VerifyResult(
            run_id=self._run.run_id.hex(),
            feeds=len(self._frontier),
            updates=self._frontier.known,
            signatures=self._signatures,
            digest=state_digest(self._manifest, self._frontier).hex(),
            core_digest=self._core.digest().hex(),
            checkpoint=self._begins.epoch if self._begins else None,
            seals=seals,
        )

    # -- the control feed --------------------------------------------------------------------------

    def _check_control(self) -> list[Entry]:
        """Verify all decisions; return them."""
        with sound_control(self._log):
            kept = kept_control(self._log)
            sync = ControlSync(self._frontier, {}, Counters(), kept=kept)
            if sync.feed.stop < len(kept.entries):
                raise RemoteProtocolError("O3", f"decision {sync.feed.stop} does not follow")
        return list(kept.entries)

    def _check_seals(self, checkout: Checkout) -> SealsResult:
        """Compare the log with those seals and checkpoints whose updates are all in the log. Return the
        numbers for the result."""
        read = [decisions.read(entry.record) for entry in self._entries]
        run_state = RunState.of(self._run)
        checked, last, begun = 0, None, self._begins is None
        first = self._place_of_checkpoint([recorded.decision for recorded in read])
        for place, recorded in enumerate(read):
            sealed = run_state.sealed
            run_state.apply(recorded)
            if place == first and self._begins:
                self._core.put(self._begins.cores)
                self._added, begun = named(run_state, self._begins.epoch), True
            elif isinstance(recorded.decision, Checkpoint) and begun:
                self._check_checkpoint(run_state, recorded.decision)
            if run_state.sealed == sealed or not isinstance(recorded.decision, Seal):
                continue
            heads = self._heads_of(run_state, sealed)
            if heads is None:
                continue
            digest = named_digest(self._run.run_id, heads)
            if digest != recorded.decision.digest:
                raise _differs(f"the seal of epoch {sealed} is of other updates")
            checked, last = checked + 1, digest
        positions, next_step = run_state.positions().items(), self._frontier.next
        return SealsResult(
            decisions=len(self._entries),
            sealed=run_state.sealed,
            checked=checked,
            behind=sum(max(0, stop - next_step(run_state.feed(number))) for number, stop in positions),
            named_digest=last.hex() if last else None,
            epoch=checkout.epoch,
            updates=checkout.updates,
            lacking=checkout.lacking,
        )

    def _place_of_checkpoint(self, said: list[Decision]) -> int | None:
        """Return the position, in `said`, of the decision that stated the checkpoint at which the
        verification begins; None if it begins at genesis."""
        if self._begins is None:
            return None
        stated = self._begins.decision(self._run.run_id)
        run_state = self._frontier.run_state
        if run_state is None or stated not in run_state.checkpoints:
            raise _differs(f"the checkpoint of epoch {stated.epoch} has other digests")
        return len(said) - 1 - said[::-1].index(stated)

    def _heads_of(self, run_state: RunState, epoch: int) -> list[tuple[int, int, bytes]] | None:
        """Return (number of the feed, stop, chain head at the stop) for each feed, where stop is the end of
        the steps that the closes up to that of `epoch` list. None if some of these steps are missing."""
        found = []
        for number, stop in run_state.positions(epoch).items():
            feed = run_state.feed(number)
            head = self._heads.get(feed, {}).get(stop)
            if head is None or self._frontier.next(feed) < stop:
                return None
            found.append((number, stop, head))
        return found

    def _check_checkpoint(self, run_state: RunState, stated: Checkpoint) -> None:
        """Compare the digests in the checkpoint `stated` with the updates that count according to the
        decisions up to this checkpoint. Raises UserError SEAL_DIFFERS."""
        heads = self._heads_of(run_state, stated.epoch)
        if stated not in run_state.checkpoints or heads is None:
            return
        bases = []
        for number, stop, head in heads:
            feed = run_state.feed(number)
            known = self._bases.get(feed)
            label = known[3:] if known and known.step == stop else self._log.label(feed, stop)
            bases.append((number, Base(feed, stop, head, *label)))
        self._add(whole(self._added, named(run_state, stated.epoch)))
        if (feeds_digest(self._run.run_id, bases), self._core.digest()) != (stated.feeds, stated.cores):
            raise _differs(f"the checkpoint of epoch {stated.epoch} has other digests")

    def _add(self, wanted: dict[Feed, Counted]) -> None:
        for batch in changes(self._log, self._added, wanted, self._run.subspace_of):
            self._core.add(batch)
        self._added.update(wanted)

    # -- feeds -------------------------------------------------------------------------------------

    def _replay(self) -> None:
        cuts = {cut.feed: cut for cut in self._log.cuts()}
        for cut in cuts.values():
            _check_cut(self._run, cut)
            if not self._run.organised:
                self._frontier.cut(cut.feed, cut.at, cut.chain)
        evicted = self._log.evicted()
        strange = set(evicted)
        for record in self._log.records():
            rest = self._beyond_base(record)
            if rest and record.feed not in strange and self._frontier.state(record.feed).open:
                found = self._checked(rest)
                if found is None:
                    strange.add(record.feed)
                    self._let_go(record.feed)
                else:
                    self._advance(record.feed, found, cuts.get(record.feed))
        if self._run.organised:
            for cut in cuts.values():
                self._cut(cut)
        for feed, first in self._unsigned.items():
            raise _damaged(feed, first, "nobody has signed it")
        for feed in evicted:
            if not self._frontier.excludes(feed):
                raise _damaged(feed, 0, "it has made room for others, and there is room")

    def _beyond_base(self, record: Record) -> Record | None:
        """Return the part of a record after the base of its feed; None if the whole record is before the
        base."""
        base, segment = self._bases.get(record.feed), record.segment
        if base is None or segment.first >= base.step:
            return record
        beyond = segment.stop > base.step
        return record._replace(segment=without_front(segment, base.step)) if beyond else None

    def _checked(self, record: Record) -> Verified | None:
        """Verify a record, and return the part of it that may be admitted, with recomputed values.

        Returns None if the signature is valid, but closes list another history of the feed, or the origin is
        not admitted.
        """
        run, state, segment = self._run, self._frontier.state(record.feed), record.segment
        run_state = self._frontier.run_state
        signed: Verify = verifies
        self._unsigned.pop(record.feed, None)
        if segment.signature == UNSIGNED:
            signed = _vouched_for_later
            self._unsigned[record.feed] = segment.first
        if segment.first == state.next:
            admitted = verify(run, state, segment, signed, run_state)
            if admitted is not None:
                return admitted
            chain = extend(state.chain, segment.parts)
            if run_state and signed(run.run_id, state.feed, segment.stop, chain, segment.signature):
                return None
        problem = fault(run, state, segment, run_state) or "its signature does not verify here"
        raise _damaged(record.feed, segment.first, problem)

    def _let_go(self, feed: Feed) -> None:
        """Count no update of a feed whose stored history is not the one that closes list. The machine does
        the same."""
        base = self._bases.get(feed) or beginning(self._run.run_id, feed)
        self._frontier.go_back(*base)
        self._heads[feed] = {base.step: base.chain} if base.step else {}
        self._unsigned.pop(feed, None)

    def _advance(self, feed: Feed, found: Verified, cut: CutRecord | None) -> None:
        state = self._frontier.state(feed)
        segment, _, counted, chain = found
        parts = first_updates(segment.parts, counted)
        stops = _heads_at(state.chain, segment.first, parts, self._stops(feed, cut))
        self._heads.setdefault(feed, {}).update(stops)
        epoch = parts[-1].epoch if parts else state.epoch
        self._frontier.advance(feed, segment.first + counted, chain, epoch, labelled_after(state, parts))
        if self._run.organised and counted < segment.count:
            self._frontier.stop(feed)
        self._signatures += segment.signature != UNSIGNED

    def _stops(self, feed: Feed, cut: CutRecord | None) -> list[int]:
        run_state = self._frontier.run_state
        number = run_state.number(feed) if run_state else None
        if run_state is None or number is None:
            return []
        named_stops = (named_stop[0] for named_stop in run_state.named_stops(number))
        return sorted({cut.at if cut else 0, run_state.ended(number), *named_stops})

    def _cut(self, cut: CutRecord) -> None:
        """Cut a feed at the step in the proof of its fork, but keep all steps that closes have listed (SPEC
        O7)."""
        heads = self._heads.get(cut.feed, {})
        if cut.at and heads.get(cut.at, cut.chain) != cut.chain and self._frontier.next(cut.feed) >= cut.at:
            raise _damaged(cut.feed, cut.at, "its history is not the one that its proof of a fork has")
        self._frontier.cut(cut.feed, cut.at, cut.chain)
        state = self._frontier.state(cut.feed)
        if state.next >= state.fork_cut:
            at = state.fork_cut
            chain = cut.chain if at == cut.at else heads[at]
            self._frontier.go_back(cut.feed, at, chain, *self._log.label(cut.feed, at))


def _vouched_for_later(run_id: bytes, feed: Feed, stop: int, chain: bytes, signature: bytes) -> bool:
    """Accept any row. This function takes the place of `verifies` for rows without a signature, because the
    signature of the next row covers them."""
    return True


def _heads_at(
    chain: bytes, first: int, parts: tuple[EpochScalars, ...], stops: list[int]
) -> Iterator[tuple[int, bytes]]:
    """Yield each step of the ascending `stops` that comes after an update of `parts`, with the chain head
    before that step. `parts` begin at step `first`, and `chain` is the chain head before `first`."""
    stop = first + sum(len(part.scalars) for part in parts)
    for step in stops:
        if first < step <= stop:
            chain = extend(chain, first_updates(parts, step - first))
            parts, first = drop_updates(parts, step - first), step
            yield step, chain


def _check_cut(run: RunParameters, cut: CutRecord) -> None:
    """Raise UserError LOG_CORRUPT unless the proof shows a fork of the feed at the cut."""
    try:
        proof = wire_codec.decode(cut.proof, *run.form)
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


def _differs(problem: str) -> UserError:
    return UserError(
        Code.SEAL_DIFFERS,
        f"{problem} than this log has, though every signature is sound",
        "Do not trust the run's results: show this message to other participants, who can check with "
        "`sfnode verify`.",
    )
