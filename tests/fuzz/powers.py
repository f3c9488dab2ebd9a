"""Messages of a hostile peer in an organised run, signed with the keys that it has: those of a member, the
organiser, deputies or an invitation; and messages without them.

This module only knows how things are signed. True messages and decisions are changed at random (`altering`)
and signed, so no rules and no fields of decisions are written down here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sfnode.organising.admission import solve, voucher_message
from sfprotocol import decisions, messages, wire_codec
from sfprotocol.control_feed import ControlFeed, decision_message, extend, succession_message
from sfprotocol.errors import LocalProtocolError, RemoteProtocolError
from sfprotocol.join_requests import join_request_message
from sfprotocol.link import ALLOWED, LinkState
from sfprotocol.machine import Machine
from sfprotocol.signing import Sign
from tests.fuzz import hostile
from tests.fuzz.altering import altered
from tests.fuzz.choices import Choices
from tests.fuzz.decoders import seeds
from tests.fuzz.stories import HISTORY, Saga, key_of, origin_of

NUMBERS = (0, 1, 2, 63, 64, 65, 4096, 2**16 - 1, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63, 2**64 - 1)
"""Integers at the limits of fields, tables and pages."""

NAMES = ("eve", "mal", "zed")
"""Origins of the hostile peer. Admitted ones can do most."""

INCARNATIONS = (0, 1, 2, 3, 5, 63, 64, 2**32 - 1)

LONGEST_SAGAS = 24
"""Number of sagas in one case: enough that some remain uncut, and few enough that they continue."""

EASY_WORK = 4
"""Bits of the proofs of work in its join requests, as the organisers of these tests require."""

MAX_RECORDED = 256


@dataclass
class Keys:
    """Keys of others that a hostile peer has."""

    organiser: Sign | None = None
    """Function that signs decisions; None without the key."""
    careful: bool = False
    """Whether it signs decisions only at positions that are free, so that nobody finds out."""
    deputies: dict[int, Ed25519PrivateKey] = field(default_factory=dict)
    """Keys of deputies, keyed by their places in the manifest."""
    invitations: dict[int, Ed25519PrivateKey] = field(default_factory=dict)
    """Keys of invitations, keyed by their numbers from 1."""


class Stage:
    """Whole nodes as the scene of the hostile peer. It knows all their machines and frames."""

    def __init__(
        self, run: messages.RunParameters, machines: Callable[[], Sequence[Machine]], keys: Keys
    ) -> None:
        self.run = run
        self.keys = keys
        self.sagas = [Saga(name, 0, (3, 9), run=run, labels=(0, 1)) for name in NAMES]
        self.named = {saga.feed for saga in self.sagas}
        self.focus = 0
        self.recorded: deque[bytes] = deque(maxlen=MAX_RECORDED)
        self.signed = -1
        """Position of the last decision that a careful peer signed, in `said`."""
        self.said = messages.Entry(0, b"", bytes(64))
        self._machines = machines

    @property
    def machines(self) -> Sequence[Machine]:
        return self._machines()

    def begin_saga(self, choices: Choices) -> None:
        """Add another feed, or another history of a known one, with random labels and scalars."""
        opened = choices.pick(self.machines).epoch
        labels = choices.pick(
            ((opened, opened), (opened, opened + 1), (max(0, opened - 1), opened), (0, opened),
             (opened + 1, opened), (opened, choices.pick(NUMBERS) % 2**32))
        )  # fmt: skip
        largest = self.run.scalar_limit
        too_large = min(largest + 1, 2**15 - 1)
        first = choices.pick(
            (range(HISTORY), [0] * HISTORY, [largest, -largest] * (HISTORY // 2), [too_large] * HISTORY,
             [n * 37 % (largest + 1) for n in range(HISTORY)])
        )  # fmt: skip
        name, incarnation = choices.pick(NAMES), choices.pick(INCARNATIONS)
        partings = choices.pick(((), (3, 9), (0, 20)))
        saga = Saga(name, incarnation, partings, run=self.run, labels=labels, first=first)
        self.sagas = [*self.sagas[-LONGEST_SAGAS + 1 :], saga]
        self.named.add(saga.feed)


Writer = Callable[[Stage, Choices], messages.Message]


# -- anything, changed -----------------------------------------------------------------------------------


def like(stage: Stage, choices: Choices) -> Callable[[Any], Sequence[Any]]:
    """Return a function that returns other values of a value's type: limits of its range, or values with a
    meaning in this run."""

    def others(value: Any) -> Sequence[Any]:
        match value:
            case bool():
                return (not value,)
            case int():
                return (value + 1, value - 1, -value, *NUMBERS, *_numbers(stage))
            case bytes():
                same = [known for known in _known_bytes(stage) if len(known) == len(value)]
                bits = bytearray(value or b"\0")
                bits[choices.below(len(bits))] ^= 1 << choices.below(8)
                return (*same, bytes(bits), bytes(len(value)), b"\xff" * len(value), b"", value + b"\0")
            case str():
                return ("", value + "x", "x" * 5000, "\x1b[2J", "\u202eabc", "\0")
        return ()

    return others


def _numbers(stage: Stage) -> list[int]:
    """Return the numbers with a meaning now: epochs, steps, positions."""
    machine = stage.machines[0]
    found = [machine.epoch, machine.epoch + 1, machine.frontier.known]
    found += [state.next for state in machine.frontier][:8]
    if machine.organised:
        run_state, feed = machine.organised.run_state, machine.organised.control.feed
        found += [
            feed.stop,
            feed.stop + 1,
            feed.term,
            feed.term + 1,
            run_state.sealed,
            run_state.open_epoch + 1,
        ]
        found += [*run_state.positions(), *run_state.positions().values()]
    return found


def _known_bytes(stage: Stage) -> list[bytes]:
    """Return keys, digests and chain hashes of this run."""
    found = [stage.run.run_id, *map(origin_of, NAMES)]
    for machine in stage.machines:
        found += [machine.frontier.digest(), *(machine.own.origin for _ in [0] if machine.own)]
        if machine.organised:
            feed = machine.organised.control.feed
            found += [*feed.chains[-4:], *(entry.record for entry in feed.entries[-4:])]
            found += [feed.authority.organiser, *feed.authority.deputies]
    return found


def heard(stage: Stage, choices: Choices) -> messages.Message:
    """Return what an honest node has sent, with something changed."""
    frame = choices.pick(stage.recorded) if stage.recorded else choices.pick(seeds("codec"))
    return _changed(stage, choices, frame)


def exemplary(stage: Stage, choices: Choices) -> messages.Message:
    """Return a message of any kind: that of a test vector, with something changed."""
    return _changed(stage, choices, choices.pick(seeds("codec") if choices.flip(16) else _on_links()))


@cache
def _on_links() -> list[bytes]:
    """Return the test vectors of messages that are allowed on a link. Others end the link."""
    allowed, found = ALLOWED[LinkState.SYNCED] - {messages.Goodbye}, []
    for frame in seeds("codec"):
        with suppress(RemoteProtocolError):  # of a run with scalars of another width
            found += [frame] if type(wire_codec.decode(frame)) in allowed else []
    return found


def _changed(stage: Stage, choices: Choices, frame: bytes) -> messages.Message:
    try:
        message = wire_codec.decode(frame, *stage.run.form)
    except RemoteProtocolError:
        return messages.Hello(stage.run.version, stage.run.run_id, 0, 0)
    for _ in range(1 + choices.below(3)):
        message = altered(message, choices, like(stage, choices))
    return message


# -- the control feed --------------------------------------------------------------------------------------


def control_of(stage: Stage, choices: Choices) -> ControlFeed:
    """Return the control feed of some node."""
    return control_feed(choices.pick(stage.machines))


def control_feed(machine: Machine) -> ControlFeed:
    assert machine.organised is not None
    return machine.organised.control.feed


def record(stage: Stage, choices: Choices) -> bytes:
    """Return a real decision or a test vector, mostly changed, or bytes that are no decision."""
    feed = control_of(stage, choices)
    made = [entry.record for entry in feed.entries]
    if choices.flip(12):
        return choices.take(choices.below(40)) or bytes(decisions.MAX_DECISION)
    kept = choices.pick(made) if made and not choices.flip() else choices.pick(seeds("decision"))
    decision, extensions = decisions.read(kept)
    if choices.flip(16):
        extensions = (decisions.Extension(choices.below(4), b"any"),)
    for _ in range(choices.below(3)):
        decision = altered(decision, choices, like(stage, choices))
    try:
        return decisions.encode(decision, extensions)
    except RemoteProtocolError:
        return kept


def entry(
    stage: Stage, term: int, chain: bytes, stop: int, choices: Choices, forged: bool = False
) -> tuple[messages.Entry, bytes]:
    """Return the decision that follows `stop` decisions with this chain hash, and the new chain hash. It is
    signed with the organiser's key if that is known, unless it is `forged`."""
    said = record(stage, choices)
    chain = extend(chain, term, said)
    sign = None if forged else stage.keys.organiser
    sign = sign or key_of(choices.pick(NAMES)).sign
    return messages.Entry(term, said, sign(decision_message(stage.run.run_id, term, stop, chain))), chain


