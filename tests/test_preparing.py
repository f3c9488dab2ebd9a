"""What `sfnode init` does with data in files: names them by digests, and puts them beside the manifest."""

from __future__ import annotations

from pathlib import Path

import pytest

from sfnode import preparing
from sfnode.errors import Code, UserError
from sfnode.manifest import Manifest
from sfnode.manifest.data import Data
from sfnode.tasks import public_files
from tests.node.helpers import manifest


def run_of(**sources: object) -> Manifest:
    said = {role: str(source) for role, source in sources.items()}
    return manifest().model_copy(update={"data": Data.model_validate(said)})


def rows(file: Path, text: str) -> Path:
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"text\n{text}\n")
    return file


def test_the_manifest_names_files_not_paths_and_their_size_is_known(tmp_path: Path) -> None:
    train, test = rows(tmp_path / "train.tsv", "one"), rows(tmp_path / "test.tsv", "two")
    run, shared = preparing.share_data(run_of(train=train, test=test), tmp_path)
    assert (run.data.train, run.data.test) == ("train.tsv", "test.tsv")
    assert run.data.digests == {
        role: public_files.digest_of(file) for role, file in (("train", train), ("test", test))
    }
    assert shared == preparing.Shared(["train.tsv", "test.tsv"], [], 18)


def test_files_from_elsewhere_are_copied_beside_the_manifest_under_names_of_their_own(tmp_path: Path) -> None:
    """Two may have the same name; what lies there already is left alone."""
    train, test = rows(tmp_path / "a/rows.tsv", "one"), rows(tmp_path / "b/rows.tsv", "two")
    out = tmp_path / "out"
    rows(out / "rows.tsv", "mine")
    run, shared = preparing.share_data(run_of(train=train, test=test), out)
    names = [run.data.train, run.data.test]
    assert shared.copied == shared.names == names
    assert len(set(names)) == 2
    assert (out / "rows.tsv").read_text() == "text\nmine\n"
    for role, file in (("train", train), ("test", test)):
        found = public_files.find(run.data, role, (out,))  # type: ignore[arg-type]
        assert found
        assert found.read_bytes() == file.read_bytes()
    again, shared = preparing.share_data(run_of(train=train, test=test), out)
    assert again == run


def test_one_file_in_two_roles_is_one(tmp_path: Path) -> None:
    file = rows(tmp_path / "rows.tsv", "one")
    run, shared = preparing.share_data(run_of(train=file, test=file), tmp_path)
    assert run.data.train == run.data.test == "rows.tsv"
    assert (shared.names, shared.size) == (["rows.tsv"], file.stat().st_size)


def test_data_that_have_a_name_for_everybody_stay_as_they_are(tmp_path: Path) -> None:
    run = run_of(train="hf:glue:sst2:train", test="builtin:reviews:test")
    assert preparing.share_data(run, tmp_path) == (run, preparing.Shared([], [], 0))


def test_rows_that_validate_are_no_others_under_the_same_name(tmp_path: Path) -> None:
    train, judge = rows(tmp_path / "a/rows.tsv", "one"), rows(tmp_path / "b/rows.tsv", "one")
    with pytest.raises(UserError, match="neither trained nor tested on") as caught:
        preparing.share_data(run_of(train=train, validation=judge), tmp_path)
    assert caught.value.code is Code.BAD_OPTION


def test_too_large_a_file_is_refused_with_a_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparing, "MAX_DATA", 3)
    with pytest.raises(UserError, match="files of up to 3 B") as caught:
        preparing.share_data(run_of(train=rows(tmp_path / "rows.tsv", "one")), tmp_path)
    assert caught.value.code is Code.DATA_TOO_LARGE
    assert "--no-share-data" in caught.value.fix
