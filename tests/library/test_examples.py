"""The files in examples/ do what they say."""

from __future__ import annotations

import json
import re
import runpy
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from sfnode.store.log import UpdateLog
from tests.library.helpers import run_cells
from tests.store.helpers import RUN_ID, Author

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to run them in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_custom_task_is_learnt(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "custom_task.py"), run_name="__main__")
    said = capsys.readouterr().out
    numbers = re.fullmatch(r"accuracy (\S+) -> (\S+), loss (\S+) -> (\S+)\n", said)
    assert numbers is not None, said
    before, after, loss_before, loss_after = map(float, numbers.groups())
    assert before < after  # the run id, and with it every direction, depends on where the rows lie
    assert loss_after < loss_before


def test_the_custom_task_is_about_thirty_lines() -> None:
    lines = (EXAMPLES / "custom_task.py").read_text().splitlines()
    assert len([line for line in lines if line.strip()]) <= 30


@pytest.mark.parametrize("feeds", [0, 1, 3])
def test_a_run_is_drawn_from_its_log(
    feeds: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    authors = [Author(number) for number in range(1, feeds + 1)]
    with UpdateLog.open(Path("updates.sqlite"), RUN_ID) as log:
        for author in authors:
            log.append([author.write([1, -2, 300]), author.write([4] * 5, epoch=2)])
        monkeypatch.setattr(sys, "argv", ["plot_run.py", "updates.sqlite", "run.svg"])
        runpy.run_path(str(EXAMPLES / "plot_run.py"), run_name="__main__")  # beside the node
    assert capsys.readouterr().out == f"wrote run.svg: {8 * feeds} updates of {feeds} feeds\n"
    drawing = ElementTree.parse("run.svg").getroot()
    bars = [float(bar.get("height", "")) for bar in drawing.iter("{http://www.w3.org/2000/svg}rect")]
    assert len(bars) == feeds * (3 if feeds else 0)
    assert all(0 <= height <= 360 for height in bars)


def notebook() -> dict[str, object]:
    """The notebook as JSON."""
    found: dict[str, object] = json.loads((EXAMPLES / "first_run.ipynb").read_text(encoding="utf-8"))
    return found


def test_the_notebook_is_one_and_holds_no_output() -> None:
    book = notebook()
    assert (book["nbformat"], book["nbformat_minor"]) == (4, 5)
    cells = book["cells"]
    assert isinstance(cells, list)
    assert len({cell["id"] for cell in cells}) == len(cells)
    for cell in cells:
        assert cell["cell_type"] in ("markdown", "code")
        assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", cell["id"])
        assert all(line.endswith("\n") for line in cell["source"][:-1])
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)


@pytest.mark.processes
async def test_the_notebook_runs_from_its_first_cell_to_its_last(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = notebook()["cells"]
    assert isinstance(cells, list)
    space = await run_cells(
        ("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"), "notebook"
    )
    assert len(space["columns"]) == 256
    assert (folder / "halfway" / "model.safetensors").exists()
    assert "epoch 3" in capsys.readouterr().out
