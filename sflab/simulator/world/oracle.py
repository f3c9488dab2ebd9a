"""The oracle: everything that every origin made, which every node must have at the end.

It uses only data on disk, not the state of the machine. A feed is a tree of chain heads: one line for an
honest origin, branches if one key signed two histories. Updates that a node admits must be on the tree. At
the end all nodes must have the union of all disks, up to the first branch.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from sfprotocol.fields import Values
from sfprotocol.frontier import Frontier
from sfprotocol.messages import EpochScalars, Feed, RunParameters, Segment
from sfprotocol.signing import extend, genesis


class Violation(Exception):  # noqa: N818 (it is a finding about the machine, not a fault of the simulator)
    """A broken promise, found by `checker`. The traces of `nodes` explain it."""

    def __init__(self, checker: str, what: str, nodes: tuple[str, ...] = ()) -> None:
        super().__init__(what)
        self.checker = checker
        self.what = what
        self.nodes = nodes

    def __str__(self) -> str:
        return f"[{self.checker}] {self.what}"


@dataclass
class Story:
    """All updates ever made in one feed."""

    heads: list[set[bytes]]
    """Chain heads that existed before each step and, as the last entry, at the end."""
    epochs: list[int] = field(default_factory=list)
    """Epoch of each step on the branch that came first."""
    made_at: array[float] = field(default_factory=lambda: array("d"))
    """Time at which each step was first made."""

    @property
    def stop(self) -> int:
        return len(self.heads) - 1

    @property
    def common(self) -> int:
        """First step at which two histories of the feed differ, or the end of the feed."""
        return next((step for step, heads in enumerate(self.heads) if len(heads) > 1), self.stop + 1) - 1

    @property
    def forked(self) -> bool:
        return self.common < self.stop


class Oracle:
    """All updates made in one run."""

    def __init__(self, run: RunParameters) -> None:
        self.run = run
        self.stories: dict[Feed, Story] = {}
        self.honest: set[bytes] = set()
        """Origins of honest nodes."""
        self.may_fork: set[bytes] = set()
        """Honest origins whose key is in use twice, or whose disk was restored."""
        self.updates = 0

    def story(self, feed: Feed) -> Story:
        if feed not in self.stories:
            self.stories[feed] = Story([{genesis(self.run.run_id, feed)}])
        return self.stories[feed]

    def made(self, feed: Feed, before: bytes, segment: Segment, now: float, who: str) -> None:
        """Record updates that an origin made after its own chain head `before`. Raises Violation."""
        story = self.story(feed)
        assert before in story.heads[segment.first], "updates follow what was never there"
        for step, (epoch, scalar) in enumerate(updates_of(segment.parts), segment.first):
            before = extend(before, (EpochScalars(epoch, (scalar,)),))
            if step == story.stop:
                story.heads.append(set())
                story.epochs.append(epoch)
                story.made_at.append(now)
                self.updates += 1
            story.heads[step + 1].add(before)
            if len(story.heads[step + 1]) > 1 and feed.origin in self.honest - self.may_fork:
                raise Violation(
                    "fork", f"an honest origin has made two histories that part at {step}", (who,)
                )

    def knows(self, feed: Feed, step: int, chain: bytes) -> bool:
        """Return whether some history of this feed has this chain head before `step`."""
        story = self.stories.get(feed)
        return story is not None and step <= story.stop and chain in story.heads[step]

    def admitted(self, feed: Feed, segment: Segment, before: bytes, now: float, who: str) -> None:
        """Record updates that a node admitted although their origin was not seen to make them. Raises
        Violation unless the origin is hostile."""
        if feed.origin in self.honest:
            said = f"steps {segment.first} to {segment.stop} of a feed were never made by their honest origin"
            raise Violation("content", said, (who,))
        self.made(feed, before, segment, now, who)

    def digest(self, ends: dict[Feed, int]) -> bytes:
        """Return the state digest of all feeds in `ends`, each with its updates before the given step. No
        feed may branch."""
        frontier = Frontier(self.run)
        for feed, end in ends.items():
            story = self.stories[feed]
            frontier.advance(feed, end, next(iter(story.heads[end])), story.epochs[end - 1])
        return frontier.digest()


def updates_of(parts: tuple[EpochScalars, ...]) -> list[tuple[int, Values]]:
    return [(epoch, scalar) for epoch, scalars in parts for scalar in scalars]
