"""Stand-ins: decisions by majority, and elections when the organiser falls silent (SPEC O21 to O24)."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

import pytest

from sfprotocol import decisions
from sfprotocol.control_feed import double_vote, election_message, extend, statement_message
from sfprotocol.decisions import Admit, Announce, Ballot, Elected, StandIn, StandIns
from sfprotocol.elections import BEAT, LEASE, SPREAD
from sfprotocol.errors import RemoteProtocolError
from sfprotocol.events import OwnHandOver, Received, Transmit
from sfprotocol.messages import ELECTED_TERMS, ControlFork, DoubleVote, Statement
from sfprotocol.rate_limit import FORGERY_COST
from sfprotocol.wire_codec import MAX_TAIL, decode, encode
from tests.protocol.feeds import origin_of, signing_key
from tests.protocol.swarm import Faults, Node, Swarm
from tests.protocol.test_organised import AUTHORITY, ORGANISED, decide, succeeded

RUN = replace(ORGANISED, organised=AUTHORITY._replace(terms=ELECTED_TERMS), version=4)
CALM = Faults()
SEEDS = 3 << int(os.environ.get("SFNODE_DEPTH", "0"))
ELECTION = LEASE + 3 * BEAT + 2 * SPREAD
"""Maximum time, in seconds, until a fallen organiser is replaced."""


def key_of(name: str) -> bytes:
    """Return the key with which a node stands in: the organiser's key, or one that the node has made."""
    return origin_of("organiser" if name == "a" else f"{name} stands in")


def swarm(names: str = "a b c", others: str = "d", seed: int = 0, faults: Faults = CALM) -> Swarm:
    """Return a swarm of members: stand-ins, of which the first organises, and others."""
    made = Swarm(run=RUN, organiser="a", stand_ins=names.replace("a", ""), seed=seed, faults=faults)
    for name in (names + " " + others).split():
        made.add(name)
    made.mesh()
    made.run(5)
    for name in (names + " " + others).split():
        decide(made["a"], Admit(origin_of(name), 40, 0))
    name_stand_ins(made, names)
    made.run(2 * BEAT)
    return made


@pytest.fixture
def made() -> Swarm:
    """Return three stand-ins, of which the first organises, and one other member."""
    return swarm()


def name_stand_ins(made: Swarm, names: str, by: str = "a") -> None:
    keys = tuple(StandIn(place, key_of(name)) for place, name in enumerate(names.split()))
    decide(made[by], StandIns(keys))


def feed(node: Node):  # type: ignore[no-untyped-def]
    assert node.machine.organised
    return node.machine.organised.control.feed


def elections(node: Node):  # type: ignore[no-untyped-def]
    assert node.machine.organised
    return node.machine.organised.control.elections


def leaders(made: Swarm) -> list[str]:
    return [name for name, node in made.nodes.items() if elections(node).leads(made.now)]


def said(node: Node) -> list[str]:
    """Return the texts announced by the decisions of a node."""
    read = (decisions.read(entry.record).decision for entry in feed(node).entries)
    return [one.text for one in read if isinstance(one, Announce)]


def run_until(made: Swarm, done: Callable[[], bool], limit: float) -> None:
    """Run until `done`, for at most `limit` seconds."""
    end = made.now + limit
    while not done():
        assert made.now < end
        made.run(BEAT)


def isolate(made: Swarm, *names: str) -> None:
    """Cut the links between these nodes and all others."""
    for name in names:
        for other in [one for one in made.nodes if one not in names]:
            made.cut(made[name], made[other])


def test_what_is_decided_is_held_by_more_than_half_first(made: Swarm) -> None:
    isolate(made, "a")
    decide(made["a"], Announce("alone"))
    made.run(5)
    assert said(made["a"]) == []
    made.mesh()
    made.run(2 * BEAT)
    assert all(said(node) == ["alone"] for node in made.nodes.values())


