"""Tests of `sfnode organise try-reward`: its figures, and the error if all rewards are equal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sfnode.schema.results import TryRewardResult
from tests.cli.helpers import LENGTH, Run
from tests.wording import has


@pytest.fixture
def manifest(sfnode: Run) -> Path:
    """Make a reward run with the built-in model and a file of rows."""
    Path("longer.toml").write_text(LENGTH)
    rows = [{"q": f"{how} {what}"} for how in ("fine", "stale", "good") for what in ("food", "room", "staff")]
    Path("rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    keys = ("task.template={q} it was", "task.verifier=longer.toml", "task.answer_tokens=6")
    keys += ("training.batch_size=4", "init.measure=no")
    sfnode("init", "rows.jsonl", *(word for key in keys for word in ("--set", key))).done()
    return Path("run.toml")


def test_one_sees_answers_their_rewards_and_what_the_machine_would_do(sfnode: Run, manifest: Path) -> None:
    ended = sfnode("organise", "try-reward", manifest, "--prompts", 5).done()
    assert (ended.out.count("\n  prompt  "), ended.out.count("\n  answer  ")) == (3, 3)
    assert "5 prompts (95 % interval), the likeliest tokens:\n  mean reward 0." in ended.out
    has(ended.out, "20 answers to them, drawn as in training at temperature 0.7:", " answers/s, ")


def test_answers_are_drawn_at_temperature_1_where_the_run_has_none(sfnode: Run, manifest: Path) -> None:
    ended = sfnode("organise", "try-reward", manifest, "--temperature", 0, "--prompts", 2)
    assert "8 answers to them, drawn as in training at temperature 1:" in ended.out


def test_programs_get_the_same_figures(sfnode: Run, manifest: Path) -> None:
    ended = sfnode("organise", "try-reward", manifest, "--temperature", 0.5, "--json")
    found = TryRewardResult.model_validate_json(ended.out)
    assert (found.prompts, found.answers, found.temperature) == (8, 32, 0.5)  # a ninth row validates
    assert 0 < found.apart <= 1
    assert 0 <= found.reward_low < found.reward < found.reward_high <= 1
    assert found.tokens_per_second == pytest.approx(found.tokens / found.seconds)
    assert all(0 <= one.reward <= 1 and one.answer for one in found.examples)


def test_where_no_answer_is_better_than_another_that_is_an_error_after_the_figures(
    sfnode: Run, manifest: Path
) -> None:
    flags = ("--temperature", 0.016)
    shown = sfnode("organise", "try-reward", manifest, *flags)
    assert (shown.status, "0% of the prompts got answers of which one is better" in shown.out) == (1, True)
    assert "sfnode: SF089: none of 8 prompts got answers" in shown.err
    told = sfnode("organise", "try-reward", manifest, *flags, "--json")
    assert (told.status, json.loads(told.out)["apart"]) == (1, 0.0)
    assert "SF089" in told.err


def test_a_ready_made_task_takes_rows_of_ones_own(sfnode: Run) -> None:
    rows = [
        {"text": f"{name}, {age}", "json": json.dumps({"name": name})}
        for name, age in (("Ann", 7), ("Bo", 9))
    ]
    Path("rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    ended = sfnode(
        "organise", "try-reward", "--task", "json", "--model", "builtin:tiny", "--train", "rows.jsonl"
    ).failed("all 8 answers have the reward 0")
    assert '{"name": "Ann"}' in ended.out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "SF010: it takes a run's manifest, or a ready-made task with --task"),
        (("run.toml", "--task", "gsm8k"), "SF010: it takes"),
        (("run.toml", "--temperature", "-1"), "SF010: temperature: Input should be greater than or equal"),
        (("run.toml", "--temperature", "0.001"), "SF010: temperature: temperature is 0 or at least"),
        (("missing.toml",), "SF011: cannot read the run manifest missing.toml"),
        (
            ("--task", "gsm8k", "--model", "builtin:tiny"),
            "SF032: there are no prompts: cannot load hf:openai/gsm8k",
        ),
        (("reviews.toml",), "SF010: the task kind classification has no rewards"),
    ],
)
def test_what_makes_no_sense_is_an_error(
    arguments: tuple[str, ...], says: str, sfnode: Run, manifest: Path
) -> None:
    if arguments == ("reviews.toml",):
        keys = ("--set", "init.measure=no")
        assert sfnode("init", "--task", "reviews", "--out", "reviews.toml", *keys).status == 0
    ended = sfnode("organise", "try-reward", *arguments).refused()
    assert f"sfnode: {says}" in ended.err or says in ended.err
