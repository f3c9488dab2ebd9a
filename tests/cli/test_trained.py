"""Tests of the targets in the manifest, by the options of `sfnode init`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sfnode.manifest import Manifest
from sfnode.preparing.manifest import build
from tests.cli.helpers import Run

LAYERS = [f"model.decoder.layers.{n}" for n in range(3)]
"""Names of the layers of the built-in model, an OPT."""


@pytest.fixture
def trained(sfnode: Run) -> Callable[..., list[str]]:
    """Return a function that returns the targets of a run with these options."""

    def init(*options: object) -> list[str]:
        ended = sfnode("init", "--task", "reviews", "--force", "--set", "init.measure=no", *options)
        assert (ended.status, "SF" in ended.err) == (0, False)
        return list(Manifest.from_toml(Path("run.toml")).model.targets)

    return init


def test_without_options_all_linear_layers_are_trained(trained: Callable[..., list[str]]) -> None:
    assert trained() == trained("--set", "model.target_modules=all-linear") == list(build({}).model.targets)
    assert len(trained()) == 3 * 6


def test_patterns_choose_linear_layers(trained: Callable[..., list[str]]) -> None:
    expected = [f"{layer}.{name}" for layer in LAYERS for name in ("self_attn.q_proj:64x64", "fc1:256x64")]
    assert trained("--set", "model.target_modules=fc1, q_proj") == expected
    assert trained("--set", r"model.target_modules=.*\.2\.fc[12]") == [
        f"{LAYERS[2]}.fc1:256x64",
        f"{LAYERS[2]}.fc2:64x256",
    ]


def test_embeddings_biases_and_norms_are_trained_if_asked_for(trained: Callable[..., list[str]]) -> None:
    assert trained("--set", "model.train_embeddings=yes") == ["model.decoder.embed_tokens:64x164", *trained()]
    norms = trained("--set", "model.train_norms=yes", "--set", "model.target_modules=none")
    assert len(norms) == 2 + 3 * 4
    assert all("norm" in name and name.endswith(":64x1") for name in norms)
    fc1 = trained("--set", "model.train_biases=yes", "--set", "model.target_modules=fc1")
    assert [name for name in fc1 if "0.fc1" in name] == [
        f"{LAYERS[0]}.fc1:256x64",
        f"{LAYERS[0]}.fc1.bias:256x1",
    ]
    assert len(fc1) == 3 + 3 * 6


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--set", "model.target_modules=q_porj"), "no module 'q_porj'; close to it: q_proj"),
        (
            ("--set", "model.target_modules=self_attn_layer_norm"),
            "self_attn_layer_norm is a LayerNorm, no linear layer",
        ),
        (("--set", "model.target_modules=none"), "nothing in it is chosen for training"),
    ],
)
def test_what_cannot_be_trained_is_refused_with_the_reason(
    options: tuple[str, ...], says: str, sfnode: Run
) -> None:
    ended = sfnode("init", "--task", "reviews", *options).refused()
    assert ended.err.splitlines()[-2].startswith("sfnode: SF022: ")
    assert says in ended.err
    assert not Path("run.toml").exists()