def test_a_decision_takes_two_hops_and_no_beat() -> None:
    made = swarm(faults=Faults(latency=(0.1, 0.1)))
    decide(made["a"], Announce("soon"))
    made.run(0.5)
    assert said(made["d"]) == ["soon"]


def test_a_decision_costs_each_stand_in_one_statement() -> None:
    made = swarm("a b c d e", "")
    made.run(BEAT - 1)
    before = {name: elections(node)._own.number for name, node in made.nodes.items()}
    decide(made["a"], Announce("soon"))
    made.run(0.5)
    assert said(made["e"]) == ["soon"]
    assert {elections(node)._own.number - before[name] for name, node in made.nodes.items()} == {1}


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_fallen_organiser_is_replaced_and_what_was_shown_stays(seed: int) -> None:
    made = swarm("a b c", seed=seed)
    decide(made["a"], Announce("before"))
    made.run(1)
    decide(made["a"], Announce("half"))
    made.drop(made["a"])
    made.run(ELECTION)
    (leader,) = leaders(made)
    decide(made[leader], Announce("after"))
    made.run(2)
    (told,) = {tuple(said(node)) for node in made.nodes.values()}
    assert told in {("before", "after"), ("before", "half", "after")}
    assert {feed(node).term for node in made.nodes.values()} == {1}


def test_nobody_decides_without_more_than_half() -> None:
    made = swarm("a b c")
    isolate(made, "a"), isolate(made, "b"), isolate(made, "c")
    made.run(4 * LEASE)
    assert leaders(made) == []
    for name in "abc":
        decide(made[name], Announce(name))
    made.run(LEASE)
    assert all(said(node) == [] for node in made.nodes.values())
    made.mesh()
    made.run(ELECTION)
    assert len(leaders(made)) == 1


@pytest.mark.parametrize("seed", range(SEEDS))
def test_at_most_one_side_of_a_split_decides_and_the_other_follows(seed: int) -> None:
    made = swarm("a b c d e", "f", seed=seed)
    isolate(made, "a", "b")
    made.run(LEASE + 1)
    assert not elections(made["a"]).leads(made.now)
    decide(made["a"], Announce("lost"))
    made.run(ELECTION)
    (leader,) = leaders(made)
    assert leader in "cde"
    decide(made[leader], Announce("kept"))
    made.run(5)
    made.mesh()
    made.run(ELECTION)
    assert leaders(made) == [leader]
    assert {tuple(said(node)) for node in made.nodes.values()} == {("kept",)}
    assert len({feed(node).chain for node in made.nodes.values()}) == 1


def test_a_restarted_organiser_goes_on_in_its_term(made: Swarm) -> None:
    decide(made["a"], Announce("before"))
    made.run(1)
    made["a"].restart()
    made.mesh()
    made.run(2 * BEAT)
    assert leaders(made) == ["a"]
    decide(made["a"], Announce("after"))
    made.run(1)
    assert said(made["d"]) == ["before", "after"]
    assert feed(made["d"]).term == 0


def test_the_former_organiser_comes_back_as_a_stand_in(made: Swarm) -> None:
    isolate(made, "a")
    made.run(ELECTION)
    (leader,) = leaders(made)
    made.mesh()
    made.run(3 * BEAT)
    assert leaders(made) == [leader]
    made.drop(made[leader])
    made.run(ELECTION)
    assert len(leaders(made)) == 1, "it stands in for its successor"


def test_a_key_from_a_backup_promises_nothing_in_terms_that_had_begun(made: Swarm) -> None:
    isolate(made, "a")
    made.run(ELECTION)
    (leader,) = leaders(made)
    key = made["a"]
    key.decided, key.authority, key.statement = [], [], None
    key.restart()
    elections(key).restored = True
    made.mesh()
    made.run(3 * BEAT)
    assert leaders(made) == [leader]
    assert key.statement
    assert key.statement.term == 1
    assert key.statement.voted == 2
    assert key.statement.candidate == b""


