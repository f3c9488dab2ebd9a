"""Runs the organiser in a node, and sends a newcomer's join request.

Carries out the actions of the sans-IO organiser (`sfnode.organising.organiser`): decisions go to the machine,
evaluations to the engine, answers to the owner. This module makes no decisions itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from sfnode.errors import Code, UserError
from sfnode.logging import log
from sfnode.node.context import NodeContext
from sfnode.node.readiness import Readiness
from sfnode.node.run_context import RunContext
from sfnode.organising import admission, events
from sfnode.organising.evaluation.evidence import SCORED_ROUNDS
from sfnode.organising.evaluation.line_search import LineSearch, SearchResult
from sfnode.organising.organiser import SETTLE_TIME, Organiser, OrganiserState
from sfnode.organising.policy import WORK_BITS, Admission, is_wary, policy_of
from sfnode.organising.reporting.alarms import Restarted
from sfnode.organising.steps import at_rate
from sfnode.organising.view import View
from sfnode.schema.measurements import Evaluation, StepShare
from sfnode.store.checkpoint import CheckpointState
from sfnode.store.data_folder import signed_here
from sfnode.store.disk_errors import disk_faults
from sfnode.store.log import UpdateLog
from sfnode.store.replay import counted_anew
from sfnode.store.run_keys import forget_restored
from sfnode.transport.base import call_off
from sfprotocol import decisions
from sfprotocol.decisions import Admit, Amend, Bases, Checkpoint, Decision, StandIns
from sfprotocol.events import OwnDecision, OwnHandOver, OwnJoinRequest
from sfprotocol.join_requests import SEND_AGAIN, join_request_message, offer_message
from sfprotocol.messages import Feed, JoinRequest, Offer
from sfprotocol.organised import Organised
from sfprotocol.weighing import Counted, counts_alike, made

if TYPE_CHECKING:
    from sfnode.engine.trainer import ReplicatedTrainer as Engine
    from sfprotocol.seeds import I64

SIGN_DEADLINE = 60.0
"""Maximum time, in seconds, until an owner's decision is signed. Decisions are signed one by one, each with a
commit."""

OFFER_TIME = 3 * SEND_AGAIN
"""Lifetime, in seconds, of an offer to stand in that is not repeated, so that only members that are present
are named as stand-ins."""

LOOK_INTERVAL = 5.0
"""Pause, in seconds, between two checks whether this node is still a member. A node seldom ceases to be a
member."""

MEASURING_BASE = "measuring the base model"

_STANDS_IN = "stands in"
"""Key, in the log's meta table, of the record that this member offers to stand in for the organiser."""


def organises(node: RunContext) -> bool:
    """Return whether a node organises its run, or may have to: it has the organiser's key, is a stand-in, or
    offered to be one."""
    organised = node.machine.organised
    if organised is None or not organised.control.key:
        return False
    control = organised.control
    offered = node.log.get_meta(_STANDS_IN) is not None
    return node.settings.organise or control.key in control.feed.stand_ins or offered


def note_offer(log: UpdateLog) -> None:
    """Record durably that this member offers to stand in."""
    log.set_meta(_STANDS_IN, b"yes")


