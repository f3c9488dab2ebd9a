"""Tests that the remaining nodes of a run end with the same model, bit by bit, whatever happens to the other
nodes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from sfnode.store.data_folder import Layout
from sfnode.store.log import UpdateLog
from sfprotocol import wire_codec
from sfprotocol.messages import ELECTED_TERMS, Card
from tests.processes import course
from tests.processes.course import BUDGET, NAMES, STEPS, SURVIVORS, Course, length
from tests.processes.helpers import here, nodes

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

COMPLETE = (*SURVIVORS, "newcomer", "relay")
"""Nodes that run at the end, or start later."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="module")
def seen(home: Path) -> Course:
    """The finished course of the swarm."""
    with nodes(home) as make:
        return course.run(home, make)


@pytest.fixture(scope="module")
def audits(seen: Course) -> dict[str, Any]:
    """The output of `sfnode verify --json` for the log of every node, also of the relay and of ended
    nodes."""
    return {
        name: json.loads(here("verify", "--as-of-now", "--json", "--data-dir", node.folder))
        for name, node in seen.nodes.items()
    }


@pytest.fixture(scope="module")
def models(home: Path, seen: Course) -> dict[str, Path]:
    """The output of `sfnode export` for two nodes: one that ran all the time, and one that replayed the
    log."""
    outs = {name: home / f"{name}-model" for name in ("revenant", "newcomer")}
    for name, out in outs.items():
        here("export", "--out", out, "--data-dir", seen.nodes[name].folder)
    return outs


def test_all_remaining_nodes_have_the_same_digest_and_the_same_core(seen: Course) -> None:
    assert {status.known for status in seen.final.values()} == {seen.final["relay"].known}
    assert len({status.digest for status in seen.final.values()}) == 1
    assert len({core.core_digest for core in seen.cores.values()}) == 1
    assert {core.digest for core in seen.cores.values()} == {seen.final["relay"].digest}


def test_every_update_belongs_to_exactly_one_feed(seen: Course) -> None:
    for name, status in seen.final.items():
        assert sum(feed.updates for feed in seen.feeds[name]) == status.known


@pytest.mark.parametrize("name", COMPLETE)
def test_verifying_a_log_from_genesis_gives_the_digests_that_the_nodes_had(
    name: str, seen: Course, audits: dict[str, Any]
) -> None:
    assert audits[name]["digest"] == seen.final["relay"].digest
    assert audits[name]["core_digest"] == seen.cores["late"].core_digest
    assert audits[name]["updates"] == seen.final["relay"].known
    assert audits[name]["run_id"] == seen.manifest.run_id.hex()


def test_the_logs_of_nodes_that_left_early_verify_too(seen: Course, audits: dict[str, Any]) -> None:
    for name in ("leaver", "counted"):
        assert 0 < audits[name]["updates"] < seen.final["relay"].known


def test_a_killed_node_continues_its_feed_and_has_lost_nothing(seen: Course) -> None:
    before, after = seen.killed, seen.back
    assert (after.origin, after.incarnation) == (before.origin, before.incarnation)
    assert 0 < seen.logged < after.contributed
    of_the_key = [feed for feed in seen.feeds["late"] if feed.origin == before.origin]
    assert seen.final["revenant"].contributed == sum(feed.updates for feed in of_the_key), "the copy's, too"
    assert length(seen.feeds["late"], before) >= seen.logged


def test_a_copied_folder_beside_its_original_gets_a_feed_of_its_own(seen: Course) -> None:
    original, copy = seen.final["revenant"], seen.final["copy"]
    assert copy.origin == original.origin
    assert copy.incarnation != original.incarnation
    assert 0 < length(seen.feeds["revenant"], copy) <= copy.own_updates


def test_a_latecomer_needs_nothing_but_an_address(seen: Course) -> None:
    late = seen.final["late"]
    assert late.run_id == seen.manifest.run_id.hex()
    assert length(seen.feeds["relay"], late) == late.contributed > 0


def test_a_newcomer_learns_the_name_of_a_trainer_that_has_left(seen: Course) -> None:
    log = Layout(seen.nodes["newcomer"].folder).log
    with UpdateLog.open(log, seen.manifest.run_id, read_only=True) as newcomers:
        cards = [wire_codec.decode(card.frame) for card in newcomers.cards()]
    assert [(card.feed.origin.hex(), card.name, card.team) for card in cards if isinstance(card, Card)] == [
        (seen.counted_origin, *NAMES)
    ]


def test_a_node_with_a_number_of_steps_makes_exactly_those_and_leaves(seen: Course) -> None:
    feeds = [feed for feed in seen.feeds["relay"] if feed.origin == seen.counted_origin]
    assert [feed.updates for feed in feeds] == [STEPS]
    assert seen.endings["counted"].status == 0


def test_a_node_that_stays_until_the_run_is_complete_leaves_then(
    seen: Course, audits: dict[str, Any]
) -> None:
    assert seen.endings["steady"].status == 0
    # not the digest of its whole log: updates that count no more may reach the others after it has left
    assert audits["steady"]["seals"] == audits["relay"]["seals"]


