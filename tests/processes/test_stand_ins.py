"""A run whose organiser is gone for good goes on, without any action of a person (SPEC O21 to O23)."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest

from tests.processes.helpers import LOOPBACK, Node, nodes, printed_json, sfnode, until

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

TRAINER = (*LOOPBACK, "--set", "node.samples=0", "--limit", "cpu=25")
BUDGET = 4_000


def decides(home: Path, node: Node, *words: object) -> None:
    ended = sfnode(home, "organise", *words, "--data-dir", node.folder)
    assert ended.returncode == 0, ended.stderr


def term(node: Node) -> int:
    return node.until_organised("it answers", bool).term


def organises(node: Node) -> bool:
    return node.until_organised("it answers", bool).organiser == "organising"


def goes_on(members: list[Node], before: int) -> int:
    """Wait until every member knows a later term than `before`, and more counted updates than at that time.
    Return the number of counted updates."""
    for member in members:
        begun = member.until_organised("another organises", lambda status: status.term > before).counted
        counted = member.until_organised(
            "updates count again", lambda status, begun=begun: status.counted > begun
        ).counted
    return counted


def test_a_run_goes_on_without_its_organiser_which_comes_back_from_a_backup(tmp_path: Path) -> None:
    options = (
        f"training.update_budget={BUDGET}",
        "task.loss=plain",
        "init.measure=no",
        "organised.quota=100000",
    )
    said = (word for option in options for word in ("--set", option))
    made = sfnode(tmp_path, "init", "--model", "builtin:tiny", "--task", "reviews", *said)
    assert made.returncode == 0, made.stderr
    with nodes(tmp_path) as make:
        organiser = make("organiser", "--run", "run.toml", "--organise", *TRAINER).start()
        organiser.until("it trains", lambda status: status.own_updates > 0)
        link = printed_json(
            sfnode(tmp_path, "organise", "invite", "--uses", 9, "--data-dir", organiser.folder, "--json")
        )["link"]
        members = [make(name, link, *TRAINER).start() for name in ("b", "c", "d", "e")]
        for member in members:
            member.until(
                "it is a member", lambda status: status.organised and status.organised.member is not None
            )
        numbers = [member.status().organised.member for member in members]  # type: ignore[union-attr]
        for member in members[:2]:
            decides(tmp_path, member, "stand-in")
        until("all have offered", lambda: len(organiser.offers()) == 3)
        decides(tmp_path, organiser, "stand-ins", *numbers[:2])
        members[3].until_organised("all know who stands in", lambda status: len(status.stand_ins) == 3)
        members[3].until("all are here", lambda status: status.organised.stand_ins_here == 3)

        before = term(organiser)
        organiser.send(signal.SIGSTOP)  # as when a laptop sleeps
        shown = goes_on(members, before)
        organiser.send(signal.SIGCONT)
        organiser.until_organised("it stands by", lambda status: status.organiser == "standing by")

        leader = next(member for member in members if organises(member))
        leader.until("all are here", lambda status: status.organised.stand_ins_here == 3)
        others = {0, *numbers[:2]} - {numbers[members.index(leader)]}
        decides(tmp_path, leader, "stand-ins", *others)  # present stand-ins are named again
        before = term(leader)
        decides(tmp_path, leader, "hand-over", "--to", 0)
        organiser.until_organised("it organises again", lambda status: status.organiser == "organising")
        assert term(organiser) > before

        secret = tmp_path / "secret"
        secret.write_text("correct horse\n")
        keys = "--data-dir", organiser.folder, "--passphrase-file", secret
        backed_up = sfnode(tmp_path, "keys", "backup", "--out", "backup", *keys)
        assert backed_up.returncode == 0, backed_up.stderr
        before = term(organiser)
        organiser.end(signal.SIGKILL)
        shutil.rmtree(organiser.folder)
        shutil.rmtree(tmp_path / ".local/share/sfnode/keys")

        assert goes_on(members, before) >= shown

        restored = sfnode(tmp_path, "keys", "restore", "backup", *keys)
        assert restored.returncode == 0, restored.stderr
        way = printed_json(sfnode(tmp_path, "invite", "--data-dir", members[3].folder, "--json"))["link"]
        back = make("organiser", way, "--organise", *TRAINER).start()
        back.until_organised("it stands by", lambda status: status.organiser == "standing by")

        everyone = [*members, back]
        for one in everyone:
            one.until("the run is complete", lambda status: status.state == "complete")
        until(
            "all have the same", lambda: len({one.until("it answers", bool).digest for one in everyone}) == 1
        )
