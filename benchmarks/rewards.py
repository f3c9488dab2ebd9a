"""Alternatives to a reward run that a user has with the base model, measured on one greedy answer per prompt.

    python -m benchmarks.rewards [--task extract] [--prompts 192] [--rates 3e-4 1e-3] [--only base]

The model is that of scripts/real_model.py. Prints a line of JSON for each of

    base       the model as it is, and the best of 4 drawn answers
    few-shot   with 8 more training rows and their right answers in the prompt
    right      LoRA on the right answers to some training prompts, which a reward run never sees
    own        LoRA on the right ones among 4 answers drawn per training prompt (rejection sampling)
    supervised a run of three nodes on the right answers of `right`
    random     a reward run of three nodes whose rewards follow from a hash of the answer
    form       a reward run in which every answer of the right form is rewarded, whatever it says

with the share of right answers to the test prompts, its interval, the mean reward, the share of answers of
the right form, the number of answers drawn for training, and the seconds. LoRA is trained as in
benchmarks.lora: rank 8 on the query and value projections, AdamW, mini-batches of 8. Of three passes, the
model with the least loss on every eighth row is taken. Runs are those that `sfnode init` proposes. `sfnode
swarm` prints the same figures for a run. Results: docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import copy
import json
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import (
    LoraConfig,
    TaskType,
    get_peft_model,
    get_peft_model_state_dict,
    set_peft_model_state_dict,
)
from transformers import AutoModelForCausalLM

from benchmarks.lora import BATCH, RANK, WARMUP
from benchmarks.real import sfnode
from scripts import real_model
from scripts.orders import DAYS
from sflab.baselines.model_problem import LORA_ALPHA
from sfnode.engine.generation import AnswerRequest, generate
from sfnode.engine.reward_objective import RIGHT, Question, Rewards
from sfnode.manifest import Manifest
from sfnode.manifest.task import ANSWERS
from sfnode.models import loader
from sfnode.tasks import dataset, metrics, presets
from sfnode.tasks.encoding import Encoded, WrittenAnswer, encode_written
from sfnode.tasks.verifying import score_of
from sfprotocol.seeds import derive_key, stream

SHOTS, PASSES = 8, 3
TARGET = "json"
"""Column with the right answer."""

RANDOM = "benchmarks.random_reward:reward"
WORDS = {"type": "string", "minLength": 1}
MEMBERS = {
    "name": WORDS,
    "item": WORDS,
    "count": {"type": "integer", "minimum": 1},
    "town": WORDS,
    "day": {"type": "string", "enum": list(DAYS)},
}
FORM = {
    "kind": "json",
    "satisfies": {
        "type": "object",
        "properties": MEMBERS,
        "required": list(MEMBERS),
        "additionalProperties": False,
    },
}
"""Verifier of an order's form."""

RUNS = ("supervised", "random", "form")
NAMES = ("base", "few-shot", "right", "own", *RUNS)