def test_an_organiser_from_a_backup_leads_no_term_that_had_begun(made: Swarm) -> None:
    made["a"].decided, made["a"].authority, made["a"].statement = [], [], None
    made["a"].restart()
    elections(made["a"]).restored = True
    made.mesh()
    made.run(ELECTION)
    (leader,) = leaders(made)
    assert leader in "bc"


def test_an_old_copy_of_the_organisers_folder_notices_that_it_is_one(made: Swarm) -> None:
    """Otherwise it would sign other decisions at positions that it has forgotten."""
    kept = list(made["a"].decided), made["a"].statement
    decide(made["a"], Announce("forgotten"))
    made.run(2 * BEAT)
    made["a"].decided, made["a"].statement = list(kept[0]), kept[1]
    made["a"].restart()
    made.mesh()
    decide(made["a"], Announce("other"))
    made.run(ELECTION)
    assert not any(feed(node).frozen for node in made.nodes.values())
    assert len({feed(node).chain for node in made.nodes.values()}) == 1
    assert "forgotten" in said(made["d"])


def test_one_stand_in_alone_ends_no_term() -> None:
    """A stand-in that hears nobody says so, and the others keep their organiser."""
    made = swarm("a b c", "")
    isolate(made, "c")
    made.run(3 * LEASE)
    made.mesh()
    made.run(3 * BEAT)
    assert leaders(made) == ["a"]
    assert feed(made["a"]).term == 0


def test_an_organiser_whom_those_of_a_later_term_do_not_answer_stands_anew() -> None:
    """A candidate does not know who has elected it. These stand-ins are in its term, but too few to elect
    another one."""
    made = swarm("a b c d e", "", faults=Faults(latency=(0.2, 0.2)))
    made.drop(made["e"])
    isolate(made, "a")
    while not any(elections(node)._stands() for node in made.nodes.values()):
        made.run(0.05)
    (candidate,) = [node for node in made.nodes.values() if elections(node)._stands()]
    made.connect(made["a"], candidate)
    made.run(0.21)
    for name in "bcd".replace(candidate.name, ""):
        made.cut(candidate, made[name])
    made.run(0.4)
    assert sorted(elections(node)._own.term for node in made.nodes.values()) == [0, 1, 1, 1]
    made.mesh()
    made.run(ELECTION)
    assert len(leaders(made)) == 1


def test_others_are_named_by_more_than_half_of_both() -> None:
    made = swarm("a b c", "d e")
    made.stand_ins += ["d", "e"]
    for name in "de":
        made[name].restart()
    made.mesh()
    made.run(BEAT)
    name_stand_ins(made, "a d e")
    made.run(2 * BEAT)
    assert {feed(node).stand_ins for node in made.nodes.values()} == {tuple(map(key_of, "ade"))}
    made.drop(made["a"])
    made.run(ELECTION)
    assert leaders(made)[0] in "de"


def test_whoever_was_silent_still_is_after_a_restart(made: Swarm) -> None:
    """Neighbours repeat the organiser's last statement, which does not show that the organiser is alive."""
    made.drop(made["a"])
    isolate(made, "b")
    made.run(LEASE + BEAT)
    made["b"].restart(), made["c"].restart()
    made.mesh()
    made.run(2 * BEAT + 2 * SPREAD)
    assert len(leaders(made)) == 1


def test_a_false_stand_in_on_both_sides_of_a_split_costs_one_side_what_it_saw_and_nobody_the_run() -> None:
    """With three stand-ins, both majorities share the liar. The later term wins for everybody."""
    made = swarm("a b c", "d")
    there_too = made.add("c2")
    there_too.decided, there_too.statement = list(made["c"].decided), made["c"].statement
    there_too.restart()
    key = signing_key("c stands in")
    elections(there_too).hold(key_of("c"), key.sign, made.now)
    made.mesh()
    isolate(made, "a", "c")
    made.run(ELECTION + LEASE)
    for leader in leaders(made):
        decide(made[leader], Announce(leader))
    made.run(BEAT)
    assert (said(made["a"]), said(made["d"])) in ((["a"], ["b"]), (["a"], ["c2"]))
    made.mesh()
    run_until(made, lambda: len({tuple(said(node)) for node in made.nodes.values()}) == 1, 2 * ELECTION)
    assert said(made["d"]) != ["a"]
    assert not any(feed(node).frozen for node in made.nodes.values())


