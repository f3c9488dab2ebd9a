"""Tests of the optional library for the hub's data and Parquet files."""

from __future__ import annotations

from pathlib import Path

import pytest

from sfnode.errors import Code, UserError
from sfnode.manifest.task import Task
from sfnode.tasks import row_files
from sfnode.tasks.dataset import load_rows

TASK = Task(kind="text", template="{text}")


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the library, as on a machine without it."""
    monkeypatch.setattr(row_files, "find_spec", lambda _name: None)


@pytest.mark.parametrize("source", ["hf:nobody/set:train", "rows.parquet"])
def test_without_the_library_the_error_has_the_command_that_installs_it(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.parquet").write_bytes(b"PAR1")
    with pytest.raises(UserError, match=rf"SF078: {source} .*\n.*pip install 'sfnode\[datasets\]'") as caught:
        load_rows(source, TASK)
    assert caught.value.code is Code.EXTRA_MISSING


def test_other_files_and_what_the_package_has_do_without(tmp_path: Path) -> None:
    for name, text in {"rows.csv": "text\nfine\n", "rows.jsonl": '{"text": "fine"}'}.items():
        (tmp_path / name).write_text(text)
        assert load_rows(str(tmp_path / name), TASK) == [{"text": "fine"}]
    assert load_rows("builtin:reviews:test", TASK, limit=1)
