"""Models as somebody makes them who means ill: small files that make large things, or never end."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from tests.models.families import model_folder

SENTENCE = "the " + "a" * 40 + " film"
"""A text for which some of these tokenizers have been made; others are fine for all texts but this one."""


def copy(folder: Path, family: str = "opt") -> Path:
    """A copy of a tiny model to spoil."""
    return Path(shutil.copytree(model_folder(family), folder))


def configured(folder: Path, **settings: Any) -> Path:
    """A copy with these keys in its configuration."""
    return change(copy(folder) / "config.json", **settings)


def tokenizer(folder: Path, **parts: Any) -> Path:
    """A copy with these parts in its tokenizer."""
    return change(copy(folder) / "tokenizer.json", **parts)


def change(file: Path, **settings: Any) -> Path:
    """Set these keys in a JSON file; return its folder."""
    before = json.loads(file.read_text()) if file.is_file() else {}
    file.write_text(json.dumps(before | settings))
    return file.parent


def replace(content: str, **pattern: str) -> dict[str, Any]:
    """A rule that replaces a String or a Regex."""
    return {"type": "Replace", "pattern": pattern, "content": content}


def sequence(rules: list[dict[str, Any]], of: str = "normalizers") -> dict[str, Any]:
    """Rules of which each is applied to what the one before has made."""
    return {"type": "Sequence", of: rules}


def nested(depth: int) -> dict[str, Any]:
    """Rules within rules, each of which doubles the text."""
    rule = replace("aa", String="a")
    return sequence([nested(depth - 1), rule]) if depth else rule


def added(number: int, content: str) -> dict[str, Any]:
    """A token that is added to a vocabulary."""
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "special"), False)
    return {"id": number, "content": content, "normalized": True, **plain}


GROWING = replace("a" * 50, String="a")
"""Fifty characters, which make fifty of each letter a."""

ENDLESS = r"(?:a|a)*\d"
"""An expression that looks for a digit after the letters in 2^40 ways; the library gives up, and panics."""

LONG = r"(?:a|a){20}\d"
"""One that looks in 2^20 ways from each letter on, which is too little for the library to give up."""

NORMALISERS = {
    "one rule, again and again": sequence([GROWING] * 6),
    "rules within rules": nested(40),
    "an expression that never ends": replace("b", Regex=ENDLESS),
}
"""Those that are fine as long as nobody encodes the SENTENCE."""
