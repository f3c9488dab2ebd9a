"""A small internet of network namespaces: hosts on one bridge, each with an address, which can be cut off or
slowed down.

Everything is in its own namespaces, including bridges and routers. So nothing here changes the network of the
machine, and everything is removed with the namespaces. Needs Linux, root, and the programs `ip` and `tc`.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

PREFIX = "sfnet"
"""Prefix of the names of our namespaces. Namespaces with other names are not touched."""

RULES = (sys.executable, "-I", "-S", str(Path(__file__).with_name("netfilter.py")))
DELAY = (sys.executable, "-I", "-S", str(Path(__file__).with_name("delay_proxy.py")))

NEW_NETWORK = 0x40000000
"""CLONE_NEWNET of <linux/sched.h>."""

BURST = "16kbit"
QUEUE_LATENCY = "400ms"
"""Maximum delay in the token bucket filter. Packets that would be delayed longer are dropped."""


def sh(command: str, *more: str) -> None:
    """Run a command. Raises AssertionError if it fails."""
    done = subprocess.run([*command.split(), *more], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, f"{command} {' '.join(more)}: {done.stderr}"


def unavailable() -> str | None:
    """Return why namespaces cannot be made here; None if they can."""
    if sys.platform != "linux":
        return "network namespaces are a feature of Linux"
    if os.geteuid() != 0:
        return "network namespaces need root"
    if missing := [program for program in ("ip", "tc") if not shutil.which(program)]:
        return f"network namespaces need the programs {' and '.join(missing)} (Debian: iproute2)"
    try:
        with world() as tried:
            tried.place("try", "5.1.0.1").rule("none")
    except (AssertionError, OSError) as error:
        return f"network namespaces are not permitted here: {error}"
    return None


def sweep() -> None:
    """Remove our namespaces whose process has ended."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False).stdout
    for name in (line.split()[0] for line in listed.splitlines() if line.startswith(f"{PREFIX}-")):
        maker = name.split("-")[1]
        if not (maker.isdecimal() and Path(f"/proc/{maker}").exists()):
            subprocess.run(["ip", "netns", "del", name], check=False)


def enter(namespace: int) -> None:
    """Move this thread into the network namespace of an open file, given by its descriptor."""
    if ctypes.CDLL(None, use_errno=True).setns(namespace, NEW_NETWORK):
        raise OSError(ctypes.get_errno(), "cannot enter a network namespace")


def move_to(name: str) -> None:
    """Move this thread into the network namespace called `name`. Sockets and processes that it opens from
    then on are there, too."""
    there = os.open(f"/run/netns/{name}", os.O_RDONLY)
    enter(there)
    os.close(there)


