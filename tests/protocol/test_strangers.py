"""Claims about feeds of strangers leave no lasting cost (SPEC O19)."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable

import pytest

from sfprotocol import messages, rate_limit, wire_codec
from sfprotocol.decisions import INCARNATIONS, Admit
from sfprotocol.link import Link
from sfprotocol.plumtree import NO_TAG
from sfprotocol.wire_codec import MAX_ENTRIES
from tests.protocol.feeds import origin_of, signing_key
from tests.protocol.swarm import Faults, Node, Swarm, Wire
from tests.protocol.test_floors import hear
from tests.protocol.test_organised import QUOTA, close, decide, same, succeeded, swarm
from tests.protocol.test_pulls import calls

LINE = Faults(latency=(0.05, 0.05))
"""A line with a round trip of a tenth of a second."""

SOON = 1.0
"""Maximum time, in seconds, until a feed arrives after its origin's admission: a few round trips."""

PAGES = 5
"""Number of full Summaries that use up the waste of a link."""


def strangers(count: int, first: int = 0) -> list[messages.Feed]:
    return [messages.Feed((1000 + index).to_bytes(32, "big"), 0) for index in range(first, first + count)]


def claims(feeds: list[messages.Feed], following: int = 9) -> messages.Summary:
    return messages.Summary(
        False, 0, bytes(32), tuple(messages.Claim(feed, following, NO_TAG) for feed in sorted(feeds))
    )


def link_to(node: Node, peer: Node) -> Link:
    (wire,) = (wire for wire in node.wires.values() if wire.receiver is peer)
    return node.machine.links[wire.link]


def grown(work: Callable[[], None]) -> int:
    """Return by how many bytes `work` increases memory."""
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        work()
        gc.collect()
        return tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


class Late:
    """Delays messages of some types to one node until `release`."""

    def __init__(self, made: Swarm, to: str, *kinds: type) -> None:
        self._made, self._to, self._kinds = made, to, kinds
        self._transmit = made.transmit
        self._held: list[tuple[Wire, bytes]] = []
        made.transmit = self._hold  # type: ignore[method-assign]

    def _hold(self, wire: Wire, frame: bytes, *, segment: bool) -> None:
        if wire.receiver.name == self._to and isinstance(wire_codec.decode(frame), self._kinds):
            self._held.append((wire, frame))
        else:
            self._transmit(wire, frame, segment=segment)

    def release(self) -> None:
        self._made.transmit = self._transmit  # type: ignore[method-assign]
        for wire, frame in self._held:
            self._transmit(wire, frame, segment=False)


# -- what is kept ------------------------------------------------------------------------------------


def test_thousands_of_strangers_claimed_on_a_link_take_no_memory() -> None:
    # 65,536 took 29 MiB of each link; now this is what their frames leave in caches.
    made = swarm("a b")
    a, b = made["a"], made["b"]
    pages = [claims(strangers(MAX_ENTRIES, page * MAX_ENTRIES)) for page in range(PAGES)]
    hear(a, b, claims(strangers(1000)))
    assert grown(lambda: hear(a, b, *pages)) < MAX_ENTRIES
    link = link_to(a, b)
    assert not {feed.origin for feed in (*link.has, *link.names.known)} & {
        claim.feed.origin for page in pages for claim in page.entries
    }
    assert not any((link.names.taught, link.inbox.ahead, link.inquiries, a.machine.lacking, a.faults))


def test_names_that_teach_and_other_histories_of_strangers_are_not_kept_either() -> None:
    made = swarm("a b")
    (stranger,) = strangers(1)
    key = made["a"].machine.frontier.state(stranger).key
    for tag in (NO_TAG, b"tag!"):
        hear(made["a"], made["b"], messages.Summary(False, 0, bytes(32), (messages.Claim(stranger, 0, tag),)))
    hear(made["a"], made["b"], messages.Have((messages.Ahead(key, 5),)))
    link = link_to(made["a"], made["b"])
    assert stranger not in link.has
    assert not link.names.matching(key, made["a"].machine.frontier)
    assert not link.inquiries


