"""Short news on four topics, composed at random with integers: data for a real model without ../shared.

    python -m benchmarks.topics FOLDER    writes train.tsv and test.tsv

Training and test rows share verbs and phrases, which fit all topics. They do not share the names of who does
something and of what it is about. So word counts do not predict the topic, but the meaning of the words does.
Half of the texts also mention another story on another topic, which is not the text's topic.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Literal, NamedTuple

from sfnode.manifest.sections import Data
from sfnode.manifest.task import Task
from sfnode.tasks.presets import Preset
from sfprotocol.seeds import derive_key, stream

NAME = "topics"

Split = Literal["train", "test"]

ROWS: dict[Split, int] = {"train": 2048, "test": 1000}
"""Number of rows of each split, equal for all topics."""

PRESET = Preset(
    Task(
        kind="classification",
        template="{sentence} It was",
        verbalizer={"0": "world", "1": "game", "2": "company", "3": "computer"},
        max_tokens=128,
    ),
    Data(),
    texts="{sentence}",
)


class _Topic(NamedTuple):
    """Words for who does something, and for what it is about. Every third word is only in test rows."""

    who: Sequence[str]
    what: Sequence[str]


TOPICS = (
    _Topic(
        (
            *("the foreign minister", "the rebels", "peacekeepers", "the opposition", "the ambassador"),
            *("voters", "border guards", "the president", "refugees", "parliament", "protesters", "the king"),
            *("a militia", "the prime minister", "the peace envoy"),
        ),
        (
            *("the ceasefire", "the election", "the treaty", "the siege", "the referendum", "the coup"),
            *("the hostage talks", "the new constitution", "the invasion", "the curfew", "the embassy"),
            *("the occupied province", "the sanctions", "the uprising", "the disputed border"),
        ),
    ),
    _Topic(
        (
            *("the goalkeeper", "the champions", "the coach", "a sprinter", "the visitors", "the striker"),
            *("the pitcher", "a rookie", "the captain", "the swimmer", "the home side", "the golfer"),
            *("the quarterback", "the tennis star", "the referee"),
        ),
        (
            *("the final", "the penalty", "the league title", "the relay", "the second half", "the cup tie"),
            *("the playoffs", "the marathon", "the world record", "the semi-final", "the tournament"),
            *("the medal", "the derby", "the last lap", "the season opener"),
        ),
    ),
    _Topic(
        (
            *("the airline", "shareholders", "the bank", "investors", "the retailer", "the insurer"),
            *("the oil giant", "the chief executive", "creditors", "the carmaker", "the brewer", "brokers"),
            *("the hedge fund", "the supermarket chain", "auditors"),
        ),
        (
            *("the merger", "the quarterly profit", "the share price", "the takeover bid", "the dividend"),
            *("the bankruptcy", "the pay deal", "the stock sale", "the loan", "the price cut", "the debt"),
            *("the sales target", "the rate rise", "the bond issue", "the job cuts"),
        ),
    ),
    _Topic(
        (
            *("astronomers", "the chip maker's engineers", "the space probe", "biologists", "programmers"),
            *("the telescope", "the robot", "geneticists", "hackers", "the satellite", "physicists"),
            *("the browser's authors", "climate researchers", "the laboratory", "the search engine"),
        ),
        (
            *("the comet", "the software update", "the virus scanner", "the fossil", "the gene", "the moons"),
            *("the operating system", "the fusion experiment", "the wireless network", "the new particle"),
            *("the security hole", "the vaccine trial", "the orbit", "the microprocessor", "the ice core"),
        ),
    ),
)
VERBS = ("lost", "won", "saved", "delayed", "changed", "praised", "abandoned", "followed", "missed", "feared")
WHEN = (
    "on Monday",
    "last night",
    "after a long wait",
    "in the end",
    "for the first time",
    "again",
    "in June",
)
TWO = ("{main}. Also on this page: {other}.", "In other news, {other}. The main story: {main}.")


def rows(split: Split) -> list[tuple[str, int]]:
    """Return the texts of a split with their topics. No text occurs twice."""
    found: dict[str, int] = {}
    left = [ROWS[split] // len(TOPICS)] * len(TOPICS)
    topics = _topics(split)
    while any(left):
        text, topic = next(topics)
        if text not in found and left[topic]:
            found[text] = topic
            left[topic] -= 1
    return list(found.items())


def write(folder: Path) -> Path:
    """Write train.tsv and test.tsv to a folder, and return it."""
    for split in ROWS:
        lines = [f"{text}\t{topic}\n" for text, topic in rows(split)]
        (folder / f"{split}.tsv").write_text("sentence\tlabel\n" + "".join(lines), encoding="utf-8")
    return folder


def _topics(split: Split) -> Iterator[tuple[str, int]]:
    key = derive_key(b"sfnode topics", split.encode())
    for number in count():
        draws = (stream(key, 16 * number, 16) >> 11).tolist()
        main, other = draws[0] % len(TOPICS), draws[1] % (len(TOPICS) - 1)
        other += other >= main
        text = f"{_clause(split, main, draws[2:6])}."
        if draws[6] % 2:
            two = TWO[draws[7] % len(TWO)]
            text = two.format(main=text[:-1], other=_clause(split, other, draws[8:12]))
        yield text[0].upper() + text[1:], main


def _clause(split: Split, topic: int, draws: Sequence[int]) -> str:
    """Write a clause about a topic, with words chosen by four random integers."""
    who, what = (_of(split, words, draw) for words, draw in zip(TOPICS[topic], draws, strict=False))
    return f"{who} {VERBS[draws[2] % len(VERBS)]} {what} {WHEN[draws[3] % len(WHEN)]}"


def _of(split: Split, words: Sequence[str], draw: int) -> str:
    mine = [word for place, word in enumerate(words) if (place % 3 == 2) == (split == "test")]
    return mine[draw % len(mine)]


if __name__ == "__main__":
    write(Path(sys.argv[1]))
