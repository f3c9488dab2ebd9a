"""One node under attack, and what it costs that node: memory, processor time, training speed."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from network_swarm import alive
from process_helpers import Node, environment, p2pd_of, until

STRANGER = (sys.executable, str(Path(__file__).with_name("network_stranger.py")))
MIB = 1 << 20
POLL = 0.1
GRACE = 5.0


class Stranger:
    """The hostile process. Its answers arrive in the order of our orders; news come whenever they come."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._answers: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.left: dict[str, list[float]] = {"silent": [], "stalled": []}
        """How long links with our mute peers have lasted."""
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        self.answer()

    def order(self, **order: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()

    def answer(self, patience: float = 120.0) -> dict[str, Any]:
        """Raises queue.Empty."""
        answer = self._answers.get(timeout=patience)
        assert "failed" not in answer, answer
        return answer

    def close(self) -> None:
        """After the process has ended."""
        self._listener.join(GRACE)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            if "left" in said:
                self.left[said["left"]].append(said["after"])
            else:
                self._answers.put(said)


@contextmanager
def stranger(home: Path) -> Iterator[Stranger]:
    """It is gone after the block, and so are its daemons."""
    with (home / "stranger.log").open("w") as said:
        process = subprocess.Popen(
            STRANGER,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
            env=environment(home),
        )
        enemy = Stranger(process)
        try:
            yield enemy
        finally:
            family = psutil.Process(process.pid).children(recursive=True)
            assert process.stdin is not None
            process.stdin.close()  # it then ends by itself, and removes its sockets
            with suppress(subprocess.TimeoutExpired):
                process.wait(GRACE)
            for one in (child for child in family if child.is_running()):
                one.kill()
            process.kill()
            process.wait()
            enemy.close()


class Sample(NamedTuple):
    """A node at one moment."""

    at: float
    updates: int
    node_cpu: float
    daemon_cpu: float


class Row(NamedTuple):
    """A node over some time."""

    name: str
    seconds: float
    updates_per_second: float
    node_cpu: float
    """Share of one core; likewise the next."""
    daemon_cpu: float
    node_rss: float
    """Most memory at any moment, MiB; likewise the next."""
    daemon_rss: float
    did: dict[str, Any]
    """What the stranger says that it did."""

    @property
    def updates_per_cpu_second(self) -> float:
        """How much of the processor time that node and daemon get goes into training."""
        return self.updates_per_second / (self.node_cpu + self.daemon_cpu)


class Gauge:
    """Measures one node and its network daemon."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._process = psutil.Process(node.pid)
        self._daemon = until("a daemon", lambda: p2pd_of(node))

    def watch(self, name: str, seconds: float) -> Row:
        """Some time in which nothing happens."""
        give_up = time.monotonic() + seconds
        return self._until(name, lambda: {} if time.monotonic() > give_up else None)

    def attack(self, stranger: Stranger, name: str, seconds: float) -> Row:
        """One attack from its beginning to its end."""
        stranger.order(
            attack=name, address=self._node.address(), run=alive(self._node).run_id, seconds=seconds
        )

        def ended() -> dict[str, Any] | None:
            try:
                return stranger.answer(0.0)
            except queue.Empty:
                return None

        return self._until(name, ended)

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
