"""Tests of `sfnode doctor` on broken machines, networks and peers: each finding has a cause and a fix."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import msgpack
import pytest

from sfnode.doctor import compute, network, peers
from sfnode.doctor import examination as examine
from sfnode.doctor.disk import look_at_disk
from sfnode.doctor.findings import CheckedCase, CheckFinding, Examination, Subject, number
from sfnode.doctor.network import look_at_ports
from sfnode.errors import UserError
from sfnode.limits import Limits
from sfnode.manifest import Manifest
from sfnode.manifest.sections import Data
from sfnode.models.model_files import EMBEDDED
from sfnode.node import equipment
from sfnode.store.data_folder import DataDir, Layout, open_data_dir
from sfnode.store.named_files import NamedFiles
from tests.doctor.helpers import Peer, TimeServer
from tests.models import hostile
from tests.transport.helpers import plain_peer
from tests.wording import has

DOCS = Path(__file__).parents[2] / "docs"

PATIENCE = 60.0

QM = "QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N"
"""Id of a peer that does not exist."""


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait long, as a machine that runs tests may be busy. Time few steps, and try no relay unless a test
    asks for that."""
    monkeypatch.setattr(compute, "MEASURED_STEPS", 2)
    monkeypatch.setattr(network, "public_ipv4", lambda: "9.9.9.9")
    monkeypatch.setattr(examine, "DEADLINE", PATIENCE)
    monkeypatch.setattr(peers, "HANDSHAKE_DEADLINE", 8.0)
    monkeypatch.setattr(peers, "MANIFEST_DEADLINE", PATIENCE)


@pytest.fixture
def case(tmp_path: Path) -> CheckedCase:
    return CheckedCase(
        data_dir=tmp_path / "node", device="cpu", dtype="auto", host_maddrs=("/ip4/127.0.0.1/tcp/0",)
    )


async def examined(case: CheckedCase, **changes: Any) -> Examination:
    return await examine.examine(case.model_copy(update=changes))


def about(examination: Examination, subject: Subject) -> list[CheckFinding]:
    return [one for one in examination.findings if one.number == number(subject)]


def only(examination: Examination, subject: Subject) -> CheckFinding:
    (finding,) = about(examination, subject)
    return finding


def judged(finding: CheckFinding | None, verdict: str, *words: str) -> CheckFinding:
    """Require this verdict, and a finding with these words."""
    assert finding
    assert finding.verdict == verdict, finding
    assert not [word for word in words if word not in finding.what], finding
    return finding


async def test_where_all_is_well_there_is_no_problem_and_the_speed_is_measured(
    case: CheckedCase, peer: Peer, run: Manifest, time_server: TimeServer
) -> None:
    address = await peer(run.canonical())
    result = await examined(case, peers=(address,), ntp=await time_server(0.5))
    assert [one for one in result.findings if one.verdict == "problem"] == []
    assert result.problems == 0
    assert re.search(
        r"name \d+ ms, TCP \d+ ms, libp2p \d+ ms, manifest \d+ ms", only(result, Subject.PEER).what
    )
    for subject, words in (
        (Subject.CLOCK, "0.50 s behind the time server 127.0.0.1"),
        (Subject.DHT, ""),
        (Subject.RUN, run.name),
        (Subject.VERSION, f"protocol {run.protocol}"),
    ):
        judged(only(result, subject), "ok", words)
    assert "at least" not in judged(only(result, Subject.MODEL_FIT), "ok").what, "parameters are counted"
    per_hour = re.search(r"about ([\d,]+) updates an hour", only(result, Subject.SPEED).what)
    assert per_hour
    assert int(per_hour[1].replace(",", "")) > 100
    assert not case.data_dir.exists(), "the doctor leaves nothing behind"


async def test_a_peer_of_hivemind_that_is_no_node_is_a_way_in_and_said_to_be_no_more() -> None:
    async with AsyncExitStack() as stack:
        plain = await stack.enter_async_context(plain_peer())
        caller = await network.start(stack)
        address = str((await plain.get_visible_maddrs())[0])
        seen = await peers.visit(address, partial(asyncio.sleep, 0, caller), None)
    assert seen.answers
    judged(seen.finding, "note", "Hivemind's DHT and no node: it leads to nodes of a run, and relays nothing")


