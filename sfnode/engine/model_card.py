"""The README of an export: the model's task and origin, the scoring of its answers, and the commands that
compute the model again from the run's log.

The block at the card's head is metadata for the Hugging Face hub. Priors and drift are measured on the
machine that exports, so cards from two machines may differ, even though the exported weights are equal. The
card contains no path of a machine. Its ten lines of Python ask the model as `sfnode use` does, with
transformers alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from sfnode.engine.drift import drift
from sfnode.engine.evaluation import named_prior
from sfnode.engine.samples import chooses
from sfnode.engine.trainable_model import TrainableModel
from sfnode.engine.using import most_tokens
from sfnode.manifest import hub_rows, is_on_hub, public_name
from sfnode.manifest.task import Task
from sfnode.models.model_files import licence_of
from sfnode.printable import command, printable
from sfnode.schema.history import Contributor, Provenance
from sfnode.schema.metrics import drift_in_words, metric_of, trained_by
from sfnode.tasks import templates
from sfnode.tasks.calibration import CALIBRATION_ROWS
from sfnode.tasks.mini_batches import CENTRED
from sfnode.tasks.prompts import example
from sfnode.tasks.templates import CANDIDATE, SEPARATOR

USE = """\
## How to use it

With sfnode: `sfnode use --from FOLDER "a text of yours"`, or a table by `--file in.csv --out out.csv`. With
transformers alone, from within the folder (texts of more than {most} tokens are cut in training):

```python
{lines}```
"""

PLAIN = """\
The loss was plain: scores are compared as they are.
"""

LOSSES = {
    "centred": """\
The loss was centred: in training, scores were compared less their means over a balanced mini-batch. So
nothing has taught the model how likely each answer is on the whole""",
    "calibrated": "The loss was calibrated: in training, scores were compared less this prior",
}

CALIBRATION = """\
{loss}, and answers are to be **calibrated**: the
score of an answer, which is the mean of the natural logarithms of the probabilities of its tokens after the
prompt, less its prior:

| answer | prior |
|---|---|
{rows}

{source}
A prior for data of another kind is the mean score of each answer over some hundred of their texts, without
labels. Programs that compare scores as they are, such as lm-evaluation-harness, measure the model without
calibration, and mostly its prior.
"""

REWARDED = """\
The model was trained by **rewards**: it has written answers to prompts of the template {template},
of at most {tokens} tokens{stop}, and this
verifier (of version 1 of the list of sfnode) has scored them from 0 to 1:

```json
{verifier}
```

The loss is 1 less the reward. A figure `reward` is the mean of answers of the likeliest tokens.
"""

DATA_DIR = ("--data-dir", "NODE")
"""Option of the commands in a model card. NODE stands for the path of a node's data folder."""

LISTED = 100
"""Maximum number of contributors that a card lists, those with most updates first. People read the card, so
it must not become too long."""

TAGS = ("sfnode", "decentralized-training", "zeroth-order-optimization")

CLOSING = {ord("`"): r"\u0060", ord("|"): r"\u007c"}
"""Characters that would end the code or the table cell around them, keyed by code point, each with its escape
in JSON."""

MEASURED = f"It was measured with these weights, on up to {CALIBRATION_ROWS} unlabelled training rows."
GIVEN = "It is the base model's, from the manifest: no rows were there to measure that of these weights on."
TRAINED = "It is the base model's, and as it was in training."


def model_card(
    model: TrainableModel,
    about: Provenance | None = None,
    *,
    weights: Mapping[str, str] | None = None,
    adapter: str = "",
) -> str:
    """Return the card of the current model, in Markdown.

    `about`: where the model comes from. `weights`: the SHA-256 of a whole model's files, in hex, keyed by
    file name. `adapter`: a text on how well an adapter approximates the change that training made; empty for
    a whole model.
    """
    manifest = model.manifest
    task = manifest.task
    run = f"Trained by sfnode from {_source(manifest.model.source)} in the run `{manifest.run_id.hex()}`."
    parts = [_front_matter(model, adapter=bool(adapter)), f"# {_escaped(manifest.name)}\n", f"{run}\n"]
    if adapter:
        parts.append(f"This is a LoRA adapter of that model: {adapter}.\n")
    if task.labelled:
        answers = ", ".join(map(_quoted, task.verbalizer.values()))
        parts.append(
            f"The template of its prompts is {_quoted(task.template)}, and its answers are {answers}.\n"
        )
        parts.append(_calibration(model) if task.less_prior else PLAIN)
    if task.is_rewarded:
        parts.append(_rewarded(task))
    if not adapter:
        parts.append(USE.format(lines=ten_lines(model), most=task.max_tokens))
    parts.append(f"Drift from the base model: {drift_in_words(drift(model))}.\n")
    parts += _about(model, about, weights or {}) if about else ()
    return "\n".join([*parts, _training(model)])


