"""The card: the text at the end of a run, or of a node's part in it, with the model's gain, the contributors
and the next commands.

`sfnode join` prints it once, when the run is complete or when the node leaves before; `sfnode swarm` prints
it at its end. Its examples are public test rows, never anybody's own rows.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sfnode.cli.options import place
from sfnode.cli.output import echo
from sfnode.dashboard.formatting import baselines_in_words, percent, probe_in_words
from sfnode.dashboard.quality import compare
from sfnode.errors import UserError
from sfnode.logging import log
from sfnode.printable import command, span
from sfnode.schema.metrics import better_by, by_class, measure_of, metric_of, value_in_words
from sfnode.schema.node_state import NodeState, RunHealth

if TYPE_CHECKING:
    from sfnode.daemon import Node
    from sfnode.manifest import Manifest
    from sfnode.schema.measurements import Evaluation
    from sfnode.schema.status import Status
    from sfnode.schema.views import Samples

EXAMPLES = 3

LOOK = 0.5
"""Seconds between two checks of whether the run is complete."""

SETTLING = 30.0
"""Maximum time, in seconds, to wait after the run is complete for the evaluation of its last model and for
that model's answers."""

MEASURED = 256
"""Number of test rows on which a node measures the model for its owner."""

LONGEST = 76
"""Maximum length of an example's text, in characters. Only the end of a longer text is shown."""


class Learnt(NamedTuple):
    """Results of a model before and after a run, on rows outside the training data."""

    before: Evaluation | None
    now: Evaluation | None
    classes: Evaluation | None = None
    """Result whose scores for each class are shown; None: those of `now` are shown. An organiser's published
    result lacks such scores."""
    beside: Sequence[str] = ()
    """Results of baselines on the same rows, in words."""


def complete(name: str) -> str:
    """Return the card's title for a run that is complete."""
    return f"The run {name} is complete."


def changed(now: Evaluation | None, *before: Evaluation | None) -> Learnt:
    """Return `now`, together with the first result in `before` that has the same metric and calibration."""
    alike = (one for one in before if one and now and measure_of(one) == measure_of(now))
    return Learnt(next(alike, None), now)


def card(title: str, change: Learnt, samples: Samples, work: Sequence[str], next_: Sequence[str]) -> str:
    """Return the card. `next_` are the next commands, each with its purpose."""
    parts = (_figures(change), [*_examples(samples)], work, ["What comes next:", *next_] if next_ else [])
    told = ("\n".join(f"  {line}" for line in lines) for lines in parts if lines)
    return "\n\n".join((f"\n{title}", *told)) + "\n"


def _figures(change: Learnt) -> list[str]:
    before, now, classes, beside = change
    if now is None:
        return []
    meaning = metric_of(now.metric).meaning
    more = [line for line in (meaning and f"({meaning})", by_class(classes or now), *beside) if line]
    if before is None:
        return [f"The model has {_told(now)} {now.on_rows}.", *more]
    told = ", ".join(filter(None, (f"{_told(now)} {now.on_rows}", _difference(before, now))))
    return [f"before  {_told(before)}", f"now     {told}", *more]


def _difference(before: Evaluation, now: Evaluation) -> str:
    if compare(now, before) is not RunHealth.NO_BETTER:
        return better_by(now.metric, before.value, now.value)
    return "no change" if _told(now) == _told(before) else "which may be chance"


def _told(found: Evaluation) -> str:
    metric, value = metric_of(found.metric), value_in_words(found.metric, found.value)
    if not metric.is_share:
        return f"{metric.name} {value}"
    return f"{value} {'right' if found.metric == 'accuracy' else metric.name}"


def _examples(samples: Samples) -> Iterator[str]:
    """Yield lines on the EXAMPLES test rows whose score has risen most."""
    if not samples.moments:
        return
    now = samples.moments[-1]
    found = sorted(
        zip(samples.rows, now.answers, now.scores, strict=True), key=lambda one: one[0].base_score - one[2]
    )
    for row, answer, _ in found[:EXAMPLES]:
        text = " ".join(row.text.split())
        yield f"“{text if len(text) <= LONGEST else f'…{text[1 - LONGEST :]}'}”"
        right = f"  right: {row.right}" if row.right else ""
        yield f"  before: {row.base}  now: {answer}{right}"


def commands(
    manifest: Manifest, folder: Path, key: str | None = None, budget: int | None = None
) -> list[str]:
    """Return the next commands for the run in a node's folder, each with its purpose.

    `key` is the member whose work one of the commands shows. `budget` is the larger budget for continuing the
    run with other members. If `budget` is None, the commands that invite members and set the budget are left
    out.
    """
    from sfnode.cli.use import example

    where = place(folder)
    found = {
        "ask the model": command("sfnode", "use", *where, *example(manifest.task)),
        "take it along": command("sfnode", "export", *where, "--out", "model"),
        "check all work": command("sfnode", "verify", *where),
    }
    if key and manifest.organised.organiser:
        found["show your part"] = command("sfnode", "log", "--why", key[:16], *where)
    if budget:
        found["invite others"] = command("sfnode", "invite", *where)
        found["and train on"] = command("sfnode", "organise", "budget", budget, *where)
    return [f"{what:<15} {line}" for what, line in found.items()]


