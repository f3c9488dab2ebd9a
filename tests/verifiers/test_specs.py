"""Tests of verifiers as data: those without a bound on time are refused when read."""

from __future__ import annotations

import sys
import tomllib
from typing import Any

import msgpack
import pytest
import tomli_w

from sfnode.errors import Code
from sfnode.verifiers import specs
from sfnode.verifiers.specs import PRESETS, read
from tests.refusals import refused

LENGTH = {"kind": "length", "most": 9}
SCHEMA = {
    "type": ["object"],
    "properties": {"a": {"enum": [1, 1.5, "x", True]}, "b": {"items": {"type": "string"}, "maxItems": 0}},
    "required": ["a"],
    "additionalProperties": False,
}
SPECS: dict[str, dict[str, Any]] = {
    **PRESETS,
    "exact": {"kind": "exact", "column": "a", "strip": False},
    "numeric": {"kind": "numeric", "column": "a", "absolute": 0.5},
    "schema": {"kind": "json", "satisfies": SCHEMA},
    "code": {"kind": "code", "functions": {"f": ["a", "b"], "g": []}, "imports": ["math"]},
    "boxed": {"kind": "boxed", "then": {"kind": "numeric", "column": "a"}},
    "length": {"kind": "length"},
}


@pytest.mark.parametrize("name", SPECS)
def test_a_verifier_is_written_as_it_was_read_without_defaults(name: str) -> None:
    written = read(SPECS[name]).model_dump()
    assert tomllib.loads(tomli_w.dumps(written)) == tomllib.loads(tomli_w.dumps(SPECS[name]))
    assert read(msgpack.unpackb(msgpack.packb(written))) == read(SPECS[name])


def nested(depth: int) -> dict[str, Any]:
    return LENGTH if depth == 1 else {"kind": "extract", "begin": "a", "then": nested(depth - 1)}


def summed(*parts: dict[str, Any], weight: float | None = None) -> dict[str, Any]:
    each = 1 / len(parts) if weight is None else weight
    return {"kind": "sum", "terms": [{"weight": each, "verifier": part} for part in parts]}


def schema(depth: int) -> dict[str, Any]:
    return {} if depth == 1 else {"items": schema(depth - 1)}


def json_of(satisfies: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "json", "satisfies": satisfies}


ACCEPTED = [
    nested(4),
    summed(*[LENGTH] * 10),
    summed(*[{"kind": "code"}] * 3, LENGTH),
    json_of(schema(8)),
    json_of({"properties": {f"{n}": {"items": {}} for n in range(63)}}),
]


@pytest.mark.parametrize("spec", ACCEPTED, ids=str)
def test_bounds_can_be_reached(spec: dict[str, Any]) -> None:
    read(spec)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({}, "kind"),
    ({"kind": "shell"}, "'exact', 'numeric', 'regex'"),
    ({"kind": "length", "max": 3}, "Extra inputs"),
    ({"kind": "length", "most": "3"}, "valid integer"),
    ({"kind": "length", "most": True}, "valid integer"),
    ({"kind": "length", "most": 4097}, "less than or equal to 4096"),
    ({"kind": "length", "least": 3, "most": 2}, "as long as least"),
    ({"kind": "exact", "column": ""}, "at least 1 character"),
    ({"kind": "numeric", "column": "a", "absolute": float("nan")}, "finite"),
    ({"kind": "numeric", "column": "a", "relative": -0.1}, "greater than or equal to 0"),
    ({"kind": "format"}, "names a marker"),
    ({"kind": "format", "contains": [""]}, "at least 1 character"),
    ({"kind": "format", "begins": "a" * 65}, "at most 64 characters"),
    ({"kind": "format", "contains": "<a>"}, "valid tuple"),
    ({"kind": "extract", "begin": "", "then": LENGTH}, "at least 1 character"),
    ({"kind": "code", "functions": {"f": ["a"] * 65}}, "at most 64 items"),
    ({"kind": "countdown", "numbers": "a", "target": "b", "well_formed": 1.1}, "less than or equal to 1"),
    ({"kind": "sum", "terms": []}, "at least 1 item"),
    (summed(LENGTH, LENGTH, weight=0.4), "add up to 1, and not to 0.8"),
    (summed(LENGTH, weight=0), "greater than 0"),
    (nested(300), "recursion|Recursion"),
    (summed(*[LENGTH] * 11), "add up to 11, over 10"),
    (summed(*[{"kind": "code"}] * 4), "add up to 12, over 10"),
    (json_of({"$ref": "https://example.org/schema"}), "Extra inputs"),
    (json_of({"pattern": "(a+)+"}), "Extra inputs"),
    (json_of({"type": "float"}), "'object', 'array'"),
    (json_of({"enum": [[1]]}), "enum"),
    (json_of(schema(9)), "nested more than 8 deep"),
    (json_of(schema(300)), "recursion|Recursion"),
    (json_of({"properties": {f"{n}": {"items": {}} for n in range(64)}}), "more than 128 schemas"),
]


@pytest.mark.parametrize(("spec", "why"), REFUSED, ids=lambda value: str(value)[:50])
def test_what_could_take_long_or_is_no_verifier_is_refused(spec: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read(spec)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"kind": "exact"}, "column: Field required"),
        (
            {"kind": "extract", "begin": "a", "then": summed({"kind": "exact"})},
            "then.terms.0.verifier.column: ",
        ),
        ({"kind": "extract", "begin": "a", "then": {"kind": "boxed"}}, "then.then: Field required"),
        ({"kind": "boxed", "then": {"kind": "shell"}}, "then: Input tag 'shell'"),
        (json_of({"properties": {"then": {"kind": "a"}}}), "satisfies.properties.then.kind: Extra inputs"),
        (nested(5), "verifiers are nested more than 4 deep"),
        (nested(40), "verifiers are nested more than 4 deep"),
        ({"kind": "boxed", "then": summed(*[LENGTH] * 11)}, "scoring could take too long"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_an_error_names_the_key_as_it_stands_in_the_file_and_once(spec: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=f"^{says}"):
        read(spec)


def test_the_way_to_what_cannot_even_be_read_has_an_end() -> None:
    with pytest.raises(ValueError, match=r"^(then\.){16}\.\.\.: "):
        read(nested(300))


def test_a_pattern_without_its_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)
    specs.compiled.cache_clear()
    with refused(Code.EXTRA_MISSING, "google-re2", fix="sfnode[re2]"):
        read({"kind": "regex", "pattern": "a"})


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("(", r"'\(' cannot be read: missing"),
        (r"(a)\1", "invalid escape sequence"),
        ("a(?=b)", "cannot be read"),
        ("a{1001}", "invalid repetition size"),
        ("(a{100}){3}", "takes [0-9]+ instructions, and 128 are allowed"),
        (r"\pL", "takes [0-9]+ instructions"),
        ("((a{100}){100}){100}", "cannot be read"),
        ("a" * 513, "at most 512 characters"),
        ("", "at least 1 character"),
    ],
)
def test_a_pattern_that_re2_refuses_or_that_is_too_large_is_refused(pattern: str, why: str) -> None:
    pytest.importorskip("re2", reason="google-re2, of the extra re2, is not installed")
    with pytest.raises(ValueError, match=why):
        read({"kind": "regex", "pattern": pattern})
