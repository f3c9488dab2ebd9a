"""Tests of the documentation: links, commands and options exist, and pages are short."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import click
import pytest

from sfnode.cli.groups import inner_commands
from sfnode.cli.main import cli

ROOT = Path(__file__).parents[1]

PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *(page for folder in ("docs", "deploy", "protocol") for page in sorted((ROOT / folder).rglob("*.md"))),
]

TYPED = [page for page in PAGES if page.name not in ("research-log.md", "cli.md")]
"""Pages, except those about earlier versions and those generated from commands."""

GENERATED = {"cli.md", "json.md", "errors.md", "metrics.md"}

MOST_WORDS = {"README.md": 900, "written": 35_000, "generated": 20_000}
"""Maximum number of words of README.md, of all written pages, and of all generated pages."""

FOREIGN = {
    "--index-url",
    "--torch-backend",
    "--pid",
    "--force",
    "--model_args",
    "--restart",
    "--build-arg",
    "--scale",
    "--volumes",
}
"""Options of pip, uv, docker and others that pages name."""


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    """Yield, for each `sh` block of a page, the reason why it is not run, or an empty text, and its
    commands."""
    for marked, reason, text in re.findall(
        r"^ *```sh( elsewhere)?:? ?([^\n]*)\n(.*?)^ *```", page.read_text(), flags=re.MULTILINE | re.DOTALL
    ):
        yield (reason or "elsewhere") if marked else "", text


def sfnode_lines(text: str) -> Iterator[list[str]]:
    """Yield the commands of sfnode, without comments."""
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line.replace("…", "..."), comments=True)
        if words[:1] == ["sfnode"]:
            yield words[1:]


@pytest.mark.parametrize("page", TYPED, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_and_option_in_a_block_exists(page: Path) -> None:
    for _, text in blocks(page):
        for words in sfnode_lines(text):
            check(words)


@pytest.mark.parametrize("page", TYPED, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_and_option_in_a_sentence_exists(page: Path) -> None:
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for code in re.findall(r"`([^`]+)`", text):
        words = code.replace("…", "...").split()
        if words[0] == "sfnode" and len(words) > 1 and re.fullmatch(r"[a-z-]+", words[1]):
            check(words[1:])
        if words[0].startswith("--"):
            assert words[0].partition("=")[0] in known_flags() | FOREIGN, code
        for key in re.findall(r"--set '?([\w.]+)=", code):
            assert key in known_keys(), code


def check(words: list[str]) -> None:
    """Raise for a command or an option that does not exist; values are not checked."""
    context = click.Context(cli, **cli.context_settings)
    _, rest, _ = cli.make_parser(context).parse_args([word for word in words if word not in ("-h",)])
    command = cli.load(rest.pop(0))
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-") and rest[0] != "...":
        within = command.get_command(context, rest.pop(0))
        assert within is not None, words
        command = within
    own = rest[: rest.index("--")] if "--" in rest else rest  # what follows it is another program's
    flags = {name for one in flagged(command) for name in (*one.opts, *one.secondary_opts)}
    assert {word.partition("=")[0] for word in own if word.startswith("--")} <= flags, words
    keys = {word.partition("=")[0] for before, word in pairwise(own) if before == "--set"}
    assert keys <= set(getattr(command, "keys", ())), words


def flagged(command: click.Command) -> list[click.Parameter]:
    """Return the flags of a command. Keys of --set are no flags."""
    found = command.get_params(click.Context(command, parent=click.Context(cli, **cli.context_settings)))
    return [one for one in found if not getattr(one, "key", "")]


@cache
def known_flags() -> frozenset[str]:
    return frozenset(
        name
        for command in commands()
        for one in flagged(command)
        for name in (*one.opts, *one.secondary_opts)
    )


@cache
def known_keys() -> frozenset[str]:
    return frozenset(
        key for command in commands() for one in command.params if (key := getattr(one, "key", ""))
    )


def commands() -> Iterator[click.Command]:
    yield cli
    for command in cli.load_all().values():
        yield from walk(command)


def walk(command: click.Command) -> Iterator[click.Command]:
    yield command
    if isinstance(command, click.Group):
        for inner in inner_commands(command).values():
            yield from walk(inner)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_a_page_and_to_a_heading_of_it(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:|mailto:)([^)\s]+)\)", page.read_text()):
        name, _, heading = target.partition("#")
        place = (page.parent / name).resolve() if name else page
        assert place.exists(), target
        assert not heading or place.suffix != ".md" or heading in headings(place), target


@cache
def headings(page: Path) -> set[str]:
    """Return the anchors of the headings of a page, as GitHub makes them, and explicit anchors."""
    text = page.read_text()
    lines = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), flags=re.M)
    slugs = {
        re.sub(r"[^\w\- ]", "", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", line))
        .strip()
        .lower()
        .replace(" ", "-")
        for line in lines
    }
    return slugs | set(re.findall(r'<a id="([^"]+)"', text))


def test_the_readme_leads_to_every_page() -> None:
    readme = (ROOT / "README.md").read_text()
    assert [page.name for page in (ROOT / "docs").glob("*.md") if f"docs/{page.name}" not in readme] == []


def test_no_page_takes_longer_than_somebody_in_a_hurry_has() -> None:
    words = {"README.md": count(ROOT / "README.md"), "written": 0, "generated": 0}
    for page in (ROOT / "docs").glob("*.md"):
        if page.name != "research-log.md":
            words["generated" if page.name in GENERATED else "written"] += count(page)
    assert {name: number for name, number in words.items() if number > MOST_WORDS[name]} == {}


def count(page: Path) -> int:
    return len(page.read_text().split())


def test_the_picture_shows_the_figures() -> None:
    """The script `scripts/picture.py` draws it."""
    assert subprocess.run([sys.executable, ROOT / "scripts" / "picture.py", "--check"]).returncode == 0
