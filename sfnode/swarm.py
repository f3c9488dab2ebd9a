"""A local swarm: N nodes of a run as processes on this machine, from their start to equal digests.

Starts, watches and compares the nodes; prints nothing. No node outlives the process that started it. A swarm
never signs decisions of another person's run: an organised run gets new keys, and therefore a new id.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self, TypeVar

import sfnode
from sfnode import die_with_parent
from sfnode.control.client import Client
from sfnode.defaults import PREFIX, variable
from sfnode.errors import NO_ANSWER, Code, UserError
from sfnode.manifest import Manifest
from sfnode.models import bases as published
from sfnode.organising.admission import invitation_key
from sfnode.schema.measurements import Evaluation, NodeEvaluation
from sfnode.schema.node_state import NodeState
from sfnode.schema.organising import OrganiserStatus
from sfnode.schema.results import NodeResult, SwarmResult
from sfnode.schema.status import Status
from sfnode.schema.views import Samples
from sfnode.store.data_folder import Layout
from sfnode.store.named_files import NamedFiles
from sfnode.store.run_keys import RunKeys, organiser_key
from sfnode.tasks import public_files
from sfprotocol import decisions
from sfprotocol.decisions import Invite
from sfprotocol.invitation import SECRET_BYTES

MOST_NODES = 64
"""Maximum number of nodes. Each node loads torch, and no single machine has memory for more."""

POLL_INTERVAL = 0.5
"""Seconds between two requests to the nodes."""

AGREE_DEADLINE = 60.0
"""Maximum time, in seconds, from the last update until all digests are equal."""


RUN, KEYS = "run.toml", "keys"
"""Names of the manifest, and of the folder of the organiser's keys, in a swarm's folder."""


class SwarmProgress(NamedTuple):
    """The nodes at one moment."""

    seconds: float
    """Seconds since the start of the swarm."""
    statuses: tuple[Status | None, ...]
    """The last status of each node, in the order of their numbers; None before a node's first answer."""
    organised: OrganiserStatus | None = None
    """The first node's view of the organised run; None in an open run, and before its first answer."""

    @property
    def known(self) -> int:
        """Smallest number of updates that any of the nodes has."""
        return min(status.known if status else 0 for status in self.statuses)

    @property
    def complete(self) -> bool:
        """Whether all nodes are known to make no more updates."""
        return all(status and _is_over(status) for status in self.statuses)

    @property
    def agree(self) -> bool:
        """Whether all nodes answered and their state digests are equal."""
        return len({status.digest if status else None for status in self.statuses}) == 1


def _is_over(status: Status) -> bool:
    """Return whether a node makes no more updates. It may still lack other nodes' updates, which must arrive
    within AGREE_DEADLINE."""
    used = status.organised.counted if status.organised else status.known
    catching_up = status.state is NodeState.CATCHING_UP and used >= status.update_budget
    return catching_up or status.state is NodeState.COMPLETE


