"""The guides, followed word for word: the commands in their `sh` blocks are run, each once, beside a node.

A block marked `sh elsewhere: REASON` is not run; at most one in ten is marked. The commands of other pages
are checked in `tests/test_pages.py`.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes.helpers import LOOPBACK, Command, Node, nodes, sfnode, until
from tests.test_pages import ROOT, blocks, sfnode_lines

PAGES = [ROOT / "docs" / name for name in ("tutorial.md", "organising.md", "volunteer.md")]
FOLLOWED = [ROOT / "README.md", *PAGES]
"""Pages whose blocks are run. The page that ends the node is last."""

SMALL = {"SFNODE_NTP": "none", "SFNODE_THREADS": "1", "SFNODE_HOST_MADDRS": LOOPBACK[1]}
INIT = SMALL | {"SFNODE_MODEL": "builtin:tiny", "SFNODE_UPDATE_BUDGET": "100", "SFNODE_YES": "1"}
"""Settings that a user's configuration might have. With them `sfnode init` asks nothing and ends soon."""

ELSEWHERE = {
    "init": INIT,
    "swarm": {"SFNODE_NODES": "2"},
    "eval": {"SFNODE_TEST_LIMIT": "40"},
    "doctor": {"SFNODE_DATA_DIR": "newcomer"},
    "hand-over": {"SFNODE_KEYS_DIR": "next"},
}
"""Settings of single commands, keyed by command. Newcomers and next organisers have their own folders."""


def test_few_blocks_are_not_run_and_each_says_why() -> None:
    found = [reason for page in FOLLOWED for reason, _ in blocks(page)]
    marked = [reason for reason in found if reason]
    assert len(marked) <= len(found) / 10
    assert "elsewhere" not in marked, "without a reason"


@pytest.mark.processes
@pytest.mark.timeout(300)
def test_the_guides_can_be_followed_word_for_word(tmp_path: Path) -> None:
    write_tickets(tmp_path)
    (tmp_path / ".local/share/sfnode").mkdir(parents=True)
    keys = "init.measure=no", "training.update_budget=1000000", "training.epoch_updates=32"
    given = [word for key in keys for word in ("--set", key)]
    made = sfnode(tmp_path, "init", "--task", "reviews", "--out", "here.toml", *given)
    assert made.returncode == 0, made.stderr
    with nodes(tmp_path) as make:
        node = make(".local/share/sfnode/node", "--run", "here.toml", "--organise",
                    "--set", "organise.search=no", "--threads", 1, *LOOPBACK).start()  # fmt: skip
        node.until("something counts", lambda status: status.organised and status.organised.counted)
        for number, words in enumerate(commands()):
            run(tmp_path, f"node-{number}", [replaced(word, node) for word in words])
        assert node.wait() == 0, "the last guide ends with leaving"


def commands() -> Iterator[list[str]]:
    """Yield the commands of all blocks that are run, without duplicates."""
    seen = []
    for page in FOLLOWED:
        for reason, text in blocks(page):
            for words in () if reason else sfnode_lines(text):
                if words not in seen:
                    seen.append(words)
                    yield words


def replaced(word: str, node: Node) -> str:
    """Return a word of a guide, or what replaces it here: the link of the node's run, the node's key, or a
    free port."""
    if word.startswith("sfnode:"):
        return node.link()
    if word == "1f3a09bc":
        return (node.status() or pytest.fail("it has ended")).origin[:8]
    return word.replace("31337", "0").replace("9100", "0")


def run(home: Path, name: str, words: list[str]) -> None:
    """Run a command to its end. If the command joins a run, tell the node to leave once it takes part."""
    variables = SMALL | next((ELSEWHERE[word] for word in words[:2] if word in ELSEWHERE), {})
    if words[0] != "join":
        ended = Command(home, *words, **variables).ended()
        assert ended.returncode == 0, f"{words}\n{ended.stdout}\n{ended.stderr}"
        return
    folder = home / (words[words.index("--data-dir") + 1] if "--data-dir" in words else name)
    command = Command(home, *words, **variables, SFNODE_DATA_DIR=str(folder))
    until(f"{words} takes part", lambda: takes_part(home, folder, command))
    assert sfnode(home, "leave", "--data-dir", folder).returncode == 0
    assert command.ended().returncode == 0


def takes_part(home: Path, folder: Path, command: Command) -> bool:
    assert command.process.poll() is None, command.ended().stderr
    return (folder / "control.sock").exists() and not sfnode(home, "status", "--data-dir", folder).returncode


def write_tickets(home: Path) -> None:
    """Write the tables of the tutorial. Two more columns are for the node's own run."""
    rows = [("My parcel never came", "shipping"), ("I was charged twice", "billing")]
    for name, times in (("tickets.csv", 60), ("my-tickets.csv", 20), ("new.csv", 2)):
        with (home / name).open("w", encoding="utf-8", newline="") as file:
            table = csv.writer(file)
            table.writerow(["ticket", "department", "text", "label"])
            table.writerows(
                (f"{text}, number {number}", label, text, int(label == "billing"))
                for number in range(times)
                for text, label in rows
            )
