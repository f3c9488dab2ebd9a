"""Helpers for the nodes of one run: watch them, complete the run, compare them."""

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
"""Rows per update. An update then takes 0.03 s, and a swarm makes a few hundred updates during a test."""

BUDGET = 20_000
"""Update budget. It exceeds the updates made before `complete_run` by at least two segments."""

NICENESS = 15
"""Niceness of nodes while another one completes the run."""


def write_run(home: Path, budget: int = BUDGET) -> str:
    """Write the manifest of a run that does not complete during a test. Return its run id."""
    manifest = build({"batch_size": BATCH, "update_budget": budget})
    (home / "run.toml").write_text(manifest.to_toml())
    return manifest.run_id.hex()


def trains(node: Node) -> Status:
    return node.until("it trains", lambda status: status.own_updates > 3)


def linked(node: Node, *others: Node) -> Status:
    """Wait until `node` has a link with each of the others."""
    peers = {status.peer for status in map(alive, others)}
    return node.until("it has its links", lambda s: peers <= {link.peer for link in s.links})


def meets(node: Node, other: Node) -> bool:
    """Return whether `node` has a link with `other`."""
    status, peer = node.status(), other.status()
    return bool(status and peer and peer.peer in {link.peer for link in status.links})


def alive(node: Node) -> Status:
    return node.until("it answers", lambda status: True)


def trained_on(node: Node, before: Status, updates: int = 5) -> Status:
    """Wait until the node has made at least `updates` more updates than in its status `before`."""
    return node.until("it trains on", lambda status: status.own_updates >= before.own_updates + updates)


def finish(
    home: Path, through: Node, nodes: Iterable[Node], inside: AbstractContextManager[object] | None = None
) -> list[Status]:
    """Complete the run with another node, which joins through the node `through`. Return the statuses of
    `nodes` once they agree.

    `inside` is the namespace of the other node; None: this machine's own network.
    """
    everyone = list(nodes)
    for node in everyone:
        yield_cores(node)
    with inside or nullcontext():
        complete_run(home / "completion", alive(through).addresses[0])
    return agreement(everyone)


def yield_cores(node: Node) -> None:
    """Give other processes priority over this node. On Linux every thread has its own niceness."""
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{node.pid}/task"):
            os.setpriority(os.PRIO_PROCESS, int(thread), NICENESS)


def agreement(nodes: Iterable[Node]) -> list[Status]:
    """Wait until all nodes report that the run is complete, with the same digest. Return their statuses."""
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
    """Assert that no node has printed a traceback."""
    for node in nodes:
        assert "Traceback" not in node.output(), node.output()


def seconds_until(what: str, condition: Callable[[], object], patience: float = PATIENCE) -> float:
    """Wait until `condition` is true. Return the seconds that this took."""
    since = time.monotonic()
    until(what, condition, patience)
    return time.monotonic() - since
