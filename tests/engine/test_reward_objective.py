"""A reward run's trainer: what it measures is the slope of the mean reward, and follows from seed and state;
evaluations follow from answers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sfnode.engine.estimator import quantise
from sfnode.engine.generation import AnswerPlan, AnswerRequest, Continuation, generate
from sfnode.engine.line import line_to
from sfnode.engine.losses import BATCH_ROWS, line_rows
from sfnode.engine.model_card import model_card
from sfnode.engine.reward_objective import Drawn, Question, Rewards
from sfnode.engine.trainer import Trainer
from sfnode.errors import Code, UserError
from sfnode.manifest import Manifest
from sfnode.manifest.sections import Data
from sfnode.manifest.task import ANSWERS, Task
from sfnode.models.targets import Selection
from sfnode.organising.evaluation.line_search import AMOUNTS, LineSearch
from sfnode.tasks import public_files
from sfnode.tasks.encoding import encode
from sfnode.tasks.public_files import Places
from sfnode.tasks.verifying import score_of
from sfprotocol.seeds import batch_rows, token_keys, update_seeds
from tests.engine.helpers import manifest, negated, part, trainer, updates
from tests.engine.test_estimator import hand_moved, written_directions
from tests.engine.test_export import ABOUT
from tests.engine.test_slopes import together
from tests.refusals import refused

VERIFIER: dict[str, Any] = {
    "kind": "sum",
    "terms": [
        {"weight": 0.25, "verifier": {"kind": "format", "contains": ["o"]}},
        {"weight": 0.25, "verifier": {"kind": "format", "contains": ["b"]}},
        {"weight": 0.25, "verifier": {"kind": "length", "least": 18}},
        {"weight": 0.25, "verifier": {"kind": "length", "most": 24}},
    ],
}
"""Gives answers of random words all kinds of rewards, and 1 to some."""

TASK = Task(
    kind="reward",
    template="the {noun} was",
    verifier=VERIFIER,
    answer_tokens=5,
    temperature=1.0,
    max_tokens=24,
)
ROWS = [{"noun": noun} for noun in ("film", "story", "bad film", "good story", "dull")]
SEEDS = update_seeds(7, 0, 4).tolist()


def run_of(
    folder: Path,
    family: str = "llama",
    task: Task = TASK,
    selection: Selection | None = None,
    **training: Any,
) -> Manifest:
    rows = folder / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    numbers = {"epsilon": 0.05, "learning_rate": 1e-3} | training
    made = manifest(family, **{"selection": selection} if selection else {}, **numbers)
    digest = public_files.digest_of(rows)  # and no path: the run's id, and so its bases, never vary
    data = Data(train=rows.name, test=rows.name, digests={"train": digest, "test": digest})
    return made.model_copy(update={"task": task, "data": data})


def started(folder: Path, **of: Any) -> Trainer:
    run = run_of(folder, **of)
    return trainer(run, folder / "rows.jsonl", places=Places((folder,)))


def ids_of(run: Trainer, row: dict[str, str]) -> list[int]:
    """The prompt's tokens, after that which begins a text."""
    tokenizer = run.loaded.tokenizer
    ids: list[int] = [tokenizer.bos_token_id, *tokenizer(f"the {row['noun']} was").input_ids]
    return ids


def quantised(run: Trainer, alpha: float) -> int:
    numbers = run.manifest.training
    return quantise(alpha, numbers.scalar_delta, numbers.scalar_limit)


def objective_of(run: Trainer) -> Rewards:
    assert isinstance(run.objective, Rewards)
    return run.objective


def log_prob(run: Trainer, prompt: Sequence[int], answer: Sequence[int]) -> float:
    """Of all tokens of an answer, at the weights as they are."""
    with torch.inference_mode():
        logits = run.loaded.model(input_ids=torch.tensor([[*prompt, *answer]])).logits[0].double()
    places = torch.arange(len(prompt) - 1, len(prompt) + len(answer) - 1)
    return float(logits[places].log_softmax(-1).gather(1, torch.tensor(answer)[:, None]).sum())


