"""Folders of nodes of organised runs, with real signatures and no model, for tests and benchmarks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from sfnode.manifest import Manifest
from sfnode.manifest.sections import OrganisedSection
from sfnode.organising.evaluation.health import published
from sfnode.preparing.manifest import build
from sfnode.schema.measurements import Evaluation
from sfnode.store.data_folder import Layout
from sfnode.store.log import CardRecord, Record, UpdateLog
from sfprotocol import decisions, seeds, signing, wire_codec
from sfprotocol.control_feed import ControlFeed
from sfprotocol.decisions import FACTOR_ONE, Admit, Announce, Close, Decision, Move, Part, Seal, Worth
from sfprotocol.events import KeepControl
from sfprotocol.fields import Names
from sfprotocol.messages import Card, EpochScalars, Feed, Segment
from sfprotocol.run_state import RunState, named_digest
from sfprotocol.validation import tag
from sfprotocol.weighing import WORTH_ONE
from tests.protocol.feeds import origin_of, signing_key

SALT = bytes(8)
BASE_ACCURACY, GAIN = 0.512, 0.36

HOSTILE = Names("<script>alert(1)</script>", "</title><img src=x>")
"""Names that are HTML markup. Each fits a card."""


def manifest_of(**changes: object) -> Manifest:
    """Return the built-in run with an organiser whose key is that of `origin_of("organiser")`."""
    run = build({})
    rules = OrganisedSection(organiser=origin_of("organiser").hex(), quota=1 << 20, subspace_epochs=16)
    numbers = {"update_budget": 1 << 21, "epoch_updates": 4096, "learning_rate": 2.0**-12}
    training = run.training.model_copy(update=numbers | {"schedule": "constant"})
    changed = {"name": "reviews", "admission": "organised", "organised": rules, "training": training}
    return run.model_copy(update=changed | changes)


class Author:
    def __init__(self, run_id: bytes, name: str, names: Names) -> None:
        self._key, self._run_id, self.names = signing_key(name), run_id, names
        self.feed = Feed(origin_of(name), 0)
        self.key = seeds.feed_key(run_id, *self.feed)
        self.chain, self.stop = signing.genesis(run_id, self.feed), 0

    def write(self, epoch: int, count: int) -> Record:
        scalars = tuple((self.stop + n) * 7919 % 201 - 100 for n in range(count))
        parts, first = (EpochScalars(epoch, scalars),), self.stop
        self.chain, self.stop = signing.extend(self.chain, parts), first + count
        message = signing.head_message(self._run_id, self.feed, self.stop, self.chain)
        return Record(self.feed, Segment(self.key, first, parts, self._key.sign(message)), self.chain)

    def card(self) -> Iterator[CardRecord]:
        if any(self.names):
            card = Card(self.feed, self.stop, *self.names, bytes(64))
            card = replace(card, signature=self._key.sign(signing.card_message(self._run_id, card)))
            yield CardRecord(self.feed, wire_codec.encode(card))


def accuracy(epoch: int, epochs: int) -> float:
    """Return the accuracy after an epoch. It rises fast at first, and fluctuates."""
    return BASE_ACCURACY + GAIN * (1 - math.exp(-4 * (epoch + 1) / epochs)) + 0.012 * math.sin(epoch * 1.7)


def evaluation(value: float, metric: str = "accuracy") -> Evaluation:
    around = 0.025
    return Evaluation(
        metric=metric, value=value, low=value - around, high=value + around, loss=1.2 - value, count=872
    )


def write_run(
    folder: Path,
    manifest: Manifest,
    names: Sequence[Names],
    *,
    updates: int,
    epochs: int,
    rewards: bool = False,
) -> list[Author]:
    """Write the folder of a node of such a run, and return the authors.

    All of them make equal parts. Their worth decreases in the order of `names`, and the last one is harmful.
    With `rewards` answers are evaluated, and no worth is measured.
    """
    said = partial(evaluation, metric="pass_at_1") if rewards else evaluation
    run = manifest.parameters()
    assert run.organised
    layout, key = Layout(folder), signing_key("organiser")
    folder.mkdir(parents=True)
    layout.manifest.write_text(manifest.to_toml())
    control, run_state = ControlFeed(run.organised), RunState.of(run)
    authors = [Author(run.run_id, f"member {n}", one) for n, one in enumerate(names)]

    def decide(decision: Decision) -> None:
        record = decisions.encode(decision)
        control.add(control.stop, [control.sign(record, key.sign)])
        run_state.apply(decisions.read(record))

    with UpdateLog.open(layout.log, run.run_id) as log:
        for author in authors:
            decide(Admit(author.feed.origin, 1 << 20, 0))
        decide(published(0, said(BASE_ACCURACY), base=True))
        for epoch in range(epochs):
            each = [updates // epochs // len(authors) + (n % 3) for n in range(len(authors))]
            log.append([author.write(epoch, count) for author, count in zip(authors, each, strict=True)])
            moves = (
                (64 * n, count, tag(SALT, author.chain))
                for n, (author, count) in enumerate(zip(authors, each, strict=True))
            )
            heads = [(64 * n, author.stop, author.chain) for n, author in enumerate(authors)]
            decide(Close(epoch, SALT, tuple(Move(*one) for one in moves)))
            parts = (
                Part(64 * n, count, _worth(n, len(authors), epochs), 2000) for n, count in enumerate(each)
            )
            if not rewards:
                decide(Worth(epoch, 872, tuple(parts)))
            decide(Seal(epoch, (), (), named_digest(run.run_id, heads), FACTOR_ONE, ()))
            decide(published(epoch, said(accuracy(epoch, epochs))))
        decide(Announce("Bases were made anew & the rate was lowered <b>by half</b>."))
        cards = [card for author in authors for card in author.card()]
        log.append([], cards=cards, control=[KeepControl(0, tuple(control.entries))])
    return authors


def _worth(number: int, count: int, epochs: int) -> int:
    return round(WORTH_ONE * 0.4 * 2 * (count - 1.2 - number) / count**2 / epochs)