async def test_every_way_in_which_a_peer_can_be_dead_is_named_and_in_time(
    case: CheckedCase, peer: Peer, run: Manifest, mute: int, closed: int, gibberish: int
) -> None:
    later = await peer(msgpack.packb(msgpack.unpackb(run.canonical()) | {"protocol": 99}))
    silent = await peer(None)
    earlier = await peer(run.model_copy(update={"protocol": 1}).canonical())
    other = await peer(run.model_copy(update={"name": "another"}).canonical())
    file = case.data_dir.parent / "run.toml"
    file.write_text(run.to_toml())
    impostor = silent.rpartition("/")[0] + "/" + QM
    visited = {
        f"/ip4/127.0.0.1/tcp/{closed}/p2p/{QM}": Subject.PEER_TCP,
        f"/dns4/nowhere.invalid/tcp/4001/p2p/{QM}": Subject.PEER_NAME,
        f"/ip4/127.0.0.1/tcp/{mute}/p2p/{QM}": Subject.PEER_HANDSHAKE,
        f"/ip4/127.0.0.1/tcp/{gibberish}/p2p/{QM}": Subject.PEER_HANDSHAKE,
        impostor: Subject.PEER_HANDSHAKE,
        silent: Subject.PEER_MANIFEST,
        later: Subject.VERSION,
        earlier: Subject.VERSION,
        other: Subject.PEER_RUN,
        "/ip4/127.0.0.1/tcp/1": Subject.PEER,
        f"/ip4/127.0.0.1/tcp/70000/p2p/{QM}": Subject.PEER,
    }
    result = await examined(case, peers=tuple(visited), run=file)
    for address, subject in visited.items():
        findings = [one for one in about(result, subject) if address in one.what]
        assert [one.verdict for one in findings] == ["problem"], (address, result.findings)
        assert findings[0].fix
    (mistaken,) = [one.what for one in about(result, Subject.PEER_HANDSHAKE) if impostor in one.what]
    assert mistaken.endswith(f"another key, by which it is {silent.rpartition('/')[2]}")
    assert about(result, Subject.UNFINISHED) == []
    assert result.seconds < PATIENCE, "no dead peer is waited for any longer"


async def test_a_dead_peer_is_no_problem_while_another_one_answers(
    case: CheckedCase, peer: Peer, run: Manifest, closed: int
) -> None:
    address = await peer(run.canonical())
    result = await examined(case, peers=(address, f"/ip4/127.0.0.1/tcp/{closed}/p2p/{QM}"))
    judged(only(result, Subject.PEER), "ok")
    judged(only(result, Subject.PEER_TCP), "note", "nothing listens on that port")
    judged(only(result, Subject.CLOCK), "ok", "a peer's clock")
    assert result.problems == 0


async def test_a_folder_of_another_run_is_found_as_join_would(case: CheckedCase, run: Manifest) -> None:
    case.data_dir.mkdir()
    (case.data_dir / "run.toml").write_text(run.model_copy(update={"name": "another"}).to_toml())
    given = case.data_dir.parent / "run.toml"
    given.write_text(run.to_toml())
    judged(only(await examined(case, run=given), Subject.RUN), "problem", "belongs to run")


# -- being called ---------------------------------------------------------------------------------------


