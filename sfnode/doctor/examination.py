"""Runs all checks concurrently, each with a deadline, and sorts their findings.

This module knows which check needs the results of another check, but not what checks do.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import sfnode
from sfnode.daemon_thread import in_daemon_thread
from sfnode.doctor import compute, disk, network
from sfnode.doctor.findings import (
    CheckedCase,
    CheckFinding,
    Examination,
    Subject,
    note,
    number,
    ok,
    problem,
    refused,
)
from sfnode.doctor.peers import Visit, visit
from sfnode.errors import Code, UserError
from sfnode.manifest import Manifest
from sfnode.node.startup import local_manifest, remembered_peers
from sfnode.store.data_folder import Layout
from sfnode.store.log import UpdateLog
from sfnode.transport.base import TransportError
from sfprotocol.messages import PROTOCOL_VERSION

if TYPE_CHECKING:
    from sfnode.transport.libp2p.transport import HivemindTransport

T = TypeVar("T")
Check = Callable[[], Awaitable[list[CheckFinding]]]
OfMachine = Callable[[CheckedCase], list[CheckFinding]]
OfRun = Callable[[CheckedCase, Manifest | None], list[CheckFinding]]

OF_MACHINE: dict[str, OfMachine] = {
    "memory": lambda case: [compute.look_at_memory()],
    "descriptors": lambda case: [compute.look_at_descriptors()],
    "device": lambda case: compute.look_at_devices(case.devices),
    "ports": lambda case: network.look_at_ports(case.host_maddrs, case.data_dir),
    "IPv6": lambda case: [network.look_at_ipv6(case.host_maddrs)],
}
"""Checks of the machine alone, keyed by name."""

OF_RUN: dict[str, OfRun] = {
    "disk": lambda case, manifest: disk.look_at_disk(case.data_dir, manifest),
    "model": compute.look_at_fit,
    "uplink": compute.look_at_uplink,
    "speed": lambda case, manifest: [one for one in [compute.look_at_speed(case, manifest)] if one],
}
"""Checks of whether this machine meets the needs of a run, keyed by name. The manifest is None if no run is
known."""

DEADLINE = 15.0
"""Deadline, in seconds, of a check once the libraries are loaded. The check of a dead peer usually takes 4 s.
The check of a peer that is slow at every step, including the lookup of its name, takes up to 15 s."""

MEASURE_DEADLINE = 300.0
"""Deadline, in seconds, of the check that reads the model, and loads and measures it if that was
requested."""

RELAY_DEADLINE = 6.0
"""Deadline, in seconds, for a connection through a relay, which usually takes 1 or 2 s."""

MAX_REMEMBERED = 5
"""Maximum number of peers, met in earlier runs of the node, that are visited if no peer is named."""

_RELAYED = {
    1: "Join with --auto-relay and name a second peer that relays, or forward",
    2: "Join with --auto-relay, or forward",
}
"""First words of the advice for a node that a relay can reach, keyed by the number of peers that may
relay."""

_PEER_STEPS = Subject.PEER_NAME, Subject.PEER_TCP, Subject.PEER_HANDSHAKE, Subject.PEER_MANIFEST
ABOUT_PEERS = frozenset(map(number, _PEER_STEPS))
"""Numbers of findings about a peer. A problem with such a number becomes a note if another peer answers."""


class Examiner:
    """One examination: its checks, and results that several checks use."""

    def __init__(self, case: CheckedCase, stack: AsyncExitStack) -> None:
        self._case = case
        self._stack = stack
        self._local: Manifest | None = None
        self._run_finding: CheckFinding | None = None
        self._shared: dict[str, asyncio.Task[Any]] = {}
        self._read_run()
        self._peers = case.peers or self._remembered()

    async def findings(self) -> list[CheckFinding]:
        """Run all checks and return their findings, sorted by number."""
        checks: dict[str, Check] = {
            **{name: partial(self._here, look) for name, look in OF_MACHINE.items()},
            **{name: partial(self._of_run, look) for name, look in OF_RUN.items()},
            "clock": self._clock,
            "network daemon": self._daemon,
            "peers": self._peers_found,
            "reachability": self._reach,
            "DHT": self._dht,
            "run": self._run,
        }
        found = await asyncio.gather(*(self._finished(name, check) for name, check in checks.items()))
        return sorted((one for several in found for one in several), key=lambda one: one.number)

    async def end(self) -> None:
        """Cancel the unfinished checks."""
        for task in self._shared.values():
            task.cancel()
        await asyncio.gather(*self._shared.values(), return_exceptions=True)

    # -- shared results ----------------------------------------------------------------------------

    def _read_run(self) -> None:
        try:
            self._local = local_manifest(self._case, Layout(self._case.data_dir))
        except UserError as error:
            versions = (Code.NEWER_PROTOCOL, Code.OLDER_PROTOCOL)
            subject = Subject.VERSION if error.code in versions else Subject.RUN
            self._run_finding = refused(subject, error)

    def _remembered(self) -> tuple[str, ...]:
        """Return the peers that the node of this data folder has met and remembered."""
        log = Layout(self._case.data_dir).log
        if self._local is None or not log.exists():
            return ()
        with suppress(UserError), UpdateLog.open(log, self._local.run_id, read_only=True) as opened:
            return tuple(remembered_peers(opened)[:MAX_REMEMBERED])
        return ()

    async def _once(self, name: str, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the result of `make`, which is called only once for all checks. The call continues if a
        check stops waiting for it."""
        if name not in self._shared:
            self._shared[name] = asyncio.create_task(make())
        result: T = await asyncio.shield(self._shared[name])
        return result

    async def _libraries(self) -> None:
        await self._once("libraries", lambda: in_daemon_thread(_load_libraries))

    async def _caller(self) -> HivemindTransport:
        await self._libraries()
        return await self._once("caller", lambda: network.start(self._stack))

    async def _visits(self) -> list[Visit]:
        return await self._once("visits", self._visit_all)

    async def _visit_all(self) -> list[Visit]:
        peers = dict.fromkeys(self._peers)
        return list(await asyncio.gather(*(visit(peer, self._caller, self._local) for peer in peers)))

    async def _manifest(self) -> Manifest | None:
        """Return the run's manifest: the one given or stored here, otherwise a peer's; None if there is
        none."""
        visits = [] if self._local else await self._visits()
        return self._local or next((seen.manifest for seen in visits if seen.manifest), None)

    async def _answering(self) -> list[str]:
        return [seen.address for seen in await self._visits() if seen.answers]

    async def _finished(self, name: str, check: Check) -> list[CheckFinding]:
        await self._libraries()
        deadline = MEASURE_DEADLINE if name == "speed" else DEADLINE
        try:
            async with asyncio.timeout(deadline):
                return await check()
        except TimeoutError:
            what = f"the check of the {name} did not end within {deadline:g} s"
            return [
                note(Subject.UNFINISHED, what, "Try again. If it happens again, the examined part hangs.")
            ]
        except Exception as error:  # one check must not take the others with it
            what = f"the check of the {name} failed: {type(error).__name__}: {error}"
            return [problem(Subject.UNFINISHED, what, "This is a bug in sfnode: please report it.")]

    # -- the checks --------------------------------------------------------------------------------

    async def _clock(self) -> list[CheckFinding]:
        if self._case.ntp:
            with suppress(OSError):
                ahead = await network.ntp_ahead(*self._case.ntp)
                return [network.judge(ahead, f"the time server {self._case.ntp[0]}")]
        return [network.judge_by_peers([seen.clock_ahead for seen in await self._visits() if seen.answers])]

    async def _here(self, look: OfMachine) -> list[CheckFinding]:
        return await in_daemon_thread(lambda: look(self._case))

    async def _of_run(self, look: OfRun) -> list[CheckFinding]:
        manifest = await self._manifest()
        return await in_daemon_thread(lambda: look(self._case, manifest))

    async def _daemon(self) -> list[CheckFinding]:
        try:
            await self._caller()
        except UserError as error:
            return [refused(Subject.NETWORK_DAEMON, error)]
        return [ok(Subject.NETWORK_DAEMON, "the libp2p daemon starts")]

    async def _peers_found(self) -> list[CheckFinding]:
        visits = await self._visits()
        found = [one for seen in visits for one in (seen.finding, seen.slow_name) if one]
        found = [one for one in found if one.number != number(Subject.NETWORK_DAEMON)]
        if not any(one.verdict == "ok" for one in found):
            return found
        return [
            one.model_copy(update={"verdict": "note"}) if one.number in ABOUT_PEERS else one for one in found
        ]

    async def _reach(self) -> list[CheckFinding]:
        public = network.public_ipv4()
        if public:
            what = f"this machine has the public address {public}: others reach it, unless firewalls refuse"
            return [ok(Subject.REACH, what)]
        relays = await self._answering()
        if not relays:
            return []
        relay = await self._relay(relays)
        way = f"; through {relay} they can" if relay else f", nor within {RELAY_DEADLINE:g} s through a peer"
        if relay and len(relays) == 1:
            way += ", which is the only one: without it nobody new does"
        return [
            note(
                Subject.REACH,
                f"this machine has no public IPv4 address: nodes outside cannot connect to it directly{way}",
                f"{_RELAYED[min(2, len(relays))] if relay else 'Forward'} a port and name it with "
                "--announce-maddrs. A node that nobody can connect to still works: it connects to others.",
            )
        ]

    async def _relay(self, relays: Sequence[str]) -> str | None:
        try:
            caller = await self._caller()
            host = await network.start(self._stack, relays)
            async with asyncio.timeout(RELAY_DEADLINE):
                return await network.through_relay(caller, host, relays)
        except (TimeoutError, TransportError, UserError):
            return None

    async def _dht(self) -> list[CheckFinding]:
        peers = await self._answering()
        if not peers:
            return []
        begin = time.perf_counter()
        try:
            there = await network.through_dht(await self._caller(), peers)
            why = "what was written into it is not found"
        except (TransportError, UserError) as error:
            there, why = False, str(error)
        if there:
            took = time.perf_counter() - begin
            return [ok(Subject.DHT, f"an entry in the peers' DHT was written and found in {took:.1f} s")]
        return [
            problem(
                Subject.DHT,
                f"the peers' DHT does not work from here: {why}",
                "A wrong clock is the usual cause; otherwise name other peers.",
            )
        ]

    async def _run(self) -> list[CheckFinding]:
        if self._run_finding:
            return [self._run_finding]
        manifest = await self._manifest()
        if manifest is None:
            if self._peers:
                return []
            fix = "Name the run with --link LINK, --peers ADDRESS or --run FILE to have it examined, too."
            return [note(Subject.RUN, "no run was named, so only this machine was examined", fix)]
        numbers = manifest.training
        return [
            ok(
                Subject.RUN,
                f"run {manifest.name} ({manifest.run_id.hex()[:16]}): {manifest.model.source}, "
                f"{numbers.update_budget:,} updates",
            ),
            ok(
                Subject.VERSION,
                f"the run speaks protocol {manifest.protocol}, and this sfnode {sfnode.__version__} speaks "
                f"{PROTOCOL_VERSION}, so it can join",
            ),
        ]


def _load_libraries() -> None:
    """Import the libraries in one thread. If two threads import one library, the second may find it half
    initialised."""
    import sfnode.engine.trainer
    import sfnode.resources.memory
    import sfnode.transport.libp2p.transport  # noqa: F401


async def examine(case: CheckedCase) -> Examination:
    """Run all checks. Takes at most about 15 s unless steps of a large model are measured."""
    begin = time.perf_counter()
    async with AsyncExitStack() as stack:
        examiner = Examiner(case, stack)
        stack.push_async_callback(examiner.end)
        findings = await examiner.findings()
    return Examination(
        version=sfnode.__version__,
        seconds=round(time.perf_counter() - begin, 1),
        problems=sum(one.verdict == "problem" for one in findings),
        findings=findings,
    )
