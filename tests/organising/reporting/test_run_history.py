"""Tests of the history of a run: every decision has words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sfnode.organising.evaluation import health
from sfnode.organising.reporting.run_history import RunHistory
from sfnode.schema.history import HistoryEntry
from sfnode.schema.measurements import Evaluation
from sfnode.stats import timeline_entry
from sfprotocol import decisions
from sfprotocol.decisions import (
    FACTOR_ONE,
    Admit,
    Amend,
    Announce,
    Bases,
    Budget,
    Checkpoint,
    Close,
    Decision,
    Elected,
    Finish,
    Invite,
    Move,
    Part,
    Revoke,
    RevokeInvitation,
    Seal,
    StandIn,
    StandIns,
    Unknown,
    Validators,
    Void,
    Worth,
)
from sfprotocol.fields import Names
from sfprotocol.messages import Entry, Succession
from tests.organising.bench import feed_of
from tests.protocol.feeds import origin_of
from tests.store.organised import ORGANISED

A = origin_of("a").hex()[:16]
ADMIT = Admit(origin_of("a"), 100, 0)


def entries(*said: Decision, term: int = 0) -> list[Entry]:
    return [Entry(term, decisions.encode(decision), bytes(64)) for decision in said]


def history(entries: list[Entry], *successions: Succession) -> list[HistoryEntry]:
    return RunHistory(ORGANISED).follow(entries).entries(successions)


def words(*said: Decision) -> list[tuple[str, str]]:
    return [(entry.kind, entry.text) for entry in history(entries(*said))]


def close(epoch: int, steps: int) -> Close:
    return Close(epoch, bytes(8), (Move(0, steps, bytes(8)),))


def seal(epoch: int) -> Seal:
    return Seal(epoch, (), (), bytes(32), FACTOR_ONE, ())


SAID: list[tuple[Decision, str]] = [
    (Invite(bytes(32), 5), "publishes invitation 1, for 5"),
    (Revoke(0, 7), f"revokes member 0, {A} from round 7 on"),
    (Revoke(1, 7), "revokes member 1, nobody from round 7 on"),
    (RevokeInvitation(0, 7), "revokes invitation 1, and who came by it, from round 7 on"),
    (Void(1, 1, ()), "takes back round 1"),
    (Void(1, 3, (0,)), f"takes back rounds 1 to 3 of member 0, {A}"),
    (Amend(0, 3), f"leaves out what round 3 has of member 0, {A}, which is lost"),
    (Budget(10), "changes the budget to 10 updates"),
    (Finish(), "ends the run"),
    (Bases(2, bytes(32)), f"publishes new directions of training, {'0' * 16}, number 2"),
    (Announce("hello"), "announces: hello"),
    (StandIns((StandIn(0, bytes(32)),)), "names 1 who stand in for the organiser"),
    (StandIns(()), "nobody stands in any more"),
    (Elected(bytes(32), ()), f"begins a new term: 0 stand-ins have elected {'0' * 16}"),
    (Validators((0,)), f"has rounds measured by member 0, {A}"),
    (
        Checkpoint(0, bytes(32), bytes(32)),
        f"states where the run is after round 0, fingerprint {'0' * 16}",
    ),
    (Worth(0, 32, (Part(0, 5, -9, 1),)), "measures the work of 1 in round 0 on 32 rows kept aside"),
    (Unknown(98), "a decision of kind 98, which this version of sfnode does not know"),
]


@pytest.mark.parametrize(("decision", "text"), SAID, ids=lambda value: type(value).__name__)
def test_every_decision_has_words(decision: Decision, text: str) -> None:
    record = b"\x92\x62\x90" if isinstance(decision, Unknown) else decisions.encode(decision)
    found = history([*entries(ADMIT), Entry(0, record, bytes(64))])
    assert (found[1].kind, found[1].text, found[1].position) == (type(decision).__name__.lower(), text, 1)


def test_a_result_is_told_with_what_is_trained() -> None:
    def said(metric: str) -> str:
        result = Evaluation(metric=metric, value=0.5, low=0.4, high=0.6, loss=0.25, count=9)
        return words(health.published(0, result, base=True))[0][1]

    told = "50.0 % (40.0-60.0 %), {} on 9 rows kept aside"
    assert said("accuracy") == f"tells of the base model: accuracy {told.format('loss 0.2500')}"
    assert said("pass_at_1").endswith(f": right answers (pass@1) {told.format('mean reward 0.7500')}")


def test_no_kind_of_decision_is_forgotten() -> None:
    """A decision without words of its own would be shown as Python writes it."""
    said = {type(decision) for decision, _ in SAID} - {Unknown}
    elsewhere = {Close, Seal, Admit, decisions.Evaluated, decisions.Oversized}
    assert said | elsewhere == {kind for kind, _ in decisions._KINDS.values()}


def test_an_epoch_stands_where_it_was_sealed_with_its_close_and_evaluation() -> None:
    result = Evaluation(metric="accuracy", value=0.5, low=0.4, high=0.6, loss=0.7, count=9)
    base = result.model_copy(update={"calibrated": True})
    told = words(
        ADMIT,
        close(0, 5),
        close(1, 3),
        seal(0),
        health.published(0, result),
        health.published(0, base, base=True),
    )
    assert told[1:] == [
        ("close", "closes round 1, of 3 updates, which are not judged yet"),
        ("seal", "5 of 5 updates of round 0 count"),
        (
            "evaluated",
            "tells of the calibrated base model: accuracy 50.0 % (40.0-60.0 %), loss 0.7000 on 9 rows kept "
            "aside",
        ),
    ]


def test_closes_and_seals_without_effect_are_left_out() -> None:
    told = words(ADMIT, close(1, 5), seal(0), close(0, 5), seal(0), seal(0), close(0, 9))
    assert [kind for kind, _ in told] == ["admit", "seal"]


def test_stored_decisions_are_shown_as_ever() -> None:
    """A file has decisions, and the JSON of `log`, `leaderboard`, the timeline and the health for them."""
    golden = json.loads((Path(__file__).parent / "history.json").read_text(encoding="utf-8"))
    records = [
        Entry(term, bytes.fromhex(record), place.to_bytes(64, "big"))
        for place, (term, record) in enumerate(golden["records"])
    ]
    names = {feed_of("anne").origin: Names("Anne", "Owls"), feed_of("eve").origin: Names("Eve", "")}
    found = RunHistory(ORGANISED, names)
    for stop in range(0, len(records), 7):  # as they come
        found.follow(records[:stop])
    found.follow(records)
    shown = found.entries([Succession(1, len(records) - 2, bytes(32), bytes(range(32)), ())])
    assert [one.model_dump(mode="json") for one in shown] == golden["history"]
    assert [timeline_entry(one).model_dump(mode="json") for one in shown] == golden["timeline"]
    members = [one.model_dump(mode="json", exclude={"left_out"}) for one in found.members()]
    assert [(one.pop("rank"), one.pop("name")) for one in members][3:] == [(4, None), (5, "Eve")]
    assert members == golden["leaderboard"]
    verdict = found.verdict()
    assert verdict.health.value == golden["verdict"]["health"]
    for name in ("latest", "best", "base"):
        assert getattr(verdict, name).model_dump(mode="json") == golden["verdict"][name]


def test_decisions_that_are_gone_are_forgotten() -> None:
    def signed(term: int, *said: Decision) -> list[Entry]:
        return [one._replace(signature=bytes([term, n])) for n, one in enumerate(entries(*said, term=term))]

    first = signed(0, ADMIT, Announce("one"), Announce("two"))
    found = RunHistory(ORGANISED).follow(first)
    found.follow([*first[:1], *signed(1, Announce("three"))])
    assert found.announcements == ["three"]
    assert len(found.run_state.members) == 1
    assert [one.kind for one in found.entries()] == ["admit", "succession", "announce"]


def test_of_a_log_only_what_is_new_is_read() -> None:
    every = [one._replace(signature=bytes([n])) for n, one in enumerate(entries(ADMIT, *[Announce("x")] * 5))]
    found, asked = RunHistory(ORGANISED), list[int]()
    for known in (0, 3, 3, 6):

        def control(first: int, stop: int = known) -> list[Entry]:
            asked.append(first)
            return every[first:stop]

        found.read_on(control)
        assert len(found.announcements) == max(0, known - 1)
    assert asked == [0, 0, 2, 2]
