"""Tests that an evaluation has one type, from the task that computes it to JSON."""

from __future__ import annotations

import ast
import json
import math
import subprocess
import sys
from pathlib import Path

from pydantic import BaseModel

from sfnode.schema.measurements import Evaluation, LayeredDrift, NodeEvaluation
from sfnode.schema.results import EvalResult

SFNODE = Path(__file__).parents[2] / "sfnode"

FOUND = Evaluation(metric="perplexity", value=7.5, low=1.0, high=math.inf, loss=math.nan, count=1)


def test_only_one_class_describes_an_evaluation() -> None:
    """Every type with a metric and both ends of an interval is an Evaluation. `NodeEvaluation` inherits its
    fields."""
    found = [
        f"{file.stem}.{node.name}"
        for file in SFNODE.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef) and {"metric", "low", "high"} <= fields(node)
    ]
    assert found == ["measurements.Evaluation"]
    assert issubclass(NodeEvaluation, Evaluation)


def fields(node: ast.ClassDef) -> set[str]:
    """Return the names of the annotated fields and of the methods."""
    annotated = {part.target.id for part in node.body if isinstance(part, ast.AnnAssign) and is_name(part)}
    return annotated | {part.name for part in node.body if isinstance(part, ast.FunctionDef)}


def is_name(part: ast.AnnAssign) -> bool:
    return isinstance(part.target, ast.Name)


def test_numbers_that_json_has_no_word_for_survive_it() -> None:
    again = Evaluation.model_validate_json(FOUND.model_dump_json())
    assert (again.value, again.high) == (7.5, math.inf)
    assert math.isnan(again.loss)


def test_what_a_command_prints_of_a_nodes_evaluation_is_the_evaluation_alone() -> None:
    asked = NodeEvaluation(**dict(FOUND), seconds=2.0, known=9, base=False, digest="ab")
    drift = LayeredDrift(norm=0.0, distance=0.0, kl=None, tokens=0, layers=[])
    model = {"run_id": "", "updates": 9, "digest": "ab", "seal": None, "loss": "plain", "prior": None}
    result = EvalResult(**model, before=FOUND, calibrated=FOUND, after=asked, drift=drift)
    assert json.loads(result.model_dump_json())["after"].keys() == Evaluation.model_fields.keys()


def test_the_schema_loads_neither_torch_nor_numpy_nor_the_node() -> None:
    script = (
        "import sys, sfnode.schema.results, sfnode.schema.status, sfnode.schema.views\n"
        "print(*{'torch', 'numpy', 'aiohttp', 'sfnode.node', 'sfnode.control'} & set(sys.modules))"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ended.stdout == "\n"


def test_records_of_the_schema_cannot_be_changed() -> None:
    assert issubclass(Evaluation, BaseModel)
    assert Evaluation.model_config["frozen"] is True
