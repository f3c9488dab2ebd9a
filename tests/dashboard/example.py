"""A node that is only told of: what a dashboard asks of a client, answered with the same example every time.

The run has gone well for forty epochs, its node is paused, has a GPU and neighbours with hostile names.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from sfnode.limits import Limits
from sfnode.schema import views
from sfnode.schema.node_state import NodeState, RunHealth
from sfnode.schema.organising import EpochEvaluation, HealthStatus
from sfnode.schema.results import InviteResult
from sfnode.schema.status import GpuStatus, MachineStatus, RunStatus, Status
from tests.schema.helpers import rewarded, status

EPOCHS = 40
LINK = "sfnode:" + "AZMBq7xLpKf3_TwY0hVc" * 8
OWN, OTHER = "1a2b3c4d" * 8, "5e6f7a8b" * 8
HOSTILE = "<b>=cmd|'/C calc'</b>"
DESCRIPTION = "Teaches a small model to tell whether somebody liked a film, in twelve languages."


def result(value: float, epoch: int, *, base: bool = False, calibrated: bool = True) -> EpochEvaluation:
    return EpochEvaluation(
        metric="accuracy", value=value, low=value - 0.03, high=value + 0.03, loss=0.5, count=1024,
        calibrated=calibrated, epoch=epoch, base=base,
    )  # fmt: skip


SEALED = [result(0.9 - 0.28 * math.exp(-epoch / 9), epoch) for epoch in range(EPOCHS)]
BASES = [result(0.52, 0, base=True, calibrated=False), result(0.61, 0, base=True)]


class ExampleNode:
    """A client of that node. `told` has the orders that the page gave."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Any]] = []

    async def status(self) -> Status:
        latest, base = SEALED[-1], BASES[1]
        health = HealthStatus(
            verdict=RunHealth.BETTER, latest=latest, base=base, calibrated=base, best=latest, worse_than=[]
        )
        run = RunStatus(
            sealed=EPOCHS, counted=1_234_567, members=212, behind=0, seconds_since_seal=42.0, organiser=None,
            member=3, quota=4096, room=1024, health=health,
        )  # fmt: skip
        gpu = GpuStatus(
            device="cuda",
            name="NVIDIA H100",
            memory=2 * 10**9,
            memory_total=80 * 10**9,
            busy=0.43,
            celsius=54.0,
            watts=210.0,
        )
        machine = MachineStatus(
            device="cuda", cpu=1.2, cores=8.0, memory=812 * 10**6, memory_total=32 * 10**9, gpus=[gpu]
        )
        return status(
            version="0.1.0", run_id="ab" * 32, run_name="films", role="trainer", state=NodeState.PAUSED,
            pauses=["battery"], paused_by=["mains"], origin=OWN, known=1_250_000, contributed=31_415,
            updates_per_second=1.5, loss=0.41, machine=machine, organised=run,
            limits=Limits(cpu=50, mains=True),
            bytes_sent=123_456_789, bytes_received=98_765_432, uptime=86_400.0, peer="Qm" + "x" * 44,
            digest="cd" * 32, log_bytes=7_000_000, update_budget=4_000_000,
        )  # fmt: skip

    async def progress(self) -> views.Progress:
        return views.Progress(
            known=1_234_567, update_budget=4_000_000, epoch=40, epochs=128, epoch_known=12_000,
            epoch_updates=32_768, updates_per_second=320.0, epoch_seconds_left=65.0, seconds_left=8_640.0,
        )  # fmt: skip

    async def swarm(self) -> views.Swarm:
        def node(peer: str, **fields: Any) -> views.SwarmNode:
            usual = {"kind": "neighbour", "role": "trainer", "known": 1_250_000, "lag": 0, "agrees": True}
            return views.SwarmNode.model_validate(usual | {"peer": peer, "latency": 0.031} | fields)

        itself = node("Qm" + "x" * 44, kind="self", name="Ada's desktop", origin=OWN, latency=None)
        near = [
            node("QmA" + "a" * 43, name=HOSTILE, origin=OTHER),
            node(
                "QmB" + "b" * 43,
                name="basement GPU",
                origin="99" * 32,
                agrees=False,
                known=1_249_000,
                lag=1000,
            ),
            node("QmC" + "c" * 43, role="relay"),
        ]
        edges = [views.SwarmEdge(source=itself.peer, target=one.peer) for one in near]
        return views.Swarm(nodes=[itself, *near], edges=edges)

    async def curves(self) -> views.Curves:
        moments = range(240)
        return views.Curves(
            now=2400.0, interval=10.0, seconds=[10.0 * n for n in moments], known=[5000 * n for n in moments],
            own_rate=[1.5 + math.sin(n / 9) for n in moments],
            swarm_rate=[300 + 40 * math.cos(n / 15) for n in moments],
            loss=[0.03 + 0.8 * math.exp(-n / 40) for n in moments],
            cpu=[1 + math.sin(n / 20) for n in moments],
            memory=[800_000_000 for _ in moments], gpu=[0.5 for _ in moments], measurements=[],
        )  # fmt: skip

    async def organising(self) -> Any:
        return SimpleNamespace(evaluations=[*BASES, *SEALED])

    async def origins(self, **_: Any) -> views.Origins:
        def origin(rank: int, key: str, name: str, *, own: bool = False) -> views.Origin:
            return views.Origin(
                rank=rank, origin=key, updates=31_415 // rank, share=0.3 / rank, feeds=1, first_step=0,
                last_step=9, first_epoch=0, last_epoch=39, cut=False, counted=30_000 // rank,
                worth=41_250_000 // rank, gain_share=0.6 / rank, own=own, name=name, team="Rhine & Main",
            )  # fmt: skip

        found = [origin(1, OTHER, HOSTILE), origin(2, OWN, "Ada's desktop", own=True)]
        teams = [views.Team(team="Rhine & Main", updates=47_000, share=0.45, origins=2)]
        return views.Origins(
            total=2, offset=0, updates=1_250_000, indexed=1_250_000, origins=found, teams=teams
        )

    async def history(self, **_: Any) -> views.History:
        points = [
            views.HistoryPoint(
                first_epoch=n, last_epoch=n, updates=31_250, known=31_250 * (n + 1), origins=40 + n
            )
            for n in range(EPOCHS)
        ]
        leaders = [views.Leader(origin=OTHER, name=HOSTILE, known=[9_000 * (n + 1) for n in range(EPOCHS)])]
        others = [22_250 * (n + 1) for n in range(EPOCHS)]
        return views.History(indexed=1_250_000, points=points, leaders=leaders, others=others)

    async def about(self) -> views.About:
        return views.About(
            run_id="ab" * 32, run_name="films", description=DESCRIPTION, organised=True,
            model="facebook/opt-125m", parent=None, licence="mit", task="classification",
            template="{text} It was", answers=["terrible", "great"], train="hf:films:train",
            test="hf:films:test",
        )  # fmt: skip

    async def standing(self) -> views.OwnStanding:
        return views.OwnStanding(
            rank=2, of=212, updates=31_415, share=0.0251, counted=30_000, worth=20_625_000, gain_share=0.3
        )

    async def samples(self) -> views.Samples:
        rows = [
            views.SampleRow(
                text="The plot is thin but the actors carry it. It was",
                right="great",
                base="terrible",
                base_score=0.0,
            ),
            views.SampleRow(
                text="Two hours that I shall not get back. It was",
                right="terrible",
                base="terrible",
                base_score=1.0,
            ),
        ]
        moments = [
            views.SampleMoment(epoch=3, known=90_000, answers=["terrible", "terrible"], scores=[0.0, 1.0]),
            views.SampleMoment(epoch=39, known=1_234_567, answers=["great", "terrible"], scores=[1.0, 1.0]),
        ]
        return views.Samples(rows=rows, moments=moments)

    async def timeline(self) -> views.Timeline:
        def entry(position: int, kind: str, text: str, **fields: Any) -> views.TimelineEntry:
            blank = dict.fromkeys(("epoch", "counted", "origins", "evaluation"))
            said = {
                "position": position,
                "kind": kind,
                "text": text,
                "arrived": 1_790_000_000 + 600 * position,
            }
            return views.TimelineEntry.model_validate(said | blank | fields)

        seals = [
            entry(
                2 * n + 2, "seal", f"31,250 of 32,000 updates of round {n} count",
                epoch=n, counted=31_250, origins=40, evaluation=SEALED[n],
            )
            for n in reversed(range(EPOCHS))
        ]  # fmt: skip
        said = entry(81, "announce", f"announces: thank you all, {HOSTILE}")
        return views.Timeline(
            total=83, entries=[said, *seals, entry(1, "admit", "admits Ada for 4,096 updates a round")]
        )

    async def invitation(self) -> InviteResult:
        return InviteResult(
            link=LINK, run_id="ab" * 32, run_name="films", protocol=7, addresses=[], reach="network"
        )

    async def pause(self, seconds: float | None = None) -> None:
        self.told.append(("pause", seconds))

    async def resume(self) -> None:
        self.told.append(("resume", None))

    async def limit(self, changes: Mapping[str, Any]) -> None:
        self.told.append(("limit", dict(changes)))

    async def leave(self) -> None:
        self.told.append(("leave", None))