@pytest.mark.parametrize("group", [0, 2])
def test_scalars_are_slopes_of_log_probabilities_each_times_the_reward_above_that_of_the_others(
    tmp_path: Path, group: int
) -> None:
    """By weights moved by hand, one answer after the other."""
    run = started(tmp_path, group=group, epsilon=2e-4)
    run.apply(updates(20, (0,)))
    result = run.recompute(SEEDS, 0)
    slopes, rewards = [], []
    for number, seed in enumerate(SEEDS):
        drawing = SEEDS[number - number % (group or 1)]
        rows = [ROWS[row] for row in batch_rows(drawing, 3, len(ROWS)).tolist()]
        asked = [ids_of(run, row) for row in rows for _ in range(ANSWERS)]
        keys = token_keys(drawing, len(asked)).tolist()
        answers = [
            generate(run.loaded, [AnswerRequest(*one)], AnswerPlan(5, 1.0))[0]
            for one in zip(asked, keys, strict=True)
        ]
        found = np.array([score_of(TASK)(one.text, {}) for one in answers]).reshape(3, ANSWERS)
        others = (found.sum(1, keepdims=True) - found) / (ANSWERS - 1)
        moved = []
        for by in (1e-3, -1e-3):
            with hand_moved(run, written_directions(run, seed, 0), by):
                pairs = zip(asked, answers, strict=True)
                moved.append([log_prob(run, prompt, one.tokens) for prompt, one in pairs])
        slopes.append(float(np.mean((found - others).flatten() * -np.subtract(*moved))) / 2e-3)
        rewards.append(found.mean())
    if group:  # less the mean of the others
        pairs = np.array(slopes).reshape(2, 2)
        slopes = (pairs - pairs[:, ::-1]).flatten().tolist()
    told = np.array(result.scalars) * run.manifest.training.scalar_delta
    np.testing.assert_allclose(told, slopes, rtol=0.02, atol=0.02 * np.abs(slopes).max())
    assert np.abs(slopes).max() > 10 * run.manifest.training.scalar_delta
    assert result.loss == pytest.approx(1 - np.mean(rewards))
    assert result.failed == 0


def test_the_mean_of_slopes_is_that_of_the_expected_reward(tmp_path: Path) -> None:
    """Of answers of one token, whose expected reward can be added up."""
    run = started(tmp_path, task=TASK.model_copy(update={"answer_tokens": 1}), epsilon=1e-3, batch_size=64)
    objective, prompt = objective_of(run), ids_of(run, ROWS[0])
    tokens = range(run.loaded.model.config.vocab_size)
    texts = [run.loaded.tokenizer.decode([token], skip_special_tokens=True) for token in tokens]
    worth = torch.tensor([score_of(TASK)(text, {}) for text in texts], dtype=torch.float64)

    def expected(by: float) -> float:
        with hand_moved(run, written_directions(run, SEEDS[0], 0), by), torch.inference_mode():
            logits = run.loaded.model(input_ids=torch.tensor([prompt])).logits[0, -1].double()
        return float(logits.softmax(-1) @ worth)

    exact = (expected(-1e-3) - expected(1e-3)) / 2e-3
    questions = [Question(prompt, ROWS[0])] * 64
    found = [
        float(objective.alphas(run.space, objective.gradient(run.space, 0, seed, questions), SEEDS[:1])[0])
        for seed in update_seeds(9, 0, 60).tolist()
    ]
    error = np.std(found) / np.sqrt(len(found))
    assert abs(np.mean(found) - exact) < 3 * error
    assert abs(exact) > 4 * error


def test_a_prompt_whose_answers_get_the_same_says_nothing_and_is_not_read_again() -> None:
    questions = [Question([1, 2], None), Question([3], None)]
    answers = [Continuation("", (number, 5), True) for number in range(2 * ANSWERS)]
    told = Drawn(questions, answers, np.array([[0.1] * ANSWERS, [0.0] * (ANSWERS - 1) + [1.0]]))
    assert told.encoded.input_ids.tolist() == [[3, number] for number in range(ANSWERS, 2 * ANSWERS)]
    weights = told.encoded.weights
    assert weights is not None
    assert weights.tolist() == pytest.approx(
        [-1 / 3] * (ANSWERS - 1) + [1.0]
    )  # 2 tokens, half of the answers
    alike = Drawn(questions, answers, np.full((2, ANSWERS), 0.1))
    assert alike.encoded.losses(torch.tensor([-1.0])).tolist() == [0.0], "one at least is there"