class LocalSwarm:
    """The nodes of one run. Use it as an async context manager: at its end no process is left.

    `async for progress in swarm` yields the nodes' state regularly until the run is complete and all digests
    agree, or AGREE_DEADLINE has passed. `await swarm.compare()` then measures the trained model and compares
    the nodes' digests.
    """

    def __init__(
        self,
        manifest: Manifest,
        *,
        nodes: int = 4,
        folder: Path | None = None,
        split_data: bool = True,
        threads: int = 0,
        device: str | Sequence[str] | None = None,
        dtype: str | None = None,
        evaluate: bool = True,
        beside: Path | None = None,
        model: Path | None = None,
        verifiers: Sequence[str] = (),
    ) -> None:
        """Nothing is started or written before `start` (or `async with`).

        `folder` is the parent of the nodes' folders. Without `folder` they are in a temporary folder, which
        is kept only after a failure. `split_data` gives every node its own part of the training rows.
        `threads` is the number of CPU threads of each node; 0 divides the cores among the nodes. If `device`
        names several devices, the first node uses the first one, and so on in turn. With `evaluate`, and if
        the run has test data, the base model is measured while the nodes train, and the trained model at the
        end.

        `beside` is the folder of a manifest that `sfnode init` wrote, with its published bases and data.
        `model` is the folder of the base model, if the run names neither a model of this package nor one of
        the hub. `verifiers` are plug-ins that nodes may run. This process may need permission to run them,
        too (`verifying.permit`).
        """
        if not 1 <= nodes <= MOST_NODES:
            raise ValueError(f"a local swarm has 1 to {MOST_NODES} nodes")
        self.manifest = manifest.current(manifest.name)
        """The run. After the start an organised run has the swarm's own keys."""
        self.nodes: list[NodeProcess] = []
        self.folder = folder
        self._count = nodes
        self._scratch: Path | None = None
        """The temporary folder."""
        self._shared = ["--host-maddrs", "/ip4/127.0.0.1/tcp/0"]
        self._shared += ["--threads", str(threads or max(1, (os.cpu_count() or 1) // nodes))]
        self._shared += ["--dtype", dtype] if dtype else []
        self._shared += [part for one in verifiers for part in ("--verifier", one)]
        self._places = public_files.beside(manifest.data, beside) if beside else public_files.NOWHERE
        model = model or (NamedFiles().and_beside(manifest, beside).model if beside else None)
        self._shared += ["--model", str(model)] if model else []
        self._devices = [device] if isinstance(device, str) else list(device or ())
        self._beside = beside
        self._split_data = split_data and nodes > 1
        self._evaluates = evaluate and bool(manifest.data.test)
        self.before: Evaluation | None = None
        """The evaluation of the base model; None until this evaluation and `calibrated` are both finished."""
        self.calibrated: Evaluation | None = None
        """The evaluation of the base model with its prior over the answers subtracted; None without such a
        prior."""
        self._measuring: asyncio.Task[None] | None = None
        self._started = self._first_update = self._complete_since = 0.0
        """Monotonic times of the start, of the first update, and of the completion of the run; each is 0
        before its event."""
        self.keep = False
        """Whether `stop` keeps the temporary folder."""

    # -- starting and stopping ---------------------------------------------------------------------

    async def start(self) -> None:
        """Start the first node. After its first answer, start the other nodes, which join through it.

        In an organised run the first node is the organiser, and admits the others by an invitation. Raises
        UserError BAD_OPTION when the folder cannot be written, SWARM_FAILED when a node ends.
        """
        self._started = time.monotonic()
        run = self._write_run()
        organises = ["--organise", "--set", "organise.alone=yes", "--keys-dir", str(run.parent / KEYS)]
        self.nodes = [NodeProcess(n, run.parent / f"node-{n}") for n in range(1, self._count + 1)]
        first, *others = self.nodes
        await first.start(
            [*self._arguments(first), *(organises if self._organised else []), "--run", str(run)]
        )
        with self._keeping():
            address = (await first.answering()).addresses[0]
            invitation = await self._invite(first) if self._organised and others else ""
        own = ["--run", str(run)] if self._places.named.keys() - self.manifest.data.digests else []
        for node in others:
            await node.start([*self._arguments(node), *own, "--peers", address], invitation)
        if self._evaluates:
            self._measuring = asyncio.create_task(self._evaluate_base())

    async def stop(self) -> None:
        """Stop all nodes. Remove the temporary folder unless a node failed or digests differ."""
        if self._measuring:
            self._measuring.cancel()
            await asyncio.gather(self._measuring, return_exceptions=True)
        await asyncio.gather(*(node.stop() for node in self.nodes))
        if self._scratch and not self.keep:
            shutil.rmtree(self._scratch, ignore_errors=True)

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @contextmanager
    def _keeping(self) -> Iterator[None]:
        """Keep the temporary folder if a node fails in the block, because the error names a log in it."""
        try:
            yield
        except UserError:
            self.keep = True
            raise

    async def _invite(self, organiser: NodeProcess) -> str:
        """Return a ticket for all other nodes, `NUMBER:HEX`, with which they need no proof of work."""
        secret = secrets.token_bytes(SECRET_BYTES[0])
        key = invitation_key(self.manifest.run_id, secret).public_key().public_bytes_raw()
        wish = decisions.encode(Invite(key, self._count - 1))
        while True:
            try:
                result = await organiser.ask(organiser.client.decide(wish))
            except UserError as error:
                if error.code is not Code.ORGANISER_NEEDED:  # it is still starting
                    raise
                await asyncio.sleep(START_POLL)
            else:
                return f"{result.invitation}:{secret.hex()}"

    def _write_run(self) -> Path:
        """Write the manifest into the swarm's folder, and the keys of an organised run."""
        if self.folder is None:
            self.folder = self._scratch = Path(tempfile.mkdtemp(prefix="sfnode-swarm-"))
        path = self.folder / RUN
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if self._organised:
                self.manifest = self._with_own_keys(path)
            path.write_text(self.manifest.to_toml(), encoding="utf-8")
            self._bring_files(path.parent)
        except OSError as error:
            raise UserError(
                Code.BAD_OPTION, f"cannot write to {self.folder}: {error.strerror}", "Name another --out."
            ) from error
        return path

    def _bring_files(self, folder: Path) -> None:
        """Copy published bases and data to where the first node looks for them. The other nodes download them
        from the first node."""
        digest, targets = self.manifest.training.bases, self.manifest.model.parsed_targets()
        if digest and self._beside:
            file = published.path_in(self._beside, digest)
            published.keep(file, folder, targets, self.manifest.basis_columns)
        public_files.bring(self.manifest.data, self._places, folder)

    @property
    def _organised(self) -> bool:
        return bool(self.manifest.organised.organiser)

    def _with_own_keys(self, path: Path) -> Manifest:
        """Return the manifest with the keys of an earlier start in this folder, or with new ones."""
        keys_dir = path.parent / KEYS
        kept = Manifest.from_toml(path) if path.exists() else None
        same = kept and _but_for_keys(kept) == _but_for_keys(self.manifest)
        if kept and same and organiser_key(kept.run_id, keys_dir).exists():
            return kept
        keys = RunKeys.generate()
        manifest = _with_keys(self.manifest, **keys.options())
        keys.write(manifest.run_id, keys_dir)
        return manifest

    def _arguments(self, node: NodeProcess) -> list[str]:
        shard = ["--set", f"data.shard={node.number}/{self._count}"] if self._split_data else []
        devices = self._devices
        device = ["--device", devices[(node.number - 1) % len(devices)]] if devices else []
        return [*self._shared, *device, *shard]

    # -- watching ----------------------------------------------------------------------------------

    async def look(self) -> SwarmProgress:
        """Request the status of every node once. Raises UserError SWARM_FAILED if a node ended."""
        with self._keeping():
            statuses = tuple(await asyncio.gather(*(node.look() for node in self.nodes)))
            organised = None
            if self._organised and statuses[0]:
                with suppress(UserError):
                    organised = await self.nodes[0].client.organising()
        now = time.monotonic()
        if not self._first_update and any(status and status.known for status in statuses):
            self._first_update = now
        return SwarmProgress(now - self._started, statuses, organised)

    async def __aiter__(self) -> AsyncIterator[SwarmProgress]:
        """Yield the nodes' state every POLL_INTERVAL seconds until the run is complete and the base model is
        measured."""
        while True:
            progress = await self.look()
            yield progress
            if self._measured() and self._finished(progress):
                return
            await asyncio.sleep(POLL_INTERVAL)

    def _measured(self) -> bool:
        """Return whether the base model was measured, or need not be. Raises the measurement's error."""
        if self._measuring is None or not self._measuring.done():
            return self._measuring is None
        self._measuring.result()
        return True

    def _finished(self, progress: SwarmProgress) -> bool:
        if not progress.complete:
            return False
        self._complete_since = self._complete_since or time.monotonic()
        if progress.agree:
            return True
        given_up = time.monotonic() - self._complete_since > AGREE_DEADLINE
        self.keep = self.keep or given_up
        return given_up

    # -- comparing ---------------------------------------------------------------------------------

    async def compare(self) -> SwarmResult:
        """Measure the model and compare the digests of all nodes. Raises UserError SWARM_FAILED."""
        seconds = time.monotonic() - self._first_update if self._first_update else 0.0
        after = await self._evaluate(probe=True) if self._evaluates else None
        with self._keeping():
            digests = await asyncio.gather(*(node.ask(node.client.digest()) for node in self.nodes))
        last = await self.look()
        statuses = [status for status in last.statuses if status]
        # own updates from the signed log, to include those of earlier starts in the same folder
        nodes = [
            NodeResult(node=n, own_updates=s.contributed, digest=d.digest, core_digest=d.core_digest)
            for n, (s, d) in enumerate(zip(statuses, digests, strict=True), 1)
        ]
        sent = sum(status.updates_sent for status in statuses)
        equal = len({(digest.digest, digest.core_digest) for digest in digests}) == 1
        self.keep = self.keep or not equal
        return SwarmResult(
            version=sfnode.__version__,
            run_id=self.manifest.run_id.hex(),
            run_name=self.manifest.name,
            updates=digests[0].known,
            counted=last.organised.counted if last.organised else None,
            sealed=last.organised.sealed if last.organised else None,
            announced=next(reversed(last.organised.announcements), None) if last.organised else None,
            update_budget=last.organised.budget if last.organised else self.manifest.training.update_budget,
            equal=equal,
            before=self.before,
            calibrated=self.calibrated,
            after=after,
            probe=after.probe if after else None,
            baselines=after.baselines if after else (),
            nodes=nodes,
            bytes_per_update=sum(status.segment_bytes_sent for status in statuses) / max(sent, 1),
            bytes_sent=sum(status.bytes_sent for status in statuses),
            seconds=round(seconds, 1),
            seconds_in_all=round(time.monotonic() - self._started, 1),
        )

    async def samples(self) -> Samples:
        """Return the answers of the base model and of later models to some test rows. Raises UserError
        SWARM_FAILED."""
        with self._keeping():
            return await self.nodes[0].ask(self.nodes[0].client.samples())

    async def _evaluate(
        self, *, base: bool = False, calibrated: bool = False, probe: bool = False
    ) -> NodeEvaluation:
        """Have a node measure the model on the run's test rows.

        The last node measures the base model, because it does not organise if there are several nodes. The
        first node makes all other measurements.
        """
        node = self.nodes[-1 if base else 0]
        with self._keeping():
            await node.answering()
            return await node.ask(node.client.evaluate(base=base, calibrated=calibrated, probe=probe))

    async def _evaluate_base(self) -> None:
        """Have the base model measured: as it is and, if it has a prior over the answers, with that prior
        subtracted.

        The measurement waits for the node's first update. Otherwise the node would contribute nothing to a
        run of a minute.
        """
        while True:
            status = await self.nodes[-1].answering()
            if status.contributed or _is_over(status):
                break
            await asyncio.sleep(POLL_INTERVAL)
        before, task = await self._evaluate(base=True), self.manifest.task
        if task.labelled and (self.manifest.data.train or task.prior):
            self.calibrated = await self._evaluate(base=True, calibrated=True)
        self.before = before


def _with_keys(manifest: Manifest, *, organiser: str, deputies: tuple[str, ...]) -> Manifest:
    """Return the organised run with these keys, and all else unchanged."""
    said = manifest.organised.model_copy(update={"organiser": organiser, "deputies": deputies, "votes": 1})
    return manifest.model_copy(update={"organised": said})


def _but_for_keys(manifest: Manifest) -> Manifest:
    """Return the run without its keys. The results are equal for two runs that differ only in their keys."""
    return _with_keys(manifest, organiser="", deputies=())


T = TypeVar("T")

START_DEADLINE = 120.0
"""Time limit for a node's first answer on its control socket, in seconds. Importing torch on a busy machine
takes 10 s."""

STOP_DEADLINE = 10.0
"""Time limit for a node to end after SIGTERM, in seconds. Nodes normally take less than 2 s."""

END_DEADLINE = 5.0
"""Time limit for a process to end after its control socket is gone, in seconds."""

START_POLL = 0.2

SHOWN_LINES = 8
"""Number of lines of a node's output that are shown in the error for a node that ended."""


class NodeProcess:
    """One node process and its folder; `number` counts from 1."""

    def __init__(self, number: int, folder: Path) -> None:
        self.number = number
        self.client = Client(Layout(folder).control_socket)
        self.status: Status | None = None
        """The status in the node's last answer; None before its first answer."""
        self.folder = folder
        self.program = (sys.executable, "-m", "sfnode")
        self._log = folder / "node.log"
        self._process: asyncio.subprocess.Process | None = None
        self._started = time.monotonic()

    async def start(self, arguments: list[str], invitation: str = "") -> None:
        """Start `sfnode join` with these arguments.

        `invitation` is a secret. It is passed in the environment, which other users cannot read. The output
        is written to node.log in the node's folder.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        node = [*self.program, "join", "--data-dir", str(self.folder), *arguments]
        with self._log.open("ab") as output:
            self._process = await asyncio.create_subprocess_exec(
                *die_with_parent.tied(node),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**_environment(), variable("--invitation"): invitation},
                start_new_session=True,  # Ctrl-C reaches this process only, which then stops the nodes
            )
        self._started = time.monotonic()

    async def look(self) -> Status | None:
        """Return the node's current status or, if it does not answer now, its last status; None before its
        first answer.

        Raises UserError SWARM_FAILED if the process ended or never answered.
        """
        if self._process is None or self._process.returncode is not None:
            raise self._failure()
        try:
            self.status = await self.client.status()
        except UserError:
            if self.status is None and time.monotonic() - self._started > START_DEADLINE:
                raise self._failure() from None
        return self.status

    async def answering(self) -> Status:
        """Wait for the node's first answer, and return its status."""
        while True:
            if status := await self.look():
                return status
            await asyncio.sleep(START_POLL)

    async def ask(self, call: Awaitable[T]) -> T:
        """Await a call of the node's client. Raises UserError SWARM_FAILED if the node's process ended."""
        try:
            return await call
        except UserError as error:
            if error.code in NO_ANSWER and await self._ends():
                raise self._failure() from error
            raise

    async def stop(self) -> None:
        """End the process by SIGTERM, or after STOP_DEADLINE by SIGKILL."""
        if self._process is None or self._process.returncode is not None:
            return
        self._process.terminate()
        try:
            await asyncio.wait_for(self._process.wait(), STOP_DEADLINE)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()

    async def _ends(self) -> bool:
        if self._process is None:
            return True
        try:
            await asyncio.wait_for(self._process.wait(), END_DEADLINE)
        except TimeoutError:
            return False
        return True

    def _failure(self) -> UserError:
        status = self._process.returncode if self._process else None
        shown = "\n".join(_end_of_output(self._log))
        return UserError(
            Code.SWARM_FAILED,
            f"node {self.number} {_fate(status)}; its output ends with:\n{shown}",
            f"The whole output is in {self._log}",
        )


def _environment() -> dict[str, str]:
    """Return this process's environment without sfnode's variables: they are settings of this program, not of
    the nodes."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    return {**kept, variable("--config"): os.devnull}


def _fate(status: int | None) -> str:
    if status is None:
        return f"did not answer for {START_DEADLINE:g} s"
    return f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"


def _end_of_output(log: Path) -> list[str]:
    """Return the error with which the node ended, or else the last lines of its output."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    errors = [number for number, line in enumerate(lines) if line.startswith("sfnode: SF")]
    return lines[errors[-1] :] if errors else lines[-SHOWN_LINES:]
