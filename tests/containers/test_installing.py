"""A volunteer's machine: sfnode is installed in a bare container, joins a run, and its result is used.

The container has Python and a package index. The sdist is built from this checkout, and the wheel from the
sdist. `uv tool install` installs it, because it unpacks torch in seconds. The image is built with pip.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from tests.containers.docker import INSTALLER, LOADER, ROOT, Bases, run, timed
from tests.containers.swarm import PROJECT, Swarm, execute, until_sealed, until_status

pytestmark = [pytest.mark.containers, pytest.mark.timeout(3600)]

TOOLS = "/tools"
"""Folder of the environments that uv makes; commands go where every shell looks."""

INSTALL = f"""
python3 -m venv /uv
/uv/bin/pip install --quiet --disable-pip-version-check '{INSTALLER}'
index="${{PIP_FIND_LINKS:+--no-index --find-links $PIP_FIND_LINKS}}"
/uv/bin/uv build --quiet $index --out-dir /dist /source
/uv/bin/uv tool install --quiet $index --find-links /dist --with '{LOADER}' \\
    --constraints /source/constraints/torch.txt sfnode
ls /dist
"""

LOAD = """
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer
from sfnode.models.model_files import EMBEDDED

base = AutoModelForCausalLM.from_pretrained(EMBEDDED / "tiny")
whole = AutoModelForCausalLM.from_pretrained("./model")
text = AutoTokenizer.from_pretrained("./model")("the food was fine", return_tensors="pt").input_ids
with torch.inference_mode():
    before, after = base(text).logits, whole(text).logits
    adapted = PeftModel.from_pretrained(base, "./adapter")(text).logits
assert not torch.allclose(before, after, atol=1e-3)
assert torch.allclose(adapted, after, atol=1e-3), (adapted - after).abs().max()
"""


@pytest.fixture(scope="module")
def volunteer(swarm: Swarm, images: Bases) -> Iterator[str]:
    """Container in the network of the swarm, with a package index and without sfnode."""
    environment = [f"UV_TOOL_DIR={TOOLS}", "UV_TOOL_BIN_DIR=/usr/local/bin", "HF_HUB_OFFLINE=1"]
    environment += [] if images.build_base else ["UV_TORCH_BACKEND=cpu"]
    container = run(
        *("docker", "run", "--detach", "--init", "--network", f"{PROJECT}_default"),
        *("--volume", f"{ROOT}:/source:ro", "--workdir", "/volunteer"),
        *(word for one in environment for word in ("--env", one)),
        *(images.build_base or images.base, "sleep", "infinity"),
    ).strip()
    yield container
    run("docker", "rm", "--force", "--volumes", container)


def test_a_volunteer_installs_joins_and_can_use_and_verify_the_result(
    swarm: Swarm, trainers: list[str], volunteer: str
) -> None:
    with timed("installed"):
        built = execute(volunteer, "sh", "-euc", INSTALL).split()
    assert [name.rpartition(".")[2] for name in sorted(built)] == ["whl", "gz"]
    (relay,) = swarm.containers("relay")
    link = json.loads(execute(relay, "sfnode", "invite", "--json"))["link"]
    with timed("until it trains"):
        run("docker", "exec", "--detach", volunteer, "sfnode", "join", link, "--threads", 1)
        until_status("it trains", volunteer, lambda status: status["own_updates"] > 0)
        until_sealed("it has a seal", volunteer, 1)
    execute(volunteer, "sfnode", "leave")
    with timed("exported, loaded and verified"):
        execute(volunteer, "sfnode", "export", "--out", "model")
        execute(volunteer, "sfnode", "export", "--out", "adapter", "--format", "lora")
        execute(volunteer, f"{TOOLS}/sfnode/bin/python", "-c", LOAD)
        card = execute(volunteer, "cat", "model/README.md")
        commands = "".join(re.findall(r"```sh\n(.*?)```", card, re.DOTALL))
        said = execute(volunteer, "sh", "-euc", commands)
    digest = re.search(r"core digest `(\w+)`", card)
    assert digest
    assert digest[1] in said
    assert said.rstrip().endswith("model.safetensors: OK")