@pytest.fixture
def behind_nat(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the machine have no public address, as most machines."""
    monkeypatch.setattr(network, "public_ipv4", lambda: None)


@pytest.mark.usefixtures("behind_nat")
async def test_that_a_peer_can_be_the_relay_of_this_machine_is_really_tried(
    case: CheckedCase, peer: Peer, run: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examine, "RELAY_DEADLINE", PATIENCE)
    address = await peer(run.canonical())
    finding = only(await examined(case, peers=(address,)), Subject.REACH)
    judged(finding, "note", f"through {address.rpartition('/')[2]} they can")
    assert finding.what.endswith("which is the only one: without it nobody new does")
    assert finding.fix.startswith("Join with --auto-relay and name a second peer that relays, or forward")


@pytest.mark.usefixtures("behind_nat")
async def test_where_no_peer_relays_in_time_one_is_told_to_forward_a_port(
    case: CheckedCase, peer: Peer, run: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examine, "RELAY_DEADLINE", 0.01)
    address = await peer(run.canonical())
    finding = only(await examined(case, peers=(address,)), Subject.REACH)
    judged(finding, "note", "nor within 0.01 s through a peer")
    assert finding.fix.startswith("Forward a port")


# -- the clock -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ahead", "verdict"), [(600, "problem"), (-600, "problem"), (10, "note"), (0, "ok")])
async def test_a_clock_that_is_wrong_by_minutes_is_a_problem(
    time_server: TimeServer, ahead: float, verdict: str
) -> None:
    host, port = await time_server(ahead)
    way = "behind" if ahead > 0 else "ahead of" if ahead else ""
    judged(network.judge(await network.ntp_ahead(host, port), host), verdict, way)


async def test_a_time_server_that_does_not_know_the_time_is_not_believed(
    time_server: TimeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "NTP_DEADLINE", 0.2)
    with pytest.raises(TimeoutError):
        await network.ntp_ahead(*await time_server(600, stratum=0))


def test_without_a_time_server_the_peers_clocks_count() -> None:
    judged(network.judge_by_peers([300.0, 301.0, 0.0]), "problem")
    judged(network.judge_by_peers([0.1, 0.2, 900.0]), "ok")
    judged(network.judge_by_peers([]), "note")


# -- the disk ------------------------------------------------------------------------------------------


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """Return the path of a file system of 256 KiB."""
    place = tmp_path / "tiny"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", place], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("only root may mount a file system here")
    yield place
    subprocess.run(["umount", place], check=True)


def by_subject(findings: list[CheckFinding]) -> dict[str, CheckFinding]:
    return {one.subject: one for one in findings}


def test_a_full_disk_is_found_before_a_node_runs_into_it(tiny_disk: Path) -> None:
    found = by_subject(look_at_disk(tiny_disk / "node", None))
    judged(found["disk-space"], "problem")
    judged(found["data-folder"], "problem", "No space left")
    assert list(tiny_disk.iterdir()) == []


def test_a_disk_too_small_for_the_log_of_this_run_is_a_problem(tmp_path: Path, run: Manifest) -> None:
    budget = {"update_budget": (1 << 32) - 1, "epoch_updates": 1 << 24}
    long = run.model_copy(update={"training": run.training.model_copy(update=budget)})
    free = os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize
    verdict = by_subject(look_at_disk(tmp_path, long))["disk-space"].verdict
    assert verdict == ("problem" if free < 12 * (1 << 32) else "ok")


def test_a_folder_in_which_a_node_runs_is_said_to_be_in_use(tmp_path: Path) -> None:
    with open_data_dir(tmp_path / "node"):
        finding = by_subject(look_at_disk(tmp_path / "node", None))["data-folder"]
    judged(finding, "note", f"process {os.getpid()}")


def test_a_data_folder_that_is_a_file_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "node").write_text("not a folder")
    judged(by_subject(look_at_disk(tmp_path / "node", None))["data-folder"], "problem")


# -- ports ---------------------------------------------------------------------------------------------


def test_the_port_of_the_node_that_runs_in_this_folder_is_no_problem(mute: int, tmp_path: Path) -> None:
    with open_data_dir(tmp_path / "node"):
        (finding,) = look_at_ports((f"/ip4/127.0.0.1/tcp/{mute}",), tmp_path / "node")
    assert finding.verdict == "ok"


@pytest.mark.parametrize("maddr", ["/ip4/203.0.113.7/tcp/0", "/ip4/127.0.0.1", "nonsense"])
def test_an_address_that_this_machine_cannot_listen_on_is_a_problem(maddr: str, tmp_path: Path) -> None:
    (finding,) = look_at_ports((maddr,), tmp_path)
    judged(finding, "problem", maddr)


def test_a_free_port_is_fine(closed: int, tmp_path: Path) -> None:
    (finding,) = look_at_ports((f"/ip4/127.0.0.1/tcp/{closed}",), tmp_path)
    assert finding.verdict == "ok"
    with socket.create_server(("127.0.0.1", closed)):
        pass  # and stays free


@pytest.mark.parametrize(
    ("ipv4", "ipv6", "listens", "verdict"),
    [
        ("192.0.2.7", None, "/ip4/0.0.0.0/tcp/0", "note"),
        ("192.0.2.7", "2606:4700::1", "/ip4/0.0.0.0/tcp/0", "ok"),
        (None, "2606:4700::1", "/ip4/0.0.0.0/tcp/0", "problem"),
        (None, "2606:4700::1", "/ip6/::/tcp/0", "note"),
    ],
)
def test_a_machine_with_ipv6_alone_has_to_listen_on_it(
    ipv4: str | None, ipv6: str | None, listens: str, verdict: str
) -> None:
    finding = network.judge_ipv6(ipv4, ipv6, [listens])
    assert finding.verdict == verdict
    assert ("IPv6 alone" in finding.what) == (ipv4 is None)


@pytest.mark.parametrize(("most", "verdict"), [(1024, "ok"), (256, "note"), (63, "problem")])
def test_a_small_limit_of_descriptors_is_told(most: int, verdict: str) -> None:
    """The check runs in a separate process, because a lower limit cannot be raised again."""
    asked = f"resource.setrlimit(resource.RLIMIT_NOFILE, (min({most}, 64), {most}))"
    look = "from sfnode.doctor import compute; print(compute.look_at_descriptors().verdict)"
    code = f"import resource; {asked}; {look}"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.stdout.strip() == verdict, ended.stderr


def test_a_name_that_takes_long_to_resolve_is_worth_a_note() -> None:
    finding = peers._slow_name(peers.tcp_endpoint(f"/dns4/example.org/tcp/4001/p2p/{QM}"), 5.2)
    assert (finding.subject, finding.verdict) == ("peer-name", "note")
    assert "the name example.org took 5.2 s to resolve" in finding.what


def test_the_wait_for_a_model_that_this_node_alone_gives_is_told(case: CheckedCase, run: Manifest) -> None:
    shape = case.model_copy(update={"source": "shape:opt-125m"})
    given = run.model_copy(update={"model": run.model.model_copy(update={"listing": "00" * 32})})
    (finding,) = compute.look_at_uplink(shape, given)
    judged(finding, "ok", "250 MB, from here in 3 min 20 s")
    slow = shape.model_copy(update={"limits": Limits(upload_rate=100_000)})
    (finding,) = compute.look_at_uplink(slow, given)
    judged(finding, "note", "from here in 41 min at upload_rate")
    assert compute.look_at_uplink(shape.model_copy(update={"share_model": False}), given) == []
    assert compute.look_at_uplink(shape, run) == []


# -- the model -----------------------------------------------------------------------------------------


def test_a_model_that_is_too_large_is_a_problem_with_its_size(case: CheckedCase, run: Manifest) -> None:
    enormous = tuple(f"layer{index}:16777216x65536" for index in range(8))
    model = run.model.model_copy(update={"source": "nobody/enormous", "targets": enormous})
    (finding,) = compute.look_at_fit(case, run.model_copy(update={"model": model}))
    judged(finding, "problem", "at least 8796.1 billion parameters and takes at least 35.2 TB in float32")


def test_a_narrower_format_is_proposed_where_it_would_do() -> None:
    finding = judged(compute._fit((7_000_000_000, True), "float32", 16 << 30, "cpu"), "problem")
    assert "--dtype bfloat16 or int8 or nf4" in finding.fix
    judged(compute._fit((7_000_000_000, True), "bfloat16", 16 << 30, "cpu"), "ok")


def test_a_model_that_is_named_and_not_here_is_a_problem_and_not_passed_over(
    case: CheckedCase, run: Manifest
) -> None:
    elsewhere = case.model_copy(update={"source": "somebody/elses", "measure": True})
    for finding in (*compute.look_at_fit(elsewhere, run), compute.look_at_speed(elsewhere, run)):
        judged(finding, "problem", "somebody/elses")


def test_the_speed_of_a_shape_is_for_the_bench_to_measure(case: CheckedCase, run: Manifest) -> None:
    shape = case.model_copy(update={"source": "shape:opt-125m", "measure": True})
    finding = judged(compute.look_at_speed(shape, run), "note")
    assert "sfnode lab bench --model shape:opt-125m" in finding.fix


def test_a_tokenizer_of_another_model_is_found_whatever_the_models_size_and_wherever_the_data_are(
    case: CheckedCase, run: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = hostile.tokenizer(tmp_path / "model", added_tokens=[hostile.added(17, "film!")])
    data = Data(train="rows.tsv", digests={"train": "00" * 32})
    for most in (compute.AT_HAND, 0):
        monkeypatch.setattr(compute, "AT_HAND", most)
        finding = compute.look_at_speed(
            case.model_copy(update={"source": str(folder)}), run.model_copy(update={"data": data})
        )
        judged(finding, "problem", "a trainer would not start: model and tokenizer in ", "('film!')")


def test_whatever_join_would_refuse_is_a_problem(case: CheckedCase, run: Manifest, tmp_path: Path) -> None:
    """The case here is the folder of another model, which the owner of this machine has named before."""
    folder = Path(shutil.copytree(EMBEDDED / "tiny", tmp_path / "other"))
    (folder / "config.json").write_text((folder / "config.json").read_text() + " ")
    layout = Layout(case.data_dir)
    layout.path.mkdir()
    NamedFiles(model=folder).keep(layout)
    finding = judged(compute.look_at_speed(case, run), "problem", "a trainer would not start: ")
    with pytest.raises(UserError) as refused:
        equipment.equipped(case, run, DataDir(layout.path, 0))
    assert refused.value.what in finding.what


def test_data_that_come_from_peers_are_no_problem_before_one_has_joined(
    case: CheckedCase, run: Manifest
) -> None:
    data = Data(train="rows.tsv", digests={"train": "00" * 32})
    finding = compute.look_at_speed(case, run.model_copy(update={"data": data}))
    judged(finding, "note", "the run's data come from its nodes")


@pytest.mark.parametrize("at_hand", [compute.AT_HAND, 0])
def test_data_that_are_not_there_are_found_whatever_the_models_size(
    at_hand: int, case: CheckedCase, run: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compute, "AT_HAND", at_hand)
    gone = run.model_copy(update={"data": run.data.model_copy(update={"train": str(tmp_path / "no.tsv")})})
    judged(compute.look_at_speed(case, gone), "problem", "no.tsv")


# -- the whole -----------------------------------------------------------------------------------------


async def test_a_check_that_hangs_or_fails_does_not_take_the_others_with_it(
    case: CheckedCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> CheckFinding:
        raise RuntimeError("broken")

    async def hang(*_: object) -> float:
        await examine.asyncio.sleep(3600)
        return 0.0

    monkeypatch.setattr(compute, "look_at_memory", fail)
    monkeypatch.setattr(network, "ntp_ahead", hang)
    monkeypatch.setattr(examine, "DEADLINE", 3.0)
    result = await examined(case, ntp=("127.0.0.1", 1))
    words = " ".join(one.what for one in about(result, Subject.UNFINISHED))
    has(words, "the check of the clock did not end", "the check of the memory failed: RuntimeError: broken")
    assert only(result, Subject.DEVICE).verdict == "ok"


def test_every_number_is_documented_and_every_entry_is_a_number() -> None:
    _, *parts = re.split(r"^## ", (DOCS / "doctor.md").read_text(), flags=re.MULTILINE)
    entries = {heading: text for heading, _, text in (part.partition("\n") for part in parts)}
    numbered = {heading: text for heading, text in entries.items() if heading.startswith("SD")}
    assert list(entries) == list(numbered), "nothing else is a section of its own"
    assert list(numbered) == [f"{number(one)} {one.name.lower().replace('_', '-')}" for one in Subject]
    assert [heading for heading, text in numbered.items() if len(text.split()) < 12] == []


def test_every_replica_has_to_fit_and_every_device_is_named(case: CheckedCase, run: Manifest) -> None:
    size = (7_000_000_000, True)
    judged(compute._fit(size, "bfloat16", 16 << 30, "cpu", replicas=2), "problem", "2 times")
    both = case.model_copy(update={"device": "cpu,cpu", "source": "builtin:tiny"})
    assert [finding.verdict for finding in compute.look_at_fit(both, run)] == ["ok"]
    found = compute.look_at_devices(["cpu", "cuda:77", "cuda:77"])
    assert len(found) == 2
    judged(found[-1], "problem", "cuda:77")
    judged(compute.look_at_speed(both, run), "ok", "on cpu,cpu")