def test_nobody_counts_who_was_not_named(made: Swarm) -> None:
    made.stand_ins.append("d")
    made["d"].restart()
    made.mesh()
    isolate(made, "a", "d")
    decide(made["a"], Announce("with a stranger's word"))
    made.run(LEASE)
    assert said(made["a"]) == []


def test_a_run_of_version_3_has_no_stand_ins() -> None:
    made = Swarm(run=ORGANISED, organiser="a")
    made.add("a"), made.add("b")
    made.mesh()
    made.run(1)
    name_stand_ins(made, "a b")
    decide(made["a"], Announce("at once"))
    made.run(1)
    assert said(made["b"]) == ["at once"]


@pytest.mark.parametrize("seed", range(SEEDS))
def test_nothing_shown_is_taken_back_whoever_falls_or_is_cut_off(seed: int) -> None:
    """Organisers fall and come back; two terms never decide differently."""
    faults = Faults(latency=(0.01, 3.0))
    made = swarm("a b c d e", "f", seed=seed, faults=faults)
    made.run(60)
    name_stand_ins(made, "a b c d e")
    made.run(30)
    shown: dict[str, list[str]] = {name: [] for name in made.nodes}
    for turn in range(5):
        made.run(made.random.uniform(1, 90))
        victim = made[made.random.choice("abcde")]
        if made.random.random() < 0.5:
            victim.restart()
        else:
            isolate(made, victim.name)
        for leader in leaders(made):
            decide(made[leader], Announce(f"{turn} by {leader}"))
        made.run(made.random.uniform(1, 60))
        for name, node in made.nodes.items():
            assert said(node)[: len(shown[name])] == shown[name]
            shown[name] = said(node)
        made.mesh()
    run_until(
        made,
        lambda: len(leaders(made)) == 1 and len({feed(node).chain for node in made.nodes.values()}) == 1,
        3 * ELECTION,
    )
    assert not any(feed(node).frozen for node in made.nodes.values())


def be_elected_unheard(made: Swarm, times: int) -> None:
    """Let b hold `times` elections of itself that no other node knows, and c be in a later term."""
    ahead, key = feed(made["b"]).copy(), key_of("b")
    signs = [signing_key(f"{name} stands in").sign for name in "bc"]
    for term in range(1, times + 1):
        message = election_message(RUN.run_id, term, ahead.stop, ahead.chain, key)
        ballots = tuple(Ballot(place, sign(message)) for place, sign in enumerate(signs, 1))
        assert ahead.add(ahead.stop, [ahead.elect(term, Elected(key, ballots), signs[0])]) == 1
    b, c = elections(made["b"]), elections(made["c"])
    b._own = replace(b._own, term=times, voted=times, candidate=key)
    b._tail = feed(made["b"]).stop, tuple(ahead.entries[feed(made["b"]).stop :])
    c._own = replace(c._own, term=times + 1, voted=times + 1)


@pytest.mark.parametrize(("unheard", "leading"), [(MAX_TAIL - 1, ["b"]), (MAX_TAIL, [])])
def test_who_holds_as_many_elections_as_a_statement_has_room_for_stands_for_no_other(
    unheard: int, leading: list[str]
) -> None:
    made = swarm()
    made.drop(made["a"])
    be_elected_unheard(made, unheard)
    made.run(ELECTION)
    kept = [made[name].statement for name in "bc"]
    assert [decode(encode(one)) for one in kept if one] == kept
    assert leaders(made) == leading


