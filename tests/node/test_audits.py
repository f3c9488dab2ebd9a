"""Audits by a running node, and of a folder's log; what the engine measures follows from the seed alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sfnode.errors import Code, UserError
from sfnode.manifest import Manifest
from sfnode.manifest.sections import Data, OrganisedSection
from sfnode.node import audits, organising
from sfnode.node.audits import Chosen, audit_folder
from sfnode.organising import organiser
from sfnode.organising.policy import OrganiserPolicy
from sfnode.schema.audits import Finding
from sfnode.schema.node_state import Wait
from sfnode.store.identity import Identity
from sfnode.store.log import UpdateLog
from sfnode.store.run_keys import organiser_key, write_key
from sfprotocol.seeds import update_seeds
from tests.node.helpers import Node, Result, SmallEngine, Swarm, manifest, scalar_of
from tests.store.helpers import Author

SwarmOf = Callable[..., Swarm]


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audits, "LOOK_INTERVAL", 0.01)


class Liar(SmallEngine):
    """Says the opposite of what it measures."""

    def step(self, seeds: Sequence[int], epoch: int) -> Result:
        found = super().step(seeds, epoch)
        return found._replace(scalars=tuple(-scalar for scalar in found.scalars))


def _with_little_work(policy_of: Callable[..., OrganiserPolicy], *said: Any) -> OrganiserPolicy:
    return replace(policy_of(*said), work_bits=4)


def lying(run: Manifest) -> SmallEngine:
    return Liar(run).go()


def origin_of(node: Node) -> str:
    assert node.machine.own
    return node.machine.own.origin.hex()


async def test_a_node_tells_of_whom_its_audits_refute(swarm: Swarm, caplog: pytest.LogCaptureFixture) -> None:
    a = await swarm.first(audit=0.5)
    honest = await swarm.join("b")
    swarm.node("c", make_engine=lying)
    liar = await swarm.join("c")
    await a.until(lambda: (said := a.node.status().audits) and said.refuted and said.confirmed)
    said = a.node.status()
    assert said.audits
    assert said.audits.refuted == [origin_of(liar)]
    assert (said.audits.confirmed, said.audits.undecided) == (1, 0)
    assert [alarm.code for alarm in said.alarms] == ["SF085"]
    assert origin_of(liar)[:16] in said.alarms[0].what
    assert f"SF085: the scalars of origin {origin_of(liar)[:16]}" in caplog.text
    assert honest.node.status().audits is None


@pytest.mark.parametrize("options", [{"role": "relay"}, {"shard": (0, 2)}, {"data": Path("mine.tsv")}])
async def test_who_cannot_draw_the_mini_batches_of_others_cannot_audit_them(
    swarm: Swarm, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.tsv").write_text("text\tlabel\ngood\t1\n")
    with pytest.raises(UserError, match="all of the run's public rows") as refused:
        await swarm.first(audit=0.05, **options)
    assert refused.value.code is Code.BAD_OPTION


async def test_an_organiser_may_revoke_whom_audits_refute_and_the_member_reads_why(
    swarm_of: SwarmOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(organising, "WORK_BITS", 4)
    monkeypatch.setattr(organising, "policy_of", partial(_with_little_work, organising.policy_of))
    monkeypatch.setattr(organiser, "LOOK_INTERVAL", 0.05)
    key = Identity.generate()
    said = OrganisedSection(
        organiser=key.public.hex(), deputies=(Identity.generate().public.hex(),), quota=400
    )
    fields = {"admission": "organised", "organised": said, "data": Data(train="none")}
    run = manifest(update_budget=100_000).model_copy(update=fields)
    write_key(key, organiser_key(run.run_id, tmp_path / "keys"))
    swarm = swarm_of(run)
    a = await swarm.first(organise=True, keys_dir=tmp_path / "keys", audit=0.5, audit_revokes=True)
    swarm.node("b", make_engine=lying)
    liar = await swarm.join("b")
    await liar.until(lambda: (wait := liar.node.status().wait) and wait.reason is Wait.REVOKED)
    wait = liar.node.status().wait
    assert wait
    assert "It says: Revoked: the scalars of origin" in wait.text
    await a.until(lambda: a.machine.may_compute)  # once a close has made room: who is revoked never may


# -- a folder ------------------------------------------------------------------------------------------


class FolderEngine(SmallEngine):
    """Remembers how many updates there were when it recomputed some."""

    dtype = "float32"

    def __init__(self, run: Manifest) -> None:
        super().__init__(run)
        self.go()
        self.at: list[int] = []
        self.closed = False

    def recompute(self, seeds: Sequence[int], epoch: int) -> Result:
        self.at.append(len(self.applied))
        return Result(tuple(map(scalar_of, seeds)))

    def close(self) -> None:
        self.closed = True


def test_a_folder_is_audited_at_states_between_which_its_updates_were_made(tmp_path: Path) -> None:
    run = manifest()
    honest, liar = Author(1, run_id=run.run_id), Author(2, run_id=run.run_id)
    engine = FolderEngine(run)
    with UpdateLog.open(tmp_path / "updates.sqlite", run.run_id) as log:
        for epoch in (0, 1):
            seeds = update_seeds(honest.key, 80 * epoch, 80).tolist()
            log.append([honest.write(map(scalar_of, seeds), epoch), liar.write([7] * 80, epoch)])
        result = audit_folder(run, log, tmp_path / "none", Chosen("", 64), lambda: engine)
    found = {one.origin: one for one in result.origins}
    true, false = found[honest.feed.origin.hex()], found[liar.feed.origin.hex()]
    assert (true.finding, true.disagreement, true.correlation) == (Finding.CONFIRMED, 0.0, pytest.approx(1.0))
    assert (false.finding, false.correlation) == (Finding.REFUTED, None)
    assert result.origins[0] is false  # the most doubtful comes first
    assert 0 < true.audited <= 64
    assert engine.at == sorted(engine.at)
    assert (engine.at[0] < 40, engine.at[-1] > 280, engine.closed) == (True, True, True)


def test_one_origin_alone_may_be_audited(tmp_path: Path) -> None:
    run = manifest()
    authors = [Author(number, run_id=run.run_id) for number in (1, 2)]
    with UpdateLog.open(tmp_path / "updates.sqlite", run.run_id) as log:
        log.append([author.write([7] * 40) for author in authors])
        chosen = Chosen(authors[1].feed.origin.hex()[:8], 16)
        result = audit_folder(run, log, tmp_path / "none", chosen, lambda: FolderEngine(run))
    assert [one.origin for one in result.origins] == [authors[1].feed.origin.hex()]


class Groups(FolderEngine):
    """Measures what depends on the whole group of an update."""

    def recompute(self, seeds: Sequence[int], epoch: int) -> Result:
        m = self.run.training.group
        return Result(
            tuple(self.measured(seeds[n - n % m : n - n % m + m], n % m) for n in range(len(seeds)))
        )

    @staticmethod
    def measured(group: Sequence[int], place: int) -> int:
        return scalar_of(sum(seed * (number + 1) for number, seed in enumerate(group)) + group[place])


def test_an_update_is_recomputed_with_its_whole_group_whatever_has_come_of_it(tmp_path: Path) -> None:
    """Begun in one epoch and ended in the next, or never."""
    run = manifest(group=8)
    author = Author(1, run_id=run.run_id)
    groups = [update_seeds(author.key, first, 8).tolist() for first in range(0, 48, 8)]
    scalars = [Groups.measured(group, place) for group in groups for place in range(8)]
    with UpdateLog.open(tmp_path / "updates.sqlite", run.run_id) as log:
        log.append([author.write(scalars[:13], 0)])
        log.append([author.write(scalars[13:45], 1)])
        result = audit_folder(run, log, tmp_path / "none", Chosen("", 64), lambda: Groups(run))
    (found,) = result.origins
    assert (found.disagreement, found.correlation, found.audited > 30) == (0.0, pytest.approx(1.0), True)
