"""The table of scenarios: weather and troubles of every kind, one at a time and all together."""

from __future__ import annotations

from sfnode.sim.attacks import ATTACKS
from sfnode.sim.faults import (
    Churn,
    ClockJumps,
    Crashes,
    Flaps,
    LateJoin,
    Latency,
    OldBackup,
    Partition,
    SlowPeers,
    Twins,
    Weather,
)
from sfnode.sim.scenario import Limits, Load, Scenario

ORDINARY = Latency("lognormal", typical=0.05, spread=0.4, most=2.0)
WILD = Latency("lognormal", typical=0.08, spread=1.0, most=5.0)

FAIR: tuple[Scenario, ...] = (
    Scenario("calm", "Nothing goes wrong.", settle=3, limits=Limits(p99=0.6)),
    Scenario(
        "lossy",
        "Three frames of ten are lost on every link.",
        weather=Weather(ORDINARY, loss=0.3),
        settle=75,
    ),
    Scenario(
        "duplicates",
        "Every second frame arrives twice, and every second one again seconds later.",
        weather=Weather(ORDINARY, duplication=0.5, replay=0.5),
        settle=75,
    ),
    Scenario(
        "reordered",
        "Frames overtake each other, and now and then one takes seconds.",
        weather=Weather(WILD, reorder=True),
        settle=75,
    ),
    Scenario(
        "partition",
        "Two halves hear nothing of each other for a while; first silently, then with broken links.",
        troubles=(Partition(2, 8), Partition(11, 99, hang_up=True)),
        settle=30,
    ),
    Scenario(
        "asymmetric",
        "One half hears the other but is not heard.",
        troubles=(Partition(2, 99, one_way=True),),
        weather=Weather(ORDINARY),
        settle=30,
    ),
    Scenario(
        "flaps",
        "Links break twice a second and are opened again.",
        troubles=(Flaps(0.5),),
        weather=Weather(ORDINARY),
        settle=15,
    ),
    Scenario(
        "crashes",
        "Nodes are killed in the middle of their work and come back.",
        troubles=(Crashes(0.7),),
        weather=Weather(ORDINARY),
        settle=40,
    ),
    Scenario(
        "power-cut",
        "Nodes lose their power, and with it what was not yet on disk.",
        troubles=(Crashes(0.7, power_cut=True),),
        weather=Weather(ORDINARY),
        settle=75,
    ),
    Scenario(
        "old-backup",
        "Nodes come back with the disk of some time ago.",
        troubles=(OldBackup(3, 9), OldBackup(5, 12), OldBackup(8, 10), OldBackup(9, 17)),
        weather=Weather(ORDINARY),
        settle=40,
    ),
    Scenario(
        "twins",
        "Copies of a node's disk and key run beside it, at first out of each other's hearing.",
        troubles=(Twins(4, apart=6), Twins(12, apart=0), Twins(14, told=True, apart=0)),
        settle=40,
    ),
    Scenario(
        "clock-jumps",
        "Clocks leap ahead by minutes or stand still for as long.",
        troubles=(ClockJumps(1.0, most=120),),
        settle=200,
    ),
    Scenario(
        "churn",
        "Half of all nodes leave and as many join, every minute.",
        troubles=(Churn(0.5),),
        weather=Weather(ORDINARY),
        seconds=40,
        settle=75,
    ),
    Scenario(
        "slow-peers",
        "A third of all nodes has a slow disk and processor, and links that take nothing for seconds.",
        troubles=(SlowPeers(0.34),),
        settle=30,
    ),
    Scenario(
        "thin-lines",
        "Every link takes 100 kbit/s, and nodes join that lack everything.",
        weather=Weather(ORDINARY, bandwidth=12_500),
        troubles=(LateJoin(12, count=2),),
        load=Load(rate=6, most=30),
        settle=20,
    ),
    Scenario(
        "late-join",
        "Nodes join when much has been said already.",
        troubles=(LateJoin(10), LateJoin(15, count=3)),
        load=Load(rate=10),
        settle=10,
    ),
    Scenario(
        "long-line",
        "A chain that is longer than segments are forwarded eagerly.",
        topology="line",
        nodes=24,
        settle=30,
    ),
    Scenario(
        "bridge",
        "Two clusters with one link between them, which breaks now and then.",
        topology="bridge",
        troubles=(Flaps(1.0),),
        settle=20,
    ),
    Scenario(
        "storm",
        "Everything at once.",
        weather=Weather(WILD, loss=0.05, duplication=0.1, replay=0.05, reorder=True),
        troubles=(
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

SCENARIOS: dict[str, Scenario] = {scenario.name: scenario for scenario in (*FAIR, *ATTACKS)}
