"""The table of scenarios. A scenario has everything that a run needs besides its seed, as data.

First come network conditions and faults of every kind, one at a time and all together. Then come attacks as
in gossipsub-hardening, with limits that honest nodes must keep. In the attacks, nodes find their neighbours
themselves. Adversaries stay until the end, and honest nodes must become equal nevertheless.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sflab.simulator import faults
from sflab.simulator.actors import Attack
from sflab.simulator.faults import Fault
from sflab.simulator.world.computer import Hardware
from sflab.simulator.world.runs import MANAGED
from sfnode.transport.memory import CALM, Conditions, Latency


@dataclass(frozen=True, slots=True)
class Load:
    """Updates made while the faults last."""

    rate: float = 4.0
    """Number of updates per second that all nodes together finish."""
    most: int = 8
    """Maximum number of updates finished at once."""
    origins: int = 0
    """Number of nodes that compute; 0: all, up to `runner.MOST_AUTHORS`."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits that a run must keep, besides convergence; None: no limit."""

    p99: float | None = None
    """Maximum 99th percentile, over honest nodes, of the seconds from the signing of an update to its
    admission."""
    worst: float | None = None
    copies: float | None = None
    """Maximum number of copies of an update that are sent, per delivery of an update."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A scenario: one row of the table."""

    name: str
    says: str
    """Description in one sentence."""
    topology: str = "random"
    nodes: int = 16
    seconds: float = 20.0
    """Duration of the faults, in seconds."""
    settle: float = 30.0
    """Virtual seconds after the faults within which all nodes must be equal."""
    conditions: Conditions = CALM
    hardware: Hardware = field(default_factory=Hardware)
    load: Load = field(default_factory=Load)
    faults: tuple[Fault, ...] = ()
    attack: Attack | None = None
    organised: bool = False
    """Whether the first node organises the run."""
    stand_ins: int = 0
    """Number of honest stand-ins, the organiser included. Hostile stand-ins come in addition."""
    judged: bool = False
    """Whether the run's seals have all kinds of factors, set rates of coming epochs, and skip and recount
    feeds."""
    first_order: bool = False
    """Whether the run is first-order, with a scalar for every cell, whatever the seed. Other organised runs
    are first-order with every fourth seed."""
    limits: Limits = field(default_factory=Limits)


WORK = Hardware(work=0.0001)
"""Hardware that takes 0.1 ms of processor time per event, about as much as the protocol takes in CPython."""

CONDITIONS = Conditions(Latency("uniform", 0.05, 0.1))
"""Conditions with round trips of 100 ms."""

PROMPT = Limits(p99=1.0, worst=3.0)

HONEST = 12
SYBILS = 480
"""Number of adversaries at which there are forty hostile connections for every honest one."""


def _attack(name: str, says: str, attack: Attack, limits: Limits = PROMPT, **more: object) -> Scenario:
    settings: dict[str, object] = {
        "topology": MANAGED,
        "nodes": HONEST,
        "seconds": 20.0,
        "settle": 20.0,
        "conditions": CONDITIONS,
        "hardware": WORK,
        "load": Load(rate=4, most=4),
        **more,
    }
    return Scenario(name, says, attack=attack, limits=limits, **settings)  # type: ignore[arg-type]


