"""Tests of first-order updates in the store: rows, sums, verification and archives (SPEC U11)."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfnode.engine.core import Core
from sfnode.errors import Code
from sfnode.history.time_travel import Past
from sfnode.stats import Contributions
from sfnode.store import archive, checkpoint, segment_encoding
from sfnode.store.disk_errors import BrokenRowError
from sfnode.store.known_feeds import MAX_SCALARS, SEGMENTS_PER_FEED, SegmentCache
from sfnode.store.log import LOOSE_ROWS, CutRecord, UpdateLog
from sfnode.store.replay import changes, weighed
from sfnode.store.segment_encoding import PACKED_UPDATES, UNSIGNED
from sfnode.store.verification import verify_log
from sfprotocol import validation, wire_codec
from sfprotocol.decisions import FACTOR_ONE, UNIT_ONE, RateFrom
from sfprotocol.errors import LocalProtocolError
from sfprotocol.host import cut_chain
from sfprotocol.messages import Branch, EpochScalars, Feed, Form, Proof, Segment
from sfprotocol.run_state import Span
from sfprotocol.signing import extend, head_message
from sfprotocol.weighing import Counted, Rates
from tests.node.helpers import manifest
from tests.protocol.feeds import origin_of, signing_key
from tests.refusals import fails_with
from tests.store.folders import Folder, first_order
from tests.store.helpers import Author
from tests.store.test_log import from_step

RUN = first_order(manifest("vectors", update_budget=1000))
CELLS = 24
LONG, SHORT, BEYOND = (15,) * CELLS, (1,) * CELLS, (20,) * CELLS
"""Updates with norms 73, 5 and 98; the limit is 78."""


# -- rows --------------------------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(
    cells=st.integers(1, 50),
    counts=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    most=st.sampled_from([127, 32_767]),
    seed=st.integers(0, 99),
)
def test_a_row_gives_back_what_it_was_given(cells: int, counts: list[int], most: int, seed: int) -> None:
    dice = Random(seed)
    parts = tuple(
        EpochScalars(
            epoch, tuple((most, *(dice.randint(-most, most) for _ in range(cells - 1))) for _ in range(n))
        )
        for epoch, n in enumerate(counts)
    )
    segment = Segment(5, 7, parts, b"s" * 64)
    body = segment_encoding.encode(segment, b"c" * 32)
    width = 1 if most == 127 else 2
    assert body[100] == width + 2
    assert len(body) == 105 + 8 * len(parts) + 4 + sum(counts) * cells * width
    assert segment_encoding.decode(Feed(bytes(32), 0), 5, 7, body).segment == segment


def test_a_row_whose_lengths_do_not_fit_is_broken_whatever_its_checksum_says() -> None:
    sound = segment_encoding.encode(Segment(5, 7, (EpochScalars(0, (LONG,)),), bytes(64)), bytes(32))
    assert struct.unpack_from("<I", sound, 113) == (CELLS,)
    for cells, rest in (
        (0, sound[117:]),
        (23, sound[117:]),
        (2**32 - 1, sound[117:]),
        (CELLS, sound[118:]),
        (CELLS, b""),
    ):
        body = sound[4:113] + struct.pack("<I", cells) + rest
        with pytest.raises(BrokenRowError):
            segment_encoding.decode(Feed(bytes(32), 0), 5, 7, zlib.crc32(body).to_bytes(4, "little") + body)
    body = sound[4:115]  # and one that ends in the middle of the number
    with pytest.raises(BrokenRowError):
        segment_encoding.decode(Feed(bytes(32), 0), 5, 7, zlib.crc32(body).to_bytes(4, "little") + body)


def test_a_row_without_updates_is_not_written() -> None:
    with pytest.raises(LocalProtocolError, match="needs updates"):
        segment_encoding.encode(Segment(5, 7, (), bytes(64)), bytes(32))


@pytest.mark.parametrize(("cells", "most"), [(CELLS, PACKED_UPDATES // CELLS), (1344, 1)])
def test_rows_are_packed_by_what_they_hold(log: UpdateLog, cells: int, most: int) -> None:
    author = Author()
    for step in range(2 * LOOSE_ROWS):
        log.append([author.write([(step % 100,) * cells])])
    stored = [record.segment for record in log.records()]
    assert max(segment.count for segment in stored) == most
    for segment in stored:
        author.assert_genuine(segment)


def test_what_is_kept_in_memory_is_bounded_by_scalars() -> None:
    cache, author = SegmentCache(), Author()
    for number in range(20):
        segment = author.write([(1,) * 12_000]).segment
        cache.add(Feed(number.to_bytes(32, "big"), 0), segment)
    assert cache._size == 12_000 * (MAX_SCALARS // 12_000)
    assert SEGMENTS_PER_FEED * 12_000 > MAX_SCALARS


def test_what_lost_its_signature_fits_a_message_or_is_not_given_away(log: UpdateLog) -> None:
    """A proof that a peer cannot decode proves nothing."""
    form, lost, kept = Form(2, 1344), Author(), Author()
    for author in (lost, kept):
        author.write([(1,) * 1344] * 6)
    lost.write([(2,) * 1344] * 3)
    kept.write([(3,) * 1344] * 9)
    log.append([from_step(lost, 0, 9)])
    log.append([from_step(kept, 6, 15)], replacing=True)
    assert [r.segment.signature == UNSIGNED for r in log.records()] == [True, False]
    for step in range(16):
        chain, rest = log.past(kept.feed, step)
        assert chain == kept.chains[step]
        assert rest.count in (0, 15 - step)
        if rest.count:
            wire_codec.encode(rest, *form)
    assert log.past(kept.feed, 6)[1].count == 9


def test_contributions_and_columns_are_of_updates(log: UpdateLog) -> None:
    author = Author()
    log.append([author.write([LONG] * 3), author.write([SHORT] * 2, epoch=1)])
    found = Contributions(log)
    assert found.follow(float("inf"))
    assert [(one.updates, one.first_epoch, one.last_epoch) for one in found.ranked] == [(5, 0, 1)]
    columns = log.columns()
    assert columns.updates.scalar.tolist() == [list(values) for _, values in author.updates]
    assert len(columns.before_epoch(1)) == 3


# -- sums --------------------------------------------------------------------------------------------------


def test_what_a_dropped_decision_had_counted_is_taken_out_exactly(log: UpdateLog) -> None:
    """A succession drops the seal that set a label's unit and limit. Some updates move weights with one limit
    and not with the other."""
    author = Author()
    told = [LONG, SHORT, BEYOND, (9,) * CELLS, (0,) * CELLS]
    log.append([author.write(told[:2], epoch=0), author.write(told[2:], epoch=2)])
    first = RateFrom(0, 1 << 30, UNIT_ONE, 78)
    tables = [
        Rates(2, (first,)),
        Rates(2, (first, RateFrom(2, 1 << 29, 3 * UNIT_ONE, 100))),
        Rates(2, (first, RateFrom(1, 1 << 28, 77, 40))),
    ]
    runs = [(Span(5, FACTOR_ONE),), (Span(1, 100), Span(4, 3 * FACTOR_ONE))]
    states = [Counted(steps, rates) for steps in runs for rates in tables]

    def by_hand(counted: Counted) -> bytes:
        core = np.zeros((3, CELLS), object)
        for step, ((label, values), factor) in enumerate(zip(author.updates, factors(counted), strict=True)):
            rate = [one for one in counted.rates.table if one.epoch <= label][-1]  # type: ignore[union-attr]
            squares = sum(value**2 for value in values)  # type: ignore[attr-defined]
            if squares <= rate.limit**2 <= 64 * squares:
                core[label] += np.array(told[step], object) * (rate.rate * rate.unit * factor >> 28)
        found = Core(2, 3, 4)
        found.put({k: c.astype(np.int64).reshape(2, 3, 4) for k, c in enumerate(core) if c.any()})
        return found.digest()

    def factors(counted: Counted) -> list[int]:
        return [next((r.factor for r in counted.spans if step < r.stop), 0) for step in range(5)]

    assert len({by_hand(state) for state in states}) == len(states)
    for before in states:
        core = Core(2, 3, 4)
        for batch in changes(log, {}, {author.feed: before}):
            core.add(batch)
        assert core.digest() == by_hand(before)
        for now in states:
            moved = Core(2, 3, 4)
            moved.put(core.cores())
            for batch in changes(log, {author.feed: before}, {author.feed: now}):
                moved.add(batch)
            assert moved.digest() == by_hand(now)


def test_every_update_is_told_with_its_weight(log: UpdateLog) -> None:
    author = Author()
    log.append([author.write([LONG, SHORT, LONG])])
    counted = Counted(
        (Span(2, FACTOR_ONE), Span(3, 2 * FACTOR_ONE)), Rates(0, (RateFrom(0, 9, 2 * UNIT_ONE, 78),))
    )
    found = list(weighed(log, {author.feed: counted}))
    assert [(one.scalar, one.weight) for one in found] == [(LONG, 18), (SHORT, 0), (LONG, 36)]


# -- whole runs --------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    """Return a folder with two rounds, the second with another limit. Both have updates that move nothing."""
    with Folder(tmp_path / "a", RUN, "a", organises=True) as made:
        made.admit("a", "b")
        made.make(3, lambda: LONG)
        made.bring("b", [LONG, SHORT])
        made.close()
        made.seal(factor=3000, rates=[RateFrom(2, 1 << 31, 2 * UNIT_ONE, 40)])
        made.close()
        made.seal()
        made.make(2, lambda: (5,) * CELLS)
        made.bring("b", [LONG, (4,) * CELLS])
        made.close()
        made.seal()
        yield made


def forked(made: Folder) -> Proof:
    """Return a proof that b has signed two different third updates."""
    run, feed = made.run, Feed(origin_of("b"), 0)
    chain, _ = made.log.past(feed, 4)
    branches = []
    for values in (LONG, SHORT):
        parts = (EpochScalars(3, (values,)),)
        head = head_message(run.run_id, feed, 5, extend(chain, parts))
        branches.append(Branch(parts, signing_key("b").sign(head)))
    return Proof(feed, 4, (chain, chain), (branches[0], branches[1]))


def test_a_log_verifies_and_an_archive_of_it_says_the_same(folder: Folder, tmp_path: Path) -> None:
    proof = forked(folder)
    frame = wire_codec.encode(proof, *folder.run.form)
    folder.log.append([], [CutRecord(proof.feed, proof.cut, cut_chain(folder.run, proof), frame)])
    found = verify_log(RUN, folder.log)
    assert found.seals
    assert (found.updates, found.seals.checked) == (9, 3)
    said = archive.write(RUN, folder.log, folder.layout.bases, tmp_path / "run.sfnode", "0")
    assert (said.updates, said.core_digest) == (9, found.core_digest)
    (tmp_path / "there").mkdir()
    unpacked = archive.unpack(tmp_path / "run.sfnode", tmp_path / "there")
    assert (unpacked.manifest, unpacked.statement) == (RUN, said)
    with UpdateLog.open(unpacked.layout.log, RUN.run_id, read_only=True) as log:
        assert [cut.proof for cut in log.cuts()] == [frame]


def test_an_archive_with_updates_of_another_form_is_refused(folder: Folder, tmp_path: Path) -> None:
    """Anybody with a key may sign such updates and write them to a file."""
    for number, values in enumerate((7, (7,) * 23, (7,) * 25)):
        file = tmp_path / f"{number}.sfnode"
        with Folder(tmp_path / f"f{number}", RUN, "a", organises=True) as made:
            made.admit("a", "b")
            made.bring("b", [LONG])
            archive.write(RUN, made.log, made.layout.bases, tmp_path / "good.sfnode", "0")
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(validation, "_fault_of_values", lambda *_: None)
                patch.setattr(archive, "verify_log", lambda *_: verify_log(RUN, folder.log))
                made.bring("b", [values])
                archive.write(RUN, made.log, made.layout.bases, file, "0")
            (tmp_path / "good.sfnode").unlink()
        (tmp_path / f"to{number}").mkdir()
        with fails_with(Code.ARCHIVE_UNUSABLE):
            archive.unpack(file, tmp_path / f"to{number}")


def test_the_state_of_a_checkpoint_has_cores_as_they_are(folder: Folder) -> None:
    run_state = folder.machine.frontier.run_state
    assert run_state
    first = checkpoint.compute(RUN, folder.log, checkpoint.plan(run_state, 0))
    assert first
    assert [core.shape for core in first.cores.values()] == [(2, 3, 4)]
    whole = checkpoint.compute(RUN, folder.log, checkpoint.plan(run_state, 2))
    later = checkpoint.compute(RUN, folder.log, checkpoint.plan(run_state, 2, first), first)
    assert whole
    assert later
    assert whole.decision(RUN.run_id) == later.decision(RUN.run_id) != first.decision(RUN.run_id)
    data = checkpoint.encode(whole)
    assert len(data) <= checkpoint.most_bytes(RUN, run_state, 2)
    read = checkpoint.decode(RUN, run_state, data)
    assert read.decision(RUN.run_id) == whole.decision(RUN.run_id)
    assert [core.shape for core in read.cores.values()] == [(2, 3, 4)] * len(whole.cores)


def test_the_time_machine_and_the_log_tell_vectors(folder: Folder) -> None:
    past = Past(RUN, folder.log, folder.path)
    assert past.result(2).core_digest == verify_log(RUN, folder.log).core_digest
