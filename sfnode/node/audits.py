"""Audits: updates of others, recomputed; of what has just come to a running node, or of a folder's log.

Carries out what the sans-IO policy (`sfnode.organising.evaluation.audits`) picks. A running node recomputes
at its own state of now, for a small share of its time; a folder is audited at the states that its log
remembers. Both need the rows that everybody has: who trains on rows of its own, or on a shard, draws other
mini-batches.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from random import SystemRandom
from statistics import StatisticsError, correlation, mean
from typing import TYPE_CHECKING, NamedTuple, Protocol

from sfnode.engine.core import UpdateBatch
from sfnode.errors import Code, UserError
from sfnode.logging import log
from sfnode.manifest import Manifest
from sfnode.node.startup import settled
from sfnode.node.training.engine_thread import Engine, StepResult
from sfnode.organising.evaluation import audits as policy
from sfnode.organising.evaluation.audits import Audited, Audits, News
from sfnode.organising.reporting.alarms import shown
from sfnode.schema.audits import AuditedOrigin, AuditResult, AuditStatus, Finding
from sfnode.schema.status import AlarmStatus
from sfnode.store import checkpoint as states
from sfnode.store.past_states import Moment, PastStates
from sfnode.store.replay import changes
from sfprotocol.decisions import INCARNATIONS, Announce, Bases, Revoke
from sfprotocol.messages import Feed
from sfprotocol.seeds import I64, update_seeds
from sfprotocol.weighing import NOTHING

if TYPE_CHECKING:
    from sfnode.node.running import RunningNode
    from sfnode.store.log import UpdateLog

BATCH = 8
"""Updates that are recomputed in one batched forward pass, each with its group."""

LOOK_INTERVAL, LOOK_INTERVAL_PER_FEED = 1.0, 0.0005
"""Seconds between two looks at what has come, which take some microseconds for each feed."""

SHOWN = 16
"""Refuted origins that a status names."""

KEY_DIGITS = 16
"""Digits of an origin's key by which people are told of it."""


class Claim(NamedTuple):
    """An update as its origin has signed it."""

    feed: Feed
    step: int
    epoch: int
    seeds: tuple[int, ...]
    """Those of all updates that are measured with it: of its group, or its own."""
    scalar: int


def claim_of(update_log: UpdateLog, feed: Feed, step: int, together: int = 1) -> Claim | None:
    """Return an update of the log, of a run that measures so many together; None if it is not there any
    more."""
    segment = update_log.read(feed, step, 1)
    if segment is None:
        return None
    epoch, scalars = segment.parts[0]
    seeds = update_seeds(segment.feed_key, step - step % together, together)
    return Claim(feed, step, epoch, tuple(seeds.tolist()), scalars[0])


def recomputed(
    step: Callable[[Sequence[int], int], StepResult], claims: Sequence[Claim]
) -> Iterator[tuple[Claim, int]]:
    """Recompute claims at one state; leave out those of which the measurement fails here."""
    by_epoch = defaultdict(list)
    for claim in claims:
        by_epoch[claim.epoch].append(claim)
    for epoch, alike in by_epoch.items():
        for first in range(0, len(alike), BATCH):
            batch = alike[first : first + BATCH]
            result = step([seed for claim in batch for seed in claim.seeds], epoch)
            if not result.failed:
                for number, claim in enumerate(batch):
                    together = len(claim.seeds)
                    yield claim, result.scalars[number * together + claim.step % together]


def problem(origin: bytes, mean: float, audited: int) -> UserError:
    """Return what to say of an origin that is refuted."""
    return UserError(
        Code.SCALARS_REFUTED,
        f"the scalars of origin {origin.hex()[:KEY_DIGITS]} are not those that the run's public rows give: "
        f"in {audited} audits they were off by {mean:.2f} on average, where 0 is equal and 0.5 is invented",
        "It may train on rows of its own (--data), on a part (--shard), or in a coarser number format "
        "(--dtype): ask its owner. If neither is so, `sfnode organise revoke` it, and `void` what it has "
        "spoilt.",
    )


# -- a folder ------------------------------------------------------------------------------------------


class FolderEngine(Protocol):
    """The part of `engine.trainer.Trainer` that audits a folder, declared without torch."""

    @property
    def dtype(self) -> str: ...
    def begin(self, cores: Mapping[int, I64]) -> None: ...
    def use_bases(self, published: Sequence[Bases]) -> None: ...
    def apply(self, batch: UpdateBatch) -> None: ...
    def recompute(self, seeds: Sequence[int], epoch: int) -> StepResult: ...
    def close(self) -> None: ...


