"""`sfnode lab bench` measures any model in one run, prints consistent figures, and leaves nothing behind."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from sflab.bench import runner
from sflab.bench.runner import BenchPlan, run_benchmark
from sflab.bench.subject import SubjectSpec
from sflab.cli.bench import heading
from sfnode.models.model_files import EMBEDDED
from sfnode.schema.results import BatchResult, BenchResult
from tests.cli.helpers import Ended, Run

QUICK = ("--repetitions", "1", "--threads", "1")


@pytest.fixture(autouse=True)
def few_incoming(monkeypatch: pytest.MonkeyPatch) -> None:
    """Costs of other nodes' updates are measured for all numbers of them in `built_in` alone."""
    monkeypatch.setattr(runner, "INCOMING", (16,))


@pytest.fixture
def config_only(tmp_path: Path) -> Path:
    """A folder with a model's config.json and nothing else."""
    folder = tmp_path / "shape"
    folder.mkdir()
    shutil.copy(EMBEDDED / "tiny" / "config.json", folder)
    return folder


def measured(ended: Ended) -> BenchResult:
    """Return the result that was printed as JSON."""
    assert (ended.status, ended.err) == (0, "")
    return BenchResult.model_validate_json(ended.out)


def adds_up(batch: BatchResult, queries: int = 1, group: int = 0) -> None:
    """Check that the figures of a batch follow from its times."""
    assert batch.tokens_per_second == pytest.approx((group or 2) * batch.tokens / batch.step_seconds)
    assert batch.updates_per_hour == pytest.approx(3600 * queries * max(1, group) / batch.step_seconds)
    assert batch.step_ratio == pytest.approx(batch.step_seconds / batch.forwards_seconds)  # of a single turn


@pytest.fixture(scope="module")
def built_in() -> Iterator[BenchResult]:
    """Result for the built-in model beside MeZO, measured once."""
    threads = torch.get_num_threads()
    yield run_benchmark(
        SubjectSpec(tokens=24, dtype="float32"), BenchPlan((3, 1), 1, True, 1, 1), lambda what: None
    )
    torch.set_num_threads(threads)


def test_it_measures_the_built_in_model(built_in: BenchResult) -> None:
    result = built_in
    assert (result.model, result.parameters, result.matrices) == ("builtin:tiny", 164_800, 18)
    assert [(batch.batch, batch.tokens) for batch in result.batches] == [(1, 24), (3, 72)]
    for batch in result.batches:
        adds_up(batch)
        assert batch.mezo_all_ratio is not None
        assert batch.mezo_all_seconds == pytest.approx(batch.mezo_all_ratio * batch.step_seconds)
    assert [incoming.updates for incoming in result.incoming] == [16, 128, 1024, 8192]
    assert result.together == [], "there is one device"
    assert all(min(incoming.shares.values()) > 0 for incoming in result.incoming)


def test_memory_is_that_of_the_process_and_says_what_else_would_fit(built_in: BenchResult) -> None:
    result, batch = built_in, max(built_in.batches, key=lambda one: one.training_peak_bytes or 0)
    if batch.training_peak_bytes is None or batch.inference_peak_bytes is None:
        pytest.skip("this system does not say how much memory a process uses")
    assert result.free_bytes is not None
    assert result.overhead_bytes is not None
    assert batch.memory_ratio == batch.training_peak_bytes / batch.inference_peak_bytes
    assert result.weight_bytes == 4 * 164_800
    assert result.weight_bytes + result.overhead_bytes < batch.training_peak_bytes
    wide, _, _, narrow = result.fits
    assert (wide.dtype, narrow.dtype) == ("float32", "nf4")
    assert 4 * wide.parameters == pytest.approx(result.free_bytes - result.overhead_bytes, abs=4)
    assert narrow.parameters > 7 * wide.parameters


def test_a_person_gets_tables_that_fit_the_screen(sfnode: Run) -> None:
    ended = sfnode("lab", "bench", "--compare", "mezo", "--batch", 1, *QUICK)
    assert (ended.status, ended.err) == (0, "")
    assert "builtin:tiny: 0.2 M parameters" in ended.out
    for title in ("Time of a step", "Memory at its peak", "MeZO's step in place", "others' updates"):
        assert title in ended.out
    assert max(map(len, ended.out.splitlines())) <= 80


def test_on_a_busy_machine_it_says_so(built_in: BenchResult) -> None:
    def said(threads: int, busy_cores: float) -> str:
        return heading(built_in.model_copy(update={"threads": threads, "busy_cores": busy_cores}))

    assert "busy" not in said(1, 0.1)
    assert "other programs use 1.8 cores. Times are seconds of one core" in said(1, 1.8)
    assert "other programs use 1.8 cores. Times and ratios are rough" in said(2, 1.8)


