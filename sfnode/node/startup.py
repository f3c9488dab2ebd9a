"""Decides, before a node runs, which run it joins and whether it may continue its own feed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from itertools import chain
from logging import DEBUG, WARNING
from pathlib import Path
from random import Random
from threading import Event
from typing import NoReturn, TypeVar

from sfnode.daemon_thread import DaemonExecutor
from sfnode.errors import Code, UserError
from sfnode.logging import log
from sfnode.manifest import Manifest
from sfnode.node.driver import LogStore
from sfnode.node.outside import Outside
from sfnode.peers import introductions
from sfnode.settings import Settings
from sfnode.store import data_folder
from sfnode.store.data_folder import DataDir, Layout
from sfnode.store.disk_errors import write_whole
from sfnode.store.identity import Identity, load_or_create
from sfnode.store.log import UpdateLog
from sfnode.store.replay import frontier_of, kept_control, sound_control
from sfnode.store.run_keys import held_organiser_key, is_restored, read_passphrase
from sfnode.transport.base import Transport
from sfprotocol import signing, wire_codec
from sfprotocol.decisions import INCARNATIONS
from sfprotocol.fields import Names
from sfprotocol.frontier import Frontier
from sfprotocol.host import Host
from sfprotocol.machine import Machine
from sfprotocol.messages import Card, Feed, RunParameters
from sfprotocol.own_feed import FIRST_INCARNATION, fresh
from sfprotocol.signing import Sign

_STAND_IN_SALT = "stand-in salt"
"""Key in the log's meta table for a salt. This node's stand-in key is derived from the salt and the node's
own key."""

_INCARNATION = "incarnation"
_MET_PEERS = "peers"

T = TypeVar("T")

SILENT_WORK = 1.0
"""Time, in seconds, after which the owner is told that a proof of work is still under way."""

OWN_FOLDER = "This folder serves that run: give the other one a folder of its own with --data-dir."
ASK_AGAIN = "Check the address and the run id with whoever invited you."


async def in_thread(work: Callable[[], T]) -> T:
    """Return what `work` returns, without blocking the loop. A cancelled caller waits until `work` has
    ended."""
    working = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        await asyncio.wait([working])
        raise


def local_manifest(settings: Settings, data_dir: Layout) -> Manifest | None:
    """Return the manifest given with --run, or else the manifest that is stored in the data folder; None if
    there is neither.

    Raises UserError BAD_MANIFEST, NEWER_PROTOCOL, OLDER_PROTOCOL and WRONG_RUN.
    """
    kept = Manifest.from_toml(data_dir.manifest) if data_dir.manifest.exists() else None
    given = Manifest.from_toml(settings.run) if settings.run else None
    if kept and given and kept.run_id != given.run_id:
        raise UserError(
            Code.WRONG_RUN,
            f"{data_dir.path} belongs to run {kept.run_id.hex()[:16]} ({kept.name}), not to "
            f"{given.run_id.hex()[:16]} ({given.name})",
            OWN_FOLDER,
        )
    manifest = given or kept
    if manifest:
        check_run_id(manifest, settings.run_id, OWN_FOLDER if kept else ASK_AGAIN)
    return manifest.current(str(settings.run or data_dir.path)) if manifest else None


def check_run_id(manifest: Manifest, wanted: str, fix: str = ASK_AGAIN) -> None:
    """Raise UserError WRONG_RUN unless the run's id starts with `wanted` (hex, may be empty)."""
    if not manifest.run_id.hex().startswith(wanted.lower()):
        raise UserError(
            Code.WRONG_RUN,
            f"this is run {manifest.run_id.hex()[:16]} ({manifest.name}), not {wanted[:16]}",
            fix,
        )


def renew_copied_peer_id(manifest: Manifest | None, data_dir: DataDir) -> None:
    """Remove the libp2p identity of a trainer's data folder if the folder is a copy. When the network starts,
    the folder then gets a new identity.

    Two nodes with one peer id displace each other's links, because a neighbour keeps only the newer link with
    a peer.
    """
    if manifest is None or not data_dir.log.exists():
        return
    with UpdateLog.open(data_dir.log, manifest.run_id) as update_log:  # a read-only log cannot tell a copy
        if update_log.get_meta(_INCARNATION) is not None and data_folder.moved(update_log):
            data_dir.libp2p_identity.unlink(missing_ok=True)


