"""`sfnode organise make-bases`: computes bases for a coming subspace with the model of the last seal.

`sfnode organise try-reward`: scores a base model's answers, and shows whether the model can learn from their
rewards.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from sfnode.cli import options
from sfnode.cli.output import echo
from sfnode.cli.progress import waiting
from sfnode.errors import Code, UserError
from sfnode.printable import command, paragraph, size_text
from sfnode.tasks.presets import PRESETS

if TYPE_CHECKING:
    from sfnode.engine.making_bases import Made
    from sfnode.manifest import Manifest
    from sfnode.schema.results import TriedAnswer, TryRewardResult


@click.command
@options.out_option("FOLDER", "Where to write the file, which is named by its digest.")
@options.option(
    "--basis",
    "kind",
    type=click.Choice(["gradients", "errors"]),
    default="gradients",
    help="gradients: the strongest directions of the mean gradient, by backward passes on this machine; "
    "errors: those of the layers' inputs that go with the errors of its output, by forward passes alone.",
)
@options.model_options
def make_bases(out: Path, kind: str, data_dir: Path, model: Path | None, device: str, dtype: str) -> None:
    """Make bases for the run of a node's folder, and write them to a file.

    They are computed from the run's public training rows, with the model of the last seal (of an open run: as
    of now). `sfnode organise bases FILE` publishes them.
    """
    from sfnode.cli.trained_model import load
    from sfnode.engine import making_bases
    from sfnode.models.bases import path_in
    from sfnode.preparing.scalars import write_bases

    trained = load(data_dir, model, device, dtype, as_of_now=False)
    with trained.trainer as trainer, waiting(f"making bases from {kind}") as advance:
        found = making_bases.make(trainer, kind, advance)
        file = path_in(out, write_bases(out, found.pairs))
    echo(f"made at {trained.moment}: {words(kind, found)}")
    echo(f"wrote {file}; publish it with `{command('sfnode', 'organise', 'bases', file)}`")


def words(kind: str, found: Made) -> str:
    """Describe new bases. State the share of each layer's mean gradient, or of the products of its inputs
    with the errors, that the bases contain. State the agreement between two halves of the rows (a cosine),
    and the cost in forward passes."""
    rank = found.pairs[0][0].shape[1]
    directions = "1 direction of every layer holds" if rank == 1 else f"{rank} directions of every layer hold"
    what = "mean gradient" if kind == "gradients" else "inputs' share in the errors"
    mean, least = (sum(found.held) / len(found.held), min(found.held)) if found.held else (0.0, 0.0)
    return (
        f"{directions} {mean:.0%} of its {what} in the mean over the layers, and {least:.0%} at least; "
        f"two halves of the rows agree to {found.agreement:.2f} of 1; "
        f"{found.example_forwards:,} example-forwards"
    )


REWARDED = tuple(name for name, one in PRESETS.items() if one.task.is_rewarded)
"""Names of the ready-made tasks with rewards."""

MOST_PROMPTS = 512
"""Maximum number of prompts. 512 prompts determine the mean reward to within 4 percentage points."""


@click.command
@click.argument("run", required=False, type=click.Path(path_type=Path, dir_okay=False), metavar="[RUN.toml]")
@options.option(
    "--task", "preset", type=click.Choice(REWARDED), help="A ready-made task, in place of a manifest."
)
@options.option(
    "--model", metavar="SOURCE", help="The base model: a folder, or with --task a Hugging Face id."
)
@options.option(
    "--train", metavar="SOURCE", help="With --task: other prompts, in the forms of `sfnode init`."
)
@options.option(
    "--prompts", type=click.IntRange(1, MOST_PROMPTS), default=16, help="Prompts that the base model answers."
)
@options.option("--temperature", type=float, metavar="NUMBER", help="Another temperature.")
@options.verifier_option
@options.device_option
@options.dtype_option
@options.json_option
def try_reward(
    run: Path | None,
    preset: str | None,
    model: str | None,
    train: str | None,
    prompts: int,
    temperature: float | None,
    verifier: tuple[str, ...],
    device: str,
    dtype: str,
    as_json: bool,
) -> None:
    """Score a base model on some prompts of a reward run.

    Shows typical answers with their rewards and this machine's speed. Several answers are drawn for each
    prompt, as in training. A prompt teaches something only if its answers differ in reward. Shows the number
    of such prompts, and fails if there are none.
    """
    manifest = _manifest(run, {"preset": preset, "train": train} | ({} if run else {"model": model}))
    manifest = _changed(manifest, temperature)
    from sfnode.tasks import verifying

    verifying.permit(manifest.task, verifier)
    from sfnode.models.model_files import named_folder
    from sfnode.preparing.rewards import try_out
    from sfnode.preparing.scalars import Means
    from sfnode.store.named_files import NamedFiles
    from sfnode.tasks.public_files import beside, typed

    found = NamedFiles().and_beside(manifest, run.parent) if run else NamedFiles()
    home = named_folder(model or "") or found.model
    places = beside(manifest.data, run.parent) if run else typed(manifest.data)
    means = Means(device, dtype, run.parent if run else None, home, places)
    result, problem = try_out(manifest, means, prompts, waiting)
    echo(result.model_dump_json(indent=2) if as_json else "\n".join(_lines(result)))
    if problem:
        raise problem


def _manifest(run: Path | None, given: dict[str, str | None]) -> Manifest:
    """Return the manifest in the file `run`; if `run` is None, the manifest of the ready-made task in
    `given`. Raises UserError."""
    chosen = {name: value for name, value in given.items() if value is not None}
    if (run is None) == ("preset" not in chosen) or (run and chosen):
        raise UserError(
            Code.BAD_OPTION,
            "it takes a run's manifest, or a ready-made task with --task",
            "`sfnode organise try-reward run.toml`, or with `--task gsm8k --model MODEL` in its place. For a "
            "task of your own write the manifest first: `sfnode init`.",
        )
    from sfnode.manifest import Manifest

    if run:
        return Manifest.from_toml(run)
    from sfnode.preparing.manifest import build

    return build(chosen)


def _changed(manifest: Manifest, temperature: float | None) -> Manifest:
    """Return the manifest with this temperature, or unchanged if `temperature` is None. Raises UserError
    BAD_OPTION."""
    from pydantic import ValidationError

    from sfnode.manifest.task import Task

    if temperature is None:
        return manifest
    try:
        task = Task(**manifest.task.model_dump() | {"temperature": temperature})
    except ValidationError as error:
        raise UserError(
            Code.BAD_OPTION,
            f"temperature: {options.reason(error)}",
            "`sfnode init --help` says what it may be.",
        ) from error
    return manifest.model_copy(update={"task": task})


def _lines(result: TryRewardResult) -> list[str]:
    """Format the result as lines of text."""
    memory = "" if result.peak_bytes is None else f", {size_text(result.peak_bytes)} at most"
    return [
        f"{result.model} on {result.device} in {result.dtype}, loaded in {result.load_seconds:.1f} s{memory}",
        *(line for one in result.examples for line in _example(one)),
        "",
        f"{result.prompts} prompts (95 % interval), the likeliest tokens:",
        f"  mean reward {_interval(result.reward, result.reward_low, result.reward_high)}",
        f"  right       {_interval(result.right, result.right_low, result.right_high)}",
        f"{result.answers} answers to them, drawn as in training at temperature {result.temperature:g}:",
        f"  mean reward {result.drawn_reward:.3f}",
        f"  {result.apart:.0%} of the prompts got answers of which one is better than another; the others "
        "teach nothing",
        f"  {result.seconds:.1f} s: {result.answers_per_second:,.1f} answers/s, "
        f"{result.tokens_per_second:,.0f} tokens/s",
        *(
            [f"  {result.cut / result.answers:.0%} of these were cut off by answer_tokens"]
            if result.cut
            else []
        ),
    ]


def _example(one: TriedAnswer) -> list[str]:
    right = [f"  right   {paragraph(one.right)}"] if one.right else []
    return [
        "",
        f"  prompt  {paragraph(one.prompt)}",
        *right,
        f"  answer  {paragraph(one.answer)}",
        f"  reward  {one.reward:.2f}",
    ]


def _interval(value: float, low: float, high: float) -> str:
    return f"{value:.3f} ({low:.3f} to {high:.3f})"
