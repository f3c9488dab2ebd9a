"""The table of scenarios: network conditions and faults of every kind, one at a time and all together."""

from __future__ import annotations

from sflab.simulator.adversaries.actors import Attack
from sflab.simulator.attacks import ATTACKS
from sflab.simulator.faults import kinds
from sflab.simulator.scenario import Limits, Load, Scenario
from sflab.simulator.world.topology import MANAGED
from sfnode.transport.memory import Conditions, Latency

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
        faults=(kinds.Partition(2, 8), kinds.Partition(11, 99, hang_up=True)),
        settle=30,
    ),
    Scenario(
        "asymmetric",
        "One half hears the other but is not heard.",
        faults=(kinds.Partition(2, 99, one_way=True),),
        conditions=Conditions(ORDINARY),
        settle=30,
    ),
    Scenario(
        "flaps",
        "Links break twice a second and are opened again.",
        faults=(kinds.Flaps(0.5),),
        conditions=Conditions(ORDINARY),
        settle=15,
    ),
    Scenario(
        "crashes",
        "Nodes are killed in the middle of their work and come back.",
        faults=(kinds.Crashes(0.7),),
        conditions=Conditions(ORDINARY),
        settle=40,
    ),
    Scenario(
        "power-cut",
        "Nodes lose their power, and with it what was not yet on disk.",
        faults=(kinds.Crashes(0.7, power_cut=True),),
        conditions=Conditions(ORDINARY),
        settle=75,
    ),
    Scenario(
        "old-backup",
        "Nodes come back with the disk of some time ago.",
        faults=(
            kinds.OldBackup(3, 9),
            kinds.OldBackup(5, 12),
            kinds.OldBackup(8, 10),
            kinds.OldBackup(9, 17),
        ),
        conditions=Conditions(ORDINARY),
        settle=40,
    ),
    Scenario(
        "twins",
        "Copies of a node's disk and key run beside it, at first out of each other's hearing.",
        faults=(kinds.Twins(4, apart=6), kinds.Twins(12, apart=0), kinds.Twins(14, told=True, apart=0)),
        settle=40,
    ),
    Scenario(
        "clock-jumps",
        "Clocks leap ahead by minutes or stand still for as long.",
        faults=(kinds.ClockJumps(1.0, most=120),),
        settle=200,
    ),
    Scenario(
        "churn",
        "Half of all nodes leave and as many join, every minute.",
        faults=(kinds.Churn(0.5),),
        conditions=Conditions(ORDINARY),
        seconds=40,
        settle=75,
    ),
    Scenario(
        "slow-peers",
        "A third of all nodes has a slow disk and processor, and links that take nothing for seconds.",
        faults=(kinds.SlowPeers(0.34),),
        settle=30,
    ),
    Scenario(
        "thin-lines",
        "Every link takes 100 kbit/s, and nodes join that lack everything.",
        conditions=Conditions(ORDINARY, bandwidth=12_500),
        faults=(kinds.LateJoin(12, count=2),),
        load=Load(rate=6, most=30),
        settle=20,
    ),
    Scenario(
        "late-join",
        "Nodes join when much has been said already.",
        faults=(kinds.LateJoin(10), kinds.LateJoin(15, count=3)),
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
        faults=(kinds.Flaps(1.0),),
        settle=20,
    ),
    Scenario(
        "storm",
        "Everything at once.",
        conditions=Conditions(WILD, loss=0.05, duplication=0.1, replay=0.05, reorder=True),
        faults=(
            kinds.Partition(3, 8),
            kinds.Partition(12, 20, one_way=True),
            kinds.Flaps(1.5),
            kinds.Crashes(3.0),
            kinds.Crashes(3.0, power_cut=True),
            kinds.OldBackup(5, 12),
            kinds.Twins(14, apart=0),
            kinds.ClockJumps(4.0, most=60),
            kinds.Churn(0.3),
            kinds.SlowPeers(0.2),
            kinds.LateJoin(15),
        ),
        seconds=30,
        settle=120,
    ),
)


