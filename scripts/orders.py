"""Synthetic orders: sentences such as "Anna in Bremen wants two lamps by Friday." and what they say as JSON.

What the ready-made task of training a language model by rewards is about: an answer is right if a program
can read it and finds the values of the sentence. Written from a key by integer randomness. Names, things,
towns and the forms of sentences are each of one split only, so that what a model has learnt is to read, and
not what there is to be read. This module knows nothing of models or files.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Literal, NamedTuple

from scripts.reviews import Draws, documents

Split = Literal["train", "validation", "test"]

ROWS: dict[Split, int] = {"train": 2048, "validation": 128, "test": 400}
"""Number of rows of each split."""

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
COUNTS = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
"""Numbers from 2 on in words, as half of the sentences have them."""


class _Words(NamedTuple):
    """The words of one split; but for forms they are separated by spaces. A sentence may have a second name,
    count or day, which is not what is ordered."""

    names: str
    items: str
    towns: str
    forms: Sequence[str]


_WORDS: dict[Split, _Words] = {
    "train": _Words(
        "Anna Omar Clara Peter Maria Yusuf Helen Tomas Nadia Felix Ingrid Samuel Leila Oscar Priya Walter "
        "Sofia Hassan Judith Marco Elena Viktor Amara Dennis Rosa Kenji Paula Ibrahim Greta Andre",
        "candles blankets pears carrots tiles ropes baskets lamps chairs mugs plates spoons towels "
        "ladders mirrors pillows",
        "Lyon Porto Bergen Krakow Dublin Malaga Tartu Bologna Leeds Graz Izmir Utrecht",
        (
            "{name} in {town} would like {count} {item} on {day}.",
            "Please send {count} {item} to {name} in {town} by {day}.",
            "On {day} we have to bring {name} from {town} {count} {item}.",
            "Put {count} {item} aside for {name} of {town}, who comes on {day}.",
            "{name} has ordered {count} {item}, to be in {town} on {day}.",
            "{count} {item} for {name}, please, to arrive in {town} on {day}.",
            "It was {other_name} who asked first, but the {count} {item} of {day} go to {name} in {town}.",
            "Not {other_count} but {count} {item} are what {name} needs in {town} on {day}.",
            "{day} is when {name} picks up {count} {item} in {town}.",
            "Could you deliver {count} {item} to {town} on {day}? The name is {name}.",
            "{name}, who lives in {town}, has changed {other_day} to {day}, and still wants {count} {item}.",
            "From {town} we heard that {name} takes {count} {item}, if they come by {day}.",
        ),
    ),
    "validation": _Words(
        "Mina Lukas Carmen Jonas Farah Edgar Lydia Pavel",
        "buckets curtains hammers lemons shelves",
        "Verona Odense Kaunas Cadiz",
        (
            "{name} rang from {town} about {count} {item} for {day}.",
            "Make sure that {name} gets {count} {item} in {town} by {day}.",
            "{count} {item} go to {town} on {day}, where {name} signs for them.",
            "{name} first said {other_count}, then {count} {item}, for {day}, in {town}.",
        ),
    ),
    "test": _Words(
        "Bruno Fatima Gerald Hanna Igor Jasmine Karim Louise Mateo Nora Otto Renata Sven Teresa Umar Vera",
        "benches bowls brooms kettles onions screws stools vases",
        "Ghent Split Turku Basel Cork Parma",
        (
            "Write down {count} {item} for {name}, {town}, {day}.",
            "{name} called from {town}: {count} {item}, and {day} would be best.",
            "By {day} there should be {count} {item} ready for {name} in {town}.",
            "We promised {name} {count} {item}, to be sent to {town} on {day}.",
            "{name} takes {count} {item} rather than {other_count}, and has them fetched in {town} on {day}.",
            "In {town} they expect {count} {item} on {day}, ordered by {name}, not by {other_name}.",
        ),
    ),
}


def rows(split: Split) -> list[dict[str, str]]:
    """Return the rows of a split, `text` and `json`; no text occurs twice."""
    found: dict[str, str] = {}
    drawn = documents(f"orders {split}")
    while len(found) < ROWS[split]:
        text, order = _order(_WORDS[split], next(drawn))
        found[text] = json.dumps(order)
    return [{"text": text, "json": order} for text, order in found.items()]


def _order(words: _Words, draws: Draws) -> tuple[str, dict[str, str | int]]:
    """Return a sentence and what it says."""
    name, other_name = draws.two(words.names.split())
    day, other_day = draws.two(DAYS)
    number, other_number = draws.two(range(len(COUNTS)))
    order: dict[str, str | int] = {
        "name": name,
        "item": draws.pick(words.items.split()),
        "count": number + 2,
        "town": draws.pick(words.towns.split()),
        "day": day,
    }
    spelt = draws.chance(50)
    text = draws.pick(words.forms).format(
        **order | {"count": COUNTS[number] if spelt else str(number + 2)},
        other_name=other_name,
        other_day=other_day,
        other_count=COUNTS[other_number] if spelt else str(other_number + 2),
    )
    return text[0].upper() + text[1:], order
