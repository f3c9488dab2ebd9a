"""Tests that the documentation lists every error and every field of JSON output."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

from sfnode.cli.init_options import KINDS
from sfnode.errors import Code
from sfnode.schema.measurements import Answer, EvaluationOfRows
from sfnode.schema.metrics import METRICS
from sfnode.tasks.presets import PRESETS
from sfnode.tasks.templates import FILTERS

ROOT = Path(__file__).parents[2]
DOCS, REFERENCE = ROOT / "docs", ROOT / "scripts" / "reference.py"


def sections(name: str) -> dict[str, str]:
    """Return the text under each second-level heading of a page, keyed by heading."""
    _, *parts = re.split(r"^## ", (DOCS / name).read_text(), flags=re.MULTILINE)
    return {heading: text for heading, _, text in (part.partition("\n") for part in parts)}


def test_every_error_has_an_entry_and_every_entry_is_an_error() -> None:
    entries = sections("errors.md")
    assert list(entries) == [f"SF{code:03d} {code.name}" for code in Code]
    assert [heading for heading, text in entries.items() if len(text.split()) < 15] == []


def test_the_references_of_commands_and_of_json_are_current() -> None:
    """`make reference` writes them."""
    ended = subprocess.run([sys.executable, REFERENCE, "--check"], timeout=60, check=False)
    assert ended.returncode == 0, "run `make reference`"


def test_every_answer_is_in_the_reference_of_json() -> None:
    reference = runpy.run_path(str(REFERENCE))
    reached = {
        one
        for _, models in reference["OUTPUTS"].values()
        for model in models
        for one in reference["within"](model)
    }
    within = {EvaluationOfRows}
    """Types that are never written as JSON."""
    assert {one for one in subclasses(Answer) if not one.__subclasses__()} - reached == within


def subclasses(kind: type) -> set[type]:
    """Return the subclasses in sfnode.schema. The dashboard's own types are not documented."""
    found = {one for one in kind.__subclasses__() if one.__module__.startswith("sfnode.schema")}
    return found | {one for inner in found for one in subclasses(inner)}


def test_every_ready_made_task_every_kind_every_filter_and_every_metric_is_documented() -> None:
    tables = re.findall(r"(?:^\|.*\n)+", (DOCS / "tasks.md").read_text(), flags=re.MULTILINE)
    documented = [re.findall(r"^\| `([\w-]+)` \|", table, flags=re.MULTILINE) for table in tables]
    assert documented == [list(PRESETS), list(KINDS), list(FILTERS), list(METRICS)]