def _organised(name: str, says: str, *faults: kinds.Fault, **more: object) -> Scenario:
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
        kinds.Churn(0.5),
        kinds.Crashes(2.0, power_cut=True),
        kinds.Flaps(1.0),
        kinds.LateJoin(8, count=2),
    ),
    _organised(
        "organiser-away",
        "The organiser dies and comes back, and dies again and comes back with an old disk.",
        kinds.OrganiserAway(3, 7),
        kinds.OrganiserAway(16, 20, taken=12),
    ),
    _organised(
        "organiser-late",
        "The organiser is gone almost from the beginning until everything else is over.",
        kinds.OrganiserAway(2, 99),
    ),
    _organised(
        "organiser-apart",
        "The organiser is cut off from half of the nodes for a while.",
        kinds.Partition(4, 18, hang_up=True),
    ),
    _organised(
        "two-organisers",
        "Two nodes sign decisions with one key, until the deputies name another.",
        kinds.OrganiserTwice(6, 14),
    ),
    _organised(
        "organiser-lost",
        "The organiser and its key are gone for good, and deputies name another, while nodes come and go.",
        kinds.Churn(0.2),
        kinds.Flaps(5.0),
        kinds.Crashes(10.0),
        kinds.OrganiserLost(8, 12),
    ),
    _organised(
        "organised-twins",
        "Copies of nodes fork feeds that are named and sealed meanwhile.",
        kinds.Twins(3, apart=9),
        kinds.Twins(14, apart=2),
        kinds.Twins(18, apart=0),
        kinds.OldBackup(5, 16),
    ),
    _organised(
        "undone",
        "The owner revokes a member, voids what another has made, and ends feeds.",
        kinds.Undo(8, "void"),
        kinds.Undo(10, "revoke"),
        kinds.Undo(12, "amend"),
        kinds.Undo(16, "amend"),
        kinds.Undo(18, "revoke"),
        kinds.Flaps(1.0),
    ),
    _organised(
        "organised-news",
        "Decisions overtake the updates that they name; nodes join and come back with the disk of long ago.",
        kinds.LateJoin(8),
        kinds.LateJoin(16, count=3),
        kinds.OldBackup(4, 14),
        kinds.OldBackup(6, 20),
        conditions=Conditions(WILD, loss=0.1, reorder=True),
    ),
    _organised(
        "judged",
        "Seals have factors from 0 to 1.7, skip feeds and recount them; much of the work comes late.",
        kinds.Partition(4, 12, hang_up=True),
        kinds.OrganiserAway(14, 17),
        kinds.LateJoin(18),
        kinds.Undo(19, "void"),
        judged=True,
    ),
    _organised(
        "vectors",
        "Updates have a scalar for every cell, units and limits change, and peers send other forms.",
        kinds.Twins(3, apart=9),
        kinds.LateJoin(12, count=2),
        kinds.Undo(14, "void"),
        kinds.Undo(16, "amend"),
        judged=True,
        first_order=True,
        topology=MANAGED,
        attack=Attack("misshape", actors=4, every=0.5, renames=False),
        nodes=10,
    ),
    _organised(
        "lost",
        "Named steps of two feeds are lost with every disk that had them, and the organiser gives them up.",
        kinds.Loss(8),
        kinds.Loss(16),
    ),
    _organised(
        "checkpoints",
        "Most nodes let go of what comes before a checkpoint, and others join from one, while nodes fail.",
        kinds.Pruning(0.7),
        kinds.LateJoin(18, checkpoint=True),
        kinds.LateJoin(26, count=2, checkpoint=True),
        kinds.ArchiveLeaves(20),
        kinds.ArchiveLeaves(28),
        kinds.Crashes(6.0, power_cut=True),
        kinds.Flaps(1.0),
        seconds=36.0,
    ),
)


def _standing(name: str, says: str, *faults: kinds.Fault, **more: object) -> Scenario:
    settings: dict[str, object] = {
        "nodes": 6,
        "stand_ins": 5,
        "seconds": 240.0,
        "settle": 240.0,
        "load": Load(rate=1, most=4),
        "topology": MANAGED,
        **more,
    }
    return _organised(name, says, *faults, **settings)


STAND_INS: tuple[Scenario, ...] = (
    _standing(
        "stand-ins",
        "The organiser dies for good in the middle of a decision, then another; stand-ins die and come back.",
        kinds.LeaderFalls(10, during=True),
        kinds.HandOver(110),
        kinds.LeaderFalls(125, back=160, during=True),
        kinds.Crashes(40.0, down=(0.5, 30.0)),
        kinds.Crashes(60.0, power_cut=True),
    ),
    _standing(
        "stand-ins-apart",
        "Stand-ins hear nothing of each other, in groups of two and three, of one and two, and one by one.",
        kinds.Split(5, 85, (2, 3)),
        kinds.Split(100, 150, (2, 2, 1)),
        kinds.Split(160, 235, (1, 4)),
        kinds.SlowPeers(0.3),
    ),
    _standing(
        "stand-ins-late",
        "Whoever organises is stopped for an hour of its clock, and another has a clock a day ahead.",
        kinds.Stopped(5, 90, shown=3600),
        kinds.ClockAhead(150, 86_400),
        kinds.Stopped(160, 50, shown=50),
        kinds.ClockJumps(20.0, most=120),
        kinds.SlowPeers(0.3),
    ),
    _standing(
        "stand-ins-false",
        "Two of seven stand-ins flood, elect everybody, claim late terms, more than they hold, or silence.",
        kinds.LeaderFalls(20),
        kinds.HandOver(150),
        kinds.Flaps(5.0),
        attack=Attack("stand-in", actors=2, start=-1, renames=False),
    ),
)

SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario for scenario in (*FAIR, *ORGANISED, *STAND_INS, *ATTACKS)
}
