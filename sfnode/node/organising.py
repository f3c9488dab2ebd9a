"""The organiser in a node, and a newcomer's petition.

Carries out what the sans-IO desk (`sfnode.organising.desk`) asks for: decisions go to the machine,
evaluations to the engine, answers to the owner. It decides nothing itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from sfnode.errors import Code, UserError
from sfnode.logging import log
from sfnode.manifest import Manifest
from sfnode.node.training.engine_thread import Engine
from sfnode.node.validating import Rows, measured
from sfnode.organising import admission
from sfnode.organising.desk import OrganiserDesk
from sfnode.organising.evaluation.judging import by_schedule
from sfnode.organising.evaluation.line_search import Found, LineSearch
from sfnode.organising.evaluation.origins import Brought
from sfnode.organising.evaluation.rates import Schedule
from sfnode.organising.events import (
    Action,
    BasesMade,
    DeskEvent,
    Evaluate,
    EvaluationEnded,
    FindingHeard,
    MakeBases,
    NobodyElse,
    OwnerWish,
    PetitionHeard,
    Refuse,
    Round,
    Sign,
    Signed,
    Stop,
    Summarise,
    Summarised,
)
from sfnode.organising.organiser import State
from sfnode.organising.policy import Admission, OrganiserPolicy, has_few_dimensions
from sfnode.schema.evaluation import Evaluation
from sfnode.store.disk_errors import disk_faults
from sfprotocol import decisions
from sfprotocol.decisions import Admit, Amend, Decision
from sfprotocol.events import FindingHeard as FindingTaken
from sfprotocol.events import OwnDecision, OwnPetition
from sfprotocol.messages import Feed, Petition
from sfprotocol.organised import Organised
from sfprotocol.petitions import petition_message
from sfprotocol.signing import Sign as SignWith
from sfprotocol.weighing import Counted, counts_alike

if TYPE_CHECKING:
    from sfnode.node.running import RunningNode
    from sfnode.schema.evaluation import Evaluation

WISH_DEADLINE = 60.0
"""Seconds for a wish to be signed: one decision is under way at a time, and each takes a commit."""

WORK_BITS = OrganiserPolicy().work_bits
"""Bits of the proof of work that a petition shows: as many as organisers ask for by default."""

LOOK_INTERVAL = 5.0
"""Seconds between two looks whether this node is still a member: what takes that from it is rare."""

SEARCH_WAIT = 600.0
"""Seconds that a seal waits for its line search: two hundred rows at seven places each, by a model that takes
a third of a second for a row; or for answers to them, which take a pass for each token. Nothing is closed
meanwhile until the rate has settled."""

MEASURING_BASE = "measuring the base model"

USUAL_ROWS = 256
"""Validation rows of a run that takes all of a source of its own: a search asks for no more."""


def policy_of(
    manifest: Manifest,
    admission: str | None = None,
    search: bool = False,
    renew_bases: int = 0,
    guard: bool = True,
) -> OrganiserPolicy:
    """Return an organiser's policy: anyone may join, unless its owner or a private run says otherwise; rates
    are found by line searches if `search`, and the run has validation rows and a loss with slopes; published
    bases are made anew every `renew_bases` updates, if not 0, of such a loss; with validation rows a `guard`
    may watch over it."""
    data, numbers, slopes = manifest.data, manifest.training, manifest.task.has_slopes
    validates = bool(data.validation or data.validation_limit)
    search = search and slopes
    return OrganiserPolicy(
        target_updates=numbers.epoch_updates,
        admission=Admission(admission or ("approve" if manifest.organised.private else "anyone")),
        quota=manifest.organised.quota,
        seal_wait=0.0 if not validates else SEARCH_WAIT if search or not slopes else 120.0,
        search_rows=(data.validation_limit or USUAL_ROWS) if search and validates else 0,
        origins=search and validates,
        kept=numbers.basis == "features",
        size_rate=search and validates and has_few_dimensions(manifest),
        renew_updates=renew_bases if numbers.bases and slopes else 0,
        guard=guard and validates,
        update_forwards=numbers.update_forwards,
    )


def organises(node: RunningNode) -> bool:
    """Return whether a node is to organise its run: it has the key, and the run has one."""
    organised = node.machine.organised
    return organised is not None and node.settings.organise and organised.control.feed.key is not None


class Organising:
    """The organiser of one node that has the key; told by the node's driver."""

    def __init__(self, node: RunningNode) -> None:
        """Be told by the driver from now on; `organises(node)` has to hold."""
        assert node.machine.organised is not None
        self._organised: Organised = node.machine.organised
        feed, run = self._organised.control.feed, node.machine.run
        assert feed.key is not None
        self._node = node
        self._has_base = False
        self._running: dict[asyncio.Task[None], None] = {}
        self._stopped = False
        self._wishes: list[tuple[Decision, asyncio.Future[str | None]]] = []
        self._untold: list[DeskEvent] = []
        """Events of which the desk hears at the end of a round."""
        self._begun = False
        """Whether it has begun the run because nobody else was to be found."""
        self._desk = OrganiserDesk(
            node.machine,
            node.log,
            key=feed.key,
            policy=node.outside.policy
            or policy_of(
                node.manifest,
                node.settings.admission,
                node.settings.search,
                node.settings.renew_bases,
                node.settings.guard,
            ),
            judge=node.outside.judge or by_schedule(Schedule(node.manifest.training.schedule, run.rate)),
            draw=node.outside.random.randbytes,
            alone=node.settings.alone or not (feed.stop or node.settings.peers),
            now=node.clock(),
        )
        node.driver.on_round = self._on_round
        node.driver.look_at = self._look_at
        node.driver.on_petition = lambda asked: self._tell(PetitionHeard(asked.petition, asked.via))
        node.driver.on_finding = self._heard

    @property
    def state(self) -> State:
        """Whether it signs."""
        return self._desk.state

    def petitions(self) -> list[Petition]:
        """Return the petitions that wait for the owner."""
        return self._desk.petitions(self._node.clock())

    async def wish(self, decision: Decision) -> str | None:
        """Return once the owner's decision is signed and on disk; or the reason if it would change nothing.

        Raises UserError ORGANISER_NEEDED if the node ends before, or a minute passes.
        """
        done: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._wishes.append((decision, done))
        self._tell(OwnerWish(decision))
        try:
            async with asyncio.timeout(WISH_DEADLINE):
                return await done
        except TimeoutError:
            raise _unanswered("a minute has passed and it is not signed") from None
        finally:
            self._wishes = [wish for wish in self._wishes if wish[1] is not done]

    async def stop(self) -> None:
        """Cancel what is under way, and decide nothing more while the last updates are handed over; whoever
        has a wish is told that it may not come true."""
        self._stopped = True
        for _, done in self._wishes:
            if not done.done():
                done.set_exception(_unanswered("the node has ended before it was signed"))
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    # -- what the desk asks for --------------------------------------------------------------------

    def _heard(self, found: FindingTaken) -> None:
        log.debug("validator %d has measured epoch %d: %d feeds", found.member, found.epoch, len(found.parts))
        self._tell(FindingHeard(found.epoch, found.member, found.rows, found.parts))

    def _tell(self, event: DeskEvent) -> None:
        """Tell the desk at the end of a round, which comes soon: within one the machine may hold less than
        the desk knows of, and what is not here any more would be named."""
        self._untold.append(event)
        self._node.driver.look()

    def _look_at(self) -> float:
        return float("inf") if self._stopped else self._desk.next_deadline()

    def _on_round(self, moved: tuple[Feed, ...]) -> None:
        events: list[DeskEvent] = [Round(moved), *self._untold]
        self._untold.clear()
        if not (self._begun or self._organised.control.feed.stop) and self._node.readiness.begins():
            self._begun = True
            events.append(NobodyElse())
        for event in events if not self._stopped else ():
            for action in self._desk.handle(event, self._node.clock()):
                self._do(action)

    def _do(self, action: Action) -> None:
        match action:
            case Sign(decision=decision):
                if isinstance(decision, Amend):
                    self._say_lost(decision)
                self._node.driver.post(OwnDecision(decisions.encode(decision)))
            case Evaluate():
                self._start(self._evaluate(action))
            case Summarise(epoch=epoch):
                self._start(self._summarise(epoch))
            case MakeBases(epoch=epoch):
                self._start(self._make_bases(epoch))
            case Refuse(decision=decision, reason=reason):
                self._answer(decision, reason)
            case Signed(decision=decision):
                self._answer(decision, None)
            case Stop(reason=reason):
                log.warning("this node does not organise the run any more: %s", reason)

    def _say_lost(self, amend: Amend) -> None:
        counting = self._organised.counting
        feed, kept = counting.feed(amend.feed), counting.named(amend.feed, amend.epoch - 1)
        log.warning(
            "ending feed %d of origin %s at step %d: %d updates that were named are not to be had",
            feed.incarnation, feed.origin.hex()[:16], kept, counting.named(amend.feed) - kept,
        )  # fmt: skip

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._running[task] = None
        task.add_done_callback(self._running.pop)

    async def _summarise(self, epoch: int) -> None:
        """Work out the checkpoint of an epoch."""
        stated, checkpoints = None, self._node.checkpoints
        try:
            state = await checkpoints.state_of(epoch) if checkpoints else None
            stated = state.decision(self._node.manifest.run_id) if state else None
        except UserError as error:
            log.warning("no checkpoint of epoch %d is signed: %s", epoch, error.what)
        self._tell(Summarised(stated))

    async def _make_bases(self, epoch: int) -> None:
        """Make bases at the weights by the seals up to that of an epoch; peers get them from here."""
        digest, folder = None, self._node.data_dir.bases
        try:
            with disk_faults(folder):
                named = partial(self._organised.named, epoch)
                what = f"making bases at the weights of epoch {epoch}"
                _, made = await self._node.model.ask(lambda engine: engine.make_bases(folder), named, what)
            digest = bytes.fromhex(made)
            log.info("made bases at the weights of epoch %d: %s", epoch, made[:16])
        except UserError as error:
            log.warning("no new bases are published: %s", error.what)
        self._tell(BasesMade(digest))

    def _answer(self, wanted: Decision, reason: str | None) -> None:
        """Tell whoever has wished for this decision first what has become of it."""
        for wish, done in self._wishes:
            if wish == wanted and not done.done():
                done.set_result(reason)
                return

    async def _evaluate(self, asked: Evaluate) -> None:
        """Do what the organiser wants to know of an epoch, on the validation rows; measure the base model
        first if that was not done yet."""
        result = base = calibrated = found = rate = None
        forwards, epoch, brought = 0, asked.epoch, tuple[Brought, ...]()
        wanted, ask = self._node.limiter.until_a_pause(), self._node.model.ask
        try:
            if asked.scored and not self._has_base:
                _, base = await ask(
                    lambda engine: engine.evaluate_base(0, wanted, "validation"), what=MEASURING_BASE
                )
                calibrated = await self._calibrated(wanted)
                self._has_base, forwards = True, base.count + (calibrated.count if calibrated else 0)
            if asked.sized:
                before = partial(self._organised.named, epoch - 1)
                what = f"finding the rate of epoch {epoch}"
                _, rate = await ask(lambda engine: engine.suitable_rate(epoch), before, what)
            if asked.rows and rate is None:
                found, result, taken = await self._search(asked, wanted)
                forwards += taken
            elif asked.scored:
                named = partial(self._organised.named, epoch, asked.skipped, asked.recounted)
                what = f"measuring epoch {epoch}"
                _, result = await ask(lambda engine: engine.evaluate(0, wanted, "validation"), named, what)
            forwards += result.count if result else 0
        except UserError as error:
            log.warning("epoch %d is sealed without an evaluation: %s", epoch, error.what)
        if asked.origins:
            brought, taken = await self._brought(asked, wanted)
            forwards += taken
        self._tell(EvaluationEnded(epoch, result, base, calibrated, found, forwards, rate, brought))

    async def _brought(self, asked: Evaluate, wanted: Callable[[], bool]) -> tuple[tuple[Brought, ...], int]:
        """Return what each feed has brought in an epoch, and the example-forwards of measuring it; nothing
        where that cannot be measured."""
        try:
            return await measured(
                self._node, asked.epoch, asked.skipped, Rows(asked.origins, asked.epoch), wanted
            )
        except UserError as error:
            log.warning("what nodes brought in epoch %d is not known: %s", asked.epoch, error.what)
            return (), 0

    async def _calibrated(self, wanted: Callable[[], bool]) -> Evaluation | None:
        """Evaluate the base model less its prior; None where that cannot be measured."""
        if not self._node.manifest.task.labelled:
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

    def _line_search(self, asked: Evaluate) -> LineSearch:
        return LineSearch(asked.rows, wary=not has_few_dimensions(self._node.manifest), scale=asked.scale)

    async def _search(
        self, asked: Evaluate, wanted: Callable[[], bool]
    ) -> tuple[Found | None, Evaluation | None, int]:
        """Return what a line search along an epoch finds, the result of the model with that factor if it is
        wanted, and the example-forwards of the search.

        Nothing is found if what counts of earlier epochs has changed meanwhile.
        """
        search, begun, ask = self._line_search(asked), [], self._node.model.ask
        before = partial(self._organised.named, asked.epoch - 1)

        def named(of: Callable[[], Mapping[Feed, Counted]]) -> Mapping[Feed, Counted]:
            begun.append(before())
            return of()

        def look(engine: Engine) -> tuple[Evaluation | None, int]:
            taken = engine.search(after, search, wanted)
            if not asked.scored:
                return None, taken
            return engine.evaluate_towards(after, search.found.factor, wanted, "validation"), taken

        closed = partial(self._organised.named, asked.epoch, asked.skipped, asked.recounted)
        _, after = await ask(lambda engine: engine.cores(), partial(named, closed))
        what = f"searching the factor of epoch {asked.epoch}"
        _, (result, taken) = await ask(look, partial(named, before), what)
        if not counts_alike(*begun):
            return None, None, taken
        found = search.found
        log.info("epoch %d: factor %g by a line search on %d rows", asked.epoch, found.factor, found.rows)
        return found, result, taken


