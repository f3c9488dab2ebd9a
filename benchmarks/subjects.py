"""Models of the benchmarks, by name.

`mini` is opt-mini-sst of ../shared with SST-2's sentences. `real` is the model of scripts/real_model.py with
random sentences. Any other name has its meaning in `sfnode lab bench --model`.
"""

from __future__ import annotations

from pathlib import Path

from scripts import real_model
from sflab.bench.subject import SubjectSpec
from sfnode.manifest import Manifest
from sfnode.manifest.sections import Data
from sfnode.manifest.task import Task
from sfnode.models import loader

SHARED = Path(__file__).parents[2] / "shared"
MINI, REAL = "mini", "real"

SST2 = Task(
    kind="classification",
    template="{sentence|strip} It was",
    verbalizer={"0": "terrible", "1": "great"},
)


def wanted(name: str, *, device: str = "cpu", dtype: str = loader.AUTO, shared: Path = SHARED) -> SubjectSpec:
    """Return the subject called `name`. The real model is written if it does not exist yet."""
    if name == REAL:
        real_model.write(real_model.FOLDER)
    if name != MINI:
        source = str(real_model.FOLDER) if name == REAL else name
        return SubjectSpec(source=source, device=device, dtype=dtype)
    described = loader.describe(str(shared / "models/opt-mini-sst"), "")
    data = Data(train=str(shared / "data/sst2/train.tsv"), train_min_words=4)
    return SubjectSpec(run=Manifest(model=described, task=SST2, data=data), device=device, dtype=dtype)
