"""What a model writes: greedily, the same every time, and a different thing only where training says so."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sfnode.engine.core import UpdateBatch
from sfnode.engine.trainer import Trainer
from sfnode.errors import Code, UserError
from sfnode.engine.generation import generate
from sfnode.models.manifest_builder import build
from sfprotocol.seeds import update_seeds


@pytest.fixture(scope="module")
def trainer() -> Trainer:
    return Trainer.load(build({}))


def test_each_token_is_the_likeliest_after_what_is_there(trainer: Trainer) -> None:
    loaded = trainer.loaded
    prompt = "a moving and funny film"
    written = generate(loaded, prompt, 5)
    start = [] if loaded.tokenizer.bos_token_id is None else [loaded.tokenizer.bos_token_id]
    ids = start + loaded.tokenizer(prompt, add_special_tokens=False).input_ids
    ends = loaded.model.generation_config.eos_token_id
    mine: list[int] = []
    with torch.no_grad():
        while len(mine) < 5 and ends not in mine:
            mine.append(int(loaded.model(input_ids=torch.tensor([ids + mine])).logits[0, -1].argmax()))
    assert written == loaded.tokenizer.decode(mine, skip_special_tokens=True)
    assert written


def test_both_models_write_and_the_weights_are_as_before(trainer: Trainer) -> None:
    key, count = 7, 400
    scalars = np.full(count, 20_000, np.int64)
    before = trainer.generate("the film was", 8)
    assert before[0] == before[1]
    trainer.apply(UpdateBatch(np.zeros(count, np.int64), update_seeds(key, 0, count), scalars))
    base, now = trainer.generate("the film was", 8)
    assert base == before[0]
    assert now != base
    assert trainer.generate("the film was", 8) == (base, now)


def test_a_prompt_longer_than_the_model_can_take_loses_its_beginning(trainer: Trainer) -> None:
    assert isinstance(generate(trainer.loaded, "good film " * 5000, 3), str)


def test_a_classifier_refuses(trainer: Trainer) -> None:
    from dataclasses import replace

    with pytest.raises(UserError) as refusal:
        generate(replace(trainer.loaded, classifies=True), "the film", 3)
    assert refusal.value.code == Code.BAD_OPTION
    assert "writes no text" in refusal.value.what