ATTACKS: tuple[Scenario, ...] = (
    _attack(
        "sybil",
        "Forty mute peers for every honest link try to be neighbours of everybody.",
        Attack("mute", actors=SYBILS),
    ),
    _attack(
        "eclipse-node",
        "Two hundred mute peers surround one node.",
        Attack("mute", target="one", actors=200, links=1),
    ),
    _attack(
        "eclipse-newcomer",
        "Two hundred mute peers wait for whoever joins last.",
        Attack("mute", target="newcomer", actors=200, links=1),
        faults=(faults.late_join(6),),
    ),
    _attack(
        "eclipse-publisher",
        "Two hundred mute peers surround the one node that computes.",
        Attack("mute", target="publisher", actors=200, links=1),
        load=Load(rate=4, most=4, origins=1),
    ),
    _attack(
        "censor-one",
        "Three of four nodes pass on everything but the updates of one origin.",
        Attack("censor", target="publisher", actors=36, links=6, renames=False),
    ),
    _attack(
        "degrade",
        "Three of four nodes pass on a tenth of what they hear, and that late.",
        Attack("degrade", actors=36, links=6, renames=False),
    ),
    _attack(
        "cold-boot",
        "Ten mute peers for every honest one come at the same moment.",
        Attack("mute", actors=10 * HONEST, start=-1),
        limits=Limits(),  # at first honest nodes cannot reach each other
        settle=180.0,
    ),
    _attack(
        "covert-flash",
        "Three of four nodes behave well and then, all at one moment, pass on nothing any more.",
        Attack("sleep", actors=36, links=6, renames=False),
    ),
    _attack(
        "control-spam",
        "Peers send invented names, requests, announcements and prunes without end.",
        Attack("spam", actors=60, every=1.0),
    ),
    _attack(
        "replay",
        "Peers send what they have heard again and again.",
        Attack("replay", actors=60, every=0.25),
    ),
    _attack(
        "malformed",
        "Peers send frames that are too long, cut short or no messages at all.",
        Attack("malform", actors=60, every=0.25),
    ),
    _attack(
        "equivocation",
        "Origins send every second neighbour another history.",
        Attack("equivocate", actors=6, links=6, renames=False),
    ),
    _attack(
        "broken-promises",
        "Peers claim to have what everybody lacks, and deliver nothing.",
        Attack("promise", actors=60),
    ),
    _attack(
        "false-claims",
        "Peers claim to have more of everybody's feeds than there is, while nodes are killed and come back.",
        Attack("promise", actors=8, renames=False),
        faults=(faults.crashes(2.0),),
        limits=Limits(),  # killed nodes receive nothing
        settle=60.0,
    ),
    _attack(
        "garbage",
        "Peers answer with segments that nobody has signed.",
        Attack("forge", actors=60),
    ),
    _attack(
        "silence",
        "Peers take all links and never send anything.",
        Attack("silent", actors=SYBILS),
    ),
)


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
        faults=(faults.partition(2, 8), faults.partition(11, 99, hang_up=True)),
        settle=30,
    ),
    Scenario(
        "asymmetric",
        "One half hears the other but is not heard.",
        faults=(faults.partition(2, 99, one_way=True),),
        conditions=Conditions(ORDINARY),
        settle=30,
    ),
    Scenario(
        "flaps",
        "Links break twice a second and are opened again.",
        faults=(faults.flaps(0.5),),
        conditions=Conditions(ORDINARY),
        settle=15,
    ),
    Scenario(
        "crashes",
        "Nodes are killed in the middle of their work and come back.",
        faults=(faults.crashes(0.7),),
        conditions=Conditions(ORDINARY),
        settle=40,
    ),
    Scenario(
        "power-cut",
        "Nodes lose their power, and with it what was not yet on disk.",
        faults=(faults.crashes(0.7, power_cut=True),),
        conditions=Conditions(ORDINARY),
        settle=75,
    ),
    Scenario(
        "old-backup",
        "Nodes come back with the disk of some time ago.",
        faults=(
            faults.old_backup(3, 9),
            faults.old_backup(5, 12),
            faults.old_backup(8, 10),
            faults.old_backup(9, 17),
        ),
        conditions=Conditions(ORDINARY),
        settle=40,
    ),
    Scenario(
        "twins",
        "Copies of a node's disk and key run beside it, at first out of each other's hearing.",
        faults=(faults.twins(4, apart=6), faults.twins(12, apart=0), faults.twins(14, told=True, apart=0)),
        settle=40,
    ),
    Scenario(
        "clock-jumps",
        "Clocks leap ahead by minutes or stand still for as long.",
        faults=(faults.clock_jumps(1.0, most=120),),
        settle=200,
    ),
    Scenario(
        "churn",
        "Half of all nodes leave and as many join, every minute.",
        faults=(faults.churn(0.5),),
        conditions=Conditions(ORDINARY),
        seconds=40,
        settle=75,
    ),
    Scenario(
        "slow-peers",
        "A third of all nodes has a slow disk and processor, and links that take nothing for seconds.",
        faults=(faults.slow_peers(0.34),),
        settle=30,
    ),
    Scenario(
        "thin-lines",
        "Every link takes 100 kbit/s, and nodes join that lack everything.",
        conditions=Conditions(ORDINARY, bandwidth=12_500),
        faults=(faults.late_join(12, count=2),),
        load=Load(rate=6, most=30),
        settle=20,
    ),
    Scenario(
        "late-join",
        "Nodes join when much has been said already.",
        faults=(faults.late_join(10), faults.late_join(15, count=3)),
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
        faults=(faults.flaps(1.0),),
        settle=20,
    ),
    Scenario(
        "storm",
        "Everything at once.",
        conditions=Conditions(WILD, loss=0.05, duplication=0.1, replay=0.05, reorder=True),
        faults=(
            faults.partition(3, 8),
            faults.partition(12, 20, one_way=True),
            faults.flaps(1.5),
            faults.crashes(3.0),
            faults.crashes(3.0, power_cut=True),
            faults.old_backup(5, 12),
            faults.twins(14, apart=0),
            faults.clock_jumps(4.0, most=60),
            faults.churn(0.3),
            faults.slow_peers(0.2),
            faults.late_join(15),
        ),
        seconds=30,
        settle=120,
    ),
)


