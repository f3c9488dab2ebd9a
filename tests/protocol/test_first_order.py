"""Updates of first-order runs: encoding, validation and cost (SPEC U11, S4)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfnode.transport.libp2p.settings import CIRCUIT_BUFFER
from sfprotocol import messages, rate_limit, validation, wire_codec
from sfprotocol.decisions import FACTOR_ONE, UNIT_ONE, RateFrom
from sfprotocol.errors import LocalProtocolError, RemoteProtocolError
from sfprotocol.events import OwnUpdates, Served, Writable
from sfprotocol.fields import Values
from sfprotocol.frontier import Frontier
from sfprotocol.rate_limit import ORIGIN_BURST, ORIGIN_BYTES, OriginBuckets
from sfprotocol.weighing import Counted, Rates
from tests.protocol.feeds import RUN
from tests.protocol.scripted import ANN, BOB, Scripted, serves
from tests.protocol.swarm import Swarm
from tests.protocol.test_forks import past

FIRST_ORDER = replace(RUN, version=4, cells=24, scalar_bytes=1, scalar_limit=127, norm_limit=78)
USUAL = replace(FIRST_ORDER, cells=1344, scalar_bytes=2, scalar_limit=32_767)
"""Updates of 2.7 kB."""

LARGEST = replace(FIRST_ORDER, cells=messages.MAX_UPDATE_BYTES // 2, scalar_bytes=2)


@st.composite
def segments(draw: st.DrawFn) -> tuple[messages.Form, messages.Segment]:
    form = draw(st.builds(messages.Form, st.sampled_from((1, 2)), st.integers(1, 64)))
    most = 2 ** (8 * form.scalar_bytes - 1)
    update = st.tuples(*[st.integers(-most, most - 1)] * form.cells)
    epochs = draw(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=3, unique=True))
    told = tuple(
        messages.EpochScalars(e, tuple(draw(st.lists(update, min_size=1, max_size=3))))
        for e in sorted(epochs)
    )
    return form, messages.Segment(2**64 - 1, 7, told, bytes(64), 3)


# -- what travels ------------------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(segments())
def test_whatever_a_segment_has_comes_back_and_in_no_other_form(
    made: tuple[messages.Form, messages.Segment],
) -> None:
    form, segment = made
    encoded = wire_codec.encode(segment, *form)
    assert wire_codec.decode(encoded, *form) == segment
    sizes = [len(part.scalars) * form.width for part in segment.parts]
    for other in (
        messages.Form(form.scalar_bytes, form.cells + 1),
        messages.Form(form.scalar_bytes),
        messages.Form(3 - form.scalar_bytes, form.cells),
    ):
        if any(size % other.width for size in sizes):
            with pytest.raises(RemoteProtocolError, match="C6"):
                wire_codec.decode(encoded, *other)
        else:
            assert wire_codec.decode(encoded, *other) != segment


@pytest.mark.parametrize("run", [FIRST_ORDER, USUAL, LARGEST], ids=lambda run: f"{run.form.width} bytes")
def test_a_segment_has_as_many_updates_as_fit_24_kib(run: messages.RunParameters) -> None:
    form = run.form
    most, update = form.segment_updates, (-1,) * form.cells
    assert most * form.width <= messages.MAX_SIGNED_BYTES < (most + 1) * form.width
    full = messages.Segment(1, 0, (messages.EpochScalars(0, (update,) * most),), bytes(64))
    assert wire_codec.decode(wire_codec.encode(full, *form), *form) == full
    more = replace(full, parts=(messages.EpochScalars(0, (update,) * (most + 1)),))
    with pytest.raises(LocalProtocolError, match="C7"):
        wire_codec.encode(more, *form)


def test_updates_of_another_form_are_not_encoded() -> None:
    form = FIRST_ORDER.form
    for values in (7, (7,) * 23, (7,) * 25, (128,) * 24):
        with pytest.raises(LocalProtocolError):
            wire_codec.encode(
                messages.Segment(1, 0, (messages.EpochScalars(0, (values,)),), bytes(64)), *form
            )


# -- what is refused ---------------------------------------------------------------------------------------


def fault(*updates: Values) -> str | None:
    state = Frontier(FIRST_ORDER).state(ANN)
    return validation.fault(
        FIRST_ORDER, state, messages.Segment(state.key, 0, (messages.EpochScalars(0, updates),), b"")
    )


def test_every_scalar_of_every_update_is_within_the_limit() -> None:
    good = (127, -127, *(0,) * 22)
    assert fault(good, good) is None
    for bad in ((*good[:-1], 128), (-128, *good[1:])):
        assert (fault(good, bad) or "").startswith("U3")


def test_a_segment_of_more_than_24_kib_is_refused() -> None:
    most = FIRST_ORDER.form.segment_updates
    assert fault(*((1,) * 24,) * most) is None
    assert (fault(*((1,) * 24,) * (most + 1)) or "").startswith("S4")


def test_own_updates_of_another_form_are_not_signed() -> None:
    """Otherwise they would be in the log, and could not be sent."""
    for run, values in ((FIRST_ORDER, 7), (FIRST_ORDER, (7,) * 23), (RUN, (7,) * 24)):
        host = Scripted(ANN, run=run)
        with pytest.raises(LocalProtocolError, match="U11: an update of another form"):
            host.event(OwnUpdates(ANN, 0, (messages.EpochScalars(0, (values,)),)))


# -- what counts -------------------------------------------------------------------------------------------


def test_what_moves_nothing_weighs_nothing() -> None:
    counted = Counted((), Rates(0, (RateFrom(0, 1 << 20, 2 * UNIT_ONE, 78),)))
    assert counted.weight(0, FACTOR_ONE, (78, 0)) == 1 << 21
    assert counted.weight(0, FACTOR_ONE // 2, (0, 10)) == 1 << 20
    assert counted.weight(0, FACTOR_ONE, (78, 1)) == counted.weight(0, FACTOR_ONE, (9, 3)) == 0


@pytest.mark.parametrize("other", [RateFrom(0, 5, UNIT_ONE, 79), RateFrom(0, 5, UNIT_ONE + 1, 78)])
def test_another_unit_or_limit_is_another_rate(other: RateFrom) -> None:
    now = Rates(3, (RateFrom(0, 5, UNIT_ONE, 78),))
    assert now.hold_in(Rates(3, (RateFrom(0, 5, UNIT_ONE, 78),)))
    assert not now.hold_in(Rates(3, (other,)))


# -- what it costs -----------------------------------------------------------------------------------------


def test_asking_twice_costs_what_is_sent_twice() -> None:
    host = Scripted(run=USUAL)
    host.machine.frontier.advance(BOB, 100, bytes(32), 0)
    host.link(1)
    want, link = messages.Want((messages.Position(BOB, 0),)), host.machine.links[1]
    for serve in serves(host.hear(1, want)):
        host.event(Served(1, serve.feed, 9, 0))
    host.event(Writable(1))
    before = link.waste.bucket.level
    host.hear(1, want)
    assert before - link.waste.bucket.level >= 9 * USUAL.form.width


def test_an_origin_is_charged_by_bytes() -> None:
    for width, updates in ((2, int(ORIGIN_BURST)), (63, int(ORIGIN_BURST)), (2688, int(ORIGIN_BURST) // 84)):
        origins = OriginBuckets()
        origins.brought(b"x", updates, width, 0.0)
        assert origins.may_bring(b"x", 0.0)
        origins.brought(b"x", 1, width, 0.0)
        assert not origins.may_bring(b"x", 0.0)
    assert ORIGIN_BYTES * rate_limit.ORIGIN_RATE == rate_limit.INTAKE_RATE


def test_a_node_that_joins_late_has_300_updates_of_3_kb_within_seconds() -> None:
    swarm = Swarm("ann bob cid", run=USUAL)
    swarm.mesh()
    swarm.run(1)
    for turn in range(300):
        swarm[("ann", "bob", "cid")[turn % 3]].compute()
        swarm.run(0.4)
    swarm.run(3)
    known = swarm["ann"].machine.frontier.known
    assert known == 300
    newcomer = swarm.add("dan")
    for name in ("ann", "bob", "cid"):
        swarm.connect(newcomer, swarm[name])
    assert swarm.run_until_equal(5) < 5
    brought = sum(swarm[name].sent_bytes["Segment"] for name in ("ann", "bob", "cid"))
    assert brought < 1.2 * 3 * 300 * USUAL.form.width, (
        "each update once over a link of the tree, and once more"
    )


# -- forks -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("run", [FIRST_ORDER, USUAL, LARGEST], ids=lambda run: f"{run.form.width} bytes")
def test_a_proof_of_two_full_branches_fits_a_message_and_a_relays_buffer(run: messages.RunParameters) -> None:
    form = run.form
    branches = tuple(
        messages.Branch(
            (messages.EpochScalars(0, ((sign,) * form.cells,) * form.segment_updates),), bytes(64)
        )
        for sign in (1, -1)
    )
    proof = messages.Proof(ANN, 2**32 - 1, (bytes(32), bytes(32)), branches)  # type: ignore[arg-type]
    encoded = wire_codec.encode(proof, *form)
    assert wire_codec.decode(encoded, *form) == proof
    assert len(encoded) < CIRCUIT_BUFFER < wire_codec.MAX_FRAME


def test_two_nodes_with_histories_of_24_kib_find_the_fork_and_end_equal() -> None:
    swarm = Swarm("ann bob", run=USUAL)
    for name, scalar in (("ann", 1), ("bob", -1)):
        updates = [(5,) * 1344, *[(scalar,) * 1344] * (USUAL.form.segment_updates - 1)]
        past(swarm[name], [messages.EpochScalars(0, tuple(updates))])
    swarm.connect(swarm["ann"], swarm["bob"])
    swarm.run(5)
    assert [node.machine.frontier.known for node in swarm.nodes.values()] == [1, 1]
    assert [node.faults for node in swarm.nodes.values()] == [[], []]