def test_incarnations_that_no_member_can_have_are_those_of_strangers() -> None:
    made = swarm("a b")
    feeds = [messages.Feed(origin_of("b"), incarnation) for incarnation in (INCARNATIONS, INCARNATIONS - 1)]
    hear(made["a"], made["b"], claims(feeds))
    assert [feed in link_to(made["a"], made["b"]).has for feed in feeds] == [False, True]


def test_an_admission_costs_the_same_however_much_a_link_has_claimed() -> None:
    # It went over everything that any link had ever claimed: 8 ms at 65,536 names.
    few, many = swarm("a b"), swarm("a b")
    hear(few["a"], few["b"], claims(strangers(1)))
    hear(many["a"], many["b"], *(claims(strangers(MAX_ENTRIES, page * MAX_ENTRIES)) for page in range(PAGES)))
    decision = Admit(origin_of("new"), QUOTA, 0)
    costs = [calls(lambda made=made: decide(made["a"], decision)) for made in (few, many)]  # type: ignore[misc]
    assert costs[0] == costs[1]


# -- once they are admitted --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kinds", [(messages.Control, messages.ControlHead), (messages.Control,)], ids=["unheard of", "awaited"]
)
def test_a_feed_that_came_before_its_origins_admission_is_here_soon_after_it(kinds: tuple[type, ...]) -> None:
    """The link was up before, so that the peer has already sent its names and updates, which it does once."""
    made = swarm("a b", faults=LINE)
    made.add("c")
    made.connect(made["c"], made["a"])
    made.run(20)
    late = Late(made, "b", *kinds)
    decide(made["a"], Admit(origin_of("c"), QUOTA, 0))
    made.run(1)
    assert made["c"].compute(3)
    made.run(30)
    before = made["b"].machine.frontier.next(made["c"].own)
    late.release()
    made.run(SOON)
    assert (before, made["b"].machine.frontier.next(made["c"].own)) == (0, 3)
    assert made["c"].compute(2)
    made.run(SOON)
    assert same(made)
    assert not made["b"].faults


def test_a_newcomer_has_all_feeds_soon_after_the_last_page_of_decisions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All feeds are strangers' at first. The newcomer asks once, when it has all decisions."""
    monkeypatch.setattr("sfprotocol.control_sync.PAGE_BYTES", 1)
    made = swarm("a b c", faults=LINE)
    for name in "abc":
        made[name].compute(5)
    made.run(5)
    late = made.add("late")
    made.connect(late, made["b"])
    while late.machine.organised.run_state.decisions < 3:
        made.run(0.01)
    assert late.machine.frontier.known == 0
    made.run(SOON)
    assert late.machine.frontier.known == 15
    assert late.sent["ControlWant"] == 3
    assert late.sent["Want"] == 2, "one for everything, and one for what that shows"


def test_a_member_that_joins_is_heard_by_all_soon_after_its_admission() -> None:
    made = swarm("a b c", faults=LINE)
    made.cut(made["a"], made["c"])
    joining = made.add("new")
    made.connect(joining, made["c"])
    made.run(5)
    decide(made["a"], Admit(origin_of("new"), QUOTA, 0))
    made.run(SOON)
    assert joining.compute(4)
    made.run(SOON)
    assert {node.machine.frontier.next(joining.own) for node in made.nodes.values()} == {4}
    assert same(made)


@pytest.mark.parametrize("seed", range(4))
def test_feeds_arrive_where_messages_get_lost_and_admissions_come_one_by_one(seed: int) -> None:
    made = swarm("a b", seed=seed)
    made.faults = Faults(loss=0.1)
    for name in "cdefg":
        made.add(name)
        made.mesh()
        made.run(1)
        decide(made["a"], Admit(origin_of(name), QUOTA, 0))
        made.run(1)
        for node in made.nodes.values():
            node.compute(1)
    made.faults = Faults()
    made.run(60)
    assert same(made)


