"""Audits: who is picked, and when somebody is confirmed or refuted."""

from __future__ import annotations

from random import Random

import pytest

from sfnode.organising.evaluation.audits import (
    LEAST_RATE,
    TOLERANCE,
    Audited,
    AuditEvidence,
    Audits,
    News,
    disagreement,
)
from sfnode.schema.audits import Finding
from sfprotocol.messages import Feed

A, B = bytes([1]) * 32, bytes([2]) * 32


def audits(seed: int = 1) -> Audits:
    return Audits(Random(seed).random)


def slopes(count: int, seed: int = 1) -> list[int]:
    """Slopes as they are: of either sign, most of them small."""
    random = Random(seed)
    return [round(random.gauss(0, 300)) for _ in range(count)]


def finding(claimed: list[int], recomputed: list[int]) -> tuple[Finding, int]:
    """What is found in the end, and after how many audits it was refuted, if it was."""
    of = audits()
    for number, (said, found) in enumerate(zip(claimed, recomputed, strict=True), 1):
        if of.take([Audited(A, said, (found,))]):
            return of.of(A).finding, number
    return of.of(A).finding, 0


@pytest.mark.parametrize(
    ("claimed", "recomputed", "found"),
    [(100, 100, 0.0), (0, 0, 0.0), (100, -100, 2 / 3), (200, 100, 0.25), (0, 100, 0.5), (32_767, 10, 0.996)],
)
def test_the_disagreement_is_relative_and_bounded(claimed: int, recomputed: int, found: float) -> None:
    scale = 0 if not claimed and not recomputed else 100
    assert disagreement(claimed, recomputed, scale) == pytest.approx(found, abs=1e-3)


@pytest.mark.parametrize(("claimed", "nearest"), [(50, 100), (150, 150), (250, 200)])
def test_what_lies_between_two_states_agrees(claimed: int, nearest: int) -> None:
    assert Audited(A, claimed, (200, 100)).nearest == nearest


def test_who_says_what_was_measured_is_confirmed_within_some_audits() -> None:
    true = slopes(16)
    assert finding(true, true) == (Finding.CONFIRMED, 0)


def test_before_enough_audits_nothing_is_said() -> None:
    assert finding(slopes(3), slopes(3)) == (Finding.UNDECIDED, 0)


@pytest.mark.parametrize("attack", ["random", "constant", "copied", "zero", "wrong sign", "five times"])
def test_scalars_that_nobody_measured_are_refuted(attack: str) -> None:
    true = slopes(200)
    claimed = {
        "random": slopes(200, seed=2),
        "constant": [200] * 200,
        "copied": [*true[1:], true[0]],
        "zero": [0] * 200,
        "wrong sign": [-one for one in true],
        "five times": [5 * one for one in true],
    }[attack]
    verdict, after = finding(claimed, true)
    assert verdict is Finding.REFUTED
    assert after <= 60


def test_noise_within_the_tolerance_does_not_refute_in_the_long_run() -> None:
    """An e-process may be looked at after every audit: of 200 honest origins none is refuted in 1,000."""
    random = Random(3)
    for _ in range(200):
        evidence = AuditEvidence(TOLERANCE)
        for _ in range(1000):
            evidence.take(
                float(random.random() < TOLERANCE)
            )  # all or nothing: the widest spread of this mean
        assert not evidence.refuted


def test_the_wealth_of_an_honest_origin_is_a_supermartingale() -> None:
    """Its mean over all that may happen never exceeds what the beginnings have put in, which is 1 at most."""
    outcomes = [(1.0, TOLERANCE), (0.0, 1 - TOLERANCE)]
    paths = [(AuditEvidence(TOLERANCE), 1.0)]
    for _ in range(8):
        following = []
        for evidence, chance in paths:
            for found, share in outcomes:
                copy = AuditEvidence(TOLERANCE, evidence.audited, _doubts=list(evidence._doubts))
                copy.take(found)
                following.append((copy, chance * share))
        paths = following
    assert sum(evidence.doubt * chance for evidence, chance in paths) <= 1.0


def test_who_turns_after_a_long_honest_time_is_refuted_as_well() -> None:
    true = slopes(600)
    claimed = true[:500] + [-one for one in true[500:]]
    verdict, after = finding(claimed, true)
    assert verdict is Finding.REFUTED
    assert after <= 560


def test_the_proven_are_audited_less_and_less_and_never_not_at_all() -> None:
    of = audits()
    rates = []
    for _ in range(2000):
        of.take([Audited(A, 100, (100,))])
        rates.append(of.of(A).rate)
    assert rates[0] == 1.0
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] == LEAST_RATE


def test_doubt_brings_the_audits_back() -> None:
    of = audits()
    of.take([Audited(A, 100, (100,))] * 500)
    before = of.of(A).rate
    while of.of(A).doubt < 1:
        of.take([Audited(A, -100, (100,))])
    assert of.of(A).rate == 1.0 > before
    assert of.of(A).finding is Finding.UNDECIDED


def test_newcomers_are_picked_before_the_proven() -> None:
    of = audits()
    of.take([Audited(A, 100, (100,))] * 1000)
    news = [News(Feed(A, 0), 0, 1000), News(Feed(B, 0), 500, 600)]
    picked = of.pick(news, room=32)
    assert len(picked) == 32
    of_b = [step for feed, step in picked if feed.origin == B]
    assert len(of_b) > 0.8 * len(picked)
    assert all(500 <= step < 600 for step in of_b)


def test_of_few_nearly_all_are_picked() -> None:
    picked = audits().pick([News(Feed(A, 0), 10, 30)], room=32)
    assert len(picked) >= 18
    assert len(set(picked)) == len(picked)


def test_no_more_are_picked_than_the_rates_say() -> None:
    of = audits()
    of.take([Audited(A, 100, (100,))] * 1000)
    assert len(of.pick([News(Feed(A, 0), 0, 300)], room=32)) <= 4
    assert of.pick([], room=32) == []


def test_the_refuted_are_not_audited_any_more() -> None:
    of = audits()
    of.take([Audited(A, -100, (100,))] * 60)
    assert of.of(A).finding is Finding.REFUTED
    assert of.pick([News(Feed(A, 0), 0, 300)], room=32) == []
