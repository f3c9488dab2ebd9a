"""Whole nodes beside strangers who were admitted by a proof of work: the honest progress that they cost.

    python tests/bench/strangers.py --attack room [--runs 3] [--seconds 90] [--honest 2] [--strangers 1]

Every run is what `sfnode init` without flags makes: the first honest node organises it, searches, guards and
admits anyone; the others train, with one thread each. A stranger is a real node, too, with a key, a log,
links and the decisions of its own, but what it signs is made up. Its own machine has to admit that, as those
of its peers have, and so it breaks no rule; of what that refuses it tries a single update, and goes on.

    room      zeros in ROOM_FEEDS feeds in each epoch, so many that honest nodes wait for a close
    dust      the same with scalars of 1 and -1, which move the model
    fresh     largest scalars with random signs, its quota in each epoch, in another incarnation each time
    backlog   zeros: the quota of every feed for one label, and again as soon as closes have named all of it
    labels    comes late, and then says the largest scalars in every feed, its quota for each old label
    turncoat  trains for a quarter of its share of the budget, then says the largest scalars of opposite signs

Peace and attack take turns with the same manifest and organiser's key, each from the moment at which all
models are loaded and all strangers admitted, who wait for it. A run ends when it is complete or after
--seconds, and then its owner ends it, so that digests may be compared. Prints a line of JSON for each run as
it ends, with its course, and then a table:

    made, counted    updates of honest nodes since they began, and those that count
    per CPU s        made, for each second of user and system time of the honest nodes with their network
                     daemons: neither the machine's load nor the strangers' own work is in it. Who waits takes
                     little time: of a standstill `made` tells, and `s`
    of the budget    all that count, of honest nodes or not
    accuracy / loss  on the test rows, of the model that counts in the end
    complete         `ended` if the organiser has ended the run before
    behind           loss on the validation rows by the last seal that was evaluated, less that of peace when
                     as many updates counted, between two seals by a line: well above 0 if the model is spoilt
                     and not only late
    equal            whether all honest nodes have the same cores by what counts; `same` in the JSON: whether
                     they came to hold the same updates within a minute, too
    held, counted    updates of strangers that the organiser's node holds, in so many bytes of segments, and
                     those that count

Below it are the ratios attack / peace of neighbouring runs, the median and the lowest, and the mean
difference of the test losses in pairs with its 95 % interval over run names.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil

from sflab.studies.findings import interval
from sfnode.errors import UserError
from sfnode.manifest import Manifest
from sfnode.schema.status import Status
from sfnode.store.data_folder import Layout
from sfnode.store.log import UpdateLog
from sfnode.swarm.local_swarm import POLL_INTERVAL, RUN, LocalSwarm
from sfnode.swarm.node_process import NodeProcess
from sfprotocol import decisions, wire_codec
from sfprotocol.counting import Counting
from sfprotocol.decisions import INCARNATIONS, Finish
from sfprotocol.errors import LocalProtocolError
from sfprotocol.events import Action, OwnUpdates
from sfprotocol.machine import Machine
from sfprotocol.messages import EpochScalars, Feed
from sfprotocol.rate_limit import ORIGIN_BURST, ORIGIN_RATE, Bucket
from sfprotocol.segments import MAX_SEGMENT_UPDATES

STRANGER = "stranger"
"""First argument of this program as a stranger's node."""

ORDER = "STRANGERS_ORDER"
"""Environment variable that says what a stranger is to do, in JSON."""

COME, BEGIN = "come", "begin"
"""Files in a run's folder: signs for strangers to ask to be admitted, and to begin."""

LOOK = 0.1
"""Seconds between two looks at what is waited for, and of a stranger at the decisions."""

HANDLED = 10.0
"""Seconds after which a stranger does not wait any longer until its node has looked at what it has signed."""

ROOM_FEEDS, ROOM_UPDATES = 4, 125
"""Feeds that `room` fills, and updates of each in an epoch: half an epoch of the built-in run in each, which
is as much as counted of one feed of others, and two epochs in all."""

LATE = 30
"""Epochs after which strangers come who fill old labels; a run of 3,000 updates may have six in all."""

LATE_SHARE = 0.5
"""Share of the budget that counts when they come at the latest."""

SLOW = 0.1
"""Share of the updates that a slow stranger makes."""

SAMPLED = 5.0
"""Seconds between two samples of a run's course."""

AGREE = 60.0
"""Seconds for the honest nodes to hold the same once the run has ended."""