def test_a_config_is_enough_of_a_model_and_nothing_is_left_behind(
    sfnode: Run, config_only: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    result = measured(sfnode("lab", "bench", "--json", "--model", config_only, "--batch", 1, *QUICK))
    assert (result.model, result.parameters) == (str(config_only), 164_800)
    assert list(scratch.iterdir()) == []
    assert [file.name for file in config_only.iterdir()] == ["config.json"]


def test_it_measures_a_run_with_its_own_data_and_numbers(sfnode: Run) -> None:
    keys = ("training.rank=16", "training.group=3", "init.measure=no")
    sfnode("init", "--task", "reviews", *(word for key in keys for word in ("--set", key)))
    result = measured(
        sfnode("lab", "bench", "--json", "--run", "run.toml", "--batch", 4, "--queries", 2, *QUICK)
    )
    (batch,) = result.batches
    assert (result.rank, result.queries, result.group) == (16, 2, 3)
    assert 2 * 4 * 5 < batch.tokens < 2 * 4 * 48  # reviews of a few words, none as long as the task allows
    adds_up(batch, queries=2, group=3)


@pytest.mark.parametrize(("dtype", "width"), [("bfloat16", 2), ("int8", 1)])
def test_weights_may_be_narrower_and_mezo_moves_only_what_is_not_packed(
    dtype: str, width: int, sfnode: Run
) -> None:
    options = ("--dtype", dtype, "--compare", "mezo", "--batch", 2)
    result = measured(sfnode("lab", "bench", "--json", *options, *QUICK))
    (batch,) = result.batches
    adds_up(batch)
    assert result.dtype == dtype
    assert width * 164_800 <= result.weight_bytes < 2 * width * 164_800
    assert (batch.mezo_matrices_seconds is None) == (batch.mezo_all_ratio is None) == (dtype == "int8")


def test_an_encoder_is_measured_with_its_own_classes(sfnode: Run, config_only: Path) -> None:
    sizes = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "max_position_embeddings": 40}
    counts = {"num_hidden_layers": 1, "num_attention_heads": 2, "id2label": {"0": "a", "1": "b", "2": "c"}}
    fields = {"model_type": "bert", "architectures": ["BertForSequenceClassification"], **sizes, **counts}
    (config_only / "config.json").write_text(json.dumps(fields))
    result = measured(
        sfnode("lab", "bench", "--json", "--model", config_only, "--batch", 2, "--tokens", 8, *QUICK)
    )
    (batch,) = result.batches
    adds_up(batch)
    assert result.matrices == 6 + 2  # those of the layer, the pooler's and the head's


def test_a_head_with_one_output_is_refused_as_no_task_has_one_class(sfnode: Run, config_only: Path) -> None:
    """A cross-encoder, which ranks texts, has one output."""
    sizes = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    fields = {"model_type": "bert", "architectures": ["BertForSequenceClassification"], **sizes}
    (config_only / "config.json").write_text(json.dumps(fields | {"id2label": {"0": "LABEL_0"}}))
    ended = sfnode("lab", "bench", "--model", config_only, *QUICK)
    assert (ended.status, ended.out) == (1, "")
    assert ended.err.startswith("sfnode: SF022: the model cannot be trained: its head has one output")


def test_a_model_that_sees_images_is_refused_by_the_layer_that_no_text_reaches(
    sfnode: Run, config_only: Path
) -> None:
    """The text settings of such a config.json are nested one level deeper."""
    text = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    sight = text | {"image_size": 28, "patch_size": 14, "vision_use_head": False}
    text |= {"num_key_value_heads": 1, "head_dim": 8, "vocab_size": 64, "max_position_embeddings": 64}
    fields = {"model_type": "gemma3", "text_config": text, "vision_config": sight, "mm_tokens_per_image": 4}
    (config_only / "config.json").write_text(json.dumps(fields))
    ended = sfnode("lab", "bench", "--model", config_only, *QUICK)
    assert (ended.status, ended.out) == (1, "")
    assert ended.err.startswith("sfnode: SF022: ")
    assert "vision_tower.encoder.layers.0.self_attn.k_proj is never called as a layer" in ended.err


@pytest.mark.parametrize(
    ("arguments", "complaint", "advice"),
    [
        (("--model", "shape:opt-9000"), "SF010: there is no shape called opt-9000", "There are: opt-125m, "),
        (("--rank", "33"), "SF010: --rank 33: rank must be a power of two", "32"),
        (("--group", "1"), "SF010: --group 1: a group has two updates or more", "2 to 64"),
        (("--tokens", "65"), "SF010: --tokens 65: the model takes 64 at most", "fewer"),
        (("--device", "abacus"), "SF024: the device 'abacus' cannot be used", "--device cpu"),
        (("--run", "nowhere.toml"), "SF011: cannot read the run manifest nowhere.toml", "sfnode init"),
    ],
)
def test_what_cannot_be_is_said_with_what_can(
    arguments: tuple[str, ...], complaint: str, advice: str, sfnode: Run
) -> None:
    ended = sfnode("lab", "bench", *arguments, *QUICK)
    assert (ended.status, ended.out) == (1, "")
    assert complaint in ended.err
    assert advice in ended.err


def test_a_config_that_is_none_is_refused(sfnode: Run, config_only: Path) -> None:
    (config_only / "config.json").write_text('{"model_type": "abacus"}')
    ended = sfnode("lab", "bench", "--model", config_only, *QUICK)
    assert (ended.status, ended.out) == (1, "")
    assert ended.err.startswith(f"sfnode: SF022: no model can be made from {config_only}")


def test_a_model_that_cannot_fit_is_refused_before_it_is_made(sfnode: Run, config_only: Path) -> None:
    fields = json.loads((config_only / "config.json").read_text())
    wide = {"vocab_size": 16_000_000, "hidden_size": 8192, "word_embed_proj_dim": 8192}
    (config_only / "config.json").write_text(json.dumps(fields | wide))
    ended = sfnode("lab", "bench", "--model", config_only, "--dtype", "float32", *QUICK)
    assert (ended.status, ended.out) == (1, "")
    assert ended.err.startswith(f"sfnode: SF025: {config_only} has 131.")
    assert "--dtype" in ended.err
