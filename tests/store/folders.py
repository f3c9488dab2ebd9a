"""Data folders of runs, whose machines decide and compute as those of nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sfnode.manifest import Manifest
from sfnode.node.driver import LogStore
from sfnode.organising.evaluation.health import published
from sfnode.schema.measurements import Evaluation
from sfnode.store.data_folder import Layout
from sfnode.store.log import CardRecord, Record, UpdateLog
from sfnode.store.replay import frontier_of, kept_control
from sfprotocol import decisions, wire_codec
from sfprotocol.decisions import FACTOR_ONE, Admit, Decision, RateFrom, Seal
from sfprotocol.events import OwnDecision
from sfprotocol.fields import Values
from sfprotocol.host import Host
from sfprotocol.machine import Machine
from sfprotocol.messages import Card, EpochScalars, Feed, Segment
from sfprotocol.own_feed import fresh
from sfprotocol.signing import card_message, extend, head_message
from tests.protocol.feeds import origin_of, own_updates, signing_key
from tests.protocol.organised import closing, digest_named

ORGANISER = {"organiser": origin_of("organiser").hex(), "deputies": (origin_of("deputy").hex(),)}
"""Manifest options for the keys with which these folders decide."""


def organised(run: Manifest, **numbers: Any) -> Manifest:
    """Return the same run with an organiser, and with these training numbers."""
    said = {"quota": 1000, "subspace_epochs": 2, **ORGANISER}
    fields = run.model_dump() | {"admission": "organised", "organised": said}
    fields["open"] = {"quota": 0, "work_bits": 0}
    fields["training"] |= {"schedule": "constant", **numbers}
    return Manifest.model_validate(fields)


def first_order(run: Manifest, **numbers: Any) -> Manifest:
    """Return the same run with an organiser and first-order updates: two cores of 3 x 4, or 24 cells."""
    fields = organised(run).model_dump() | {"protocol": 4}
    fields["model"]["targets"] = ("a:3x10", "b:3x5")
    fields["training"] |= {"estimator": "first-order", "norm_limit": 78, "rank": 4, "basis": "published"}
    fields["training"] |= {"bases": "12" * 32, "scalar_bits": 8, "scalar_limit": 127, **numbers}
    return Manifest.model_validate(fields)


def joined(path: Path, manifest: Manifest) -> Path:
    """Return the folder of a node that has joined a run and knows no update yet."""
    with Folder(path, manifest):
        return path


class Folder:
    """The folder of a node, held open; `with` closes its log."""

    def __init__(self, path: Path, manifest: Manifest, name: str = "", *, organises: bool = False) -> None:
        """`name`: origin of this node's updates; it makes none if the name is empty."""
        self.manifest, self.run, self.path = manifest, manifest.parameters(), path
        self.layout = Layout(path)
        path.mkdir(exist_ok=True)
        if not self.layout.manifest.exists():
            self.layout.manifest.write_text(manifest.to_toml())
        self.log = UpdateLog.open(self.layout.log, self.run.run_id)
        self._name, self._organises = name, organises
        self._start()

    def _start(self) -> None:
        key = signing_key(self._name or "nobody")
        self.machine = Machine(
            self.run,
            frontier_of(self.run, self.log),
            own=self._own(self._name) if self._name else None,
            sign=key.sign,
            draw_incarnation=lambda: 0,
            proven=True,
            now=0.0,
            control=kept_control(self.log),
        )
        if self.machine.organised and self._organises:
            self.machine.organised.control.hold(origin_of("organiser"), signing_key("organiser").sign, 0.0)
        self.store = LogStore(self.log, self.run, lambda feed: None)
        self.host = Host(self.machine, self.store)
        self.settle()

    def _own(self, name: str) -> Feed:
        origin = origin_of(name)
        known = [tail.feed for tail in self.log.tails() if tail.feed.origin == origin]
        return known[0] if known else fresh(frontier_of(self.run, self.log), origin, 0)

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, *_: object) -> None:
        self.log.close()

    def settle(self) -> None:
        while self.host.waiting or self.machine.next_deadline() <= 0.0:
            commit = self.host.decide(0.0)
            if commit:
                self.store.append(commit)
            self.host.carry_out()

    @property
    def digest(self) -> str:
        return self.machine.frontier.digest().hex()

    # -- updates -----------------------------------------------------------------------------------

    def make(self, count: int, scalar: Callable[[], Values] = lambda: 7) -> None:
        """Make `count` updates of this node, as one segment."""
        made = own_updates(self.host, count, scalar)
        assert made, "no updates may be made"
        assert made.count == count
        self.host.post(made)
        self.settle()

    def bring(self, name: str, scalars: Sequence[Values]) -> None:
        """Store another origin's updates, as if they had come over a link."""
        feed = Feed(origin_of(name), 0)
        state, parts = self.machine.frontier.state(feed), (EpochScalars(self.machine.epoch, tuple(scalars)),)
        chain = extend(state.chain, parts)
        head = head_message(self.run.run_id, feed, state.next + len(scalars), chain)
        segment = Segment(state.key, state.next, parts, signing_key(name).sign(head))
        self.log.append([Record(feed, segment, chain)])
        self._start()

    def call(self, name: str, text: str) -> None:
        """Store another origin's display name, as if its card had come over a link."""
        state = self.machine.frontier.state(Feed(origin_of(name), 0))
        card = Card(state.feed, state.next, text, "", bytes(64))
        signature = signing_key(name).sign(card_message(self.run.run_id, card))
        told = CardRecord(state.feed, wire_codec.encode(replace(card, signature=signature)))
        self.log.append((), (), (told,))
        self._start()

    # -- decisions ---------------------------------------------------------------------------------

    def decide(self, decision: Decision) -> None:
        self.host.post(OwnDecision(decisions.encode(decision)))
        self.settle()

    def admit(self, *names: str) -> None:
        for name in names:
            self.decide(Admit(origin_of(name), self.manifest.organised.quota, 0))

    def close(self) -> None:
        """Close the open epoch with everything that is stored here."""
        self.decide(closing(self.machine.frontier))

    def seal(
        self, *, factor: int = FACTOR_ONE, skipped: Sequence[int] = (), rates: Iterable[RateFrom] = ()
    ) -> None:
        """Seal the first closed epoch without a seal."""
        run_state = self.machine.frontier.run_state
        assert run_state
        epoch = run_state.sealed
        digest = digest_named(self.run, run_state, epoch, lambda *place: self.log.past(*place)[0])
        self.decide(Seal(epoch, tuple(skipped), (), digest, factor, tuple(rates)))

    def evaluate(self, epoch: int, accuracy: float, loss: float) -> None:
        """Publish an evaluation of a seal's model."""
        ends = accuracy - 0.05, accuracy + 0.05
        found = Evaluation(metric="accuracy", value=accuracy, low=ends[0], high=ends[1], loss=loss, count=9)
        self.decide(published(epoch, found))
