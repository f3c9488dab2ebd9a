"""Samples: answers of the base model and of later models to a few test rows, recorded during the run.

The node's own engine answers between two steps: after a seal, or in an open run when another epoch begins.
The cost is bounded: slower samples are taken less often, and test data are read on another thread than the
engine's. The samples are stored in the data folder and shown by `sfnode.node.views`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from sfnode.daemon_thread import in_daemon_thread
from sfnode.errors import UserError
from sfnode.logging import log
from sfnode.node.context import NodeContext
from sfnode.schema.views import SampleMoment, SampleRow, Samples
from sfnode.store.disk_errors import private, write_whole

if TYPE_CHECKING:
    from sfnode.engine.samples import Answered
    from sfnode.engine.trainer import ReplicatedTrainer as Engine

LOOK_INTERVAL = 1.0
"""Seconds between two checks for a new seal or epoch."""

COST = 50
"""Minimum wait before the next samples, as a multiple of the time that the last samples took. So samples cost
at most a fiftieth of the engine's time, except for the first ones."""

MAX_MOMENTS = 64
"""Maximum number of moments with samples. When there are more, every second moment is dropped."""

MAX_BYTES = 4 * 2**20
"""Maximum number of bytes that are read from the file. The largest file is several times smaller: 16 rows of
400 characters, each with an answer of 200 characters for each moment, at four bytes a character."""


class Sampling:
    """The samples of one trainer; `run` takes them until cancelled."""

    def __init__(self, node: NodeContext) -> None:
        self._node = node
        self._file = node.data_dir.samples
        self._kept = Samples(rows=[], moments=[])
        self._taken: tuple[int, bool] | None = (0, False) if node.machine.organised else None
        """State of the run (see `_state`) at the last samples. In an organised run the initial value is the
        state before the first seal: until that seal the model is the base model, and no samples are taken."""
        self._rest_until = 0.0
        self._unwritten = False
        """Whether the last write of the file failed."""

    def view(self) -> Samples:
        """Return the recorded samples."""
        return self._kept

    async def run(self) -> None:
        """Take samples until cancelled, or until an error shows that no samples can be taken."""
        self._kept = await asyncio.to_thread(kept, self._file)
        has_read = False
        try:
            while True:
                await asyncio.sleep(LOOK_INTERVAL)
                if not self._due():
                    continue
                if not has_read:
                    _, engine = await self._node.model.ask(lambda engine: engine)
                    await in_daemon_thread(engine.read_test_rows, "samples")  # which may download them
                    has_read = True
                took = await self._take()
                self._rest_until = self._node.clock() + COST * took
        except UserError as error:
            log.info("no samples of the model's answers are recorded: %s", error.what)

    @property
    def current(self) -> bool:
        """Whether the last samples are of the present model, or no samples can be taken."""
        return self._taken == self._state() or not self._node.model.loaded

    def _state(self) -> tuple[int, bool]:
        """Return the number of seals, or in an open run the epoch, and whether the run is complete."""
        machine = self._node.machine
        epoch = machine.organised.run_state.sealed if machine.organised else machine.epoch
        return epoch, machine.complete

    def _due(self) -> bool:
        node = self._node
        rested = node.machine.complete or node.clock() >= self._rest_until  # the final samples do not wait
        return rested and node.model.loaded and not node.limiter.paused and self._state() != self._taken

    async def _take(self) -> float:
        """Record answers. Return the seconds that the engine took for the answers of the trained model."""
        rows, state = self._node.settings.samples, self._state()
        known = [(row.text, row.right) for row in self._kept.rows]

        def answers(engine: Engine) -> tuple[list[SampleRow], Sequence[Answered], float]:
            began = time.monotonic()
            now = engine.answer(rows, base=False)
            took = time.monotonic() - began
            if [(one.text, one.right) for one in now] == known:
                return self._kept.rows, now, took
            found = engine.answer(rows, base=True)
            before = [
                SampleRow(text=one.text, right=one.right, base=one.said, base_score=one.score)
                for one in found
            ]
            return before, now, took

        what = "answering some test rows"
        moment, (shown, said, took) = await self._node.model.ask_of_last_seal(answers, what)
        moments = self._kept.moments if shown is self._kept.rows else []  # earlier moments are of other rows
        if moment.known != (moments[-1].known if moments else 0):  # else no update has come since
            answered = SampleMoment(
                epoch=moment.epoch,
                known=moment.known,
                answers=[one.said for one in said],
                scores=[one.score for one in said],
            )
            moments = [*moments, answered]
        if len(moments) > MAX_MOMENTS:
            moments = moments[1::2]
        self._kept, self._taken = Samples(rows=shown, moments=moments), state
        await self._write()
        return took

    async def _write(self) -> None:
        """Write the samples for the next start. An error, such as a full disk, is only logged."""
        text = self._kept.model_dump_json().encode()
        try:
            await asyncio.to_thread(write_whole, self._file, text, private)
        except UserError as error:
            if not self._unwritten:
                log.warning("samples would not outlive a restart: %s", error.what)
            self._unwritten = True
        else:
            self._unwritten = False


def kept(path: Path) -> Samples:
    """Return the samples of earlier starts; empty ones if there is no file, or the file is damaged."""
    try:
        with path.open("rb") as file:
            return Samples.model_validate_json(file.read(MAX_BYTES))
    except FileNotFoundError:
        return Samples(rows=[], moments=[])
    except (OSError, ValidationError) as error:
        log.warning("the samples in %s cannot be read, and begin anew: %s", path, type(error).__name__)
        return Samples(rows=[], moments=[])
