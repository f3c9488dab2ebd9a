"""A run that outlives its organiser: five real nodes, in real time, until updates count again.

    python -m benchmarks.outliving [--scene NAME ...] [--cpu PERCENT]

Each node has its own process. Three or five of the nodes are stand-ins (SPEC O21 to O23).

In the scenes of `KILLED` the organiser kills itself with SIGKILL in the middle of a decision, and its folder
is removed. In `held` scenes, more than half of the stand-ins then hold the decision, but no node knows that.
In `told` scenes, the first nodes know it. In `search`, the organiser dies while it measures for a seal. Later
it gets its keys from a backup, and the run is completed.

In the scenes of `PARTED` each node has a network namespace (needs root). For CUT seconds one side does not
hear the others, or the organiser is stopped.

Prints for each scene the seconds from the fault until another node organises and until more updates count,
the number of sides that decided meanwhile, and the seconds from the end of the fault, or from the organiser's
return, until all nodes have all decisions. Raises AssertionError if a node loses a decision, or if digests
remain different.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from sfnode.schema.organising import OrganiserStatus
from sfnode.schema.status import Status
from sfnode.store.data_folder import Layout
from sfnode.store.log import UpdateLog
from sfprotocol.decisions import Close, Seal, read
from sfprotocol.messages import Entry
from tests.network.namespaces import Place, unavailable, world
from tests.processes.helpers import LOOPBACK, Node, nodes, sfnode

T = TypeVar("T")

NAMES = "abcde"
"""Names of the nodes. The first node organises at the beginning."""

PATIENCE = 300.0
"""Timeout, in seconds, for each expected event."""

LOOK = 0.5
"""Seconds between two checks of all nodes, and so the resolution of the measured times."""

CUT = 150.0
"""Duration of a fault in a scene of `PARTED`, in seconds."""

UNDER_WAY = 2.0
"""Seconds after the start of a fault in which messages sent before it may still arrive."""

REST = 3_000
"""Number of updates that must still count, once all faults are over, until the run is complete."""

KILLED = {
    "close held": (Close, False),
    "close told": (Close, True),
    "seal held": (Seal, False),
    "seal told": (Seal, True),
    "search": (None, False),
}
"""Type of the decision during which the organiser dies (None: it measures), and whether the first nodes know
the decision then; keyed by scene."""

PARTED = {
    "three": (3, {"alone": "a bcde", "1 : 1 : 1": "ad be c", "2 : 3": "ad bce", "stopped": "a bcde"}),
    "five": (5, {"2 : 3": "ab cde", "3 : 2": "ade bc"}),
}
"""Number of stand-ins, and the sides of each scene. In these sides, "a" means the node that organises at that
time. The next letters mean the other stand-ins."""

ARMED = "armed"
"""Name of a file. The organiser kills itself only once this file exists."""

BUDGET = "training.update_budget=1000000"
OPTIONS = (BUDGET, "task.loss=plain", "init.measure=no", "organised.quota=100000")


def die(scene: str, words: list[str]) -> None:
    """Run `sfnode` with `words` as a node that kills itself at the point that `scene` names, once ARMED
    exists."""
    from sfnode.cli.main import main
    from sfnode.node.organising import Organising
    from sfprotocol.elections import Elections

    kind, told = KILLED[scene]
    count, hear, evaluate = Elections._count_answers, Elections.heard, Organising._evaluate
    decided = False

    def end() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def counts(self: Elections, now: float) -> list[Any]:
        nonlocal decided
        before = self._feed.stop
        actions = count(self, now)
        news = [read(entry.record).decision for entry in self._feed.entries[before:]]
        decided = decided or (os.path.exists(ARMED) and any(type(one) is kind for one in news))
        if decided and not told:
            end()
        return actions

    def hears(self: Elections, *statement: Any) -> list[Any]:
        if decided:
            end()  # the messages of the round that made the decision have been sent
        return hear(self, *statement)

    async def evaluates(self: Organising, asked: Any) -> None:
        if kind is None and asked.rows and os.path.exists(ARMED):  # noqa: ASYNC240 (no matter here)
            asyncio.get_running_loop().call_later(0.02, end)
        await evaluate(self, asked)

    Elections._count_answers = counts  # type: ignore[method-assign]
    Elections.heard = hears  # type: ignore[method-assign, assignment]
    Organising._evaluate = evaluates  # type: ignore[method-assign]
    main(words)


class Swarm:
    """Nodes of one run, and all decisions that any of them has stored."""

    def __init__(self, home: Path, make: Callable[..., Node], places: dict[str, Place], cpu: int) -> None:
        self.home, self.places, self._make = home, places, make
        self.nodes: dict[str, Node] = {}
        self.kept: dict[str, list[Entry]] = {}
        """Decisions of each node at its last check, keyed by name."""
        self._trains = ("--set", "node.samples=0", "--limit", f"cpu={cpu}")

    def start(self, name: str, *words: object, inside: Sequence[str] = ()) -> None:
        """Start a node, in its namespace if nodes have namespaces."""
        place = self.places.get(name)
        listens = ("--host-maddrs", "/ip4/0.0.0.0/tcp/4001") if place else LOOPBACK
        way = (*(place.inside if place else ()), *inside)
        said = (*words, *listens, *self._trains)
        self.nodes[name] = self._make(name, *said, inside=way).start()

    def does(self, name: str, *words: object) -> str:
        """Run a command of sfnode for a node. Return its output."""
        ended = sfnode(self.home, *words, "--data-dir", self.home / name)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    def look(self) -> None:
        """Read the decisions that all nodes have stored. Raises AssertionError if a node has lost one."""
        for name, node in self.nodes.items():
            if name not in self.kept and not node.organised():
                continue  # the node is starting
            with UpdateLog.open(Layout(node.folder).log, read_only=True) as log:
                found, before = log.control(), self.kept.get(name, [])
            assert found[: len(before)] == before, f"{name} has lost decisions"
            self.kept[name] = found

    def until(self, what: str, condition: Callable[[], T], patience: float = PATIENCE) -> T:
        """Check all nodes until the result of `condition` is true. Return this result."""
        give_up = time.monotonic() + patience
        while not (result := condition()):
            assert time.monotonic() < give_up, f"waited {patience:g} s in vain: {what}; {self.known()}"
            time.sleep(LOOK)
            self.look()
        return result

    def known(self, names: Sequence[str] = NAMES) -> list[OrganiserStatus]:
        """Return how the run is organised according to each of these nodes, except those that do not
        answer."""
        return [status for name in names if (status := self.nodes[name].organised())]

    def organiser(self) -> str:
        """Wait until a node organises. Return its name."""

        def organises() -> str:
            return "".join(n for n in self.nodes if any(s.organiser == "organising" for s in self.known(n)))

        return self.until("one organises", organises)[0]

    def member(self, name: str) -> int:
        """Wait until a node is a member. Return its member number."""

        def number(status: Status) -> int | None:
            return status.organised.member if status.organised else None

        found = number(self.nodes[name].until("it is a member", lambda s: number(s) is not None))
        assert found is not None
        return found

    def counts(self, names: Sequence[str], counted: int, since: float) -> float:
        """Return the seconds from `since` until more than `counted` updates count, according to one of these
        nodes."""
        self.until("updates count", lambda: any(s.counted > counted for s in self.known(names)))
        return time.monotonic() - since

    def goes_on(self, names: Sequence[str], term: int, since: float) -> tuple[float, float]:
        """Return the seconds from `since` until one of these nodes knows a later term than `term`, and until
        more updates count than at that time."""
        later = self.until("another organises", lambda: [s for s in self.known(names) if s.term > term])
        organised = time.monotonic() - since
        return organised, self.counts(names, max(status.counted for status in later), since)

    def catches_up(self) -> None:
        """Wait until all nodes have the longest list of decisions that any node has now."""
        longest = max(self.kept.values(), key=len)
        self.until("all have them", lambda: all(self.kept[n][: len(longest)] == longest for n in NAMES))

    def is_one(self) -> bool:
        """Return whether all nodes have the same digest and the same decisions, among them all that any node
        ever stored."""
        self.look()
        found = {status and status.digest for status in (self.nodes[name].status() for name in NAMES)}
        every = self.kept["a"]
        same = len(found) == 1 and all(self.kept[name] == every for name in NAMES)
        return same and all(every[: len(kept)] == kept for kept in self.kept.values())

    def becomes_one(self) -> None:
        """Pause all nodes until `is_one`."""
        for name in NAMES:
            self.does(name, "pause")
        self.until("all are one", self.is_one)
        for name in NAMES:
            self.does(name, "resume")

    def complete(self) -> None:
        """Make the present organiser complete the run after REST more updates, and wait until it is
        complete."""
        organiser = self.organiser()
        budget = self.known(organiser)[0].counted + REST
        self.does(organiser, "organise", "budget", budget)
        self.until("the run is complete", lambda: [s.complete for s in self.known()] == [True] * len(NAMES))
        self.until("all are one", self.is_one)

    def name_stand_ins(self, count: int) -> None:
        """Appoint `count` stand-ins, the organiser included."""
        organiser = self.organiser()
        others = [name for name in NAMES if name != organiser][: count - 1]
        numbers = {self.member(name) for name in others}
        for name in others:
            self.does(name, "organise", "stand-in")

        def have_offered() -> bool:
            standing = {one.member for one in self.known(organiser)[0].stand_ins}
            return numbers <= standing | {one.member for one in self.nodes[organiser].offers()}

        def are_here() -> bool:
            all_here = [len(s.stand_ins) == count and all(o.here for o in s.stand_ins) for s in self.known()]
            return all_here == [True] * len(NAMES)

        self.until("all have offered", have_offered)
        self.does(organiser, "organise", "stand-ins", *sorted(numbers))
        self.until("all who stand in are here", are_here)


@contextmanager
def swarm(cpu: int, *, apart: bool = False, dying: Sequence[str] = ()) -> Iterator[Swarm]:
    """Yield five nodes of a new run, each in a namespace if `apart`. `dying` is the command that starts the
    organiser."""
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        internet = stack.enter_context(world()) if apart else None
        places = {n: internet.place(n, f"5.{at}.0.1") for at, n in enumerate(NAMES, 1)} if internet else {}
        made = Swarm(home, stack.enter_context(nodes(home)), places, cpu)
        options = [word for option in OPTIONS for word in ("--set", option)]
        begun = sfnode(home, "init", "--model", "builtin:tiny", "--task", "reviews", *options)
        assert begun.returncode == 0, begun.stderr
        made.start("a", "--run", "run.toml", "--organise", inside=dying)
        made.counts("a", 0, 0.0)
        link = json.loads(made.does("a", "organise", "invite", "--uses", 9, "--json"))["link"]
        for name in NAMES[1:]:
            made.start(name, link)
        yield made


def row(scene: str, *figures: float | None) -> None:
    """Print a row of the table. A figure is None if no other node organised."""
    told = ("-" if one is None else f"{one:.0f}" for one in figures)
    print(f"| {' | '.join((scene, *told))} |", flush=True)


def killed(scene: str, cpu: int) -> None:
    """Run a scene in which the organiser is killed during a decision, loses its folder and keys, and returns
    with keys from a backup."""
    dying = (sys.executable, "-m", "benchmarks.outliving", "--die", scene)
    with swarm(cpu, dying=dying) as made:
        made.name_stand_ins(3)
        (secret := made.home / "secret").write_text("correct horse\n")
        backup, passphrase = made.home / "backup", ("--passphrase-file", secret)
        made.does("a", "keys", "backup", "--out", backup, *passphrase)
        (made.home / ARMED).touch()
        made.until("it dies", lambda: not made.nodes["a"].running)
        since = time.monotonic()
        made.look()
        made.kept["a, dead"] = made.kept.pop("a")
        del made.nodes["a"]
        shutil.rmtree(made.home / "a")
        shutil.rmtree(made.home / ".local/share/sfnode/keys")
        organised, counted = made.goes_on(NAMES[1:], 0, since)

        made.does("a", "keys", "restore", backup, *passphrase)
        back = time.monotonic()
        made.start("a", json.loads(made.does("d", "invite", "--json"))["link"], "--organise")
        made.until("it stands by", lambda: any(s.organiser == "standing by" for s in made.known("a")))
        made.catches_up()
        one = time.monotonic() - back
        made.complete()
    row(f"killed: {scene}", organised, counted, 1, one)


def troubled(
    made: Swarm, scene: str, sides: Sequence[str], begin: Callable[[], None], end: Callable[[], None]
) -> None:
    """Run a scene in which a fault separates these sides: start it with `begin`, end it with `end`, and print
    the row."""
    known, numbers = made.known()[0], {made.member(name): name for name in NAMES}
    organiser, standing = made.organiser(), {numbers[one.member] for one in known.stand_ins}
    most = "".join(side for side in sides if 2 * len(standing & {*side}) > len(standing))
    counted = max(status.counted for status in made.known())
    begin()
    since = time.monotonic()

    def rest(seconds: float) -> None:
        made.until("time passes", lambda: time.monotonic() >= since + seconds)

    rest(UNDER_WAY)
    before, organised, again = {name: len(made.kept[name]) for name in NAMES}, None, None
    if most and organiser in most:
        again = made.counts(most, counted, since)
    elif most:
        organised, again = made.goes_on(most, known.term, since)
    rest(CUT)
    decided = {side for side in sides if any(len(made.kept[name]) > before[name] for name in side)}
    assert decided == {*filter(None, [most])}, f"these have decided: {decided}"
    counted = max(status.counted for status in made.known(most or organiser))
    end()
    healed = time.monotonic()
    later = made.counts(NAMES, counted, since)
    made.catches_up()
    row(scene, organised, again or later, len(decided), time.monotonic() - healed)
    made.becomes_one()


def hear(made: Swarm, sides: Sequence[str]) -> None:
    """Let every node receive packets only from nodes on its own side."""
    for side in sides:
        deaf = [made.places[name].address for name in NAMES if name not in side]
        for name in side:
            made.places[name].rule(*(["deaf", *deaf] if deaf else ["none"]))


def parted(standing: str, cpu: int) -> None:
    """Run the scenes of `PARTED[standing]`, one after the other, with one swarm."""
    with swarm(cpu, apart=True) as made:
        made.name_stand_ins(PARTED[standing][0])
        for scene, sides in PARTED[standing][1].items():
            first = made.organiser()
            numbers = {one.member for one in made.known(first)[0].stand_ins}
            order = sorted(NAMES, key=lambda n: (n != first, made.member(n) not in numbers, n))
            parts = ["".join(order[NAMES.index(name)] for name in side) for side in sides.split()]
            begin, end = partial(hear, made, parts), partial(hear, made, [NAMES])
            if "stopped" in scene:
                begin, end = (partial(made.nodes[first].send, n) for n in (signal.SIGSTOP, signal.SIGCONT))
            troubled(made, f"{standing} stand in, {scene}", parts, begin, end)
        made.complete()


def main() -> None:
    if sys.argv[1:2] == ["--die"]:
        die(sys.argv[2], sys.argv[sys.argv.index("sfnode") + 1 :])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--scene", action="append", choices=[*KILLED, *PARTED], help="repeatable")
    parser.add_argument("--cpu", type=int, default=10, help="percent of all cores for each node")
    given = parser.parse_args()
    print("| scene | another organises, s | updates count, s | sides that decided | one again, s |")
    print("|---|---|---|---|---|", flush=True)
    for scene in given.scene or [*KILLED, *PARTED]:
        if scene in KILLED:
            killed(scene, given.cpu)
        elif reason := unavailable():
            print(f"{scene}: {reason}")
        else:
            parted(scene, given.cpu)


if __name__ == "__main__":
    main()
