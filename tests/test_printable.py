"""Tests that texts of others reach terminals and logs as visible characters, and shells as single words."""

from __future__ import annotations

import ast
import json
import logging
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfnode.cli.main import cli
from sfnode.errors import Code, UserError
from sfnode.logging import JsonFormatter, TextFormatter
from sfnode.manifest import Manifest
from sfnode.manifest.task import Task
from sfnode.models import model_files
from sfnode.printable import LONGEST, command, paragraph, printable
from sfnode.tasks import dataset, templates
from sfprotocol import model_listing
from sfprotocol.errors import RemoteProtocolError
from tests.node.helpers import manifest

HOSTILE = "\x1b]0;mine\x07\x1b[2J\u202e\u2066\u200b\x9b31m\r\n12:00:00 ERROR   forged \ud800"
"""Text that sets the title, erases the screen, changes the direction of writing, sets a colour, and adds a
line."""


def is_harmless(text: str) -> bool:
    """Return whether a text has visible characters only, and all lines after the first are indented."""
    first, *others = text.split("\n")
    return first.isprintable() and all(line.isprintable() and line.startswith("  ") for line in others)


@given(st.text(st.characters()))
def test_any_text_becomes_visible_characters_and_line_breaks(text: str) -> None:
    assert all(line.isprintable() for line in printable(text).split("\n"))
    assert is_harmless(paragraph(text))


@given(st.text(st.characters()))
def test_visible_text_stays_as_it_is_and_json_means_the_same(text: str) -> None:
    assert json.loads(printable(json.dumps(text, ensure_ascii=False))) == text
    assert printable("Grüße, 世界 👋\nend") == "Grüße, 世界 👋\nend"


def test_a_long_text_is_cut_and_says_so() -> None:
    assert paragraph("a" * LONGEST) == "a" * LONGEST
    assert paragraph("a" * 10**6) == "a" * LONGEST + "… (1,000,000 characters)"


# -- commands ----------------------------------------------------------------------------------------


@given(st.lists(st.text(st.characters(codec="utf-8"))))
def test_a_command_is_read_as_the_words_it_was_made_of(words: list[str]) -> None:
    assert shlex.split(command("sfnode", *words)) == ["sfnode", *words]


def test_a_shell_runs_nothing_of_a_hostile_word(tmp_path: Path) -> None:
    file = tmp_path / "made"
    hostile = f"$(touch {file})`touch {file}`;touch {file}|'\"&\ntouch {file} #~*?[a]{{a,b}}!"
    said = subprocess.run(
        ["sh", "-c", command("printf", "%s", hostile)], capture_output=True, text=True, check=True
    )
    assert said.stdout == hostile
    assert list(tmp_path.iterdir()) == []


VALUE = "\0"
"""Placeholder for a value in a text."""

PACKAGE = Path(__file__).parents[1] / "sfnode"


def put_together(source: str) -> list[str]:
    """Return the texts of a module that contain values."""
    nodes = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.JoinedStr))
    return [
        "".join(str(part.value) if isinstance(part, ast.Constant) else VALUE for part in node.values)
        for node in nodes
    ]


def test_no_command_is_put_together_in_another_way() -> None:
    names = "|".join(map(re.escape, cli.load_all()))
    by_hand = re.compile(rf"(?:sfnode (?:{names})|chmod)\b[^`<·\n]*(?:{VALUE}|{{{{)")
    texts = {file: file.read_text() for file in PACKAGE.rglob("*.html")}
    texts |= {file: "\n`".join(put_together(file.read_text())) for file in PACKAGE.rglob("*.py")}
    assert len(texts) > 100
    found = {str(file): by_hand.findall(text) for file, text in texts.items() if by_hand.search(text)}
    assert not found
    assert by_hand.search(put_together('f"`sfnode join {link}`"')[0])


# -- hostile manifests, listings and messages ----------------------------------------------------------


def unknown_key() -> None:
    fields = msgpack.unpackb(manifest().canonical())
    Manifest.from_canonical(msgpack.packb({**fields, HOSTILE[:-1]: 1}), HOSTILE)


TEXT = Task(kind="text", template="{text}")
USES: dict[str, Callable[[], object]] = {
    "an unknown key": unknown_key,
    "an unknown source": lambda: model_files.resolve(HOSTILE, HOSTILE, None),
    "an unreadable template": lambda: templates.parse("{" + HOSTILE),
    "unreadable data": lambda: dataset.load_rows(f"{HOSTILE}.tsv", TEXT),
    "data that are nowhere on the hub": lambda: dataset.load_rows(f"hf:{HOSTILE}:train", TEXT),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_an_error_about_a_hostile_manifest_is_harmless(use: Callable[[], object]) -> None:
    with pytest.raises(UserError) as caught:
        use()
    assert is_harmless(str(caught.value))


def test_an_error_about_a_hostile_label_is_harmless(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"text": "a film", "label": HOSTILE}))
    task = Task(kind="classification", template="{text}", verbalizer={HOSTILE + "0": "bad", "1": "good"})
    with pytest.raises(UserError) as caught:
        dataset.load_rows(str(rows), task)
    assert is_harmless(str(caught.value))


@pytest.mark.parametrize("name", [HOSTILE[:-1], "own.py", "..", "a/b"])
def test_a_hostile_listing_names_nothing_that_is_shown(name: str) -> None:
    encoded = msgpack.packb([[name, 1, bytes(32)]])
    with pytest.raises(RemoteProtocolError) as caught:
        model_files.require_safe(model_listing.decode(encoded))
    assert is_harmless(str(caught.value))


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
def test_a_log_line_is_harmless_whatever_is_logged(formatter: logging.Formatter) -> None:
    try:
        raise LookupError(HOSTILE)
    except LookupError:
        told = {"msg": "it said %s", "args": (HOSTILE,), "exc_info": sys.exc_info(), "reason": HOSTILE}
        text = formatter.format(logging.makeLogRecord(told))
    assert is_harmless(text)
    assert "it said" in text


def test_a_log_line_is_no_longer_than_anybody_reads() -> None:
    record = logging.makeLogRecord({"msg": "a" * 10**6})
    assert max(len(TextFormatter().format(record)), len(JsonFormatter().format(record))) < LONGEST + 200


def test_an_error_keeps_its_number_its_cause_and_its_fix_apart() -> None:
    error = UserError(Code.BAD_LINK, "first\nsecond", "fix\nit")
    assert str(error) == "SF014: first\n    second\n  fix\n    it"
