"""An organised run in whole nodes: the organiser admits, closes and seals, and a newcomer counts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sfnode.errors import Code, UserError
from sfnode.manifest import Organised
from sfnode.node import organising
from sfnode.organising.organiser import State
from sfnode.store.identity import Identity
from sfnode.store.run_keys import organiser_key, write_key
from sfprotocol.decisions import Finish, Revoke, Void
from tests.node.helpers import Node, Swarm, manifest

SwarmOf = Callable[..., Swarm]
BITS = 4


@pytest.fixture(autouse=True)
def little_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Proofs of work take no time."""
    policy_of = organising.policy_of
    monkeypatch.setattr(organising, "WORK_BITS", BITS)
    monkeypatch.setattr(
        organising, "policy_of", lambda run: organising.replace(policy_of(run), work_bits=BITS)
    )
    monkeypatch.setattr(organising, "LOOK_INTERVAL", 0.05)


@pytest.fixture
def organised(swarm_of: SwarmOf, tmp_path: Path) -> Swarm:
    """A run whose organiser's key lies in `tmp_path / "keys"`."""
    key, deputy = Identity.generate(), Identity.generate()
    said = Organised(organiser=key.public.hex(), deputies=(deputy.public.hex(),), quota=120)
    run = manifest(update_budget=400).model_copy(update={"admission": "organised", "organised": said})
    write_key(key, organiser_key(run.run_id, tmp_path / "keys"))
    return swarm_of(run)


def options(tmp_path: Path) -> dict[str, Any]:
    return {"organise": True, "keys_dir": tmp_path / "keys"}


def counted(node: Node) -> int:
    assert node.machine.organised
    return node.machine.organised.counting.counted


async def test_a_newcomer_is_admitted_and_what_is_sealed_counts_everywhere(
    organised: Swarm, tmp_path: Path
) -> None:
    a = await organised.first(**options(tmp_path))
    b = await organised.join("b")
    await b.until(lambda: b.machine.may_compute)
    await a.until(lambda: a.machine.complete)
    await b.until(lambda: b.machine.complete)
    await a.until(lambda: a.digest == b.digest)
    assert counted(a) == counted(b) >= 400
    assert a.machine.organised.counting.sealed > 1
    digests = [await node.node.core_status() for node in (a, b)]
    assert digests[0].core_digest == digests[1].core_digest


async def test_the_owner_decides_and_is_told_what_would_change_nothing(
    organised: Swarm, tmp_path: Path
) -> None:
    a = await organised.first(**options(tmp_path))
    desk = a.node.organising
    assert desk
    await a.until(lambda: a.machine.may_compute)
    assert desk.state is State.ORGANISING
    assert await desk.wish(Void(0, 0, ())) is not None
    assert await desk.wish(Revoke(0, 0)) is None
    assert not a.machine.may_compute
    assert await desk.wish(Finish()) is None
    assert a.machine.complete


async def test_after_a_restart_the_run_goes_on_from_what_was_decided(
    organised: Swarm, tmp_path: Path
) -> None:
    a = await organised.first(**options(tmp_path))
    await a.until(lambda: a.machine.may_compute)
    stop = a.machine.organised.control.feed.stop
    await a.stop()
    a = await organised.first(**options(tmp_path), alone=True)
    assert a.machine.organised.control.feed.stop >= stop
    assert a.machine.may_compute
    assert await a.node.organising.wish(Finish()) is None


async def test_an_encrypted_key_is_opened_by_the_first_line_of_a_file(
    organised: Swarm, tmp_path: Path
) -> None:
    path = organiser_key(organised.run.run_id, tmp_path / "keys")
    Identity.read(path).write(path, b"horse")
    with pytest.raises(UserError) as locked:
        await organised.first(**options(tmp_path))
    assert locked.value.code is Code.WRONG_PASSPHRASE
    (tmp_path / "secret").write_text("horse\n")
    a = await organised.first(**options(tmp_path), passphrase_file=tmp_path / "secret")
    await a.until(lambda: a.machine.may_compute)


async def test_only_the_key_of_the_run_organises_it(
    organised: Swarm, swarm_of: SwarmOf, tmp_path: Path
) -> None:
    with pytest.raises(UserError) as missing:
        await organised.first(organise=True, keys_dir=tmp_path / "elsewhere")
    assert missing.value.code is Code.KEY_NOT_FOUND
    await organised.first(**options(tmp_path))
    with pytest.raises(UserError) as in_use:
        await organised.node("second").start(organised.run_file, **options(tmp_path))
    assert in_use.value.code is Code.KEY_IN_USE
    open_run = swarm_of(manifest("open"))
    with pytest.raises(UserError, match="--organise") as refused:
        await open_run.node("o").start(open_run.run_file, **options(tmp_path))
    assert refused.value.code is Code.BAD_OPTION
