"""What a node says about itself: fills in the shape that `status` fixes from the node's parts."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import sfnode
from sfnode.runtime.status import FetchStatus, LinkStatus, Status

if TYPE_CHECKING:
    from sfnode.runtime.node import RunningNode
    from sfnode.transport.base import Link
    from sfprotocol.flood import Link as LinkState


def describe(node: RunningNode) -> Status:
    """The node's status as of now."""
    machine, training, traffic = node.machine, node.training, node.driver.traffic
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
        origin=machine.own.origin.hex() if machine.own else "",
        incarnation=machine.own.incarnation if machine.own else 0,
        own_updates=training.made if training else 0,
        contributed=machine.frontier.next(machine.own) if machine.own else 0,
        updates_per_second=training.rate() if training else 0.0,
        loss=training.loss if training else None,
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
        pauses=node.guest.told(),
        limits=node.guest.limits,
    )


def carried(node: RunningNode) -> tuple[int, int]:
    """Bytes sent and received over all links since the start."""
    traffic, links = node.driver.traffic, [pump.link for pump in node.driver.pumps.values()]
    sent = traffic.sent + sum(link.bytes_sent for link in links)
    return sent, traffic.received + sum(link.bytes_received for link in links)


def greeted(node: RunningNode) -> list[tuple[LinkState, Link]]:
    """The links on which the peer has introduced itself."""
    pairs = ((node.machine.links.get(key), pump.link) for key, pump in node.driver.pumps.items())
    return [(state, link) for state, link in pairs if state is not None and state.greeted]


def role_of(number: int) -> str:
    """In a word (SPEC L2)."""
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


def _state(node: RunningNode) -> str:
    """One of the words of `Status.state`."""
    training = node.training
    if node.machine.complete and not (training and training.busy):
        return "complete"
    if training is None:
        return "idle"
    if not node.engine_loaded:
        return "starting"
    if node.guest.finishing:
        return "finishing"
    if node.guest.paused:
        return "paused"
    if not training.ready:
        return "catching-up"
    if not (node.machine.may_compute or training.busy):
        return "asking"
    return "idle" if training.exhausted and not training.busy else "training"