def _unanswered(what: str) -> UserError:
    return UserError(
        Code.ORGANISER_NEEDED,
        what,
        "See with `sfnode organise status` whether it was signed after all before you ask again.",
    )


# -- newcomers -----------------------------------------------------------------------------------------


async def be_admitted(node: RunningNode) -> None:
    """See to it, until cancelled, that this node is a member of its organised run: also after a succession
    that keeps less than its admission."""
    own, organised = node.machine.own, node.machine.organised
    if organised is None or own is None:
        return
    asked = False
    while True:
        if organised.counting.member(own.origin):
            asked = False
        elif node.organising:
            with suppress(UserError):  # it is carried out all the same, unless the node ends
                await node.organising.wish(Admit(own.origin, node.manifest.organised.quota, 0))
        elif not asked:
            await _ask(node, own.origin)
            asked = True
        await asyncio.sleep(LOOK_INTERVAL)


async def _ask(node: RunningNode, origin: bytes) -> None:
    """Ask the organiser to admit this node, again and again until it does."""
    ticket, interrupted = node.settings.invitation, node.stopping.is_set
    bits = node.outside.policy.work_bits if node.outside.policy else WORK_BITS
    asked = await petition(node.manifest.run_id, origin, node.machine.sign, ticket, interrupted, bits)
    if asked:
        node.asked_at = node.clock()
        node.driver.post(asked)


async def petition(
    run_id: bytes,
    origin: bytes,
    sign: SignWith,
    ticket: str,
    interrupted: Callable[[], bool],
    bits: int = WORK_BITS,
) -> OwnPetition | None:
    """Return a newcomer's petition: with the ticket of its link (`NUMBER:HEX`), else with a proof of work.

    Takes some seconds of a core, on a thread of its own. None when `interrupted`.
    """
    nonce, number, voucher = 0, 0, b""
    if ticket:
        place, _, secret = ticket.partition(":")
        number = int(place)
        key = admission.invitation_key(run_id, bytes.fromhex(secret))
        voucher = key.sign(admission.voucher_message(run_id, origin))
    else:
        solve = admission.solve
        found = await asyncio.to_thread(solve, run_id, origin, bits, interrupted)
        if found is None:
            return None
        nonce = found
    unsigned = Petition(origin, nonce, number, voucher, bytes(64))
    return OwnPetition(replace(unsigned, signature=sign(petition_message(run_id, unsigned))))
