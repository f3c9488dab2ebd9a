"""The one way in which commands load what they measure with: model, bases and data of a node's folder."""

from __future__ import annotations

from pathlib import Path

from sfnode.cli.trained_model import base_model
from sfnode.models.manifest_builder import default_manifest
from sfnode.store.data_folder import Layout
from sfnode.tasks import public_files


def test_what_measures_reads_the_data_that_came_with_the_link(home: Path, tmp_path: Path) -> None:
    """Whoever joined by a link has them in the folder of the node alone."""
    layout, rows = Layout(tmp_path / "node"), tmp_path / "rows.tsv"
    rows.write_text("text\tlabel\nfine food\t1\nstale bread\t0\n")
    run = default_manifest()
    told = {"train": "rows.tsv", "digests": {"train": public_files.digest_of(rows)}}
    run = run.model_copy(update={"data": run.data.model_copy(update=told)})
    kept = public_files.path_in(layout.data, run.data, "train")
    kept.parent.mkdir(parents=True)
    rows.rename(kept)
    with base_model(run, layout, None, "cpu", "float32") as trainer:
        assert [row["text"] for row in trainer.training_rows()] == ["fine food", "stale bread"]
