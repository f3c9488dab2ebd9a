"""Downloads a base model from peers: piece by piece, from several peers at once. Each piece is checked on
arrival.

Fills a folder that may contain some pieces already. Pieces are requested in random order, but rare pieces
first: peers that download at the same time then have different pieces, and send them to each other. This
module does not know how peers are found, where the finished model is moved, or whether it is the run's model.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from sfnode.defaults import SPARE_BYTES
from sfnode.errors import Code, UserError
from sfnode.logging import log
from sfnode.models.model_files import missing, require_safe, write_piece
from sfnode.modelshare.listed import Listed, add_piece, has_piece, map_bytes
from sfnode.printable import size_text
from sfnode.resources.bandwidth_limits import RateLimit
from sfnode.schema.status import FetchStatus
from sfnode.store.disk_errors import disk_faults, sync_file, sync_folder
from sfnode.transport.base import TransportError, call_off, peer_of
from sfprotocol import wire_codec
from sfprotocol.errors import RemoteProtocolError
from sfprotocol.messages import PartReply, PartRequest
from sfprotocol.model_listing import MAX_LISTING, Listing, Piece, decode, hash_listing, hash_piece

AT_A_TIME = 2
"""Number of parts requested from one peer at a time (SPEC B6). A transport allows a peer four streams at
once."""

RELAYED_BYTES = 60 * 1024
"""Largest reply in bytes that may go through a relay (SPEC B3)."""

LOOK_INTERVAL = 2.0
"""Seconds between two searches for further peers."""

MAX_SOURCES = 64
"""Maximum number of peers that are asked. Most of them may be strangers from the roster, where ids cost
nothing. At this number, a new peer replaces the first of the peers that have sent nothing."""

LOOK_AHEAD = 32
"""Maximum number of candidates for the next piece to request from a peer; the rarest of them is chosen. In a
large model it would take long to compare all pieces that the peer has and this node lacks."""

REPORT_INTERVAL = 10.0
"""Seconds between lines of progress in the log."""

STALL = 20.0
"""Maximum time, in seconds, for which a peer that has begun to send a part may answer that it is too busy. A
single request may take as long (`REQUEST_DEADLINE`)."""

SLOW = 30.0
"""Time, in seconds, after which a requested part counts as slow. At the end of a download, a slow part is
requested from all peers, and any other part from two peers. So the download cannot be held up by one peer
that stalls, nor by two peers that work together."""

MIN_PAUSE, MAX_PAUSE = 0.25, 8.0
"""First and maximum pause, in seconds, before a peer that has sent nothing is asked again. The pause doubles
each time."""

PATIENCE = 180.0
"""Maximum time, in seconds, without progress, after which the download fails. Progress is the arrival of
data, or of a peer's answer that it has the part but is too busy."""

Request = Callable[[str, bytes], Awaitable[bytes]]
"""The function `Transport.request`, which takes an address and an encoded request, and returns the encoded
reply."""


class Givers(NamedTuple):
    """The peers that may have the files to download, and the means to ask these peers."""

    peers: Callable[[], Sequence[str]]
    """Returns the full addresses of the peers."""
    request: Request
    rate_limit: RateLimit
    """Limit on the bytes that this node receives."""
    clock: Callable[[], float]
    random: Random
    """The node's own generator."""


class _NothingNow(Exception):  # noqa: N818 (an answer, not an error)
    """The peer sends no data at the moment."""


class _NotHere(_NothingNow):
    """The peer does not have the part."""