def _front_matter(model: TrainableModel, *, adapter: bool) -> str:
    """Return the hub's metadata as YAML. Each value is in JSON, which is YAML too."""
    manifest = model.manifest
    source, data = manifest.model.source, manifest.data
    sets = sorted({rows.name for name in (data.train, data.test) if (rows := hub_rows(name))})
    fields: dict[str, Any] = {"library_name": "peft" if adapter else "transformers", "tags": list(TAGS)}
    if is_on_hub(source):  # the hub takes no other names
        fields |= {"base_model": source, "base_model_relation": "adapter" if adapter else "finetune"}
    if license_ := licence_of(model.loaded.folder):
        fields["license"] = license_
    if sets:
        fields["datasets"] = sets
    fields["pipeline_tag"] = "text-classification" if model.loaded.classifies else "text-generation"
    lines = (f"{key}: {json.dumps(value)}" for key, value in fields.items())
    return "\n".join(["---", *lines, "---", ""])


def _about(model: TrainableModel, about: Provenance, weights: Mapping[str, str]) -> Iterator[str]:
    after = "" if about.seal is None else f"after round {about.seal} "
    moment = f"The model {after}of the run, {about.updates} updates, fingerprint `{about.digest}`."
    yield f"## Where it comes from\n\n{moment}\n"
    if about.evaluations:
        trained = trained_by(model.manifest.task.kind)
        rows = (
            f"| {one.of} | {_escaped(metric_of(one.result.metric).name)} | {one.result.value:.3f} "
            f"| {one.result.low:.3f} to {one.result.high:.3f} | {trained.of(one.result.loss):.4f} "
            f"| {one.result.count} |"
            for one in about.evaluations
        )
        yield (
            "Measured by the organiser on rows kept aside, on which nobody trains, with 95 % intervals:\n\n"
            f"| model | metric | value | interval | {trained.name} | rows |\n|---|---|---|---|---|---|"
        )
        yield "\n".join(rows) + "\n"
    if about.contributors:
        yield "Contributors, by the updates of theirs that count; names are their own, and not verified:\n"
        yield (
            "| key | name | updates |\n|---|---|---|\n" + "\n".join(_contributors(about.contributors)) + "\n"
        )
    yield "## How to verify it\n\n" + _verification(model, about, weights)


def _contributors(everybody: tuple[Contributor, ...]) -> Iterator[str]:
    for one in everybody[:LISTED]:
        yield f"| `{one.origin}` | {_escaped(one.name)} | {one.updates} |"
    if others := everybody[LISTED:]:
        yield f"| {len(others)} others | | {sum(one.updates for one in others)} |"


def _verification(model: TrainableModel, about: Provenance, weights: Mapping[str, str]) -> str:
    """Return the commands that compute the model again, in the folder of any node of the run."""
    organised = bool(model.manifest.organised.organiser)
    of: tuple[object, ...] = ("--as-of-now",) if about.seal is None and organised else ()
    said, while_ = command("sfnode", "verify", *DATA_DIR, *of), ""
    if about.seal is None:
        while_ = ", while the log has the same updates"
    elif about.amended:
        while_ = ", while that round is the last one"
    else:
        said += f"\n{command('sfnode', 'history', 'checkout', about.seal, *DATA_DIR)}"
        of = ("--seal", about.seal)
    first = (
        f"Whoever has joined the run (`sfnode join LINK`) has its signed log. On the node's machine, with "
        "its data folder (`sfnode list` names it) in the place of NODE, this checks every signature, adds "
        f"all updates up anew, and prints the fingerprint above{while_}:\n\n"
        f"```sh\n{said}\n```\n"
    )
    if not weights:
        return first
    sums = "\n".join(f"{digest}  check/{name}" for name, digest in weights.items())
    dtype = str(model.loaded.dtype).removeprefix("torch.")
    export = command("sfnode", "export", *DATA_DIR, "--out", "check", *of, "--dtype", dtype)
    return (
        f"{first}\nAnd this writes the weights anew, which have these SHA-256 sums on every machine:\n\n"
        f"```sh\n{export}\nsha256sum -c <<'END'\n{sums}\nEND\n```\n"
    )


