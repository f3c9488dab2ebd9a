"""What the tests of this folder do with the nodes of one run: watch them, end the run, compare them."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path

from network_finisher import complete_run
from process_helpers import PATIENCE, Node, until

from sfnode.cli.draft import build
from sfnode.runtime.status import Status

BATCH = 64
"""Rows of an update: one then costs 0.03 s, and a swarm makes a few hundred while a test looks at it."""

BUDGET = 20_000
"""Updates: more than are made here before the finisher comes, and two segments of its own."""


POLITE = 15
"""How nice a trainer is to a node that is being started."""


def write_run(home: Path) -> str:
    """A manifest whose run does not end by itself; its run id."""
    manifest = build({"batch_size": BATCH, "update_budget": BUDGET})
    (home / "run.toml").write_text(manifest.to_toml())
    return manifest.run_id.hex()


def trains(node: Node) -> Status:
    return node.until("it trains", lambda status: status.own_updates > 3)


def linked(node: Node, *others: Node) -> Status:
    """Once it has a link with each of the others."""
    peers = {status.peer for status in map(alive, others)}
    return node.until("it has its links", lambda s: peers <= {link.peer for link in s.links})


def meets(node: Node, other: Node) -> bool:
    """Whether it has a link with that node."""
    status, peer = node.status(), other.status()
    return bool(status and peer and peer.peer in {link.peer for link in status.links})


def alive(node: Node) -> Status:
    return node.until("it answers", lambda status: True)


def trained_on(node: Node, before: Status, updates: int = 5) -> Status:
    """Once it has made some more updates than `before`."""
    return node.until("it trains on", lambda status: status.own_updates >= before.own_updates + updates)


def finish(
    home: Path, through: Node, nodes: Iterable[Node], inside: AbstractContextManager[object] | None = None
) -> list[Status]:
    """Have the run completed by a node that joins `through` one of them; what all say once they agree.

    `inside` is where that node runs, if not on this machine's own network.
    """
    everyone = list(nodes)
    for node in everyone:
        yield_cores(node)
    with inside or nullcontext():
        complete_run(home / "finisher", alive(through).addresses[0])
    return agreement(everyone)


def yield_cores(node: Node) -> None:
    """Let other processes have the cores before this node has them; Linux counts every thread by itself."""
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{node.pid}/task"):
            os.setpriority(os.PRIO_PROCESS, int(thread), POLITE)


def agreement(nodes: Iterable[Node]) -> list[Status]:
    """What all say once they say that the run is complete and have the same digest."""
    everyone = list(nodes)

    def agreed() -> list[Status] | None:
        said = [status for node in everyone if (status := node.status()) and status.state == "complete"]
        return said if len(said) == len(everyone) and len({s.digest for s in said}) == 1 else None

    try:
        return until("all agree", agreed)
    except AssertionError as error:
        raise AssertionError(f"{error}: {[brief(node) for node in everyone]}") from None


def brief(node: Node) -> str:
    status = node.status()
    if status is None:
        return f"{node.folder.name}: no answer"
    return f"{node.folder.name}: {status.state} {status.known} {status.digest[:8]} links {len(status.links)}"


def composed(nodes: Iterable[Node]) -> None:
    """No node has met anything that it did not expect."""
    for node in nodes:
        assert "Traceback" not in node.output(), node.output()


def seconds_until(what: str, condition: Callable[[], object], patience: float = PATIENCE) -> float:
    """How long it takes until `condition` is true."""
    since = time.monotonic()
    until(what, condition, patience)
    return time.monotonic() - since


def said_since(node: Node, start: int, words: str) -> bool:
    """Whether the node's log has these words (a regular expression) after its first `start` characters."""
    return re.search(words, node.output()[start:]) is not None
