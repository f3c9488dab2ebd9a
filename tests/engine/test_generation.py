"""What a model writes: as if each row were alone, the same every time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModelForCausalLM

from sfnode.engine import forward, generation
from sfnode.engine.core import UpdateBatch
from sfnode.engine.estimator import standing
from sfnode.engine.generation import AnswerPlan, AnswerRequest, Continuation, complete, drawn, generate
from sfnode.engine.subspace import Subspace
from sfnode.engine.trainer import Trainer
from sfnode.errors import Code
from sfnode.models.perturbation import Perturber
from sfnode.preparing.manifest import build
from sfprotocol.seeds import token_draws, token_keys, update_seeds
from tests.engine.helpers import FAMILIES, manifest, passes_seen, trainer, weights
from tests.engine.test_estimator import SEEDS, hand_moved
from tests.refusals import refused

PROMPTS = [[1, 2, 4, 6, 8], [1, 3], [1, 2, 5, 7, 9, 10, 11, 12, 13]]
"""Of unequal lengths, the last one longer than any window."""

TOKENS = 6
NO_END: frozenset[int] = frozenset()
TO_THE_END = AnswerPlan(TOKENS, ends=NO_END)

ROWS = [AnswerRequest(prompt) for prompt in (PROMPTS[0], PROMPTS[2], PROMPTS[1]) * 2]

CLOSE = 1e-4
"""Logits that are nearer to each other than this may change places by rounding."""


@pytest.fixture(scope="module")
def built_in() -> Trainer:
    return Trainer.load(build({}))


@pytest.fixture(scope="module")
def llama() -> Trainer:
    return trainer(manifest("llama"))


def likeliest(run: Trainer, prompt: Sequence[int]) -> list[int]:
    """The likeliest tokens after a prompt, from the whole text anew for every one."""
    ids = list(prompt)
    with torch.inference_mode():
        while len(ids) < len(prompt) + TOKENS:
            given = torch.tensor([ids], device=run.loaded.device)
            best = run.loaded.model(input_ids=given, use_cache=False).logits[0, -1].topk(2)
            assert best.values[0] - best.values[1] > CLOSE
            ids.append(int(best.indices[0]))
    return ids[len(prompt) :]


def write(run: Trainer, rows: Sequence[AnswerRequest], plan: AnswerPlan = TO_THE_END) -> list[Continuation]:
    answers = generate(run.loaded, rows, plan)
    assert answers is not None
    return answers


@pytest.mark.parametrize("family", FAMILIES)
def test_every_row_is_written_as_if_it_were_alone(family: str) -> None:
    run = trainer(manifest(family))
    before = weights(run)
    answers = write(run, ROWS)
    assert [list(answer.tokens) for answer in answers] == [likeliest(run, row.prompt) for row in ROWS]
    assert all(torch.equal(old, new) for old, new in zip(before, weights(run), strict=True))


def test_what_is_not_merged_into_the_weights_yet_moves_every_row(llama: Trainer) -> None:
    """As in half precision."""
    rank, targets = llama.manifest.training.rank, llama.manifest.model.parsed_targets()
    space = Subspace(llama.space.basis, targets, (rank, rank), llama.loaded.device, live_core=True)
    changes = []
    torch.manual_seed(1)
    for number, target in enumerate(targets):
        u, v = torch.randn(target.out_features, rank), torch.randn(target.in_features, rank) * 0.05
        space.set_live_core(number, u.to(space.device), v.to(space.device))
        changes.append(u @ v.t())
    perturb = standing(space.directions(SEEDS, 2))
    answers = generate(llama.loaded, ROWS, TO_THE_END, perturb=perturb) or []
    assert answers != write(llama, ROWS)
    with hand_moved(llama, changes, 1.0):
        assert [list(answer.tokens) for answer in answers] == [likeliest(llama, row.prompt) for row in ROWS]


@settings(max_examples=5)
@given(data=st.data())
def test_a_row_is_written_the_same_whatever_is_written_beside_it(data: Any) -> None:
    run = trainer(manifest("mistral"))
    rows = data.draw(st.permutations(ROWS * 2))
    room = data.draw(st.integers(1, len(rows)))
    answers = write(run, rows, of_rows(run, rows, room))
    together = {id(row): answer for row, answer in zip(rows, answers, strict=True)}
    for row in ROWS:
        assert together[id(row)] == write(run, [row])[0]


def of_rows(
    run: Trainer, rows: Sequence[AnswerRequest], most: int, plan: AnswerPlan = TO_THE_END
) -> AnswerPlan:
    """A plan by which at most so many rows are written at once."""
    token = generation.token_bytes(run.loaded)
    return plan._replace(cache_bytes=most * token * (max(len(row.prompt) for row in rows) + plan.tokens))


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Rows and tokens of each pass from now on."""
    return passes_seen(monkeypatch)


