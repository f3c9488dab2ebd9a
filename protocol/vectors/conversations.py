"""The conversations of flood.json: a few machines, a perfect network, every event with the actions it caused.

All chance is written into the script and time moves only when it says so, so the transcripts never change
unless the machine does. The network hands over frames in order and at once, except where a script loses or
falsifies one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from plain import plain

from sfprotocol import codec
from sfprotocol.events import (
    Action,
    Admit,
    Cut,
    Drop,
    Event,
    Examine,
    Examined,
    LinkDown,
    LinkUp,
    OwnUpdates,
    Received,
    Serve,
    Served,
    ShowProof,
    Transmit,
    Wake,
    Writable,
)
from sfprotocol.flood import HAVE_DELAY
from sfprotocol.frontier import Frontier, drop_updates, first_updates
from sfprotocol.inquiry import INQUIRY_TIME
from sfprotocol.machine import ASK_TIMEOUT, Machine
from sfprotocol.messages import EpochScalars, Feed, Proof, RunParameters, Segment
from sfprotocol.signing import extend, genesis
from sfprotocol.sync import SYNC_INTERVAL

RUN = RunParameters(bytes(range(32)), epoch_updates=4, update_budget=40, scalar_bytes=2, scalar_limit=1000)
NEW_INCARNATION = 4_000_000_000


class Host:
    """One machine with a log in memory."""

    def __init__(self, name: str, run: RunParameters, *, relay: bool, past: list[Admit]) -> None:
        self.name = name
        self.secret = name.encode().ljust(32, b".")
        key = Ed25519PrivateKey.from_private_bytes(self.secret)
        self.own = None if relay else Feed(key.public_key().public_bytes_raw(), 1)
        self.proven = not past
        self.log: dict[Feed, list[Segment]] = {}
        self.proofs: dict[Feed, Proof] = {}
        frontier = Frontier(run)
        for admit in past:
            frontier.advance(admit.feed, admit.segment.stop, admit.chain, admit.segment.parts[-1].epoch)
            self.log.setdefault(admit.feed, []).append(admit.segment)
        self.start = [
            {**plain(s.feed), "next": s.next, "chain": s.chain.hex(), "epoch": s.epoch} for s in frontier
        ]
        self.machine = Machine(
            run,
            frontier,
            own=self.own,
            sign=key.sign,
            draw_incarnation=lambda: NEW_INCARNATION,
            proven=self.proven,
            now=0.0,
        )
        self.admitted: list[Admit] = list(past)
        self.links: dict[int, tuple[Host, int]] = {}

    def read(self, feed: Feed, first: int, hops: int) -> Segment:
        """Everything of `feed` from `first` on; here every segment has one epoch."""
        last = self.log[feed][-1]
        merged: dict[int, tuple[int, ...]] = {}
        for segment in self.log[feed]:
            for epoch, scalars in segment.parts:
                merged[epoch] = merged.get(epoch, ()) + scalars
        parts = tuple(EpochScalars(epoch, scalars) for epoch, scalars in merged.items())
        return Segment(last.feed_key, first, drop_updates(parts, first), last.signature, hops)

    def past(self, feed: Feed, step: int) -> tuple[bytes, Segment]:
        """The chain head before `step`, and everything from there on."""
        whole = self.read(feed, 0, 0)
        chain = extend(genesis(self.machine.run.run_id, feed), first_updates(whole.parts, step))
        return chain, self.read(feed, step, 0)


class Conversation:
    """Runs machines and writes down every call."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.hosts: dict[str, Host] = {}
        self.steps: list[dict[str, Any]] = []
        self._now = 0.0
        self._queue: deque[tuple[Host, Event]] = deque()
        self._meddle: list[Callable[[bytes], bytes | None]] = []

    def host(
        self, name: str, run: RunParameters = RUN, *, relay: bool = False, past: list[Admit] | None = None
    ) -> Host:
        self.hosts[name] = Host(name, run, relay=relay, past=past or [])
        return self.hosts[name]

    def connect(self, one: Host, other: Host) -> None:
        near, far = len(one.links) + 1, len(other.links) + 1
        one.links[near], other.links[far] = (other, far), (one, near)
        self._post(one, LinkUp(near, other.name))
        self._post(other, LinkUp(far, one.name))
        self._drain()

    def compute(self, host: Host, epoch: int, *scalars: int) -> None:
        assert host.machine.own
        first = host.machine.frontier.next(host.machine.own)
        self._post(host, OwnUpdates(host.machine.own, first, (EpochScalars(epoch, scalars),)))
        self._drain()

    def lose_next_segment(self) -> None:
        self._meddle.append(lambda frame: None)

    def falsify_next_segment(self) -> None:
        self._meddle.append(lambda frame: frame[:-1] + bytes([frame[-1] ^ 1]))

    def wake(self, seconds: float) -> None:
        """Let time pass, then wake everybody in turn."""
        self._now += seconds
        for host in self.hosts.values():
            self._post(host, Wake())
            self._drain()

    # -- the network -------------------------------------------------------------------------------

    def _post(self, host: Host, event: Event) -> None:
        self._queue.append((host, event))

    def _drain(self) -> None:
        while self._queue:
            self._handle(*self._queue.popleft())

    def _handle(self, host: Host, event: Event) -> None:
        actions = host.machine.handle(event, self._now)
        self.steps.append(
            {"machine": host.name, "now": self._now, "event": plain(event), "actions": plain(tuple(actions))}
        )
        for action in actions:
            self._do(host, action)

    def _do(self, host: Host, action: Action) -> None:
        match action:
            case Admit():
                host.admitted.append(action)
                host.log.setdefault(action.feed, []).append(action.segment)
            case Transmit(link=link, message=message):
                self._carry(host, link, codec.encode(message))
            case Serve(link=link, feed=feed, first=first, hops=hops):
                segment = host.read(feed, first, hops)
                self._handle(host, Served(link, feed, segment.stop, hops))
                frame = codec.encode(segment)
                meddled = self._meddle.pop(0)(frame) if self._meddle else frame
                if meddled is not None:
                    self._carry(host, link, meddled)
                self._post(host, Writable(link))
            case Cut(proof=proof):
                host.proofs[proof.feed] = proof
            case ShowProof(link=link, feed=feed):
                self._carry(host, link, codec.encode(host.proofs[feed]))
            case Examine(link=link, feed=feed, against=against):
                step = against.at if isinstance(against, Proof) else against.first
                kept = host.proofs.get(feed)
                self._handle(host, Examined(link, feed, against, *host.past(feed, step), kept))
            case Drop(link=link):
                other, far = host.links[link]
                self._post(other, LinkDown(far))

    def _carry(self, host: Host, link: int, frame: bytes) -> None:
        other, far = host.links[link]
        self._post(other, Received(far, frame))

    def written(self) -> dict[str, Any]:
        machines = {
            host.name: {
                "secret": host.secret.hex(),
                "run_id": host.machine.run.run_id.hex(),
                "own": plain(host.own),
                "proven": host.proven,
                "incarnation_to_draw": NEW_INCARNATION,
                "frontier": host.start,
            }
            for host in self.hosts.values()
        }
        digests = {host.name: host.machine.frontier.digest().hex() for host in self.hosts.values()}
        return {"name": self.name, "machines": machines, "steps": self.steps, "digests": digests}