def test_no_statement_has_a_number_after_which_there_is_none(made: Swarm) -> None:
    """Another holder of the key may use up the numbers; the true node goes on."""
    link = next(iter(made["c"].machine.links.values()))
    told = replace(elections(made["c"])._told(), number=(1 << 64) - 1)
    sign = signing_key("c stands in").sign
    elections(made["c"]).heard(
        link, replace(told, signature=sign(statement_message(RUN.run_id, told))), made.now
    )
    made.run(2 * BEAT)
    decide(made["a"], Announce("goes on"))
    made.drop(made["b"])
    made.run(2 * BEAT)
    assert said(made["c"]) == ["goes on"]


def test_statements_of_others_cost_a_stranger_nothing(made: Swarm) -> None:
    """A node that is no stand-in forwards statements. A forged one is charged to the link that brought it."""
    link = next(iter(made["d"].machine.links.values()))
    known = next(iter(elections(made["d"])._heard.values())).said
    link.waste.charge(0, 0, made.now)
    left = link.waste.bucket.level
    forged = replace(known, number=known.number + 1)
    assert elections(made["d"]).heard(link, forged, made.now) == []
    assert link.waste.bucket.level == left - FORGERY_COST
    assert next(iter(elections(made["d"])._heard.values())).said == known


def test_a_newcomer_learns_of_a_fork_of_a_term_that_was_elected(made: Swarm) -> None:
    """It can check the fork only after it has the election."""
    made.drop(made["a"])
    made.run(ELECTION)
    (leader,) = leaders(made)
    known, sign = feed(made[leader]), signing_key(f"{leader} stands in").sign
    both = [known.sign(decisions.encode(Announce(text)), sign) for text in ("one", "other")]
    chains = tuple(extend(known.chain, entry.term, entry.record) for entry in both)
    signatures = tuple(entry.signature for entry in both)
    fork = ControlFork(known.term, known.stop + 1, (chains[0], chains[1]), (signatures[0], signatures[1]))
    assert all(feed(node).freeze(fork) for node in made.nodes.values())
    made.add("e")
    made.connect(made["e"], made["d"])
    made.run(20)
    assert feed(made["e"]).frozen


def test_an_organiser_hands_over_at_once(made: Swarm) -> None:
    decide(made["a"], Announce("before"))
    made.run(BEAT)
    decide(made["a"], Announce("under way"))
    made["a"].handle(OwnHandOver(key_of("c")))
    decide(made["a"], Announce("too late"))
    made.run(2)
    assert leaders(made) == ["c"]
    decide(made["c"], Announce("after"))
    made.run(1)
    assert said(made["d"]) == ["before", "under way", "after"]
    made["c"].handle(OwnHandOver(key_of("a")))
    made.run(2)
    assert leaders(made) == ["a"]


def test_an_organiser_that_hands_over_decides_nothing_more() -> None:
    """Otherwise its successor would take it for the organiser again, while the voters of the successor
    wait."""
    made = swarm("a b c d", "", faults=Faults(latency=(0.2, 0.2)))
    made["a"].handle(OwnHandOver(key_of("c")))
    made.run(0.3)
    decide(made["a"], Announce("late"))
    made.run(5)
    assert leaders(made) == ["c"]
    assert said(made["d"]) == []


def test_somebody_goes_on_if_the_one_to_whom_it_was_handed_over_does_not(made: Swarm) -> None:
    isolate(made, "c")
    made["a"].handle(OwnHandOver(key_of("c")))
    made.run(ELECTION)
    (leader,) = leaders(made)
    decide(made[leader], Announce("again"))
    made.run(1)
    assert said(made["d"]) == ["again"]


