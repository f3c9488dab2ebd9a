"""A run whose nodes know only peers of Hivemind's DHT: the command `hivemind-dht` as its package installs
it."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from sfnode.manifest import Manifest
from sfnode.schema.node_state import Wait
from sfnode.schema.status import Status
from tests.processes.forked import Forked, hivemind_dht
from tests.processes.helpers import LOOPBACK, environment, nodes, sfnode, until
from tests.processes.test_restarts import end, move

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

TRAINER = (*LOOPBACK, "--set", "node.samples=0", "--limit", "cpu=25")
RELAY = (*LOOPBACK, "--role", "relay")


NO_NODE = "is a peer of Hivemind's DHT and no node: it leads to nodes of the run, and relays nothing of it"


def waits(status: Status) -> bool:
    """Return whether a node waits because it has found no other node."""
    return status.wait is not None and status.wait.reason is Wait.NODES


class PlainPeer:
    """A process of `hivemind-dht`."""

    def __init__(self, home: Path, name: str, *initial: str) -> None:
        self._output = home / f"{name}.out"
        words = ("--host_maddrs", LOOPBACK[1], *(("--initial_peers", *initial) if initial else ()))
        files = self._output, self._output
        self._process = Forked(words, environment(home), home, *files, main=hivemind_dht)
        found = until(f"the address of {name}", self._address)
        self.address = found[0]

    def _address(self) -> re.Match[str] | None:
        said = self._output.read_text() if self._output.exists() else ""
        return re.search(r"/ip4/127\.0\.0\.1/tcp/\d+/p2p/\w+", said)

    def die(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(10)


@contextmanager
def plain_peers(home: Path) -> Iterator[Callable[..., PlainPeer]]:
    """Yield a function that starts plain peers. All of them have ended after the block."""
    made: list[PlainPeer] = []

    def make(*arguments: str) -> PlainPeer:
        made.append(PlainPeer(home, *arguments))
        return made[-1]

    try:
        yield make
    finally:
        for peer in made:
            peer.die()


def test_a_run_begins_grows_and_comes_back_through_peers_of_hivemind_alone(tmp_path: Path) -> None:
    made = sfnode(
        tmp_path, "init", "--model", "builtin:tiny", "--task", "reviews",
        "--set", "training.update_budget=1000000", "--set", "task.loss=plain", "--set", "init.measure=no",
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    run_id = Manifest.from_toml(tmp_path / "run.toml").run_id.hex()
    with plain_peers(tmp_path) as start, nodes(tmp_path) as make:
        first = start("first")
        second = start("second", first.address)
        third = start("third", second.address)

        alone = ("--run", "run.toml", "--organise", "--peers", first.address)
        organiser = make("organiser", *alone, *TRAINER).start()
        organiser.until("it waits for others", waits)
        organiser.until("it begins", lambda status: status.known > 0)

        named = ("--set", f"run.id={run_id}", "--peers", second.address, "--peers", third.address)
        member = make("member", *named, *RELAY).start()
        member.until("it has found the run", lambda status: status.known > 0)
        assert member.output().count(NO_NODE) == 2

        third.die()
        answers = {third.address: "gave no answer", second.address: NO_NODE, organiser.address(): "is a node"}
        given = [word for address in answers for word in ("--peers", address)]
        late = make("late", "--run", "run.toml", *given, *RELAY).start()
        known = late.until("it is in the run", lambda status: status.known > 0).known
        assert all(f"{address} {what}" in late.output() for address, what in answers.items())

        end([organiser, member, late])
        member.start()
        member.until("it waits for others", waits)
        assert "looks for others in the DHT" in member.output()
        move(organiser)  # of all addresses that the member remembers, only that of `second` is still right
        organiser.start()
        member.until("it is in the run again", lambda status: status.links and status.known > known)
