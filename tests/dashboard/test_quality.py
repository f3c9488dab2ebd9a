"""Tests of the figures and of the sentence on whether a run's model gets better."""

from __future__ import annotations

import pytest

from sfnode.dashboard.quality import quality, still_rises
from sfnode.dashboard.snapshot import Mood, contributed
from sfnode.schema.measurements import NodeEvaluation
from sfnode.schema.node_state import RunHealth
from sfnode.schema.organising import EpochEvaluation, HealthStatus
from sfnode.schema.views import OwnStanding
from tests.schema.helpers import organised, rewarded, status


def result(value: float, epoch: int = 0, *, base: bool = False, calibrated: bool = False) -> EpochEvaluation:
    return EpochEvaluation(
        metric="accuracy", value=value, low=value - 0.02, high=value + 0.02, loss=0.5, count=256,
        calibrated=calibrated, epoch=epoch, base=base,
    )  # fmt: skip


def measured(
    metric: str, value: float, known: int, *, base: bool = False, room: float = 0.02
) -> NodeEvaluation:
    return NodeEvaluation(
        metric=metric, value=value, low=value - room, high=value + room, loss=0.5, count=200, seconds=1.0,
        known=known, base=base, digest=None,
    )  # fmt: skip


def health(verdict: RunHealth, latest: EpochEvaluation | None, **fields: object) -> HealthStatus:
    base = result(0.5, base=True)
    return HealthStatus.model_validate(
        {"verdict": verdict, "latest": latest, "base": base, "best": latest, "worse_than": []} | fields
    )


@pytest.mark.parametrize(
    ("found", "sentence", "mood"),
    [
        (
            health(RunHealth.BETTER, result(0.8, 7), best=result(0.9, 5)),
            "Better by 30.0 points: accuracy 80.0 % (78.0-82.0 %) now, 50.0 % (48.0-52.0 %) before training, "
            "90.0 % at best (round 5).",
            Mood.GOOD,
        ),
        (
            health(RunHealth.BETTER, result(0.8, 7)),
            "Better by 30.0 points: accuracy 80.0 % (78.0-82.0 %) now, 50.0 % (48.0-52.0 %) before training.",
            Mood.GOOD,
        ),
        (
            health(RunHealth.NO_BETTER, result(0.51, 7)),
            "Not certainly better than before training: accuracy 51.0 % (49.0-53.0 %) now, 50.0 % "
            "(48.0-52.0 %) before training.",
            Mood.WARN,
        ),
        (
            health(RunHealth.WORSE, result(0.4, 7), worse_than=[result(0.5, base=True)]),
            "Worse by 10.0 points: accuracy 40.0 % (38.0-42.0 %) now, 50.0 % (48.0-52.0 %) before training.",
            Mood.BAD,
        ),
        (
            health(RunHealth.WORSE, result(0.7, 7), best=result(0.9, 5), worse_than=[result(0.9, 5)]),
            "Better by 20.0 points, but below its best: accuracy 70.0 % (68.0-72.0 %) now, 50.0 % "
            "(48.0-52.0 %) before training, 90.0 % at best (round 5).",
            Mood.WARN,
        ),
        (
            health(RunHealth.UNKNOWN, result(0.8, 7), base=None),
            "Not compared with the base model yet: accuracy 80.0 % (78.0-82.0 %) now.",
            Mood.NEUTRAL,
        ),
        (health(RunHealth.UNKNOWN, None), "Too early to tell: nothing was evaluated so far.", Mood.NEUTRAL),
    ],
)
def test_an_organised_run_is_judged_by_its_seals(found: HealthStatus, sentence: str, mood: Mood) -> None:
    assert quality(status(**organised(health=found)), []).headline == (sentence, mood)


