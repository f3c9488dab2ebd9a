"""The checkers find errors: a machine or host that is broken on purpose does not pass.

Each test names the checker that must object. The broken code is the shipped code: the machine and the host of
the daemon.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from sflab.simulator.actors import Attack
from sflab.simulator.runner import Outcome
from sflab.simulator.runner import simulate as run
from sflab.simulator.scenarios import SCENARIOS, Limits, Load
from sflab.simulator.world import engine, world
from sfnode.node import driver, startup
from sfnode.organising.feeds import HeldFeeds
from sfnode.peers import link_slots
from sfnode.peers.manager import PeerManager
from sfnode.transport.memory import Conditions
from sfprotocol import fork_proofs, plumtree, validation, weighing
from sfprotocol.control_feed import ControlFeed
from sfprotocol.decisions import FACTOR_ONE, RateFrom
from sfprotocol.events import Action, Admit, Event, Examine, Serve, Transmit
from sfprotocol.fields import squares_of
from sfprotocol.frontier import FeedState
from sfprotocol.host import Advanced, Commit, Effect, Host, Send
from sfprotocol.machine import Machine
from sfprotocol.messages import RunParameters, Want
from sfprotocol.organised import Organised
from sfprotocol.own_feed import OwnFeed
from sfprotocol.run_state import RunState
from sfprotocol.validation import Verified
from sfprotocol.verdicts import NamedSteps

TWINS = replace(SCENARIOS["twins"], nodes=5, settle=10)
"""Scenario in which feeds fork, with few nodes."""


def simulate(*what: Any, machine: Any = Machine, host: Any = Host, **how: Any) -> Outcome:
    """Run a scenario whose nodes have this machine and this host."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(startup, "Machine", machine)
        patch.setattr(driver, "Host", host)
        return run(*what, **how)


def caught(outcome: Outcome) -> str:
    """Return the checker that objected."""
    assert outcome.failure, "a broken machine has passed"
    assert outcome.failure.trace, "a failure comes with its story"
    return outcome.failure.checker


def test_twins_become_equal_if_nothing_is_broken() -> None:
    assert simulate(TWINS, 0, seconds=8).failure is None


class NeverAsks(Machine):
    """Machine that drops all Wants."""

    def handle(self, event: Event, now: float) -> list[Action]:
        actions = super().handle(event, now)
        return [a for a in actions if not (isinstance(a, Transmit) and isinstance(a.message, Want))]


def test_a_machine_that_drops_the_gap_pull_does_not_converge() -> None:
    lossy = replace(SCENARIOS["lossy"], settle=20)
    assert simulate(lossy, 0, nodes=5, seconds=3).failure is None
    assert caught(simulate(lossy, 0, nodes=5, seconds=3, machine=NeverAsks)) == "convergence"


def test_a_machine_that_forgets_the_ttl_is_seen_by_its_hop_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plumtree, "TTL", 250)
    outcome = simulate(SCENARIOS["long-line"], 0, nodes=20, seconds=3)
    assert caught(outcome) == "hops"


class AppliesTwice(Machine):
    """Machine that returns every second Admit twice."""

    def handle(self, event: Event, now: float) -> list[Action]:
        actions = super().handle(event, now)
        for number, action in enumerate(actions):
            if isinstance(action, Admit) and action.segment.first % 2:
                return [*actions[: number + 1], action, *actions[number + 1 :]]
        return actions


def test_a_machine_that_admits_twice_is_seen_at_the_disk() -> None:
    outcome = simulate(SCENARIOS["calm"], 0, nodes=4, seconds=5, machine=AppliesTwice)
    assert caught(outcome) == "exception"
    assert outcome.failure
    assert "the log has a feed up to step" in outcome.failure.what


def test_a_machine_that_leaves_a_gap_is_seen_at_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def lenient(run: Any, state: Any, segment: Any, *_: Any) -> Verified | None:
        """Accept segments after a gap of any size."""
        if segment.stop <= state.next:
            return None
        return Verified(segment, bytes(32), segment.count, bytes(32))

    monkeypatch.setattr(validation, "due", lambda state, segment: segment.stop > state.next)
    monkeypatch.setattr(validation, "verify", lenient)
    assert caught(simulate(SCENARIOS["lossy"], 0, nodes=4, seconds=3)) == "content"