def test_rows_cost_a_pass_for_their_prompts_and_one_for_each_further_token(
    llama: Trainer, passes: list[tuple[int, int]]
) -> None:
    write(llama, ROWS)  # what is kept of a token is looked at once for each model
    passes.clear()
    write(llama, ROWS)
    assert passes == [(6, 9)] + [(6, 1)] * (TOKENS - 1)


INSTRUCTIONS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3]
"""Those of LEAST_SHARED tokens."""


@pytest.mark.parametrize("family", ["llama", "opt"])
def test_what_all_prompts_begin_with_is_read_once(family: str, passes: list[tuple[int, int]]) -> None:
    run = trainer(manifest(family))
    rows = [AnswerRequest([*INSTRUCTIONS, *prompt]) for prompt in ([7], [2, 6], [8, 1, 10, 2])]
    passes.clear()
    answers = write(run, rows)
    shared = len(INSTRUCTIONS)
    assert passes[1:3] == [(1, shared), (3, 4)], "then what is left of each row"
    assert [list(answer.tokens) for answer in answers] == [likeliest(run, row.prompt) for row in rows]
    passes.clear()
    assert write(run, [*rows, rows[0]._replace(prompt=INSTRUCTIONS)])[:3] == answers
    assert passes[0] == (4, shared + 4), "a prompt keeps a token of its own, and then too few are left"


def test_the_bound_on_the_cache_bounds_the_rows_at_once(
    llama: Trainer, passes: list[tuple[int, int]]
) -> None:
    write(llama, ROWS * 3, of_rows(llama, ROWS, 5))
    assert max(rows for rows, _ in passes) == 5
    passes.clear()
    write(llama, ROWS, AnswerPlan(TOKENS, ends=NO_END, cache_bytes=0))
    assert {rows for rows, _ in passes} == {1}


def test_rows_that_are_done_leave_and_waiting_ones_take_their_places(
    llama: Trainer, passes: list[tuple[int, int]]
) -> None:
    rows = ROWS * 8
    plan = AnswerPlan(12, temperature=2.0, ends=frozenset({2, 3, 4}))
    drawn_apart = [row._replace(key=number) for number, row in enumerate(rows)]
    eight = of_rows(llama, rows, 8, plan)
    passes.clear()
    answers = write(llama, drawn_apart, eight)
    lengths = [len(answer.tokens) for answer in answers]
    assert min(lengths) < 3
    assert max(lengths) == 12
    steps = [rows for rows, width in passes[1:] if width == 1]
    assert sum(steps) >= sum(lengths) - len(rows)  # at each step no more rows than had something to write
    assert sum(steps) <= sum(lengths)
    full = steps[: steps.index(min(steps))]
    assert np.mean(full) > 6  # of 8, while rows wait
    alone = [write(llama, [row], plan)[0] for row in drawn_apart[:8]]
    assert alone == answers[:8]


def test_an_answer_ends_at_the_models_own_end_of_text_which_is_no_part_of_its_text(llama: Trainer) -> None:
    end = llama.loaded.model.generation_config.eos_token_id
    long = [write(llama, [row], AnswerPlan(30, ends=NO_END))[0].tokens for row in ROWS]
    for tokens, answer in zip(long, write(llama, ROWS, AnswerPlan(30)), strict=True):
        assert answer.ended == (end in tokens)
        assert answer.tokens == (tokens[: tokens.index(end) + 1] if end in tokens else tokens)
        said = answer.tokens[:-1] if answer.ended else answer.tokens
        assert answer.text == llama.loaded.tokenizer.decode(said, skip_special_tokens=True)


def test_a_stop_string_ends_an_answer_and_is_no_part_of_its_text(built_in: Trainer) -> None:
    prompt = [AnswerRequest(generation.prompt_ids(built_in.loaded, "a moving and funny film", 8))]
    (whole,) = generate(built_in.loaded, prompt, AnswerPlan(8, ends=NO_END)) or []
    words = whole.text.split()
    assert len(words) > 3
    stop = f"{words[1]} {words[2][:2]}"  # begins and ends within words
    (found,) = generate(built_in.loaded, prompt, AnswerPlan(8, stop=("never", stop), ends=NO_END)) or []
    assert found.text == whole.text[: whole.text.index(stop)]
    assert found.ended
    assert len(found.tokens) < 8
    assert found.tokens == whole.tokens[: len(found.tokens)]


def test_it_stops_between_tokens(llama: Trainer) -> None:
    asked = []

    def keep_going() -> bool:
        asked.append(True)
        return len(asked) <= 3

    assert generate(llama.loaded, ROWS, TO_THE_END, keep_going) is None
    assert len(asked) == 4


def test_nothing_to_write_is_written_at_once(llama: Trainer) -> None:
    assert write(llama, []) == []


SAMPLED = AnswerPlan(TOKENS, temperature=1.5, ends=NO_END)