def _training(model: TrainableModel) -> str:
    manifest = model.manifest
    task, data, numbers = manifest.task, manifest.data, manifest.training
    points = f"groups of {numbers.group} updates" if numbers.group else "two points for each update"
    rows = {
        "method": "zeroth-order: an update is a seed and one number, from forward passes alone",
        "measured at": points,
        "base model": f"{_source(manifest.model.source)}, fingerprint `{manifest.model.digest}`",
        "task": "reward of answers that it writes" if task.is_rewarded else f"{task.kind}, {task.loss} loss",
        "training data": _source(data.train) if data.train else "each node's own",
        "test data": _source(data.test) if data.test else "none",
        "trained matrices": f"{len(manifest.model.targets)}, {numbers.basis} bases of rank {numbers.rank}",
        "mini-batch": f"{numbers.batch_size} rows",
        "epsilon": f"{numbers.epsilon:g}",
        "first learning rate": f"{numbers.learning_rate:g} per update",
        "budget": f"{numbers.update_budget} updates",
        "run": f"{manifest.admission}, protocol {manifest.protocol}",
    }
    table = "\n".join(f"| {key} | {value} |" for key, value in rows.items())
    return f"## How it was trained\n\n| | |\n|---|---|\n{table}\n"


def _rewarded(task: Task) -> str:
    stop = f", up to {' or '.join(map(_quoted, task.stop))}" if task.stop else ""
    return REWARDED.format(
        template=_quoted(task.template),
        tokens=task.answer_tokens,
        stop=stop,
        verifier=printable(json.dumps(task.verifier, ensure_ascii=False, indent=1)),
    )


def _calibration(model: TrainableModel) -> str:
    rows = "\n".join(f"| {_quoted(word)} | {part:.5f} |" for word, part in named_prior(model).items())
    task = model.manifest.task
    of_weights = MEASURED if model.run_rows.some_if_any() else GIVEN
    source = of_weights if task.loss == "centred" else TRAINED
    return CALIBRATION.format(loss=LOSSES[task.loss], rows=rows, source=source)


def _quoted(text: str) -> str:
    """Return a stranger's text as a JSON string in backquotes. Nothing in the text can end the code before
    the last backquote."""
    said = printable(json.dumps(text, ensure_ascii=False)).translate(CLOSING)
    return f"`{said}`"


def _source(source: str) -> str:
    """Return the name of a base model or of rows, in backquotes. A text that does not have the form of a name
    is quoted as a stranger's text."""
    name = public_name(source)
    return f"`{name}`" if re.fullmatch(r"[\w./:-]+", name, re.ASCII) else _quoted(name)


def _escaped(text: str) -> str:
    """Return a stranger's text, escaped so that Markdown takes it for plain text."""
    return re.sub(r"([!-/:-@\[-`{-~])", r"\\\1", " ".join(text.split()))


FILTERS = {
    "": "{}",
    "strip": "{}.strip()",
    "question": '(lambda q: q[0].upper() + q[1:].removesuffix("?") + "?")({})',
    "bullets": '{}.replace("@highlight\\n", "- ")',
    "cloze": f'{{}}.replace("@placeholder", {CANDIDATE})',
}
"""Python expressions for the filters of templates, keyed by the filter's name."""

HEAD = """\
import torch, transformers
model = transformers.AutoModelForSequenceClassification.from_pretrained(".").float()
tokenizer = transformers.AutoTokenizer.from_pretrained(".")
texts = [{texts}]  # your own in its place
inputs = tokenizer(*texts, truncation=True, max_length={most}, return_tensors="pt")
scores = model({inputs}).logits[0].detach(){less}
shares = scores.softmax(-1).tolist()
for share, name in sorted(zip(shares, model.config.id2label.values()), reverse=True):
    print(f"{{100 * share:5.1f}} %  {{name}}")
"""