class Place:
    """A network namespace in which nodes run."""

    def __init__(self, name: str, address: str = "") -> None:
        self.name = name
        self.address = address
        self.inside = ("ip", "netns", "exec", name)
        """Words to put before a command, so that the command runs in this namespace."""
        self._ends: list[tuple[str, str]] = []
        """(namespace, device) of both ends of the cable to the bridge."""

    def sh(self, command: str) -> None:
        sh(" ".join([*self.inside, command]))

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Move this thread into the namespace for the block. Sockets and processes that it opens in the block
        are there, too."""
        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        move_to(self.name)
        try:
            yield
        finally:
            enter(home)
            os.close(home)

    def cable(self, other: Place, here: str, there: str) -> None:
        """Connect the new device `here` of this place with the new device `there` of another place."""
        sh(f"ip link add {here} netns {self.name} type veth peer name {there} netns {other.name}")
        self.sh(f"ip link set {here} up")
        other.sh(f"ip link set {there} up")
        self._ends = [(self.name, here), (other.name, there)]

    def unplug(self) -> None:
        """Unplug the cable to the bridge. Packets are then lost without an error."""
        namespace, device = self._ends[1]
        sh(f"ip -n {namespace} link set {device} down")

    def plug(self) -> None:
        namespace, device = self._ends[1]
        sh(f"ip -n {namespace} link set {device} up")

    def rule(self, *what: object) -> None:
        """Replace all rules of this namespace by a rule that netfilter.py sets with the arguments `what`."""
        self.sh(" ".join([*RULES, *map(str, what)]))

    def limit_rate(self, rate: str) -> None:
        """Limit the cable to `rate` in each direction."""
        for end in self._ends:
            self._shape(*end, rate)

    def limit_uplink(self, rate: str) -> None:
        """Limit the rate at which this place sends to `rate`."""
        self._shape(*self._ends[0], rate)

    def _shape(self, namespace: str, device: str, rate: str) -> None:
        bucket = f"tbf rate {rate} burst {BURST} latency {QUEUE_LATENCY}"
        sh(f"tc -n {namespace} qdisc replace dev {device} root {bucket}")


class World:
    """Maker of places, returned by `world()`."""

    def __init__(self, stack: ExitStack, tag: str) -> None:
        self._stack = stack
        self._tag = tag
        self._internet: Place | None = None

    @property
    def internet(self) -> Place:
        """Bridge that connects all places, except those behind a router or a proxy."""
        if self._internet is None:
            self._internet = self._switch("bridge")
        return self._internet

    def place(self, name: str, address: str) -> Place:
        """Make a place on the internet. Addresses 5.x.x.x and 2a0x:: look public to libp2p.

        Peer selection counts the addresses of one /16 (IPv6: /32) as one range.
        """
        place = self._namespace(name, address)
        self._join(place, self.internet, address)
        return place

    def behind_nat(self, name: str, address: str) -> Place:
        """Make a place behind a masquerading router that has this address."""
        router = self.place(f"{name}-router", address)
        place = self._namespace(name, "192.168.1.2")
        place.cable(router, "net0", "home0")
        router.sh("ip address add 192.168.1.1/24 dev home0")
        router.sh("sysctl -q -w net.ipv4.ip_forward=1")
        router.rule("masquerade", "net0")
        place.sh("ip address add 192.168.1.2/24 dev net0")
        place.sh("ip route add default via 192.168.1.1")
        return place

    def far_away(self, name: str, neighbour: Place, port: int, seconds: float) -> Place:
        """Make a place that reaches only `neighbour`, through a proxy with a delay of `seconds` each way."""
        proxy = self.place(f"{name}-proxy", "5.200.0.1")
        place = self._namespace(name, "9.9.0.2")
        place.cable(proxy, "net0", "far0")
        proxy.sh("ip address add 9.9.0.1/24 dev far0")
        place.sh("ip address add 9.9.0.2/24 dev net0")
        arguments = ["9.9.0.1", str(port), neighbour.address, str(port), str(seconds)]
        process = subprocess.Popen([*proxy.inside, *DELAY, *arguments], stdout=subprocess.PIPE)
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        assert process.stdout is not None
        assert process.stdout.readline(), "the proxy did not start"
        self._stack.callback(process.stdout.close)
        return place

    def _namespace(self, name: str, address: str = "") -> Place:
        place = Place(f"{self._tag}-{name}", address)
        sh(f"ip netns add {place.name}")
        self._stack.callback(sh, f"ip netns del {place.name}")
        place.sh("ip link set lo up")
        return place

    def _switch(self, name: str) -> Place:
        switch = self._namespace(name)
        switch.sh("ip link add bridge0 type bridge")
        switch.sh("ip link set bridge0 up")
        return switch

    def _join(self, place: Place, switch: Place, address: str) -> None:
        port = "p" + address.replace(".", "-").replace(":", "-")
        place.cable(switch, "net0", port)
        switch.sh(f"ip link set {port} master bridge0")
        place.sh(f"ip address add {address}/8 dev net0{' nodad' if ':' in address else ''}")


_worlds = iter(range(1000))


@contextmanager
def world() -> Iterator[World]:
    """Yield an internet. It is removed after the block, even after an exception."""
    with ExitStack() as stack:
        yield World(stack, f"{PREFIX}-{os.getpid()}-{next(_worlds)}")
