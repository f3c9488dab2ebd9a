"""The organiser in a node: told what the node sees, its decisions signed here; and a newcomer's petition.

An adapter of the sans-IO policy (`sfnode.organising`). It looks at the machine after every round; what is
held of a feed it reads from the log. It decides nothing itself.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

from sfnode.errors import UserError
from sfnode.logging import log
from sfnode.manifest import Manifest
from sfnode.organising import admission
from sfnode.organising.events import (
    Action,
    ControlChanged,
    Evaluate,
    EvaluationEnded,
    Event,
    ForkProven,
    HeldChanged,
    Mark,
    OwnerWish,
    PeerControl,
    PeerGone,
    PeerShows,
    PetitionHeard,
    Refuse,
    Sign,
    Stop,
    Tenure,
    Wake,
)
from sfnode.organising.organiser import Organiser, State
from sfnode.organising.policy import Admission, OrganiserPolicy
from sfnode.organising.rates import Schedule
from sfnode.schema.evaluation import Evaluation
from sfnode.store.log import UpdateLog
from sfprotocol import decisions
from sfprotocol.decisions import Decision
from sfprotocol.events import OwnDecision, OwnPetition
from sfprotocol.machine import Machine
from sfprotocol.messages import ControlHead, Feed, Petition, Position
from sfprotocol.organised import Organised
from sfprotocol.petitions import petition_message
from sfprotocol.segments import drop_updates, first_updates
from sfprotocol.signing import Sign as SignWith
from sfprotocol.signing import extend

LOOK_INTERVAL = 0.5
"""Seconds between two looks at what peers show: a close waits for that, and an epoch lasts much longer."""

WISH_DEADLINE = 60.0
"""Seconds for a wish to be signed: one decision is under way at a time, and each takes a commit."""

WORK_BITS = OrganiserPolicy().work_bits
"""Bits of the proof of work that a petition shows: as many as organisers ask for by default."""

ValidationResults = Callable[[bool], Awaitable[tuple[Evaluation, Evaluation | None]]]
"""Evaluates the model on the validation rows, and the base model, too, if asked to."""


def policy_of(manifest: Manifest) -> OrganiserPolicy:
    """Return the policy of an organiser who has said nothing else: anyone may join."""
    return OrganiserPolicy(
        target_updates=manifest.training.epoch_updates,
        admission=Admission.ANYONE,
        quota=manifest.organised.quota,
        seal_wait=120.0 if manifest.data.validation or manifest.data.validation_limit else 0.0,
    )


class _Steps(NamedTuple):
    """Steps `first .. stop - 1` of a feed."""

    feed: Feed
    first: int
    stop: int


class OrganiserDesk:
    """The organiser of one node that has the key."""

    def __init__(
        self,
        manifest: Manifest,
        machine: Machine,
        update_log: UpdateLog,
        *,
        key: bytes,
        alone: bool,
        post: Callable[[OwnDecision], None],
        evaluate: ValidationResults,
        clock: Callable[[], float],
    ) -> None:
        """`key` is the public half of the organiser's key, with which the machine signs."""
        assert machine.organised is not None
        self._machine = machine
        self._organised: Organised = machine.organised
        self._log = update_log
        self._key = key
        self._post = post
        self._evaluate = evaluate
        self._clock = clock
        self._told: tuple[ControlHead, Tenure] | None = None
        self._held: dict[Feed, tuple[int, bytes]] = {}
        self._forked: dict[Feed, int] = {}
        self._shown: dict[Feed, int] = {}
        self._peers: dict[str, int] = {}
        self._looked_at = float("-inf")
        self._has_base = False
        self._running: set[asyncio.Task[None]] = set()
        self._wishes: list[tuple[Decision, asyncio.Future[str | None]]] = []
        run = machine.run
        self._organiser = Organiser(
            run.run_id,
            self._organised.counting,
            policy_of(manifest),
            Schedule(manifest.training.schedule, run.rate),
            draw=secrets.token_bytes,
            alone=alone,
            now=clock(),
        )

    @property
    def state(self) -> State:
        """Whether it signs."""
        return self._organiser.state

    def petitions(self) -> list[Petition]:
        """Return the petitions that wait for the owner."""
        return self._organiser.petitions(self._clock())

    async def wish(self, decision: Decision) -> str | None:
        """Sign the owner's decision; return the reason if it would change nothing."""
        done: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._wishes.append((decision, done))
        self._tell(OwnerWish(decision))
        try:
            async with asyncio.timeout(WISH_DEADLINE):
                return await done
        except TimeoutError:
            return "it could not be signed within a minute"
        finally:
            self._wishes = [wish for wish in self._wishes if wish[1] is not done]

    # -- what the node tells -----------------------------------------------------------------------

    def asked(self, petition: Petition, via: str) -> None:
        """Take note of a petition."""
        self._tell(PetitionHeard(petition, via))

    def look(self) -> None:
        """Take note of everything that may have changed; called after every round."""
        self._look_at_control()
        for state in self._machine.frontier:
            self._look_at(state.feed, state.next, state.forked)
        if self._clock() - self._looked_at >= LOOK_INTERVAL:
            self._looked_at = self._clock()
            self._look_at_peers()
        if self._clock() >= self._organiser.next_deadline():
            self._tell(Wake())

    def _look_at_control(self) -> None:
        control = self._organised.control
        now = control.head(), self._tenure()
        if now == self._told:
            return
        first = self._told[0].stop if self._told else 0
        self._told = now
        for entry in control.feed.entries[first:]:
            self._signed(decisions.read(entry.record).decision)
        self._tell(ControlChanged(control.counting, now[1]))

    def _signed(self, decision: Decision) -> None:
        for wish, done in self._wishes:
            if wish == decision and not done.done():
                done.set_result(None)
                return

    def _tenure(self) -> Tenure:
        feed = self._organised.control.feed
        if feed.key != self._key:
            return Tenure.PASSED_ON
        return Tenure.FORKED if feed.frozen else Tenure.HELD

    def _look_at(self, feed: Feed, stop: int, forked: int) -> None:
        chain = self._machine.frontier.state(feed).chain
        known = self._held.get(feed, (0, b""))
        if known != (stop, chain):
            self._held[feed] = stop, chain
            counting = self._organised.counting
            number = counting.number(feed)
            judged = counting.named(number, counting.sealed - 2) if number is not None else 0
            whole = not known[1] or stop <= known[0] or self._log.past(feed, known[0])[0] != known[1]
            first = min(judged, stop) if whole else known[0]
            self._tell(HeldChanged(feed, first if not whole else 0, tuple(self._marks(feed, first, stop))))
        if forked < self._forked.get(feed, 1 << 32):
            self._forked[feed] = forked
            self._tell(ForkProven(feed, forked))

    def _marks(self, feed: Feed, first: int, stop: int) -> Iterator[Mark]:
        """Yield the steps at which a close may stop, above `first` and up to `stop`."""
        counting, step = self._organised.counting, first
        chain = self._log.past(feed, first)[0]
        number = counting.number(feed)
        landmarks = [mark.stop for mark in counting.landmarks(number, first)] if number is not None else []
        if first:
            yield Mark(first, self._log.label(feed, first)[0], chain)
        for _, segment in self._log.segments([_Steps(feed, first, stop)]):
            parts = drop_updates(first_updates(segment.parts, stop - segment.first), step - segment.first)
            for part in parts:
                ends = [at for at in landmarks if step < at < step + len(part.scalars)]
                for end in (*ends, step + len(part.scalars)):
                    taken = part.scalars[: end - step]
                    chain = extend(chain, [part._replace(scalars=taken)])
                    part, step = part._replace(scalars=part.scalars[len(taken) :]), end
                    yield Mark(step, part.epoch, chain)

    def _look_at_peers(self) -> None:
        machine = self._machine
        links = [link for link in machine.links.values() if link.greeted and link.control.theirs]
        peers = {link.peer: link.control.theirs.stop for link in links if link.control.theirs}
        for peer in [peer for peer in self._peers if peer not in peers]:
            self._tell(PeerGone(peer))
        for peer, decided in peers.items():
            if self._peers.get(peer) != decided:
                self._tell(PeerControl(peer, decided))
        self._peers = peers
        news: list[Position] = []
        agreed = any(link.agreed and link.known == machine.frontier.known for link in links)
        for state in machine.frontier:
            said = state.next if agreed else max((link.has.get(state.feed, 0) for link in links), default=0)
            shown = min(said, state.next)
            if shown > self._shown.get(state.feed, 0):
                self._shown[state.feed] = shown
                news.append(Position(state.feed, shown))
        if news:
            self._tell(PeerShows(tuple(news)))

    # -- what the organiser wants ------------------------------------------------------------------

    def _tell(self, event: Event) -> None:
        for action in self._organiser.handle(event, self._clock()):
            self._do(action)

    def _do(self, action: Action) -> None:
        match action:
            case Sign(position=position, decision=decision):
                if position == self._organised.control.feed.stop and self._tenure() is Tenure.HELD:
                    self._post(OwnDecision(decisions.encode(decision)))
            case Evaluate(epoch=epoch):
                task = asyncio.get_running_loop().create_task(self._evaluated(epoch))
                self._running.add(task)
                task.add_done_callback(self._running.discard)
            case Refuse(decision=decision, reason=reason):
                for wish, done in self._wishes:
                    if wish == decision and not done.done():
                        done.set_result(reason)
            case Stop(reason=reason):
                log.warning("this node does not organise the run any more: %s", reason)

    async def _evaluated(self, epoch: int) -> None:
        """Evaluate the model as it is now, which holds what the close has named and little else."""
        result = base = None
        try:
            result, base = await self._evaluate(not self._has_base)
            self._has_base = self._has_base or base is not None
        except UserError as error:
            log.warning("epoch %d is sealed without an evaluation: %s", epoch, error.what)
        self._tell(EvaluationEnded(epoch, result, base))

    async def stop(self) -> None:
        """Cancel what is under way."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)


async def petition(
    run_id: bytes, origin: bytes, sign: SignWith, ticket: str, interrupted: Callable[[], bool]
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
        found = await asyncio.to_thread(solve, run_id, origin, WORK_BITS, interrupted)
        if found is None:
            return None
        nonce = found
    unsigned = Petition(origin, nonce, number, voucher, bytes(64))
    return OwnPetition(replace(unsigned, signature=sign(petition_message(run_id, unsigned))))