WORDS = """\
import torch, transformers as hf
model = hf.AutoModelForCausalLM.from_pretrained(".").float()
encode = hf.AutoTokenizer.from_pretrained(".").encode
prompt, usual = {prompt}, {usual}  # your own text in its place
def score(w):
    start, ids = ({bos}encode(t, add_special_tokens=False) for t in (prompt{strip}, prompt + "{apart}" + w))
    n = next(n for n, one in enumerate(ids) if [one] != start[n : n + 1])
    return -model(torch.tensor([ids]), labels=torch.tensor([[-100] * n + ids[n:]])).loss.item() - usual[w]
shares = zip(torch.tensor([score(w) for w in usual]).softmax(0).tolist(), usual)
print(*(f"{{100 * share:5.1f}} %  {{name}}" for share, name in sorted(shares, reverse=True)), sep="\\n")
"""

WRITTEN = """\
import torch, transformers
model = transformers.AutoModelForCausalLM.from_pretrained(".").float()
tokenizer = transformers.AutoTokenizer.from_pretrained(".")
prompt = {prompt}  # your own text in its place
ids = torch.tensor([{bos}tokenizer.encode(prompt, add_special_tokens=False)])
written = model.generate(ids, max_new_tokens={tokens}, do_sample=False)[0, ids.shape[1] :]
text = tokenizer.decode(written, skip_special_tokens=True)
print(text{stop}.strip())
"""

ASKED = "a text of yours"
"""Placeholder for the text that a reader of the card wants to ask about."""


def ten_lines(model: TrainableModel) -> str:
    """Return the card's lines of Python that ask the current model. Raises as `evaluation.prior`."""
    task, bos = model.manifest.task, model.loaded.tokenizer.bos_token_id
    begin = "" if bos is None else f"[{bos}] + "
    usual = named_prior(model) if task.loss == CENTRED else dict.fromkeys(task.verbalizer.values(), 0.0)
    less = ", ".join(_rounded(part) for part in usual.values())
    if model.loaded.classifies:
        pairs = getattr(model.loaded.model.config, "type_vocab_size", 0) > 1
        return HEAD.format(
            texts=", ".join(_expressions(task.template)),
            most=task.max_tokens,
            inputs="**inputs" if pairs else "inputs.input_ids",
            less=f" - torch.tensor([{less}])" if any(usual.values()) else "",
        )
    (prompt,) = _expressions(task.template) if task.kind != "chat" else (_conversation(bos, model),)
    if chooses(task):
        written = ", ".join(f"{_python(word)}: {_rounded(part)}" for word, part in usual.items())
        literal, field, _ = templates.parse(task.template)[-1]
        blank = not field and literal[-1:].isspace()  # the answer needs no space before it
        return WORDS.format(
            prompt=prompt,
            usual=f"{{{written}}}" if task.labelled else _candidates(task),
            bos=begin,
            strip='.rstrip(" ")' if blank else "",
            apart="" if blank else " ",
        )
    return WRITTEN.format(
        prompt=prompt,
        bos=begin,
        tokens=most_tokens(model.loaded, task),
        stop="".join(f".partition({_python(one)})[0]" for one in task.stop),
    )


def _expressions(template: str) -> list[str]:
    """Return a template as Python expressions: two if `{separator}` parts it into two texts."""
    texts: list[list[str]] = [[]]
    for literal, field, name in templates.parse(template):
        texts[-1] += [_python(literal)] if literal else []
        if field == SEPARATOR:
            texts.append([])
        elif field:
            value = CANDIDATE if field == CANDIDATE else _python(ASKED)
            texts[-1].append(FILTERS[name].format(value))
    return [" + ".join(text) or '""' for text in texts]


def _candidates(task: Task) -> str:
    (completion,) = _expressions(task.completion)
    names = ", ".join(_python(one) for one in example(task)[task.candidates_field])
    return f"{{{completion}: 0 for {CANDIDATE} in ({names})}}"


def _conversation(bos: int | None, model: TrainableModel) -> str:
    said = f'[{{"role": "user", "content": {_python(ASKED)}}}]'
    begins = "" if bos is None else f".removeprefix({_python(model.loaded.tokenizer.bos_token)})"
    return f"tokenizer.apply_chat_template({said}, tokenize=False, add_generation_prompt=True){begins}"


def _rounded(part: float) -> str:
    return f"{part:.5f}"


def _python(text: str) -> str:
    """Return a stranger's text as a Python literal that cannot end a block of code in Markdown."""
    return repr(text).replace("`", r"\x60")
