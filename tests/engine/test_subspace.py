"""From seeds to directions: the integer rules, side by side for all targets, and the live core."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from sfnode.engine.subspace import CACHED_EPOCHS, ComputedBasis, Subspace, random_basis
from sfnode.manifest.sections import Target
from sfnode.models.perturbation import Directions
from sfprotocol.seeds import basis_signs, coordinates, update_seeds
from tests.engine.helpers import DEVICE

RUN = bytes(range(32))
RANK = 4
TARGETS = [
    Target(name=name, out_features=out, in_features=into)
    for name, out, into in (("wide", 3, 17), ("tall", 20, 5), ("vector", 6, 1))
]
SEEDS = update_seeds(9, 0, 7).tolist()


class Counted(ComputedBasis):
    """Remembers what it was asked for."""

    def __init__(self) -> None:
        random = random_basis(RUN, TARGETS, RANK, torch.device(DEVICE))
        super().__init__(random._sides, torch.device(DEVICE))
        self.asked: list[tuple[int, int]] = []

    def matrices(self, epoch: int, layer: int) -> tuple[Tensor, Tensor]:
        self.asked.append((epoch, layer))
        return super().matrices(epoch, layer)


class Made(NamedTuple):
    space: Subspace
    basis: Counted


def subspace(dtype: torch.dtype = torch.float32, *, live_core: bool = False) -> Made:
    basis = Counted()
    return Made(
        Subspace(basis, TARGETS, (RANK, RANK), torch.device(DEVICE), dtype, live_core=live_core), basis
    )


def copied(directions: Directions) -> Directions:
    """As they are now: the next ones are written over them."""
    u, v = (tuple(side.cpu().clone() for side in sides) for sides in (directions.u, directions.v))
    return directions._replace(u=u, v=v)


def same(one: Directions, other: Directions) -> bool:
    return all(torch.equal(*pair) for pair in zip((*one.u, *one.v), (*other.u, *other.v), strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("epoch", [0, 3])
def test_directions_are_signed_columns_of_the_bases(epoch: int, dtype: torch.dtype) -> None:
    found = copied(subspace(dtype).space.directions(SEEDS, epoch))
    assert (found.live, found.queries) == (0, len(SEEDS))
    row, column, sign = coordinates(np.array(SEEDS, np.uint64), len(TARGETS), RANK)
    assert set(sign.flatten().tolist()) == {-1, 1}
    for layer, target in enumerate(TARGETS):
        u = basis_signs(RUN, epoch, layer, "U", target.out_features, RANK)
        v = basis_signs(RUN, epoch, layer, "V", target.in_features, RANK)
        wanted_u = (u[:, row[:, layer]] * sign[:, layer]).T  # (q, out)
        assert torch.equal(found.u[layer], torch.from_numpy(wanted_u).to(dtype))
        assert torch.equal(found.v[layer], torch.from_numpy(v[:, column[:, layer]]).to(dtype))


def test_queries_at_once_are_those_one_by_one() -> None:
    space = subspace().space
    together = copied(space.directions(SEEDS, 1))
    for query, seed in enumerate(SEEDS):
        alone = copied(space.directions([seed], 1))
        chosen = slice(query, query + 1)
        own = Directions(tuple(u[chosen] for u in together.u), tuple(v[:, chosen] for v in together.v), 0)
        assert same(alone, own)


def test_directions_do_not_depend_on_which_epochs_were_used_before() -> None:
    fresh, used = subspace().space, subspace().space
    for epoch in (0, 5, 1, 2):
        used.directions(SEEDS, epoch)
    for epoch in (0, 2):
        assert same(copied(used.directions(SEEDS, epoch)), copied(fresh.directions(SEEDS, epoch)))


def test_bases_of_few_epochs_are_kept_and_those_are_the_last_used() -> None:
    space, basis = subspace()
    for epoch in range(CACHED_EPOCHS):
        space.columns(epoch)
    space.columns(0)
    once = len(basis.asked)
    assert once == CACHED_EPOCHS * len(TARGETS)
    space.columns(CACHED_EPOCHS)  # in the place of epoch 1
    space.columns(0)
    assert len(basis.asked) == once + len(TARGETS)
    space.columns(1)
    assert len(basis.asked) == once + 2 * len(TARGETS)


@pytest.mark.parametrize("cached", [True, False])
def test_a_targets_matrices_are_those_of_the_basis_cached_or_not(cached: bool) -> None:
    space, basis = subspace()
    if cached:
        space.columns(2)
    for layer in range(len(TARGETS)):
        for found, wanted in zip(space.matrices(2, layer), basis.matrices(2, layer), strict=True):
            assert found.dtype is torch.int8
            assert torch.equal(found, wanted)


def test_bases_that_are_expected_are_made_once_and_in_another_thread() -> None:
    space, basis = subspace()
    with ThreadPoolExecutor(1) as ahead:
        for _ in range(3):
            space.expect(1, ahead)
    assert len(basis.asked) == len(TARGETS)
    found = copied(space.directions(SEEDS, 1))
    assert len(basis.asked) == len(TARGETS)
    assert same(found, copied(subspace().space.directions(SEEDS, 1)))


def test_the_live_core_stays_while_queries_come_and_go() -> None:
    space = subspace(torch.bfloat16, live_core=True).space
    terms = [(torch.randn(t.out_features, RANK), torch.randn(t.in_features, RANK)) for t in TARGETS]
    for layer, (u, v) in enumerate(terms):
        space.set_live_core(layer, u, v)
    plain = subspace(torch.bfloat16).space
    for queries in (1, 5, 2, 2):
        found = copied(space.directions(SEEDS[:queries], 0))
        wanted = copied(plain.directions(SEEDS[:queries], 0))
        assert (found.live, found.queries) == (RANK, queries)
        for layer, (u, v) in enumerate(terms):
            assert torch.equal(found.u[layer][:RANK], u.t().bfloat16())
            assert torch.equal(found.v[layer][:, :RANK], v.bfloat16())
            assert torch.equal(found.u[layer][RANK:], wanted.u[layer])
            assert torch.equal(found.v[layer][:, RANK:], wanted.v[layer])


def test_the_live_core_is_empty_until_it_is_set() -> None:
    found = subspace(live_core=True).space.directions(SEEDS, 0)
    assert not any(u[:RANK].any() for u in found.u)
    assert not any(v[:, :RANK].any() for v in found.v)