def position(feed: ControlFeed, choices: Choices) -> int:
    """Return a position in a control feed, most often its end."""
    return feed.stop - choices.below(min(feed.stop, 6) + 1) if choices.flip() else feed.stop


def control(stage: Stage, choices: Choices) -> messages.Control:
    """Return decisions that extend a node's control feed, or contradict it."""
    if stage.keys.careful:
        return next_decision(stage, choices)
    feed = control_of(stage, choices)
    first = position(feed, choices)
    term = choices.pick((feed.term, feed.term, feed.term, 0, feed.term + 1))
    chain, entries = feed.chains[first], []
    for stop in range(first + 1, first + 2 + choices.below(3)):
        made, chain = entry(stage, term, chain, stop, choices)
        entries.append(made)
    return messages.Control(
        first + (choices.pick((1, -1, 1000)) if choices.flip(8) and first else 0), tuple(entries)
    )


def next_decision(stage: Stage, choices: Choices) -> messages.Control:
    """Return a decision that follows from all that were ever made."""
    feed = max((control_feed(machine) for machine in stage.machines), key=lambda feed: feed.stop)
    if feed.stop > stage.signed:
        stage.signed = feed.stop
        stage.said, _ = entry(stage, feed.term, feed.chain, feed.stop + 1, choices)
    return messages.Control(stage.signed, (stage.said,))