START = 180.0
"""Seconds until all nodes have loaded their models and the strangers are admitted."""


# -- the stranger --------------------------------------------------------------------------------------


class Stranger:
    """The node of a stranger: what it knows, and the updates that it makes up."""

    def __init__(self, machine: Machine, post: Callable[[OwnUpdates], None], pace: float) -> None:
        assert machine.own is not None
        self.origin = machine.own.origin
        self._machine, self._post, self._pace = machine, post, pace
        self._draw = random.Random()
        self._labelled = Counter[tuple[Feed, int]]()
        """Updates by feed and label."""
        self._last: dict[Feed, int] = {}
        """The last label of each feed."""
        self._rate = Bucket(ORIGIN_BURST, time.monotonic())
        """What peers take of one origin: what is beyond it they ask for later, in pieces too long for a close
        to name."""
        self._taken = asyncio.Event()
        self._honest = machine._on_own
        machine._on_own = self._on_own  # type: ignore[method-assign]

    def _on_own(self, event: OwnUpdates, now: float) -> list[Action]:
        """Sign updates of whatever feed of ours they are, as long as the machine does."""
        self._machine._own.feed = event.feed
        actions: list[Action] = []
        with suppress(LocalProtocolError):
            actions = self._honest(event, now)
        self._taken.set()
        return actions

    @property
    def counting(self) -> Counting:
        assert self._machine.organised is not None
        return self._machine.organised.counting

    @property
    def epoch(self) -> int:
        return self.counting.open_epoch

    def quota(self, label: int) -> int:
        """Return how many of our updates may have a label."""
        member = self.counting.member_number(self.origin)
        return 0 if member is None else self.counting.quotas.quota(member, label)

    def smallest(self) -> int:
        return self._draw.choice((-1, 1))

    def largest(self) -> int:
        return self._draw.choice((-1, 1)) * self._machine.run.scalar_limit

    def waits(self) -> bool:
        """Return whether there are updates of ours that no close has named."""
        return any(self._machine.frontier.next(feed) > self._named(feed) for feed in self._last)

    def _named(self, feed: Feed) -> int:
        number = self.counting.number(feed)
        return 0 if number is None else self.counting.named(number)

    async def fill(self, incarnation: int, label: int, most: int, scalar: Callable[[], int]) -> bool:
        """Let a feed have so many updates with a label; return whether it has.

        A feed that peers do not know may be allowed a single one until a close has named that.
        """
        feed = Feed(self.origin, incarnation)
        if label < self._last.get(feed, 0):
            return False
        most = min(most, self.quota(label))
        missing = max(1, round(self._pace * most)) - self._labelled[feed, label]
        while missing > 0:
            scalars = [scalar() for _ in range(min(missing, MAX_SEGMENT_UPDATES))]
            if not await self._tell(feed, label, scalars):
                await self._tell(feed, label, scalars[:1])
                return False
            missing -= len(scalars)
        return True

    async def _tell(self, feed: Feed, label: int, scalars: Sequence[int]) -> bool:
        """Sign updates once peers would take them; return whether our own node has."""
        await asyncio.sleep(self._rate.wait(len(scalars), time.monotonic(), rate=ORIGIN_RATE))
        following = self._machine.frontier.next(feed)
        self._taken.clear()
        self._post(OwnUpdates(feed, following, (EpochScalars(label, tuple(scalars)),)))
        with suppress(TimeoutError):
            async with asyncio.timeout(HANDLED):
                await self._taken.wait()
        if self._machine.frontier.next(feed) == following:
            return False
        self._rate.spend(len(scalars), time.monotonic(), rate=ORIGIN_RATE, burst=ORIGIN_BURST)
        self._labelled[feed, label] += len(scalars)
        self._last[feed] = label
        return True


async def room(me: Stranger) -> None:
    """Fill half an epoch in each of some feeds with zeros."""
    for incarnation in range(ROOM_FEEDS):
        await me.fill(incarnation, me.epoch, ROOM_UPDATES, int)


async def dust(me: Stranger) -> None:
    """Do the same with the smallest scalars that move the model."""
    for incarnation in range(ROOM_FEEDS):
        await me.fill(incarnation, me.epoch, ROOM_UPDATES, me.smallest)


async def fresh(me: Stranger) -> None:
    """Say the largest scalars in a feed of each epoch's own; where that may not be long yet, in the last one,
    which the last close may have named."""
    epoch = me.epoch
    if not await me.fill(epoch % INCARNATIONS, epoch, me.quota(epoch), me.largest):
        await me.fill((epoch - 1) % INCARNATIONS, epoch, me.quota(epoch), me.largest)