def test_a_reward_run_is_judged_by_right_answers_and_has_its_mean_reward_beside() -> None:
    found = quality(status(**rewarded()), [])
    assert found.headline.text == (
        "Better by 55.0 points: right answers (pass@1) 85.0 % (83.0-87.0 %) now, 30.0 % (28.0-32.0 %) before "
        "training."
    )
    assert (found.name, found.beside) == (
        "right answers (pass@1)",
        "Mean reward 0.950 now, 0.400 before training.",
    )
    assert quality(status(**organised()), []).beside == "", "nobody understands losses"


def test_before_the_first_seal_it_is_too_early_to_tell() -> None:
    early = organised(health=health(RunHealth.UNKNOWN, None), sealed=0)
    assert quality(status(**early), []).headline.text == "Too early to tell: no round counts yet."


def test_the_curve_has_each_epoch_once_and_begins_with_what_it_is_compared_with() -> None:
    base, calibrated = result(0.5, base=True), result(0.6, base=True, calibrated=True)
    found = health(RunHealth.BETTER, result(0.8, 2, calibrated=True), base=calibrated)
    later = [
        result(0.7, 1, calibrated=True),
        result(0.8, 2, calibrated=True),
        result(0.75, 1, calibrated=True),
        result(0.1, 0),  # not measured as the last one was
    ]
    seen = quality(status(**organised(health=found)), [], [base, calibrated, *later])
    assert [(point.x, point.value) for point in seen.points] == [(1, 0.75), (2, 0.8)]
    assert [(one.name, one.value) for one in seen.compared] == [
        ("before training", 0.6), ("uncalibrated", 0.5)
    ]  # fmt: skip
    assert (seen.across, seen.now and seen.now.x) == ("round", 2)


@pytest.mark.parametrize(
    ("course", "noise", "rises"),
    [
        ([0.5], 0.02, False),
        ([0.5, 0.6], 0.02, True),
        ([0.5, 0.51], 0.02, False),
        ([0.5, 0.7, 0.8, 0.89, 0.9, 0.9, 0.9], 0.02, False),  # it was getting better, and is flat now
        ([0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8], 0.02, True),
        ([0.5, 0.9, 0.7], 0.02, False),
    ],
)
def test_it_still_gets_better_only_if_the_gain_of_the_last_third_exceeds_its_noise(
    course: list[float], noise: float, rises: bool
) -> None:
    assert still_rises("accuracy", course, noise) is rises
    assert still_rises("perplexity", [-value for value in course], noise) is rises


def test_an_open_run_is_judged_by_what_was_measured_here() -> None:
    nothing = quality(status(role="trainer"), [])
    assert nothing.headline.text.startswith("Not measured: ")
    fell = [measured("perplexity", 20.0, 0, base=True), measured("perplexity", 12.0, 900)]
    seen = quality(status(), fell)
    assert seen.headline.text.startswith("Better by 40.0 %, and still getting better: perplexity 12 ")
    assert (seen.across, seen.points[-1].x) == ("updates", 900)
    rose = [*fell, measured("perplexity", 25.0, 1800)]
    worse = quality(status(), rose)
    assert worse.headline.text.startswith("Worse by 25.0 %: perplexity 25 ")
    assert worse.headline.text.endswith("12 at best (900 updates).")
    near = [measured("accuracy", 0.5, 0, base=True), measured("accuracy", 0.52, 9)]
    assert quality(status(), near).headline.text.startswith("Not certainly better than before training: ")


def test_what_a_node_has_done_is_told_in_one_sentence() -> None:
    own = OwnStanding(rank=2, of=14, updates=12_345, share=0.31, counted=12_000, worth=1, gain_share=0.041)
    assert contributed(status(origin="ab"), own).text == (
        "Your work: 12,345 updates (31 % of all), 12,000 of them count, 4.1 % of what the model has gained, "
        "rank 2 of 14."
    )
    assert contributed(status(origin="ab"), None).text == "You have contributed no update yet."
    assert contributed(status(), None).text.startswith("This relay passes on ")