def true_control(stage: Stage, choices: Choices) -> messages.Control:
    """Return real decisions, perhaps at another position."""
    feed = control_of(stage, choices)
    first = position(feed, choices)
    entries = tuple(feed.entries[first : first + 1 + choices.below(8)])
    return messages.Control(position(feed, choices) if choices.flip(4) else first, entries)


def control_fork(stage: Stage, choices: Choices) -> messages.ControlFork:
    """Return two decisions at one position. A careful peer does not sign them."""
    feed = control_of(stage, choices)
    first, term = position(feed, choices), choices.pick((feed.term, feed.term, 0))
    (one, before), (other, after) = (
        entry(stage, term, feed.chains[first], first + 1, choices, stage.keys.careful) for _ in range(2)
    )
    return messages.ControlFork(term, first + 1, (before, after), (one.signature, other.signature))


def succession(stage: Stage, choices: Choices) -> messages.Succession:
    """Return a succession with the votes of the deputies whose keys it has. One of them may vote twice."""
    feed = control_of(stage, choices)
    kept = position(feed, choices)
    term = choices.pick((feed.next_term, feed.next_term, feed.term, 0, 2**31))
    key = choices.pick((*map(origin_of, NAMES), feed.authority.organiser, bytes(32)))
    unsigned = messages.Succession(term, kept, choices.pick((feed.chains[kept], bytes(32))), key, ())
    message = succession_message(stage.run.run_id, unsigned)
    votes = [
        messages.Vote(place, holder.sign(message)) for place, holder in sorted(stage.keys.deputies.items())
    ]
    if votes and choices.flip(4):
        votes.append(messages.Vote(votes[-1].deputy + choices.below(3), votes[-1].signature))
    return replace(unsigned, votes=tuple(votes))


def control_head(stage: Stage, choices: Choices) -> messages.ControlHead:
    feed = control_of(stage, choices)
    stop = position(feed, choices)
    told = messages.ControlHead(feed.term, stop, feed.chains[stop])
    return altered(told, choices, like(stage, choices)) if choices.flip() else told


