"""The base model: its digest names it, only safe files are read, and the targets are what the run says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from sfnode import hub
from sfnode.engine import forward
from sfnode.errors import Code
from sfnode.manifest.sections import Model
from sfnode.manifest.task import Task
from sfnode.models import loader, model_files
from sfnode.tasks.encoding import encode
from tests.engine.helpers import manifest, model_folder
from tests.models import hostile
from tests.models.families import WORDS, shard
from tests.models.hostile import change
from tests.refusals import refusal

CPU = torch.device("cpu")
WEIGHTS = "model.safetensors"


def test_the_digest_does_not_depend_on_how_the_weights_are_cut_into_files(copy: Path) -> None:
    shard(copy)
    assert model_files.digest(copy) == model_files.digest(model_folder("opt"))


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "tokenizer_config.json"])
def test_the_digest_covers_the_files_that_give_weights_and_text_their_meaning(copy: Path, file: str) -> None:
    (copy / file).write_text((copy / file).read_text() + " ")
    assert model_files.digest(copy) != model_files.digest(model_folder("opt"))


def test_one_changed_weight_is_refused_and_both_digests_are_named(copy: Path) -> None:
    run = manifest("opt")
    tensors = load_file(copy / WEIGHTS)
    next(iter(tensors.values())).view(-1)[0] += 1e-6
    save_file(tensors, copy / WEIGHTS)
    error = refusal(loader.load, run, override=copy, device=CPU)
    assert error.code is Code.MODEL_DIGEST
    assert run.model.digest in error.what
    assert model_files.digest(copy) in error.what


def test_the_same_model_is_welcome_from_another_folder(copy: Path) -> None:
    shard(copy)
    assert loader.load(manifest("opt"), override=copy, device=CPU).folder == copy


def test_a_folder_with_a_pickle_only_is_refused_without_opening_it(copy: Path) -> None:
    (copy / WEIGHTS).unlink()
    (copy / "pytorch_model.bin").write_bytes(b"not even a pickle")
    assert refusal(loader.describe, str(copy), "").code is Code.MODEL_UNSAFE


@pytest.mark.parametrize("source", ["builtin:absent", "no such model: at all"])
def test_a_model_that_is_nowhere_is_said_to_be_nowhere(source: str) -> None:
    assert refusal(loader.describe, source, "").code is Code.MODEL_NOT_FOUND


def test_an_override_that_is_no_model_is_said_to_be_none(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "absent"):
        error = refusal(loader.load, manifest("opt"), override=folder, device=CPU)
        assert error.code is Code.MODEL_NOT_FOUND


@pytest.mark.parametrize("keep", [0, 7, 100, -1])
def test_a_file_that_was_cut_short_is_refused(copy: Path, keep: int) -> None:
    (copy / WEIGHTS).write_bytes((copy / WEIGHTS).read_bytes()[:keep])
    assert refusal(model_files.digest, copy).code is Code.MODEL_UNSUPPORTED


def test_a_missing_shard_is_named(copy: Path) -> None:
    shard(copy)
    (copy / "model-00002-of-00002.safetensors").unlink()
    assert "model-00002-of-00002" in refusal(model_files.digest, copy).what


def test_a_missing_tensor_is_refused_and_not_made_up(copy: Path) -> None:
    tensors = load_file(copy / WEIGHTS)
    lost = next(name for name in tensors if name.endswith("fc1.weight"))
    del tensors[lost]
    save_file(tensors, copy / WEIGHTS, {"format": "pt"})
    run = manifest("opt").model_copy(update={"model": loader.describe(str(copy), "")})
    error = refusal(loader.load, run, override=copy, device=CPU)
    assert error.code is Code.MODEL_UNSUPPORTED
    assert lost in error.what


def test_weights_are_read_as_precisely_as_they_are_stored(copy: Path) -> None:
    change(copy / "config.json", dtype="float16")
    run = manifest("opt").model_copy(update={"model": loader.describe(str(copy), "")})
    loaded = loader.load(run, override=copy, device=CPU)
    stored = load_file(copy / WEIGHTS)
    for site in loaded.sites:
        assert torch.equal(loader.matrix(site), stored[f"{site.target.name}.weight"])


def test_an_adapter_in_the_folder_is_refused_as_no_digest_covers_it(copy: Path) -> None:
    (copy / "adapter_config.json").write_text("{}")
    assert refusal(loader.load, manifest("opt"), override=copy, device=CPU).code is Code.MODEL_UNSAFE


def test_a_model_that_needs_code_of_its_own_is_refused(copy: Path) -> None:
    own = {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Own"}
    change(copy / "config.json", model_type="own", auto_map=own)
    (copy / "own.py").write_text("raise SystemExit('code of a model was run')")
    assert refusal(loader.describe, str(copy), "").code is Code.MODEL_UNSUPPORTED


@pytest.mark.parametrize("targets", [("lm_head:20x8",), ("model.decoder.layers.0.fc1:16x40",)])
def test_a_target_that_the_model_does_not_have_is_refused(targets: tuple[str, ...]) -> None:
    run = manifest("opt")
    wanted = Model(source=run.model.source, digest=run.model.digest, targets=targets)
    run = run.model_copy(update={"model": wanted})
    error = refusal(loader.load, run, override=model_folder("opt"), device=CPU)
    assert error.code is Code.MODEL_UNSUPPORTED
    assert targets[0] in error.what


# -- model and tokenizer -----------------------------------------------------------------------------

OPT_TOKENS = len(WORDS)


def with_token(folder: Path, content: str, **how: bool) -> None:
    """Add a token to a tokenizer's file; it gets the first number that the model does not know."""
    file = folder / "tokenizer.json"
    found = json.loads(file.read_text())
    found["added_tokens"].append(hostile.added(OPT_TOKENS, content) | how)
    file.write_text(json.dumps(found))


