"""The history of an organised run in words: its decisions in order, and what became of each epoch.

A function of the control feed, and of the names that origins give themselves. What the log has is for others
to know.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from sfnode.organising.evaluation import health
from sfnode.printable import called
from sfnode.schema.history import EpochEntry, HistoryEntry, OriginPart
from sfnode.schema.metrics import measured, metric_of, model_in_words
from sfnode.schema.organising import EpochEvaluation
from sfprotocol.counting import Counting
from sfprotocol.decisions import (
    FACTOR_ONE,
    INCARNATIONS,
    RATE_ONE,
    Admit,
    Amend,
    Announce,
    Bases,
    Budget,
    Checkpoint,
    Close,
    Decision,
    Evaluated,
    Finish,
    Invite,
    Oversized,
    Revoke,
    RevokeInvitation,
    Seal,
    Unknown,
    Validators,
    Void,
    Worth,
    read,
)
from sfprotocol.messages import Entry, RunParameters, Succession
from sfprotocol.names import NAMELESS, Names
from sfprotocol.worths import WORTH_ONE

DIGITS = 16
"""Hex digits of keys and digests in words: enough for `sfnode organise` to know them by."""


Called = Mapping[bytes, Names]
"""Names of origins."""


def chronicle(
    run: RunParameters,
    entries: Sequence[Entry],
    successions: Iterable[Succession] = (),
    names: Called = MappingProxyType({}),
) -> list[HistoryEntry]:
    """Return what was decided, in order: an epoch's close and evaluations stand with its seal."""
    latest = Counting.of(run)
    said = [read(entry.record) for entry in entries]
    for recorded in said:
        latest.apply(recorded)
    decided = [recorded.decision for recorded in said]
    evaluations = {one.epoch: one for one in health.evaluations(decided) if not one.base}
    keys = {succession.term: succession.key for succession in successions}
    counting, found, term = Counting.of(run), list[HistoryEntry](), 0
    for position, (entry, recorded) in enumerate(zip(entries, said, strict=True)):
        if entry.term != term:
            term = entry.term
            found.append(_entry(position, term, "succession", _succeeded(keys.get(term))))
        sealed, closed, decision = counting.sealed, counting.open_epoch, recorded.decision
        counting.apply(recorded)
        match decision:
            case Close(epoch=epoch) if counting.open_epoch == closed or epoch < latest.sealed:
                continue
            case Seal() if counting.sealed == sealed:
                continue
            case Evaluated() if not health.evaluation(decision).base:  # told with its seal
                continue
            case Seal(epoch=epoch, recounted=recounted):
                one = _epoch(latest, decision, evaluations.get(epoch), names)
                text = f"{one.counted} of {one.named} updates of epoch {epoch} count"
                again = sum(latest.counts(*recount) for recount in recounted)
                text += f", and {again} of others that had been skipped" if again else ""
                found.append(_entry(position, term, "seal", text, one))
            case _:
                kind = type(decision).__name__.lower()
                found.append(_entry(position, term, kind, in_words(decision, counting, names)))
    return found


