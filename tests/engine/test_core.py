"""The exact core: order, duplication-free splits and delay change nothing, to the bit."""

from __future__ import annotations

import hashlib
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfnode.engine import core as core_module
from sfnode.engine.core import Core, UpdateBatch
from tests.engine.helpers import part, updates

LAYERS, RANK = 3, 4
MASK = (1 << 64) - 1

update = st.tuples(st.integers(0, 3), st.integers(0, MASK), st.integers(-32_767, 32_767))


def batch_of(rows: list[tuple[int, int, int]]) -> UpdateBatch:
    epochs, seeds, scalars = zip(*rows, strict=True) if rows else ((), (), ())
    return UpdateBatch(np.array(epochs, np.int64), np.array(seeds, np.uint64), np.array(scalars, np.int64))


def core_of(*batches: UpdateBatch) -> Core:
    core = Core(LAYERS, RANK)
    for batch in batches:
        core.add(batch)
    return core


def mixed(value: int) -> int:
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & MASK
    return value ^ (value >> 31)


def slow_core(rows: list[tuple[int, int, int]]) -> dict[tuple[int, int, int, int], int]:
    """The rules SPEC R6 and U4 in Python's own integers."""
    entries: dict[tuple[int, int, int, int], int] = {}
    for epoch, seed, scalar in rows:
        for layer in range(LAYERS):
            value = mixed((seed + (layer + 1) * 0x9E3779B97F4A7C15) & MASK)
            place = (epoch, layer, value % RANK, (value >> 24) % RANK)
            entries[place] = entries.get(place, 0) + (-scalar if value >> 63 else scalar)
    return {place: entry for place, entry in entries.items() if entry}


@given(rows=st.lists(update, max_size=40), data=st.data())
def test_any_order_and_any_split_of_the_same_updates_gives_the_same_digest(
    rows: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    shuffled = data.draw(st.permutations(rows))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=5)))
    parts = [shuffled[a:b] for a, b in zip([0, *cuts], [*cuts, len(rows)], strict=True)]
    assert core_of(*map(batch_of, parts)).digest() == core_of(batch_of(rows)).digest()


@given(rows=st.lists(update, max_size=40))
def test_the_core_is_what_the_written_rule_gives_in_plain_integers(rows: list[tuple[int, int, int]]) -> None:
    core = core_of(batch_of(rows))
    fast = {
        (epoch, *map(int, place)): int(core.of(epoch)[tuple(place)])
        for epoch in core.epochs()
        for place in np.argwhere(core.of(epoch))
    }
    assert fast == slow_core(rows)


def test_where_long_batches_are_cut_inside_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = updates(500, epochs=(0, 1, 1, 2))
    whole = core_of(batch).digest()
    monkeypatch.setattr(core_module, "CHUNK_ENTRIES", 7 * LAYERS)
    assert core_of(batch).digest() == whole


def test_updates_that_cancel_leave_the_digest_of_nothing() -> None:
    batch = updates(20, epochs=(5,))
    core = core_of(batch, batch._replace(scalars=-batch.scalars))
    assert core.epochs() == []
    assert core.digest() == core_of().digest() == hashlib.blake2b(digest_size=32).digest()


def test_the_digest_covers_sorted_epochs_and_little_endian_entries() -> None:
    core = core_of(updates(30, epochs=(9, 2)))
    written = b"".join(epoch.to_bytes(8, "big") + core.of(epoch).astype("<i8").tobytes() for epoch in (2, 9))
    assert core.digest() == hashlib.blake2b(written, digest_size=32).digest()


FORMS = pytest.mark.parametrize("few", [0, 1, 10**6], ids=["as moves", "both", "as arrays"])
"""How the core of an epoch is held."""


@FORMS
def test_how_an_epoch_is_held_changes_nothing(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = updates(60, epochs=(0, 0, 1, 5, 5, 5, 5))
    wanted = core_of(batch)
    monkeypatch.setattr(core_module, "FEW", few)
    core = core_of(*(part(batch, slice(n, n + 5)) for n in range(0, 60, 5)))
    assert core.digest() == wanted.digest()
    assert core.epochs() == core.touched() == [0, 1, 5]
    for epoch in (0, 1, 2, 5):
        assert np.array_equal(core.of(epoch), wanted.of(epoch))
        for layer in range(LAYERS):
            assert np.array_equal(core.layer(epoch, layer), wanted.of(epoch)[layer])
    core.add(batch._replace(scalars=-batch.scalars))
    assert core.epochs() == []


@FORMS
def test_layers_are_forgotten_in_the_epochs_named_and_in_this_core_alone(
    few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core_module, "FEW", few)
    batch = updates(20, epochs=(0, 1))
    core, other = core_of(), core_of()
    core.add(batch, other)
    core.forget([1], [0])
    for epoch in (0, 1):
        wanted = other.of(epoch).copy()
        wanted[1] *= epoch
        assert np.array_equal(core.of(epoch), wanted)
    core.forget(range(LAYERS))
    assert core.touched() == []
    assert other.digest() == core_of(batch).digest()


def test_what_an_epoch_costs_follows_from_its_updates_and_not_from_the_size_of_the_model() -> None:
    layers, rank, labels = 72, 32, 2_000
    core = Core(layers, rank)
    batch = updates(labels, epochs=range(labels))
    tracemalloc.start()
    core.add(batch)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < labels * layers * rank * rank * 8 / 100
    assert core.touched() == [label for label in range(labels) if batch.scalars[label]]


def test_nobody_can_write_into_a_core_that_was_handed_out() -> None:
    core = core_of(part(updates(2), slice(1)))
    for epoch in (0, 1):
        with pytest.raises(ValueError, match="read-only"):
            core.of(epoch)[0, 0, 0] = 1
        with pytest.raises(ValueError, match="read-only"):
            core.layer(epoch, 0)[0, 0] = 1


def test_a_digest_reads_again_only_what_has_changed_and_what_comes_after(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[int] = []
    hashed = core_module._hash
    monkeypatch.setattr(
        core_module, "_hash", lambda state, epoch, core: (read.append(epoch), hashed(state, epoch, core))
    )
    core, same = core_of(), core_of()
    for epochs, again in (((0, 5), [0, 5]), ((9,), [9]), ((), []), ((5, 7), [5, 7, 9]), ((0,), [0, 5, 7, 9])):
        batch = updates(30, epochs=epochs or (0,))
        if epochs:
            core.add(batch)
            same.add(batch)
        read.clear()
        found = core.digest()
        assert read == again
        assert found == core_module.digest(same.cores().items())
    core.forget(range(LAYERS), [5])
    same.forget(range(LAYERS), [5])
    assert core.digest() == core_module.digest(same.cores().items())
