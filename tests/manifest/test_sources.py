"""What everybody may know of where a model and rows come from."""

from __future__ import annotations

from pathlib import Path

import pytest

from sfnode.manifest import is_on_hub, names_folders, public_name
from sfnode.models.manifest_builder import default_manifest


@pytest.mark.parametrize(
    ("source", "public"),
    [
        ("facebook/opt-125m", "facebook/opt-125m"),
        ("gpt2", "gpt2"),
        ("builtin:reviews:train", "builtin:reviews:train"),
        ("hf:ann/set:plain:train", "hf:ann/set:plain:train"),
        ("rows.tsv", "rows.tsv"),
        ("", ""),
        ("/home/ann/opt", "opt"),
        ("~/opt", "opt"),
        ("../ann/opt", "opt"),
        ("models/of/ann", "ann"),
        ("here/model", "model"),
        ("ann/rows.tsv", "rows.tsv"),
        ("hf:/home/ann/set:train", "set:train"),
        (f"/{'a' * 5000}/opt", "opt"),
    ],
)
def test_a_name_stays_and_a_path_has_its_last_part_only(
    source: str, public: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here" / "model").mkdir(parents=True)
    assert public_name(source) == public


def test_a_folder_here_is_not_on_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert is_on_hub("facebook/opt-125m")
    (tmp_path / "facebook" / "opt-125m").mkdir(parents=True)
    assert not is_on_hub("facebook/opt-125m")
    assert not is_on_hub("builtin:tiny")


@pytest.mark.parametrize("role", ["train", "test", "validation"])
def test_any_source_with_a_folder_is_found_in_a_manifest(role: str) -> None:
    run = default_manifest()
    assert not names_folders(run)
    assert names_folders(run.model_copy(update={"data": run.data.model_copy(update={role: "/a/b.tsv"})}))
    assert names_folders(run.model_copy(update={"model": run.model.model_copy(update={"source": "/a/b"})}))
