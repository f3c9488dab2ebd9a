"""The facts of a run that its page shows, from the manifest and the signed log of a node's folder.

The page shows a member by its key, and by the display name and the team that the member signed, with the
number and worth of its updates. A hidden member is shown without key, name and team.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from sfnode.history.time_travel import Past
from sfnode.manifest import Manifest, public_name
from sfnode.node.startup import settled
from sfnode.organising.evaluation.health import HealthVerdict
from sfnode.organising.guard import Guard
from sfnode.publish.run_file import MAX_CURVE, MAX_WORDS, CurvePoint, PublishedSeal, RunQuality
from sfnode.schema.metrics import kind_in_words
from sfnode.stats import Contributions
from sfnode.store.checkout import last_seal
from sfnode.store.log import UpdateLog
from sfnode.store.replay import state_digest
from sfprotocol import decisions
from sfprotocol.decisions import Announce, Decision, Seal
from sfprotocol.fields import NAMELESS, Names, readable

ANNOUNCEMENTS = 8
"""Maximum number of announcements that are shown. Older ones are left out."""

FOREVER = float("inf")


class PageMember(NamedTuple):
    """A member, or in an open run an origin, as the page shows it."""

    key: str
    """Hex digits of the key; empty for a hidden member."""
    name: str
    team: str
    updates: int
    worth: int | None
    """Worth of the member's updates: the amount by which they lowered the loss on validation rows, in units
    of 10^-9 nats. None in a run in which no worth was measured."""


class PageTeam(NamedTuple):
    """A team: all members that name it, together."""

    team: str
    members: int
    updates: int
    worth: int | None


class PageOrganiser(NamedTuple):
    """The organiser of the run, who decides what counts."""

    who: PageMember | None
    """The organiser, as a member. If no stand-in has the organiser's key, only the key is given. None if the
    log does not show the key."""
    named_by: str
    """Source of the organiser's authority, in words: the manifest, deputies or stand-ins."""
    since: int
    """Number of epochs that were sealed before the organiser's first decision."""
    stand_ins: Sequence[PageMember]


Announcement = tuple[int, str]
"""An announcement of the organiser: the number of epochs that had been sealed at that time, and the text."""


class Facts(NamedTuple):
    """The facts of a run that follow from its log."""

    updates: int
    budget: int
    complete: bool
    members: list[PageMember]
    """Members, those with the greatest worth first. Members with equal worth are ordered by number of
    updates."""
    seal: PublishedSeal | None = None
    digest: str | None = None
    quality: RunQuality | None = None
    curve: tuple[CurvePoint, ...] = ()
    organiser: PageOrganiser | None = None
    announcements: Sequence[Announcement] = ()
    unmatched: Sequence[str] = ()
    """Beginnings of keys that should be hidden, but match no member's key."""


Digests = dict[int, PublishedSeal]
"""Digests of seals that were already computed, keyed by epoch. They can be reused, because the digests of a
seal never change."""


def gather(
    manifest: Manifest, update_log: UpdateLog, data_dir: Path, hidden: Collection[str], known: Digests
) -> Facts:
    """Return the facts of a run. `hidden` has the beginnings of keys of hidden members, in lower-case hex.
    Digests that are computed here are added to `known`. Raises UserError LOG_CORRUPT, CHECKPOINT_UNUSABLE."""
    found = _organised if manifest.organised.organiser else _open
    facts = found(manifest, update_log, data_dir, known)
    members = [_shown(member, hidden) for member in facts.members]
    unmatched = [key for key in hidden if not any(one.key.startswith(key) for one in facts.members)]
    if one := facts.organiser:
        stand_ins = [_shown(each, hidden) for each in one.stand_ins]
        facts = facts._replace(
            organiser=one._replace(who=one.who and _shown(one.who, hidden), stand_ins=stand_ins)
        )
    return facts._replace(members=members, unmatched=unmatched)


def _shown(member: PageMember, hidden: Iterable[str]) -> PageMember:
    if any(member.key.startswith(key) for key in hidden):
        return member._replace(key="", name="", team="")
    return member


def _open(manifest: Manifest, update_log: UpdateLog, _: Path, __: Digests) -> Facts:
    machine = settled(manifest.parameters(), update_log)
    contributions, names = Contributions(update_log), machine.cards.names()
    contributions.follow(FOREVER)
    known = machine.frontier.known
    return Facts(
        updates=known,
        budget=manifest.training.update_budget,
        complete=known >= manifest.training.update_budget,
        members=[_member(one.origin, names, one.updates, None) for one in contributions.ranked],
        digest=state_digest(manifest, machine.frontier).hex(),
    )


def _organised(manifest: Manifest, update_log: UpdateLog, data_dir: Path, known: Digests) -> Facts:
    past = Past(manifest, update_log, data_dir)
    said = [decisions.read(entry.record).decision for entry in past.entries]
    ranked = past.history.members()
    has_worths = any(one.measured for one in ranked)
    return Facts(
        updates=past.latest.counted,
        budget=past.latest.budget,
        complete=past.latest.complete,
        seal=_seal(past, known),
        quality=_quality(past.history.verdict()),
        curve=_curve(said),
        members=[
            _member(bytes.fromhex(one.origin), past.names, one.counted, one.worth if has_worths else None)
            for one in ranked
            if one.counted
        ],
        organiser=_organiser(past, said),
        announcements=_announcements(said)[-ANNOUNCEMENTS:],
    )