async def backlog(me: Stranger) -> None:
    """Let all feeds be as long as they may be, again once all of them is named."""
    if not me.waits():
        epoch = me.epoch
        for incarnation in range(INCARNATIONS):
            await me.fill(incarnation, epoch, me.quota(epoch), int)


async def labels(me: Stranger) -> None:
    """Let all feeds have as much as they may have of each label that there is."""
    for label in range(me.epoch + 1):
        for incarnation in range(INCARNATIONS):
            await me.fill(incarnation, label, me.quota(label), me.largest)


TURNCOAT = "turncoat"
ATTACKS: dict[str, Callable[[Stranger], Awaitable[None]]] = {
    attack.__name__: attack for attack in (room, fresh, backlog, labels, dust)
}
NAMES = (*ATTACKS, TURNCOAT)


def be_stranger(attack: str, pace: float, after: int, home: str) -> None:
    """Run the command line as a stranger's node; `after` so many updates a turncoat turns. There are signs in
    the folder `home` when it is to ask to be admitted, and when to begin."""
    from sfnode.cli.main import main
    from sfnode.engine.trainer import Trainer
    from sfnode.node import organising
    from sfnode.node.training.model import LocalModel

    solve, folder = organising.petition, Path(home)

    async def petition(*arguments: Any) -> Any:
        """Work in advance."""
        solved = await solve(*arguments)
        await until(folder / COME)
        return solved

    organising.petition = petition  # type: ignore[assignment]

    if attack == TURNCOAT:
        Trainer.step = turned(Trainer.step, pace, after, folder)  # type: ignore[method-assign]
    else:
        begun: list[asyncio.Task[None]] = []

        def start(model: Any) -> None:
            """Make updates up in place of a model that is loaded and trained."""
            if not begun:
                stranger = Stranger(model._machine, model._driver.post, pace)
                begun.append(asyncio.create_task(attacking(stranger, ATTACKS[attack], folder)))
                begun[0].add_done_callback(lambda task: task.cancelled() or model._fail(task.exception()))

        LocalModel.start = start  # type: ignore[method-assign, assignment]
    main(sys.argv[2:])


async def until(sign: Path) -> None:
    """Wait until there is this file."""
    while not sign.exists():  # noqa: ASYNC110, ASYNC240 (nothing tells of it, and it is quick)
        await asyncio.sleep(LOOK)


async def attacking(me: Stranger, attack: Callable[[Stranger], Awaitable[None]], home: Path) -> None:
    """Attack from the beginning on, for as long as the node lives."""
    await until(home / BEGIN)
    while True:
        if me.counting.member(me.origin):
            await attack(me)
        await asyncio.sleep(LOOK)


def turned(honest: Any, pace: float, after: int, home: Path) -> Any:
    """Return a trainer's step that says the opposite, as loudly as may be, `after` so many updates."""
    made, draw = 0, random.Random()

    def step(trainer: Any, seeds: Sequence[int], epoch: int) -> Any:
        nonlocal made
        asyncio.run(until(home / BEGIN))
        result = honest(trainer, seeds, epoch)
        made += len(result.scalars)
        if made <= after or draw.random() > pace:
            return result
        limit = trainer.manifest.training.scalar_limit
        return result._replace(scalars=tuple(-limit if one > 0 else limit for one in result.scalars))

    return step


# -- a run ---------------------------------------------------------------------------------------------


class Sample(NamedTuple):
    """A run at one moment."""

    seconds: float
    made: int
    counted: int
    """All updates that count."""
    sealed: int
    open_epoch: int
    evaluated: int
    """Seals that were evaluated, and the base model."""
    loss: float
    """Loss on the validation rows by the last one."""


class Row(NamedTuple):
    """What has become of a run."""

    run: str
    attack: str
    seconds: float
    made: int
    honest_counted: int
    per_cpu_second: float
    cpu_seconds: float
    counted: int
    """All updates that count."""
    share: float
    """The same as a share of the budget."""
    complete: bool
    ended: bool
    """Whether the organiser has ended it before."""
    epochs: int
    """Epochs that were closed."""
    sealed: int
    metric: float
    loss: float
    validation_loss: float
    equal: bool
    """Whether all honest nodes have the same cores by what counts."""
    same: bool
    """Whether they hold the same updates, too, those that do not count included."""
    held: int
    held_bytes: int
    strangers_counted: int
    """Updates of strangers that count."""
    revoked: int
    """Strangers that were revoked."""
    came: float | None
    """Seconds after which strangers came late."""
    course: tuple[Sample, ...]
    curve: tuple[tuple[int, float], ...]
    """Loss on the validation rows by the number of all updates that counted."""

    @property
    def counted_per_cpu_second(self) -> float:
        """What was made while the last seals were under way, for nothing, is not in it."""
        return self.honest_counted / max(1e-9, self.cpu_seconds)