def _organised(name: str, says: str, *strikes: Fault, **more: object) -> Scenario:
    settings: dict[str, object] = {
        "nodes": 20,
        "seconds": 24.0,
        "settle": 120.0,
        "conditions": Conditions(ORDINARY),
        "load": Load(rate=6, most=6),
        **more,
    }
    return Scenario(name, says, faults=strikes, organised=True, **settings)  # type: ignore[arg-type]


ORGANISED: tuple[Scenario, ...] = (
    _organised(
        "organised",
        "Newcomers are admitted, epochs closed and sealed, while nodes come, go and fail.",
        faults.churn(0.5),
        faults.crashes(2.0, power_cut=True),
        faults.flaps(1.0),
        faults.late_join(8, count=2),
    ),
    _organised(
        "organiser-away",
        "The organiser dies and comes back, and dies again and comes back with an old disk.",
        faults.organiser_away(3, 7),
        faults.organiser_away(16, 20, taken=12),
    ),
    _organised(
        "organiser-late",
        "The organiser is gone almost from the beginning until everything else is over.",
        faults.organiser_away(2, 99),
    ),
    _organised(
        "organiser-apart",
        "The organiser is cut off from half of the nodes for a while.",
        faults.partition(4, 18, hang_up=True),
    ),
    _organised(
        "two-organisers",
        "Two nodes sign decisions with one key, until the deputies name another.",
        faults.organiser_twice(6, 14),
    ),
    _organised(
        "organiser-lost",
        "The organiser and its key are gone for good, and deputies name another, while nodes come and go.",
        faults.churn(0.2),
        faults.flaps(5.0),
        faults.crashes(10.0),
        faults.organiser_lost(8, 12),
    ),
    _organised(
        "organised-twins",
        "Copies of nodes fork feeds that are named and sealed meanwhile.",
        faults.twins(3, apart=9),
        faults.twins(14, apart=2),
        faults.twins(18, apart=0),
        faults.old_backup(5, 16),
    ),
    _organised(
        "undone",
        "The owner revokes a member, voids what another has made, and ends feeds.",
        faults.undo(8, "void"),
        faults.undo(10, "revoke"),
        faults.undo(12, "amend"),
        faults.undo(16, "amend"),
        faults.undo(18, "revoke"),
        faults.flaps(1.0),
    ),
    _organised(
        "organised-news",
        "Decisions overtake the updates that they name; nodes join and come back with the disk of long ago.",
        faults.late_join(8),
        faults.late_join(16, count=3),
        faults.old_backup(4, 14),
        faults.old_backup(6, 20),
        conditions=Conditions(WILD, loss=0.1, reorder=True),
    ),
    _organised(
        "judged",
        "Seals have factors from 0 to 1.7, skip feeds and recount them; much of the work comes late.",
        faults.partition(4, 12, hang_up=True),
        faults.organiser_away(14, 17),
        faults.late_join(18),
        faults.undo(19, "void"),
        judged=True,
    ),
    _organised(
        "vectors",
        "Updates have a scalar for every cell, units and limits change, and peers send other forms.",
        faults.twins(3, apart=9),
        faults.late_join(12, count=2),
        faults.undo(14, "void"),
        faults.undo(16, "amend"),
        judged=True,
        first_order=True,
        topology=MANAGED,
        attack=Attack("misshape", actors=4, every=0.5, renames=False),
        nodes=10,
    ),
    _organised(
        "lost",
        "Named steps of two feeds are lost with every disk that had them, and the organiser gives them up.",
        faults.loss(8),
        faults.loss(16),
    ),
    _organised(
        "checkpoints",
        "Most nodes let go of what comes before a checkpoint, and others join from one, while nodes fail.",
        faults.pruning(0.7),
        faults.late_join(18, checkpoint=True),
        faults.late_join(26, count=2, checkpoint=True),
        faults.archive_leaves(20),
        faults.archive_leaves(28),
        faults.crashes(6.0, power_cut=True),
        faults.flaps(1.0),
        seconds=36.0,
    ),
)