class Chosen(NamedTuple):
    """Part of a folder that is audited, and how strictly."""

    origin: str
    """Hex with which the keys of origins begin."""
    sample: int
    """Updates of each origin."""
    tolerance: float = policy.TOLERANCE


def audit_folder(
    manifest: Manifest,
    update_log: UpdateLog,
    checkpoints: Path,
    chosen: Chosen,
    load: Callable[[], FolderEngine],
    advance: Callable[[int, int], None] = lambda done, total: None,
) -> AuditResult:
    """Audit a sample of a log's updates, at the states that it remembers; `advance` is told how far it is.

    Of a log that begins with a checkpoint those after it. Raises UserError LOG_CORRUPT, CHECKPOINT_UNUSABLE,
    and as `load` does.
    """
    run = manifest.parameters()
    machine = settled(run, update_log)
    counting = machine.frontier.counting
    begins = states.start(checkpoints, counting, update_log) if update_log.bases() else states.Start()
    past = PastStates(run, update_log, {state.feed: state.next for state in machine.frontier})
    read = partial(claim_of, update_log, together=manifest.training.batch_updates)
    audits = Audits(SystemRandom().random, chosen.tolerance)
    claims = _sample(read, past, audits, chosen, begins.checkpoint.epoch if begins.checkpoint else -1)
    with closing(load()) as engine:
        if counting:
            engine.use_bases(counting.bases)
        if begins.checkpoint and counting:
            engine.begin(states.load(checkpoints, manifest, counting, begins.checkpoint).cores)
        scalars, applied = defaultdict[Claim, list[int]](list), dict(begins.counted)
        for done, moment in enumerate(sorted(claims)):
            advance(done, len(claims))
            wanted = dict.fromkeys(applied, NOTHING) | past.state(moment)
            for batch in changes(update_log, applied, wanted, run.subspace_epochs):
                engine.apply(batch)
            applied = wanted
            for claim, scalar in recomputed(engine.recompute, claims[moment]):
                scalars[claim].append(scalar)
        dtype = engine.dtype
    found = [Audited(claim.feed.origin, claim.scalar, tuple(said)) for claim, said in scalars.items()]
    audits.take(found)
    return AuditResult(
        run_id=run.run_id.hex(),
        dtype=dtype,
        tolerance=chosen.tolerance,
        audited=len(found),
        origins=_outcomes(audits, found),
    )


def _sample(
    read: Callable[[Feed, int], Claim | None], past: PastStates, audits: Audits, chosen: Chosen, after: int
) -> dict[Moment, list[Claim]]:
    """Draw the updates to audit, of epochs later than `after`, and `read` them; return them by the moments
    before and after they were made."""
    found: dict[Moment, list[Claim]] = defaultdict(list)
    by_origin = defaultdict(list)
    for feed, stop in past.held.items():
        if feed.origin.hex().startswith(chosen.origin):
            by_origin[feed.origin].append(News(feed, past.after(feed, after), stop))
    for news in by_origin.values():
        for feed, step in audits.pick(news, chosen.sample):
            if claim := read(feed, step):
                for moment in past.moments(feed, step):
                    found[moment].append(claim)
    return found


def _outcomes(audits: Audits, audited: Sequence[Audited]) -> list[AuditedOrigin]:
    """Return the outcome for each origin, the most doubtful first."""
    by_origin = defaultdict(list)
    for one in audited:
        by_origin[one.origin].append(one)
    found = [
        AuditedOrigin(
            origin=origin.hex(),
            finding=evidence.finding,
            audited=evidence.audited,
            disagreement=evidence.mean,
            correlation=_correlation(by_origin[origin]),
        )
        for origin, evidence in audits.origins.items()
    ]
    return sorted(found, key=lambda one: -one.disagreement)


def _correlation(audited: Sequence[Audited]) -> float | None:
    """Return the correlation of claimed and recomputed scalars; None if there is none."""
    try:
        return correlation([one.claimed for one in audited], [mean(one.recomputed) for one in audited])
    except StatisticsError:
        return None


# -- a running node ------------------------------------------------------------------------------------


