"""The hostile peer's messages: of every kind, true, false or out of place, and bytes that are no message.

Nothing here knows how a machine works, only what can be encoded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from sfprotocol import PROTOCOL_VERSION, wire_codec
from sfprotocol.frontier import UNCUT
from sfprotocol.messages import (
    Ahead,
    Branch,
    Card,
    Claim,
    Feed,
    Floor,
    Goodbye,
    Have,
    Hello,
    ManifestReply,
    ManifestRequest,
    Message,
    PartReply,
    PartRequest,
    Position,
    Proof,
    Prune,
    Segment,
    Summary,
    Want,
)
from sfprotocol.plumtree import NO_TAG
from sfprotocol.seeds import feed_key
from tests.fuzz.arena import Arena, End
from tests.fuzz.choices import Choices
from tests.fuzz.stories import HISTORY, RUN, SAGAS, Saga, origin_of

INVENTED = (*(Feed(bytes([n]) * 32, n) for n in range(3)), Feed(origin_of("nobody"), 5))
"""Names of feeds that do not exist; the first two have keys under which anybody could sign."""

STRANGE_CHAINS = (bytes(32), bytes([7]) * 32)


def feeds(arena: Arena) -> list[Feed]:
    """Return all feeds that can be named: hostile ones, those of the hosts, and invented ones."""
    own = [feed for feed in sorted(arena.stories.named) if feed not in {saga.feed for saga in SAGAS}]
    return [*(saga.feed for saga in SAGAS), *own[-12:], *INVENTED]


def some_feeds(arena: Arena, choices: Choices) -> list[Feed]:
    chosen = sorted(set(choices.some(feeds(arena))))
    arena.stories.named.update(chosen)
    return chosen


def step(arena: Arena, feed: Feed, choices: Choices) -> int:
    """Return a step near the end or the cut of a host's feed, or anywhere."""
    if choices.flip(8):
        return choices.below(RUN.update_budget + 2)
    states = [host.machine.frontier.state(feed) for host in arena.hosts]
    cuts = [state.cut for state in states if state.cut != UNCUT]
    end = choices.pick(cuts if cuts and choices.flip() else [state.next for state in states])
    return max(0, end + choices.pick(NEARBY))


NEARBY = (0, 1, -1, 2, 5, -3, 0, 12)


def tag(arena: Arena, feed: Feed, choices: Choices) -> bytes:
    state = choices.pick(arena.hosts).machine.frontier.state(feed)
    return choices.pick((state.claim().tag, NO_TAG, b"fals"))


# -- segments ------------------------------------------------------------------------------------------


def saga_of(arena: Arena, choices: Choices) -> tuple[Saga, int]:
    """Return the saga that several messages in a row are mostly about, and one of its histories."""
    saga = choices.pick(SAGAS) if choices.flip(4) else SAGAS[arena.focus % len(SAGAS)]
    return saga, choices.below(len(saga.histories))


def true_segment(arena: Arena, choices: Choices) -> Segment:
    saga, branch = saga_of(arena, choices)
    first = min(step(arena, saga.feed, choices), HISTORY - 1)
    stop = min(first + 1 + choices.below(12), HISTORY)
    return saga.segment(branch, first, stop, choices.below(20))


def story(arena: Arena, choices: Choices) -> Segment:
    """Return a history from its beginning."""
    saga, branch = saga_of(arena, choices)
    return saga.segment(branch, 0, 1 + choices.below(HISTORY), choices.below(3))


def false_segment(arena: Arena, choices: Choices) -> Segment:
    segment = true_segment(arena, choices)
    match choices.below(4):
        case 0:
            return replace(segment, signature=choices.take(64).ljust(64, b"\1"))
        case 1:
            return replace(segment, first=step(arena, SAGAS[0].feed, choices))
        case 2:
            return replace(segment, feed_key=feed_key(RUN.run_id, *choices.pick(feeds(arena))))
        case _:
            part = segment.parts[0]
            longer = replace_first(part.scalars, choices.below(3000) - 1500)
            return replace(segment, parts=(part._replace(scalars=longer), *segment.parts[1:]))


def replace_first(scalars: tuple[int, ...], scalar: int) -> tuple[int, ...]:
    return (scalar, *scalars[1:])


# -- proofs --------------------------------------------------------------------------------------------


def true_proof(arena: Arena, choices: Choices) -> Proof:
    saga, branch = saga_of(arena, choices)
    if not branch:
        return invented_proof(arena, choices)
    return saga.fork(branch, 1 + choices.below(4))


def invented_proof(arena: Arena, choices: Choices) -> Proof:
    """Return a valid proof of histories that nobody has; its step may be one that hosts have reached."""
    saga, _ = saga_of(arena, choices)
    at = min(step(arena, saga.feed, choices), HISTORY)
    heads = [saga.chain(branch, at) for branch in range(len(saga.histories))]
    one = choices.pick((*heads, *STRANGE_CHAINS))
    other = choices.pick((*heads, *STRANGE_CHAINS)) if choices.flip(8) else one
    return saga.invented(at, (one, other), empty=one != other and choices.flip())