@dataclass(slots=True, eq=False)
class _Source:
    """A peer that may have the files."""

    peer: str
    addresses: list[str] = field(default_factory=list)
    """Full addresses of the peer; the first one is tried next."""
    map: bytes | None = b""
    """Map of the pieces that the peer has (SPEC B3), according to its last answer; None if it has all
    pieces."""
    learning: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Lock that is held while the peer is asked for its map."""
    banned: bool = False
    pause: float = MIN_PAUSE
    """Seconds until the peer is asked again after it has sent nothing."""
    gave: bool = False
    """Whether the peer has sent a part."""

    def has(self, number: int) -> bool:
        """Return whether the peer has a piece, according to its map."""
        return self.map is None or has_piece(self.map, number)

    def add(self, address: str) -> None:
        if address not in self.addresses:
            self.addresses.append(address)


_Work = Callable[[_Source], Coroutine[Any, Any, None]]


class _Requested(NamedTuple):
    """A part that has been requested."""

    since: float
    sources: set[_Source]


class ModelDownload:
    """One attempt to fill a folder with the files of a listing. Await `run`, once only."""

    def __init__(
        self,
        wanted: bytes,
        folder: Path,
        givers: Givers,
        *,
        what: str = "base model",
        named: Callable[[bytes], bytes] = hash_listing,
        checked: Callable[[bytes], Listing] | None = None,
    ) -> None:
        """`wanted` is the hash of the listing, and `named` is the function that hashes listings. `checked`
        decodes a listing, and raises UserError if its files must not be downloaded. `what` is a name for the
        files in messages. The defaults are for a base model."""
        self._what = what
        self._named = named
        self._checked = checked or _safe_listing
        self.wanted = wanted
        self.listed: Listed | None = None
        """The files, with a map of the pieces that are stored here; None until the listing of the files has
        arrived."""
        self._folder = folder
        self._peers, self._request, self._rate_limit, self._clock, self._random = givers
        self._sources: dict[str, _Source] = {}
        self._tasks: dict[asyncio.Task[None], _Source] = {}
        """Running tasks, each with its peer. A task requests one part after the other from its peer."""
        self._encoded = b""
        self._pieces: list[Piece] = []
        self._held = bytearray()
        """Map of the pieces that are stored here."""
        self._queue: dict[int, None] = {}
        """Parts that are still to be downloaded and are requested from no peer at present, in random
        order."""
        self._requested: dict[int, _Requested] = {}
        """Parts that are still to be downloaded and are requested from some peers at present, keyed by part
        number."""
        self._total = self._done = 0
        self._progress_at = self._clock()
        """Time of the last progress: data arrived, a peer answered that it is too busy, or requests waited
        because this node's limit on receiving was reached."""
        self._waiting = 0
        """Number of requests that wait until this node may receive more."""
        self._listed, self._complete = asyncio.Event(), asyncio.Event()
        self._reported_at = self._clock()

    def progress(self, what: str) -> FetchStatus:
        """Return the progress of this download for display; `what` is the name of its files."""
        givers = sum(source.gave for source in self._sources.values())
        return FetchStatus(what=what, done=self._done, total=self._total, peers=givers)

    async def run(self, listing: bytes | None = None) -> bytes:
        """Fill the folder and return the encoded listing. `listing` is the encoded listing from an earlier
        attempt, if any.

        Raises UserError MODEL_NOT_FOUND if no peer has sent anything for PATIENCE seconds, DISK_FULL, or
        DATA_DIR_UNUSABLE.
        """
        if listing:
            self._encoded = listing
        else:
            await self.first_part(MAX_LISTING, lambda data: self._named(data) == self.wanted)
        found = self._checked(self._encoded)
        self._pieces = found.pieces()
        self._total = found.size
        await self._examine_folder(found)
        await self._ask_peers(self._get_pieces, AT_A_TIME, self._complete)
        return self._encoded

    async def first_part(self, most: int, right: Callable[[bytes], bool]) -> bytes:
        """Return part 0, of at most `most` bytes, from the first peer that sends it correctly: `right(data)`
        must be True.

        Raises UserError MODEL_NOT_FOUND if no peer sends it within PATIENCE seconds.
        """

        async def work(source: _Source) -> None:
            await self._get_first(source, most, right)

        await self._ask_peers(work, 1, self._listed)
        return self._encoded

    # -- what is to be downloaded ------------------------------------------------------------------

    async def _examine_folder(self, listing: Listing) -> None:
        with disk_faults(self._folder):
            lacking_parts, free = await asyncio.to_thread(_prepare, self._folder, listing)
        self._hold_all_but(lacking_parts)
        lacking = sum(self._pieces[number - 1].size for number in self._queue)
        self._done = self._total - lacking
        if not self._queue:
            self._complete.set()
        if lacking + SPARE_BYTES > free:
            raise UserError(
                Code.DISK_FULL,
                f"the {self._what} needs {size_text(lacking)} more in {self._folder}, where "
                f"{size_text(free)} are free",
                "Make room, or name a folder on a larger disk with --data-dir.",
            )
        sizes = size_text(lacking), size_text(self._total)
        log.info("%s: %s of %s to download from peers", self._what, *sizes)

    def _hold_all_but(self, lacking: list[int]) -> None:
        """Note which pieces are stored here, and put the `lacking` pieces into the queue in random order."""
        self._random.shuffle(lacking)
        self._queue = dict.fromkeys(lacking)
        self._held = bytearray(map_bytes(len(self._pieces)))
        for number in range(1, len(self._pieces) + 1):
            if number not in self._queue:
                add_piece(self._held, number)
        self.listed = Listed(self._encoded, self._pieces, self._folder, self._held)

    # -- from which peers --------------------------------------------------------------------------

    def _find_sources(self) -> list[_Source]:
        """Return all peers that may have the model."""
        for address in self._peers():
            with suppress(UserError):
                peer = peer_of(address)
                if peer in self._sources or self._has_room():
                    self._sources.setdefault(peer, _Source(peer)).add(address)
        return [source for source in self._sources.values() if not source.banned]

    def _has_room(self) -> bool:
        """Return whether one more peer may be asked. At MAX_SOURCES, drop the first of the peers that have
        sent nothing, if any, to make room."""
        useless = next((source for source in self._sources.values() if not source.gave), None)
        if len(self._sources) >= MAX_SOURCES and useless:
            useless.banned = True  # so that its tasks end
            del self._sources[useless.peer]
        return len(self._sources) < MAX_SOURCES

    async def _ask_peers(self, work: _Work, at_a_time: int, done: asyncio.Event) -> None:
        """Run `work` for every known peer, in `at_a_time` tasks for each peer, until `done` is set."""
        try:
            while not done.is_set():
                self._raise_faults()
                self._start_tasks(work, at_a_time)
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_INTERVAL):
                        await done.wait()
                self._check_patience()
                self._report()
        finally:
            await call_off(self._tasks)
            self._tasks.clear()

    def _start_tasks(self, work: _Work, at_a_time: int) -> None:
        busy = Counter(self._tasks.values())
        for source in self._find_sources():
            for _ in range(at_a_time - busy[source]):
                self._tasks[asyncio.create_task(work(source))] = source

    def _report(self) -> None:
        if self._clock() - self._reported_at > REPORT_INTERVAL:
            self._reported_at, now = self._clock(), self.progress(self._what)
            done, total = size_text(now.done), size_text(now.total)
            log.info("%s: %s of %s, from %d peers", self._what, done, total, now.peers)

    def _raise_faults(self) -> None:
        """Forget the tasks that have ended. If an error has ended one of them, such as a full disk, raise
        that error."""
        for task in [task for task in self._tasks if task.done()]:
            del self._tasks[task]
            task.result()

    def _ban(self, source: _Source) -> None:
        """Stop asking a peer that sent wrong bytes or broke a rule (SPEC B4)."""
        if not source.banned:
            log.warning(
                "%s: %s sends something else than it should; it is not asked again", self._what, source.peer
            )
        source.banned = True

    def _check_patience(self) -> None:
        if self._waiting:
            self._progress_at = self._clock()
        if self._clock() - self._progress_at > PATIENCE:
            raise UserError(
                Code.MODEL_NOT_FOUND,
                f"no peer has sent a part of the {self._what} for {PATIENCE:g} s "
                f"({len(self._sources)} asked)",
                "Try again later (what has come is kept), or get the model and name its folder with --model.",
            )

    # -- piece by piece ----------------------------------------------------------------------------

    async def _get_first(self, source: _Source, most: int, right: Callable[[bytes], bool]) -> None:
        """Request part 0 from a peer until some peer has sent it. As part 0 is small, and peers may be dead
        or lie, this runs for all peers at once."""
        while not (self._listed.is_set() or source.banned):
            encoded = await self._get_part(source, 0, most, right)
            if encoded is not None:
                self._encoded, self._progress_at = encoded, self._clock()
                self._listed.set()
            else:
                await self._pause(source)

    async def _get_pieces(self, source: _Source) -> None:
        """Request one piece after the other from a peer, until the download is complete."""
        while not (self._complete.is_set() or source.banned):
            number = self._next_part(source)
            if number is not None:
                if not await self._get_piece(source, number):
                    await self._pause(source)
            elif source.map is None or source.learning.locked():
                await asyncio.sleep(MIN_PAUSE)
            else:
                async with source.learning:
                    await self._learn(source)

    async def _learn(self, source: _Source) -> None:
        """Request the peer's map. If the peer has no piece that is missing here, pause before it is asked
        again."""
        with self._blaming(source):
            try:
                number = len(self._pieces) + 1
                source.map = await self._read_part(source, number, map_bytes(len(self._pieces)))
            except _NotHere:
                source.map = None  # it has all pieces, or none, as its next answer shows
        if not any(map(source.has, self._queue)):
            await self._pause(source)

    async def _pause(self, source: _Source) -> None:
        """Wait until a peer that has sent nothing may be asked again."""
        if not source.banned:
            await asyncio.sleep(source.pause)
            source.pause = min(2 * source.pause, MAX_PAUSE)

    def _next_part(self, source: _Source) -> int | None:
        """Return the number of a piece to request from this peer: a rare piece that is not requested yet or,
        at the end of the download, one that is also requested from other peers. None if there is no such
        piece."""
        if self._queue:
            number = min(islice(filter(source.has, self._queue), LOOK_AHEAD), key=self._holders, default=None)
            if number is not None:
                del self._queue[number]
        else:
            number = next(self._slow(source), None)
        if number is not None:
            self._requested.setdefault(number, _Requested(self._clock(), set())).sources.add(source)
        return number

    def _holders(self, number: int) -> int:
        """Return the number of peers that have this piece, not counting peers that have all pieces."""
        return sum(source.map is not None and source.has(number) for source in self._sources.values())

    def _slow(self, source: _Source) -> Iterator[int]:
        """Yield the pieces that this peer has, and that are requested from only one other peer or are slow
        (see SLOW)."""
        for number, request in self._requested.items():
            stuck = not self._waiting and self._clock() - request.since > SLOW
            useless = source in request.sources or not source.has(number)
            if not useless and (stuck or len(request.sources) == 1):
                yield number

    async def _get_piece(self, source: _Source, number: int) -> bool:
        """Download a piece from this peer and store it. Return whether it came with the right hash."""
        piece = self._pieces[number - 1]
        try:
            data = await self._get_part(source, number, piece.size, lambda d: hash_piece(d) == piece.hash)
            if data is not None:
                await self._store(source, number, piece, data)
            return data is not None
        finally:
            self._end_request(source, number)

    async def _get_part(
        self, source: _Source, number: int, most: int, right: Callable[[bytes], bool]
    ) -> bytes | None:
        """Return a part, of at most `most` bytes, for which `right(data)` is True; None if the peer does not
        send it."""
        with self._blaming(source):
            data = await self._read_part(source, number, most)
            if right(data):
                return data
            self._ban(source)
        return None

    @contextmanager
    def _blaming(self, source: _Source) -> Iterator[None]:
        """Catch the errors that a peer causes in the block, and ban a peer that breaks a rule."""
        try:
            yield
        except RemoteProtocolError as error:
            log.debug("%s: %s: %s", self._what, source.peer, error)
            self._ban(source)
        except (TransportError, _NothingNow) as error:
            log.debug("%s: %s: %s", self._what, source.peer, error)
            source.addresses.append(source.addresses.pop(0))
            if isinstance(error, _NotHere):
                source.map = b""  # to be asked for again

    def _end_request(self, source: _Source, number: int) -> None:
        """Note that the part is no longer requested from this peer. If no other peer is being asked for it,
        put it back into the queue."""
        request = self._requested.get(number)
        if request is not None:
            request.sources.discard(source)
            if not request.sources:
                del self._requested[number]
                self._queue[number] = None

    async def _store(self, source: _Source, number: int, piece: Piece, data: bytes) -> None:
        if number not in self._requested:
            return  # another peer was faster
        with disk_faults(self._folder):
            await asyncio.to_thread(write_piece, self._folder, piece, data)
        if self._requested.pop(number, None) is None:
            return
        add_piece(self._held, number)  # from now on this node offers it to others
        source.gave, source.pause = True, MIN_PAUSE
        self._done += len(data)
        self._progress_at = self._clock()
        if not self._queue and not self._requested:
            self._complete.set()

    async def _read_part(self, source: _Source, number: int, most: int) -> bytes:
        """Return a whole part of at most `most` bytes.

        Raises TransportError, RemoteProtocolError, _NothingNow.
        """
        data = bytearray()
        silent_since: float | None = None
        while True:
            reply = await self._read_range(source, number, len(data), most)
            if reply.size > most:
                raise RemoteProtocolError("B3", f"part {number} is larger than it can be")
            if reply.data:
                data += reply.data
                silent_since = None
                if len(data) >= reply.size:
                    return bytes(data)
                continue
            if reply.size == 0:
                raise _NotHere("it does not have the part")
            self._progress_at = self._clock()
            silent_since = silent_since or self._clock()
            if not data or self._clock() - silent_since > STALL:
                raise _NothingNow("it gives nothing at the moment")
            await asyncio.sleep(MIN_PAUSE)  # to give up would be to lose the bytes of this part

    async def _read_range(self, source: _Source, number: int, offset: int, most: int) -> PartReply:
        """Return the answer to one request for bytes of a part from `offset` on."""
        address = source.addresses[0]
        most_at_once = RELAYED_BYTES if "/p2p-circuit" in address else wire_codec.MAX_PART_BYTES
        length = int(min(most - offset, most_at_once, self._rate_limit.largest_bulk))
        question = PartRequest(self.wanted, number, offset, length)
        frame = await self._limited_request(address, question)
        reply = wire_codec.decode(frame)
        if not isinstance(reply, PartReply):
            raise RemoteProtocolError("B3", "the answer is no part")
        if reply.data and len(reply.data) != min(length, reply.size - offset):
            raise RemoteProtocolError("B3", f"part {number} came in another length than asked for")
        return reply

    async def _limited_request(self, address: str, question: PartRequest) -> bytes:
        """Wait until this node may receive more, send a request, and return the encoded reply."""
        await self._wait_turn()
        self._rate_limit.reserve(question.length)
        frame = b""
        try:
            frame = await self._request(address, wire_codec.encode(question))
        except UserError as error:  # the roster had a malformed address
            raise TransportError(error.what) from None
        finally:
            self._rate_limit.count(len(frame), question.length)
        return frame

    async def _wait_turn(self) -> None:
        """Wait until this node may receive more."""
        self._waiting += 1
        try:
            await self._rate_limit.ready_for_bulk()
        finally:
            self._waiting -= 1


