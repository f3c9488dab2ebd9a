"""Tests with random events: every decision of an organiser is valid."""

from __future__ import annotations

import copy
from dataclasses import replace
from random import Random

import pytest

from sfnode.organising.events import Round
from sfnode.organising.policy import Admission
from sfnode.organising.steps import at_rate
from sfprotocol.decisions import (
    Admit,
    Amend,
    Announce,
    Bases,
    Budget,
    Close,
    Decision,
    Finish,
    Invite,
    Revoke,
    RevokeInvitation,
    Void,
)
from sfprotocol.events import JoinRequested
from sfprotocol.messages import JoinRequest
from sfprotocol.run_state import NEVER
from tests.organising.bench import BUDGET, EVALUATED, RATE, Bench, feed_of

FIRST_BASES, OTHER_BASES = bytes(32), bytes([1]) * 32


class Story:
    """Random events around an organiser, as in a run of a few members."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        policy = replace(
            EVALUATED,
            target_updates=self.random.choice([1, 50, 400]),
            seal_wait=self.random.choice([0.0, 30.0]),
            admission=self.random.choice(list(Admission)),
            work_bits=0,
            quota=40,
        )
        self.bench = Bench(
            policy=policy,
            judge=lambda run_state: at_rate(max(0, RATE - run_state.counted))(run_state),
            bases=self.random.choice([b"", FIRST_BASES]),
            held_back=True,
        )
        self.names = [f"member {number}" for number in range(5)]
        self.made: dict[tuple[object, int], int] = {}
        self.forked = self.bench.node.forked
        self.bench.link()

    def step(self) -> None:
        random, bench = self.random, self.bench
        match random.randrange(12):
            case 0 | 1 | 2 | 3:
                self.update()
            case 4 if bench.boundaries:
                feed = random.choice(list(bench.boundaries))
                bench.show(feed, random.choice(bench.boundaries[feed]).stop)
            case 5 if random.random() < 0.1 and bench.boundaries:
                feed = random.choice(list(bench.boundaries))
                if feed not in self.forked:
                    self.forked[feed] = random.randrange(bench.boundaries[feed][-1].stop + 1)
                    bench.do(Round((feed,)))
            case 6:
                origin = feed_of(random.choice(self.names)).origin
                bench.do(JoinRequested(JoinRequest(origin, 1, 0, b"", bytes(64)), "peer"))
            case 7:
                bench.decide(self.decide())
            case 8 if bench.asked and random.random() < 0.5:
                bench.evaluated(random.random(), random.choice([None, 0.5]))
            case 9:
                bench.advance(random.choice([0.1, 1.0, 10.0, 100.0]))
            case 10 if random.random() < 0.1:
                self.restart()
            case 10:
                bench.do()
            case _:
                bench.commit()

    def restart(self) -> None:
        """Restart the organiser with durable state only. Decisions that were not signed yet are lost."""
        bench = self.bench
        bench.outbox.clear()
        bench.asked.clear()
        bench.start()
        bench.link()

    def update(self) -> None:
        """Let a member make updates within its quota, mostly with the label of the open epoch."""
        bench, random = self.bench, self.random
        feed = feed_of(random.choice(self.names), random.choice([0, 0, 0, 1, 63]))
        member = bench.run_state.member(feed.origin)
        boundaries = bench.boundaries.get(feed, [])
        last = boundaries[-1].label if boundaries else 0
        late = random.random() < 0.2
        label = random.randint(last, bench.run_state.open_epoch) if late else bench.run_state.open_epoch
        if member is None or label >= member.revoked or feed in self.forked:
            return
        if bench.run_state.ended(bench.run_state.number(feed) or 0) < NEVER:
            return
        number, quotas = bench.run_state.member_number(feed.origin), bench.run_state.quotas
        made = self.made.get((feed.origin, label), 0)
        count = min(random.randint(1, 20), quotas.quota(number, label) - made)
        if quotas.incarnation(number, label) != feed.incarnation:
            count = min(count, 1 - len(boundaries))
        if count > 0:
            self.made[feed.origin, label] = made + count
            bench.update(feed, count, label, shown=random.random() < 0.5)

    def decide(self) -> Decision:
        random, epoch = self.random, self.bench.run_state.open_epoch
        member = random.randrange(len(self.names))
        first = random.randrange(epoch + 1)
        often = [Announce("hello"), Admit(feed_of(self.names[member]).origin, random.choice([40, 50]), 0)]
        seldom = [
            Bases(epoch + random.randrange(4), random.choice([FIRST_BASES, OTHER_BASES])),
            Invite(bytes(31) + bytes([random.randrange(3)]), random.randrange(3)),
            RevokeInvitation(random.randrange(3), epoch),
            Void(first, first + random.randrange(2), (member,) if random.random() < 0.5 else ()),
            Budget(random.choice([BUDGET, 2 * BUDGET])),
            Close(epoch, bytes(8), ()),
        ]
        rarely = [
            Finish(),
            Revoke(member, random.randrange(epoch + 5)),
            Amend(64 * member, 0),
        ]
        (kind,) = random.choices([often, seldom, rarely], [80, 17, 3])
        return random.choice(kind)


@pytest.mark.parametrize("seed", range(24))
def test_whatever_comes_every_decision_holds_and_what_peers_show_is_named(seed: int) -> None:
    story = Story(seed)
    bench = story.bench
    for _ in range(600):
        story.step()
    bench.held_back = False
    bench.commit()
    for feed in bench.boundaries:
        bench.show(feed)
    bench.advance(31.0)
    backlog = sum(boundaries[-1].stop - bench.named(feed) for feed, boundaries in bench.boundaries.items())
    rounds = 2 + backlog // 20
    bench.advance(rounds * (bench.policy.longest_epoch + bench.policy.seal_wait + 10))
    assert bench.run_state.sealed == bench.run_state.open_epoch
    if bench.run_state.complete:
        return
    for feed, boundaries in bench.boundaries.items():
        member, number = bench.run_state.member(feed.origin), bench.run_state.number(feed)
        if bench.run_state.ended(number) < NEVER:
            continue
        cut = story.forked.get(feed, NEVER)
        may = [one.stop for one in boundaries if one.stop <= cut and one.label < member.revoked]
        assert bench.named(feed) >= max(may, default=0)


def test_the_same_events_bring_the_same_decisions() -> None:
    signed = []
    for _ in range(2):
        story = Story(7)
        for _ in range(300):
            story.step()
        signed.append(copy.copy(story.bench.signed))
    assert signed[0] == signed[1]
    assert signed[0]