def false_proof(arena: Arena, choices: Choices) -> Proof:
    proof = true_proof(arena, choices)
    match choices.below(4):
        case 0:
            return replace(proof, at=step(arena, proof.feed, choices))
        case 1:
            return replace(proof, feed=choices.pick(feeds(arena)))
        case 2:
            return replace(proof, branches=(proof.branches[0], proof.branches[0]))
        case _:
            return replace(proof, branches=(proof.branches[0], Branch((), bytes(64))))


# -- everything else -----------------------------------------------------------------------------------


def hello(arena: Arena, choices: Choices) -> Hello:
    if choices.flip(4):
        return Hello(
            choices.below(3), choices.take(32).ljust(32, b"\0"), choices.below(3), choices.below(600)
        )
    return Hello(PROTOCOL_VERSION, RUN.run_id, 0, choices.below(600))


def summary(arena: Arena, choices: Choices) -> Summary:
    claims = [
        Claim(feed, step(arena, feed, choices), tag(arena, feed, choices))
        for feed in some_feeds(arena, choices)
    ]
    digests = [bytes(32), *(host.machine.frontier.digest() for host in arena.hosts)]
    return Summary(choices.flip(), choices.below(600), choices.pick(digests), tuple(claims))


def truth(arena: Arena, choices: Choices) -> Summary:
    """Return the Summary that some host would send."""
    frontier = choices.pick(arena.hosts).machine.frontier
    return Summary(choices.flip(), frontier.known, frontier.digest(), tuple(frontier.claims()))


def want(arena: Arena, choices: Choices) -> Want:
    wanted = some_feeds(arena, choices)
    return Want(tuple(Position(feed, step(arena, feed, choices)) for feed in wanted))


def have(arena: Arena, choices: Choices) -> Have:
    ahead = {feed_key(RUN.run_id, *feed): step(arena, feed, choices) for feed in some_feeds(arena, choices)}
    return Have(tuple(Ahead(key, ahead[key]) for key in sorted(ahead)))


def crowd(arena: Arena, choices: Choices) -> Summary:
    """Return claims of many feeds that do not exist."""
    first, count = choices.below(200), 1 + choices.below(90)
    invented = [Feed(bytes(31) + bytes([9]), 1 + number) for number in range(first, first + count)]
    return Summary(choices.flip(), 0, bytes(32), tuple(Claim(feed, 3, NO_TAG) for feed in invented))


def prune(arena: Arena, choices: Choices) -> Prune:
    return Prune(tuple(sorted({feed_key(RUN.run_id, *feed) for feed in some_feeds(arena, choices)})))


def card(arena: Arena, choices: Choices) -> Card:
    """Return a card with one of many names, perhaps another's."""
    saga, _ = saga_of(arena, choices)
    shown = saga.card(step(arena, saga.feed, choices), choices.pick(("", "a", "b")))
    return replace(shown, feed=choices.pick(feeds(arena))) if choices.flip(4) else shown


def out_of_place(arena: Arena, choices: Choices) -> Message:
    messages: tuple[Message, ...] = (
        Goodbye("so long"),
        *(ManifestRequest(), ManifestReply(b"\x80")),
        *(PartRequest(bytes(32), 0, 0, 1), PartReply(1, b"a"), Floor(1)),
    )
    return choices.pick(messages)


Writer = Callable[[Arena, Choices], Message]

TALES: Sequence[Writer] = (true_segment, story, false_segment, true_segment, summary)
"""Writers that fill feeds: a host without updates has nothing that could be lost."""

FORKS: Sequence[Writer] = 4 * (true_segment, story, true_proof, invented_proof, invented_proof) + (
    false_proof,
)
"""Writers that contradict each other."""

REST: Sequence[Writer] = (
    *2 * (true_segment, summary, truth, want, have, prune),
    *(crowd, hello, card, out_of_place),
)

MIXTURES = (TALES, TALES, FORKS, REST)


def written(arena: Arena, choices: Choices, writers: Sequence[Writer]) -> bytes:
    """Return one message, or bytes that are none."""
    kind = choices.below(16 * len(writers) + 4)
    if kind == 16 * len(writers):
        return choices.take(choices.below(64))
    if kind > 16 * len(writers):
        return replayed(arena, choices)
    return wire_codec.encode(writers[kind % len(writers)](arena, choices), RUN.scalar_bytes)


def replayed(arena: Arena, choices: Choices) -> bytes:
    """Return what an honest host has sent to another, perhaps with a byte changed."""
    frame = bytearray(choices.pick(arena.recorded) if arena.recorded else b"\x91\x04")
    if choices.flip(4):
        frame[choices.below(len(frame))] ^= 1 + choices.below(255)
    return bytes(frame)


def greet(arena: Arena, end: End, choices: Choices) -> None:
    """Send Hello and Summary, which a peer must before anything else; one in sixteen does not."""
    if choices.flip(16):
        return
    arena.inject(end, wire_codec.encode(Hello(PROTOCOL_VERSION, RUN.run_id, 0, 0)))
    names = sorted({*(saga.feed for saga in SAGAS), *INVENTED[: choices.below(3)]})
    arena.stories.named.update(names)
    claims = tuple(Claim(feed, 0, NO_TAG) for feed in names)
    arena.inject(end, wire_codec.encode(Summary(choices.flip(4), 0, bytes(32), claims)))
