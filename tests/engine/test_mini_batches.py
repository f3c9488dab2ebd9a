"""Mini-batches are encoded ahead of time, by threads that share the tokenizer with evaluation."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sfnode.engine.generation import complete
from sfnode.engine.mini_batches import PREPARED_STEPS, MiniBatches
from sfnode.engine.trainer import Trainer
from tests.engine.helpers import data_file, manifest, trainer


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


class OneAtATime:
    """A tokenizer that fails when two threads use it at once, as fast ones do when one of them truncates."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._busy = threading.Lock()
        self.calls = 0

    def __call__(self, *texts: Any, **options: Any) -> Any:
        return self._alone(self._tokenizer, *texts, **options)

    def decode(self, *ids: Any, **options: Any) -> Any:
        return self._alone(self._tokenizer.decode, *ids, **options)

    def _alone(self, function: Any, *given: Any, **options: Any) -> Any:
        if not self._busy.acquire(blocking=False):
            raise RuntimeError("Already borrowed")
        try:
            self.calls += 1
            time.sleep(0.001)  # long enough for another thread to come
            return function(*given, **options)
        finally:
            self._busy.release()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


def test_preparing_evaluating_and_generating_take_turns_at_the_tokenizer(tmp_path: Path) -> None:
    file = data_file(tmp_path)
    plain = trainer(manifest("opt", test=str(file), batch_size=4), file)
    tokenizer = OneAtATime(plain.loaded.tokenizer)
    run = Trainer(plain.manifest, replace(plain.loaded, tokenizer=tokenizer), plain._rows)
    with ThreadPoolExecutor(3) as threads:  # the model itself belongs to one thread, which is this one
        prepared = [threads.submit(run.mini_batches.take, [seed]) for seed in range(20)]
        for _ in range(20):
            complete(run.loaded, ["the film was"], 1)
        assert run.evaluate_base().count > 0
        for future in prepared:
            future.result()
    assert tokenizer.calls > 40