class RewardedNode(ExampleNode):
    """The same node in a reward run."""

    async def status(self) -> Status:
        seen = await super().status()
        return seen.model_copy(
            update=rewarded(sealed=EPOCHS) | {"state": NodeState.TRAINING, "paused_by": [], "pauses": []}
        )

    async def organising(self) -> Any:
        told = (await self.status()).organised
        assert told is not None
        return SimpleNamespace(evaluations=(told.health.base, told.health.latest))

    async def origins(self, **_: Any) -> views.Origins:
        page = await super().origins()
        bare = [one.model_copy(update={"worth": None, "gain_share": None}) for one in page.origins]
        return page.model_copy(update={"origins": bare})

    async def about(self) -> views.About:
        about = await super().about()
        return about.model_copy(update={"task": "reward", "answers": [], "template": "{a}+{b}="})

    async def standing(self) -> views.OwnStanding:
        return (await super().standing()).model_copy(update={"worth": None, "gain_share": None})

    async def timeline(self) -> views.Timeline:
        told = (await self.status()).organised
        assert told is not None
        blank = dict.fromkeys(("epoch", "counted", "origins", "evaluation"))
        seal = {"position": 3, "kind": "seal", "text": "round 7", "evaluation": told.health.latest}
        return views.Timeline(total=1, entries=[views.TimelineEntry.model_validate(blank | seal)])

    async def samples(self) -> views.Samples:
        rows = [
            views.SampleRow(text="56+48=", right="104", base="94", base_score=0.1),
            views.SampleRow(text="9+12=", right="21", base="11", base_score=0.0),
        ]
        moments = [views.SampleMoment(epoch=7, known=8208, answers=["104", "11"], scores=[1.0, 0.0])]
        return views.Samples(rows=rows, moments=moments)
