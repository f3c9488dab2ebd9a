"""Mini-batches are encoded ahead of time, by threads that share the tokenizer with evaluation."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from sfnode.engine.trainable_model import PREPARED_STEPS, MiniBatches


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as made:
        yield made


def test_what_was_prepared_is_encoded_once_and_what_was_not_is_encoded_all_the_same(
    executor: ThreadPoolExecutor,
) -> None:
    drawn: list[int] = []

    def draw(seed: int) -> Any:
        drawn.append(seed)
        return seed

    batches = MiniBatches(draw, executor)
    batches.prepare([1, 2])
    assert batches.take((1, 2)) == [1, 2]
    assert batches.take([3]) == [3]
    assert sorted(drawn) == [1, 2, 3]
    assert batches.take([1, 2]) == [1, 2]  # once more, as nothing is kept
    assert len(drawn) == 5


def test_seeds_that_are_measured_together_share_what_the_first_of_them_draws(
    executor: ThreadPoolExecutor,
) -> None:
    batches = MiniBatches(lambda seed: seed, executor, together=3)  # type: ignore[arg-type, return-value]
    batches.prepare([1, 2, 3, 4, 5, 6])
    assert batches.take([1, 2, 3, 4, 5, 6]) == [1, 1, 1, 4, 4, 4]
    assert batches.take([7, 8, 9]) == [7, 7, 7]


def test_steps_that_are_never_taken_make_room(executor: ThreadPoolExecutor) -> None:
    batches = MiniBatches(lambda seed: seed, executor)  # type: ignore[arg-type, return-value]
    for seed in range(50):
        batches.prepare([seed])
    assert len(batches._prepared) == PREPARED_STEPS


def test_one_thread_may_prepare_while_another_takes(executor: ThreadPoolExecutor) -> None:
    batches = MiniBatches(lambda seed: seed, executor)  # type: ignore[arg-type, return-value]
    failures: list[BaseException] = []

    def announce() -> None:
        try:
            for seed in range(3000):
                batches.prepare([seed % 7])
        except BaseException as error:
            failures.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        thread = threading.Thread(target=announce)
        thread.start()
        for seed in range(3000):
            assert batches.take([seed % 7]) == [seed % 7]
        thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not failures
