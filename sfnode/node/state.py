"""The status of a running node (`sfnode.schema.status.Status`), collected from its parts."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import sfnode
from sfnode.node import readiness
from sfnode.node.views import budget_of, carried, epochs_of, greeted, role_of
from sfnode.organising.reporting.alarms import shown
from sfnode.schema.node_state import NodeState, Wait
from sfnode.schema.status import (
    AlarmStatus,
    DeviceStatus,
    DoingStatus,
    LinkStatus,
    Status,
    WaitStatus,
)

if TYPE_CHECKING:
    from sfnode.node.running import RunningNode
    from sfprotocol.machine import Machine


def describe(node: RunningNode) -> Status:
    """Return the node's present status."""
    machine, scheduler, traffic = node.machine, node.model.scheduler, node.driver.traffic
    reports, now = node.reports, node.clock()
    sent, received = carried(node.context)
    fetch = node.sharing.progress
    return Status(
        version=sfnode.__version__,
        run_id=node.manifest.run_id.hex(),
        run_name=node.manifest.name,
        task=node.manifest.task.kind,
        role=node.settings.role,
        state=_state(node),
        pid=os.getpid(),
        peer=node.transport.peer,
        addresses=node.transport.addresses(),
        known=machine.frontier.known,
        update_budget=budget_of(machine),
        epoch=machine.epoch,
        epochs=epochs_of(machine),
        digest=machine.frontier.digest().hex(),
        origin=machine.own.origin.hex() if machine.own else None,
        incarnation=machine.own.incarnation if machine.own else None,
        own_updates=scheduler.made if scheduler else 0,
        contributed=machine.frontier.held(machine.own.origin) if machine.own else 0,
        updates_per_second=scheduler.rate() if scheduler else 0.0,
        loss=scheduler.loss if scheduler else None,
        drift=node.views.drift,
        lacking=machine.lacking,
        links=_links(node),
        feed_count=len(machine.frontier),
        bytes_sent=sent,
        bytes_received=received,
        segment_bytes_sent=traffic.segment_bytes_sent,
        updates_sent=traffic.updates_sent,
        log_bytes=node.log.size_bytes(),
        uptime=node.clock() - node.started_at,
        fetch=fetch,
        pauses=node.limiter.reason_texts(),
        paused_by=node.limiter.reason_names(),
        limits=node.limiter.limits,
        devices=_devices(node),
        machine=node.views.machine,
        wait=_wait(node),
        alarms=[
            *_of_this_node(node),
            *(reports.alarms(node.organising, now, machine.own) if reports else []),
        ],
        organised=reports.run(machine.own, node.organising, now) if reports else None,
        privacy=node.privacy.status() if node.privacy else None,
        doing=_doing(node, now),
        seconds_left=node.views.progress().seconds_left,
    )


def _doing(node: RunningNode, now: float) -> DoingStatus | None:
    if asked := node.model.asked:
        return DoingStatus(what=asked.what, seconds=now - asked.since)
    devices = node.model.thread.devices if node.model.thread else ()
    reading = devices[0].trainer.objective.reading if devices else None
    if reading is None or node.model.scheduler is None:
        return None
    done, total = reading
    what = "reading its rows with the model, which is done once"
    return DoingStatus(what=what, seconds=now - node.model.scheduler.begun, done=done, total=total)


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
        for state, link in greeted(node.context)
    ]


def _state(node: RunningNode) -> NodeState:
    scheduler = node.model.scheduler
    if node.machine.complete and not (scheduler and scheduler.busy):
        return NodeState.CATCHING_UP if lacks(node.machine) else NodeState.COMPLETE
    if scheduler is None:
        return NodeState.IDLE
    if not node.model.loaded:
        return NodeState.STARTING
    if node.limiter.finishing:
        return NodeState.FINISHING
    if node.limiter.paused:
        return NodeState.PAUSED
    if not scheduler.ready:
        return NodeState.WAITING if _lonely(node) else NodeState.CATCHING_UP
    if scheduler.busy:
        return NodeState.TRAINING
    if scheduler.exhausted:
        return NodeState.IDLE
    if _wait(node):
        return NodeState.WAITING
    return NodeState.TRAINING if node.machine.may_compute else NodeState.ASKING


def lacks(machine: Machine) -> bool:
    """Return whether a node whose run is over lacks updates, so that its model differs from others'.

    In an organised run only updates count that the organiser has listed (SPEC O11), whatever peers claim. In
    an open run all updates count, even beyond the budget. As a claim costs nothing, claimed updates that a
    peer was asked for and did not deliver are ignored.
    """
    if machine.organised:
        return machine.organised.missing_updates > 0
    return machine.lacking > 0 and any(
        machine.frontier.lacks(feed, stop)
        for link in machine.links.values()
        for feed, stop in link.has.items()
        if feed not in link.inbox.withheld
    )


def _devices(node: RunningNode) -> list[DeviceStatus]:
    return [
        DeviceStatus(
            name=device.name,
            updates=device.updates,
            seconds=device.seconds,
            problem=device.fault.what if device.fault else None,
        )
        for device in (node.model.thread.devices if node.model.thread else ())
    ]


def _of_this_node(node: RunningNode) -> list[AlarmStatus]:
    """Return the problems of this node with its checkpoint and history, with bases, and with this machine's
    disk, clock and devices."""
    history = node.checkpoints.problem() if node.checkpoints else None
    devices = node.model.thread.devices if node.model.thread else ()
    problems = (
        *(
            node.driver.disk.problem,
            history,
            node.bases.problem() if node.bases else None,
            node.clock_check.problem,
        ),
        *(device.fault for device in devices),
    )
    return [shown(problem) for problem in problems if problem]


def _lonely(node: RunningNode) -> WaitStatus | None:
    """Return the wait of a node that has found no other node to catch up with; None for other nodes."""
    scheduler, what = node.model.scheduler, node.peering.waits_for()
    if what is None or (scheduler and scheduler.ready):
        return None
    begins = ""
    if node.may_begin and not node.machine.frontier.known:
        begins = f"; with none it begins the run, {readiness.BEGIN_ALONE:g} s after its start"
        if node.readiness.is_due_to_begin():
            begins = "; it does not begin the run while others are named, or its own record is not kept there"
    return WaitStatus(reason=Wait.NODES, text=f"it waits for {what}{begins}")


def _wait(node: RunningNode) -> WaitStatus | None:
    if lonely := _lonely(node):
        return lonely
    if lacking := node.bases.lacking() if node.bases else []:
        numbers = ", ".join(str(one.subspace) for one in lacking)
        text = f"the published directions of training, {numbers}, are not here yet"
        return WaitStatus(reason=Wait.BASES, text=text)
    if node.privacy and not node.privacy.left():
        text = "this node has told as much of its rows as noise.epsilon allows, and follows the run"
        return WaitStatus(reason=Wait.EPSILON, text=text)
    if node.reports is None:
        return None
    asked = None if node.asked_at is None else node.clock() - node.asked_at
    return node.reports.wait(node.machine.own, asked, node.organising)