def _standing(name: str, says: str, *strikes: Fault, **more: object) -> Scenario:
    settings: dict[str, object] = {
        "nodes": 6,
        "stand_ins": 5,
        "seconds": 240.0,
        "settle": 240.0,
        "load": Load(rate=1, most=4),
        "topology": MANAGED,
        **more,
    }
    return _organised(name, says, *strikes, **settings)


STAND_INS: tuple[Scenario, ...] = (
    _standing(
        "stand-ins",
        "The organiser dies for good in the middle of a decision, then another; stand-ins die and come back.",
        faults.leader_falls(10, during=True),
        faults.hand_over(110),
        faults.leader_falls(125, back=160, during=True),
        faults.crashes(40.0, down=(0.5, 30.0)),
        faults.crashes(60.0, power_cut=True),
    ),
    _standing(
        "stand-ins-apart",
        "Stand-ins hear nothing of each other, in groups of two and three, of one and two, and one by one.",
        faults.split(5, 85, (2, 3)),
        faults.split(100, 150, (2, 2, 1)),
        faults.split(160, 235, (1, 4)),
        faults.slow_peers(0.3),
    ),
    _standing(
        "stand-ins-late",
        "Whoever organises is stopped for an hour of its clock, and another has a clock a day ahead.",
        faults.stopped(5, 90, shown=3600),
        faults.clock_ahead(150, 86_400),
        faults.stopped(160, 50, shown=50),
        faults.clock_jumps(20.0, most=120),
        faults.slow_peers(0.3),
    ),
    _standing(
        "stand-ins-false",
        "Two of seven stand-ins flood, elect everybody, claim late terms, more than they hold, or silence, "
        "while the others are parted.",
        faults.leader_falls(20),
        faults.split(80, 140, (3, 2)),
        faults.hand_over(170),
        faults.split(180, 230, (1, 4)),
        faults.flaps(5.0),
        attack=Attack("stand-in", actors=2, start=-1, renames=False),
    ),
)

SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario for scenario in (*FAIR, *ORGANISED, *STAND_INS, *ATTACKS)
}
