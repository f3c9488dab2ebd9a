"""Verdicts on what closes have named of one feed (SPEC O8)."""

from __future__ import annotations

from sfprotocol.decisions import FACTOR_ONE, TAG_BYTES
from sfprotocol.verdicts import COUNTED, OPEN, SKIPPED, VOID, NamedSteps

TAGS = [bytes([number]) * TAG_BYTES for number in range(4)]


def named() -> NamedSteps:
    """Steps up to 3, 10 and 12, which the closes of epochs 0, 2 and 5 have named."""
    steps = NamedSteps()
    for epoch, stop, tag in zip((0, 2, 5), (3, 10, 12), TAGS, strict=False):
        steps.append(epoch, stop, tag, 0)
    return steps


def test_what_no_seal_has_judged_counts_nowhere() -> None:
    steps = named()
    assert [steps.verdict(epoch) for epoch in (0, 1, 2, 5)] == [OPEN, VOID, OPEN, OPEN]
    assert [steps.factor(epoch) for epoch in (0, 1, 2)] == [0, 0, 0]


def test_a_close_has_named_the_steps_after_those_of_the_one_before() -> None:
    steps = named()
    assert [steps.stop_at(epoch) for epoch in (0, 1, 2, 4, 5, 9)] == [3, 3, 10, 10, 12, 12]
    assert steps.stop == 12
    assert [steps.tag(place) for place in range(3)] == TAGS[:3]


def test_what_changes_is_how_many_updates_count_not_the_factor() -> None:
    steps = named()
    assert steps.judge(1, COUNTED, FACTOR_ONE) == 7
    assert steps.judge(1, COUNTED, FACTOR_ONE // 2) == 0
    assert (steps.factor(2), steps.counts(2)) == (FACTOR_ONE // 2, 7)
    assert steps.judge(1, COUNTED, 0) == -7
    assert steps.counts(2) == 0


def test_a_void_takes_back_what_was_judged_and_nothing_else() -> None:
    steps = named()
    steps.judge(0, COUNTED, FACTOR_ONE)
    steps.judge(1, SKIPPED, 0)
    assert steps.void(0, 3) == -3
    assert list(steps.verdicts) == [VOID, VOID, OPEN]
    assert steps.void(0, 3) is None


def test_a_feed_that_was_ended_keeps_the_places_before() -> None:
    steps = named()
    steps.end(1)
    assert (steps.stop, steps.ended, steps.stop_at(5), steps.tag(1)) == (3, True, 3, b"")
