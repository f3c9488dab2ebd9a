"""An organiser that restarts continues, or tells what it waits for and how to end the wait."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from sflab.simulator.world import runs
from sflab.simulator.world.computer import Computer
from sflab.simulator.world.disk import Files, copy, put_back
from sflab.simulator.world.runs import signing_key
from sflab.simulator.world.world import World
from sfnode.cli.ending import _budget_for_others
from sfnode.errors import Code
from sfnode.node.state import describe
from sfnode.organising.organiser import SETTLE_TIME, OrganiserState
from sfnode.schema.node_state import Wait
from sfprotocol.decisions import Budget


@pytest.fixture
def world() -> Iterator[World]:
    """World with a run whose organiser "a" trains alone."""
    with closing(World(0, manifest=runs.manifest(0), policy=runs.POLICY, managed=True)) as world:
        world.add("a").give_key(signing_key(0, runs.ORGANISER))
        world.do(world["a"].start)
        world.run_until(5)
        assert sealed_after(world, 10)
        yield world


def sealed_after(world: World, seconds: float) -> int:
    """Let all living nodes make four updates a second for some time. Return the number of new seals."""
    before, end = world["a"].organised.run_state.sealed, world.now + seconds
    while world.now < end:
        for node in world.living():
            world.do(node.compute, 1)
        world.run_until(world.now + 0.25)
    return world["a"].organised.run_state.sealed - before


def restart(world: World, node: Computer) -> None:
    node.crash()
    world.run_until(world.now + 1)
    world.do(node.start)
    world.run_until(world.now + 5)


def join(world: World, name: str) -> Computer:
    node = world.add(name)
    world.want(node, world["a"])
    world.do(node.start)
    world.run_until(world.now + 5)
    return node


def test_who_has_never_admitted_anybody_else_goes_on_at_once(world: World) -> None:
    restart(world, world["a"])
    assert sealed_after(world, 30)


def test_a_run_that_one_node_has_completed_alone_says_how_others_go_on_with_it(world: World) -> None:
    """The run may be complete before anybody could be invited."""
    a = world["a"]
    node: Any = a.node
    assert _budget_for_others(node) is None
    a.decide(Budget(a.organised.run_state.counted + 20))
    assert sealed_after(world, 10)
    assert a.organised.run_state.complete
    more = _budget_for_others(node)
    assert more == 2 * a.organised.run_state.budget
    assert sealed_after(world, 10) == 0
    counted = a.organised.run_state.counted
    a.decide(Budget(10 * more))
    b = join(world, "b")
    sealed_after(world, 10)
    assert a.organised.run_state.counted > counted
    assert b.said
    assert _budget_for_others(node) is None


@pytest.fixture
def old(world: World) -> Files:
    """A backup of "a" that lacks decisions which "b" has by now."""
    join(world, "b")
    assert sealed_after(world, 12)
    files = copy(world["a"].layout)
    assert sealed_after(world, 12)
    return files


def restore(world: World, files: Files) -> None:
    """Restart "a" with the files of a backup."""
    a = world["a"]
    a.crash()
    put_back(a.layout, files)
    a.forgets()
    world.do(a.start)


def signs(world: World) -> bool:
    organising = world["a"].running.organising
    assert organising
    return organising.state is OrganiserState.ORGANISING


def test_an_organiser_whose_members_are_away_goes_on_within_half_a_minute(world: World) -> None:
    """Everything that it ever signed was in this file before anybody received it."""
    b = join(world, "b")
    assert sealed_after(world, 20)
    b.crash()
    restart(world, world["a"])
    assert not sealed_after(world, SETTLE_TIME - 10)
    assert sealed_after(world, 30)


def test_an_old_copy_says_within_seconds_what_it_waits_for_and_which_option_ends_that(
    world: World, old: Files
) -> None:
    a, b = world["a"], world["b"]
    b.crash()
    a.layout.log.rename(a.layout.path / "lost")  # its inode is not given to another file
    restore(world, old)
    world.run_until(world.now + 10)
    (alarm,) = describe(a.running).alarms
    assert alarm.code == f"SF{Code.ORGANISER_SILENT:03d}"
    assert "this folder may lack decisions, as it is a copy" in alarm.what
    assert "`--organise --set organise.alone=yes`" in alarm.fix
    assert not sealed_after(world, 10 * SETTLE_TIME)
    said = describe(a.running)
    assert said.wait
    assert said.wait.reason is Wait.ORGANISER
    assert alarm.fix in said.wait.text
    world.do(b.start)
    world.run_until(world.now + SETTLE_TIME + 15)
    assert signs(world)
    assert describe(a.running).alarms == []
    assert sealed_after(world, 30)
    assert not a.organised.control.feed.frozen


def test_a_restarted_machine_goes_on_and_one_that_was_set_back_forks_nothing_while_a_neighbour_has_more(
    world: World, old: Files
) -> None:
    """Its files are its own earlier ones, and nothing in them shows that they are old. After a restart with
    its newest files, when the neighbour has all, it waits for nobody else."""
    a, b = world["a"], world["b"]
    restart(world, a)
    assert describe(a.running).alarms == []
    assert sealed_after(world, SETTLE_TIME + 10)
    had = b.organised.control.feed.stop
    restore(world, old)
    world.run_until(world.now + 10)
    assert a.organised.control.feed.stop >= had
    assert not signs(world)
    b.crash()  # what has come from it tells that this log does not have all
    world.run_until(world.now + 10 * SETTLE_TIME)
    assert not signs(world)
    world.do(b.start)
    assert sealed_after(world, SETTLE_TIME + 30)
    assert not a.organised.control.feed.frozen
