"""The base weights come from the files, not from a second copy; what has changed there is noticed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from sfnode.engine.trainer import Trainer
from sfnode.errors import Code, UserError
from sfnode.manifest import Manifest
from sfnode.manifest.sections import Target
from sfnode.models import loader
from sfnode.models.loader import BaseWeights, float_tensors
from sfnode.models.targets import Form, TargetSite, view
from tests.engine.helpers import (
    ENCODERS,
    EVERYTHING,
    FAMILIES,
    held_weights,
    manifest,
    model_folder,
    trainer,
    updates,
    weights,
)
from tests.refusals import refused

WEIGHTS = "model.safetensors"


def stored(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    save_file(tensors, folder / WEIGHTS, {"format": "pt"})


def run_on(folder: Path) -> tuple[Manifest, Trainer]:
    """A run that starts from the folder as it is now."""
    described = manifest("opt", learning_rate=1e-3)
    described = described.model_copy(update={"model": loader.describe(str(folder), "")})
    return described, trainer(described, model_override=folder)


def copied_bytes(base_weights: BaseWeights) -> int:
    return sum(one.nbytes for one in base_weights._origins if isinstance(one, Tensor))


def kept(run: Trainer) -> int:
    return copied_bytes(run.loaded.base_weights)


@pytest.mark.parametrize("family", [*FAMILIES, *ENCODERS])
def test_no_family_needs_a_second_copy_of_its_weights(family: str) -> None:
    run = trainer(manifest(family, selection=EVERYTHING))
    assert kept(run) == 0
    files = load_file(model_folder(family) / WEIGHTS)
    for number, (site, held) in enumerate(zip(run.loaded.sites, held_weights(run), strict=True)):
        base = run.loaded.base_weights.read(number)
        assert torch.equal(base.double(), held.cpu())
        name = site.target.name
        found = files[name] if name in files else files[f"{name}.weight"]
        assert torch.equal(base, view(found, site.form))


@pytest.mark.parametrize(("family", "prefix"), [("gpt2", "transformer."), ("opt", "model.")])
def test_names_without_the_prefix_of_the_library_are_found(family: str, prefix: str, tmp_path: Path) -> None:
    """As GPT-2 is stored on the hub."""
    folder = Path(shutil.copytree(model_folder(family), tmp_path / "copy"))
    stored(folder, {name.removeprefix(prefix): t for name, t in load_file(folder / WEIGHTS).items()})
    described = manifest(family).model_copy(update={"model": loader.describe(str(folder), "")})
    assert kept(trainer(described, model_override=folder)) == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_a_weight_is_read_in_the_dtype_that_it_is_stored_in(copy: Path, dtype: torch.dtype) -> None:
    tensors = {name: tensor.to(dtype) for name, tensor in load_file(copy / WEIGHTS).items()}
    stored(copy, tensors)
    _, run = run_on(copy)
    assert kept(run) == 0
    for number, site in enumerate(run.loaded.sites):
        base = run.loaded.base_weights.read(number)
        assert base.dtype is dtype
        assert torch.equal(base, tensors[f"{site.target.name}.weight"])


def lone_site(weight: torch.Tensor, name: str = "body.layer") -> TargetSite:
    module = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    module.weight.data = weight
    target = Target(name=name, out_features=weight.shape[0], in_features=weight.shape[1])
    return TargetSite(target, module, "weight", Form.LINEAR)


@pytest.mark.parametrize("case", ["under another name", "joined with others", "other numbers"])
def test_what_is_not_in_the_files_under_its_name_is_copied(case: str, tmp_path: Path) -> None:
    weight = torch.arange(12.0).view(4, 3)
    found = {
        "under another name": {"body.renamed.weight": weight},
        "joined with others": {"body.layer.weight": torch.cat([weight, weight])},
        "other numbers": {"body.layer.weight": weight + 1},
    }[case]
    stored(tmp_path, found)
    (tmp_path / "config.json").write_text("{}")
    site = lone_site(weight.clone())
    base_weights = BaseWeights([site], float_tensors(tmp_path), "body")
    assert copied_bytes(base_weights) == 12 * 4
    site.module.weight.data.zero_()  # type: ignore[operator]
    assert torch.equal(base_weights.read(0), weight)


def test_a_layer_that_is_another_ones_namesake_is_not_mistaken_for_it(tmp_path: Path) -> None:
    one, other = torch.zeros(2, 2), torch.ones(2, 2)
    stored(tmp_path, {"layer.weight": one, "body.layer.weight": other})
    (tmp_path / "config.json").write_text("{}")
    base_weights = BaseWeights([lone_site(one), lone_site(other, "layer")], float_tensors(tmp_path), "body")
    assert copied_bytes(base_weights) == 0
    assert torch.equal(base_weights.read(0), one)
    assert torch.equal(base_weights.read(1), other)


def flip_last_byte(file: Path) -> None:
    with file.open("r+b") as handle:
        handle.seek(-1, 2)
        (last,) = handle.read(1)
        handle.seek(-1, 2)
        handle.write(bytes([last ^ 1]))


def overwrite(file: Path) -> None:
    """Where it lies, in place, as a program does that knows nothing of nodes."""
    with file.open("r+b") as handle:
        handle.seek(file.stat().st_size // 2)
        handle.write(bytes(file.stat().st_size // 2))


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (overwrite, Code.MODEL_DIGEST),
        (lambda file: file.write_bytes(file.read_bytes()[:600]), Code.MODEL_NOT_FOUND),
        (Path.unlink, Code.MODEL_NOT_FOUND),
    ],
    ids=["overwritten", "cut short", "deleted"],
)
def test_files_that_change_under_a_node_are_an_error_and_no_wrong_weight(
    spoil: object, code: Code, copy: Path
) -> None:
    described, run = run_on(copy)
    run.apply(updates(30))
    run.weights.rebuild()
    before = weights(run)
    spoil(copy / WEIGHTS)  # type: ignore[operator]
    assert all(torch.equal(*pair) for pair in zip(weights(run), before, strict=True))
    run.apply(updates(30, key=2))
    with refused(code, WEIGHTS):
        run.weights.rebuild()
    right = trainer(described, model_override=model_folder("opt"))
    right.apply(updates(30))
    right.apply(updates(30, key=2))
    right.weights.rebuild()
    for name, new, old, wanted in zip(
        run.loaded.model.state_dict(), weights(run), before, weights(right), strict=True
    ):
        assert torch.equal(new, old) or torch.equal(new, wanted), name


def test_one_bit_is_enough_to_be_noticed(copy: Path) -> None:
    _, run = run_on(copy)
    last = max(float_tensors(copy).values(), key=lambda entry: entry.offset)
    numbers = [
        n
        for n, site in enumerate(run.loaded.sites)
        if float_tensors(copy).get(f"{site.target.name}.weight") == last
    ]
    flip_last_byte(copy / WEIGHTS)
    assert numbers
    with pytest.raises(UserError, match="has changed"):
        run.loaded.base_weights.read(numbers[0])
