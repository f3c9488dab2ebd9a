"""Requests to a node through the client, and sentences that describe the answers. Independent of terminal and
browser."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from sfnode.control.client import Client
from sfnode.dashboard.formatting import count, percent
from sfnode.errors import UserError
from sfnode.printable import pace
from sfnode.schema.metrics import doing_in_words
from sfnode.schema.node_state import NodeState

if TYPE_CHECKING:
    from sfnode.schema.measurements import NodeEvaluation
    from sfnode.schema.status import Status
    from sfnode.schema.views import Curves, OwnStanding, Progress, Swarm, SwarmNode

PATIENCE = 30.0
"""Seconds for which a neighbour's digest may differ from this node's before the views warn. Short differences
are normal, because new updates reach two nodes at different times."""

MEASURED_ROWS = 200
"""Number of test rows of an evaluation that the dashboard requests. Evaluating them takes seconds on a CPU.
The result's wide interval shows that they are few."""


class Mood(StrEnum):
    """Tone of a sentence about a node."""

    GOOD = "good"
    NEUTRAL = "neutral"
    WARN = "warn"
    """Tone of a sentence that the owner should notice, although it reports no fault."""
    BAD = "bad"


class Words(NamedTuple):
    """A sentence about a node, and its mood."""

    text: str
    mood: Mood = Mood.NEUTRAL


class Now(NamedTuple):
    """The answers of a node that change all the time, requested together."""

    status: Status
    progress: Progress
    swarm: Swarm

    @property
    def near(self) -> list[SwarmNode]:
        return [node for node in self.swarm.nodes if node.kind == "neighbour"]

    @property
    def known(self) -> int:
        """Number of updates that the node had when it described its neighbours."""
        return self.swarm.nodes[0].known


async def look(client: Client) -> Now:
    """Ask the node for its current state. Raises UserError NODE_NOT_RUNNING without a node."""
    return Now(*await asyncio.gather(client.status(), client.progress(), client.swarm()))


async def look_at_all(client: Client) -> tuple[Now, Curves]:
    """Ask the node for its current state and its curves. Raises UserError NODE_NOT_RUNNING without a node."""
    return await asyncio.gather(look(client), client.curves())


async def measure(client: Client) -> None:
    """Ask the node to evaluate the model of the last seal or, in an open run, the current model.

    Before that, the node evaluates the base model, unless it did so earlier. There are two results of the
    base model: uncalibrated and, if its prior over the answers can be measured, calibrated. Raises UserError.
    """
    known = (await client.curves()).measurements
    if base_of(known) is None:
        await client.evaluate(base=True, limit=MEASURED_ROWS)
    if base_of(known, calibrated=True) is None:
        with suppress(UserError):  # without a prior the model can still be measured
            await client.evaluate(base=True, calibrated=True, limit=MEASURED_ROWS)
    await client.evaluate(limit=MEASURED_ROWS)


def base_of(measurements: Sequence[NodeEvaluation], *, calibrated: bool = False) -> NodeEvaluation | None:
    """Return the last evaluation of the base model, uncalibrated or calibrated."""
    return next((m for m in reversed(measurements) if m.base and m.calibrated is calibrated), None)


# -- in words ------------------------------------------------------------------------------------------


def alarms(s: Status) -> list[Words]:
    """Return the alarms about the run, the most severe first. Views show alarms before everything else."""
    return [Words(f"{alarm.code}: {alarm.what}. {alarm.fix}", Mood.BAD) for alarm in s.alarms]


def contributed(s: Status, own: OwnStanding | None) -> Words:
    """Describe this node's contribution and its rank. `own` is None before it was requested."""
    if s.origin is None:
        return Words("This relay passes on the updates of others and makes none.")
    if own is None or own.rank is None:
        return Words("You have contributed no update yet.")
    made = f"Your work: {count(own.updates)} updates ({percent(own.share)} of all)"
    counted = "" if own.counted is None else f", {count(own.counted)} of them count"
    gain = "" if own.gain_share is None else f", {percent(own.gain_share)} of what the model has gained"
    return Words(f"{made}{counted}{gain}, rank {count(own.rank)} of {count(own.of)}.", Mood.GOOD)


