"""The conversations of flood.json: a few machines on a perfect network, with the actions for every event.

The script determines all random choices, and time moves only where it says so. The transcripts therefore
change only with the machine. The network delivers frames in order and at once, except where a script loses or
falsifies one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sfprotocol.anti_entropy import SYNC_INTERVAL
from sfprotocol.events import Action, Admit, Event, LinkDown, LinkUp, OwnUpdates, Received, Wake, Writable
from sfprotocol.fork_resolution import INQUIRY_TIME
from sfprotocol.frontier import Frontier
from sfprotocol.host import Close, Commit, Send
from sfprotocol.host import Host as ProtocolHost
from sfprotocol.machine import ASK_TIMEOUT, Machine
from sfprotocol.messages import EpochScalars, Feed, Proof, RunParameters, Segment
from sfprotocol.plumtree import HAVE_DELAY
from sfprotocol.segments import first_updates, join, without_front
from sfprotocol.signing import extend, genesis
from tests.protocol.vectors.plain import plain

RUN = RunParameters(bytes(range(32)), epoch_updates=4, update_budget=40, scalar_bytes=2, scalar_limit=1000)
NEW_INCARNATION = 4_000_000_000


class RecordedMachine(Machine):
    """A machine that records every call, and is due only when the script says so."""

    due = False
    write_down: Callable[[Event, list[Action]], None]

    def next_deadline(self) -> float:
        return float("-inf") if self.due else float("inf")

    def handle(self, event: Event, now: float) -> list[Action]:
        self.due = self.due and not isinstance(event, Wake)
        actions = super().handle(event, now)
        self.write_down(event, actions)
        return actions


class VectorHost:
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
        self.start = [
            {**plain(s.feed), "next": s.next, "chain": s.chain.hex(), "epoch": s.epoch} for s in frontier
        ]
        self.machine = RecordedMachine(
            run,
            frontier,
            own=self.own,
            sign=key.sign,
            draw_incarnation=lambda: NEW_INCARNATION,
            proven=self.proven,
            now=0.0,
        )
        self.admitted: list[Admit] = []
        self.append(Commit(tuple(past)))
        self.host = ProtocolHost(self.machine, self)
        self.links: dict[int, tuple[VectorHost, int]] = {}

    # -- the store ---------------------------------------------------------------------------------

    def append(self, commit: Commit) -> None:
        self.admitted += commit.admits
        for admit in commit.admits:
            self.log.setdefault(admit.feed, []).append(admit.segment)
        self.proofs.update({cut.proof.feed: cut.proof for cut in commit.cuts})

    def read(self, feed: Feed, first: int, max_updates: int = 0) -> Segment:
        """Return everything of `feed` from `first` on in one segment."""
        return without_front(join(self.log[feed], 0, self.machine.run.update_budget), first)

    def past(self, feed: Feed, step: int) -> tuple[bytes, Segment]:
        """Return the chain head before `step`, and everything from there on."""
        whole = self.read(feed, 0)
        chain = extend(genesis(self.machine.run.run_id, feed), first_updates(whole.parts, step))
        return chain, self.read(feed, step)

    def proof(self, feed: Feed) -> Proof | None:
        return self.proofs.get(feed)


class VectorConversation:
    """Machines whose calls are recorded."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.hosts: dict[str, VectorHost] = {}
        self.steps: list[dict[str, Any]] = []
        self._now = 0.0
        self._queue: deque[tuple[VectorHost, Event]] = deque()
        self._meddle: list[Callable[[bytes], bytes | None]] = []

    def host(
        self, name: str, run: RunParameters = RUN, *, relay: bool = False, past: list[Admit] | None = None
    ) -> VectorHost:
        host = self.hosts[name] = VectorHost(name, run, relay=relay, past=past or [])
        host.machine.write_down = partial(self._write_down, name)
        return host

    def connect(self, one: VectorHost, other: VectorHost) -> None:
        near, far = len(one.links) + 1, len(other.links) + 1
        one.links[near], other.links[far] = (other, far), (one, near)
        self._post(one, LinkUp(near, other.name))
        self._post(other, LinkUp(far, one.name))
        self._drain()

    def compute(self, host: VectorHost, epoch: int, *scalars: int) -> None:
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
            host.machine.due = True
            self._round(host)
            self._drain()

    # -- the network -------------------------------------------------------------------------------

    def _post(self, host: VectorHost, event: Event) -> None:
        self._queue.append((host, event))

    def _drain(self) -> None:
        while self._queue:
            host, event = self._queue.popleft()
            host.host.post(event)
            self._round(host)

    def _round(self, host: VectorHost) -> None:
        """Run rounds of this host until nothing is left to do."""
        while host.host.waiting or host.machine.due:
            if commit := host.host.decide(self._now):
                host.append(commit)
            for effect in host.host.carry_out():
                match effect:
                    case Send():
                        self._send(host, effect)
                    case Close(link=link):
                        other, far = host.links[link]
                        self._post(other, LinkDown(far))

    def _send(self, host: VectorHost, send: Send) -> None:
        if not isinstance(send.message, Segment):
            self._carry(host, send.link, send.frame)
            return
        meddled = self._meddle.pop(0)(send.frame) if self._meddle else send.frame
        if meddled is not None:
            self._carry(host, send.link, meddled)
        self._post(host, Writable(send.link))

    def _write_down(self, name: str, event: Event, actions: list[Action]) -> None:
        self.steps.append(
            {"machine": name, "now": self._now, "event": plain(event), "actions": plain(tuple(actions))}
        )

    def _carry(self, host: VectorHost, link: int, frame: bytes) -> None:
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