# -- the scripts -------------------------------------------------------------------------------------


def two_nodes() -> Conversation:
    talk = Conversation("two nodes: what was before the link is pulled, what is new is flooded")
    alice, bob = talk.host("alice"), talk.host("bob")
    talk.compute(alice, 0, 5, -6, 7)
    talk.compute(alice, 0, 8)
    talk.connect(alice, bob)
    talk.compute(alice, 1, 9)
    talk.compute(bob, 1, -1000, 1000)
    talk.wake(SYNC_INTERVAL)
    return talk


def a_line() -> Conversation:
    talk = Conversation("a relay forwards with one hop more; nothing goes back to where it came from")
    alice, relay, carol = talk.host("alice"), talk.host("relay", relay=True), talk.host("carol")
    talk.connect(alice, relay)
    talk.connect(relay, carol)
    talk.compute(alice, 0, 1)
    talk.compute(carol, 0, 2)
    return talk


def a_gap() -> Conversation:
    talk = Conversation("a lost segment: the next one shows the gap, and both come in one")
    alice, bob = talk.host("alice"), talk.host("bob")
    talk.connect(alice, bob)
    talk.lose_next_segment()
    talk.compute(alice, 0, 1)
    talk.compute(alice, 0, 2)
    return talk


def a_lost_tail() -> Conversation:
    talk = Conversation("a lost last segment: digests differ, everything is told again, and it is asked for")
    alice, bob = talk.host("alice"), talk.host("bob")
    talk.connect(alice, bob)
    talk.lose_next_segment()
    talk.compute(alice, 0, 1)
    for _ in range(4):
        talk.wake(SYNC_INTERVAL)
    return talk