class Swarm:
    """The honest nodes of one run and the strangers beside them."""

    def __init__(self, local: LocalSwarm, home: Path) -> None:
        self.local, self.home = local, home
        self.strangers: list[NodeProcess] = []
        self._origins: set[str] = set()
        """Those of the honest nodes."""

    async def begin(self, strangers: int, *, late: bool) -> None:
        """Wait until all models are loaded, and the strangers there, and admitted unless they come `late`;
        then let the honest nodes train."""
        await asyncio.gather(*map(_pause, self.local.nodes))
        await self._start(strangers)
        if not late:
            self.let_in()
        async with asyncio.timeout(START):
            while not await self._ready(0 if late else strangers):  # noqa: ASYNC110 (nothing tells of it)
                await asyncio.sleep(LOOK)
        (self.home / BEGIN).touch()
        await asyncio.gather(*(node.client.resume() for node in self.local.nodes))

    def let_in(self) -> bool:
        """Have the strangers ask to be admitted; return whether they had not."""
        news = bool(self.strangers) and not (self.home / COME).exists()
        (self.home / COME).touch()
        return news

    async def _start(self, strangers: int) -> None:
        address = (await self.local.nodes[0].answering()).addresses[0]
        for number in range(1, strangers + 1):
            stranger = NodeProcess(number, self.home / f"stranger-{number}")
            stranger.program = (sys.executable, __file__, STRANGER)
            options = ["--host-maddrs", "/ip4/127.0.0.1/tcp/0", "--threads", "1", "--samples", "0"]
            await stranger.start([*options, "--no-validator", "--peers", address])
            self.strangers.append(stranger)

    async def _ready(self, admitted: int) -> bool:
        strangers = [await stranger.look() for stranger in self.strangers]  # raises if one has ended
        statuses = [await node.look() for node in self.local.nodes]
        self._origins = {status.origin for status in statuses if status and status.origin}
        loaded = all(status and status.devices for status in statuses)
        members = (await self.local.nodes[0].client.organising()).members
        return loaded and all(strangers) and members >= len(self.local.nodes) + admitted

    def cpu(self) -> float:
        """Return the seconds of processor time that the honest nodes and their daemons have had."""
        return sum(map(_cpu_of, (node.status for node in self.local.nodes)))

    async def sample(self, since: float) -> tuple[Sample, bool]:
        """Look at the run; return also whether it is over. Raises UserError if a node has ended."""
        progress = await self.local.look()
        await asyncio.gather(*(stranger.look() for stranger in self.strangers))
        said = progress.organised
        assert said is not None
        made = sum(status.contributed for status in progress.statuses if status)
        told = said.evaluations
        loss = round(told[-1].loss, 4) if told else math.nan
        at = round(time.monotonic() - since, 1), made, said.counted
        return Sample(*at, said.sealed, said.open_epoch, len(told), loss), said.complete

    async def end(self) -> tuple[bool, bool]:
        """End the run as its owner, without strangers; return whether what counts comes to be the same at all
        honest nodes, and all that they hold."""
        while self.strangers:
            await self.strangers.pop().stop()
        with suppress(UserError):  # it is complete already
            await self.local.nodes[0].client.decide(decisions.encode(Finish()))
        give_up = time.monotonic() + AGREE
        while True:
            counts = {(await node.client.evaluate(limit=1)).digest for node in self.local.nodes}
            held = {(await node.client.digest()).digest for node in self.local.nodes}
            if len(counts) == len(held) == 1 or time.monotonic() > give_up:
                return len(counts) == 1, len(held) == 1
            await asyncio.sleep(LOOK)

    async def members(self) -> tuple[int, int, int]:
        """Return how many updates of honest nodes and of strangers count, and how many of these are
        revoked."""
        members = (await self.local.nodes[0].client.members()).members
        others = [one for one in members if one.origin not in self._origins]
        honest = sum(one.counted for one in members if one.origin in self._origins)
        return honest, sum(one.counted for one in others), sum(one.revoked is not None for one in others)

    def held(self, run: Manifest) -> tuple[int, int]:
        """Return how many updates of strangers the organiser's node holds, and the bytes of segments."""
        path = Layout(self.local.nodes[0].folder).log
        with UpdateLog.open(path, run.run_id, read_only=True) as log:
            feeds = [tail.feed for tail in log.ends() if tail.feed.origin.hex() not in self._origins]
            sizes = [size for feed in feeds for size in _segments(log, feed, run)]
        return sum(updates for updates, _ in sizes), sum(length for _, length in sizes)


