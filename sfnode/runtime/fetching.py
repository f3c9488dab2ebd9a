"""The base model from peers: piece by piece, from several at once, each piece checked when it arrives.

Works on a folder that may hold parts of the model already, and fills it. Who the peers are, where the
finished model goes, and whether it is the run's, is for others to say.
"""

from __future__ import annotations

import asyncio
import shutil
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from sfnode.engine.listing import missing, require_safe, write_piece
from sfnode.errors import Code, UserError
from sfnode.limits import size_text
from sfnode.observe import log
from sfnode.runtime.throttle import Lane
from sfnode.store.faults import disk_faults
from sfnode.transport.base import TransportError, peer_of
from sfprotocol import codec
from sfprotocol.errors import RemoteProtocolError
from sfprotocol.listing import MAX_LISTING, Listing, Piece, decode, hash_listing, hash_piece
from sfprotocol.messages import PartReply, PartRequest

AT_A_TIME = 2
"""Pieces asked of one peer at a time (SPEC B6): a transport lets a peer open four streams."""

RELAYED_BYTES = 60 * 1024
"""Bytes of a reply that may go through a relay (SPEC B3)."""

LOOK_INTERVAL = 2.0
"""Seconds between looks for further peers."""

REPORT_INTERVAL = 10.0
"""Seconds between lines of progress in the log."""

STALL = 20.0
"""Seconds that a peer may leave a part half sent: as long as a question may take (REQUEST_DEADLINE)."""

SLOW = 30.0
"""Seconds after which a part is slow to come, and is asked of everybody at the end and not of two only: one
peer that stalls must not hold it up, nor two that belong together."""

PAUSE_FIRST, PAUSE_MOST = 0.25, 8.0
"""Seconds before a peer that had nothing for us is asked again; doubles."""

PATIENCE = 180.0
"""Seconds without a single piece after which nobody has the model."""

SPARE_BYTES = 64 << 20
"""Room that must be left on the disk: the node's log goes on growing there."""

Ask = Callable[[str, bytes], Awaitable[bytes]]
"""`Transport.request`."""


class Progress(NamedTuple):
    """How far a fetch is."""

    done: int
    """Bytes that are here, of earlier attempts too."""
    total: int
    peers: int
    """Peers that have given something."""


class _Nothing(Exception):  # noqa: N818 (an answer, not an error)
    """The peer has nothing for us, at least not now."""


@dataclass(slots=True, eq=False)
class _Source:
    """A peer that may have the model."""

    peer: str
    ways: list[str] = field(default_factory=list)
    """The one that is tried next is the first."""
    banned: bool = False
    pause: float = PAUSE_FIRST
    gave: bool = False

    def add(self, way: str) -> None:
        if way not in self.ways:
            self.ways.append(way)


_Work = Callable[[_Source], Coroutine[Any, Any, None]]


class _Asked(NamedTuple):
    """A part that has been asked for."""

    since: float
    sources: set[_Source]


