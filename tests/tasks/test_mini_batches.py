"""A seed draws a mini-batch from a node's rows: any of them, or each class equally often (SPEC R8)."""

from __future__ import annotations

from collections import Counter

import pytest

from sfnode.errors import Code, UserError
from sfnode.tasks.encoding import Encoded, encode
from sfnode.tasks.mini_batches import REFERENCES, Shard
from sfnode.tasks.prompts import Row
from sfprotocol.seeds import balanced_rows, batch_rows, update_seeds
from tests.engine.helpers import ROWS, TASK
from tests.refusals import refused
from tests.tasks.test_encoding import tokenizer, words_of
from tests.tasks.test_fitting import ANSWERS, LONG

SEEDS = [int(seed) for seed in update_seeds(7, 0, 20)]
CENTRED = TASK.model_copy(update={"loss": "centred"})
GOOD, BAD = ([row for row in ROWS if row["label"] == label] for label in "10")


ANSWERED = [("good", "bad"), ("slow", LONG), ("dull", "bad"), ("good", "good"), ("slow", "bad")]


def unread() -> list[Row]:
    raise AssertionError("public rows are for a shard of one class")


def read(encoded: Encoded) -> list[str]:
    """The prompts of a mini-batch."""
    return [words.partition(" It was")[0] for words in words_of(encoded)]


def prompts(rows: list[Row]) -> list[str]:
    return read(encode(TASK, tokenizer(), rows))


def test_for_a_plain_loss_it_is_any_rows() -> None:
    shard = Shard(TASK, tokenizer(), ROWS, 3, unread)
    for seed in SEEDS:
        drawn = shard.mini_batch(seed)
        assert read(drawn) == prompts([ROWS[row] for row in batch_rows(seed, 3, len(ROWS)).tolist()])
        assert not drawn.centred


def test_for_a_centred_loss_it_has_each_class_equally_often() -> None:
    shard = Shard(CENTRED, tokenizer(), ROWS, 4, unread)
    for seed in SEEDS:
        drawn = shard.mini_batch(seed)
        assert drawn.right.sum(0).tolist() == [2, 2]
        classes, places = balanced_rows(seed, 4, (len(BAD), len(GOOD)))
        rows = [(BAD, GOOD)[one][place] for one, place in zip(classes, places, strict=True)]
        assert read(drawn) == prompts(rows)
        assert (drawn.centred, drawn.references) == (True, 0)


def test_a_shard_of_one_class_is_centred_by_public_rows_whose_labels_are_not_looked_at() -> None:
    public: list[Row] = [{"sentence": "a film"}, {"sentence": "the story"}]
    shard = Shard(CENTRED, tokenizer(), BAD, 4, lambda: public)
    seen: Counter[str] = Counter()
    for seed in SEEDS:
        drawn = shard.mini_batch(seed)
        assert (drawn.examples, drawn.references) == (4 + REFERENCES, REFERENCES)
        assert set(read(drawn)[:4]) <= set(prompts(BAD))
        seen.update(read(drawn)[4:])
    assert seen.keys() == {"<s> a film", "<s> the story"}


def test_rows_of_one_class_are_of_no_use_where_there_are_no_public_ones() -> None:
    """Centred by themselves they would teach the model to answer all rows alike."""
    with refused(Code.DATA_NEEDED, "all rows here are of one class"):
        Shard(CENTRED, tokenizer(), BAD, 4)
    Shard(TASK, tokenizer(), BAD, 4, unread)


def test_classes_that_are_there_are_compared_where_another_is_lacking() -> None:
    three = CENTRED.model_copy(update={"verbalizer": {"0": "terrible", "1": "great .", "2": "dull"}})
    drawn = Shard(three, tokenizer(), ROWS, 4, unread).mini_batch(5)
    assert (drawn.right.sum(0).tolist(), drawn.references) == ([2, 2, 0], 0)


def test_a_seed_draws_the_same_mini_batch_everywhere() -> None:
    shards = [Shard(CENTRED, tokenizer(), BAD, 4, lambda: ROWS) for _ in range(2)]
    assert [read(one.mini_batch(5)) for one in shards] == [read(shards[0].mini_batch(5))] * 2


@pytest.mark.parametrize("task", [TASK, CENTRED])
def test_a_node_without_rows_draws_none(task: object) -> None:
    Shard(task, tokenizer(), [], 4, unread)  # type: ignore[arg-type]


def test_with_a_secret_nobody_can_tell_from_the_seed_which_rows_are_drawn() -> None:
    told = [Shard(TASK, tokenizer(), ROWS, 3, secret=secret) for secret in (b"", b"one", b"one", b"two")]
    public, one, again, two = ([read(shard.mini_batch(seed)) for seed in SEEDS] for shard in told)
    assert one == again
    assert len({str(drawn) for drawn in (public, one, two)}) == 3


def test_the_odds_of_a_row_are_those_of_the_smallest_class() -> None:
    """Three rows are drawn of five; where classes take turns, two of the two good ones."""
    assert Shard(TASK, tokenizer(), ROWS, 3).odds == (3, 5)
    assert (len(GOOD), len(BAD)) == (2, 3)
    assert Shard(CENTRED, tokenizer(), ROWS, 3).odds == (2, 2)


def test_of_a_nodes_own_rows_none_is_there_twice_in_place_of_one_that_does_not_fit() -> None:
    rows = [{"q": f"a {word} film", "a": answer} for word, answer in ANSWERED]
    fitting = [number for number, (_, answer) in enumerate(ANSWERED) if answer != LONG]
    for size in (3, 5):
        shard = Shard(ANSWERS, tokenizer(), rows, size, secret=b"mine", each_once=True)
        drawn = [shard.numbers(seed).tolist() for seed in SEEDS]
        assert {number for numbers in drawn for number in numbers} == set(fitting)
        assert all(len(set(numbers)) == len(numbers) for numbers in drawn)
        assert [shard.mini_batch(seed).examples for seed in SEEDS] == [len(numbers) for numbers in drawn]
    with pytest.raises(UserError, match="cannot be predicted"):
        Shard(ANSWERS, tokenizer(), rows[1:2], 1, secret=b"mine", each_once=True).mini_batch(1)