def two_nodes() -> VectorConversation:
    talk = VectorConversation("two nodes: what was before the link is pulled, what is new is flooded")
    alice, bob = talk.host("alice"), talk.host("bob")
    talk.compute(alice, 0, 5, -6, 7)
    talk.compute(alice, 0, 8)
    talk.connect(alice, bob)
    talk.compute(alice, 1, 9)
    talk.compute(bob, 1, -1000, 1000)
    talk.wake(SYNC_INTERVAL)
    return talk


def a_line() -> VectorConversation:
    talk = VectorConversation("a relay forwards with one hop more; nothing goes back to where it came from")
    alice, relay, carol = talk.host("alice"), talk.host("relay", relay=True), talk.host("carol")
    talk.connect(alice, relay)
    talk.connect(relay, carol)
    talk.compute(alice, 0, 1)
    talk.compute(carol, 0, 2)
    return talk


def a_gap() -> VectorConversation:
    talk = VectorConversation("a lost segment: the next one shows the gap, and both come in one")
    alice, bob = talk.host("alice"), talk.host("bob")
    talk.connect(alice, bob)
    talk.lose_next_segment()
    talk.compute(alice, 0, 1)
    talk.compute(alice, 0, 2)
    return talk


def a_lost_tail() -> VectorConversation:
    talk = VectorConversation(
        "a lost last segment: digests differ, everything is told again, and it is asked for"
    )
    alice, bob = talk.host("alice"), talk.host("bob")
    talk.connect(alice, bob)
    talk.lose_next_segment()
    talk.compute(alice, 0, 1)
    for _ in range(4):
        talk.wake(SYNC_INTERVAL)
    return talk


def a_forgery() -> VectorConversation:
    talk = VectorConversation(
        "a segment that does not verify: the feed is not asked of that peer for a minute"
    )
    alice, bob = talk.host("alice"), talk.host("bob")
    talk.connect(alice, bob)
    talk.falsify_next_segment()
    talk.compute(alice, 0, 1)
    talk.compute(alice, 0, 2)
    talk.wake(INQUIRY_TIME / 2)
    talk.wake(INQUIRY_TIME / 2)
    return talk


def another_run() -> VectorConversation:
    talk = VectorConversation("nodes of different runs part")
    talk.connect(talk.host("alice"), talk.host("bob", replace(RUN, run_id=bytes(32))))
    return talk


def _past(updates: int, *others: int) -> list[Admit]:
    """Return alice's log after `updates` updates and further ones with these scalars."""
    talk = VectorConversation("")
    alice = talk.host("alice")
    for scalar in (*range(updates), *others):
        talk.compute(alice, 0, scalar)
    return alice.admitted


def a_witness() -> VectorConversation:
    talk = VectorConversation("a node with a past continues once a peer knows exactly as much of its feed")
    alice, bob = talk.host("alice", past=_past(2)), talk.host("bob", past=_past(2))
    talk.connect(alice, bob)
    talk.compute(alice, 0, 9)
    return talk


def an_old_backup() -> VectorConversation:
    talk = VectorConversation(
        "a peer shows more of our feed than we: a new incarnation; the old feed is completed"
    )
    alice, bob = talk.host("alice", past=_past(2)), talk.host("bob", past=_past(3))
    talk.connect(alice, bob)
    talk.compute(alice, 0, 9)
    return talk


def no_witness() -> VectorConversation:
    talk = VectorConversation("a newcomer is no witness; when the time is over, a new incarnation")
    alice, carol = talk.host("alice", past=_past(2)), talk.host("carol")
    talk.connect(alice, carol)
    talk.wake(ASK_TIMEOUT)
    talk.compute(alice, 0, 9)
    return talk


def the_tree() -> VectorConversation:
    talk = VectorConversation("a triangle: who brings what is known is pruned, and announces from then on")
    alice, bob, carol = talk.host("alice"), talk.host("bob"), talk.host("carol")
    talk.connect(bob, carol)
    talk.connect(alice, bob)
    talk.connect(alice, carol)
    talk.compute(alice, 0, 1)
    talk.compute(alice, 0, 2)
    talk.wake(HAVE_DELAY)
    return talk


def a_fork() -> VectorConversation:
    talk = VectorConversation("two histories of one feed: found, proven, and cut where they part")
    bob, carol = talk.host("bob", past=_past(3)), talk.host("carol", past=_past(2, 77))
    talk.connect(bob, carol)
    return talk


def conversations() -> dict[str, Any]:
    """Return the contents of flood.json."""
    scripts = (
        two_nodes, a_line, a_gap, a_lost_tail, a_forgery, another_run, a_witness, an_old_backup, no_witness,
        the_tree, a_fork,
    )  # fmt: skip
    run = plain(RUN)
    del run["type"], run["run_id"]
    return {"run": run, "conversations": [script().written() for script in scripts]}