def doing(now: Now) -> Words:
    """Describe the node's activity in one sentence, for the owner of the machine."""
    words = doing_in(now.status)
    if now.near or now.status.state in (NodeState.STARTING, NodeState.COMPLETE):
        return words
    return Words(f"{words.text} It has no neighbours at the moment.", Mood.WARN)


PASSING: dict[str, str] = {
    NodeState.STARTING: "Getting ready: the base model is being downloaded or loaded.",
    NodeState.ASKING: "Getting ready: asking peers which of this node's updates they have.",
    NodeState.FINISHING: "Finishing: the node leaves when its neighbours have its last updates.",
}
"""Sentences on temporary states, keyed by state."""


def doing_in(s: Status) -> Words:
    """Describe a node's activity by its status alone."""
    share = percent(s.contributed / max(s.known, 1))
    match s.state:
        case NodeState.TRAINING if not s.contributed:
            return Words(f"Training: the first update is being computed{_busy(s)}.", Mood.GOOD)
        case NodeState.TRAINING:
            made = f"{count(s.contributed)} updates so far ({share} of all)"
            return Words(f"Training: {made}, {pace(s.updates_per_second)}{_room(s)}{_busy(s)}.", Mood.GOOD)
        case NodeState.WAITING:
            why = s.wait.text if s.wait else "it may make no updates now"
            return Words(f"Waiting: {why}{_busy(s)}.", Mood.WARN)
        case NodeState.STARTING | NodeState.ASKING | NodeState.FINISHING:
            return Words(PASSING[s.state])
        case NodeState.CATCHING_UP:
            missing = max(s.lacking, s.organised.behind if s.organised else 0)
            return Words(f"Catching up: {count(missing)} updates are still missing.")
        case NodeState.PAUSED:
            return Words(f"Paused: {'; '.join(s.pauses)}.", Mood.WARN)
        case NodeState.COMPLETE if s.role == "relay":
            return Words("The run is complete; this relay still serves it.", Mood.GOOD)
        case NodeState.COMPLETE:
            own = f"{count(s.contributed)} updates ({share}) are from this node."
            return Words(f"The run is complete; {own}", Mood.GOOD)
        case NodeState.IDLE if s.role == "relay":
            return Words("Relaying: it forwards updates of others, which needs no model.", Mood.GOOD)
        case NodeState.IDLE:
            made = "Idle: it has made all the updates that it was asked for, and still serves others."
            return Words(made, Mood.GOOD)


def _room(s: Status) -> str:
    """Describe how many updates this node may still make in the open epoch; empty if it is no member of an
    organised run."""
    run = s.organised
    if run is None or run.room is None or run.quota is None:
        return ""
    return f"; {count(run.room)} of {count(run.quota)} are left for it in this round"


def _busy(s: Status) -> str:
    """Describe the node's work besides updates, such as an evaluation; empty without such work."""
    return f"; busy with {doing_in_words(s.doing)}" if s.doing else ""


def agreement(node: SwarmNode, known: int) -> Words:
    """Describe how a neighbour's model compares with the model of this node, which has `known` updates."""
    if node.agrees:
        return Words("same model", Mood.GOOD)
    if node.known < known:
        return Words(f"{count(known - node.known)} behind")
    if node.known > known:
        return Words(f"{count(node.known - known)} ahead")
    return Words("another model", Mood.BAD) if (node.differs_for or 0) > PATIENCE else Words("under way")


def together(now: Now) -> Words:
    """Describe whether the neighbours have this node's model. A difference counts only after PATIENCE,
    because new updates reach nodes at different times."""
    moods = [agreement(node, now.known).mood for node in now.near]
    if not moods:
        return Words("no neighbours", Mood.WARN)
    if differing := moods.count(Mood.BAD):
        return Words(f"{count(differing)} of {count(len(moods))} out of step", Mood.BAD)
    return Words(f"{count(len(moods))} in step", Mood.GOOD)