class Fetch:
    """One attempt to fill a folder with the files of a listing. Await `run` once."""

    def __init__(
        self,
        wanted: bytes,
        folder: Path,
        *,
        ask: Ask,
        peers: Callable[[], Sequence[str]],
        lane: Lane,
        clock: Callable[[], float],
    ) -> None:
        """`wanted` is the listing's hash; `peers()` are full addresses of those who may have the model;
        `lane` is what this node may receive."""
        self._wanted = wanted
        self._folder = folder
        self._ask = ask
        self._peers = peers
        self._lane = lane
        self._clock = clock
        self._sources: dict[str, _Source] = {}
        self._workers: set[asyncio.Task[None]] = set()
        self._encoded = b""
        self._pieces: list[Piece] = []
        self._queue: deque[int] = deque()
        """Parts that are missing and that nobody has been asked for."""
        self._asked: dict[int, _Asked] = {}
        """Parts that are missing and whom they have been asked of."""
        self._total = self._done = 0
        self._moved_at = clock()
        """When something was last heard, or could have been."""
        self._held = 0
        """Questions that wait until this node may receive more."""
        self._listed, self._complete = asyncio.Event(), asyncio.Event()
        self._reported_at = clock()

    @property
    def progress(self) -> Progress:
        givers = sum(source.gave for source in self._sources.values())
        return Progress(self._done, self._total, givers)

    async def run(self, listing: bytes | None = None) -> bytes:
        """Fill the folder; returns the encoded listing. `listing` is that of an earlier attempt, if any.

        Raises UserError MODEL_NOT_FOUND when nobody has the model, DISK_FULL, or DATA_DIR_UNUSABLE.
        """
        self._encoded = listing or b""
        if not listing:
            await self._have_asked(self._seek, 1, self._listed)
        found = _safe(self._encoded)
        self._pieces = found.pieces()
        self._total = found.size
        await self._look_at_the_folder(found)
        await self._have_asked(self._work, AT_A_TIME, self._complete)
        return self._encoded

    # -- what is to be fetched ---------------------------------------------------------------------

    async def _look_at_the_folder(self, listing: Listing) -> None:
        with disk_faults(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            for file in listing.files:
                if file.size == 0:
                    (self._folder / file.name).touch()
            self._queue.extend(await asyncio.to_thread(missing, self._folder, listing))
            lacking = sum(self._pieces[number - 1].size for number in self._queue)
            free = shutil.disk_usage(self._folder).free
        self._done = self._total - lacking
        if not self._queue:
            self._complete.set()
        if lacking + SPARE_BYTES > free:
            raise UserError(
                Code.DISK_FULL,
                f"the base model needs {size_text(lacking)} more in {self._folder}, where {size_text(free)} "
                "are free",
                "Make room, or name a folder on a larger disk with --data-dir.",
            )
        log.info("base model: %s of %s to be fetched from peers", size_text(lacking), size_text(self._total))

    # -- from whom ---------------------------------------------------------------------------------

    def _look_around(self) -> list[_Source]:
        """Everybody who may have the model."""
        for address in self._peers():
            with suppress(UserError):
                peer = peer_of(address)
                self._sources.setdefault(peer, _Source(peer)).add(address)
        return [source for source in self._sources.values() if not source.banned]

    async def _have_asked(self, work: _Work, at_a_time: int, done: asyncio.Event) -> None:
        """Have `work` ask every peer that we know, until it is done."""
        try:
            while not done.is_set():
                self._raise_faults()
                self._hire(work, at_a_time)
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_INTERVAL):
                        await done.wait()
                self._lose_patience()
                self._report()
        finally:
            for task in self._workers:
                task.cancel()
            await asyncio.gather(*self._workers, return_exceptions=True)
            self._workers.clear()

    def _hire(self, work: _Work, at_a_time: int) -> None:
        busy = {task.get_name() for task in self._workers}
        for source in self._look_around():
            for number in range(at_a_time):
                name = f"{source.peer} {number}"
                if name not in busy:
                    self._workers.add(asyncio.create_task(work(source), name=name))

    def _report(self) -> None:
        if self._clock() - self._reported_at > REPORT_INTERVAL:
            self._reported_at, now = self._clock(), self.progress
            done, total = size_text(now.done), size_text(now.total)
            log.info("base model: %s of %s, from %d peers", done, total, now.peers)

    def _raise_faults(self) -> None:
        """What ends a worker is a full disk, or a peer that is banned."""
        ended = {task for task in self._workers if task.done()}
        self._workers -= ended
        for task in ended:
            task.result()

    def _ban(self, source: _Source) -> None:
        """A peer that sends what nobody asked for is asked no more (SPEC B4)."""
        if not source.banned:
            log.warning(
                "base model: %s sends something else than it should; it is asked no more", source.peer
            )
        source.banned = True

    def _lose_patience(self) -> None:
        if self._held:
            self._moved_at = self._clock()
        if self._clock() - self._moved_at > PATIENCE:
            raise UserError(
                Code.MODEL_NOT_FOUND,
                f"the base model is not to be had from peers: none has sent a part of it for {PATIENCE:g} s "
                f"({len(self._sources)} asked)",
                "Try again later (what has come is kept), or get the model and name its folder with --model.",
            )

    # -- piece by piece ----------------------------------------------------------------------------

    async def _seek(self, source: _Source) -> None:
        """The listing: from whoever sends it first, as it is small, and some may be dead or lie."""
        while not (self._listed.is_set() or source.banned):
            encoded = await self._whole(source, 0, MAX_LISTING, lambda d: hash_listing(d) == self._wanted)
            if encoded is not None:
                self._encoded, self._moved_at = encoded, self._clock()
                self._listed.set()
            else:
                await self._rest(source)

    async def _work(self, source: _Source) -> None:
        """The pieces, one after the other."""
        while not (self._complete.is_set() or source.banned):
            number = self._next(source)
            if number is None:
                await asyncio.sleep(PAUSE_FIRST)
            elif not await self._fetch_piece(source, number):
                await self._rest(source)

    async def _rest(self, source: _Source) -> None:
        """Until a peer may be asked again that had nothing for us."""
        if not source.banned:
            await asyncio.sleep(source.pause)
            source.pause = min(2 * source.pause, PAUSE_MOST)

    def _next(self, source: _Source) -> int | None:
        """A part to ask of this peer: one that nobody was asked for; at the end one that is slow to come."""
        number = self._queue.popleft() if self._queue else next(self._slow(source), None)
        if number is not None:
            self._asked.setdefault(number, _Asked(self._clock(), set())).sources.add(source)
        return number

    def _slow(self, source: _Source) -> Iterator[int]:
        """Parts that come from a single other peer, or from others that take long for no fault of ours."""
        for number, asked in self._asked.items():
            stuck = not self._held and self._clock() - asked.since > SLOW
            if source not in asked.sources and (stuck or len(asked.sources) == 1):
                yield number

    async def _fetch_piece(self, source: _Source, number: int) -> bool:
        """Whether this peer has sent the part, as it should be."""
        piece = self._pieces[number - 1]
        try:
            data = await self._whole(source, number, piece.size, lambda data: hash_piece(data) == piece.hash)
            if data is not None:
                await self._keep(source, number, piece, data)
            return data is not None
        finally:
            self._leave_to_others(source, number)

    async def _whole(
        self, source: _Source, number: int, most: int, right: Callable[[bytes], bool]
    ) -> bytes | None:
        """A part of `most` bytes at most that is as it should be; None if the peer does not send it."""
        try:
            data = await self._part(source, number, most)
            if right(data):
                return data
            self._ban(source)
        except RemoteProtocolError as error:
            log.debug("base model: %s: %s", source.peer, error)
            self._ban(source)
        except (TransportError, _Nothing) as error:
            log.debug("base model: %s: %s", source.peer, error)
            source.ways.append(source.ways.pop(0))
        return None

    def _leave_to_others(self, source: _Source, number: int) -> None:
        """This peer is not being asked for the part any more, whatever became of it."""
        asked = self._asked.get(number)
        if asked is not None:
            asked.sources.discard(source)
            if not asked.sources:
                del self._asked[number]
                self._queue.appendleft(number)

    async def _keep(self, source: _Source, number: int, piece: Piece, data: bytes) -> None:
        if number not in self._asked:
            return  # another peer was faster
        with disk_faults(self._folder):
            await asyncio.to_thread(write_piece, self._folder, piece, data)
        if self._asked.pop(number, None) is None:
            return
        source.gave, source.pause = True, PAUSE_FIRST
        self._done += len(data)
        self._moved_at = self._clock()
        if not self._queue and not self._asked:
            self._complete.set()

    async def _part(self, source: _Source, number: int, most: int) -> bytes:
        """A whole part, of `most` bytes at most. Raises TransportError, RemoteProtocolError, _Nothing."""
        data = bytearray()
        silent_since: float | None = None
        while True:
            reply = await self._question(source, number, len(data), most)
            if reply.size > most:
                raise RemoteProtocolError("B3", f"part {number} is larger than it can be")
            if reply.data:
                data += reply.data
                silent_since = None
                if len(data) >= reply.size:
                    return bytes(data)
                continue
            silent_since = silent_since or self._clock()
            if not data or reply.size == 0 or self._clock() - silent_since > STALL:
                raise _Nothing("it has nothing for us, at least not now")
            await asyncio.sleep(PAUSE_FIRST)  # what has come of this part would be lost

    async def _question(self, source: _Source, number: int, offset: int, most: int) -> PartReply:
        way = source.ways[0]
        most_at_once = RELAYED_BYTES if "/p2p-circuit" in way else codec.MAX_PART_BYTES
        length = int(min(most - offset, most_at_once, self._lane.most))
        frame = await self._asked_for(length, way, PartRequest(self._wanted, number, offset, length))
        reply = codec.decode(frame)
        if not isinstance(reply, PartReply):
            raise RemoteProtocolError("B3", "the answer is not one")
        if reply.data and len(reply.data) != min(length, reply.size - offset):
            raise RemoteProtocolError("B3", f"part {number} came in another length than asked for")
        return reply

    async def _asked_for(self, length: int, way: str, question: PartRequest) -> bytes:
        """The answer to a question for so many bytes, once this node may receive more."""
        await self._turn()
        self._lane.expect(length)
        frame = b""
        try:
            frame = await self._ask(way, codec.encode(question))
        except UserError as error:  # what somebody wrote into the roster is not an address
            raise TransportError(error.what) from None
        finally:
            self._lane.count(len(frame), length)
        return frame

    async def _turn(self) -> None:
        """Until this node may receive more."""
        self._held += 1
        try:
            await self._lane.spare()
        finally:
            self._held -= 1


def _safe(encoded: bytes) -> Listing:
    """The manifest vouches for these bytes, but whoever wrote the manifest may have meant harm (SPEC B5)."""
    try:
        listing = decode(encoded)
        require_safe(listing)
        return listing
    except RemoteProtocolError as error:
        raise UserError(
            Code.MODEL_UNSAFE,
            f"the run's base model is not to be fetched from peers: {error.reason}",
            "Do not join this run unless you trust whoever started it; then name the model with --model.",
        ) from error
