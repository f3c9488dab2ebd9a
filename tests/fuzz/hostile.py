"""Messages of the hostile peer: of every kind, true, false or out of place, and bytes that are no message.

This module knows how messages are encoded, not how a machine works. A scene provides the receivers: an arena,
or whole nodes (`live`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

from sfprotocol import messages, wire_codec
from sfprotocol.frontier import UNCUT
from sfprotocol.machine import Machine
from sfprotocol.plumtree import NO_TAG
from sfprotocol.seeds import feed_key
from tests.fuzz.choices import Choices
from tests.fuzz.stories import HISTORY, Saga, origin_of, saying


class Scene(Protocol):
    """Knowledge of the hostile peer about its receivers: everything."""

    run: messages.RunParameters
    sagas: Sequence[Saga]
    """Hostile feeds, whose keys it has."""
    named: set[messages.Feed]
    """All feeds that anybody has named."""
    focus: int
    """Number of the story that it tells now."""
    recorded: Sequence[bytes]
    """Frames of honest nodes that it keeps, to replay them elsewhere."""

    @property
    def machines(self) -> Sequence[Machine]:
        """The machines of the honest nodes."""


S = TypeVar("S", bound=Scene)

INVENTED = (*(messages.Feed(bytes([n]) * 32, n) for n in range(3)), messages.Feed(origin_of("nobody"), 5))
"""Names of feeds that do not exist. Anybody could sign with the keys of the first two."""

STRANGE_CHAINS = (bytes(32), bytes([7]) * 32)


def feeds(scene: Scene) -> list[messages.Feed]:
    """Return all feeds that can be named: hostile ones, those of the hosts, and invented ones."""
    hostile = [saga.feed for saga in scene.sagas]
    own = [feed for feed in sorted(scene.named) if feed not in set(hostile)]
    return [*hostile, *own[-12:], *INVENTED]


def some_feeds(scene: Scene, choices: Choices) -> list[messages.Feed]:
    chosen = sorted(set(choices.some(feeds(scene))))
    scene.named.update(chosen)
    return chosen


def step(scene: Scene, feed: messages.Feed, choices: Choices) -> int:
    """Return a step near the end or the cut of a host's feed, or anywhere."""
    if choices.flip(8):
        return choices.below(min(scene.run.update_budget, 1000) + 2)
    states = [machine.frontier.state(feed) for machine in scene.machines]
    cuts = [state.cut for state in states if state.cut != UNCUT]
    end = choices.pick(cuts if cuts and choices.flip() else [state.next for state in states])
    return max(0, end + choices.pick(NEARBY))


NEARBY = (0, 1, -1, 2, 5, -3, 0, 12)


def tag(scene: Scene, feed: messages.Feed, choices: Choices) -> bytes:
    state = choices.pick(scene.machines).frontier.state(feed)
    return choices.pick((state.claim().tag, NO_TAG, b"fals"))


# -- segments ------------------------------------------------------------------------------------------


def saga_of(scene: Scene, choices: Choices) -> tuple[Saga, int]:
    """Return the saga of most of the next messages, and one of its histories."""
    sagas = scene.sagas
    saga = choices.pick(sagas) if choices.flip(4) else sagas[scene.focus % len(sagas)]
    return saga, choices.below(len(saga.histories))


def true_segment(scene: Scene, choices: Choices) -> messages.Segment:
    saga, branch = saga_of(scene, choices)
    first = min(step(scene, saga.feed, choices), HISTORY - 1)
    stop = min(first + 1 + choices.below(12), HISTORY)
    return saga.segment(branch, first, stop, choices.below(20))


def story(scene: Scene, choices: Choices) -> messages.Segment:
    """Return a history from its beginning."""
    saga, branch = saga_of(scene, choices)
    return saga.segment(branch, 0, 1 + choices.below(HISTORY), choices.below(3))


def false_segment(scene: Scene, choices: Choices) -> messages.Segment:
    segment = true_segment(scene, choices)
    match choices.below(4):
        case 0:
            return replace(segment, signature=choices.take(64).ljust(64, b"\1"))
        case 1:
            return replace(segment, first=step(scene, scene.sagas[0].feed, choices))
        case 2:
            return replace(segment, feed_key=feed_key(scene.run.run_id, *choices.pick(feeds(scene))))
        case _:
            part = segment.parts[0]
            longer = saying(choices.below(3000) - 1500, scene.run.cells), *part.scalars[1:]
            return replace(segment, parts=(part._replace(scalars=longer), *segment.parts[1:]))


# -- proofs --------------------------------------------------------------------------------------------


def true_proof(scene: Scene, choices: Choices) -> messages.Proof:
    saga, branch = saga_of(scene, choices)
    if not branch:
        return invented_proof(scene, choices)
    return saga.fork(branch, 1 + choices.below(4))


def invented_proof(scene: Scene, choices: Choices) -> messages.Proof:
    """Return a valid proof of histories that nobody has; its step may be one that hosts have reached."""
    saga, _ = saga_of(scene, choices)
    at = min(step(scene, saga.feed, choices), HISTORY)
    heads = [saga.chain(branch, at) for branch in range(len(saga.histories))]
    one = choices.pick((*heads, *STRANGE_CHAINS))
    other = choices.pick((*heads, *STRANGE_CHAINS)) if choices.flip(8) else one
    return saga.invented(at, (one, other), empty=one != other and choices.flip())