def parts(counts: Mapping[bytes, int], names: Called) -> list[OriginPart]:
    """Return the origins with numbers other than 0, the largest first."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [
        OriginPart(origin=origin.hex(), name=name_of(origin, names), updates=updates)
        for origin, updates in ordered
        if updates
    ]


def name_of(origin: bytes, names: Called) -> str | None:
    """Return the name that an origin gives itself, if it gives one."""
    return names.get(origin, NAMELESS).name or None


def _entry(position: int, term: int, kind: str, text: str, epoch: EpochEntry | None = None) -> HistoryEntry:
    return HistoryEntry(position=position, term=term, kind=kind, text=text, epoch=epoch)


def _succeeded(key: bytes | None) -> str:
    return "another key organises from here on" + (f": {key.hex()[:DIGITS]}" if key else "")


def _epoch(latest: Counting, seal: Seal, evaluation: EpochEvaluation | None, names: Called) -> EpochEntry:
    counts: Counter[bytes] = Counter()
    for number in latest.moved(seal.epoch):
        counts[latest.feed(number).origin] += latest.counts(number, seal.epoch)
    return EpochEntry(
        epoch=seal.epoch,
        named=latest.closed_updates(seal.epoch),
        counted=counts.total(),
        factor=seal.factor / FACTOR_ONE,
        rate=latest.rate(seal.epoch) / RATE_ONE,
        digest=seal.digest.hex(),
        evaluation=evaluation,
        origins=parts(counts, names),
    )


def in_words(decision: Decision, counting: Counting, names: Called) -> str:
    """Return what a decision says; `counting` is the state after it."""
    match decision:
        case Close(epoch=epoch, moves=moves):
            updates = sum(move.steps for move in moves)
            return f"closes epoch {epoch}, of {updates} updates; it is not sealed yet"
        case Budget(updates=updates):
            return f"changes the budget to {updates} updates"
        case Finish():
            return "ends the run"
        case Bases(subspace=subspace, digest=digest):
            return f"takes the bases {digest.hex()[:DIGITS]} from subspace {subspace} on"
        case Announce(text=text):
            return f"announces: {text}"
        case Evaluated():
            result = health.evaluation(decision)
            trained = metric_of(result.metric).trained
            loss = f"{trained.name} {trained.of(result.loss):.4f}"
            return f"tells of {model_in_words(result)}: {measured(result)}, {loss}"
        case Checkpoint(epoch=epoch, cores=cores):
            return f"states the checkpoint of epoch {epoch}, core digest {cores.hex()[:DIGITS]}"
        case Worth(epoch=epoch, rows=rows, parts=parts):
            worth = sum(part.worth for part in parts) / WORTH_ONE
            return f"tells what {len(parts)} feeds brought in epoch {epoch}: {worth:+.6f} nats on {rows} rows"
        case Oversized(epoch=epoch, feeds=feeds):
            return f"tells that {len(feeds)} feeds have too large scalars in epoch {epoch} to count at once"
        case Unknown(kind=kind):
            return f"a decision of kind {kind}, which this version of sfnode does not know"
        case _:
            return _about_members(decision, counting, names)


def _about_members(decision: Decision, counting: Counting, names: Called) -> str:
    def member(number: int) -> str:
        if number >= len(counting.members):
            return f"member {number} (nobody)"
        origin = counting.members[number].origin
        told = filter(None, (origin.hex()[:DIGITS], name_of(origin, names)))
        return f"member {number} ({', '.join(told)})"

    match decision:
        case Admit(origin=origin, quota=quota, invitation=invitation):
            came = f", by invitation {invitation}" if invitation else ""
            whom = f"with a quota of {quota} updates" if quota else "as a stranger"
            return f"admits {called(origin.hex()[:DIGITS], name_of(origin, names))} {whom}{came}"
        case Invite(uses=uses):
            return f"publishes invitation {len(counting.invitations)}, for {uses}"
        case Revoke(member=number, epoch=epoch):
            return f"revokes {member(number)} from epoch {epoch} on"
        case RevokeInvitation(invitation=number, epoch=epoch):
            return f"revokes invitation {number + 1}, and who came by it, from epoch {epoch} on"
        case Void(first=first, last=last, members=members):
            epochs = f"epoch {first}" if first == last else f"epochs {first} to {last}"
            whose = ", ".join(map(member, members))
            return f"takes back {epochs}{f' of {whose}' if members else ''}"
        case Validators(members=members):
            whom = ", ".join(map(member, members))
            return f"has epochs measured by {whom}" if members else "has no validators any more"
        case Amend(feed=feed, epoch=epoch):
            whose = member(feed // INCARNATIONS)
            return f"ends a feed of {whose} before what epoch {epoch} has of it, which is lost"
    return str(decision)