def in_a_text(folder: Path) -> None:
    with_token(folder, "film!")


def for_padding(folder: Path) -> None:
    with_token(folder, "<fill>", special=True)
    change(folder / "tokenizer_config.json", pad_token="<fill>")


def in_the_template(folder: Path) -> None:
    with_token(folder, "<turn>", special=True)
    said = "{% for m in messages %}<turn>{{ m.content }}{% endfor %}"
    change(folder / "tokenizer_config.json", chat_template=said)


@pytest.mark.parametrize("spoil", [in_a_text, for_padding, in_the_template])
def test_a_tokenizer_with_tokens_that_the_model_does_not_know_is_refused(
    spoil: Callable[[Path], None], copy: Path
) -> None:
    spoil(copy)
    run = manifest("opt")
    theirs = run.model.model_copy(update={"source": str(copy), "digest": model_files.digest(copy)})
    spoilt = run.model_copy(update={"model": theirs})
    for refused in (
        refusal(loader.describe, str(copy), ""),
        refusal(loader.load, spoilt, override=copy, device=CPU),
        refusal(loader.require_match, copy, 0),
    ):
        assert refused.code is Code.MODEL_UNSUPPORTED
        assert f"do not match: the model knows {OPT_TOKENS} tokens" in refused.what


def test_a_special_token_that_stands_in_no_text_is_no_fault_until_it_does(copy: Path) -> None:
    """As Gemma 3 has one for images."""
    with_token(copy, "<image>", special=True)
    found = loader.describe(str(copy), "")
    run = manifest("opt").model_copy(update={"model": found})
    loaded = loader.load(run, override=copy, device=CPU)
    for text, fine in (("a film", True), ("a <image>", False)):
        encoded = encode(Task(kind="text", template="{t}"), loaded.tokenizer, [{"t": text}])
        if fine:
            assert forward.score(loaded, encoded).log_probs.isfinite().all()
            continue
        assert refusal(forward.score, loaded, encoded).code is Code.MODEL_UNSUPPORTED


def test_tokens_that_a_model_can_read_and_not_write_are_not_known(copy: Path) -> None:
    model = loader.read_skeleton(copy, 0)
    assert loader.known_tokens(model) == OPT_TOKENS
    model.set_output_embeddings(torch.nn.Linear(8, OPT_TOKENS - 1, device="meta"))
    assert loader.known_tokens(model) == OPT_TOKENS - 1


@pytest.mark.parametrize(
    "source", ["{copy}", "{copy}/../copy", "~/copy", "copy", "a/copy", "builtin:../copy"]
)
def test_a_models_source_in_a_manifest_is_no_folder_here(
    source: str, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (copy.parent / "a").symlink_to(copy.parent)
    monkeypatch.chdir(copy.parent)
    monkeypatch.setenv("HOME", str(copy.parent))
    monkeypatch.setattr(hub, "unreachable", lambda: "it does not answer")
    named = source.format(copy=copy)
    assert refusal(model_files.resolve, named, "", None).code is Code.MODEL_NOT_FOUND
    run = manifest("opt")
    other = run.model.model_copy(update={"source": named, "digest": model_files.digest(copy)})
    theirs = run.model_copy(update={"model": other})
    assert refusal(loader.load, theirs, override=None, device=CPU).code is Code.MODEL_NOT_FOUND
    if not source.startswith("builtin:"):
        assert model_files.located(named) == copy, "whoever types it means a folder"


def test_a_manifest_has_the_label_of_a_folder_that_was_typed(copy: Path) -> None:
    assert loader.describe(str(copy), "").source == "copy"
