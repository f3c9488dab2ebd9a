"""What an export says of where it comes from, by the log alone."""

from __future__ import annotations

from sfnode.node import provenance
from sfnode.organising.evaluation.health import published
from sfnode.store.checkout import at_seal
from sfprotocol.decisions import FACTOR_ONE, Close, Decision, Seal, encode
from sfprotocol.fields import Names
from sfprotocol.messages import Entry, Feed
from sfprotocol.run_state import NEVER, Span
from sfprotocol.weighing import Counted, once
from tests.organising.bench import scores
from tests.store.organised import ORGANISED

A, B, C = (bytes([n]) * 32 for n in range(3))


def test_contributors_are_origins_by_what_counts_with_the_names_that_they_gave_themselves() -> None:
    counted = {
        Feed(A, 0): Counted((Span(5, FACTOR_ONE), Span(9, 0), Span(10, FACTOR_ONE // 2))),
        Feed(A, 1): once(2),
        Feed(B, 0): once(20),
        Feed(C, 0): Counted((Span(7, 0),)),
    }
    found = provenance.of_now(counted, {A: Names("Ada", "Engines"), C: Names("nobody")}, 30, "ab")
    assert found.contributors == ((B.hex(), "", 20), (A.hex(), "Ada (Engines)", 8))
    assert (found.seal, found.updates, found.digest, found.evaluations) == (None, 30, "ab", ())


def test_figures_of_a_seal_are_those_of_the_log_beside_both_of_the_base_model() -> None:
    """A row "base model" must not hold what calibration makes of it."""

    def told(epoch: int, value: float, *, calibrated: bool = True, base: bool = False) -> Decision:
        found = scores(value).model_copy(update={"calibrated": calibrated})
        return published(epoch, found, base=base)

    decided = [told(0, 0.4, calibrated=False, base=True), told(0, 0.6, base=True)]
    for epoch, value in enumerate((0.7, 0.9, 0.8)):
        decided += [Close(epoch, bytes(8), ()), Seal(epoch, (), (), bytes(32), FACTOR_ONE, ())]
        decided.append(told(epoch, value))
    entries = [Entry(0, encode(one), bytes(64)) for one in decided]
    checkout = at_seal(ORGANISED, entries, lambda _: NEVER, 0)
    found = provenance.of_seal(ORGANISED, entries, {}, checkout, "ab")
    assert [(one.of, one.result.value) for one in found.evaluations] == [
        ("this one, of round 0, calibrated", 0.7),
        ("the best, of round 1, calibrated", 0.9),
        ("the last that was measured, of round 2, calibrated", 0.8),
        ("the base model", 0.4),
        ("the calibrated base model", 0.6),
    ]