def test_equal_answers_are_read_once_and_only_from_where_answers_part() -> None:
    written = [(7, 8, 1), (7, 8, 1), (7, 8, 2, 3), (7, 8, 1)], [(9,), (9,), (9, 4), (5,)]
    answers = [Continuation("", tokens, True) for one in written for tokens in one]
    drawn = Drawn(
        [Question([1], None), Question([2], None)], answers, np.array([[0, 0, 1, 0], [1, 1, 0, 1.0]])
    )
    found = drawn.encoded
    assert found.input_ids.tolist() == [[1, 7, 8, 0], [1, 7, 8, 2], [2, 0, 0, 0], [2, 9, 0, 0], [2, 0, 0, 0]]
    assert found.targets.tolist() == [1, 2, 3, 9, 9, 4, 5]
    assert found.columns.tolist() == [2, 2, 3, 0, 0, 1, 0]
    assert found.weights is not None
    by = (found.weights / found.tokens[:, 0] / found.examples * len(answers)).tolist()
    assert by == pytest.approx([-1.0, 1.0, 2 / 3, -1.0, 1 / 3])


def test_answers_come_in_parts_as_they_were_drawn() -> None:
    questions = [Question([number], None) for number in range(3)]
    answers = [Continuation("", (number,), True) for number in range(3 * ANSWERS)]
    drawn = Drawn(questions, answers, np.arange(3.0 * ANSWERS).reshape(3, ANSWERS))
    first, second = drawn.parts(2)
    assert (len(first.questions), len(second.questions)) == (2, 1)
    assert [*first.answers, *second.answers] == answers
    assert np.array_equal(np.concatenate([first.rewards, second.rewards]), drawn.rewards)


@pytest.mark.parametrize("family", ["opt", "gpt2", "gemma2"])
def test_a_measurement_can_be_repeated_by_others(tmp_path: Path, family: str) -> None:
    """By another trainer with the same updates, which has applied them in another way."""
    one, other = (started(tmp_path, family=family) for _ in range(2))
    batch = updates(20, (0,))
    one.apply(batch)
    one.step(SEEDS, 0)
    for place in range(19, -1, -1):
        other.apply(part(batch, slice(place, place + 1)))
    again = one.recompute(SEEDS, 0)
    assert other.recompute(SEEDS, 0) == again
    assert one.recompute(SEEDS, 0) == again
    assert one.core.digest() == other.core.digest()


def test_prepared_mini_batches_are_those_that_a_step_draws(tmp_path: Path) -> None:
    with started(tmp_path) as run:
        before = run.step(SEEDS, 0)
        run.mini_batches.prepare(SEEDS)
        assert run.step(SEEDS, 0) == before


def test_the_greedy_answers_of_an_evaluation_are_rewarded_one_by_one(tmp_path: Path) -> None:
    run = started(tmp_path)
    run.apply(updates(40, (0,)))
    base, now = run.evaluate_base(), run.evaluate()
    assert base == trainer(run.manifest, places=Places((tmp_path,))).evaluate()
    answers = generate(run.loaded, [AnswerRequest(ids_of(run, row)) for row in ROWS], AnswerPlan(5))
    found = [score_of(TASK)(answer.text, row) for answer, row in zip(answers, ROWS, strict=True)]
    assert now.losses == tuple(1 - reward for reward in found)
    assert now.value == found.count(1.0) / len(found)
    assert now.loss == pytest.approx(1 - np.mean(found))
    assert (now.metric, now.count, now.calibrated) == ("pass_at_1", len(ROWS), False)
    assert 0 <= now.low <= now.value <= now.high <= 1
    shown = run.answer(2, base=False)[0]
    assert (shown.said, shown.score) in [
        (one.text, reward) for one, reward in zip(answers, found, strict=True)
    ]


def test_an_evaluation_on_the_way_to_other_cores_is_that_of_the_model_there(tmp_path: Path) -> None:
    run, there = (started(tmp_path, selection=Selection(biases=True)) for _ in range(2))
    there.apply(updates(40, (0,)))
    assert run.evaluate_towards(there.cores(), 1.0) == there.evaluate()
    assert run.evaluate() != there.evaluate()