def fork_command(seal: int | None, folder: Path) -> str:
    """Return the command that forks a run from a seal; empty if `seal` is None."""
    if seal is None:
        return ""
    return command("sfnode", "history", "fork", seal, "--out", "FOLDER", *place(folder))


# -- the end of a node that `join` runs ----------------------------------------------------------------


class Ending:
    """Prints the card of one node: `watch` once its run is complete, `farewell` if the node leaves before."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._told = False

    async def watch(self) -> None:
        """Print the card once the run is complete and the remaining measurements are done."""
        looks = int(SETTLING / LOOK)
        while looks:
            status = self._node.status()
            over = status.state is NodeState.COMPLETE
            looks = 0 if over and self._settled(status) else looks - over
            await asyncio.sleep(LOOK)
        change = await self._measured()
        self._print(complete(self._node.manifest.name), change)

    def farewell(self) -> None:
        """Print the card of a node that left, unless it was printed or the node contributed nothing."""
        running, name = self._node.running, self._node.manifest.name
        if self._told or running.sequel or not self._node.status().contributed:
            return
        alone = "nobody decides what counts until you are back"
        left = f"You have left the run {name}; {alone if running.organising else 'it goes on without you'}."
        self._print(complete(name) if running.machine.complete else left, None)

    def _print(self, title: str, change: Learnt | None) -> None:
        node, status = self._node, self._node.status()
        self._told = True
        samples = node.running.views.samples()
        counted = _counted(node, status)
        key = status.origin if status.contributed and counted != 0 else None
        folder, budget = node.settings.data_dir, _budget_for_others(node)
        next_ = commands(node.manifest, folder, key, budget) if status.known else []
        echo(card(title, change or _published(status), samples, _work(status, counted), next_))

    def _settled(self, status: Status) -> bool:
        """Return whether the card need not wait any longer. It waits for the organiser's evaluation of the
        last model, if the run has such evaluations, and for that model's answers to test rows, if this node
        records answers."""
        run, sampling = status.organised, self._node.running.sampling
        latest = run.health.latest if run else None
        return (sampling is None or sampling.current) and (
            run is None or latest is None or latest.epoch >= run.sealed - 1
        )

    async def _measured(self) -> Learnt:
        """Return the organiser's published results. At a terminal, the model is also measured here in two
        cases: nothing was published, or the task has labels, so that the card can show the scores of each
        class."""
        node = self._node
        found = _published(node.status())
        looked = sys.stdout.isatty() and node.settings.role == "trainer" and not node.status().pauses
        known = found.now and not node.manifest.task.labelled
        if known or not looked or not node.manifest.data.test:
            return found
        log.info("measuring what the model has learnt")
        try:
            before = found.before if found.now else await node.evaluate(base=True, limit=MEASURED)
            now = await node.evaluate(limit=MEASURED, probe=True)
            beside = baselines_in_words(now.baselines)
            beside += probe_in_words(now.probe) if now.probe else []
            return Learnt(before, found.now or now, now, beside)
        except UserError:  # the card is printed without them
            return found


def _published(status: Status) -> Learnt:
    """Return the organiser's last result, together with its result of the base model in the same metric. Both
    results are None if nothing was published."""
    if status.organised is None or (now := status.organised.health.latest) is None:
        return Learnt(None, None)
    return changed(now, status.organised.health.calibrated, status.organised.health.base)


def _counted(node: Node, status: Status) -> int | None:
    """Return the number of a node's updates that count; None in an open run, and before the run is
    complete."""
    reports, run = node.running.reports, status.organised
    if reports is None or run is None or not reports.run_state.complete:
        return None
    return 0 if run.member is None else reports.run_state.counts_of(run.member)


def _budget_for_others(node: Node) -> int | None:
    """Return twice the budget, or None. The budget is doubled only if this node organises and is the only
    member of its complete run. This often happens, because a run may complete before its organiser can invite
    anybody."""
    reports = node.running.reports if node.running.organising else None
    run_state = reports.run_state if reports else None
    if run_state is None or not run_state.complete or run_state.finished or len(run_state.members) > 1:
        return None
    return 2 * run_state.budget


def _work(status: Status, counted: int | None) -> list[str]:
    """Describe this node's work by the number of its updates that count. If `counted` is None, the number of
    all its updates is shown."""
    if not status.contributed:
        return []
    if counted == 0:
        return [f"None of your {status.contributed:,} updates counts."]
    own, of_all, which = status.contributed, status.known, "updates"
    if counted and status.organised:
        own, of_all, which = counted, status.organised.counted, "updates that count"
    share = percent(own / max(of_all, own))
    return [f"Your work: {own:,} {which}, {share} of all, in {span(status.uptime)}."]
