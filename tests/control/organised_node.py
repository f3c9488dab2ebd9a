"""The control API of a node of an organised run, with a real machine and an organiser that signs
decisions."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

from sfnode.control.server import serve
from sfnode.manifest import Manifest
from sfnode.organising import owner_decisions
from sfnode.organising.organiser import OrganiserState
from sfnode.organising.reporting.alarms import Restarted
from sfnode.organising.reporting.reports import Reports
from sfnode.peers.invitations import compose, invite
from sfnode.preparing.manifest import build
from sfnode.store.data_folder import Layout
from sfprotocol import decisions
from sfprotocol.control_feed import decision_message, extend
from sfprotocol.decisions import Announce, Decision
from sfprotocol.events import Event, OwnDecision
from sfprotocol.messages import PROTOCOL_VERSION, ControlFork, Entry, JoinRequest
from tests.protocol.feeds import origin_of, own_updates, signing_key
from tests.protocol.swarm import Swarm

DEPUTIES = ("d1", "d2", "d3")
QUOTA = 40
BEGAN = 1_700_000_000
"""Time at which the first decision arrived."""

ADDRESS = "/ip4/9.9.9.9/tcp/31337/p2p/QmSelf"


def organised_run(protocol: int = PROTOCOL_VERSION, **training: object) -> Manifest:
    fields = build({}).fields() | {"protocol": protocol}
    fields["admission"] = "organised"
    fields["organised"] = {
        "organiser": origin_of("organiser").hex(),
        "deputies": [origin_of(name).hex() for name in DEPUTIES],
        "votes": 2,
        "quota": QUOTA,
    }
    fields["training"] |= {"schedule": "constant"} | training
    return Manifest.model_validate(fields)


class Organising:
    """An organiser that signs every valid decision at once."""

    def __init__(self, node: OrganisedNode) -> None:
        self.state = OrganiserState.ORGANISING
        self.restarted: Restarted | None = None
        self.guarded = self.cut_off = False
        self.handed_over: list[bytes] = []
        self.offered: dict[int, bytes] = {}
        self.waiting: list[JoinRequest] = []
        self._node = node

    def join_requests(self) -> list[JoinRequest]:
        return self.waiting

    def offers(self) -> dict[int, bytes]:
        return self.offered

    def hand_over(self, key: bytes) -> None:
        self.handed_over.append(key)

    async def decide(self, decision: Decision) -> str | None:
        reason = owner_decisions.refusal(self._node.organised.run_state, decision)
        if reason is None:
            self._node.decide(decision)
        return reason


class OrganisedNode:
    """Node "a" of a run. The control API is given `api` as the running node."""

    def __init__(self, protocol: int = PROTOCOL_VERSION, **training: object) -> None:
        self.manifest = organised_run(protocol, **training)
        self.swarm = Swarm(run=self.manifest.parameters(), organiser="a")
        self.swarm.add("a")
        organised = self.swarm["a"].machine.organised
        assert organised is not None
        self.organised = organised
        self.organising = Organising(self)
        self.api: Any = Mock()
        self.api.manifest = self.manifest
        self.api.machine = self.swarm["a"].machine
        self.api.reports = Reports(self.manifest, organised, 0.0)
        self.api.driver.post = self.post
        self.api.clock = lambda: self.swarm.now
        self.api.log = Mock(spec_set=["arrival"], arrival={0: BEGAN}.get)
        self.api.organising = self.organising
        self.api.views.invitation = lambda: invite(
            self.manifest, compose(self.manifest.run_id, [ADDRESS], [])
        )

    def post(self, event: Event) -> None:
        self.swarm["a"].handle(event)

    def decide(self, *said: Decision) -> None:
        for decision in said:
            self.post(OwnDecision(decisions.encode(decision)))

    def compute(self, updates: int) -> None:
        """Make own updates within the run's limit."""
        made = own_updates(self.swarm["a"].host, updates, lambda: 1)
        assert made
        self.post(made)

    def fork(self) -> None:
        """Sign another decision by the organiser's key in place of the last one."""
        feed, record = self.organised.control.feed, decisions.encode(Announce("otherwise"))
        run_id, position = self.manifest.run_id, feed.stop - 1
        chain = extend(feed.chains[position], feed.term, record)
        signature = signing_key("organiser").sign(decision_message(run_id, feed.term, feed.stop, chain))
        fork = feed.add(position, [Entry(feed.term, record, signature)])
        assert isinstance(fork, ControlFork)
        self.organised.control.heard_authority(None, fork, self.swarm.now)
        assert feed.frozen

    @contextmanager
    def served(self, folder: Path) -> Iterator[None]:
        """Serve the control socket of this folder from another thread."""
        folder.mkdir()
        loop, ready = asyncio.new_event_loop(), threading.Event()
        ended = asyncio.Event()

        async def live() -> None:
            close = await serve(self.api, Layout(folder).control_socket)
            ready.set()
            await ended.wait()
            await close()

        thread = threading.Thread(target=loop.run_until_complete, args=(live(),), daemon=True)
        thread.start()
        assert ready.wait(10)
        try:
            yield
        finally:
            loop.call_soon_threadsafe(ended.set)
            thread.join()
            loop.close()
