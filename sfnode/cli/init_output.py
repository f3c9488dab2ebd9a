"""Messages on the files, measurements and choices of `sfnode init`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from sfnode.dashboard.formatting import baselines_in_words
from sfnode.manifest import Manifest, public_name
from sfnode.manifest.sections import is_file
from sfnode.manifest.training import Training
from sfnode.models import model_files
from sfnode.preparing import scalars
from sfnode.preparing.files import Shared
from sfnode.preparing.manifest import routes_tokens
from sfnode.preparing.scalars import Prepared, SlopeSample
from sfnode.printable import command, size_text
from sfnode.tasks import baselines, dataset, fitting
from sfnode.tasks.dataset import HeldOut, Row
from sfnode.tasks.public_files import inside, typed
from sfnode.verifiers.plugins import is_plugin

MOST = 0.5
"""Maximum share of scalars that are 0, and maximum share of clipped scalars. If one of the two shares is
greater, `sfnode init` warns."""

RARE_SHOWN = 8

FAR_OFF = 10.0
"""Maximum ratio between a given hyperparameter and the value that suits the model. If the ratio is greater,
`sfnode init` warns."""

UNCHECKED = "Whether one update could wreck the model has not been checked either."


def bases_words(file: Path, size: int, out: Path) -> str:
    """Describe where the bases of a run are, and their size in bytes."""
    return (
        f"Its bases are in {file}: leave them beside {out.name}. "
        f"Other nodes get these {size_text(size)} from yours."
    )


def rows_words(manifest: Manifest, unread: int, *, counted: bool) -> list[str]:
    """Describe problems with held-out rows, and the number `unread` of rows that were not tokenised in time.

    With `counted`, also state the numbers of training and test rows. For first-order runs, also state the
    number and the size of updates. Only rows in files are read: nodes check other sources.
    """
    data, task, numbers = manifest.data, manifest.task, manifest.training
    said = [
        f"Warning: {unread:,} rows have not been read as the model reads them, as {fitting.SECONDS:g} s were "
        "over. A node that meets one which cannot be read leaves it out."
    ] * bool(unread)
    train = dataset.training_rows(data, task, typed(data)) if is_file(data.train) else []
    if counted and train:
        judging = f"; {data.withheld:,} others there say how each round fares" if data.withheld else ""
        said.append(f"Trains on {len(train):,} rows of {public_name(data.train)}{judging}.")
    roles: dict[HeldOut, str] = {"test": data.test, "validation": data.validation or data.train}
    for role, source in roles.items():
        if not is_file(source) or (role == "validation" and not (data.validation or data.withheld)):
            continue
        rows = dataset.held_out_rows(data, task, role, places=typed(data))
        if counted and role == "test":
            said.append(f"Is measured on {len(rows):,} more, {public_name(source)}.")
            beside = baselines_in_words(baselines.measured(task, train, rows))
            said += [f"Beside it: {line}." for line in beside]
        said += _doubts(role, manifest, train, rows)
    if numbers.is_first_order:
        size = size_text(manifest.parameters().form.width)
        budget, each = f"{numbers.update_budget:,} updates of {size}", f"{numbers.epoch_updates:,}"
        said.append(f"Learns by gradients: {budget}, in rounds of {each}.")
    return said


def _doubts(role: HeldOut, manifest: Manifest, train: Sequence[Row], rows: Sequence[Row]) -> Iterator[str]:
    """Yield warnings about held-out `rows` that make measurements unreliable."""
    if shared := dataset.shared(manifest.task, train, rows):
        yield (
            f"Warning: {shared:,} of the {len(rows):,} {role} rows have the text of a row that is trained "
            "on: their figures say less of new texts."
        )
    rare = dataset.rare(manifest.task, rows) if role == "test" else {}
    if rare:
        few = ", ".join(f"{name} ({count})" for name, count in islice(rare.items(), RARE_SHOWN))
        yield (
            f"Warning: fewer than {dataset.LEAST_OF_A_CLASS} test rows are of {few}"
            f"{', ...' if len(rare) > RARE_SHOWN else ''}: they do not show how well the model knows such."
        )


def data_words(beside: Shared, out: Path, shared: bool) -> list[str]:
    """Describe the data files beside the manifest, and whether others get them; empty without such files."""
    if not beside.names:
        return []
    copied = f" (copied there: {', '.join(beside.copied)})" if beside.copied else ""
    others = (
        f"Others get these {size_text(beside.size)} from your nodes: everybody who joins can read them."
        if shared
        else "Nodes do not give them to each other: others train on data of their own, with `sfnode join "
        "--data FILE`."
    )
    return [
        f"Its data are {' and '.join(beside.names)}: leave them beside {out.name}{copied}, and as they are. "
        f"{others}"
    ]


def keys_words(kept: Path, offline: Path) -> list[str]:
    """Describe what to do with the keys of an organised run."""
    return [
        f"Your node signs with {kept} what counts in this run: keep a copy of it, and show it to nobody.",
        f"Move {offline} to a medium that you keep offline: should the other key be lost or stolen, it alone "
        "can name a new one.",
    ]


def numbers_words(prepared: Prepared, given: Mapping[str, Any]) -> list[str]:
    """Describe problems with the hyperparameters of a manifest, and failed measurements."""
    numbers, found = prepared.manifest.training, prepared.sample
    if numbers.is_first_order:
        return []
    said = [f"Bases are random ones, as {prepared.no_bases}."] * bool(prepared.no_bases)
    if found is None:
        return [*said, _unmeasured(numbers, "init.measure=no"), UNCHECKED]
    if reason := prepared.untried:
        said.append(f"Numbers were not tried out ({reason}): they are the defaults, or as given.")
    for name, value in prepared.suited.items():
        if name in given and (off := max(given[name] / value, value / given[name])) > FAR_OFF:
            said.append(
                f"Warning: {name} {given[name]:g} is as asked, but {value:g} suits the model: it is "
                f"{off:.0f} times too {'large' if given[name] > value else 'small'}."
            )
    return said + (_warnings(numbers, found) if found.spread else [_unmeasured(numbers, found.reason)])


def following_words(
    prepared: Prepared, out: Path, home: Path | None, verifier: str, organising: Sequence[str]
) -> list[str]:
    """Return the next commands: train the run here, start it and invite others."""
    data, source = prepared.manifest.data, prepared.manifest.model.source
    trusted = ["--verifier", verifier] if is_plugin(verifier) else []
    trusted += ["--model", str(home)] if home and home != inside(out.parent, source) else []
    said = ["What happens next:"]
    if data.train:
        minutes = round(prepared.seconds / 60)
        time = f" in about {minutes} minutes" if minutes > 1 else " in a minute or two"
        time *= bool(prepared.seconds)
        alone = command("sfnode", "swarm", "--run", out, *trusted)
        said.append(f"  {alone}    trains it here alone{time}, to see how well it goes")
    start = command("sfnode", "join", "--run", out, *trusted, *organising)
    said.append(f"  {start}    starts the run on this machine")
    return [*said, "  sfnode invite    prints the link with which others join, once it runs"]


def _warnings(training: Training, found: SlopeSample) -> list[str]:
    """Return warnings about hyperparameters that make most scalars 0 or clip most scalars."""
    zeros, clipped = scalars.shares(training, found)
    limit, delta = scalars.suitable_limit(training, found), scalars.unit_for(training, found.spread)
    coarse, better = f"scalar_delta {training.scalar_delta:g} is too coarse", f"scalar_delta={delta:.2g}"
    warnings = []
    if (still := float(np.mean(found.slopes == 0))) > MOST:
        why = "the loss is the same at both points: give a larger training.epsilon or training.batch_size"
        warnings.append(f"Warning: {still:.0%} of the scalars are 0, as {why}.")
    elif zeros > MOST:
        warnings.append(f"Warning: {zeros:.0%} of the scalars are 0, as {coarse}: give training.{better}.")
    if clipped > MOST:
        better = f"scalar_limit={limit}" if limit > training.scalar_limit else better
        larger = f"{clipped:.0%} of the scalars are larger than scalar_limit"
        warnings.append(f"Warning: {larger}: give training.{better}.")
    return warnings


def _unmeasured(training: Training, reason: str) -> str:
    """Describe the consequences of not having measured scalars. `reason` states why none were measured."""
    said = f"No scalars were measured ({reason}). scalar_limit is {training.scalar_limit}"
    if training.scalar_limit < training.largest_scalar:
        return f"{said}."
    return (
        f"{said}, the most that {training.scalar_bits} bits hold: one update may do many times what an "
        "honest one does. A scalar_limit of about 8 times the root mean square of the run's scalars "
        "prevents that."
    )


def notes(manifest: Manifest, home: Path | None, epsilon_given: bool) -> list[str]:
    """Return notes about the base model in three cases: its head is for other classes; it is a mixture of
    experts and no epsilon was given; it is only on this machine, in the folder `home`."""
    notes = []
    base = manifest.model
    folder = model_files.resolve(base.source, base.revision, home)
    if -1 in base.outputs:
        notes.append(
            "The base model tells other classes apart than these, by their names in its config.json: its "
            "body is used, and the head begins anew."
        )
    if not (epsilon_given or manifest.training.is_first_order) and routes_tokens(folder):
        notes.append(
            "The base model is a mixture of experts: its loss jumps where a token goes to another expert, so "
            f"that slopes measured at epsilon {manifest.training.epsilon:g} may be mostly jumps. If all "
            "nodes compute in float32 (--dtype float32), make the run with --set training.epsilon=1e-5; in "
            "bfloat16 that would measure noise."
        )
    if home:
        notes.append("The base model is on this machine: other nodes download it from nodes that have it.")
    return notes