def false_proof(scene: Scene, choices: Choices) -> messages.Proof:
    proof = true_proof(scene, choices)
    match choices.below(4):
        case 0:
            return replace(proof, at=step(scene, proof.feed, choices))
        case 1:
            return replace(proof, feed=choices.pick(feeds(scene)))
        case 2:
            return replace(proof, branches=(proof.branches[0], proof.branches[0]))
        case _:
            return replace(proof, branches=(proof.branches[0], messages.Branch((), bytes(64))))


# -- everything else -----------------------------------------------------------------------------------


def hello(scene: Scene, choices: Choices) -> messages.Hello:
    if choices.flip(4):
        return messages.Hello(
            choices.below(3), choices.take(32).ljust(32, b"\0"), choices.below(3), choices.below(600)
        )
    return messages.Hello(scene.run.version, scene.run.run_id, 0, choices.below(600))


def summary(scene: Scene, choices: Choices) -> messages.Summary:
    claims = [
        messages.Claim(feed, step(scene, feed, choices), tag(scene, feed, choices))
        for feed in some_feeds(scene, choices)
    ]
    digests = [bytes(32), *(machine.frontier.digest() for machine in scene.machines)]
    return messages.Summary(choices.flip(), choices.below(600), choices.pick(digests), tuple(claims))


def truth(scene: Scene, choices: Choices) -> messages.Summary:
    """Return the Summary that some host would send."""
    frontier = choices.pick(scene.machines).frontier
    return messages.Summary(choices.flip(), frontier.known, frontier.digest(), tuple(frontier.claims()))


def want(scene: Scene, choices: Choices) -> messages.Want:
    wanted = some_feeds(scene, choices)
    return messages.Want(tuple(messages.Position(feed, step(scene, feed, choices)) for feed in wanted))


def have(scene: Scene, choices: Choices) -> messages.Have:
    ahead = {
        feed_key(scene.run.run_id, *feed): step(scene, feed, choices) for feed in some_feeds(scene, choices)
    }
    return messages.Have(tuple(messages.Ahead(key, ahead[key]) for key in sorted(ahead)))


def crowd(scene: Scene, choices: Choices) -> messages.Summary:
    """Return claims of many feeds that do not exist."""
    first, count = choices.below(200), 1 + choices.below(90)
    invented = [messages.Feed(bytes(31) + bytes([9]), 1 + number) for number in range(first, first + count)]
    return messages.Summary(
        choices.flip(), 0, bytes(32), tuple(messages.Claim(feed, 3, NO_TAG) for feed in invented)
    )


def prune(scene: Scene, choices: Choices) -> messages.Prune:
    return messages.Prune(
        tuple(sorted({feed_key(scene.run.run_id, *feed) for feed in some_feeds(scene, choices)}))
    )


def card(scene: Scene, choices: Choices) -> messages.Card:
    """Return a card with one of many names, perhaps another's."""
    saga, _ = saga_of(scene, choices)
    shown = saga.card(step(scene, saga.feed, choices), choices.pick(("", "a", "b")))
    return replace(shown, feed=choices.pick(feeds(scene))) if choices.flip(4) else shown


def out_of_place(scene: Scene, choices: Choices) -> messages.Message:
    known: tuple[messages.Message, ...] = (
        messages.Goodbye("so long"),
        *(messages.ManifestRequest(), messages.ManifestReply(b"\x80")),
        *(messages.PartRequest(bytes(32), 0, 0, 1), messages.PartReply(1, b"a"), messages.Floor(1)),
    )
    return choices.pick(known)


Writer = Callable[[Scene, Choices], messages.Message]

TALES: Sequence[Writer] = (true_segment, story, false_segment, true_segment, summary)
"""Writers of messages that fill feeds. A host without updates has nothing to lose."""

FORKS: Sequence[Writer] = 4 * (true_segment, story, true_proof, invented_proof, invented_proof) + (
    false_proof,
)
"""Writers of messages that contradict each other."""

REST: Sequence[Writer] = (
    *2 * (true_segment, summary, truth, want, have, prune),
    *(crowd, hello, card, out_of_place),
)

MIXTURES = (TALES, TALES, FORKS, REST)


def written(scene: S, choices: Choices, writers: Sequence[Callable[[S, Choices], messages.Message]]) -> bytes:
    """Return one message, or bytes that are none."""
    kind = choices.below(16 * len(writers) + 4)
    if kind == 16 * len(writers):
        return choices.take(choices.below(64))
    if kind > 16 * len(writers):
        return replayed(scene, choices)
    return wire_codec.encode(writers[kind % len(writers)](scene, choices), *scene.run.form)


def replayed(scene: Scene, choices: Choices) -> bytes:
    """Return what an honest host has sent to another, perhaps with a byte changed."""
    frame = bytearray(choices.pick(scene.recorded) if scene.recorded else b"\x91\x04")
    if choices.flip(4):
        frame[choices.below(len(frame))] ^= 1 + choices.below(255)
    return bytes(frame)


def greeting(scene: Scene, choices: Choices) -> list[bytes]:
    """Return Hello and Summary, which have to come first; once in sixteen times nothing."""
    if choices.flip(16):
        return []
    names = sorted({*(saga.feed for saga in scene.sagas), *INVENTED[: choices.below(3)]})
    scene.named.update(names)
    claims = tuple(messages.Claim(feed, 0, NO_TAG) for feed in names)
    said = (
        messages.Hello(scene.run.version, scene.run.run_id, 0, 0),
        messages.Summary(choices.flip(4), 0, bytes(32), claims),
    )
    return [wire_codec.encode(message) for message in said]
