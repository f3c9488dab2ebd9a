"""The guides, followed word for word: `sh` blocks are run beside a node, other commands are parsed.

A block marked `sh elsewhere` needs a network, a second machine, a program that is not ours or a link of
somebody's; it is not run, but its commands and options must exist.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from sfnode.cli.main import cli
from tests.processes.helpers import LOOPBACK, PATIENCE, environment, nodes, sfnode

ROOT = Path(__file__).parents[2]

FOLLOWED = ("operator.md", "volunteer.md")
"""Pages whose blocks are run; the one that ends the node comes last."""

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "deploy").glob("*.md"))]


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    """Yield the `sh` blocks of a page: the words after `sh`, and the commands."""
    found = re.findall(r"^```sh *(\w*)\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    yield from found


def sfnode_lines(text: str) -> Iterator[list[str]]:
    """Yield the commands of sfnode, without comments."""
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line.replace("…", "..."), comments=True)
        if words[:1] == ["sfnode"]:
            yield words[1:]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_and_option_in_the_docs_exists(page: Path) -> None:
    for _, text in blocks(page):
        for words in sfnode_lines(text):
            check(words)


def check(words: list[str]) -> None:
    """Raise for a command or an option that does not exist; values are not checked."""
    context = click.Context(cli)
    _, rest, _ = cli.make_parser(context).parse_args([word for word in words if word not in ("-h",)])
    command = cli.load(rest.pop(0))
    if isinstance(command, click.Group):
        within = command.get_command(context, rest.pop(0))
        assert within is not None, words
        command = within
    own = rest[: rest.index("--")] if "--" in rest else rest  # what follows it is another program's
    options = [word.partition("=")[0] for word in own if word.startswith("--")]
    known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    assert set(options) <= known | {"--help"}, words


@pytest.mark.processes
@pytest.mark.timeout(600)
def test_the_guides_can_be_followed_word_for_word(tmp_path: Path) -> None:
    """Runs one node in the default folder, and everything that the pages say to type."""
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    script = bin_folder / "sfnode"
    script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m sfnode "$@"\n')
    script.chmod(0o755)
    made = sfnode(tmp_path, "init", "run.toml", "--model", "builtin:tiny", "--task", "reviews",
                  "--update-budget", 1_000_000)  # fmt: skip
    assert made.returncode == 0, made.stderr
    with nodes(tmp_path) as make:
        node = make(
            ".sfnode", "--run", "run.toml", "--organise", "--threads", 1, *LOOPBACK, "--limit", "cpu=10"
        ).start()
        node.until("it trains", lambda status: status.known > 0)
        for name in FOLLOWED:
            for kind, text in blocks(ROOT / "docs" / name):
                if not kind:
                    follow(tmp_path, name, text)
        assert node.wait() == 0, "the last guide ends with leaving"


def follow(home: Path, name: str, text: str) -> None:
    variables = environment(home)
    ended = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text],
        cwd=home, capture_output=True, text=True, timeout=3 * PATIENCE,
        env={**variables, "PATH": f"{home / 'bin'}:{variables['PATH']}", "SFNODE_NTP": "none"},
    )  # fmt: skip
    assert ended.returncode == 0, f"{name}: {text}\n{ended.stdout}\n{ended.stderr}"


def test_the_reference_of_the_command_line_is_current() -> None:
    """`make reference` writes it."""
    command = [sys.executable, ROOT / "scripts" / "reference.py", "--check"]
    assert subprocess.run(command, timeout=PATIENCE).returncode == 0, "run `make reference`"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_the_readme_leads_to_every_page() -> None:
    readme = (ROOT / "README.md").read_text()
    assert [page.name for page in (ROOT / "docs").glob("*.md") if f"docs/{page.name}" not in readme] == []