def trusting(*arguments: Any, **settings: Any) -> Machine:
    """Return a machine that accepts all signatures."""
    return Machine(*arguments, **{**settings, "verify": lambda *_: True})


def test_a_machine_that_takes_any_signature_is_seen_by_what_it_admits() -> None:
    garbage = replace(SCENARIOS["garbage"], attack=Attack("forge", actors=6))
    assert caught(simulate(garbage, 0, nodes=4, seconds=5, machine=trusting)) == "content"


def test_a_machine_that_keeps_a_forked_feed_does_not_become_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two histories are signed and no node detects it: every node keeps the one that it received first."""
    monkeypatch.setattr(fork_proofs, "judge", lambda *_: None)
    monkeypatch.setattr(fork_proofs, "holds", lambda *_: False)
    assert caught(simulate(TWINS, 0, seconds=8)) == "convergence"


def test_a_machine_whose_clock_never_advances_is_seen() -> None:
    class Stuck(Machine):
        def next_deadline(self) -> float:
            return min(super().next_deadline(), 2.0)

    assert caught(simulate(SCENARIOS["calm"], 0, nodes=3, seconds=2, machine=Stuck)) == "timer"


def test_a_machine_that_raises_is_a_finding_and_not_a_crash() -> None:
    class Raises(Machine):
        def handle(self, event: Event, now: float) -> list[Action]:
            if now > 4:
                raise RuntimeError("no way")
            return super().handle(event, now)

    assert caught(simulate(SCENARIOS["calm"], 0, nodes=3, seconds=2, machine=Raises)) == "exception"


# -- the host ------------------------------------------------------------------------------------------


class SendsBeforeItWrites(Host):
    """Host that writes nothing and carries everything out at once."""

    def decide(self, now: float, **how: Any) -> Commit | None:
        super().decide(now, **how)
        return None


class AppliesBeforeItWrites(SendsBeforeItWrites):
    """The same host without links, so that it sends nothing."""

    def carry_out(self) -> list[Effect]:
        self._links.clear()
        return super().carry_out()


def test_a_host_that_sends_before_the_commit_is_durable_is_seen_at_the_disk() -> None:
    outcome = simulate(SCENARIOS["calm"], 0, nodes=3, seconds=5, host=SendsBeforeItWrites)
    assert caught(outcome) == "exception"
    assert outcome.failure
    assert "the log ends before step 0" in outcome.failure.what


def test_a_host_that_applies_before_the_commit_is_durable_is_seen_at_the_disk() -> None:
    outcome = simulate(SCENARIOS["calm"], 0, nodes=1, seconds=5, host=AppliesBeforeItWrites)
    assert caught(outcome) == "durable"


class AppliesCutsTwice(Host):
    """Host that applies every cut twice."""

    def carry_out(self) -> list[Effect]:
        effects = super().carry_out()
        again = [e for e in effects if isinstance(e, Advanced) and e.stop < e.before]
        return [*effects, *again]


class AppliesNoCuts(Host):
    """Host that applies no cut."""

    def carry_out(self) -> list[Effect]:
        return [e for e in super().carry_out() if not isinstance(e, Advanced) or e.stop > e.before]


class ForgetsCuts(Host):
    """Host that stores no proof."""

    def decide(self, now: float, **how: Any) -> Commit | None:
        commit = super().decide(now, **how)
        return replace(commit, cuts=()) if commit else None


class ForgetsItsFeed(Host):
    """Host that does not record its new feed."""

    def decide(self, now: float, **how: Any) -> Commit | None:
        commit = super().decide(now, **how)
        return replace(commit, own=None) if commit else None


class NeverLooks(Host):
    """Host that does not look up a feed in its own log."""

    def _examine(self, examine: Examine) -> None:
        pass


@pytest.mark.parametrize(
    ("host", "checker", "what"),
    [
        (AppliesCutsTwice, "once", "updates from step"),
        (AppliesNoCuts, "digest", "another set than a node of the same digest"),
        (ForgetsCuts, "exception", "a proof that is to be shown is not in the log"),
        (ForgetsItsFeed, "own", "does not remember its own feed"),
        (NeverLooks, "convergence", "not equal"),
    ],
)
def test_a_host_that_treats_forks_otherwise_is_seen(host: type[Host], checker: str, what: str) -> None:
    outcome = simulate(TWINS, 0, seconds=8, host=host)
    assert caught(outcome) == checker
    assert outcome.failure
    assert what in outcome.failure.what


class ServesWithoutHops(Host):
    """Host that forwards every segment with hop count 0, as the origin does."""

    def _serve(self, serve: Serve, frames: Any) -> Send:
        return super()._serve(replace(serve, hops=0), frames)


def test_a_host_that_serves_without_the_hop_count_is_seen_by_its_costs() -> None:
    scenario = replace(SCENARIOS["calm"], nodes=8, limits=Limits(copies=4.0))
    assert simulate(scenario, 0, seconds=4).failure is None
    assert caught(simulate(scenario, 0, seconds=4, host=ServesWithoutHops)) == "limits"


# -- organised runs ------------------------------------------------------------------------------------


def test_a_machine_that_counts_no_quota_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = replace(SCENARIOS["organised"], faults=(), load=Load(rate=20, most=40))
    assert simulate(scenario, 0, nodes=3, seconds=4).failure is None
    monkeypatch.setattr(validation, "refused", lambda *_: None)
    monkeypatch.setattr(Organised, "room", lambda self, own: 1000)
    # it also says with which feed a member goes on: which of the two is broken first is chance
    assert caught(simulate(scenario, 0, nodes=3, seconds=4)) in ("quota", "feed")


def test_a_machine_that_takes_labels_of_epochs_that_are_not_open_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scenario = replace(SCENARIOS["organised"], conditions=Conditions(loss=0.4), faults=())
    monkeypatch.setattr(validation, "early", lambda *_: False)
    monkeypatch.setattr(validation, "refused", lambda *_: None)
    assert caught(simulate(scenario, 0, nodes=5, seconds=16)) == "quota"


def test_a_machine_that_does_not_compare_histories_with_named_ones_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Organised, "_compare", lambda *_: [])
    monkeypatch.setattr(Organised, "_on_traced", lambda *_: [])
    monkeypatch.setattr(validation, "follows", lambda *_: True)
    assert caught(simulate(SCENARIOS["organised-twins"], 0, nodes=8)) == "named"


def test_a_fork_proof_that_cuts_below_what_was_named_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = replace(SCENARIOS["organised-twins"], settle=60)
    assert simulate(scenario, 4, nodes=6, seconds=12).failure is None
    monkeypatch.setattr(FeedState, "fork_cut", property(lambda state: state.forked))
    assert caught(simulate(scenario, 4, nodes=6, seconds=12)) == "convergence"


def test_a_forked_control_feed_that_goes_on_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ControlFeed, "freeze", lambda *_: False)
    assert caught(simulate(SCENARIOS["two-organisers"], 0, nodes=4, seconds=12)) == "organiser"


def test_a_machine_that_ends_no_feeds_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = replace(SCENARIOS["undone"], settle=30)
    assert simulate(scenario, 0, nodes=4, seconds=8).failure is None
    monkeypatch.setattr(Organised, "_go_back", lambda *_: [])
    assert caught(simulate(scenario, 0, nodes=4, seconds=8)) == "convergence"


def test_a_machine_that_weighs_with_other_factors_than_the_seals_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(weighing, "multiplier", lambda rate, factor, unit: rate * ((factor + 1) >> 12))
    assert caught(simulate(SCENARIOS["judged"], 0, nodes=4, seconds=6)) == "union"


@pytest.mark.parametrize(
    ("what", "name", "broken"),
    [
        (weighing, "multiplier", lambda rate, factor, unit: rate * (unit + 1) * factor >> 28),
        (RateFrom, "moves", lambda rate, values: squares_of(values) <= rate.limit**2),
        (RateFrom, "moves", lambda rate, values: any(values)),
    ],
    ids=["in another unit", "however short", "however long"],
)
def test_a_machine_that_weighs_a_vector_otherwise_is_seen(
    monkeypatch: pytest.MonkeyPatch, what: Any, name: str, broken: Any
) -> None:
    monkeypatch.setattr(what, name, broken)
    scenario = replace(SCENARIOS["vectors"], attack=None, faults=(), settle=40)
    assert caught(simulate(scenario, 0, nodes=3, seconds=4)) == "union"


def test_a_fold_that_recounts_with_factor_1_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    judge = RunState._judge

    def recounts(self: RunState, feed: int, epoch: int, verdict: int, factor: int) -> None:
        judge(self, feed, epoch, verdict, factor if epoch == self.sealed - 1 else FACTOR_ONE)

    monkeypatch.setattr(RunState, "_judge", recounts)
    assert caught(simulate(SCENARIOS["judged"], 0, nodes=4, seconds=12)) == "union"


def test_a_fold_that_counts_what_moves_nothing_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(seeds: Sequence[int], run: RunParameters, salt: int) -> tuple[int, ...]:
        return tuple((seed + salt) % 7 - 3 for seed in seeds)  # one in seven is 0

    monkeypatch.setattr(engine, "measured", measured)
    monkeypatch.setattr(world, "measured", measured)
    scenario = replace(SCENARIOS["organised"], faults=())
    assert simulate(scenario, 0, nodes=3, seconds=4).failure is None
    append = NamedSteps.append
    monkeypatch.setattr(NamedSteps, "append", lambda steps, *named: append(steps, *named[:-1], 0))
    assert caught(simulate(scenario, 0, nodes=3, seconds=4)) == "union"


def test_a_node_that_goes_on_with_a_feed_of_which_it_has_lost_named_steps_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(OwnFeed, "overruled", lambda *_: False)
    assert caught(simulate(SCENARIOS["lost"], 2, nodes=4)) == "named"


def test_an_organiser_that_gives_nothing_up_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = replace(SCENARIOS["lost"], settle=90)
    assert simulate(scenario, 0, nodes=4, seconds=8).failure is None
    monkeypatch.setattr(HeldFeeds, "lost", lambda *_: None)
    assert caught(simulate(scenario, 0, nodes=4, seconds=8)) == "convergence"


class AppliesNoDecisions(Host):
    """Host that does not apply decisions without new updates."""

    def carry_out(self) -> list[Effect]:
        return [e for e in super().carry_out() if not isinstance(e, Advanced) or e.stop != e.before]


def test_a_host_that_does_not_apply_decisions_is_seen_by_what_is_applied() -> None:
    outcome = simulate(SCENARIOS["undone"], 0, nodes=5, seconds=12, host=AppliesNoDecisions)
    assert caught(outcome) == "applied"


# -- the peer manager ----------------------------------------------------------------------------------


def test_a_manager_that_opens_no_links_of_its_own_choice_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """All its links are opened by others, and these are enough."""
    calm = replace(SCENARIOS["calm"], topology="managed")
    assert simulate(calm, 0, nodes=5, seconds=8).failure is None
    monkeypatch.setattr(link_slots, "missing", lambda links: 0 if links else 1)
    monkeypatch.setattr(link_slots, "whom_to_probe", lambda *_: [])
    assert caught(simulate(calm, 0, nodes=5, seconds=8)) == "outbound"


def test_a_manager_that_gives_up_the_links_of_its_own_choice_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """It closes its outbound links as soon as it can."""
    calm = replace(SCENARIOS["calm"], topology="managed")
    monkeypatch.setattr(
        link_slots, "whom_to_let_go", lambda links, *_: [link.peer for link in links if link.outbound]
    )
    assert caught(simulate(calm, 0, nodes=5, seconds=8)) == "outbound"


def test_a_manager_whose_clock_never_advances_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PeerManager, "next_deadline", lambda self: 2.0)
    calm = replace(SCENARIOS["calm"], topology="managed")
    assert caught(simulate(calm, 0, nodes=3, seconds=2)) == "timer"
