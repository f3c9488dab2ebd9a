"""A test swarm of an organised run whose nodes keep real logs beside the ones in memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from sfnode.node.driver import LogStore
from sfnode.store.log import UpdateLog
from sfprotocol import decisions
from sfprotocol.decisions import FACTOR_ONE, Admit, RateFrom, Seal
from sfprotocol.events import OwnDecision
from sfprotocol.host import Commit
from tests.protocol import test_organised
from tests.protocol.feeds import RUN, origin_of
from tests.protocol.organised import closing, digest_named
from tests.protocol.swarm import Node, Swarm

ORGANISED = replace(test_organised.ORGANISED, subspace_epochs=2)


class Logged:
    """A swarm whose organiser is node a. Every node's commits are written to `logs[name]`, too."""

    def __init__(self, folder: Path, names: str = "a b c", *, quota: int = 100) -> None:
        self.folder = folder
        self.swarm = Swarm(run=ORGANISED, organiser="a")
        self.logs: dict[str, UpdateLog] = {}
        for name in names.split():
            self.keep(self.swarm.add(name))
        self.swarm.mesh()
        self.swarm.run(1)
        for name in names.split():
            self.decide(Admit(origin_of(name), quota, 0))
        self.swarm.run(2)

    def __getitem__(self, name: str) -> Node:
        return self.swarm[name]

    def keep(self, node: Node) -> None:
        """Write a node's commits to a log of its own from now on."""
        log = UpdateLog.open(self.folder / f"{node.name}.sqlite", RUN.run_id)
        store, append = LogStore(log, ORGANISED, lambda feed: None), node.append

        def both(commit: Commit) -> None:
            store.append(commit)
            append(commit)

        node.append = both  # type: ignore[method-assign]
        self.logs[node.name] = log

    def close_logs(self) -> None:
        for log in self.logs.values():
            log.close()

    def decide(self, decision: decisions.Decision) -> None:
        self["a"].handle(OwnDecision(decisions.encode(decision)))

    def close(self) -> None:
        """Close the open epoch with everything that the organiser holds."""
        self.decide(closing(self["a"].machine.frontier))

    def named_digest(self, epoch: int) -> bytes:
        """Return the named digest of an epoch, by the organiser's log."""
        a = self["a"]
        run_state = a.machine.frontier.run_state
        assert run_state is not None
        return digest_named(ORGANISED, run_state, epoch, lambda *place: a.log.past(RUN, *place)[0])

    def seal(
        self,
        *skipped: int,
        factor: int = FACTOR_ONE,
        rates: tuple[RateFrom, ...] = (),
        digest: bytes | None = None,
    ) -> None:
        run_state = self["a"].machine.frontier.run_state
        assert run_state is not None
        epoch = run_state.sealed
        self.decide(Seal(epoch, skipped, (), digest or self.named_digest(epoch), factor, rates))