def put_in_place(partial: Path, name: str, file: Path, check: Callable[[Path], object]) -> None:
    """Check the single file of a complete download with `check`, move it to `file`, and remove the folder
    `partial`.

    Raises the errors of `check`, and UserError DISK_FULL, DATA_DIR_UNUSABLE.
    """
    with disk_faults(file.parent):
        try:
            check(partial / name)
            sync_file(partial / name)
            os.replace(partial / name, file)
            sync_folder(file.parent)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def _prepare(folder: Path, listing: Listing) -> tuple[list[int], int]:
    """Make the folder, and in it the listing's empty files. Return the numbers of the parts to download, and
    the free bytes on the disk."""
    for one in (folder.parent, folder):
        one.mkdir(mode=0o700, parents=True, exist_ok=True)
    for file in listing.files:
        if file.size == 0:
            (folder / file.name).touch()
    return missing(folder, listing), shutil.disk_usage(folder).free


def _safe_listing(encoded: bytes) -> Listing:
    """Decode a listing, and refuse files that no base model has: the manifest may be hostile (SPEC B5).

    Raises UserError MODEL_UNSAFE.
    """
    try:
        listing = decode(encoded)
        require_safe(listing)
        return listing
    except RemoteProtocolError as error:
        raise UserError(
            Code.MODEL_UNSAFE,
            f"the run's base model must not be downloaded from peers: {error.reason}",
            "Do not join this run unless you trust whoever started it; then name the model with --model.",
        ) from error