async def agree_on_manifest(
    settings: Settings, local: Manifest | None, transport: Transport, data_dir: DataDir, random: Random
) -> Manifest:
    """Return the run's manifest, after storing it in the data folder: the manifest that this node has, or
    that of its peers. If there are both, they must be equal."""
    manifest = local
    if settings.peers:
        manifest = await _peers_manifest(settings, local, transport, data_dir, random) or local
    if manifest:
        check_run_id(manifest, settings.run_id)
        check_run_id(manifest, local.run_id.hex() if local else "")
    if manifest is None:
        raise UserError(
            Code.BAD_OPTION,
            "there is no run to join",
            "Give --peers ADDRESS to join one, or --run FILE to start one (`sfnode init` writes the file).",
        )
    if not data_dir.manifest.exists():
        await in_thread(lambda: keep_manifest(manifest, data_dir.manifest))
    return manifest


async def _peers_manifest(
    settings: Settings, local: Manifest | None, transport: Transport, data_dir: DataDir, random: Random
) -> Manifest | None:
    """Return the manifest of the peers in the settings. If no peer sends a manifest but the data folder has
    one, return None.

    Peers are asked on later starts, too: a folder of another run must not quietly continue that run.
    """
    try:
        return await introductions.run_of(
            transport, settings.peers, settings.run_id, known=local is not None, random=random
        )
    except UserError:
        if data_dir.manifest.exists():
            return None
        raise


def keep_manifest(manifest: Manifest, path: Path) -> None:
    """Write the manifest durably, all or nothing."""
    write_whole(path, manifest.to_toml().encode())


def open_machine(
    settings: Settings,
    manifest: Manifest,
    data_dir: DataDir,
    update_log: UpdateLog,
    now: float,
    draw: Callable[[], int],
    outside: Outside,
) -> Machine:
    """Return the protocol machine in the state of the log. Only a trainer's machine has an own feed.

    `draw` returns a new incarnation. In an open run it has the run's proof of work, if such an incarnation
    was found.
    """
    parameters = manifest.parameters()
    frontier = frontier_of(parameters, update_log)
    usable = frontier.run_state.checkpoints if frontier.run_state else []
    # If its history no longer counts, a node only relays and shows its updates until a checkpoint comes.
    frontier.waiting = settings.from_checkpoint and frontier.checkpoint in (None, *usable)
    if settings.from_checkpoint and parameters.organised is None:
        raise UserError(
            Code.RUN_IS_OPEN,
            f"--from-checkpoint: nobody signs checkpoints of the run {manifest.name}, which is open",
            "Leave the option out: the node gets all updates from its neighbours.",
        )
    own: Feed | None = None
    sign: Sign = _never
    proven = True
    stand_in: Identity | None = None
    kept, is_new = kept_control(update_log), not data_dir.identity.exists()
    if settings.role == "trainer":
        identity = _identity_of(data_dir, outside.random)
        if parameters.organised and not settings.organise:
            stand_in = stand_in_key(update_log, identity, manifest.run_id, outside.random)
        first = partial(_first_incarnation, is_new, draw) if parameters.organised else draw
        own, proven = own_feed(update_log, identity, frontier, first)
        sign = identity.sign
    with sound_control(update_log):
        machine = Machine(
            parameters,
            frontier,
            own=own,
            sign=sign,
            draw_incarnation=draw,
            proven=proven,
            now=now,
            cards=kept_cards(update_log, parameters),
            names=Names(settings.display_name, settings.team),
            verify=outside.verify,
            control=kept,
        )
    if stand_in and machine.organised:
        machine.organised.control.hold(stand_in.public, stand_in.sign, now)
    return machine


def stand_in_key(update_log: UpdateLog, identity: Identity, run_id: bytes, random: Random) -> Identity:
    """Return the key with which this node stands in. The key belongs to this log, and a copy of the log gets
    another key. So the promises made with a key (SPEC O22) are always in the same log as the key. Call this
    before `own_feed`, after which a copied log cannot be told from an original any more."""
    salt = update_log.get_meta(_STAND_IN_SALT)
    if salt is None or data_folder.moved(update_log):
        salt = random.randbytes(16)
        update_log.set_meta(_STAND_IN_SALT, salt)
    return identity.derived(b"stand-in" + run_id + salt)