def test_whoever_passes_a_statement_on_cannot_leave_out_or_change_what_it_proposes(made: Swarm) -> None:
    """Otherwise the changed statement could replace the true one."""
    bad = next(link for link in made["b"].machine.links.values() if link.peer == "d")
    good = next(link for link in made["b"].machine.links.values() if link.peer == "a")
    proposed = elections(made["a"]).decide(decisions.encode(Announce("soon")), made.now)
    (said,) = {one.message for one in proposed if isinstance(one, Transmit)}
    assert isinstance(said, Statement)
    changed = tuple(one._replace(record=b"") for one in said.entries)
    for entries in (), changed:
        assert elections(made["b"]).heard(bad, replace(said, entries=entries), made.now) == []
    assert elections(made["b"]).heard(good, said, made.now)
    assert elections(made["b"])._ahead().stop == said.stop == feed(made["b"]).stop + 1


def test_statements_that_nobody_has_signed_use_up_nothing_of_whose_they_seem_to_be(made: Swarm) -> None:
    bad = next(link for link in made["b"].machine.links.values() if link.peer == "d")
    proposed = elections(made["a"]).decide(decisions.encode(Announce("soon")), made.now)
    (said,) = {one.message for one in proposed if isinstance(one, Transmit)}
    assert isinstance(said, Statement)
    large = (said.entries[0]._replace(record=bytes(decisions.MAX_DECISION)),)
    for _ in range(3):
        elections(made["b"]).heard(bad, replace(said, entries=large), made.now)
    assert elections(made["b"]).heard(bad, said, made.now)


def test_answers_go_to_the_organiser_and_not_to_everybody() -> None:
    """A decision costs about one statement for each link."""
    made = swarm("a b c", "d e f g h i")
    made.run(BEAT)
    before = sum(node.sent["Statement"] for node in made.nodes.values())
    for number in range(10):
        decide(made["a"], Announce(str(number)))
        made.run(0.3)
    sent = sum(node.sent["Statement"] for node in made.nodes.values()) - before
    assert said(made["i"]) == [str(number) for number in range(10)]
    proposals = len(made.nodes) * (len(made.nodes) - 1)
    assert sent / 10 < 1.2 * proposals, "the proposal over every link; answers over one or two"


def test_an_organiser_goes_on_though_one_holds_nothing_and_another_was_led_into_a_later_term() -> None:
    """The majority includes the one in the later term, and it cannot go back to an earlier term."""
    made = swarm("a b c", "d")
    at_b, told, sign = elections(made["b"]), elections(made["b"])._told, signing_key("b stands in").sign

    def holds_nothing() -> Statement:
        said = replace(told(), stop=feed(made["b"]).stop, chain=feed(made["b"]).chain, entries=())
        return replace(said, signature=sign(statement_message(RUN.run_id, said)))

    at_b._told = holds_nothing
    at_c = elections(made["c"])
    at_c._own = replace(at_c._own, term=100, voted=100, candidate=key_of("b"), heard=0)
    decide(made["a"], Announce("held up"))
    made.run(2)
    assert said(made["d"]) == []
    made.run(3 * LEASE)
    assert leaders(made) == ["a"]
    decide(made["a"], Announce("goes on"))
    made.run(2)
    assert said(made["d"]) == ["held up", "goes on"]


# -- votes for two (O24) -------------------------------------------------------------------------------


def vote(made: Swarm, name: str, candidate: str, number: int = 1 << 20, term: int = 1) -> Statement:
    """Return a liar's signed statement that elects a candidate."""
    at, key = elections(made[name]), signing_key("organiser" if name == "a" else f"{name} stands in")
    elects = replace(at._own, number=number, voted=term, candidate=key_of(candidate), entries=())
    return replace(elects, signature=key.sign(statement_message(RUN.run_id, elects)))


def tell(made: Swarm, liar: str, told: dict[str, Statement]) -> None:
    """Let a liar send a different statement to each of these nodes."""
    for name, statement in told.items():
        link = next(link for link in made[name].machine.links.values() if link.peer == liar)
        made[name].handle(Received(link.id, encode(statement, *RUN.form)))


