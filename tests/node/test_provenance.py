"""What an export says of where it comes from, by the log alone."""

from __future__ import annotations

from sfnode.node import provenance
from sfprotocol.counting import Run
from sfprotocol.decisions import FACTOR_ONE
from sfprotocol.messages import Feed
from sfprotocol.names import Names
from sfprotocol.weighing import Counted, once

A, B, C = (bytes([n]) * 32 for n in range(3))


def test_contributors_are_origins_by_what_counts_with_the_names_that_they_gave_themselves() -> None:
    counted = {
        Feed(A, 0): Counted((Run(5, FACTOR_ONE), Run(9, 0), Run(10, FACTOR_ONE // 2))),
        Feed(A, 1): once(2),
        Feed(B, 0): once(20),
        Feed(C, 0): Counted((Run(7, 0),)),
    }
    found = provenance.of_now(counted, {A: Names("Ada", "Engines"), C: Names("nobody")}, 30, "ab")
    assert found.contributors == ((B.hex(), "", 20), (A.hex(), "Ada (Engines)", 8))
    assert (found.seal, found.updates, found.digest, found.evaluations) == (None, 30, "ab", ())
