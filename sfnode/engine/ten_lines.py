"""Ten lines of Python for whoever has transformers alone: they ask a model as `sfnode use` does.

They are written for the run's task, with its template as an expression, and stand in the export's card.
"""

from __future__ import annotations

from sfnode.engine.evaluation import named_prior
from sfnode.engine.trainable_model import TrainableModel
from sfnode.engine.using import most_tokens
from sfnode.manifest.task import Task
from sfnode.tasks import templates
from sfnode.tasks.mini_batches import CENTRED
from sfnode.tasks.prompts import example
from sfnode.tasks.templates import CANDIDATE, SEPARATOR

FILTERS = {
    "": "{}",
    "strip": "{}.strip()",
    "question": '(lambda q: q[0].upper() + q[1:].removesuffix("?") + "?")({})',
    "bullets": '{}.replace("@highlight\\n", "- ")',
    "cloze": f'{{}}.replace("@placeholder", {CANDIDATE})',
}
"""The filters of templates as expressions."""

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
"""The text in the place of one's own."""


def ten_lines(model: TrainableModel) -> str:
    """Return the lines for the model as of now. Raises as `evaluation.prior`."""
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
    if task.labelled or task.kind == "choice":
        written = ", ".join(f"{_python(word)}: {_rounded(part)}" for word, part in usual.items())
        blank = _ends_blank(task)
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
    """Return a template as Python: of two texts that `{separator}` parts, two expressions."""
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


def _ends_blank(task: Task) -> bool:
    """Return whether nothing has to set the answer off from the prompt."""
    literal, field, _ = templates.parse(task.template)[-1]
    return not field and literal[-1:].isspace()


def _python(text: str) -> str:
    """Return a text of others' as Python, which ends no block of code in Markdown."""
    return repr(text).replace("`", r"\x60")
