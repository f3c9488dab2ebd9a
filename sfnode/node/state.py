"""The status of a running node, collected from its parts; its shape is `sfnode.schema.status.Status`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import sfnode
from sfnode.schema.node_state import NodeState
from sfnode.schema.status import FetchStatus, LinkStatus, Status

if TYPE_CHECKING:
    from sfnode.node.running import RunningNode
    from sfnode.transport.base import Link
    from sfprotocol.link import Link as ProtocolLink


def describe(node: RunningNode) -> Status:
    """Return the node's status as of now."""
    machine, scheduler, traffic = node.machine, node.scheduler, node.driver.traffic
    sent, received = carried(node)
    fetch = node.sharing.progress
    return Status(
        version=sfnode.__version__,
        run_id=node.manifest.run_id.hex(),
        run_name=node.manifest.name,
        role=node.settings.role,
        state=_state(node),
        pid=os.getpid(),
        peer=node.transport.peer,
        addresses=node.transport.addresses(),
        known=machine.frontier.known,
        update_budget=machine.run.update_budget,
        epoch=machine.run.epoch_of(machine.frontier.known),
        epochs=machine.run.last_epoch + 1,
        digest=machine.frontier.digest().hex(),
        origin=machine.own.origin.hex() if machine.own else None,
        incarnation=machine.own.incarnation if machine.own else None,
        own_updates=scheduler.made if scheduler else 0,
        contributed=machine.frontier.next(machine.own) if machine.own else 0,
        updates_per_second=scheduler.rate() if scheduler else 0.0,
        loss=scheduler.loss if scheduler else None,
        lacking=machine.lacking,
        links=_links(node),
        feed_count=len(machine.frontier),
        bytes_sent=sent,
        bytes_received=received,
        segment_bytes_sent=traffic.segment_bytes_sent,
        updates_sent=traffic.updates_sent,
        log_bytes=node.log.size_bytes(),
        uptime=node.clock() - node.started_at,
        fetch=FetchStatus(**fetch._asdict()) if fetch else None,
        pauses=node.limiter.reason_texts(),
        limits=node.limiter.limits,
    )


def carried(node: RunningNode) -> tuple[int, int]:
    """Return the bytes sent and received over all links since the start."""
    traffic, links = node.driver.traffic, [pump.link for pump in node.driver.pumps.values()]
    sent = traffic.sent + sum(link.bytes_sent for link in links)
    return sent, traffic.received + sum(link.bytes_received for link in links)


def greeted(node: RunningNode) -> list[tuple[ProtocolLink, Link]]:
    """Return the links whose peer has introduced itself."""
    pairs = ((node.machine.links.get(key), pump.link) for key, pump in node.driver.pumps.items())
    return [(state, link) for state, link in pairs if state is not None and state.greeted]


def role_of(number: int) -> str:
    """Return the name of a role (SPEC L2)."""
    return "relay" if number else "trainer"


def _links(node: RunningNode) -> list[LinkStatus]:
    return [
        LinkStatus(
            peer=link.peer,
            outbound=link.outbound,
            role=role_of(state.role),
            known=state.known,
            agrees=state.agreed,
            bytes_sent=link.bytes_sent,
            bytes_received=link.bytes_received,
        )
        for state, link in greeted(node)
    ]


def _state(node: RunningNode) -> NodeState:
    scheduler = node.scheduler
    if node.machine.complete and not (scheduler and scheduler.busy):
        return NodeState.COMPLETE
    if scheduler is None:
        return NodeState.IDLE
    if not node.engine_loaded:
        return NodeState.STARTING
    if node.limiter.finishing:
        return NodeState.FINISHING
    if node.limiter.paused:
        return NodeState.PAUSED
    if not scheduler.ready:
        return NodeState.CATCHING_UP
    if not (node.machine.may_compute or scheduler.busy):
        return NodeState.ASKING
    return NodeState.IDLE if scheduler.exhausted and not scheduler.busy else NodeState.TRAINING
