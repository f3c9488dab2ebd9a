"""Tests of the embedded orders: drawn from a key, readable, and without overlap of splits."""

from __future__ import annotations

import json
import re

import pytest

from scripts import orders
from scripts.orders import COUNTS, DAYS, ROWS, Split
from sfnode.manifest.task import Task
from sfnode.tasks import verifying

SPLITS: tuple[Split, ...] = ("train", "validation", "test")


@pytest.fixture(scope="module")
def found() -> dict[Split, list[dict[str, str]]]:
    return {split: orders.rows(split) for split in SPLITS}


@pytest.mark.parametrize("split", SPLITS)
def test_no_sentence_occurs_twice_and_all_are_the_same_everywhere(
    found: dict[Split, list[dict[str, str]]], split: Split
) -> None:
    assert len({row["text"] for row in found[split]}) == len(found[split]) == ROWS[split]
    assert orders.rows(split) == found[split]


@pytest.mark.parametrize("split", SPLITS)
def test_a_sentence_has_everything_that_its_order_says(
    found: dict[Split, list[dict[str, str]]], split: Split
) -> None:
    for row in found[split]:
        order, words = json.loads(row["json"]), re.findall(r"\w+", row["text"])
        assert list(order) == ["name", "item", "count", "town", "day"]
        assert {order["name"], order["item"], order["town"], order["day"]} <= set(words)
        assert {str(order["count"]), COUNTS[order["count"] - 2]} & {word.lower() for word in words}
        assert order["day"] in DAYS


def test_what_there_is_to_be_read_in_one_split_is_in_no_other(
    found: dict[Split, list[dict[str, str]]],
) -> None:
    for column in ("name", "item", "town"):
        seen = [{json.loads(row["json"])[column] for row in found[split]} for split in SPLITS]
        assert len(set.union(*seen)) == sum(map(len, seen))
    forms = [{_form(row) for row in found[split]} for split in SPLITS]
    assert len(set.union(*forms)) == sum(map(len, forms))


def _form(row: dict[str, str]) -> str:
    """Return a sentence without the parts that differ between orders."""
    order = json.loads(row["json"])
    values = {str(value).lower() for value in order.values()} | {day.lower() for day in DAYS} | set(COUNTS)
    words = re.findall(r"[a-z]+", row["text"].lower())
    return " ".join(word for word in words if word not in values)


def test_the_right_object_has_the_whole_reward_and_each_value_its_share(
    found: dict[Split, list[dict[str, str]]],
) -> None:
    task = Task(kind="reward", template="{text}", verifier=verifying.load("json"), answer_tokens=8)
    score, row = verifying.score_of(task), found["test"][0]
    order = json.loads(row["json"])
    assert score(row["json"], row) == pytest.approx(1.0)
    assert score(json.dumps(order | {"name": "Miriam"}), row) == pytest.approx(0.1 + 0.9 * 4 / 5)
    assert score("an order", row) == 0.0
