"""The table of attacks, after those of gossipsub-hardening, and what honest nodes must keep while they last.

All run with nodes that find their neighbours themselves, and the attackers stay to the end: what is required
is that honest nodes become equal all the same.
"""

from __future__ import annotations

from sfnode.sim.faults import Hardware, LateJoin, Latency, Weather
from sfnode.sim.hostile import Attack
from sfnode.sim.scenario import Limits, Load, Scenario
from sfnode.sim.topology import MANAGED

WORK = Hardware(work=0.0001)
"""What a frame costs a node: about what the machine takes in CPython."""

WEATHER = Weather(Latency("uniform", 0.05, 0.1))
"""Round trips of 100 ms."""

PROMPT = Limits(p99=1.0, worst=3.0)

HONEST = 12
SYBILS = 480
"""Forty connections of the attacker try to be there for every honest one."""


def _attack(name: str, says: str, attack: Attack, limits: Limits = PROMPT, **more: object) -> Scenario:
    settings: dict[str, object] = {
        "topology": MANAGED,
        "nodes": HONEST,
        "seconds": 20.0,
        "settle": 20.0,
        "weather": WEATHER,
        "hardware": WORK,
        "load": Load(rate=4, most=4),
        **more,
    }
    return Scenario(name, says, attack=attack, limits=limits, **settings)  # type: ignore[arg-type]


ATTACKS: tuple[Scenario, ...] = (
    _attack(
        "sybil",
        "Forty mute peers for every honest link want to be neighbours of everybody.",
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
        troubles=(LateJoin(6),),
    ),
    _attack(
        "eclipse-publisher",
        "Two hundred mute peers surround the one node that computes.",
        Attack("mute", target="publisher", actors=200, links=1),
        load=Load(rate=4, most=4, origins=1),
    ),
    _attack(
        "censor-one",
        "Three of four nodes pass on everything but what one origin says.",
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
        limits=Limits(),  # at first honest nodes have no road to each other
        settle=180.0,
    ),
    _attack(
        "covert-flash",
        "Three of four nodes behave well and then, all at one moment, pass on nothing any more.",
        Attack("sleep", actors=36, links=6, renames=False),
    ),
    _attack(
        "control-spam",
        "Peers send invented names, wishes, announcements and prunes without end.",
        Attack("spam", actors=60, every=1.0),
    ),
    _attack(
        "replay",
        "Peers say again and again what they have heard.",
        Attack("replay", actors=60, every=0.25),
    ),
    _attack(
        "malformed",
        "Peers send frames that are too long, cut short or no messages at all.",
        Attack("malform", actors=60, every=0.25),
    ),
    _attack(
        "equivocation",
        "Origins tell every second neighbour another history.",
        Attack("equivocate", actors=6, links=6, renames=False),
    ),
    _attack(
        "broken-promises",
        "Peers say that they have what everybody lacks, and deliver nothing.",
        Attack("promise", actors=60),
    ),
    _attack(
        "garbage",
        "Peers answer with segments that nobody has signed.",
        Attack("forge", actors=60),
    ),
    _attack(
        "silence",
        "Peers take all places and say not a word.",
        Attack("silent", actors=SYBILS),
    ),
)
