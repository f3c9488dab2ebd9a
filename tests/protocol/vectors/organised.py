"""The vectors of organised runs: encodings of decisions, a control feed, and the state that follows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sfprotocol import control_feed, decisions, messages, signing, validation, wire_codec
from sfprotocol.checkpoints import Base, feeds_digest
from sfprotocol.control_feed import ControlFeed
from sfprotocol.decisions import (
    Admit,
    Amend,
    Announce,
    Ballot,
    Bases,
    Budget,
    Checkpoint,
    Close,
    Decision,
    Elected,
    Evaluated,
    Extension,
    Finish,
    Invite,
    Move,
    Oversized,
    Part,
    RateFrom,
    Recount,
    Revoke,
    RevokeInvitation,
    Seal,
    StandIn,
    StandIns,
    Validators,
    Void,
    Worth,
)
from sfprotocol.run_state import RunState, multiplier, named_digest
from tests.protocol.vectors.plain import origin as _public
from tests.protocol.vectors.plain import packed, plain

RUN_ID = bytes(range(32))
ORGANISER, SUCCESSOR, *DEPUTIES = (bytes([number]) * 32 for number in range(11, 16))
MEMBERS = (b"\x01" * 32, b"\x02" * 32)
DIGEST, SALT = bytes(range(64, 96)), bytes(range(8))

EXAMPLES: dict[str, tuple[Decision, tuple[Extension, ...]]] = {
    "close": (Close(1, SALT, (Move(0, 300, bytes(8)), Move(65, 2, b"\xff" * 8, 1))), ()),
    "close of an epoch in which nothing moved": (Close(2**32 - 2, SALT, ()), ()),
    "seal": (Seal(0, (64,), (), DIGEST, 4096, ()), ()),
    "seal that recounts and sets rates": (
        Seal(7, (), (Recount(64, 0), Recount(64, 3)), DIGEST, 0, (RateFrom(9, 2**32 - 1), RateFrom(12, 0))),
        (),
    ),
    "amend": (Amend(2**31 - 1, 1), ()),
    "admit": (Admit(DIGEST, 1000, 1), ()),
    "admit a stranger": (Admit(DIGEST, 0, 0), ()),
    "invite": (Invite(DIGEST, 2**32 - 1), ()),
    "revoke": (Revoke(1, 5), ()),
    "revoke an invitation": (RevokeInvitation(0, 2**32 - 1), ()),
    "void of all": (Void(0, 3, ()), ()),
    "void of two members": (Void(3, 3, (0, 2**31 - 1)), ()),
    "budget": (Budget(100_000), ()),
    "finish": (Finish(), ()),
    "finish with an extension that can be ignored": (Finish(), (Extension(3, b"more"),)),
    "finish with one that cannot": (Finish(), (Extension(3, b""), Extension(4, b""))),
    "bases": (Bases(2**32 - 1, DIGEST), ()),
    "stand-ins": (StandIns((StandIn(0, DIGEST), StandIn(7, SUCCESSOR)), 1), ()),
    "no stand-ins": (StandIns(()), ()),
    "elected": (Elected(SUCCESSOR, (Ballot(0, SALT * 8), Ballot(2, SALT * 8))), ()),
    "announcement": (Announce("The run ends on Friday. Zürich 東"), ()),
    "evaluation": (Evaluated(3, "accuracy", 912_844, 893_000, 931_000, -1, 872), ()),
    "checkpoint": (Checkpoint(3, DIGEST, DIGEST[::-1]), ()),
    "validators": (Validators((3, 7, 2**31 - 1)), ()),
    "no validators": (Validators(()), ()),
    "oversized": (Oversized(3, (0, 65)), ()),
    "worth": (Worth(3, 64, (Part(0, 300, 41_250_000, 5_250), Part(65, 1, -(2**63), -1_000))), ()),
}


def vectors() -> dict[str, Any]:
    return {
        "decisions": [_example(name, *example) for name, example in EXAMPLES.items()],
        "unknown": [
            {"encoding": packed(kind, "base", []).hex(), "kind": kind, "unsupported": kind % 2 == 0}
            for kind in (26, 27)
        ],
        "invalid": [{"name": name, "encoding": data.hex()} for name, data in _bad_encodings()],
        "control": _control(),
        "election": _election(),
        "counting": _run_state(),
        "quotas": _quotas(),
    }


def _example(name: str, decision: Decision, extensions: tuple[Extension, ...]) -> dict[str, Any]:
    encoding = decisions.encode(decision, extensions)
    return {
        "name": name,
        "decision": plain(decision),
        "extensions": plain(extensions),
        "encoding": encoding.hex(),
        "unsupported": decisions.decode(encoding).unsupported,
    }


def _bad_encodings() -> list[tuple[str, bytes]]:
    finish = decisions.encode(Finish())
    return [
        ("nothing", b""),
        ("something after it", finish + b"\x00"),
        ("cut off", finish[:-1]),
        ("kind in two bytes", b"\x92\xcc\x12\x90"),
        ("kind below 0", packed(-2, [])),
        ("no extensions", packed(18)),
        ("a field more", packed(18, 0, [])),
        ("a map", b"\x92\x14\x81\x01\x01"),
        ("arrays that announce more than there is", b"\xdc\x40\x00" * 5),
        ("budget of 33 bits", packed(16, 2**32, [])),
        ("budget that is true", packed(16, True, [])),
        ("moves not in order", packed(0, 1, SALT, [[64, 1, bytes(8)], [0, 1, bytes(8)]], [])),
        ("a feed moved twice", packed(0, 1, SALT, [[64, 1, bytes(8)]] * 2, [])),
        ("a tag of 4 bytes", packed(0, 1, SALT, [[64, 1, bytes(4)]], [])),
        ("zeros that there are not", packed(0, 1, SALT, [[0, 1, bytes(8), 2]], [])),
        ("no zeros, and said", packed(0, 1, SALT, [[0, 1, bytes(8), 0]], [])),
        ("rate of an epoch of 33 bits", packed(2, 0, [], [], DIGEST, 4096, [[2**32, 1]], [])),
        ("worth of a feed said twice", packed(7, 0, 64, [[64, 1, 1, 1]] * 2, [])),
        ("worth that is a fraction", packed(7, 0, 64, [[64, 1, 0.5, 1]], [])),
        ("text that a terminal obeys", packed(1, "\x1b[2J", [])),
        ("extensions not in order", packed(18, [[3, b""], [1, b""]])),
    ]


# -- the control feed --------------------------------------------------------------------------------


def _key(secret: bytes) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(secret)


def _control() -> dict[str, Any]:
    """Return three decisions, a second third one (a fork), a succession that keeps two decisions, and a
    decision after it."""
    authority = messages.Authority(RUN_ID, _public(ORGANISER), tuple(map(_public, DEPUTIES)), votes=2)
    feed = ControlFeed(authority)
    said = [Admit(_public(MEMBERS[0]), 10, 0), Close(0, SALT, ()), Seal(0, (), (), DIGEST, 4096, ())]
    for decision in said[:2]:
        feed.add(feed.stop, [feed.sign(decisions.encode(decision), _key(ORGANISER).sign)])
    other = feed.sign(decisions.encode(Finish()), _key(ORGANISER).sign)
    feed.add(2, [feed.sign(decisions.encode(said[2]), _key(ORGANISER).sign)])
    entries, chains = list(feed.entries), list(feed.chains)
    fork = feed.add(2, [other])
    assert isinstance(fork, messages.ControlFork)
    feed.freeze(fork)
    succession = _succession(chains[2])
    feed.succeed(succession)
    entry = feed.sign(decisions.encode(Announce("I go on.")), _key(SUCCESSOR).sign)
    feed.add(2, [entry])
    return {
        "run_id": RUN_ID.hex(),
        "organiser": _public(ORGANISER).hex(),
        "deputies": [deputy.hex() for deputy in authority.deputies],
        "votes": authority.votes,
        "genesis": chains[0].hex(),
        "entries": [_entry(entry, chain) for entry, chain in zip(entries, chains[1:], strict=True)],
        "other": _entry(other, fork.chains[1]),
        "fork": plain(fork),
        "succession": {
            **plain(succession),
            "votes": [[place, vote.hex()] for place, vote in succession.votes],
        },
        "signed_by_deputies": control_feed.succession_message(RUN_ID, succession).hex(),
        "entry_of_term_1": _entry(entry, feed.chain),
    }


def _succession(chain: bytes) -> messages.Succession:
    unsigned = messages.Succession(1, 2, chain, _public(SUCCESSOR), ())
    message = control_feed.succession_message(RUN_ID, unsigned)
    votes = tuple(messages.Vote(place, _key(DEPUTIES[place]).sign(message)) for place in (0, 2))
    return replace(unsigned, votes=votes)


def _entry(entry: messages.Entry, chain: bytes) -> dict[str, Any]:
    return {
        "term": entry.term,
        "record": entry.record.hex(),
        "chain": chain.hex(),
        "signature": entry.signature.hex(),
    }


def _election() -> dict[str, Any]:
    """Return a control feed with three stand-ins, an election and a decision after it; and a statement of
    the elected stand-in."""
    authority = messages.Authority(
        RUN_ID, _public(ORGANISER), tuple(map(_public, DEPUTIES)), 2, messages.ELECTED_TERMS
    )
    feed, secrets = ControlFeed(authority), (ORGANISER, SUCCESSOR, MEMBERS[0])
    named = StandIns(tuple(StandIn(place, _public(secret)) for place, secret in enumerate(secrets)))
    feed.add(0, [feed.sign(decisions.encode(named), _key(ORGANISER).sign)])
    message = control_feed.election_message(RUN_ID, 1, feed.stop, feed.chain, _public(SUCCESSOR))
    ballots = tuple(Ballot(place, _key(secrets[place]).sign(message)) for place in (1, 2))
    feed.add(1, [feed.elect(1, Elected(_public(SUCCESSOR), ballots), _key(SUCCESSOR).sign)])
    feed.add(2, [feed.sign(decisions.encode(Announce("I go on.")), _key(SUCCESSOR).sign)])
    said = messages.Statement(
        _public(SUCCESSOR), 7, 1, 1, _public(SUCCESSOR), ballots[0].signature, 1, 3, 1, feed.chain, 7, False,
        tuple(feed.entries[1:]), b"",
    )  # fmt: skip
    signed = control_feed.statement_message(RUN_ID, said)
    said = replace(said, signature=_key(SUCCESSOR).sign(signed))
    other = replace(said, number=8, candidate=_public(ORGANISER))
    other = replace(other, signature=_key(SUCCESSOR).sign(control_feed.statement_message(RUN_ID, other)))
    proof = control_feed.double_vote(said, other)
    assert proof is not None
    return {
        "run_id": RUN_ID.hex(),
        "organiser": authority.organiser.hex(),
        "terms": authority.terms,
        "entries": [_entry(*one) for one in zip(feed.entries, feed.chains[1:], strict=True)],
        "elected_by": message.hex(),
        "statement": wire_codec.encode(said).hex(),
        "stated": signed.hex(),
        "double_vote": wire_codec.encode(proof).hex(),
    }


# -- what counts -------------------------------------------------------------------------------------

LABELS = (0, 0, 0, 1, 1, 2, 2)
"""Epoch labels of the updates of either member; the scalars are 1, 2, 3, ..."""


def _head(member: int, stop: int) -> bytes:
    chain = signing.genesis(RUN_ID, messages.Feed(_public(MEMBERS[member]), member))
    return signing.extend(chain, (messages.EpochScalars(LABELS[step], (step + 1,)) for step in range(stop)))


def _move(member: int, first: int, stop: int) -> Move:
    return Move(65 * member, stop - first, validation.tag(SALT, _head(member, stop)))


def _digest(member_stops: tuple[int, int]) -> bytes:
    named = ((65 * member, stop, _head(member, stop)) for member, stop in enumerate(member_stops) if stop)
    return named_digest(RUN_ID, named)


def _bases(stops: dict[int, int]) -> list[tuple[int, Base]]:
    return [(number, _base(number // 65, stop)) for number, stop in stops.items()]


def _base(member: int, stop: int) -> Base:
    label = LABELS[stop - 1]
    labelled = LABELS[:stop].count(label)
    return Base(messages.Feed(_public(MEMBERS[member]), member), stop, _head(member, stop), label, labelled)


def _checkpoint(epoch: int, stops: dict[int, int]) -> Checkpoint:
    return Checkpoint(epoch, feeds_digest(RUN_ID, _bases(stops)), DIGEST)


def _story() -> list[Decision]:
    first, second = map(_public, MEMBERS)
    return [
        Invite(DIGEST, 1),
        Admit(first, 10, 0),
        Admit(second, 10, 1),
        Bases(0, DIGEST[::-1]),  # of an open epoch: changes nothing
        Close(0, SALT, (_move(0, 0, 3), _move(1, 0, 2))),
        Bases(1, DIGEST[::-1]),
        Bases(2, bytes(32)),
        Seal(1, (), (), DIGEST, 4096, ()),  # not in turn: changes nothing
        Seal(0, (65,), (), _digest((3, 2)), 2048, (RateFrom(2, 1 << 30),)),
        _checkpoint(0, {0: 3, 65: 2}),
        _checkpoint(1, {0: 3, 65: 2}),  # of an epoch that is not sealed: changes nothing
        Close(1, SALT, (_move(0, 3, 5), _move(1, 2, 4))),
        Bases(1, bytes(32)),  # its first epoch is open: changes nothing
        Bases(2, DIGEST),
        Close(2, SALT, (_move(0, 5, 7),)),
        Seal(1, (), (Recount(65, 0),), _digest((5, 4)), 1024, ()),  # the checkpoint is not usable any more
        _checkpoint(0, {0: 3, 65: 2}),
        _checkpoint(1, {0: 5, 65: 4}),
        Revoke(1, 2),
        Amend(0, 2),  # both checkpoints stay usable
        Seal(2, (), (), _digest((5, 4)), 4096, ()),
        _checkpoint(2, {0: 5, 65: 4}),
        Void(1, 1, (0,)),  # the checkpoint of epoch 0 stays usable
        Void(0, 0, (0,)),
        Budget(6),
        Announce("That was enough."),
        Finish(),
        Close(3, SALT, ()),  # of a finished run: changes nothing
    ]


def _shared() -> list[Decision]:
    """Return decisions after which a vouched member and strangers have quotas."""
    admitted = [Admit(bytes([number]) * 32, 0, 0) for number in range(2, 6)]
    tag = bytes(8)
    return [
        Admit(bytes([1]) * 32, 40, 0),
        admitted[0],
        admitted[1],
        Close(0, SALT, (Move(0, 200, tag), Move(64, 20, tag), Move(128, 9, tag, 9))),
        Seal(0, (), (), DIGEST, 4096, ()),  # the second stranger has made zeros
        admitted[2],
        Close(1, SALT, (Move(0, 100, tag), Move(69, 1, tag), Move(192, 1, tag))),  # another feed of the first
        Seal(1, (), (), DIGEST, 4096, ()),
        Close(2, SALT, (Move(0, 100, tag), Move(69, 30, tag, 10))),
        Seal(2, (69,), (), DIGEST, 4096, ()),  # it is skipped
        admitted[3],
        Admit(bytes([4]) * 32, 7, 0),  # somebody vouches for the third
        Close(3, SALT, (Move(0, 100, tag),)),
        Seal(3, (), (Recount(69, 2),), DIGEST, 4096, ()),
        Close(4, SALT, (Move(69, 1, tag),)),
        Revoke(2, 0),
        Close(5, SALT, ()),
    ]


def _quotas() -> dict[str, Any]:
    """Return the quotas with each label after each of these decisions, and the feed that each member uses
    (O20)."""
    run = RunState(budget=10_000, rate=1 << 32, epoch_updates=250)
    steps = []
    for decision in _shared():
        run.apply(decisions.read(decisions.encode(decision)))
        members = range(len(run.members))
        steps.append(
            {
                "record": decisions.encode(decision).hex(),
                "room": run.room,
                "counted": run.counted,
                "quotas": [
                    [run.quotas.quota(m, label) for label in range(run.open_epoch + 1)] for m in members
                ],
                "incarnations": [run.quotas.incarnation(m, run.open_epoch) for m in members],
                "credits": [run.credit(m) for m in members],
                "live": [
                    [f, [list(one) for one in run.live(f, 300)]]
                    for f in (0, 64, 69, 128, 192)
                    if f // 64 in members
                ],
            }
        )
    return {"budget": 10_000, "rate": 1 << 32, "epoch_updates": 250, "steps": steps}


def _run_state() -> dict[str, Any]:
    run = RunState(budget=100, rate=3 << 30, bases=DIGEST, subspace_epochs=2)
    return {
        "run_id": RUN_ID.hex(),
        "budget": 100,
        "rate": 3 << 30,
        "bases": DIGEST.hex(),
        "subspace_epochs": 2,
        "feeds": [
            {"number": 65 * m, **plain(messages.Feed(_public(MEMBERS[m]), m)), "labels": LABELS}
            for m in (0, 1)
        ],
        "steps": [_step(run, decision) for decision in _story()],
        "landmarks": [
            {
                "feed": feed,
                "stop": stop,
                "salt": salt.hex(),
                "tag": tag.hex(),
                "chain": _head(feed // 65, stop).hex(),
            }
            for feed in (0, 65)
            for stop, salt, tag in run.named_stops(feed)
        ],
        "named_digests": [
            _digest((run.positions(e).get(0, 0), run.positions(e).get(65, 0))).hex() for e in range(3)
        ],
        "feeds_digests": [feeds_digest(RUN_ID, _bases(run.positions(e))).hex() for e in range(3)],
        "weights": [
            {"rate": rate, "factor": factor, "weight": multiplier(rate, factor)}
            for rate, factor in ((3 << 30, 2048), (1, 4095), (2**32 - 1, 2**16 - 1), (1 << 30, 4096))
        ],
    }


def _step(run: RunState, decision: Decision) -> dict[str, Any]:
    record = decisions.encode(decision)
    changed = run.apply(decisions.read(record))
    return {
        "record": record.hex(),
        "changed": sorted(changed),
        "open_epoch": run.open_epoch,
        "sealed": run.sealed,
        "counted": run.counted,
        "complete": run.complete,
        "rates": [run.rate(epoch) for epoch in range(4)],
        "members": [
            [member.origin.hex(), run.quotas.own(number), member.revoked]
            for number, member in enumerate(run.members)
        ],
        "named": [run.named(feed) for feed in (0, 65)],
        "ended": [run.ended(feed) for feed in (0, 65)],
        "runs": [[list(one) for one in run.spans(feed, 7)] for feed in (0, 65)],
        "checkpoints": [one.epoch for one in run.checkpoints],
        "bases": [[one.subspace, one.digest.hex()] for one in run.bases],
    }