def _organiser(past: Past, said: Sequence[Decision]) -> PageOrganiser:
    """Return the current organiser and the stand-ins."""
    assert past.machine.organised is not None
    feed, members = past.machine.organised.control.feed, past.latest.members
    standing = {
        key: _member(members[number].origin, past.names, 0, None)
        for key, number in feed.standing.items()
        if number < len(members)
    }
    elected = feed.term % feed.authority.terms > 0
    return PageOrganiser(
        who=standing.get(feed.key, _member(feed.key, {}, 0, None)) if feed.key else None,
        named_by="its stand-ins" if elected else "its deputies" if feed.succession else "its manifest",
        since=max((one.epoch + 1 for one in said[: feed.begun] if isinstance(one, Seal)), default=0),
        stand_ins=list(standing.values()),
    )


def _member(origin: bytes, names: Mapping[bytes, Names], updates: int, worth: int | None) -> PageMember:
    return PageMember(origin.hex(), *names.get(origin, NAMELESS), updates, worth)


def _seal(past: Past, known: Digests) -> PublishedSeal | None:
    """Return the last seal whose updates are all in this node's log; None if there is no such seal. The
    result is added to `known`."""
    epoch = last_seal(past.run, past.entries, past.machine.frontier.next).epoch
    if epoch is None:
        return None
    if epoch not in known:
        found = past.result(epoch)
        known[epoch] = PublishedSeal(
            epoch=epoch,
            updates=found.updates,
            named_digest=found.named_digest,
            core_digest=found.core_digest,
        )
    return known[epoch]


def _quality(verdict: HealthVerdict) -> RunQuality:
    return RunQuality(
        verdict=verdict.health,
        latest=verdict.latest,
        base=verdict.base,
        best=verdict.best,
        calibrated=verdict.calibrated,
    )


def _curve(said: Iterable[Decision]) -> tuple[CurvePoint, ...]:
    """Return the evaluations of sealed epochs as points of the curve. Evaluations in an earlier metric, and
    those of seals that were taken back, are left out."""
    guard = Guard()
    for decision in said:
        guard.take(decision)
    latest = {one.epoch: one.said for one in guard.results}
    points = [
        CurvePoint(epoch=epoch, value=one.value, low=one.low, high=one.high)
        for epoch, one in sorted(latest.items())
    ]
    return tuple(thinned(points, MAX_CURVE))


def thinned(points: Sequence[CurvePoint], most: int) -> Sequence[CurvePoint]:
    """Return at most `most` evenly spaced points, including the first and the last."""
    if len(points) <= most:
        return points
    return [points[round(place * (len(points) - 1) / (most - 1))] for place in range(most)]


def _announcements(said: Iterable[Decision]) -> list[Announcement]:
    sealed, found = 0, list[Announcement]()
    for decision in said:
        if isinstance(decision, Seal):
            sealed = max(sealed, decision.epoch + 1)
        elif isinstance(decision, Announce):
            found.append((sealed, decision.text))
    return found


def teams(members: Iterable[PageMember]) -> list[PageTeam]:
    """Return the teams that members named, those with the greatest worth first. Teams with equal worth are
    ordered by number of updates."""
    found: dict[str, PageTeam] = {}
    for one in members:
        if one.team:
            known = found.get(one.team, PageTeam(one.team, 0, 0, None if one.worth is None else 0))
            worth = None if known.worth is None else known.worth + (one.worth or 0)
            found[one.team] = PageTeam(one.team, known.members + 1, known.updates + one.updates, worth)
    return sorted(found.values(), key=lambda team: (-(team.worth or 0), -team.updates, team.team))


# -- the manifest in words -------------------------------------------------------------------------------


def model_in_words(manifest: Manifest) -> str:
    """Describe the base model and its trained matrices, without names of a machine's folders. The base model
    of a fork is described by its parent run and the seal."""
    trained = sum(one.out_features * one.in_features for one in manifest.model.parsed_targets())
    matrices = len(manifest.model.targets)
    name = str(manifest.model.parent or public_name(manifest.model.source))
    return _line(f"{name}, {matrices} matrices with {trained:,} weights are trained")


def task_in_words(manifest: Manifest) -> str:
    """Describe the task, with its possible answers if they are fixed."""
    task = manifest.task
    answers = " / ".join(word.strip() for word in task.verbalizer.values())
    return _line(f"{kind_in_words(task.kind)}{f': {answers}' if answers else ''}")


def data_in_words(manifest: Manifest) -> str:
    """Return the sources of training and test rows in words."""
    data = manifest.data
    train = public_name(data.train) if data.train else "each member's own"
    return _line(train + (f", tested on {public_name(data.test)}" if data.test else ""))


def _line(text: str) -> str:
    """Return a text from the manifest, which a stranger may have written, as one printable line of at most
    MAX_WORDS characters."""
    text = "".join(letter if readable(letter) else " " for letter in text)
    return text if len(text) <= MAX_WORDS else text[: MAX_WORDS - 1] + "…"
