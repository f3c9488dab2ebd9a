"""A validator: a member whom the organiser has named to measure what each feed has brought (SPEC O18).

Measures in the background, within its owner's limits and for a share of its time; the protocol's machine
sees to whom it may tell, and when. The measurement is the organiser's own (`measured`), which that one makes
of epochs that nobody else has measured.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from sfnode.errors import Code, UserError
from sfnode.logging import log
from sfnode.node.context import NodeContext
from sfnode.organising.evaluation.evidence import MembersEvidence, parts_of
from sfnode.organising.evaluation.searching import BUSY, ORIGIN_ROWS
from sfnode.schema.evaluation import StepShare
from sfnode.schema.organising import ValidatorStatus
from sfnode.store.replay import counted_anew
from sfprotocol.decisions import INCARNATIONS
from sfprotocol.events import OwnFinding
from sfprotocol.messages import Feed
from sfprotocol.organised import Organised
from sfprotocol.validators import PANEL
from sfprotocol.weighing import Counted, counts_alike
from sfprotocol.wire_codec import MAX_ENTRIES

if TYPE_CHECKING:
    from sfnode.engine.replicas import ReplicatedTrainer as Engine
    from sfprotocol.seeds import I64

LOOK_INTERVAL = 1.0
"""Seconds between two looks whether an epoch is to be measured: one takes some microseconds for each feed."""


class MeasuredRows(NamedTuple):
    """The validation rows of a measurement: so many, and others with every turn."""

    number: int
    turn: int


async def measured(
    node: NodeContext, epoch: int, skipped: Iterable[int], rows: MeasuredRows, wanted: Callable[[], bool]
) -> tuple[dict[Feed, StepShare], int]:
    """Return what each feed has brought in a closed epoch, at the weights by the seals before and in the
    middle of its step without the feeds with the numbers `skipped`; and the example-forwards of measuring it.

    Nothing if something else counts of these epochs meanwhile. Raises UserError PAUSED once `wanted`, asked
    on the engine's thread, says no, and as `Engine.shares` and `LocalModel.ask`.
    """
    organised = node.machine.organised
    assert organised is not None
    before, after = dict[Feed, Counted](), dict[Feed, Counted]()

    def closed() -> Mapping[Feed, Counted]:
        after.update(organised.named(epoch))
        return organised.named(epoch, skipped)

    def sealed() -> Mapping[Feed, Counted]:
        if counts_alike(after, organised.named(epoch)):  # or else it is something else by now
            before.update(organised.named(epoch - 1))
        else:
            after.clear()
        return organised.named(epoch - 1)

    def look(engine: Engine, cores: Mapping[int, I64]) -> tuple[dict[Feed, StepShare], int]:
        found = counted_anew(node.log, before, after, node.machine.run.subspace_of)
        shares, taken = engine.shares(cores, list(found.values()), rows.number, rows.turn, wanted)
        return dict(zip(found, shares, strict=True)), taken

    what = f"measuring what members have brought in round {epoch}"
    return await node.model.ask_of_step(look, closed, sealed, what)


class Validating:
    """The validator of one node that may be named; it is asked to be one by nobody but the control feed."""

    def __init__(self, node: NodeContext) -> None:
        assert node.machine.organised is not None
        self._node = node
        self._organised: Organised = node.machine.organised
        data = node.manifest.data
        self._able = bool(data.validation or data.validation_limit)
        self._origins = MembersEvidence.of(node.manifest.training)
        self._named = False
        """Whether this node was named when it was last looked at."""
        self._measured = 0
        self._done: int | None = None
        """The last epoch that was measured, or could not be."""
        self._problem: str | None = None

    def status(self) -> ValidatorStatus | None:
        """Return what has come of it; None while this node is not named."""
        if not self._is_named():
            return None
        return ValidatorStatus(
            willing=self._node.settings.validator, measured=self._measured, problem=self._problem
        )

    async def run(self) -> None:
        """Measure what this node is asked for until cancelled."""
        rest = LOOK_INTERVAL
        while True:
            await asyncio.sleep(rest)
            self._say_whether_named()
            epoch, begun = self._organised.counting.sealed, self._node.clock()
            place = self._place(epoch)
            if place is not None:
                await self._measure(epoch, place)
            spent = self._node.clock() - begun
            rest = max(LOOK_INTERVAL, spent / BUSY - spent)

    # -- whether ---------------------------------------------------------------------------------------

    def _is_named(self) -> bool:
        own, counting = self._node.machine.own, self._organised.counting
        number = counting.number(own) if own else None
        return number is not None and number // INCARNATIONS in counting.validators

    def _say_whether_named(self) -> None:
        if self._named == (named := self._is_named()):
            return
        self._named = named
        if not named:
            log.info("this node is no validator any more")
        elif self._node.settings.validator:
            log.info("the organiser has named this node a validator: it measures what members bring")
        else:
            log.info(
                "the organiser has named this node a validator, and its owner declines (node.validator=no)"
            )

    def _place(self, epoch: int) -> int | None:
        """Return our place on the panel of an epoch that is to be measured, and can be; else None."""
        counting = self._organised.counting
        if epoch == self._done or counting.unsupported or not self._may_measure():
            return None
        place = self._organised.findings.place(counting, epoch)
        if place is None or len(counting.moved(epoch)) > MAX_ENTRIES or not self._holds(epoch):
            return None
        return place

    def _may_measure(self) -> bool:
        """Return whether the run has something to measure on, and the owner lets this node compute now."""
        scheduler, limiter = self._node.model.scheduler, self._node.limiter
        computes = scheduler is not None and scheduler.ready and not (limiter.paused or limiter.finishing)
        return self._able and self._node.settings.validator and computes

    def _holds(self, epoch: int) -> bool:
        """Return whether everything is here that closes up to that of an epoch have named."""
        counting, frontier = self._organised.counting, self._node.machine.frontier
        stops = counting.positions(epoch)
        return all(frontier.next(counting.feed(number)) >= stop for number, stop in stops.items())

    # -- measuring -------------------------------------------------------------------------------------

    async def _measure(self, epoch: int, place: int) -> None:
        """Measure an epoch, and tell; give it up if that cannot be done."""
        rows, no_pause = MeasuredRows(ORIGIN_ROWS, epoch * PANEL + place), self._node.limiter.until_a_pause()

        def wanted() -> bool:
            return no_pause() and self._organised.counting.sealed == epoch

        try:
            shares, _ = await measured(self._node, epoch, self._skipped(epoch), rows, wanted)
        except UserError as error:
            if error.code is not Code.PAUSED:
                self._give_up(epoch, error.what)
            return
        if not shares:
            return  # something else counts by now
        parts = parts_of(shares, self._organised.counting)
        if not parts:
            self._give_up(epoch, "what was measured is no number")
            return
        self._done, self._problem, self._measured = epoch, None, self._measured + 1
        log.debug("measured what %d feeds have brought in epoch %d", len(parts), epoch)
        self._node.driver.post(
            OwnFinding(epoch, rows.number, parts, self._node.outside.random.getrandbits(64))
        )

    def _skipped(self, epoch: int) -> list[int]:
        """Return the feeds that make no part of the step, as the evidence of now does not trust them."""
        self._origins.follow(self._organised.control.feed.entries)
        moved = self._organised.counting.moved(epoch)
        return [number for number in moved if not self._origins.trusts(number // INCARNATIONS)]

    def _give_up(self, epoch: int, problem: str) -> None:
        """Leave an epoch to others; say once why."""
        if problem != self._problem:
            log.warning("round %d is not measured here: %s", epoch, problem)
        self._done, self._problem = epoch, problem