class Subject:
    """A reward task, and a model that answers it."""

    def __init__(self, folder: Path, preset: presets.Preset, template: str = "") -> None:
        room = {"template": template, "max_tokens": 2 * preset.task.max_tokens} if template else {}
        task = preset.task.model_copy(update=room)
        self.task, self.data = task, preset.data
        manifest = Manifest(model=loader.describe(str(folder), ""), task=task, data=preset.data)
        self.train = dataset.training_rows(preset.data, task)
        self.test = dataset.held_out_rows(preset.data, task, "test")
        self.loaded = loader.load(manifest, override=folder, device=torch.device("cpu"))
        self.objective = Rewards(manifest, self.loaded, self.train)

    def measured(self, *, drawn: bool = False) -> dict[str, Any]:
        """Return the figures of the likeliest answers to the test prompts. With `drawn`, add the share of
        prompts for which the best of several drawn answers is right."""
        questions = self.objective.questions(self.test)
        asked = [AnswerRequest(one.prompt) for one in questions]
        answers = generate(self.loaded, asked, self.objective._likeliest)
        told = [score_of(task) for task in (self.task, self.task.model_copy(update={"verifier": FORM}))]
        rewards, forms = (
            np.array([score(answer.text, row) for answer, row in zip(answers, self.test, strict=True)])
            for score in told
        )
        exact = metrics.share(int((rewards >= RIGHT).sum()), len(rewards))
        figures = {"exact": exact.value, "low": exact.low, "high": exact.high}
        figures |= {"reward": float(rewards.mean()), "form": float(forms.mean())}
        if drawn:
            (seed,) = stream(derive_key(b"best answers"), 0, 1).tolist()
            best = self.objective.draw(questions, seed).rewards.max(1)  # (rows,)
            figures[f"best_of_{ANSWERS}"] = float((best >= RIGHT).mean())
        return figures

    def questions(self, prompts: int) -> list[Question]:
        """Return the first `prompts` training prompts in a fixed random order."""
        order = np.argsort(stream(derive_key(b"reward controls"), 0, len(self.train)))
        return self.objective.questions([self.train[place] for place in order[:prompts]])

    def right(self, prompts: int) -> list[WrittenAnswer]:
        """Return training prompts with their right answers. Each answer ends with the task's stop text."""
        end = self.objective._task.stop[0]
        texts = [one.row[TARGET] + end for one in self.questions(prompts)]
        answers = self.loaded.tokenizer(texts, add_special_tokens=False).input_ids
        return [
            WrittenAnswer(one.prompt, answer, 0, 1.0)
            for one, answer in zip(self.questions(prompts), answers, strict=True)
        ]

    def own(self, prompts: int) -> list[WrittenAnswer]:
        """Draw answers to training prompts, and return the right ones, without duplicates."""
        found: dict[tuple[Any, ...], WrittenAnswer] = {}
        questions = self.questions(prompts)
        for number in range(0, prompts, BATCH):
            (seed,) = stream(derive_key(b"own answers"), number, 1).tolist()
            drawn = self.objective.draw(questions[number : number + BATCH], seed)
            for place in np.flatnonzero(drawn.rewards.flatten() >= RIGHT).tolist():
                question, answer = drawn.questions[place // ANSWERS], drawn.answers[place].tokens
                one = WrittenAnswer(question.prompt, answer, 0, 1.0)
                found[tuple(question.prompt), answer] = one
        return list(found.values())


def few_shot(preset: presets.Preset) -> str:
    """Return the task's prompt with SHOTS training rows as further examples."""
    rows = dataset.training_rows(preset.data, preset.task)[:SHOTS]
    before, after = preset.task.template.split("{text}")
    shown = "".join(f"{row['text']}\n{row[TARGET]}\n\n" for row in rows)
    return before + shown.replace("{", "{{").replace("}", "}}") + "{text}" + after


def low_rank(folder: Path, written: Sequence[WrittenAnswer], rates: Sequence[float], into: Path) -> None:
    """Train adapters on these answers. Merge the best adapters into the weights, and write the model to
    `into`."""
    validating = [one for number, one in enumerate(written) if number % 8 == 7]
    training = [one for number, one in enumerate(written) if number % 8 != 7]
    found: tuple[float, Any] | None = None
    for rate in rates:
        model = _adapted(folder)
        for loss in _losses(model, training, validating, rate):
            print(f"  rate {rate:g}: {loss:.4f}", flush=True)
            if found is None or loss < found[0]:
                found = loss, copy.deepcopy(get_peft_model_state_dict(model))
    assert found
    model = _adapted(folder)
    set_peft_model_state_dict(model, found[1])
    shutil.copytree(folder, into)
    model.merge_and_unload().save_pretrained(into)


def _adapted(folder: Path) -> Any:
    torch.manual_seed(0)
    settings = LoraConfig(
        task_type=TaskType.CAUSAL_LM, r=RANK, lora_alpha=LORA_ALPHA, target_modules=["q_proj", "v_proj"]
    )
    return get_peft_model(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), settings)


