"""Helpers of these tests for the nodes of one run: watch them, complete the run, compare them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path

from sfnode.preparing.manifest import build
from sfnode.schema.status import Status
from tests.network.completion import complete_run
from tests.processes.helpers import PATIENCE, Node, until

BATCH = 64
"""Rows per update: one then takes 0.03 s, and a swarm makes a few hundred during a test."""

BUDGET = 20_000
"""Update budget: more than are made before `complete_run`, and two segments of its own."""

NICENESS = 15
"""Niceness of nodes while another one completes the run."""


def write_run(home: Path, budget: int = BUDGET) -> str:
    """Write a manifest whose run does not complete during a test; return its run id."""
    manifest = build({"batch_size": BATCH, "update_budget": budget})
    (home / "run.toml").write_text(manifest.to_toml())
    return manifest.run_id.hex()


def trains(node: Node) -> Status:
    return node.until("it trains", lambda status: status.own_updates > 3)


def linked(node: Node, *others: Node) -> Status:
    """Wait until it has a link with each of the others."""
    peers = {status.peer for status in map(alive, others)}
    return node.until("it has its links", lambda s: peers <= {link.peer for link in s.links})


def meets(node: Node, other: Node) -> bool:
    """Return whether it has a link with that node."""
    status, peer = node.status(), other.status()
    return bool(status and peer and peer.peer in {link.peer for link in status.links})


def alive(node: Node) -> Status:
    return node.until("it answers", lambda status: True)


def trained_on(node: Node, before: Status, updates: int = 5) -> Status:
    """Wait until it has made some more updates than `before`."""
    return node.until("it trains on", lambda status: status.own_updates >= before.own_updates + updates)


def finish(
    home: Path, through: Node, nodes: Iterable[Node], inside: AbstractContextManager[object] | None = None
) -> list[Status]:
    """Complete the run with a node that joins `through` one of them; return their statuses once they agree.

    `inside` is the namespace of that node, if not this machine's own network.
    """
    everyone = list(nodes)
    for node in everyone:
        yield_cores(node)
    with inside or nullcontext():
        complete_run(home / "completion", alive(through).addresses[0])
    return agreement(everyone)


def yield_cores(node: Node) -> None:
    """Give other processes priority over this node; on Linux every thread has its own niceness."""
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{node.pid}/task"):
            os.setpriority(os.PRIO_PROCESS, int(thread), NICENESS)


def agreement(nodes: Iterable[Node]) -> list[Status]:
    """Return the statuses of all once they report that the run is complete and have the same digest."""
    everyone = list(nodes)

    def agreed() -> list[Status] | None:
        complete = [status for node in everyone if (status := node.status()) and status.state == "complete"]
        equal = len({status.digest for status in complete}) == 1
        return complete if equal and len(complete) == len(everyone) else None

    try:
        return until("all agree", agreed)
    except AssertionError as error:
        raise AssertionError(f"{error}: {[brief(node) for node in everyone]}") from None


def brief(node: Node) -> str:
    status = node.status()
    if status is None:
        return f"{node.folder.name}: no answer"
    return f"{node.folder.name}: {status.state} {status.known} {status.digest[:8]} links {len(status.links)}"


def no_tracebacks(nodes: Iterable[Node]) -> None:
    """Assert that no node has logged a traceback."""
    for node in nodes:
        assert "Traceback" not in node.output(), node.output()


def seconds_until(what: str, condition: Callable[[], object], patience: float = PATIENCE) -> float:
    """Return the seconds until `condition` is true."""
    since = time.monotonic()
    until(what, condition, patience)
    return time.monotonic() - since