def test_what_a_peer_had_before_the_decisions_came_is_no_news(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a newcomer would refuse an origin's new updates for as long as its old ones exceed the
    rate."""
    monkeypatch.setattr(rate_limit, "ORIGIN_BURST", 8.0)
    monkeypatch.setattr(rate_limit, "ORIGIN_RATE", 0.01)
    made = swarm("a b", faults=LINE)
    for _ in range(4):
        made["b"].compute(4)
        close(made["a"])
        made.run(200)
    late = made.add("late")
    made.connect(late, made["a"])
    made.run(3)
    assert late.machine.frontier.next(made["b"].own) == 16
    made["b"].compute(2)
    made.run(SOON)
    assert late.machine.frontier.next(made["b"].own) == 18


def test_nobody_is_asked_to_tell_again_while_it_has_decisions_that_we_lack() -> None:
    made = swarm("a b c")
    hear(made["b"], made["c"], messages.ControlHead(0, 1000, bytes(32)), claims(strangers(1)))
    decide(made["a"], Admit(origin_of("new"), QUOTA, 0))
    made.run(2)
    assert made["b"].machine.organised.run_state.member(origin_of("new"))
    assert made["b"].sent["Want"] == 0
    assert made["b"].sent["ControlWant"]


def test_each_claim_of_strangers_is_followed_by_one_request_at_most() -> None:
    made = swarm("a b")
    asked = made["a"].sent
    for admitted in range(3):
        decide(made["a"], Admit(origin_of(f"before {admitted}"), QUOTA, 0))
    assert asked["Want"] == 0
    hear(made["a"], made["b"], claims(strangers(10)))
    for admitted in range(3):
        decide(made["a"], Admit(origin_of(f"after {admitted}"), QUOTA, 0))
        assert asked["Want"] == 1
    made.run(5)
    assert asked["Want"] == 1


def test_who_drops_decisions_has_everybody_tell_again() -> None:
    """Another set of origins is strangers now than when the neighbours told their feeds."""
    made = swarm("a b c")
    made["c"].compute(3)
    made.run(2)
    feed = made["b"].machine.organised.control.feed
    made["b"].handle(succeeded(made["b"], feed.stop - 1))
    made.run(5)
    assert made["b"].machine.organised.run_state.member(origin_of("c")) is None
    assert all(node.sent["Want"] >= 2 for node in made.nodes.values())
    made["b"].machine.organised.control.hold(origin_of("new"), signing_key("new").sign, made.now)
    decide(made["b"], Admit(origin_of("c"), QUOTA, 0))
    made["c"].compute(2)
    made.run(2)
    assert same(made)


# -- whoever is asked --------------------------------------------------------------------------------


def test_who_is_asked_for_everything_tells_it_at_once() -> None:
    made = swarm("a b", faults=LINE)
    made["a"].compute(3)
    made.run(2)
    made.forget_costs()
    hear(made["a"], made["b"], messages.Want(()))
    assert made["a"].sent["Summary"] == 1
    assert made["a"].sent_bytes["Summary"] > 40


def test_who_asks_for_everything_without_end_wastes_its_link() -> None:
    made = swarm("a b c")
    for name in "abc":
        made[name].compute(1)
    made.run(2)
    made.forget_costs()
    hear(made["c"], made["b"], *[messages.Want(())] * 10_000)
    assert [fault[:2] for fault in made["c"].faults] == ["L8"]
    assert made["c"].sent_bytes["Summary"] < rate_limit.WASTE_BURST + 3 * rate_limit.WASTE_BURST_PER_FEED


def test_in_an_open_run_nobody_is_told_more_than_before() -> None:
    made = Swarm("a b")
    made.mesh()
    made.run(1)
    made.forget_costs()
    hear(made["a"], made["b"], messages.Want(()))
    assert not made["a"].sent


def test_a_node_knows_how_many_decisions_a_neighbour_says_it_has_and_which_one() -> None:
    made = swarm("a b c")
    decide(made["a"], Admit(origin_of("new"), QUOTA, 0))
    made.run(2)
    control = made["b"].machine.organised.control
    assert 0 < control.claimed[0] <= control.feed.stop
    hear(made["b"], made["c"], messages.ControlHead(0, 1000, bytes(32)))
    assert control.claimed == (1000, link_to(made["b"], made["c"]).peer)
