"""Records of the schema with values."""

from __future__ import annotations

from typing import Any

from sfnode.limits import Limits
from sfnode.schema.measurements import Drift
from sfnode.schema.node_state import NodeState, RunHealth
from sfnode.schema.organising import EpochEvaluation, HealthStatus
from sfnode.schema.status import AlarmStatus, RunStatus, Status


def status(**fields: Any) -> Status:
    """Return the status of a relay without neighbours, changed by `fields`."""
    values: dict[str, Any] = dict.fromkeys(Status.model_fields, 0)
    values |= dict.fromkeys(("version", "run_id", "run_name", "task", "role", "peer", "digest"), "")
    values |= {"addresses": [], "links": [], "pauses": [], "paused_by": [], "limits": Limits()}
    values |= {
        "devices": [],
        "machine": None,
        "origin": None,
        "incarnation": None,
        "loss": None,
        "drift": None,
        "fetch": None,
    }
    values |= {"wait": None, "alarms": []}
    values |= dict.fromkeys(("organised", "privacy", "doing"))
    return Status(**values | {"role": "relay", "state": NodeState.IDLE} | fields)


def rewarded(**fields: Any) -> dict[str, Any]:
    """Return fields of the status of a member of a reward run that gets better, changed by `fields`."""

    def result(value: float, epoch: int, base: bool = False) -> EpochEvaluation:
        return EpochEvaluation(
            metric="pass_at_1", value=value, low=value - 0.02, high=value + 0.02, loss=0.9 - value, count=256,
            epoch=epoch, base=base,
        )  # fmt: skip

    base, latest = result(0.3, 0, base=True), result(0.85, 7)
    health = HealthStatus(verdict=RunHealth.BETTER, latest=latest, base=base, best=latest, worse_than=[])
    told = organised()["organised"].model_copy(update={"health": health})
    drift = Drift(norm=1.0, distance=0.177, kl=0.003, tokens=99)
    told = told.model_copy(update=fields)
    return {"organised": told, "task": "reward", "loss": 0.06, "drift": drift}


def organised(**fields: Any) -> dict[str, Any]:
    """Return fields of the status of a member of an organised run that gets worse, changed by `fields`."""

    def result(value: float, epoch: int, base: bool = False) -> EpochEvaluation:
        return EpochEvaluation(
            metric="accuracy", value=value, low=value - 0.02, high=value + 0.02, loss=0.5, count=99,
            epoch=epoch, base=base,
        )  # fmt: skip

    base, best, latest = result(0.5, 0, base=True), result(1.0, 3), result(0.848, 12)
    health = HealthStatus(verdict=RunHealth.WORSE, latest=latest, base=base, best=best, worse_than=[best])
    run: dict[str, Any] = {"sealed": 13, "counted": 900, "members": 5, "behind": 0, "organiser": None}
    run |= {
        "seconds_since_seal": 42.0,
        "member": 3,
        "quota": 512,
        "room": 100,
        "health": health,
        "announced": None,
    }
    alarm = AlarmStatus(code="SF070", what="the run gets worse: so much", fix="Do this first. Then that.")
    return {"organised": RunStatus(**run | fields), "alarms": [alarm]}
