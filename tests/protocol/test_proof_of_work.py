"""Proofs of work (SPEC S7, O13): a small hash of run, origin and a number."""

from __future__ import annotations

import hashlib
from itertools import count

import pytest

from sfprotocol import signing

RUN_ID, ORIGIN = bytes(32), bytes([7]) * 32


def by_the_rule(number: int) -> int:
    named = RUN_ID + ORIGIN + number.to_bytes(8, "big")
    return int(hashlib.blake2b(named, digest_size=32, person=b"sfnode-work").hexdigest(), 16)


def test_solutions_are_the_numbers_whose_hash_is_below_the_bound_and_no_others() -> None:
    below = signing.work_bound(4)
    found = list(signing.solutions(RUN_ID, ORIGIN, below, range(2000)))
    assert found == [number for number in range(2000) if by_the_rule(number) < below]
    assert all(signing.work(RUN_ID, ORIGIN, number) == by_the_rule(number) for number in found)
    assert 60 < len(found) < 200, "one of 16, about"


def test_without_work_every_number_is_a_solution() -> None:
    assert list(signing.solutions(RUN_ID, ORIGIN, signing.work_bound(0), range(9))) == list(range(9))


def test_a_search_can_be_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signing, "_ASK_EVERY", 10)
    answers = iter([False, False, True])
    assert list(signing.solutions(RUN_ID, ORIGIN, 1, count(), lambda: next(answers))) == []
    assert not list(answers)
