"""The table of scenarios: network conditions and faults of every kind, one at a time and all together."""

from __future__ import annotations

from sflab.simulator.adversaries.actors import Attack
from sflab.simulator.attacks import ATTACKS
from sflab.simulator.faults.kinds import (
    ArchiveLeaves,
    Churn,
    ClockJumps,
    Crashes,
    Fault,
    Flaps,
    LateJoin,
    Loss,
    OldBackup,
    OrganiserAway,
    OrganiserLost,
    OrganiserTwice,
    Partition,
    Pruning,
    SlowPeers,
    Twins,
    Undo,
)
from sflab.simulator.scenario import Limits, Load, Scenario
from sflab.simulator.world.topology import MANAGED
from sfnode.transport.conditions import Conditions, Latency

ORDINARY = Latency("lognormal", typical=0.05, spread=0.4, most=2.0)
WILD = Latency("lognormal", typical=0.08, spread=1.0, most=5.0)

FAIR: tuple[Scenario, ...] = (
    Scenario("calm", "Nothing goes wrong.", settle=3, limits=Limits(p99=0.6)),
    Scenario(
        "lossy",
        "Three frames of ten are lost on every link.",
        conditions=Conditions(ORDINARY, loss=0.3),
        settle=75,
    ),
    Scenario(
        "duplicates",
        "Every second frame arrives twice, and every second one again seconds later.",
        conditions=Conditions(ORDINARY, duplication=0.5, replay=0.5),
        settle=75,
    ),
    Scenario(
        "reordered",
        "Frames overtake each other, and now and then one takes seconds.",
        conditions=Conditions(WILD, reorder=True),
        settle=75,
    ),
    Scenario(
        "partition",
        "Two halves hear nothing of each other for a while: first silently, then with broken links.",
        faults=(Partition(2, 8), Partition(11, 99, hang_up=True)),
        settle=30,
    ),
    Scenario(
        "asymmetric",
        "One half hears the other but is not heard.",
        faults=(Partition(2, 99, one_way=True),),
        conditions=Conditions(ORDINARY),
        settle=30,
    ),
    Scenario(
        "flaps",
        "Links break twice a second and are opened again.",
        faults=(Flaps(0.5),),
        conditions=Conditions(ORDINARY),
        settle=15,
    ),
    Scenario(
        "crashes",
        "Nodes are killed in the middle of their work and come back.",
        faults=(Crashes(0.7),),
        conditions=Conditions(ORDINARY),
        settle=40,
    ),
    Scenario(
        "power-cut",
        "Nodes lose their power, and with it what was not yet on disk.",
        faults=(Crashes(0.7, power_cut=True),),
        conditions=Conditions(ORDINARY),
        settle=75,
    ),
    Scenario(
        "old-backup",
        "Nodes come back with the disk of some time ago.",
        faults=(OldBackup(3, 9), OldBackup(5, 12), OldBackup(8, 10), OldBackup(9, 17)),
        conditions=Conditions(ORDINARY),
        settle=40,
    ),
    Scenario(
        "twins",
        "Copies of a node's disk and key run beside it, at first out of each other's hearing.",
        faults=(Twins(4, apart=6), Twins(12, apart=0), Twins(14, told=True, apart=0)),
        settle=40,
    ),
    Scenario(
        "clock-jumps",
        "Clocks leap ahead by minutes or stand still for as long.",
        faults=(ClockJumps(1.0, most=120),),
        settle=200,
    ),
    Scenario(
        "churn",
        "Half of all nodes leave and as many join, every minute.",
        faults=(Churn(0.5),),
        conditions=Conditions(ORDINARY),
        seconds=40,
        settle=75,
    ),
    Scenario(
        "slow-peers",
        "A third of all nodes has a slow disk and processor, and links that take nothing for seconds.",
        faults=(SlowPeers(0.34),),
        settle=30,
    ),
    Scenario(
        "thin-lines",
        "Every link takes 100 kbit/s, and nodes join that lack everything.",
        conditions=Conditions(ORDINARY, bandwidth=12_500),
        faults=(LateJoin(12, count=2),),
        load=Load(rate=6, most=30),
        settle=20,
    ),
    Scenario(
        "late-join",
        "Nodes join when much has been said already.",
        faults=(LateJoin(10), LateJoin(15, count=3)),
        load=Load(rate=10),
        settle=10,
    ),
    Scenario(
        "long-line",
        "A chain longer than segments are forwarded eagerly.",
        topology="line",
        nodes=24,
        settle=30,
    ),
    Scenario(
        "bridge",
        "Two clusters with one link between them, which breaks now and then.",
        topology="bridge",
        faults=(Flaps(1.0),),
        settle=20,
    ),
    Scenario(
        "storm",
        "Everything at once.",
        conditions=Conditions(WILD, loss=0.05, duplication=0.1, replay=0.05, reorder=True),
        faults=(
            Partition(3, 8),
            Partition(12, 20, one_way=True),
            Flaps(1.5),
            Crashes(3.0),
            Crashes(3.0, power_cut=True),
            OldBackup(5, 12),
            Twins(14, apart=0),
            ClockJumps(4.0, most=60),
            Churn(0.3),
            SlowPeers(0.2),
            LateJoin(15),
        ),
        seconds=30,
        settle=120,
    ),
)