def a_forgery() -> Conversation:
    talk = Conversation("a segment that does not verify: the feed is not asked of that peer for a minute")
    alice, bob = talk.host("alice"), talk.host("bob")
    talk.connect(alice, bob)
    talk.falsify_next_segment()
    talk.compute(alice, 0, 1)
    talk.compute(alice, 0, 2)
    talk.wake(INQUIRY_TIME / 2)
    talk.wake(INQUIRY_TIME / 2)
    return talk


def another_run() -> Conversation:
    talk = Conversation("nodes of different runs part")
    talk.connect(talk.host("alice"), talk.host("bob", replace(RUN, run_id=bytes(32))))
    return talk


def _past(updates: int, *others: int) -> list[Admit]:
    """What alice's log holds after so many updates, and then some with these scalars."""
    talk = Conversation("")
    alice = talk.host("alice")
    for scalar in (*range(updates), *others):
        talk.compute(alice, 0, scalar)
    return alice.admitted


def a_witness() -> Conversation:
    talk = Conversation("a node with a past continues once a peer knows exactly as much of its feed")
    alice, bob = talk.host("alice", past=_past(2)), talk.host("bob", past=_past(2))
    talk.connect(alice, bob)
    talk.compute(alice, 0, 9)
    return talk


def an_old_backup() -> Conversation:
    talk = Conversation("a peer knows more of our feed than we: a new incarnation; the old feed is completed")
    alice, bob = talk.host("alice", past=_past(2)), talk.host("bob", past=_past(3))
    talk.connect(alice, bob)
    talk.compute(alice, 0, 9)
    return talk


def no_witness() -> Conversation:
    talk = Conversation("a newcomer is no witness; when the time is over, a new incarnation")
    alice, carol = talk.host("alice", past=_past(2)), talk.host("carol")
    talk.connect(alice, carol)
    talk.wake(ASK_TIMEOUT)
    talk.compute(alice, 0, 9)
    return talk


def the_tree() -> Conversation:
    talk = Conversation("a triangle: who brings what is known is pruned, and announces from then on")
    alice, bob, carol = talk.host("alice"), talk.host("bob"), talk.host("carol")
    talk.connect(bob, carol)
    talk.connect(alice, bob)
    talk.connect(alice, carol)
    talk.compute(alice, 0, 1)
    talk.compute(alice, 0, 2)
    talk.wake(HAVE_DELAY)
    return talk


def a_fork() -> Conversation:
    talk = Conversation("two histories of one feed: found, proven, and cut where they part")
    bob, carol = talk.host("bob", past=_past(3)), talk.host("carol", past=_past(2, 77))
    talk.connect(bob, carol)
    return talk


def conversations() -> dict[str, Any]:
    """All of flood.json."""
    scripts = (
        two_nodes, a_line, a_gap, a_lost_tail, a_forgery, another_run, a_witness, an_old_backup, no_witness,
        the_tree, a_fork,
    )  # fmt: skip
    run = plain(RUN)
    del run["type"], run["run_id"]
    return {"run": run, "conversations": [script().written() for script in scripts]}