def test_a_node_says_once_that_the_run_is_complete_what_has_become_better_and_whose_work_it_was(
    seen: Course,
) -> None:
    said = seen.nodes["steady"].output()
    assert said.count("The run reviews is complete.\n") == 1
    assert len(re.findall(r"INFO    complete  ", said)) <= 1
    left = seen.nodes["counted"].output()
    assert left.count("You have left the run reviews; it goes on without you.\n") == 1
    assert re.search(rf"\n  Your work: {STEPS} updates, [\d.]+ % of all, in ", left)
    for card in (said, left):  # on a busy machine the run may end before one of these nodes makes an update
        assert ("\n  Your work: " in card) == ("sfnode log --why " in card)
        assert re.search(r"\n  ask the model +sfnode use --data-dir ", card)


def test_a_node_survives_the_death_of_its_network_daemon(seen: Course, audits: dict[str, Any]) -> None:
    assert "restarting it" in seen.nodes["steady"].output()
    assert audits["steady"]["seals"]["checked"] == seen.organised["relay"].sealed


def test_another_organiser_whom_the_recovery_key_has_named_ends_the_run(seen: Course) -> None:
    assert all((said.term, said.complete) == (ELECTED_TERMS, True) for said in seen.organised.values())
    assert {name: said.organiser for name, said in seen.organised.items()} == {
        **dict.fromkeys(seen.organised), "revenant": "stopped", "late": "organising"
    }  # fmt: skip


def test_all_nodes_know_the_same_decisions_and_lack_nothing_that_counts(seen: Course) -> None:
    said = list(seen.organised.values())
    assert len({(one.decisions, one.chain, one.counted) for one in said}) == 1
    assert {one.behind for one in said} == {0}
    assert 0 < said[0].counted <= seen.final["relay"].known


@pytest.mark.parametrize("name", COMPLETE)
def test_every_seal_is_checked_anew_from_a_log(name: str, seen: Course, audits: dict[str, Any]) -> None:
    seals = audits[name]["seals"]
    assert seals["checked"] == seals["sealed"] == seen.organised["relay"].sealed
    assert seals["behind"] == 0


def test_no_node_logs_a_traceback(seen: Course) -> None:
    for node in seen.nodes.values():
        assert "Traceback" not in node.output()


def test_the_status_of_a_running_node_loads_no_heavy_library(seen: Course) -> None:
    said = dict(line.split(maxsplit=1) for line in seen.relay_says.stdout.splitlines())
    assert said["run"] == f"reviews ({seen.manifest.run_id.hex()[:16]})"
    assert said["state"].startswith("complete as relay")
    assert f"of {BUDGET:,} count" in said["updates"]
    assert f" {seen.final['relay'].known} are here" in said["updates"]
    assert said["address"] == seen.nodes["relay"].address()
    loaded = {line.rpartition("|")[2].strip() for line in seen.relay_says.stderr.splitlines()}
    assert "sfnode.control.client" in loaded
    heavy = {"torch", "transformers", "hivemind", "datasets", "numpy", "pydantic", "aiohttp"}
    assert not heavy & loaded


def test_a_relay_serves_a_newcomer_when_all_trainers_have_left(seen: Course, audits: dict[str, Any]) -> None:
    assert seen.endings["newcomer"].status == 0
    assert audits["newcomer"]["digest"] == seen.final["relay"].digest
    assert seen.final["relay"].role == "relay"
    assert seen.final["relay"].own_updates == 0


@pytest.mark.parametrize("name", ["leaver", "revenant", "copy", "relay"])
def test_a_signal_ends_a_node_soon_and_with_status_0(name: str, seen: Course) -> None:
    assert seen.endings[name].status == 0
    assert seen.endings[name].seconds < 5.0


def test_the_stop_command_waits_until_the_node_has_ended_with_status_0(seen: Course) -> None:
    assert (seen.stopped.returncode, seen.stopped.stdout) == (0, "left\n")
    assert seen.endings["late"].status == 0


def test_exported_weights_are_equal_and_transformers_loads_them(models: dict[str, Path]) -> None:
    first, second = (AutoModelForCausalLM.from_pretrained(folder) for folder in models.values())
    theirs = second.state_dict()
    for name, tensor in first.state_dict().items():
        torch.testing.assert_close(tensor, theirs[name], rtol=0, atol=1e-6)
    ids = AutoTokenizer.from_pretrained(models["newcomer"])("the film was", return_tensors="pt").input_ids
    assert torch.isfinite(first(input_ids=ids).logits).all()


def test_training_has_changed_the_model(seen: Course) -> None:
    result = json.loads(
        here(
            "eval", "--as-of-now", "--json", "--test-limit", 100, "--data-dir", seen.nodes["newcomer"].folder
        )
    )
    assert result["digest"] == seen.final["relay"].digest
    assert result["before"]["count"] == result["after"]["count"] == 100
    assert result["before"]["loss"] != result["after"]["loss"]
    assert 0 <= result["after"]["low"] <= result["after"]["value"] <= result["after"]["high"] <= 1