def control_want(stage: Stage, choices: Choices) -> messages.ControlWant:
    return messages.ControlWant(position(control_of(stage, choices), choices))


# -- members, and those who want to be -------------------------------------------------------------------


def join_request(stage: Stage, choices: Choices) -> messages.JoinRequest:
    """Return the join request of a known or a new origin, with or without an invitation or proof of work."""
    name = choices.pick((*NAMES, f"new{choices.below(64)}"))
    return signed_join_request(stage.run.run_id, name, stage.keys.invitations, worked=choices.flip())


def signed_join_request(
    run_id: bytes, name: str, invitations: dict[int, Ed25519PrivateKey], *, worked: bool
) -> messages.JoinRequest:
    origin = origin_of(name)
    nonce = (solve(run_id, origin, EASY_WORK, lambda: False) or 0) if worked else 0
    number = min(invitations, default=0)
    voucher = invitations[number].sign(voucher_message(run_id, origin)) if number else b""
    unsigned = messages.JoinRequest(origin, nonce, number, voucher, bytes(64))
    return replace(unsigned, signature=key_of(name).sign(join_request_message(run_id, unsigned)))


def introduction(stage: Stage, names: Sequence[str]) -> list[messages.Message]:
    """Return the message of an honest newcomer that asks to admit these origins."""
    run = stage.run.run_id
    asked = [signed_join_request(run, name, {}, worked=True) for name in names]
    return [
        messages.Hello(messages.OLDEST_VERSION, run, 0, 0),
        messages.Summary(False, 0, bytes(32), ()),
        *asked,
    ]


def floor(stage: Stage, choices: Choices) -> messages.Floor:
    return messages.Floor(choices.pick((1, choices.pick(stage.machines).epoch, 2**16 - 1)))


def finding(stage: Stage, choices: Choices) -> messages.Finding:
    """Return figures in the format of versions before 0.3."""
    worth = choices.pick((0, 1, -(2**62), 2**62))
    parts = tuple(decisions.Part(number, 1 + choices.below(99), worth, worth) for number in (0, 65))
    return messages.Finding(choices.pick(stage.machines).epoch, origin_of(choices.pick(NAMES)), 7, 64, parts)


def commitment(stage: Stage, choices: Choices) -> messages.Commitment:
    """Return a commitment to such figures."""
    epoch, name = choices.pick(stage.machines).epoch, choices.pick(NAMES)
    return messages.Commitment(epoch, origin_of(name), choices.take(32), choices.take(64))


# -- all of it -------------------------------------------------------------------------------------------

CHANGED: Sequence[Writer] = (heard, exemplary)

DECIDING: Sequence[Writer] = (
    *3 * (control,),
    *(true_control, control_fork, succession, control_head, control_want),
)

JOINING: Sequence[Writer] = (join_request, join_request, floor, *2 * (commitment, finding))


def mixtures(run: messages.RunParameters) -> Sequence[Sequence[Writer]]:
    """Return kinds of messages, one of which is chosen for several messages in a row."""
    of_any = (*hostile.MIXTURES, CHANGED)
    return (*of_any, CHANGED, DECIDING, DECIDING, JOINING) if run.organised else of_any


def written(stage: Stage, choices: Choices, writers: Sequence[Writer]) -> bytes:
    """Return one message as bytes. A message that cannot be encoded is replaced by bytes that are none."""
    with suppress(LocalProtocolError, OverflowError):
        return hostile.written(stage, choices, writers)
    return choices.take(32)


def names_in(frame: bytes, scalar_bytes: int) -> set[messages.Feed]:
    """Return the feeds that a frame names in full."""
    try:
        message = wire_codec.decode(frame, scalar_bytes)
    except RemoteProtocolError:
        return set()
    return set(_feeds_in(message))


def _feeds_in(value: Any) -> list[messages.Feed]:
    if isinstance(value, messages.Feed):
        return [value]
    parts = value if isinstance(value, tuple) else [getattr(value, name) for name in _slots(value)]
    return [feed for part in parts for feed in _feeds_in(part)]


def _slots(value: Any) -> Sequence[str]:
    return getattr(type(value), "__slots__", ()) if not isinstance(value, (int, str, bytes)) else ()