def _first_incarnation(is_new: bool, draw: Callable[[], int]) -> int:
    """Return the incarnation with which a folder begins in an organised run. For a new key it is the first
    incarnation. For an older key it is another one, because the key most likely has a feed with the first
    incarnation that is missing in this log (SPEC I3)."""
    return FIRST_INCARNATION if is_new else FIRST_INCARNATION + 1 + draw() % (INCARNATIONS - 1)


def _identity_of(data_dir: DataDir, random: Random) -> Identity:
    """Return the identity of this folder, or make one. Raises as `load_or_create`."""
    identity = load_or_create(data_dir.identity, random)
    if identity.exposed:
        log.warning("others could read %s until now, and may be able to sign as this node", data_dir.identity)
    return identity


@contextmanager
def organising(
    settings: Settings, manifest: Manifest, machine: Machine, passphrase: bytes | None, now: float
) -> Iterator[None]:
    """Give the machine the organiser's key if the setting `organise` is on, and meanwhile keep other
    processes from using the key.

    Raises UserError BAD_OPTION in an open run or if the passphrase file is unreadable, and the errors of
    `held_organiser_key`.
    """
    run_id, keys_dir = manifest.run_id, settings.keys_dir
    if settings.passphrase_file:
        passphrase = read_passphrase(settings.passphrase_file)
    if not settings.organise:
        yield
        return
    if machine.organised is None:
        raise UserError(
            Code.BAD_OPTION,
            f"--organise: nobody organises the run {manifest.name}, which is open",
            "Leave the option out, or make an organised run with `sfnode init`.",
        )
    control = machine.organised.control
    organisers = [control.feed.key or b"", *control.feed.stand_ins]
    with held_organiser_key(run_id, organisers, keys_dir, passphrase) as key:
        control.hold(key.public, key.sign, now, restored=is_restored(run_id, keys_dir))
        yield


def kept_cards(update_log: UpdateLog, run: RunParameters) -> list[Card]:
    """Return the cards in the log, which were verified before they were written."""
    messages = (wire_codec.decode(record.frame, *run.form) for record in update_log.cards())
    return [message for message in messages if isinstance(message, Card)]


def settled(run: RunParameters, update_log: UpdateLog) -> Machine:
    """Return a machine in the state of the log, without an own feed.

    In an organised run the machine has compared all histories with the organiser's, as a node does in the
    first rounds after its start. Raises UserError LOG_CORRUPT.
    """
    with sound_control(update_log):
        machine = Machine(
            run,
            frontier_of(run, update_log),
            own=None,
            sign=_never,
            draw_incarnation=_never,
            proven=True,
            now=0.0,
            cards=kept_cards(update_log, run),
            control=kept_control(update_log),
        )
    host = Host(machine, LogStore(update_log, run, lambda feed: None))
    while host.waiting or machine.next_deadline() <= 0.0:
        host.decide(0.0)
        host.carry_out()
    return machine


def _never(*_: object) -> NoReturn:
    raise AssertionError("a relay has no feed, and nothing to sign")


def draw_incarnation(random: Random) -> int:
    """Draw an incarnation (SPEC I3): 32 random bits, so that copies of a folder draw different ones."""
    return random.getrandbits(32)


class Incarnations:
    """Finds incarnations for new feeds of one origin, with the run's proof of work (SPEC I1, S7).

    A thread searches for the next incarnation ahead of time, so that the node need not wait when its feed
    ends.
    """

    def __init__(self, run: RunParameters, origin: bytes, random: Random) -> None:
        self._run = run
        self._origin = origin
        self._random = random
        self._interrupted = Event()
        self._thread = DaemonExecutor("work")
        self._next = self._thread.submit(self._search)

    async def ready(self) -> None:
        """Wait until an incarnation is found. If the search takes a while, log that it does."""
        found = asyncio.wrap_future(self._next)
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(found), SILENT_WORK)
        if not found.done():
            log.info(
                "this run asks every new node for some work, %s hashes on average; looking for a solution",
                f"{1 << self._run.work_bits:,}",
            )
        await asyncio.shield(found)

    def draw(self) -> int:
        """Return a new incarnation and start the search for the next. Waits if none is found yet."""
        found = self._next.result()
        self._next = self._thread.submit(self._search)
        return found

    def stop(self) -> None:
        """End the search."""
        self._interrupted.set()
        self._thread.shutdown()

    def _search(self) -> int:
        drawn = draw_incarnation(self._random)
        numbers = chain(range(drawn, 1 << 32), range(drawn))
        below = signing.work_bound(self._run.work_bits)
        found = signing.solutions(self._run.run_id, self._origin, below, numbers, self._interrupted.is_set)
        return next(found, drawn)


