"""Questions of a running node to its engine, and the loading of the engine."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from sfnode.limits import Limits
from sfnode.manifest import Manifest
from sfnode.manifest.sections import Data
from sfnode.manifest.task import Task
from sfnode.manifest.training import Training
from sfnode.node.training.model import load_trainer
from sfnode.tasks import public_files
from sfnode.tasks.public_files import Places
from tests.node.helpers import Node, SmallEngine, Swarm


async def test_between_the_two_states_of_a_way_no_step_is_made(swarm: Swarm) -> None:
    a = await swarm.first()
    await a.until(lambda: a.node.model.loaded)
    made: list[int] = []

    def noting(engine: SmallEngine) -> dict[int, Any]:
        made.append(len(engine.epochs))
        return {}

    def question(engine: Any, after: Mapping[int, Any]) -> int:
        return len(engine.epochs)

    a.engine.cores = lambda: noting(a.engine)  # type: ignore[method-assign]
    await a.until(lambda: len(a.engine.epochs) > 0)
    for _ in range(5):
        asked = await a.node.model.ask_of_step(question, dict, dict, "asking")
        assert asked == made[-1]


# -- loading ------------------------------------------------------------------------------------


WORDS = ["<pad>", "<s>", "the", "film", "was", "dull", "bright", "It", "terrible", "great", "."]
ROWS = [
    "sentence\tlabel",
    "the film was bright .\t1",
    "the film was dull .\t0",
    "bright .\t1",
    "dull film\t0",
]


def make_model(folder: Path) -> None:
    """A random OPT with a word-level tokenizer, in Hugging Face format."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import OPTConfig, OPTForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(1)
    sizes: dict[str, Any] = {"hidden_size": 16, "word_embed_proj_dim": 16, "ffn_dim": 32}
    depth: dict[str, Any] = {"num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 32}
    words: dict[str, Any] = {
        "vocab_size": len(WORDS),
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 1,
    }
    OPTForCausalLM(OPTConfig(**sizes, **depth, **words, init_std=0.3)).save_pretrained(folder)
    tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate(WORDS)}, unk_token="the"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    build: Any = PreTrainedTokenizerFast
    build(tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>").save_pretrained(folder)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model and with rows."""
    folder = tmp_path_factory.mktemp("model")
    make_model(folder)
    (folder / "rows.tsv").write_text("\n".join(ROWS) + "\n")
    return folder


@pytest.fixture(scope="module")
def real(home: Path) -> Manifest:
    """A run on a model and on data that are files."""
    from sfnode.models import loader

    digest = public_files.digest_of(home / "rows.tsv")
    return Manifest(
        name="real",
        model=loader.describe(str(home), ""),
        task=Task(
            kind="classification", template="{sentence} It was", verbalizer={"0": "terrible", "1": "great"}
        ),
        data=Data(train="rows.tsv", test="rows.tsv", digests={"train": digest, "test": digest}),
        training=Training(rank=4, batch_size=2, epoch_updates=30, update_budget=120, learning_rate=0.01),
    )


@pytest.mark.parametrize("group", [0, 8], ids=["pairs", "groups"])
async def test_a_node_with_two_devices_is_one_node_with_one_feed(
    tmp_path: Path, home: Path, real: Manifest, group: int
) -> None:
    real = real.model_copy(update={"training": real.training.model_copy(update={"group": group})})
    swarm = Swarm(tmp_path, real)
    both, alone = (trains(swarm, name, home) for name in "ab")
    await swarm.first(device="cpu,cpu", model=home)
    await swarm.join("b", model=home)
    for node in (alone, both):
        await node.until(lambda node=node: node.node.status().state == "complete")  # type: ignore[misc]
    for node in (alone, both):
        await node.until(lambda: alone.digest == both.digest)
    assert (await alone.client.digest()) == (await both.client.digest())
    status = await both.client.status()
    assert [(one.name, one.problem) for one in status.devices] == [("cpu 1", None), ("cpu 2", None)]
    assert sum(one.updates for one in status.devices) >= status.own_updates > 0
    feeds = [state.feed for state in both.machine.frontier if state.feed.origin.hex() == status.origin]
    assert feeds == [both.machine.own]
    (single,) = (await alone.client.status()).devices
    assert single.name == "cpu"
    one, other = [(await node.client.evaluate()).model_dump(exclude={"seconds"}) for node in (alone, both)]
    assert one == other
    await swarm.stop()


async def test_a_device_that_fails_is_said_and_the_others_go_on_until_a_pause_lets_it_try_again(
    tmp_path: Path, home: Path, real: Manifest
) -> None:
    numbers = {"epoch_updates": 1_000_000, "update_budget": 1_000_000}
    swarm = Swarm(tmp_path, real.model_copy(update={"training": real.training.model_copy(update=numbers)}))
    node = trains(swarm, "a", home)
    await swarm.first(device="cpu,cpu", model=home)
    await node.until(lambda: node.engine and all(one.updates for one in node.engine.devices))
    first, second = node.engine.devices

    def fail(*_: object) -> None:
        raise RuntimeError("CUDA error: the GPU has fallen off the bus")

    second.trainer.estimate = fail
    await node.until(lambda: node.node.status().alarms)
    (alarm,) = node.node.status().alarms
    assert (alarm.code, "'cpu 2'" in alarm.what) == ("SF024", True)
    made = first.updates
    await node.until(lambda: first.updates > made)
    await node.client.pause()
    del second.trainer.estimate
    made = second.updates
    await node.client.resume()
    await node.until(lambda: second.updates > made)
    assert node.node.status().alarms == []
    await swarm.stop()


def trains(swarm: Swarm, name: str, home: Path) -> Node:
    """A node of the swarm that loads a model and rows, which its owner has in a folder."""
    node = swarm.node(name)
    public_files.bring(swarm.run.data, Places((home,)), swarm.folder)
    node.make_engine = lambda run: load_trainer(
        node.settings.model_copy(update={"limits": Limits(threads=1)}), run
    )
    return node


def fingerprint(engine: Any) -> str:
    """Return a hash of all weights."""
    state = engine.loaded.model.state_dict()
    return hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in state.values())).hexdigest()
