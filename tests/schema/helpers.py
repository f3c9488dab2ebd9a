"""Records of the schema, filled in."""

from __future__ import annotations

from typing import Any

from sfnode.limits import Limits
from sfnode.schema.node_state import NodeState
from sfnode.schema.status import Status


def status(**fields: Any) -> Status:
    """A relay without neighbours, but for `fields`."""
    values: dict[str, Any] = dict.fromkeys(Status.model_fields, 0)
    values |= dict.fromkeys(("version", "run_id", "run_name", "role", "peer", "digest"), "")
    values |= {"addresses": [], "links": [], "pauses": [], "limits": Limits()}
    values |= {"origin": None, "incarnation": None, "loss": None, "fetch": None}
    values |= {"wait": None, "alarms": [], "organised": None}
    return Status(**values | {"role": "relay", "state": NodeState.IDLE} | fields)
