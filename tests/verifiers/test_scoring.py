"""Tests of scores by docs/verifiers.md: no answer raises, takes long, or is executed."""

from __future__ import annotations

import builtins
import itertools
import json
import random
import sys
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.verifiers import MARKER, NUMBER, Subject, answers, subjects
from sfnode.verifiers.scoring import columns, problem, remark, score, texts
from sfnode.verifiers.specs import PRESETS, read
from tests.fuzz.effort import EFFORT, TIMES

VECTORS = json.loads((Path(__file__).parent / "verifiers.json").read_text(encoding="utf-8"))
needs_re2 = pytest.mark.skipif(
    find_spec("re2") is None, reason="google-re2, of the extra re2, is not installed"
)


def readable(spec: dict[str, Any]) -> bool:
    return find_spec("re2") is not None or '"regex"' not in json.dumps(spec)


CASES = [case for case in VECTORS["cases"] if readable(case["verifier"])]
SUBJECTS = {name: subject for name, subject in subjects().items() if readable(subject.spec)}
VERIFIERS = {name: read(subject.spec) for name, subject in SUBJECTS.items()}


def named(case: dict[str, Any]) -> str:
    return f"{case['verifier']['kind']}-{case['answer'][:24]!r}"


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=() if readable(case["verifier"]) else needs_re2, id=named(case))
        for case in VECTORS["cases"]
    ],
)
def test_an_answer_gets_the_score_of_the_vectors(case: dict[str, Any]) -> None:
    assert score(read(case["verifier"]), case["answer"], case["row"]) == pytest.approx(
        case["score"], abs=1e-12
    )


def test_every_kind_has_vectors() -> None:
    kinds = {case["verifier"]["kind"] for case in VECTORS["cases"]}
    assert kinds == set(
        "exact numeric regex json countdown code length format boxed extract sum".split()  # noqa: SIM905
    )


# -- what is said of an answer ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ('{"name": "Vera", "count": 3}', ""),
        ('{"name": "Vera", "count": 30, "town": "Cork"}', "wrong: count, town"),
        ('{"count": 3}', "wrong: name"),
        ("Vera, 3", "no JSON"),
        ("[3]", "JSON of another form"),
    ],
)
def test_of_json_it_is_said_which_members_are_wrong(answer: str, says: str) -> None:
    spec = {"kind": "json", "satisfies": {"type": "object"}, "column": "json"}
    row = {"json": '{"name": "Vera", "count": 3}'}
    assert remark(read(spec), answer, row) == says
    terms = [{"weight": 0.5, "verifier": one} for one in ({"kind": "length"}, spec)]
    assert remark(read({"kind": "sum", "terms": terms}), answer, row) == says
    boxed = {"kind": "boxed", "then": spec}
    assert remark(read(boxed), rf"\boxed{{{answer}}}", row) == says
    assert remark(read(boxed), answer, row) == "nothing is marked as the answer"


# -- what no answer does ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SUBJECTS)
def test_hostile_answers_get_a_score(name: str) -> None:
    subject = SUBJECTS[name]
    verifier = read(subject.spec)
    for answer in itertools.islice(
        answers(subject, 60 * TIMES, random.Random(name)), 0, None, 1 if TIMES > 1 else 3
    ):
        assert 0 <= score(verifier, answer, subject.row) <= 1


@settings(EFFORT, max_examples=80 * TIMES)
@given(data=st.data())
def test_any_text_gets_the_same_score_twice(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(SUBJECTS)))
    verifier, part = VERIFIERS[name], st.sampled_from(SUBJECTS[name].fragments) | st.text(max_size=8)
    answer = "".join(data.draw(st.lists(part, max_size=20)))
    row = {column: data.draw(part) for column in columns(verifier)}
    first = score(verifier, answer, row)
    assert 0 <= first <= 1
    assert score(verifier, answer, row) == first


@pytest.mark.parametrize("case", CASES, ids=named)
def test_what_follows_4096_characters_changes_nothing(case: dict[str, Any]) -> None:
    filled = case["answer"].ljust(4096, "\n")
    verifier = read(case["verifier"])
    assert score(verifier, filled + "<answer>1</answer>", case["row"]) == score(verifier, filled, case["row"])


def test_nothing_is_executed_imported_or_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str, *rest: object) -> Any:
        if name != "collections":  # ast imports it, again and again
            raise AssertionError(f"a verifier only reads, {name}")
        return importing(name, *rest)

    importing: Any = builtins.__import__
    hostile = "import antigravity\nopen('/etc/passwd')\n__import__('antigravity')\n1/0"
    cases = [(read(case["verifier"]), case["answer"], case["row"]) for case in CASES]
    cases.append((read({"kind": "code", "imports": ["antigravity"]}), hostile, {}))
    with monkeypatch.context() as refusing:
        for name in ("exec", "eval", "open", "__import__"):
            refusing.setattr(builtins, name, refuse)
        scores = [score(*case) for case in cases]
    assert scores[-1] == 1
    assert "antigravity" not in sys.modules


# -- work ---------------------------------------------------------------------------------------------