class Auditing:
    """The audits of one running node, which spends a share of its time on them."""

    def __init__(self, node: RunningNode) -> None:
        """Raises UserError BAD_OPTION for a node that cannot recompute what others say."""
        settings = node.settings
        if settings.role == "relay" or settings.data or settings.shard or not node.manifest.data.train:
            raise UserError(
                Code.BAD_OPTION,
                "only a trainer on all of the run's public rows can audit others",
                "Leave out --audit, or leave out --data and --shard and train in a run with public data.",
            )
        self._node = node
        self._audits = Audits(node.outside.random.random)
        self._known: dict[Feed, int] = {}
        """Steps of each feed that have been looked at."""
        self._begun = False
        self._audited = 0

    @property
    def alarms(self) -> list[AlarmStatus]:
        """Words about the origins that were refuted."""
        return [shown(problem(origin, one.mean, one.audited)) for origin, one in self._refuted()[:SHOWN]]

    def status(self) -> AuditStatus:
        """Return what has come of it."""
        findings = [one.finding for one in self._audits.origins.values()]
        return AuditStatus(
            audited=self._audited,
            confirmed=findings.count(Finding.CONFIRMED),
            undecided=findings.count(Finding.UNDECIDED),
            refuted=[origin.hex() for origin, _ in self._refuted()[:SHOWN]],
        )

    async def run(self) -> None:
        """Audit until cancelled."""
        share, rest = self._node.settings.audit, LOOK_INTERVAL
        while True:
            await asyncio.sleep(rest)
            claims, spent = self._claims(), 0.0
            if claims:
                spent = await self._audit(claims)
            looking = LOOK_INTERVAL + LOOK_INTERVAL_PER_FEED * len(self._node.machine.frontier)
            rest = max(looking, spent / share - spent)

    def _refuted(self) -> list[tuple[bytes, policy.Evidence]]:
        return [(origin, one) for origin, one in self._audits.origins.items() if one.refuted]

    def _claims(self) -> list[Claim]:
        """Return the next updates to audit, of those that have come since the last look; those that were here
        when the node began are history."""
        node, machine = self._node, self._node.machine
        able = node.model.scheduler is not None and node.model.scheduler.ready and not node.limiter.paused
        news = []
        for state in machine.frontier:
            first = self._known.get(state.feed, 0)
            self._known[state.feed] = state.next
            if able and self._begun and first < state.next and state.feed != machine.own:
                news.append(News(state.feed, first, state.next))
        self._begun = self._begun or able
        picked = self._audits.pick(news, BATCH)
        together = node.manifest.training.batch_updates
        found = (claim_of(node.log, feed, step, together) for feed, step in picked)
        return [claim for claim in found if claim]

    async def _audit(self, claims: Sequence[Claim]) -> float:
        """Recompute these updates, and act on what comes of it; return the seconds that it has taken."""

        def recompute(engine: Engine) -> tuple[list[Audited], float]:
            begun = time.monotonic()
            found = [
                Audited(claim.feed.origin, claim.scalar, (scalar,))
                for claim, scalar in recomputed(engine.step, claims)
            ]
            return found, time.monotonic() - begun

        assert self._node.model.thread is not None  # the scheduler was ready
        try:
            found, seconds = await self._node.model.thread.call(recompute)
        except UserError as error:
            log.warning("no audit: %s", error.what)
            return 0.0
        self._audited += len(found)
        for origin in self._audits.take(found):
            evidence = self._audits.of(origin)
            said = problem(origin, evidence.mean, evidence.audited)
            log.warning("SF%03d: %s", said.code, said.what)
            if self._node.settings.audit_revokes:
                await self._revoke(origin, said.what)
        return seconds

    async def _revoke(self, origin: bytes, reason: str) -> None:
        """Have the organiser here revoke an origin from what is not sealed yet on, and say why."""
        organised, organising = self._node.machine.organised, self._node.organising
        number = organised.counting.number(Feed(origin, 0)) if organised else None
        if organised is None or organising is None or number is None:
            return
        revoke = Revoke(number // INCARNATIONS, organised.counting.sealed)
        for wish in (Announce(f"Revoked: {reason}"), revoke):
            try:
                refusal = await organising.wish(wish)
            except UserError as error:
                refusal = error.what
            if refusal:
                log.warning("the organiser does not revoke %s: %s", origin.hex()[:KEY_DIGITS], refusal)
