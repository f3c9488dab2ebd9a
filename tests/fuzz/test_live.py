"""Whole nodes keep their promises beside a hostile peer with valid keys, and broken promises are noticed."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import Callable
from functools import partial

import pytest

from sfprotocol import wire_codec
from sfprotocol.errors import LocalProtocolError, RemoteProtocolError
from sfprotocol.link import ALLOWED
from tests.fuzz.altering import altered
from tests.fuzz.choices import Choices
from tests.fuzz.decoders import seeds
from tests.fuzz.live import Plan, play
from tests.fuzz.watching import BLAME, LONGEST_CALLBACK, Watch, watching

CASES = (0, 1, 9, 3, 4, 5, 6, 19)
"""Seeds: one for each role of the hostile peer, two of them with a newcomer; and one with a careful thief."""


@pytest.mark.parametrize("seed", CASES)
def test_whatever_a_hostile_peer_says_nodes_live_agree_and_go_on(seed: int) -> None:
    print(f"{Plan.of(seed)}; again: python tests/fuzz/live.py --seed {seed}")
    play(seed)


# -- what must not happen is noticed ---------------------------------------------------------------------


def seen(*callbacks: Callable[[], object]) -> Watch:
    """Return the observations while an event loop calls these functions."""

    async def call() -> Watch:
        with watching() as watch:
            for callback in callbacks:
                asyncio.get_running_loop().call_soon(callback)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            gc.collect()
        return watch

    return asyncio.run(call())


def wrong(watch: Watch) -> str:
    """Return the complaints about observations, among nodes called a and b."""
    with pytest.raises(AssertionError) as found:
        watch.check(["a", "b"])
    return str(found.value)


def blame(peer: str) -> None:
    logging.getLogger("sfnode").warning(BLAME, peer, "L2: a second Hello")


def test_a_peer_that_breaks_a_rule_is_nothing_wrong_and_an_honest_node_that_is_blamed_is() -> None:
    watch = seen(partial(blame, "x1"))
    watch.check(["a", "b"])
    assert watch.blamed == [("x1", "L2: a second Hello")]
    assert "L2" in wrong(seen(partial(blame, "b")))


def test_an_exception_that_nobody_has_caught_is_noticed() -> None:
    async def fail() -> None:
        raise ZeroDivisionError

    assert "ZeroDivisionError" in wrong(seen(lambda: 1 / 0))
    assert "ZeroDivisionError" in wrong(seen(lambda: asyncio.ensure_future(fail()) and None))


def test_an_exception_that_is_only_logged_is_noticed() -> None:
    def fail() -> None:
        logging.getLogger("sfnode").error("the link with %s failed", "x1", exc_info=ZeroDivisionError())

    assert "ZeroDivisionError" in wrong(seen(fail))


def test_a_callback_that_keeps_the_loop_is_noticed_and_one_that_waits_for_the_processor_is_not() -> None:
    def compute() -> None:
        begun = time.thread_time()
        while time.thread_time() - begun < 1.1 * LONGEST_CALLBACK:
            pass

    assert "a callback took" in wrong(seen(compute))
    seen(lambda: time.sleep(1.1 * LONGEST_CALLBACK)).check(["a", "b"])


def test_what_earlier_tests_left_in_memory_is_no_cost_of_a_callback() -> None:
    left: list[list[None]] = [[] for _ in range(1_000_000)]
    begun = time.thread_time()
    gc.collect()
    cost = time.thread_time() - begun
    assert left
    assert seen(gc.collect).longest < cost / 2


# -- what is sent ----------------------------------------------------------------------------------------


def test_messages_of_every_kind_are_altered_and_most_can_still_be_sent() -> None:
    """Alter messages of any type, so that those of later versions are fuzzed, too."""
    choices, sent, kinds = Choices(b"".join(seeds("codec")) * 8), 0, set()
    for frame in seeds("codec"):
        try:
            message = wire_codec.decode(frame)
        except RemoteProtocolError:
            continue  # of a run with scalars of another width
        for _ in range(16):
            other = altered(message, choices, lambda value: (value, type(value)()))
            assert type(other) is type(message)
            try:
                sent += wire_codec.encode(other) != frame
                kinds.add(type(other))
            except LocalProtocolError:
                pass
    assert {kind for kinds_of_state in ALLOWED.values() for kind in kinds_of_state} <= kinds
    assert sent > 100