def test_an_evaluation_that_is_broken_off_says_so(tmp_path: Path) -> None:
    with refused(Code.PAUSED):
        started(tmp_path).evaluate(keep_going=lambda: False)


def judged(folder: Path, **training: Any) -> Trainer:
    """A run with validation rows, some updates on the way."""
    made = run_of(folder, **training)
    digests = {**made.data.digests, "validation": made.data.digests["test"]}
    data = made.data.model_copy(update={"validation": made.data.test, "digests": digests})
    run = trainer(made.model_copy(update={"data": data}), folder / "rows.jsonl", places=Places((folder,)))
    run.apply(updates(20, (0,)))
    return run


def test_a_line_search_measures_what_answers_get_on_the_way(tmp_path: Path) -> None:
    run, there = judged(tmp_path), judged(tmp_path)
    there.apply(updates(40, (0,), key=2))
    measure, line = objective_of(run).losses_of(ROWS), line_to(run, there.cores())
    found = []
    for amount in (0.0, 1.0):
        with line.at(amount) as perturb:
            found.append(measure(perturb, lambda: True))
    expected = [one.evaluate(rows="validation") for one in (run, there)]
    np.testing.assert_allclose(found, [one.losses for one in expected])
    assert (found[0] != found[1]).any(), "the line leads somewhere"
    search = LineSearch(len(ROWS))
    assert run.search(there.cores(), search) == len(ROWS) * len(AMOUNTS)
    with refused(Code.PAUSED):
        run.search(there.cores(), LineSearch(len(ROWS)), lambda: False)


def test_what_updates_bring_is_told_by_the_slopes_of_drawn_answers(tmp_path: Path) -> None:
    run = judged(tmp_path, learning_rate=2e-5)
    made = [updates(30, (0,), key=2), negated(updates(30, (0,), key=3))]
    after = together(run, made)
    said = [(one, np.ones(len(one.seeds), np.int64)) for one in made]
    found, taken = run.shares(after, said, 16, 0)
    batches = objective_of(run).batches(line_rows(TASK, ROWS), 16, 0)
    assert len(batches) == 16 / BATCH_ROWS
    assert taken in (4 * sum(batch.examples for batch in batches), 7 * sum(one.examples for one in batches))
    line = line_to(run, after)
    losses = [line.losses([batch], [0.0, 1.0]).mean(0) for batch in batches]
    assert sum(one.worth for one in found) == pytest.approx(-np.diff(losses).mean(), rel=0.05)
    turned = objective_of(run).batches(line_rows(TASK, ROWS), 16, 1)
    assert not all(torch.equal(a.input_ids, b.input_ids) for a, b in zip(batches, turned, strict=True))


def test_a_prompt_loses_its_beginning_and_an_answer_has_its_tokens(tmp_path: Path) -> None:
    run = started(tmp_path, task=TASK.model_copy(update={"max_tokens": 8}))
    for question in run.mini_batch(SEEDS[0]):
        assert len(question.prompt) == 3
        assert question.prompt[-1] == run.loaded.tokenizer("was").input_ids[-1]


def test_a_model_without_positions_for_an_answer_is_refused(tmp_path: Path) -> None:
    task = TASK.model_copy(update={"max_tokens": 65_536, "answer_tokens": 4096})
    with pytest.raises(UserError, match="positions"):
        started(tmp_path, family="opt", task=task)


def test_the_card_says_how_answers_were_scored(tmp_path: Path) -> None:
    card = model_card(started(tmp_path, task=TASK.model_copy(update={"stop": ("\n",)})), ABOUT)
    assert '`"the {noun} was"`,\nof at most 5 tokens, up to `"\\n"`, and this' in card
    assert json.dumps(VERIFIER, indent=1) in card
    assert "| task | reward of answers that it writes |" in card
    assert "| mean reward | rows |" in card
    assert "nats" not in card.partition("Drift from the base model")[0]
    assert "calibrated" not in card


def test_what_measures_losses_of_given_answers_says_that_there_are_none(tmp_path: Path) -> None:
    run = started(tmp_path)
    with refused(Code.BAD_OPTION, "written, and not given"):
        encode(TASK, run.loaded.tokenizer, ROWS)
