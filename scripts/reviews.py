"""Synthetic reviews: the text of the embedded default, written from a key by integer randomness.

One grammar serves two purposes. `pretraining_text` writes what the embedded model is pretrained on by
scripts/pretrain.py; `rows` writes the classification task that a run then teaches it: is the review's
verdict favourable? The main clause decides: negation reverses a clause, and of two opposed clauses the one
after "but", or the one that "although" does not introduce, counts. Counting good and bad words
therefore does not solve the task.

The words that answer the task ("good", "bad") do occur in the pretraining text: in talk about the weather
and, mostly "good", after every kind of review alike. A model that has only read that text understands the
reviews but not the question, and says "good" to all. This module knows nothing of models or files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Literal, NamedTuple, TypeVar

from sfprotocol.seeds import derive_key, stream

Split = Literal["train", "test"]
T = TypeVar("T")

ROWS: dict[Split, int] = {"train": 2048, "test": 1000}
"""Number of rows of each split; half of them are favourable."""

_HELD_OUT_SHARE = 4
"""One verdict in this many, head_positions by the hash of its words, occurs in the test split and nowhere
else."""

_DRAWS = 96
"""Random numbers for a document: more than the longest one needs."""


class _Subject(NamedTuple):
    """Things that may be reviewed, with adjectives of praise (True) and of blame (False)."""

    things: Sequence[str]
    qualities: Mapping[bool, Sequence[str]]


_SUBJECTS = (
    _Subject(
        ("soup", "bread", "coffee", "dessert", "salad", "breakfast"),
        {
            True: ("tasty", "delicious", "fresh", "crisp", "fragrant", "wholesome"),
            False: ("stale", "bland", "sour", "burnt", "greasy", "soggy"),
        },
    ),
    _Subject(
        ("staff", "cook", "waiter", "host", "guide", "porter"),
        {
            True: ("charming", "polite", "clever", "gentle", "cheerful", "attentive"),
            False: ("rude", "clumsy", "grumpy", "careless", "arrogant", "lazy"),
        },
    ),
    _Subject(
        ("room", "garden", "pool", "terrace", "hall", "lounge"),
        {
            True: ("bright", "tidy", "splendid", "cosy", "spotless", "elegant"),
            False: ("shabby", "messy", "noisy", "grim", "filthy", "cramped"),
        },
    ),
    _Subject(
        ("film", "music", "play", "plot", "ending", "singer"),
        {
            True: ("gripping", "graceful", "superb", "witty", "brilliant", "moving"),
            False: ("dull", "dreadful", "tedious", "clueless", "hollow", "shallow"),
        },
    ),
)
_VERBS = {
    True: ("loved", "enjoyed", "praised", "admired"),
    False: ("hated", "regretted", "disliked", "mocked"),
}
_DEGREES = ("very", "quite", "really", "rather")
_DENIALS = ("not", "never", "hardly", "anything but", "not at all")
_PEOPLE = ("we", "they", "guests", "friends", "neighbours")
_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_ASIDES = ("sat by the window", "paid in cash", "took the train home", "came with children")
_WEATHER = ("the weather was good so we walked", "the weather was bad so we drove")
_CONSEQUENCES = {
    True: (
        "i will come back soon",
        "we told all our friends to go",
        "i left with a smile",
        "we stayed until the end",
        "it was a joy",
        "it was wonderful",
        "it was excellent",
    ),
    False: (
        "i want my money back",
        "we told all our friends to stay away",
        "i left with a headache",
        "we walked out early",
        "it was a waste",
        "it was awful",
        "it was horrible",
    ),
}


class _Review(NamedTuple):
    """A review and its verdict."""

    text: str
    verdict: str
    """The sentence of the text that decides."""
    favourable: bool


class Draws:
    """The random choices of one document."""

    def __init__(self, key: int) -> None:
        self._values = iter(stream(key, 0, _DRAWS).tolist())

    def below(self, bound: int) -> int:
        value: int = next(self._values) >> 11
        return value % bound

    def chance(self, percent: int) -> bool:
        return self.below(100) < percent

    def pick(self, options: Sequence[T]) -> T:
        return options[self.below(len(options))]

    def two(self, options: Sequence[T]) -> tuple[T, T]:
        """Return two different ones."""
        one, step = self.below(len(options)), 1 + self.below(len(options) - 1)
        return options[one], options[(one + step) % len(options)]


def rows(split: Split) -> list[dict[str, str | int]]:
    """Return the rows of a split: `text`, and `label` (1 if favourable, else 0).

    No text occurs twice, and no verdict of the test split occurs in the other one or in the pretraining text.
    """
    return [{"text": text, "label": label} for text, label in _labelled(split)]


@cache
def _labelled(split: Split) -> tuple[tuple[str, int], ...]:
    """Return texts and labels; a study of many cells in one process asks for them with each."""
    left = {0: ROWS[split] // 2, 1: ROWS[split] // 2}
    seen: set[str] = set()
    found: list[tuple[str, int]] = []
    drawn = documents(f"task {split}")
    while any(left.values()):
        review = _review(next(drawn), plain=False)
        label = int(review.favourable)
        if review.text in seen or left[label] == 0 or _held_out(review) != (split == "test"):
            continue
        seen.add(review.text)
        left[label] -= 1
        found.append((review.text, label))
    return tuple(found)


def pretraining_text(count: int) -> Iterator[str]:
    """Yield `count` documents, each a review and its aftermath."""
    drawn = documents("pretraining")
    while count:
        draws = next(drawn)
        # Half of the verdicts are plain sentences: without them the model takes very long to learn the rest.
        review = _review(draws, plain=draws.chance(50))
        if not _held_out(review):
            count -= 1
            yield f"{review.text} {_aftermath(draws, review.favourable)}"


def documents(purpose: str) -> Iterator[Draws]:
    """Yield the random choices of independent documents, without end."""
    key, number = derive_key(b"sfnode reviews", purpose.encode()), 0
    while True:
        yield Draws(int(stream(key, number, 1)[0]))
        number += 1


def _held_out(review: _Review) -> bool:
    return derive_key(b"sfnode held out", review.verdict.encode()) % _HELD_OUT_SHARE == 0


def _review(draws: Draws, plain: bool) -> _Review:
    """Write a review; its verdict has one clause if it is to be plain, else one or two."""
    favourable = draws.chance(50)
    verdict = (_clause if plain else _verdict)(draws, favourable)
    sentences = [f"{verdict} ."]
    if draws.chance(40):
        sentences.insert(0, f"{draws.pick(_PEOPLE)} came on {draws.pick(_DAYS)} .")
    if draws.chance(30):
        sentences.append(f"{draws.pick(_PEOPLE)} {draws.pick(_ASIDES)} .")
    return _Review(" ".join(sentences), verdict, favourable)


def _verdict(draws: Draws, favourable: bool) -> str:
    """Write a sentence of one or two clauses."""
    shape = draws.below(10)
    if shape < 3:
        return _clause(draws, favourable)
    if shape < 4:
        return f"{_clause(draws, favourable)} and {_clause(draws, favourable)}"
    main, other = _clause(draws, favourable), _clause(draws, not favourable)
    if shape < 6:
        return f"{other} but {main}"
    if shape < 8:
        return f"although {other} , {main}"
    return f"{main} , although {other}"


def _clause(draws: Draws, favourable: bool) -> str:
    """Write a clause; a third of them say what they mean by denying the opposite."""
    denied = draws.chance(33)
    tone = favourable != denied
    subject = _SUBJECTS[draws.below(len(_SUBJECTS))]
    thing = f"the {draws.pick(subject.things)}"
    if draws.chance(25):
        return f"{'nobody' if denied else 'everybody'} {draws.pick(_VERBS[tone])} {thing}"
    quality = draws.pick(subject.qualities[tone])
    if denied:
        return f"{thing} was {draws.pick(_DENIALS)} {quality}"
    degree = f"{draws.pick(_DEGREES)} " if draws.chance(40) else ""
    return f"{thing} was {degree}{quality}"


def _aftermath(draws: Draws, favourable: bool) -> str:
    """Write one to three sentences that follow from the verdict, and up to two that are unrelated to it."""
    sentences = [draws.pick(_CONSEQUENCES[favourable]) for _ in range(1 + draws.below(3))]
    if draws.chance(50):
        sentences.insert(draws.below(len(sentences) + 1), f"it was {'good' if draws.chance(65) else 'bad'}")
    if draws.chance(60):
        sentences.insert(draws.below(len(sentences) + 1), draws.pick(_WEATHER))
    return " . ".join(sentences) + " ."
