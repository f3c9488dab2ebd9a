"""Exports while the run goes on: the model of every so many seals, in the node's folder.

The engine writes them between two steps, as it evaluates. What keeps one from being written is said in the
log, and is no reason to stop.
"""

from __future__ import annotations

import asyncio
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from sfnode.errors import Code, UserError
from sfnode.logging import log
from sfnode.node import provenance
from sfnode.node.context import NodeContext
from sfnode.node.startup import in_thread
from sfnode.store.checkout import last_seal

if TYPE_CHECKING:
    from sfnode.engine.trainer import ReplicatedTrainer as Engine

LOOK_INTERVAL = 1.0
"""Seconds between looks at what is sealed: a seal comes every few minutes."""

RETRY = 10.0
"""More seconds where some of what is sealed is lacking: finding that out reads all decisions."""

KEPT = 3
"""Exports that are kept: the newest, one that somebody may be copying, and one to compare with. Each takes as
much of the disk as the model."""


class Exports:
    """The exports of one trainer of an organised run."""

    def __init__(self, node: NodeContext) -> None:
        """Raises UserError BAD_OPTION, RUN_IS_OPEN where there is nothing to export."""
        if node.settings.role == "relay":
            raise UserError(
                Code.BAD_OPTION, "--export-every: a relay holds no model", "Leave it out, or be a trainer."
            )
        organised = node.machine.organised
        if organised is None:
            raise UserError(
                Code.RUN_IS_OPEN,
                "--export-every: an open run has no decisions",
                "Leave it out; `sfnode export --out FOLDER` writes the model at any time.",
            )
        self._node = node
        self._organised = organised
        self._folder = node.data_dir.exports
        self._form: Literal["hf", "lora"] = "lora" if node.settings.quantised else "hf"
        self._due = self._after(self._organised.run_state.sealed)

    def _after(self, sealed: int) -> int:
        """Return the number of seals at which the next export is due."""
        every = self._node.settings.export_every
        return (sealed // every + 1) * every

    async def run(self) -> None:
        """Write what is due until cancelled."""
        await in_thread(lambda: _sweep(self._folder))
        while True:
            await asyncio.sleep(LOOK_INTERVAL)
            sealed, node = self._organised.run_state.sealed, self._node
            if sealed < self._due or not node.model.loaded or node.limiter.paused:
                continue
            try:
                await self._export()
            except UserError as error:
                log.warning("no export: %s. %s", error.what, error.fix)
                self._due = self._after(sealed)
            if self._due <= sealed:
                await asyncio.sleep(RETRY)

    async def _export(self) -> None:
        """Write the model of the last seal that is here as a whole, if it is one that is due."""
        node = self._node
        run, entries, names = node.machine.run, node.log.control(), node.machine.cards.names()
        checkout = last_seal(run, entries, node.machine.frontier.next)
        if checkout.epoch is None or checkout.epoch + 1 < self._due:
            return
        out = self._folder / name_of(checkout.epoch)
        if not out.exists():

            def export(engine: Engine) -> None:
                about = provenance.of_seal(run, entries, names, checkout, engine.core.digest().hex())
                engine.export(out, self._form, about)

            await node.model.ask(export, lambda: checkout.counted, f"exporting round {checkout.epoch}")
            log.info("exported the model of round %d to %s", checkout.epoch, out)
            await in_thread(lambda: _sweep(self._folder))
        self._due = self._after(checkout.epoch + 1)


def name_of(epoch: int) -> str:
    """Return the name of the export of a seal; names are in the order of epochs."""
    return f"epoch-{epoch:06d}"


def _sweep(folder: Path) -> None:
    """Remove what an earlier process left unfinished, and all but the last exports."""
    names = sorted(path.name for path in folder.glob("*"))  # none where there is no folder, or it goes
    whole = [name for name in names if re.fullmatch(r"epoch-\d{6}", name)]
    partial = [name for name in names if re.fullmatch(r"\.epoch-\d{6}\.\d+\.partial", name)]
    for name in (*whole[:-KEPT], *partial):
        shutil.rmtree(folder / name, ignore_errors=True)