def _losses(
    model: Any, training: Sequence[WrittenAnswer], validating: Sequence[WrittenAnswer], rate: float
) -> Iterator[float]:
    trained = [one for one in model.parameters() if one.requires_grad]
    optimiser = torch.optim.AdamW(trained, rate)
    each = -(-len(training) // BATCH)
    steps, order = PASSES * each, np.random.default_rng(0)
    warm = max(1, round(WARMUP * steps))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: min((step + 1) / warm, (steps - step) / max(1, steps - warm))
    )
    for _ in range(PASSES):
        model.train()
        for places in np.array_split(order.permutation(len(training)), each):
            optimiser.zero_grad()
            _loss(model, encode_written([training[place] for place in places])).backward()
            torch.nn.utils.clip_grad_norm_(trained, 1.0)
            optimiser.step()
            schedule.step()
        model.eval()
        with torch.no_grad():
            parts = [encode_written(validating[n : n + BATCH]) for n in range(0, len(validating), BATCH)]
            losses = [float(_loss(model, one)) * one.examples for one in parts]
        yield sum(losses) / len(validating)


def _loss(model: Any, batch: Encoded) -> Any:
    logits = model(input_ids=batch.input_ids, attention_mask=batch.attention_mask).logits
    chosen = logits[batch.sequences, batch.columns].log_softmax(-1)
    plain = replace(batch, weights=None)  # gives the mean of the tokens' losses
    return plain.losses(chosen.gather(1, batch.targets[:, None]).flatten()).mean()


def run(name: str, subject: Subject, given: argparse.Namespace, folder: Path) -> Path:
    """Make the run `name` and train it with three nodes. Return the folder of the exported model."""
    made, swarm, model = folder / "run.toml", folder / "swarm", folder / "model"
    options: dict[str, Any] = {
        "name": name,
        "keys.dir": folder / "keys",
    }
    if given.updates:
        options["training.update_budget"] = given.updates
    what: list[Any] = ["--task", given.task]
    if name == "supervised":
        rows = folder / "rows.jsonl"
        rows.write_text("".join(json.dumps(one.row) + "\n" for one in subject.questions(given.prompts)))
        what = [rows, "--test", subject.data.test]
        options |= {
            "task.kind": "completion",
            "task.template": subject.task.template,
            "task.completion": f"{{{TARGET}}}{subject.task.stop[0]}",
            "data.validation": subject.data.validation,
        }
    elif name == "random":
        options["task.verifier"] = RANDOM
    else:
        form = folder / "form.json"
        form.write_text(json.dumps(FORM))
        options["task.verifier"] = form
    settings = [part for key, value in options.items() for part in ("--set", f"{key}={value}")]
    trusted = ["--verifier", RANDOM] if name == "random" else []
    base = ["--model", real_model.FOLDER]
    sfnode("init", *what, "--yes", *base, "--out", made, *settings)
    swarmed = "--nodes", 3, "--run", made, *base, "--out", swarm, "--json", *trusted
    ended = json.loads(sfnode("swarm", *swarmed))
    assert ended["equal"], "digests differ"
    print(f"  {ended['counted']} of {ended['updates']} updates count", flush=True)
    sfnode("export", "--data-dir", swarm / "node-1", *base, "--out", model)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--task", default="extract")
    parser.add_argument("--prompts", type=int, default=192, help="training prompts of right and own answers")
    parser.add_argument("--rates", type=float, nargs="+", default=[3e-4, 1e-3])
    parser.add_argument(
        "--updates", type=int, default=0, help="update budget of runs [default: the usual one]"
    )
    parser.add_argument("--only", choices=NAMES, nargs="+", default=NAMES)
    given = parser.parse_args()
    folder, preset = real_model.FOLDER, presets.preset(given.task)
    real_model.write(folder)
    for name in given.only:
        began, drawn, taught = time.monotonic(), 0, 0
        subject = Subject(folder, preset, few_shot(preset) if name == "few-shot" else "")
        with tempfile.TemporaryDirectory() as scratch:
            if name in ("base", "few-shot"):
                found = subject.measured(drawn=name == "base")
            else:
                if name in RUNS:
                    model = run(name, subject, given, Path(scratch))
                else:
                    written = subject.right(given.prompts) if name == "right" else subject.own(given.prompts)
                    drawn, taught = given.prompts * ANSWERS * (name == "own"), len(written)
                    model = Path(scratch, "model")
                    low_rank(folder, written, given.rates, model)
                found = Subject(model, preset).measured()
        seconds = round(time.monotonic() - began, 1)
        told = {"name": name, **found, "drawn": drawn, "taught": taught, "seconds": seconds}
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