def _segments(log: UpdateLog, feed: Feed, run: Manifest) -> Iterator[tuple[int, int]]:
    """Yield how many updates each segment of a feed has, and its bytes."""
    first = 0
    while segment := log.read(feed, first, MAX_SEGMENT_UPDATES):
        yield segment.count, len(wire_codec.encode(segment, run.training.scalar_bits // 8))
        first = segment.stop


async def _pause(node: NodeProcess) -> None:
    await node.answering()
    await node.client.pause()


def _cpu_of(status: Status | None) -> float:
    """Return the seconds of processor time of a node and its daemon."""
    assert status is not None
    node = psutil.Process(status.pid)
    times = [one.cpu_times() for one in (node, *node.children(recursive=True))]
    return float(sum(one.user + one.system for one in times))


async def measure(name: str, attack: str, folder: Path, asked: argparse.Namespace) -> Row:
    """Return what becomes of a run in peace or under an attack."""
    manifest = Manifest.from_toml(folder / RUN)
    share = manifest.training.update_budget // (asked.honest + asked.strangers)
    order = {"attack": attack, "pace": SLOW if asked.slow else 1.0, "after": asked.after or share // 4}
    os.environ[ORDER] = json.dumps(order | {"home": str(folder)})
    local = LocalSwarm(manifest, nodes=asked.honest, folder=folder, threads=1, evaluate=False, beside=folder)
    swarm = Swarm(local, folder)
    async with local:
        try:
            await swarm.begin(asked.strangers if attack else 0, late=attack == labels.__name__)
            return await watched(name, attack, swarm, manifest, asked.seconds)
        finally:
            await asyncio.gather(*(stranger.stop() for stranger in swarm.strangers))


async def watched(name: str, attack: str, swarm: Swarm, run: Manifest, seconds: float) -> Row:
    """Watch a run for so long at most, and end it; return what has become of it."""
    budget, begun, came = run.training.update_budget, time.monotonic(), None
    now, over = await swarm.sample(begun)
    cpu, before, course = swarm.cpu(), now.made, [now]
    curve: dict[int, tuple[int, float]] = {}
    """By how many evaluations there were."""
    while not over and now.seconds < seconds:
        late = now.open_epoch >= LATE or now.counted >= LATE_SHARE * budget
        if late and swarm.let_in():
            came = now.seconds
        await asyncio.sleep(POLL_INTERVAL)
        now, over = await swarm.sample(begun)
        if now.evaluated:
            curve.setdefault(now.evaluated, (now.counted, now.loss))
        if now.seconds >= course[-1].seconds + SAMPLED:
            course.append(now)
    spent, made = swarm.cpu() - cpu, now.made - before
    honest, others, revoked = await swarm.members()
    equal, same = await swarm.end()
    last, _ = await swarm.sample(begun)  # what was measured of the last seal may have come since
    curve.setdefault(last.evaluated, (last.counted, last.loss))
    result = await swarm.local.nodes[0].client.evaluate()
    held, length = swarm.held(run)
    return Row(
        name, attack, now.seconds, made, honest, round(made / spent, 1), round(spent, 1), now.counted,
        round(now.counted / budget, 3), now.counted >= budget, over and now.counted < budget, now.open_epoch,
        now.sealed, round(result.value, 4), round(result.loss, 4), last.loss, equal, same, held, length,
        others, revoked, came, (*course, now), tuple(curve.values()),
    )  # fmt: skip


# -- pairs of runs -------------------------------------------------------------------------------------


def make_run(name: str, folder: Path, budget: int) -> None:
    """Make a run as its owner does."""
    folder.mkdir(parents=True)
    chosen = ["--update-budget", str(budget)] if budget else []
    subprocess.run(
        [sys.executable, "-m", "sfnode", "init", RUN, "--name", name, "--keys-dir", "keys", *chosen],
        cwd=folder, check=True, capture_output=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def behind(attack: Row, peace: Row) -> float:
    """Return by how much a run's last evaluation is worse than what as many updates have given in peace."""
    counted, loss = attack.curve[-1]
    known = np.array(peace.curve)
    return loss - float(np.interp(counted, known[:, 0], known[:, 1]))


def line(row: Row, of: Row | None = None) -> str:
    """Return a run as a line of the table; `of` a pair."""
    late = f"{behind(row, of):+.3f}" if of else ""
    complete = "yes" if row.complete else "ended" if row.ended else "no"
    figures = (
        row.run, row.attack or "peace", f"{row.seconds:.0f}", f"{row.made:,}", f"{row.honest_counted:,}",
        f"{row.per_cpu_second:.1f}", f"{row.counted:,} ({row.share:.0%})", complete,
        f"{row.epochs}", f"{row.metric:.3f} / {row.loss:.3f}", late, "yes" if row.equal else "NO",
        f"{row.held:,} ({row.held_bytes:,} B)", f"{row.strangers_counted:,}", f"{row.revoked}",
    )  # fmt: skip
    return f"| {' | '.join(figures)} |"


HEAD = (
    "| run | attack | s | made | counted | per CPU s | of the budget | complete | epochs | accuracy / loss "
    "| behind | equal | held of strangers | counted | revoked |"
)


def ratios(attack: str, pairs: Sequence[tuple[Row, Row]]) -> str:
    """Return what an attack costs over all its pairs, in words."""

    def told(name: str) -> str:
        found = [getattr(row, name) / max(1e-9, getattr(peace, name)) for peace, row in pairs]
        return f"{statistics.median(found):.2f} (lowest {min(found):.2f})"

    names = {
        "made": "made",
        "counted": "honest_counted",
        "per CPU second": "per_cpu_second",
        "counted per CPU second": "counted_per_cpu_second",
        "seconds": "seconds",
    }
    words = ", ".join(f"{word} {told(name)}" for word, name in names.items())
    between = interval([row.loss - peace.loss for peace, row in pairs])
    assert between is not None
    span = f" [{between.low:+.4f}, {between.high:+.4f}]" if between.seeds > 1 else " (one run)"
    return f"{attack} / peace: {words}; loss differs by {between.mean:+.4f}{span}"


def main() -> None:
    """Read the command line, make the runs in turns, print what has become of them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--attack", nargs="+", default=["all"], choices=[*NAMES, "all", "peace"])
    parser.add_argument("--runs", type=int, default=1, help="run names, each in peace and under attack")
    parser.add_argument("--seconds", type=float, default=90.0, help="most of a run")
    parser.add_argument("--honest", type=int, default=2, help="honest nodes, the organiser's included")
    parser.add_argument("--strangers", type=int, default=1, help="who act together, each with its work")
    parser.add_argument("--budget", type=int, default=0, help="updates [default: 3,000, as init has]")
    parser.add_argument("--slow", action="store_true", help="strangers make a tenth of their updates")
    parser.add_argument("--after", type=int, default=0, help="good updates of a turncoat")
    parser.add_argument("--folder", type=Path, help="where the nodes' folders are kept")
    asked = parser.parse_args()
    attacks = NAMES if "all" in asked.attack else asked.attack
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    pairs: dict[str, list[tuple[Row, Row]]] = {}
    shown = [HEAD, "|---" * (HEAD.count("|") - 1) + "|"]
    with tempfile.TemporaryDirectory() as scratch:
        home = asked.folder or Path(scratch)
        for number in range(1, asked.runs + 1):
            name = f"strangers-{number}"
            make_run(name, home / name, asked.budget)
            for attack in attacks:
                rows = []
                for turn in ("", *((attack,) if attack != "peace" else ())):
                    folder = home / f"{name}-{attack}-{turn or 'peace'}"
                    shutil.copytree(home / name, folder)
                    rows.append(asyncio.run(measure(name, turn, folder, asked)))
                    print(json.dumps(rows[-1]._asdict()), flush=True)
                shown += [line(rows[0]), *(line(row, rows[0]) for row in rows[1:])]
                if len(rows) > 1:
                    pairs.setdefault(attack, []).append((rows[0], rows[1]))
    print("\n".join(("", *shown, "", *(ratios(attack, found) for attack, found in pairs.items()))))


if __name__ == "__main__":
    if sys.argv[1:2] == [STRANGER]:
        be_stranger(**json.loads(os.environ[ORDER]))
    else:
        main()
