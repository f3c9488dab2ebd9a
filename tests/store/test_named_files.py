"""Tests of named files, which are remembered for later starts of the same folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from sfnode.errors import Code
from sfnode.manifest.sections import Data
from sfnode.preparing.manifest import build
from sfnode.settings import Settings
from sfnode.store.data_folder import Layout
from sfnode.store.named_files import NamedFiles, model_of, places_of
from tests.refusals import refused


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    (tmp_path / "node").mkdir()
    return Layout(tmp_path / "node")


def test_nothing_is_named_at_first(layout: Layout) -> None:
    assert NamedFiles.read(layout) == NamedFiles()
    assert places_of(layout) == ((layout.data,), {})
    assert model_of(layout, None) is None


def test_what_is_named_now_takes_the_place_of_what_was_named_before(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first = Settings(data=Path("mine.csv"), model=Path("~/model"), verifier=("a:b",))
    NamedFiles.read(layout).and_of(first).keep(layout)
    found = NamedFiles.read(layout).and_of(Settings(data=Path("/other.csv"), test=Path("test.tsv")))
    assert found.data == Path("/other.csv")
    assert found.test == tmp_path / "test.tsv"
    assert found.model == Path("~/model").expanduser()
    assert found.in_settings(Settings()).verifier == ("a:b",)
    assert found.places(layout).named == {"test": tmp_path / "test.tsv"}, "data of its own are no run's"


def test_a_manifest_that_its_owner_gives_names_what_lies_beside_it(layout: Layout, tmp_path: Path) -> None:
    usual, own = build({}), tmp_path / "own"
    (own / "model").mkdir(parents=True)
    for file in (own / "rows.tsv", tmp_path / "others.tsv"):
        file.write_text("text\nx\n")
    (own / "out").symlink_to(layout.path)
    sources = {
        "model": own / "model",
        "out": None,
        str(layout.path): None,
        "../node": None,
        "": None,
        ".": None,
    }
    for source, found in sources.items():
        model = usual.model.model_copy(update={"source": source})
        run = usual.model_copy(update={"model": model, "data": Data(train="rows.tsv", test="../others.tsv")})
        named = NamedFiles().and_beside(run, own)
        assert named == NamedFiles(model=found, train=own / "rows.tsv")
    assert NamedFiles(model=tmp_path).and_beside(run, own).model == tmp_path


def test_the_model_is_that_named_now_or_before_or_downloaded(layout: Layout, tmp_path: Path) -> None:
    layout.model.mkdir()
    assert model_of(layout, None) == layout.model
    NamedFiles(model=tmp_path).keep(layout)
    assert model_of(layout, None) == tmp_path
    assert model_of(layout, Path("/now")) == Path("/now")


@pytest.mark.parametrize("content", ["{", "[]", '{"model": 7}', "\xff"])
def test_a_file_that_was_edited_in_vain_is_an_error_with_its_name(layout: Layout, content: str) -> None:
    layout.named.write_text(content, encoding="latin-1")
    with refused(Code.DATA_DIR_UNUSABLE, "named.json"):
        NamedFiles.read(layout)