def test_who_votes_for_two_is_out_and_the_others_go_on() -> None:
    made = swarm("a b c d e", "f")
    tell(made, "b", {"c": vote(made, "b", "c"), "d": vote(made, "b", "d")})
    made.run(2 * BEAT)
    assert all([*feed(node).liars] == [key_of("b")] for node in made.nodes.values())
    decide(made["a"], Announce("by three of four"))
    made.run(2)
    assert said(made["f"]) == ["by three of four"]
    made.drop(made["a"])
    made.run(ELECTION)
    (leader,) = leaders(made)
    assert leader in "cde"
    assert not any(feed(node).frozen for node in made.nodes.values())


def test_an_organiser_whom_only_a_liar_answers_leads_no_more() -> None:
    made = swarm("a b c", "d")
    isolate(made, "c")
    made.run(LEASE + BEAT)
    assert leaders(made) == ["a"]
    tell(made, "b", {"a": vote(made, "b", "b")})
    tell(made, "b", {"a": vote(made, "b", "c")})
    assert leaders(made) == []


def test_votes_that_were_hidden_from_each_other_are_found_when_their_holders_meet() -> None:
    """The liar has sent newer statements to both nodes since."""
    made = swarm("a b c", "d e")
    isolate(made, "a", "d"), isolate(made, "c", "e")
    for name, candidate in ("a", "b"), ("c", "c"):
        made.connect(made["b"], made[name])
        made.run(1)
        tell(made, "b", {name: vote(made, "b", candidate)})
        tell(made, "b", {name: vote(made, "b", "b", 2 << 20, 0)})
        isolate(made, "b")
    made.connect(made["a"], made["c"])
    made.run(5)
    assert all([*feed(made[name]).liars] == [key_of("b")] for name in "acde")


def test_where_half_have_voted_for_two_nobody_decides_until_the_deputies_have_spoken() -> None:
    made = swarm("a b c", "d")
    for liar, other in ("b", "c"), ("c", "b"):
        tell(made, liar, {"a": vote(made, liar, liar), "d": vote(made, liar, other)})
    made.run(BEAT)
    assert all(feed(node).frozen for node in made.nodes.values())
    decide(made["a"], Announce("alone"))
    made.run(2 * LEASE)
    assert (leaders(made), said(made["d"])) == ([], [])
    made["a"].handle(succeeded(made["a"], feed(made["a"]).stop))
    made.run(BEAT)
    assert not any(feed(node).frozen for node in made.nodes.values())
    assert feed(made["d"]).key == origin_of("new")


def test_a_proof_is_kept_and_a_newcomer_is_told_and_who_was_away() -> None:
    made = swarm("a b c", "d")
    isolate(made, "d")
    tell(made, "b", {"a": vote(made, "b", "b"), "c": vote(made, "b", "c")})
    made.run(BEAT)
    made["c"].restart()
    assert [*feed(made["c"]).liars] == [key_of("b")]
    made.add("e")
    for name in "d", "e":
        made.connect(made[name], made["a"])
        made.run(20)
        assert [*feed(made[name]).liars] == [key_of("b")]


def test_nothing_else_proves_a_lie() -> None:
    """A repeated vote, votes of two terms, a key that does not stand in, and a wrong signature prove
    nothing."""
    made = swarm("a b c", "d")
    known = feed(made["d"])
    one, other = vote(made, "b", "b"), vote(made, "b", "c")
    for same in replace(one, number=3), replace(other, voted=2), replace(other, candidate=b""):
        assert double_vote(one, same) is None
        with pytest.raises(RemoteProtocolError, match="O24"):
            known.convict(DoubleVote((one, same), (bytes(32), bytes(32))))
    proof = double_vote(one, other)
    assert proof
    with pytest.raises(RemoteProtocolError, match="O24"):
        known.convict(replace(proof, hashes=(bytes(32), bytes(32))))
    strangers = replace(one, key=bytes(32)), replace(other, key=bytes(32))
    assert not known.convict(replace(proof, statements=strangers))
    assert known.liars == {}
    assert known.convict(proof)
    assert not known.convict(proof)
