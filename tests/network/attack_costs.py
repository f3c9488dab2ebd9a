"""Measures what attacks cost a node: memory, CPU time, training speed."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from tests.network.swarm import alive
from tests.processes.helpers import PATIENCE, Node, environment, p2pd_of, until

ATTACKER = (sys.executable, str(Path(__file__).with_name("attacker.py")))
MIB = 1 << 20
POLL = 0.1
GRACE = 5.0

ENOUGH = 32
"""Minimum number of the node's updates in a measurement. With fewer, the result would mostly depend on how a
busy machine divides its cores."""


class Attacker:
    """The hostile process (`attacker.py`). Its answers arrive in the order of the orders; its reports arrive
    at any time."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._answers: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.left: dict[str, list[float]] = {"silent": [], "stalled": []}
        """Durations, in seconds, of the victim's links with mute peers that have ended, keyed by kind of
        peer."""
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        self.answer()

    def order(self, **order: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()

    def answer(self, patience: float = 120.0) -> dict[str, Any]:
        """Wait for an answer. Raises queue.Empty after `patience` seconds."""
        answer = self._answers.get(timeout=patience)
        assert "failed" not in answer, answer
        return answer

    def close(self) -> None:
        """Close the pipe of the process, which must have ended."""
        self._listener.join(GRACE)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            message = json.loads(line)
            if "left" in message:
                self.left[message["left"]].append(message["after"])
            else:
                self._answers.put(message)


@contextmanager
def attacker(home: Path) -> Iterator[Attacker]:
    """Run an attacker within the block. After the block, the attacker and its daemons have ended."""
    with (home / "attacker.log").open("w") as output:
        process = subprocess.Popen(
            ATTACKER,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            text=True,
            env=environment(home),
        )
        enemy = Attacker(process)
        try:
            yield enemy
        finally:
            family = psutil.Process(process.pid).children(recursive=True)
            assert process.stdin is not None
            process.stdin.close()  # then it ends by itself, and removes its sockets
            with suppress(subprocess.TimeoutExpired):
                process.wait(GRACE)
            for one in (child for child in family if child.is_running()):
                one.kill()
            process.kill()
            process.wait()
            enemy.close()


class Sample(NamedTuple):
    """Counters of a node at one moment."""

    at: float
    updates: int
    node_cpu: float
    daemon_cpu: float


class Row(NamedTuple):
    """Results of one measurement."""

    name: str
    seconds: float
    updates_per_second: float
    node_cpu: float
    """Mean number of cores used; likewise `daemon_cpu`."""
    daemon_cpu: float
    node_rss: float
    """Peak resident memory in MiB; likewise `daemon_rss`."""
    daemon_rss: float
    did: dict[str, Any]
    """The attacker's report, with its numbers of streams, bytes and others."""

    @property
    def updates_per_cpu_second(self) -> float:
        """Updates per second of CPU time of node and daemon together."""
        return self.updates_per_second / (self.node_cpu + self.daemon_cpu)


class Meter:
    """Measures one node and its network daemon."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._process = psutil.Process(node.pid)
        self._daemon = until("a daemon", lambda: p2pd_of(node))

    def watch(self, name: str, seconds: float) -> Row:
        """Measure for at least `seconds` and `ENOUGH` updates, without an attack."""
        give_up, enough = time.monotonic() + seconds, self._enough()
        return self._until(name, lambda: {} if time.monotonic() > give_up and enough() else None)

    def attack(self, enemy: Attacker, name: str, seconds: float) -> Row:
        """Measure one attack from start to end. The attack is repeated until the node has made `ENOUGH`
        updates."""
        address, run_id, enough = self._node.address(), alive(self._node).run_id, self._enough()

        def begin() -> None:
            enemy.order(attack=name, address=address, run=run_id, seconds=seconds)

        def ended() -> dict[str, Any] | None:
            try:
                did = enemy.answer(0.0)
            except queue.Empty:
                return None
            if enough():
                return did
            begin()
            return None

        begin()
        return self._until(name, ended)

    def _enough(self) -> Callable[[], bool]:
        """Return a function that tells whether the node has made `ENOUGH` updates since now, or `PATIENCE` is
        over."""
        wanted, give_up = alive(self._node).own_updates + ENOUGH, time.monotonic() + PATIENCE
        return lambda: alive(self._node).own_updates >= wanted or time.monotonic() > give_up

    def _until(self, name: str, ended: Any) -> Row:
        before, most_node, most_daemon = self._sample(), 0, 0
        while (did := ended()) is None:
            most_node = max(most_node, self._process.memory_info().rss)
            most_daemon = max(most_daemon, self._daemon.memory_info().rss)
            time.sleep(POLL)
        after = self._sample()
        seconds = after.at - before.at
        return Row(
            name,
            seconds,
            (after.updates - before.updates) / seconds,
            (after.node_cpu - before.node_cpu) / seconds,
            (after.daemon_cpu - before.daemon_cpu) / seconds,
            most_node / MIB,
            most_daemon / MIB,
            did,
        )

    def _sample(self) -> Sample:
        updates = alive(self._node).own_updates
        own, daemon = self._process.cpu_times(), self._daemon.cpu_times()
        return Sample(time.monotonic(), updates, own.user + own.system, daemon.user + daemon.system)
