"""An asyncio loop whose time jumps to the next timer, so that waiting takes no real time.

A seed determines the order of all events, so that an execution can be repeated to the byte. Waiting for
files, starting subprocesses and waiting for an event that never comes raise NotInVirtualTimeError.

Each job of `run_in_executor` takes a random virtual time. Its function is called when that time begins or
when it ends, as the seed decides. The result arrives at the end in both cases. So a race between a thread and
the loop appears with some seeds.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Executor
from contextvars import ContextVar
from random import Random
from typing import Any, TypeVar, TypeVarTuple
from weakref import WeakKeyDictionary

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

WORK = (0.0005, 0.003)
"""Default range, in seconds, from which the duration of an executor's job is drawn uniformly. A commit on an
SSD takes about as long."""


TURN = 1e-7
"""Virtual time, in seconds, that one turn of the loop takes. If a turn took no time, a timer that is due
within a rounding error would never become due."""

MOST_TURNS = 20_000
"""Maximum number of consecutive turns after which the loop must have waited for a timer. A program that
exceeds this number polls the clock for ever."""


class NotInVirtualTimeError(RuntimeError):
    """Error for a call on a virtual loop that takes real time, or would wait for ever."""


class Program:
    """The tasks that began in one context. They end together and may be killed, like the threads of a
    process."""

    def __init__(self, work: Callable[[Random], float] = lambda random: random.uniform(*WORK)) -> None:
        """`work` draws the duration of one job of an executor, in seconds."""
        self.work = work
        self.alive = True


_PROGRAM: ContextVar[Program | None] = ContextVar("program", default=None)


def begin(program: Program) -> None:
    """Assign to `program` all tasks that begin later in this context."""
    _PROGRAM.set(program)


class _Timers(selectors.BaseSelector):
    """The selector of a virtual loop. Instead of waiting for files, it moves the time forward."""

    def __init__(self) -> None:
        self.now = 0.0
        self.turns = 0
        """Number of turns of the loop."""
        self._since = 0
        """Value of `turns` when the loop last waited for a timer."""
        self._own: dict[Any, selectors.SelectorKey] = {}

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise NotInVirtualTimeError("everything waits for something that will never come")
        if timeout > 0:
            self._since = self.turns
        self.now += max(timeout, TURN)
        self.turns += 1
        if self.turns - self._since > MOST_TURNS:
            self._since = self.turns  # the end of the program takes turns, too
            raise NotInVirtualTimeError(f"{MOST_TURNS} turns, and nobody waits: time stands still")
        return []

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        if self._own:  # the loop's own socket, by which threads wake it, comes first
            raise NotInVirtualTimeError("a file or socket cannot be waited for in virtual time")
        descriptor = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        self._own[fileobj] = selectors.SelectorKey(fileobj, descriptor, events, data)
        return self._own[fileobj]

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._own.pop(fileobj)

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        return self.get_map()[fileobj]

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._own


class _Job:
    """A job of an executor: its result or error, and the callbacks that it has posted to the loop."""

    def __init__(
        self,
        work: Callable[[], Any],
        future: asyncio.Future[Any],
        program: Program | None,
        before: _Job | None,
        end: float,
    ) -> None:
        """`before` is the job that the same executor does before this one."""
        self.future = future
        self.before = before
        self.end = end
        self._program = program
        self.posted: list[Callable[[], object]] = []
        self._work: Callable[[], Any] | None = work
        self._result: Any = None
        self._error: BaseException | None = None

    @property
    def gone(self) -> bool:
        """Whether the job's program was killed."""
        return self._program is not None and not self._program.alive

    def do(self) -> None:
        """Call the job's function, unless it was called before."""
        work, self._work = self._work, None
        if work is None:
            return
        try:
            self._result = work()
        except BaseException as error:
            self._error = error

    def tell(self) -> None:
        """Post the callbacks to the loop, and give the future the job's result or error."""
        for post in self.posted:
            post()
        if self.future.done():
            return
        if self._error is not None:
            self.future.set_exception(self._error)
        else:
            self.future.set_result(self._result)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An asyncio loop in virtual time, which begins with 0."""

    def __init__(self, random: Random) -> None:
        """`random` draws how long each job of `run_in_executor` takes in virtual time, and whether its
        function is called when that time begins or when it ends. The result arrives at the end in both
        cases."""
        self._timers = _Timers()
        super().__init__(self._timers)
        self._random = random
        self._at_work: _Job | None = None
        """The job whose function is being called; None at other times."""
        self._lines: WeakKeyDictionary[Executor, _Job] = WeakKeyDictionary()
        """The last job of each executor. An executor does one job at a time."""

    def time(self) -> float:
        return self._timers.now

    @property
    def turns(self) -> int:
        """Number of turns of the loop."""
        return self._timers.turns

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """Call `func(*args)` when a random virtual time begins or when it ends. The future gets the result at
        the end of that time. Jobs of one executor follow one another. Jobs without an executor overlap."""
        future: asyncio.Future[T] = self.create_future()
        program = _PROGRAM.get()
        seconds = (program or Program()).work(self._random)
        before = self._lines.get(executor) if executor else None
        begin = max(self.time(), before.end) if before else self.time()
        job = _Job(lambda: func(*args), future, program, before, begin + seconds)
        if executor:
            self._lines[executor] = job
        if self._random.random() < 0.5:
            if begin > self.time():
                self.call_at(begin, self._do, job)
            else:  # not at once: the caller may hold a lock that the job needs
                self.call_soon(self._do, job)
        self.call_at(job.end, self._end, job)
        return future

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> Any:
        """Have the loop call `callback` in its next turn. If a job makes this request, `callback` is called
        after the end of the job's virtual time."""
        if self._at_work is None:
            return super().call_soon(callback, *args, context=context)
        self._at_work.posted.append(lambda: self.call_soon(callback, *args, context=context))
        return None

    def _do(self, job: _Job) -> None:
        if job.before:  # the loop runs two callbacks of one moment in any order
            before, job.before = job.before, None
            self._do(before)
        if job.future.cancelled() or job.gone:
            return
        self._at_work, running = job, asyncio._get_running_loop()
        asyncio._set_running_loop(None)
        try:
            job.do()
        finally:
            asyncio._set_running_loop(running)
            self._at_work = None

    def _end(self, job: _Job) -> None:
        self._do(job)
        if job.gone:
            job.future.cancel()
        else:
            job.tell()

    # -- calls that take real time -----------------------------------------------------------------

    def add_reader(self, *_: Any) -> None:  # type: ignore[override]
        raise NotInVirtualTimeError("a file or socket cannot be waited for in virtual time")

    add_writer = add_reader  # type: ignore[assignment]

    async def getaddrinfo(self, *_: Any, **__: Any) -> Any:
        raise NotInVirtualTimeError("there are no names of hosts in virtual time")

    async def create_server(self, *_: Any, **__: Any) -> Any:
        raise NotInVirtualTimeError("nobody comes from outside in virtual time")

    create_unix_server = create_connection = create_unix_connection = create_server

    async def subprocess_exec(self, *_: Any, **__: Any) -> Any:
        raise NotInVirtualTimeError("processes take real time")

    subprocess_shell = subprocess_exec

    def add_signal_handler(self, *_: Any) -> None:  # type: ignore[override]
        raise NotInVirtualTimeError("signals come in real time")


def run(main: Coroutine[Any, Any, T], seed: int = 0) -> T:
    """Run a program in virtual time, as `asyncio.run` does in real time. The same seed gives the same
    execution."""
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(Random(seed))) as runner:
        return runner.run(main)
