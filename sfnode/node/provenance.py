"""Provenance of an exported model, computed from a node's log: seal, evaluations and contributors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from sfnode.organising.reporting.run_history import Results
from sfnode.schema.history import Contributor, EvaluatedModel, Provenance
from sfnode.schema.metrics import model_in_words
from sfnode.store.checkout import Checkout, at_seal
from sfprotocol.fields import Names
from sfprotocol.messages import Entry, Feed, RunParameters
from sfprotocol.run_state import NEVER
from sfprotocol.weighing import Counted


def of_seal(
    run: RunParameters,
    entries: Sequence[Entry],
    names: Mapping[bytes, Names],
    checkout: Checkout,
    digest: str,
) -> Provenance:
    """Return the provenance of the model of a seal. Any thread may call this.

    `checkout` has the updates that counted at the seal, all of which must be stored. `digest` is the model's
    core digest, `entries` are the decisions, and `names` are the names of origins.
    """
    epoch = checkout.epoch
    assert epoch is not None
    as_sealed = at_seal(run, entries, lambda _: NEVER, epoch)
    return Provenance(
        seal=epoch,
        digest=digest,
        updates=checkout.updates,
        amended=as_sealed.counted != checkout.counted,
        evaluations=_evaluations(entries, epoch),
        contributors=_contributors(checkout.counted, names),
    )


def of_now(
    counted: Mapping[Feed, Counted], names: Mapping[bytes, Names], updates: int, digest: str
) -> Provenance:
    """Return the provenance of the present state, with its number of updates and its `digest`."""
    return Provenance(None, digest, updates, contributors=_contributors(counted, names))


def _evaluations(entries: Sequence[Entry], epoch: int) -> tuple[EvaluatedModel, ...]:
    """Return the published evaluations of this seal, of the best seal, of the last measured seal, and of the
    base model."""
    results = Results().follow(entries)
    own = [one for one in results.evaluations if one.epoch == epoch and not one.base]
    verdict = results.verdict()
    last = own[-1] if own else None
    seals = (("this one", last), ("the best", verdict.best), ("the last that was measured", verdict.latest))
    found = [
        EvaluatedModel(f"{of}, of {model_in_words(one)}{', calibrated' * one.calibrated}", one)
        for of, one in seals
        if one
    ]
    return (*found, *(EvaluatedModel(model_in_words(one), one) for one in verdict.bases))


def _contributors(counted: Mapping[Feed, Counted], names: Mapping[bytes, Names]) -> tuple[Contributor, ...]:
    updates: Counter[bytes] = Counter()
    for feed, one in counted.items():
        first = 0
        for run in one.spans:
            updates[feed.origin] += (run.stop - first) * (run.factor != 0)
            first = run.stop
    ordered = sorted(updates.items(), key=lambda item: (-item[1], item[0]))
    return tuple(Contributor(origin.hex(), _name(names.get(origin)), n) for origin, n in ordered if n)


def _name(names: Names | None) -> str:
    if names is None:
        return ""
    return f"{names.name} ({names.team})".strip() if names.team else names.name