@asynccontextmanager
async def incarnations(
    settings: Settings, manifest: Manifest, data_dir: DataDir, update_log: UpdateLog, random: Random
) -> AsyncIterator[Callable[[], int]]:
    """Yield the function that draws incarnations for this node's feeds.

    A node without a feed waits for the first proof of work. Raises as `load_or_create`.
    """
    if settings.role != "trainer" or not manifest.open.work_bits:
        yield partial(draw_incarnation, random)
        return
    drawing = Incarnations(manifest.parameters(), _identity_of(data_dir, random).public, random)
    try:
        if update_log.get_meta(_INCARNATION) is None:
            await drawing.ready()
        yield drawing.draw
    finally:
        drawing.stop()


def own_feed(
    update_log: UpdateLog,
    identity: Identity,
    frontier: Frontier,
    draw: Callable[[], int],
) -> tuple[Feed, bool]:
    """Return our feed, and whether it is proven that no other node knows more updates of it than this log
    (SPEC I1-I3).

    A fresh or copied log starts a new incarnation, which nobody else can know. So does a log whose feed was
    forked, or was ended by the organiser. If this node has never met a peer, that is proven, too.
    """
    feed = last_feed(update_log, identity.public)
    if feed is not None:
        moved = data_folder.moved(update_log)
        if not moved and not frontier.is_cut(feed):
            return feed, update_log.get_meta(_MET_PEERS) is None
        why = "this data folder was copied or restored" if moved else "nothing more of our feed counts"
        tell_of_new_feed(update_log, feed, why)
    feed = fresh(frontier, identity.public, draw())
    remember_feed(update_log, feed)
    return feed, True


def tell_of_new_feed(update_log: UpdateLog, last: Feed | None, why: str) -> None:
    """Log that another feed replaces `last`: as a warning if `last` has updates, otherwise as a debug
    message."""
    said = last is not None and update_log.stop(last) > 0
    log.log(WARNING if said else DEBUG, "%s; its work goes on as that of a new node, with the same key", why)


def continue_as(update_log: UpdateLog, feed: Feed) -> None:
    """Record our new feed durably. Called on the disk thread."""
    last = last_feed(update_log, feed.origin)
    tell_of_new_feed(update_log, last, "cannot prove that this log is all we ever said")
    remember_feed(update_log, feed)


def last_feed(update_log: UpdateLog, origin: bytes) -> Feed | None:
    """Return the last feed of `origin` that this folder continued; None if there is none."""
    kept = update_log.get_meta(_INCARNATION)
    return None if kept is None else Feed(origin, int.from_bytes(kept, "big"))


def remember_feed(update_log: UpdateLog, feed: Feed) -> None:
    """Record durably that `feed` is ours, before anything is computed for it."""
    update_log.set_meta(_INCARNATION, feed.incarnation.to_bytes(8, "big"))
    data_folder.remember_location(update_log)


def contributed(layout: Layout, update_log: UpdateLog) -> int:
    """Return the number of updates of this folder's origin in the log, over all incarnations."""
    if not layout.identity.exists():
        return 0
    own = Identity.read(layout.identity).public
    return sum(tail.next for tail in update_log.unsorted_tails() if tail.feed.origin == own)


def remembered_peers(update_log: UpdateLog) -> list[str]:
    """Return the addresses of the peers that were recorded for this start."""
    kept = update_log.get_meta(_MET_PEERS)
    return kept.decode().split() if kept else []


def remember_peers(update_log: UpdateLog, addresses: list[str]) -> None:
    """Record these addresses for the next start."""
    update_log.set_meta(_MET_PEERS, " ".join(addresses).encode())