class Organising:
    """The organiser in a node for which `organises` holds. The node's driver reports its rounds to this
    object."""

    def __init__(
        self,
        node: NodeContext,
        readiness: Readiness,
        state_of: Callable[[int], Awaitable[CheckpointState | None]],
        fail: Callable[[BaseException], None],
    ) -> None:
        """Register callbacks with the node's driver. `organises(node)` must hold. `state_of` computes the
        state up to an epoch, for a checkpoint. `fail` ends the node."""
        assert node.machine.organised is not None
        self._organised: Organised = node.machine.organised
        control, run = self._organised.control, node.machine.run
        self._node, self._readiness, self._state_of = node, readiness, state_of
        self._fail = fail
        self._has_base = False
        self._running: dict[asyncio.Task[None], None] = {}
        self._stopped = False
        self._waiting: list[tuple[Decision, asyncio.Future[str | None]]] = []
        self._untold: list[events.Event] = []
        """Events that are passed to the organiser at the end of the round."""
        self._begun = False
        """Whether this node began or continued the run because it found no other node."""
        self._began_at = self._peopled_at = node.clock()
        """Time of the start (`_began_at`), and the last time at which this node had a link or wanted none
        (`_peopled_at`)."""
        self._restored = control.elections.restored
        """Whether the key was restored from a backup, and the present term is not known yet."""
        self._whole = self._organised.control.feed.chain if signed_here(node.log) else b""
        """Chain hash of all decisions signed with the key, if this log proves that it has all of them; else
        empty."""
        self._organiser = Organiser(
            View(node.machine, node.log),
            node.outside.policy or policy_of(node.manifest, node.settings),
            node.outside.judge or at_rate(run.rate),
            key=control.key,
            draw=node.outside.random.randbytes,
            alone=node.settings.alone
            or not (node.settings.peers or self._restored or self._has_admitted_others()),
            stands_in=not node.settings.organise,
            now=node.clock(),
        )
        node.driver.on_round.append(self._on_round)
        node.driver.look_at.append(self._look_at)
        node.driver.on_join_request.append(self._tell)
        if not node.settings.organise and control.key not in control.feed.stand_ins:
            self._offer()

    def _offer(self) -> None:
        """Send all nodes this member's offer to stand in. The offer is repeated until the member is named a
        stand-in."""
        own, control = self._node.machine.own, self._organised.control
        assert own is not None  # a node with a key to stand in is a trainer
        message = offer_message(self._node.manifest.run_id, own.origin, control.key)
        signatures = self._node.machine.sign(message), control.sign(message)
        self._node.driver.post(OwnJoinRequest(Offer(own.origin, control.key, signatures)))

    def _has_admitted_others(self) -> bool:
        """Return whether the run has other members. If it has, and this log is old, one of them may have
        decisions that are missing here."""
        own = self._node.machine.own
        return any(own is None or one.origin != own.origin for one in self._organised.run_state.members)

    @property
    def state(self) -> OrganiserState:
        """The organiser's state: whether it signs."""
        return self._organiser.state

    @property
    def restarted(self) -> Restarted | None:
        """The situation of an organiser that was restarted and does not sign yet; None for any other
        organiser."""
        if self.state is not OrganiserState.RESTARTED:
            return None
        control, peering = self._organised.control, self._node.peering
        more = max(0, control.claimed[0] - control.feed.stop)
        return Restarted(
            self._node.clock() - self._began_at,
            more,
            linked=not peering.deserted,
            signed_here=control.feed.chain == self._whole,
        )

    @property
    def cut_off(self) -> bool:
        """Whether this node is the organiser but cannot sign, because too few stand-ins answer."""
        control = self._organised.control
        return self.state is OrganiserState.STANDING_BY and control.feed.key == control.key

    @property
    def guarded(self) -> bool:
        """Whether the organiser has a guard, which returns to the best seal when the run gets worse."""
        return self._organiser.known.guard is not None

    def offers(self) -> dict[int, bytes]:
        """Return the keys of possible stand-ins, keyed by member number. These are the present stand-ins, the
        members whose offer was heard within OFFER_TIME, and this node."""
        own, control, now = self._node.machine.own, self._organised.control, self._node.clock()
        here, number = control.elections.present(now), self._organised.run_state.member_number
        standing = {member: key for key, member in control.feed.standing.items() if key in here}
        late = now - OFFER_TIME
        heard = {origin: key for origin, (key, at) in self._organiser.known.offers.items() if at >= late}
        heard |= {own.origin: control.key} if own else {}
        return standing | {n: key for origin, key in heard.items() if (n := number(origin)) is not None}

    def hand_over(self, key: bytes) -> None:
        """Hand the organiser's work over to the stand-in with `key` at once."""
        self._node.driver.post(OwnHandOver(key))

    def join_requests(self) -> list[JoinRequest]:
        """Return the join requests that wait for the owner."""
        known = self._organiser.known
        return known.join_requests.waiting(known.run_state, self._node.clock())

    async def decide(self, decision: Decision) -> str | None:
        """Sign the owner's decision. Return None once the decision is on disk, or a reason if it would change
        nothing.

        Raises UserError ORGANISER_NEEDED if the node ends before the decision is on disk, or SIGN_DEADLINE
        passes.
        """
        if isinstance(decision, StandIns):  # the policy of admission does not change with the organiser
            admission = list(Admission).index(self._organiser.known.policy.admission)
            decision = replace(decision, admission=admission)
        done: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._waiting.append((decision, done))
        self._tell(events.OwnerDecision(decision))
        try:
            async with asyncio.timeout(SIGN_DEADLINE):
                return await done
        except TimeoutError:
            raise _unanswered("a minute has passed and it is not signed") from None
        finally:
            self._waiting = [one for one in self._waiting if one[1] is not done]

    async def stop(self) -> None:
        """Cancel the work under way, and decide nothing more while the last updates are handed over. Callers
        that wait for a decision get an error."""
        self._stopped = True
        for _, done in self._waiting:
            if not done.done():
                done.set_exception(_unanswered("the node has ended before it was signed"))
        await call_off(self._running)

    # -- actions of the organiser ------------------------------------------------------------------

    def _tell(self, event: events.Event) -> None:
        """Hand an event to the organiser at the end of a round, and start a round soon. In the middle of a
        round, a close could list updates that the machine does not have yet."""
        self._untold.append(event)
        self._node.driver.look()

    def _look_at(self) -> float:
        return float("inf") if self._stopped else self._organiser.next_deadline()

    def _on_round(self, moved: tuple[Feed, ...]) -> None:
        news: list[events.Event] = [events.Round(moved), *self._untold]
        self._untold.clear()
        if not self._begun and self._is_nobody_else():
            self._begun = True
            news.append(events.NobodyElse())
        elections = self._organised.control.elections
        signs = self.state is OrganiserState.ORGANISING and not elections.in_use  # nobody knows more
        if self._restored and (elections.settled or signs):
            self._restored = elections.restored = False
            forget_restored(self._node.manifest.run_id, self._node.settings.keys_dir)
        for event in news if not self._stopped else ():
            for action in self._organiser.handle(event, self._node.clock()):
                self._do(action)

    def _is_nobody_else(self) -> bool:
        """Return whether no other node can know more decisions, so that this node may decide: the run is new,
        or the key's last signature is in this log."""
        feed, now = self._organised.control.feed, self._node.clock()
        if not feed.stop:
            return self._readiness.begins()
        if not self._node.peering.deserted:
            self._peopled_at = now
        waits = self.state is OrganiserState.RESTARTED and feed.chain == self._whole
        if found := waits and now - self._peopled_at >= SETTLE_TIME:
            log.info("no peer is there, and the last decisions were signed here: the organiser goes on alone")
        return found

    def _do(self, action: events.Action) -> None:
        match action:
            case events.Sign(decision=decision):
                if isinstance(decision, Amend):
                    self._say_lost(decision)
                self._node.driver.post(OwnDecision(decisions.encode(decision)))
            case events.Evaluate():
                self._start(self._evaluate(action))
            case events.Make(what=what, epoch=epoch):
                self._start(self._make_bases(epoch) if what is Bases else self._summarise(epoch))
            case events.AnswerOwner(decision=decision, refused=reason):
                self._answer(decision, reason)
            case events.StopSigning(reason=reason):
                log.warning("this node does not organise the run any more: %s", reason)

    def _say_lost(self, amend: Amend) -> None:
        run_state = self._organised.run_state
        feed, kept = run_state.feed(amend.feed), run_state.named(amend.feed, amend.epoch - 1)
        log.warning(
            "ending feed %d of origin %s at step %d: %d updates that were named are not to be had",
            feed.incarnation, feed.origin.hex()[:16], kept, run_state.named(amend.feed) - kept,
        )  # fmt: skip

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._running[task] = None
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """End the node if the work has raised an error, because the organiser would wait for its result for
        ever."""
        del self._running[task]
        if not task.cancelled() and (error := task.exception()):
            self._fail(error)

    async def _summarise(self, epoch: int) -> None:
        """Compute the checkpoint of an epoch for the organiser."""
        stated = None
        try:
            state = await self._state_of(epoch)
            stated = state.decision(self._node.manifest.run_id) if state else None
        except UserError as error:
            log.warning("where the run is after round %d is not signed: %s", epoch, error.what)
        self._tell(events.MakingEnded(Checkpoint, stated))

    async def _make_bases(self, epoch: int) -> None:
        """Make new bases from the model at an epoch's seal, and store them for peers to download."""
        digest, folder = None, self._node.data_dir.bases
        try:
            with disk_faults(folder):
                named = partial(self._organised.named, epoch)
                what = f"finding new directions of training after round {epoch}"
                _, made = await self._node.model.ask(lambda engine: engine.make_bases(folder), named, what)
            digest = bytes.fromhex(made)
            log.info("found new directions of training after round %d: %s", epoch, made[:16])
        except UserError as error:
            log.warning("no new directions of training are published: %s", error.what)
        self._tell(events.MakingEnded(Bases, digest))

    def _answer(self, wanted: Decision, reason: str | None) -> None:
        """Answer the first caller of `decide` that waits for the decision `wanted`."""
        for decision, done in self._waiting:
            if decision == wanted and not done.done():
                done.set_result(reason)
                return

    async def _evaluate(self, asked: events.Evaluate) -> None:
        """Measure an epoch for the organiser, on the validation rows. The base model is measured once, before
        the first epoch."""
        result = base = calibrated = found = None
        forwards, epoch, shares = 0, asked.epoch, dict[Feed, StepShare]()
        wanted, ask = self._node.limiter.until_a_pause(), self._node.model.ask
        policy = self._organiser.known.policy
        limit = policy.search_rows if policy.steps else 0
        try:
            if asked.scored and not self._has_base:
                _, base = await ask(
                    lambda engine: engine.evaluate_base(limit, wanted, "validation"), what=MEASURING_BASE
                )
                calibrated = await self._calibrated(wanted)
                self._has_base, forwards = True, base.count + (calibrated.count if calibrated else 0)
            if asked.rows:
                found, result, taken = await self._search(asked, wanted)
                forwards += taken
            elif asked.scored:
                named = partial(self._organised.named, epoch, asked.skipped, asked.recounted)
                what = f"measuring round {epoch}"
                _, result = await ask(
                    lambda engine: engine.evaluate(limit, wanted, "validation"), named, what
                )
            forwards += result.count if result else 0
        except UserError as error:
            log.warning("round %d counts without an evaluation: %s", epoch, error.what)
        try:
            if asked.origins:
                shares, taken = await self._measured(asked, wanted)
                forwards += taken
        except UserError as error:
            log.warning("what nodes brought in round %d is not known: %s", epoch, error.what)
        self._tell(events.EvaluationEnded(epoch, result, base, calibrated, found, forwards, shares))

    async def _measured(
        self, asked: events.Evaluate, wanted: Callable[[], bool]
    ) -> tuple[dict[Feed, StepShare], int]:
        """Return each feed's share in what an epoch has improved, and the cost of the measurement in
        example-forwards (forward passes of one example). The shares are measured halfway between the model of
        the previous seal and the model with this epoch's updates, without those of skipped feeds. No shares
        are returned if the counted updates of these epochs change meanwhile.

        Raises UserError PAUSED when `wanted` returns False, and the errors of `Engine.shares`. `wanted` is
        called on the engine's thread.
        """
        node, epoch, named = self._node, asked.epoch, self._organised.named
        before, after = dict[Feed, Counted](), dict[Feed, Counted]()
        window: list[Mapping[Feed, Counted]] = []

        def closed() -> Mapping[Feed, Counted]:
            after.update(named(epoch))
            if self._organiser.known.policy.steps:
                window.extend(
                    made(self._organised.run_state, upto) for upto in (epoch - SCORED_ROUNDS, epoch)
                )
            return named(epoch, asked.skipped)

        def sealed() -> Mapping[Feed, Counted]:
            if counts_alike(after, named(epoch)):  # otherwise the counted updates have changed
                before.update(named(epoch - 1))
            else:
                after.clear()
            return named(epoch - 1)

        def look(engine: Engine, cores: Mapping[int, I64]) -> tuple[dict[Feed, StepShare], int]:
            subspace_of = node.machine.run.subspace_of
            found = counted_anew(node.log, before, after, subspace_of)
            lately = counted_anew(node.log, window[0], window[1], subspace_of) if window else {}
            scored = [lately[feed] for feed in found if lately]  # each feed's updates of the last rounds
            every = [*found.values(), *scored]
            shares, taken = engine.shares(cores, every, asked.origins, epoch, wanted)
            for place, share in enumerate(shares[len(found) :]):
                shares[place] = shares[place]._replace(sum=share.sum, squares=share.squares)
            return dict(zip(found, shares, strict=False)), taken

        what = f"measuring what members have brought in round {epoch}"
        return await node.model.ask_of_step(look, closed, sealed, what)

    async def _calibrated(self, wanted: Callable[[], bool]) -> Evaluation | None:
        """Return the evaluation of the calibrated base model; None where it cannot be calibrated."""
        task = self._node.manifest.task
        if not task.labelled or task.loss == "calibrated":  # a `calibrated` loss always calibrates
            return None
        try:
            _, found = await self._node.model.ask(
                lambda engine: engine.evaluate_base(0, wanted, "validation", calibrated=True),
                what=MEASURING_BASE,
            )
        except UserError as error:
            if error.code is Code.PAUSED:
                raise
            log.warning("the base model is not calibrated: %s", error.what)
            return None
        return found

    async def _search(
        self, asked: events.Evaluate, wanted: Callable[[], bool]
    ) -> tuple[SearchResult | None, Evaluation | None, int]:
        """Return the result of a line search along an epoch, the evaluation at the factor found (if
        `asked.scored`), and the cost of the search in example-forwards (forward passes of one example).

        The result and the evaluation are None if the counted updates of earlier epochs change meanwhile.
        """
        search = LineSearch(asked.rows, wary=is_wary(self._node.manifest), scale=asked.scale)
        begun: list[Mapping[Feed, Counted]] = []
        before = partial(self._organised.named, asked.epoch - 1)

        def named(of: Callable[[], Mapping[Feed, Counted]]) -> Mapping[Feed, Counted]:
            begun.append(before())
            return of()

        def look(engine: Engine, after: Mapping[int, I64]) -> tuple[Evaluation | None, int]:
            taken = engine.search(after, search, wanted)
            if not asked.scored:
                return None, taken
            return engine.evaluate_towards(after, search.found.factor, wanted, "validation"), taken

        closed = partial(self._organised.named, asked.epoch, asked.skipped, asked.recounted)
        what = f"searching how far round {asked.epoch} goes"
        result, taken = await self._node.model.ask_of_step(
            look, partial(named, closed), partial(named, before), what
        )
        if not counts_alike(*begun):
            return None, None, taken
        found = search.found
        log.info(
            "round %d: goes %g times as far, by a search on %d rows", asked.epoch, found.factor, found.rows
        )
        return found, result, taken