def test_tokens_are_drawn_by_update_prompt_and_place_alone(llama: Trainer) -> None:
    keys = token_keys(SEEDS[0], len(PROMPTS)).tolist()
    rows = [AnswerRequest(prompt, key) for prompt, key in zip(PROMPTS, keys, strict=True)]
    first = write(llama, rows, SAMPLED)
    assert write(llama, rows, SAMPLED) == first
    assert write(llama, rows * 2, SAMPLED)[3:] == first
    assert [write(llama, [row], SAMPLED)[0] for row in rows] == first
    others = [row._replace(key=key) for row, key in zip(rows, token_keys(SEEDS[1], 3).tolist(), strict=True)]
    assert write(llama, others, SAMPLED) != first


def test_tokens_are_drawn_as_often_as_their_probabilities_say() -> None:
    logits = torch.tensor([0.0, 1.0, -2.0, 3.0, float("-inf")])
    places = np.arange(20_000)
    draws = token_draws(np.full(len(places), 7, np.uint64), places)
    for temperature in (0.5, 1.0, 4.0):
        found = drawn(logits.expand(len(places), -1), temperature, draws).bincount(minlength=5) / len(places)
        torch.testing.assert_close(found, torch.softmax(logits / temperature, -1), rtol=0, atol=0.012)
        assert found[4] == 0


def test_drawing_block_by_block_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.arange(35.0).reshape(7, 5).sin()
    draws = token_draws(np.arange(7, dtype=np.uint64), np.arange(7))
    whole = drawn(logits, 1.0, draws)
    monkeypatch.setattr(forward, "LOGITS_AT_A_TIME", 10)
    assert torch.equal(drawn(logits, 1.0, draws), whole)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_least_and_the_largest_draw_give_tokens_that_may_be_drawn(dtype: torch.dtype) -> None:
    logits = torch.tensor([[-1e9, 2.0, 1.0, -1e9]] * 2, dtype=dtype)
    draws = np.array([0, (1 << generation.DRAW_BITS) - 1], np.uint64)
    assert drawn(logits, 1.0, draws).tolist() == [1, 2]
    lost = drawn(torch.full((2, 4), float("nan")), 1.0, draws)
    assert ((lost >= 0) & (lost < 4)).all()


HYBRIDS: dict[str, dict[str, Any]] = {
    "mamba": {"hidden_size": 8, "state_size": 4},
    "lfm2": {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2}
    | {"layer_types": ["conv", "full_attention"]},
}


@pytest.mark.parametrize("kind", HYBRIDS)
def test_a_model_that_keeps_a_state_reads_texts_anew_for_every_token(llama: Trainer, kind: str) -> None:
    untyped: Any = AutoConfig
    torch.manual_seed(2)
    own = HYBRIDS[kind] | {"num_hidden_layers": 2, "vocab_size": 18, "initializer_range": 0.3}
    model = AutoModelForCausalLM.from_config(untyped.for_model(kind, **own)).eval()
    perturber = Perturber(model, ())
    loaded = replace(llama.loaded, model=model.to(llama.loaded.device), sites=(), perturber=perturber)
    assert generation.token_bytes(loaded) == 0
    rows = [AnswerRequest(prompt) for prompt in PROMPTS]
    answers = generate(loaded, rows, TO_THE_END) or []
    run: Any = SimpleNamespace(loaded=loaded)
    assert [list(answer.tokens) for answer in answers] == [likeliest(run, row.prompt) for row in rows]
    assert len({answer.tokens for answer in answers}) > 1


def test_a_text_goes_on_with_the_likeliest_tokens_after_what_is_there(built_in: Trainer) -> None:
    loaded = built_in.loaded
    prompt = "a moving and funny film"
    (written,) = complete(loaded, [prompt], 5)
    start = [] if loaded.tokenizer.bos_token_id is None else [loaded.tokenizer.bos_token_id]
    ids = start + loaded.tokenizer(prompt, add_special_tokens=False).input_ids
    ends = loaded.model.generation_config.eos_token_id
    mine: list[int] = []
    with torch.no_grad():
        while len(mine) < 5 and ends not in mine:
            mine.append(int(loaded.model(input_ids=torch.tensor([ids + mine])).logits[0, -1].argmax()))
    assert written == loaded.tokenizer.decode(mine, skip_special_tokens=True)
    assert written


def test_both_models_write_and_the_weights_are_as_before(built_in: Trainer) -> None:
    key, count = 7, 400
    scalars = np.full(count, 20_000, np.int64)
    before = built_in.generate("the film was", 8)
    assert before[0] == before[1]
    built_in.apply(UpdateBatch(np.zeros(count, np.int64), update_seeds(key, 0, count), scalars))
    base, now = built_in.generate("the film was", 8)
    assert base == before[0]
    assert now != base
    assert built_in.generate("the film was", 8) == (base, now)


def test_a_prompt_longer_than_the_model_can_take_loses_its_beginning(built_in: Trainer) -> None:
    assert isinstance(complete(built_in.loaded, ["good film " * 5000], 3)[0], str)


def test_a_classifier_refuses(built_in: Trainer) -> None:
    with refused(Code.BAD_OPTION, "writes no text"):
        complete(replace(built_in.loaded, classifies=True), ["the film"], 3)
