"""`sfnode lm-eval`: the EleutherAI evaluation harness on a run's model, or on any checkpoint."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from sfnode.cli.options import as_of_now_option, device_option, model_option, option
from sfnode.cli.progress import waiting
from sfnode.errors import Code, UserError

PACKAGE, EXTRA = "lm_eval", "lm-eval"


@click.command("lm-eval")
@click.argument("checkpoint")
@option(
    "--tasks",
    default="",
    metavar="NAME,...",
    help="Tasks of the harness, or YAML files that describe some.",
)
@model_option
@device_option
@as_of_now_option
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[-- ARGUMENTS]")
def lm_eval(
    checkpoint: str, tasks: str, model: Path | None, device: str, as_of_now: bool, arguments: tuple[str, ...]
) -> None:
    """Run the tasks of lm-evaluation-harness on CHECKPOINT; needs the extra lm-eval.

    CHECKPOINT is the data folder of a run (--model and --as-of-now are about it, as for `sfnode export`),
    a folder that `sfnode export` has written, or whatever transformers loads. ARGUMENTS are the harness's:
    `sfnode lm-eval ~/.sfnode --tasks sst2 -- --limit 100 --batch_size 8`. It reads the model's own
    probabilities: nothing is calibrated (docs/tasks.md).
    """
    from sfnode.store.data_folder import Layout

    if not tasks:
        raise click.UsageError("Name the tasks of the harness with --tasks, for example sst2.")
    if find_spec(PACKAGE) is None:
        raise UserError(
            Code.EXTRA_MISSING,
            "`sfnode lm-eval` needs the EleutherAI evaluation harness, which is not installed",
            f"Install it with `pip install 'sfnode[{EXTRA}]'`.",
        )
    if Layout(Path(checkpoint).expanduser()).manifest.exists():
        with _exported(Path(checkpoint).expanduser(), model, device, as_of_now) as folder:
            _run(str(folder), tasks, device, arguments)
    else:
        _run(_found(checkpoint), tasks, device, arguments)


@contextmanager
def _exported(data_dir: Path, model: Path | None, device: str, as_of_now: bool) -> Iterator[Path]:
    """Yield a temporary folder with the model of a run."""
    from sfnode.cli.trained_model import load

    trained = load(data_dir, model, device, "stored", as_of_now=as_of_now)
    with TemporaryDirectory(prefix="sfnode-") as folder, waiting("writing the model"):
        trained.trainer.export(Path(folder) / "model", "hf")
        yield Path(folder) / "model"


def _found(checkpoint: str) -> str:
    """Return the folder of a checkpoint; what cannot be one on this machine is a name for transformers."""
    from sfnode.models.files import BUILTIN, CONFIG, resolve

    if checkpoint.startswith(BUILTIN):
        return str(resolve(checkpoint, "", None))
    folder = Path(checkpoint).expanduser()
    if (folder / CONFIG).is_file():
        return str(folder.resolve())
    if folder.exists() or checkpoint.startswith((".", "/", "~")):
        raise UserError(
            Code.MODEL_NOT_FOUND,
            f"{checkpoint} is neither the data folder of a run nor a checkpoint with its {CONFIG}",
            "Name one of them; `sfnode export` writes a checkpoint.",
        )
    return checkpoint


def _run(checkpoint: str, tasks: str, device: str, arguments: tuple[str, ...]) -> None:
    """Run the harness in a process of its own, whose output is ours. Raises UserError HARNESS_FAILED.

    Without the current folder in Python's path, in which anything may be called like a module.
    """
    command = [
        *(sys.executable, "-P", "-m", PACKAGE, "run", "--model", "hf"),
        *("--model_args", json.dumps({"pretrained": checkpoint}), "--tasks", tasks, "--device", device),
    ]
    sys.stdout.flush()
    status = subprocess.run([*command, *arguments]).returncode
    if status:
        raise UserError(
            Code.HARNESS_FAILED,
            f"the evaluation harness has ended with status {status}",
            "What it says above is the cause; `lm_eval ls tasks` lists its tasks.",
        )
