"""What `sfnode init` measures, and what that costs; and what it does with data in files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from sfnode import hub
from sfnode.engine import forward
from sfnode.errors import Code
from sfnode.manifest import Manifest
from sfnode.manifest.sections import Data, DataRole
from sfnode.preparing import files, scalars
from sfnode.preparing.manifest import build
from sfnode.preparing.measuring import prepare
from sfnode.preparing.scalars import PRIOR_ROWS, Advance, Means
from sfnode.tasks import public_files
from tests.node.helpers import manifest
from tests.refusals import refused

LOADING = 7
"""Short sequences with which the layers are checked when a model is loaded."""


@pytest.fixture
def forwards(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of all passes; an answer of the built-in run is one token, so that a row is one sequence."""
    seen: list[int] = []

    def counted(loaded: Any, batch: Any, sequences: Any, targets: Any) -> forward.Pass:
        seen.append(len(sequences))
        return take(loaded, batch, sequences, targets)

    take = forward.take
    monkeypatch.setattr(forward, "take", counted)
    return seen


@pytest.mark.parametrize(
    "numbers", [{}, {"batch_size": 2}, {"batch_size": 64}, {"group": 5}], ids=["8", "2", "64", "groups"]
)
def test_a_run_is_prepared_within_its_example_forwards_and_they_are_counted(
    numbers: dict[str, Any], forwards: list[int], tmp_path: Path
) -> None:
    run = build({})
    centred = run.task.model_copy(update={"loss": "centred"})
    training = run.training.model_copy(update=numbers)
    run = run.model_copy(update={"task": centred, "training": training})
    told: list[tuple[int, int]] = []

    @contextmanager
    def waiting(what: str, seconds: float = 0.0) -> Iterator[Advance]:
        assert 0 < seconds < 60
        yield lambda done, total: told.append((done, total))

    found = prepare(run, {}, Means(bases=tmp_path), waiting, "errors")
    assert found.manifest.training.bases
    assert found.suited.keys() >= {"epsilon", "scalar_delta", "learning_rate"}
    assert found.manifest.task.prior
    assert found.sample
    assert found.example_forwards == sum(forwards) - LOADING
    assert (930 if len(found.sample.slopes) < scalars.SLOPES else 700) < sum(forwards) <= 1_000
    assert told == sorted(told)
    assert {done <= total for done, total in told} == {True}


def test_without_bases_and_a_trial_the_forwards_go_into_slopes(forwards: list[int], tmp_path: Path) -> None:
    found = prepare(build({}), {}, Means(bases=tmp_path), lambda *_: nullcontext(lambda done, total: None))
    assert found.sample
    assert found.example_forwards == sum(forwards) - LOADING
    assert found.example_forwards == 3 * 8 * len(found.sample.slopes) + PRIOR_ROWS
    assert 930 < sum(forwards) <= 1_000


def test_what_a_block_has_made_is_removed_if_it_does_not_end_and_nothing_else(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_text("mine")

    def interrupted() -> None:
        with files.all_or_nothing() as note:
            for file in (old, new, tmp_path / "never written"):
                note(file)
            new.write_text("made")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == [old]
    with files.all_or_nothing() as note:
        note(new)
        new.write_text("made")
    assert new.exists()


def run_of(**sources: object) -> Manifest:
    said = {role: str(source) for role, source in sources.items()}
    return manifest().model_copy(update={"data": Data.model_validate(said)})


def rows(file: Path, text: str) -> Path:
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"text\n{text}\n")
    return file


def test_files_from_elsewhere_are_copied_beside_the_manifest_under_names_of_their_own(tmp_path: Path) -> None:
    """Two may have the same name; what lies there already is left alone."""
    train, test = rows(tmp_path / "a/rows.tsv", "one"), rows(tmp_path / "b/rows.tsv", "two")
    out = tmp_path / "out"
    rows(out / "rows.tsv", "mine")
    run, shared = files.settle_data(run_of(train=train, test=test), out, shared=True)
    names = [run.data.train, run.data.test]
    assert shared == files.Shared(names, names, 18)
    assert len(set(names)) == 2
    assert (out / "rows.tsv").read_text() == "text\nmine\n"
    sources: dict[DataRole, Path] = {"train": train, "test": test}
    for role, file in sources.items():
        found = public_files.find(run.data, role, public_files.Places((out,)))
        assert found
        assert found.read_bytes() == file.read_bytes()
    again, shared = files.settle_data(run_of(train=train, test=test), out, shared=True)
    assert again == run


def test_one_file_in_two_roles_is_one(tmp_path: Path) -> None:
    file = rows(tmp_path / "rows.tsv", "one")
    run, shared = files.settle_data(run_of(train=file, test=file), tmp_path, shared=True)
    assert run.data.train == run.data.test == "rows.tsv"
    assert shared == files.Shared(["rows.tsv"], [], file.stat().st_size)


def test_data_that_have_a_name_for_everybody_stay_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "unreachable", lambda: "it does not answer")
    run = run_of(train="hf:nyu-mll/glue:sst2:train", test="builtin:reviews:test")
    assert files.settle_data(run, tmp_path, shared=True) == (run, files.Shared([], [], 0))


def test_rows_that_validate_are_no_others_under_the_same_name(tmp_path: Path) -> None:
    train, judge = rows(tmp_path / "a/rows.tsv", "one"), rows(tmp_path / "b/rows.tsv", "one")
    with refused(Code.BAD_OPTION, "neither trained nor tested on"):
        files.settle_data(run_of(train=train, validation=judge), tmp_path, shared=True)


def test_data_that_are_not_shared_lie_beside_the_manifest_and_have_no_digest(tmp_path: Path) -> None:
    run, beside = files.settle_data(
        run_of(train=rows(tmp_path / "a/rows.tsv", "one")), tmp_path, shared=False
    )
    assert (run.data.train, run.data.digests, beside.copied) == ("rows.tsv", {}, ["rows.tsv"])
    assert public_files.beside(run.data, tmp_path).named == {"train": tmp_path / "rows.tsv"}


def test_too_large_a_file_is_refused_with_a_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_DATA", 3)
    with refused(Code.DATA_TOO_LARGE, "files of up to 3 B"):
        files.settle_data(run_of(train=rows(tmp_path / "rows.tsv", "one")), tmp_path, shared=True)