def _organised(name: str, says: str, *faults: Fault, **more: object) -> Scenario:
    settings: dict[str, object] = {
        "nodes": 20,
        "seconds": 24.0,
        "settle": 120.0,
        "conditions": Conditions(ORDINARY),
        "load": Load(rate=6, most=6),
        **more,
    }
    return Scenario(name, says, faults=faults, organised=True, **settings)  # type: ignore[arg-type]


ORGANISED: tuple[Scenario, ...] = (
    _organised(
        "organised",
        "Newcomers are admitted, epochs closed and sealed, while nodes come, go and fail.",
        Churn(0.5),
        Crashes(2.0, power_cut=True),
        Flaps(1.0),
        LateJoin(8, count=2),
    ),
    _organised(
        "organiser-away",
        "The organiser dies and comes back, and dies again and comes back with an old disk.",
        OrganiserAway(3, 7),
        OrganiserAway(16, 20, taken=12),
    ),
    _organised(
        "organiser-late",
        "The organiser is gone almost from the beginning until everything else is over.",
        OrganiserAway(2, 99),
    ),
    _organised(
        "organiser-apart",
        "The organiser is cut off from half of the nodes for a while.",
        Partition(4, 18, hang_up=True),
    ),
    _organised(
        "two-organisers",
        "Two nodes sign decisions with one key, until the deputies name another.",
        OrganiserTwice(6, 14),
    ),
    _organised(
        "organiser-lost",
        "The organiser and its key are gone for good, and deputies name another, while nodes come and go.",
        Churn(0.2),
        Flaps(5.0),
        Crashes(10.0),
        OrganiserLost(8, 12),
    ),
    _organised(
        "organised-twins",
        "Copies of nodes fork feeds that are named and sealed meanwhile.",
        Twins(3, apart=9),
        Twins(14, apart=2),
        Twins(18, apart=0),
        OldBackup(5, 16),
    ),
    _organised(
        "undone",
        "The owner revokes a member, voids what another has made, and ends feeds.",
        Undo(8, "void"),
        Undo(10, "revoke"),
        Undo(12, "amend"),
        Undo(16, "amend"),
        Undo(18, "revoke"),
        Flaps(1.0),
    ),
    _organised(
        "organised-news",
        "Decisions overtake the updates that they name; nodes join and come back with the disk of long ago.",
        LateJoin(8),
        LateJoin(16, count=3),
        OldBackup(4, 14),
        OldBackup(6, 20),
        conditions=Conditions(WILD, loss=0.1, reorder=True),
    ),
    _organised(
        "judged",
        "Seals have factors from 0 to 1.7, skip feeds and recount them; much of the work comes late.",
        Partition(4, 12, hang_up=True),
        OrganiserAway(14, 17),
        LateJoin(18),
        Undo(19, "void"),
        judged=True,
    ),
    _organised(
        "vectors",
        "Updates have a scalar for every cell, units and limits change, and peers send other forms.",
        Twins(3, apart=9),
        LateJoin(12, count=2),
        Undo(14, "void"),
        Undo(16, "amend"),
        judged=True,
        first_order=True,
        topology=MANAGED,
        attack=Attack("misshape", actors=4, every=0.5, renames=False),
        nodes=10,
    ),
    _organised(
        "lost",
        "Named steps of two feeds are lost with every disk that had them, and the organiser gives them up.",
        Loss(8),
        Loss(16),
    ),
    _organised(
        "checkpoints",
        "Most nodes let go of what comes before a checkpoint, and others join from one, while nodes fail.",
        Pruning(0.7),
        LateJoin(18, checkpoint=True),
        LateJoin(26, count=2, checkpoint=True),
        ArchiveLeaves(20),
        ArchiveLeaves(28),
        Crashes(6.0, power_cut=True),
        Flaps(1.0),
        seconds=36.0,
    ),
)

SCENARIOS: dict[str, Scenario] = {scenario.name: scenario for scenario in (*FAIR, *ORGANISED, *ATTACKS)}
