"""A local swarm without processes: its nodes give scripted answers."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sfnode.errors import Code, UserError
from sfnode.manifest import Manifest
from sfnode.manifest.sections import Data, Model, OrganisedSection
from sfnode.manifest.task import Task
from sfnode.schema.measurements import BaselineEvaluation, NodeEvaluation, ProbeEvaluation
from sfnode.schema.organising import DecisionResult, OrganiserStatus
from sfnode.schema.status import CoreStatus, Status
from sfnode.schema.views import Samples
from sfnode.store.run_keys import RunKeys
from sfprotocol import decisions
from sfprotocol.decisions import Invite
from tests.schema import helpers

MANIFEST = Manifest(
    name="a-name",
    model=Model(source="nowhere", digest="0" * 64, targets=("layer:2x2",)),
    task=Task(kind="text", template="{text}"),
    data=Data(test="nowhere"),
)

NONE = Samples(rows=[], moments=[])
"""No samples."""

FIRST_ADDRESS = "/ip4/127.0.0.1/tcp/1/p2p/QmFirst"


PROBE = ProbeEvaluation(
    metric="accuracy", value=0.834, low=0.806, high=0.858, loss=0.448, count=800, rows=1024, lead=0.039,
    error=0.012,
)  # fmt: skip
"""Result of a linear probe that is better than the run's model."""

COMMONEST = BaselineEvaluation(
    metric="accuracy", value=0.5, low=0.4, high=0.6, loss=0.69, count=64, rows=1024,
    name="the commonest label",
)  # fmt: skip


def organised_run() -> Manifest:
    """Return the same run with an organiser, whose keys are always new."""
    said = OrganisedSection(**RunKeys.generate().options(), quota=9)
    return MANIFEST.model_copy(update={"admission": "organised", "organised": said})


def organised_status() -> OrganiserStatus:
    """Return the status of an organised run with three sealed epochs."""
    health = {"verdict": "unknown", "latest": None, "base": None, "best": None, "worse_than": []}
    return OrganiserStatus.model_validate({
        "run_id": "ab", "run_name": "run", "term": 0, "decisions": 9, "chain": "ef", "incomplete": False,
        "frozen": False, "unsupported": False, "open_epoch": 3, "sealed": 3, "counted": 40, "budget": 50,
        "complete": False, "quota": 9, "members": 2, "invitations": 1, "behind": 0, "organiser": "organising",
        "bases": [], "next_subspace": 1, "petitions": 0, "health": health,
        "term_since": None, "stand_ins": [], "waits": None, "evaluations": [],
        "announcements": ["Welcome.", "The run ends."],
        "doubted": [],
    })  # fmt: skip


def status(**fields: object) -> Status:
    """Return the status of a node that trains, with very wide numbers."""
    usual: dict[str, object] = {
        "task": "classification", "role": "trainer", "state": "catching-up", "known": 123_456,
        "update_budget": 200_000, "epochs": 1, "digest": "0123456789abcdef", "own_updates": 34_567,
        "contributed": 34_567, "updates_per_second": 123.4, "loss": 12.3456,
    }  # fmt: skip
    return helpers.status(**usual | fields)


def evaluation(value: float) -> NodeEvaluation:
    """Return an accuracy of `value` on nine rows."""
    return NodeEvaluation(
        metric="accuracy", value=value, low=value - 0.1, high=value + 0.2, loss=1 - value, count=9,
        seconds=1.0, known=0, base=False, digest=None,
    )  # fmt: skip


@dataclass
class Script:
    """Script of the nodes of a swarm. `events` records what happens to them."""

    digests: Sequence[str] = ("d", "d")
    """State digests of the nodes at the end."""
    cores: Sequence[str] = ("c", "c")
    looks: int = 3
    """Number of looks at a node before it is complete."""
    dies: int = 0
    """Number of a node that has ended when it is looked at."""
    events: list[str] = field(default_factory=list)
    arguments: dict[int, list[str]] = field(default_factory=dict)
    """Command line of each node."""
    invitations: dict[int, str] = field(default_factory=dict)
    """Invitation of each node. No other user of the machine may see it, so it is on no command line."""


class ScriptedProcess:
    """Replacement of `sfnode.swarm.NodeProcess`. `made_by(script)` returns its constructor."""

    def __init__(self, script: Script, number: int, folder: Path) -> None:
        self.number = number
        self.folder = folder
        self.client = self
        self._script = script
        self._looks = 0

    async def start(self, arguments: list[str], invitation: str = "") -> None:
        self._script.events.append(f"start {self.number}")
        self._script.invitations[self.number] = invitation
        self._script.arguments[self.number] = arguments

    async def answering(self) -> Status:
        self._script.events.append(f"answer {self.number}")
        return status(addresses=[FIRST_ADDRESS])

    async def look(self) -> Status | None:
        if self._script.dies == self.number:
            raise UserError(Code.SWARM_FAILED, f"node {self.number} ended with status 1", "See node.log.")
        self._looks += 1
        if self._looks == 1:
            return None
        done = self._looks > self._script.looks
        digest = self._script.digests[self.number - 1]
        return status(state="complete" if done else "training", digest=digest, known=50, contributed=50)

    async def ask(self, call: Awaitable[Any]) -> Any:
        return await call

    async def organising(self) -> OrganiserStatus:
        return organised_status()

    async def decide(self, decision: bytes) -> DecisionResult:
        read = decisions.decode(decision).decision
        assert isinstance(read, Invite)
        self._script.events.append(f"invite {read.uses}")
        return DecisionResult(signed=True, changes=[], invitation=7)

    async def stop(self) -> None:
        self._script.events.append(f"stop {self.number}")

    async def evaluate(self, *, base: bool, calibrated: bool, probe: bool) -> NodeEvaluation:
        found = evaluation(0.6 if calibrated else 0.5 if base else 0.75)
        beside = {"probe": PROBE, "baselines": (COMMONEST,)} if probe else {}
        return found.model_copy(update=beside)

    async def samples(self) -> Samples:
        return NONE

    async def digest(self) -> CoreStatus:
        number = self.number - 1
        return CoreStatus(
            digest=self._script.digests[number], core_digest=self._script.cores[number], known=50
        )