def lines(subject: Subject, answer: str) -> int:
    """Return the number of lines of Python that a score executes. benchmarks/verifiers.py measures libraries,
    too."""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    verifier = read(subject.spec)
    tracing = sys.gettrace()
    sys.settrace(trace)
    try:
        score(verifier, answer, subject.row)
    finally:
        sys.settrace(tracing)
    return count


LONG = {
    "numeric": ("1 ", "1/", "1,111", "-"),
    "boxed": ("{", "}", r"\boxed{", r"\boxed{1}", "\\"),
    "json": ("[", '"\\"', '"', "[]", "{"),
    "countdown": ("(", "1+", "1", " "),
    "code": ("a", "a ", "a\n", "(", "'", '"""', "'a'", "#", "1if "),
    "format": ("a", MARKER),
    "extract": ("a", MARKER),
}


@pytest.mark.parametrize(("name", "fragment"), [(name, one) for name, ones in LONG.items() for one in ones])
def test_an_answer_of_twice_the_length_takes_no_more_than_twice_the_work(name: str, fragment: str) -> None:
    short, long = (lines(SUBJECTS[name], (fragment * 4096)[:size]) for size in (2048, 4096))
    assert long <= 2 * short
    assert long <= 10 * 4096


# -- rows ---------------------------------------------------------------------------------------------


def test_the_columns_that_a_verifier_reads() -> None:
    assert columns(read(PRESETS["countdown"])) == ("nums", "target")
    assert columns(read(PRESETS["gsm8k"])) == ("answer",)
    assert columns(read(PRESETS["json"])) == ("json",)
    assert columns(read({"kind": "length"})) == ()


@pytest.mark.parametrize(
    ("name", "row", "written"),
    [
        ("countdown", {"nums": [44, 19], "target": 63, "id": 7}, {"nums": "[44, 19]", "target": "63"}),
        ("json", {"json": {"é": True}}, {"json": '{"é": true}'}),
        ("json", {"json": '{"a": 1}'}, {"json": '{"a": 1}'}),
        ("json", {"json": False}, {"json": "false"}),
        ("gsm8k", {"answer": None}, {}),
        ("gsm8k", {}, {}),
    ],
)
def test_a_row_of_data_as_text(name: str, row: dict[str, Any], written: dict[str, str]) -> None:
    assert texts(read(PRESETS[name]), row) == written


@pytest.mark.parametrize(
    ("spec", "row", "wrong"),
    [
        (NUMBER, {"right": "#### 7"}, None),
        (NUMBER, {"question": "7?"}, "no 'right'; the row has 'question'"),
        (NUMBER, {"right": "seven"}, "'right' has no number"),
        ({"kind": "exact", "column": "a"}, {"a": ""}, None),
        ({"kind": "json", "column": "a"}, {"a": "null"}, None),
        ({"kind": "json", "column": "a"}, {"a": "None"}, "'a' is not JSON"),
        ({"kind": "json"}, {}, None),
        (PRESETS["countdown"], {"nums": "[1, 2]", "target": "3"}, None),
        (PRESETS["countdown"], {"nums": "[]", "target": "3"}, "'nums' does not have 1 to 32 short numbers"),
        (
            PRESETS["countdown"],
            {"nums": "1 1234567890", "target": "3"},
            "'nums' does not have 1 to 32 short numbers",
        ),
        (PRESETS["countdown"], {"nums": "1 2", "target": ""}, "'target' is not one number"),
    ],
)
def test_a_row_about_which_no_answer_can_be_right_is_found(
    spec: dict[str, Any], row: dict[str, str], wrong: str | None
) -> None:
    assert problem(read(spec), row) == wrong


# -- presets ------------------------------------------------------------------------------------------

GSM8K = {"answer": "She sold 48/2 = <<48/2=24>>24 clips in May.\n#### 72"}
COUNTDOWN = {"nums": "[44, 19, 35]", "target": "60"}


@pytest.mark.parametrize(
    ("name", "answer", "row", "expected"),
    [
        ("countdown", "<think>44-19=25</think>\n<answer>44 - 19 + 35</answer>", COUNTDOWN, 1),
        ("countdown", "<think>44-19=25</think>\n<answer>44 + 19 + 35</answer>", COUNTDOWN, 0.1),
        ("countdown", "<answer>44 - 19 + 35</answer>", COUNTDOWN, 0.9),
        ("countdown", "44 - 19 + 35", COUNTDOWN, 0),
        ("gsm8k", "24 and 48 make 72\n#### 72", GSM8K, 1),
        ("gsm8k", "#### 48\n#### $72 for 24 clips", GSM8K, 1),
        ("gsm8k", "#### 48 + 24 = 72", GSM8K, 0.1),
        ("gsm8k", "72", GSM8K, 0),
        ("json", '{"name": "Ann", "age": 7}', {"json": '{"name": "Ann", "age": 8}'}, 0.55),
        ("json", "[]", {"json": "{}"}, 0),
        ("sums", " 19", {"answer": "19"}, 1),
        ("sums", "18", {"answer": "19"}, 0),
    ],
)
def test_presets(name: str, answer: str, row: dict[str, str], expected: float) -> None:
    assert problem(read(PRESETS[name]), row) is None
    assert score(read(PRESETS[name]), answer, row) == pytest.approx(expected)
