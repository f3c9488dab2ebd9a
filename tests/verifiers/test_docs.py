"""Tests that docs/verifiers.md has every kind, key and preset."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import get_args

import pytest

from sfnode.verifiers.schemas import Schema
from sfnode.verifiers.specs import PRESETS, VERSION, Verifier

TEXT = (Path(__file__).parents[2] / "docs" / "verifiers.md").read_text(encoding="utf-8")
SECTIONS = dict(part.split("\n", 1) for part in re.split(r"^### ", TEXT, flags=re.MULTILINE)[1:])
KINDS = {kind.model_fields["kind"].default: kind for kind in get_args(get_args(Verifier)[0])}


def test_the_version_is_said() -> None:
    assert f"This page is\nversion {VERSION} of the list" in TEXT


def test_every_kind_has_a_section() -> None:
    assert sorted(SECTIONS) == sorted([*KINDS, "Not in version 1: classifier"])


@pytest.mark.parametrize("kind", KINDS)
def test_a_section_has_every_key(kind: str) -> None:
    keys = KINDS[kind].model_fields.keys() - {"kind"}
    assert keys <= set(re.findall(r"`(\w+)`", SECTIONS[kind]))


def test_every_keyword_of_schemas_is_listed() -> None:
    assert Schema.model_fields.keys() <= set(re.findall(r"`(\w+)`", SECTIONS["json"]))


def test_the_example_is_the_preset() -> None:
    example = re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)[0]
    assert tomllib.loads(example) == PRESETS["gsm8k"]


def test_every_preset_is_listed() -> None:
    assert re.findall(r"^\| `(\w+)` \|.*\| .* \|$", TEXT.split("## Presets")[1], re.MULTILINE) == list(
        PRESETS
    )
