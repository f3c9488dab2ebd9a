"""The table of attacks, after those of gossipsub-hardening, and the limits that honest nodes keep meanwhile.

All run with nodes that find their neighbours themselves, and the adversaries stay to the end: honest nodes
must become equal all the same.
"""

from __future__ import annotations

from sflab.simulator.adversaries.actors import Attack
from sflab.simulator.faults import kinds
from sflab.simulator.scenario import Limits, Load, Scenario
from sflab.simulator.world.hardware import Hardware
from sflab.simulator.world.topology import MANAGED
from sfnode.transport.memory import Conditions, Latency

WORK = Hardware(work=0.0001)
"""Hardware with a cost per frame: about what the machine takes in CPython."""

CONDITIONS = Conditions(Latency("uniform", 0.05, 0.1))
"""Conditions with round trips of 100 ms."""

PROMPT = Limits(p99=1.0, worst=3.0)

HONEST = 12
SYBILS = 480
"""Adversaries that make forty connections for every honest one."""


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
        faults=(kinds.LateJoin(6),),
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
        faults=(kinds.Crashes(2.0),),
        limits=Limits(),  # who is killed hears nothing
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
