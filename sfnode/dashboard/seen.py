"""What the views show: everything about one node at one moment, asked through the client, and in words what
it means. Knows neither terminal nor browser.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from sfnode.client import Client
from sfnode.dashboard.figures import count, percent, rate
from sfnode.runtime.status import Status
from sfnode.runtime.viewed import Curves, Measurement, Progress, Swarm, SwarmNode

PATIENCE = 30.0
"""Seconds for which a digest may differ from a neighbour's before one should wonder: while updates are under
way two nodes are hardly ever at the same set of them at the same moment."""

MEASURED_ROWS = 200
"""Test rows of a measurement that is asked for in a view: seconds on a CPU, with an interval wide enough to
show that it is few."""

GOOD, WARN, BAD = "good", "warn", "bad"


class Words(NamedTuple):
    """Something said, and whether it is good, wants attention, or is bad."""

    text: str
    mood: str = ""


class Now(NamedTuple):
    """One look at what changes all the time."""

    status: Status
    progress: Progress
    swarm: Swarm

    @property
    def near(self) -> list[SwarmNode]:
        return [node for node in self.swarm.nodes if node.kind == "neighbour"]

    @property
    def known(self) -> int:
        """Updates known at the moment when the neighbours were looked at."""
        return self.swarm.nodes[0].known


async def look(client: Client) -> Now:
    """Raises UserError NODE_NOT_RUNNING if there is no node."""
    return Now(*await asyncio.gather(client.status(), client.progress(), client.swarm()))


async def look_at_all(client: Client) -> tuple[Now, Curves]:
    """Raises UserError NODE_NOT_RUNNING if there is no node."""
    return await asyncio.gather(look(client), client.curves())


async def measure(client: Client) -> None:
    """Have the model as of now measured, and the base model before, unless it has been: a number alone says
    nothing. Raises UserError."""
    if base_of((await client.curves()).measurements) is None:
        await client.evaluate(base=True, limit=MEASURED_ROWS)
    await client.evaluate(limit=MEASURED_ROWS)


def base_of(measurements: Sequence[Measurement]) -> Measurement | None:
    """The last one of the base model."""
    return next((m for m in reversed(measurements) if m.base), None)


# -- in words ------------------------------------------------------------------------------------------


def doing(now: Now) -> Words:
    """Is it doing anything? In one sentence for whoever has lent the machine."""
    words = _doing(now.status)
    if now.near or now.status.state in ("starting", "complete"):
        return words
    return Words(f"{words.text} It has no neighbours at the moment.", WARN)


def _doing(s: Status) -> Words:
    share = percent(s.contributed / max(s.known, 1))
    match s.state:
        case "training" if not s.contributed:
            return Words("Training: the first update is being computed.", GOOD)
        case "training":
            made = f"{count(s.contributed)} updates so far ({share} of all)"
            return Words(f"Training: {made}, {rate(s.updates_per_second)} more every second.", GOOD)
        case "starting":
            return Words("Getting ready: the base model is being fetched or loaded.")
        case "asking":
            return Words("Getting ready: asking peers how far they know what this node has made.")
        case "catching-up":
            return Words(f"Catching up: {count(s.lacking)} updates are still to come.")
        case "paused":
            return Words(f"Paused: {'; '.join(s.pauses)}.", WARN)
        case "finishing":
            return Words("Finishing: it leaves when its step is handed over.")
        case "complete" if s.role == "relay":
            return Words("The run is complete; this relay goes on serving it.", GOOD)
        case "complete":
            own = f"{count(s.contributed)} updates ({share}) are from this node."
            return Words(f"The run is complete; {own}", GOOD)
        case "idle" if s.role == "relay":
            return Words("Relaying: it passes on what others make and needs no model for that.", GOOD)
        case "idle":
            return Words("Idle: it has made all the updates that it was asked for, and serves others.", GOOD)
    return Words(f"It is {s.state}.")


def agreement(node: SwarmNode, known: int) -> Words:
    """How a neighbour's state compares with ours, who know `known` updates."""
    if node.agrees:
        return Words("same digest", GOOD)
    if node.known < known:
        return Words(f"{count(known - node.known)} behind")
    if node.known > known:
        return Words(f"{count(node.known - known)} ahead")
    return Words("digest differs", BAD) if (node.differs_for or 0) > PATIENCE else Words("under way")


def together(now: Now) -> Words:
    """How all neighbours compare with us. What is under way is as it should be."""
    moods = [agreement(node, now.known).mood for node in now.near]
    if not moods:
        return Words("no neighbours", WARN)
    if differing := moods.count(BAD):
        return Words(f"{count(differing)} of {count(len(moods))} out of step", BAD)
    return Words(f"{count(len(moods))} in step", GOOD)