def _unanswered(what: str) -> UserError:
    return UserError(
        Code.ORGANISER_NEEDED,
        what,
        "See with `sfnode organise status` whether it was signed after all before you ask again.",
    )


# -- newcomers -----------------------------------------------------------------------------------------


async def be_admitted(
    node: NodeContext, organising: Organising | None, asked: Callable[[], None], stopping: asyncio.Event
) -> None:
    """Keep this node a member of its organised run until cancelled, even after a succession that drops its
    admission. `organising` is this node's own organiser, if it has one, even if another node organises now.
    `asked` is called after a join request to another organiser."""
    own, organised = node.machine.own, node.machine.organised
    if organised is None or own is None:
        return
    waits = False
    while True:
        if organised.run_state.member(own.origin):
            waits = False
        elif organising and organising.state in (OrganiserState.ORGANISING, OrganiserState.RESTARTED):
            with suppress(UserError):  # an unanswered decision is still carried out, unless the node ends
                await organising.decide(Admit(own.origin, node.manifest.organised.quota, 0))
        elif not waits:
            if await _ask(node, own.origin, stopping.is_set):
                asked()
            waits = True
        await asyncio.sleep(LOOK_INTERVAL)


async def _ask(node: NodeContext, origin: bytes, interrupted: Callable[[], bool]) -> bool:
    """Send the organiser a join request, which is repeated until this node is admitted. The request carries
    the ticket of this node's link (`NUMBER:HEX`), or else a proof of work, which takes some seconds of a core
    on a separate thread.

    Return whether the request was sent; False when `interrupted`.
    """
    run_id, nonce, number, voucher = node.manifest.run_id, 0, 0, b""
    if node.settings.invitation:
        place, _, secret = node.settings.invitation.partition(":")
        number = int(place)
        key = admission.invitation_key(run_id, bytes.fromhex(secret))
        voucher = key.sign(admission.voucher_message(run_id, origin))
    else:
        bits = node.outside.policy.work_bits if node.outside.policy else WORK_BITS
        found = await asyncio.to_thread(admission.solve, run_id, origin, bits, interrupted)
        if found is None:
            return False
        nonce = found
    unsigned = JoinRequest(origin, nonce, number, voucher, bytes(64))
    signature = node.machine.sign(join_request_message(run_id, unsigned))
    node.driver.post(OwnJoinRequest(replace(unsigned, signature=signature)))
    return True
