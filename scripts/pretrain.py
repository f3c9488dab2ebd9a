"""Makes the embedded models: pretrains a small OPT on the text that a module beside it writes.

    python -m scripts.pretrain tiny sfnode/embedded/tiny    reads reviews.py's reviews
    python -m scripts.pretrain sums sfnode/embedded/sums    reads sums.py's sums

takes a few minutes on two CPU cores. The folder it writes ships with the package; run it again only when the
text or the shape of the model changes. It knows nothing of runs, updates or nodes.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from torch import Tensor, nn
from transformers import OPTConfig, OPTForCausalLM, PreTrainedTokenizerFast

from scripts import reviews, sums
from sfnode.engine import forward
from sfnode.engine.generation import complete
from sfnode.models import loader
from sfnode.models.loader import make_trainable
from sfnode.schema.measurements import Evaluation
from sfnode.tasks import presets
from sfnode.tasks.dataset import load_rows
from sfnode.tasks.encoding import evaluate

DOCUMENTS = 120_000
PEAK_RATE = 2e-3
WARMUP_STEPS = 200
WEIGHT_DECAY = 0.05

HIDDEN, HEADS = 64, 4
PAD, BOS, EOS, UNKNOWN = "<pad>", "<s>", "</s>", "<unk>"

WORDS = pre_tokenizers.WhitespaceSplit()
CHARACTERS = pre_tokenizers.Sequence([WORDS, pre_tokenizers.Split(Regex("."), "isolated")])


class Recipe(NamedTuple):
    """Differences between one embedded model and the other."""

    text: Callable[[int], Iterator[str]]
    """Writes so many documents."""
    split: Any
    """Cuts a document into tokens."""
    join: Any
    """Puts tokens together to a text; None: with spaces."""
    layers: int
    positions: int
    batch: int
    steps: int
    held_out: Callable[[loader.LoadedModel], object]
    """Measures the model on the task that it has not been taught."""


def tokenizer_of(recipe: Recipe, documents: list[str]) -> PreTrainedTokenizerFast:
    """One token for each different part of the documents; `<s>` is put in front, as OPT's own does."""
    parts = {part for document in documents for part, _ in recipe.split.pre_tokenize_str(document)}
    vocabulary = {part: index for index, part in enumerate([PAD, BOS, EOS, UNKNOWN, *sorted(parts)])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = recipe.split
    if recipe.join is not None:
        tokenizer.decoder = recipe.join
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, vocabulary[BOS])]
    )
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, pad_token=PAD, bos_token=BOS, eos_token=EOS, unk_token=UNKNOWN
    )


def small_opt(recipe: Recipe, tokenizer: PreTrainedTokenizerFast) -> OPTForCausalLM:
    torch.manual_seed(0)
    return OPTForCausalLM(
        OPTConfig(
            vocab_size=len(tokenizer),
            hidden_size=HIDDEN,
            word_embed_proj_dim=HIDDEN,
            ffn_dim=4 * HIDDEN,
            num_hidden_layers=recipe.layers,
            num_attention_heads=HEADS,
            max_position_embeddings=recipe.positions,
            dropout=0.0,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )
    )


def batches(size: int, tokenizer: PreTrainedTokenizerFast, documents: list[str]) -> Iterator[Tensor]:
    """Endless (size, longest) int64 token ids, padded on the right, in a fresh order each time round."""
    encoded = [torch.tensor(ids) for ids in tokenizer([f"{text} {EOS}" for text in documents]).input_ids]
    order = torch.Generator().manual_seed(0)
    while True:
        for chosen in torch.split(torch.randperm(len(encoded), generator=order), size):
            rows = [encoded[index] for index in chosen.tolist()]
            yield nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=tokenizer.pad_token_id)


def language_loss(model: OPTForCausalLM, ids: Tensor, pad: int) -> Tensor:
    """Mean cross-entropy of every next token that is not padding; ids (B, T)."""
    mask = ids != pad
    logits = model(input_ids=ids, attention_mask=mask.long()).logits[:, :-1]  # (B, T-1, vocab)
    return nn.functional.cross_entropy(logits[mask[:, 1:]], ids[:, 1:][mask[:, 1:]])


def rate(step: int, steps: int) -> float:
    """Linear warm-up, then a cosine down to nothing; a factor of the peak rate."""
    if step < WARMUP_STEPS:
        return (step + 1) / WARMUP_STEPS
    return 0.5 * (1 + math.cos(math.pi * (step - WARMUP_STEPS) / (steps - WARMUP_STEPS)))


def pretrain(model: OPTForCausalLM, source: Iterator[Tensor], steps: int, pad: int) -> None:
    optimiser = torch.optim.AdamW(model.parameters(), PEAK_RATE, betas=(0.9, 0.98), weight_decay=WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, partial(rate, steps=steps))
    for step in range(steps):
        loss = language_loss(model, next(source), pad)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        if step % 500 == 0 or step == steps - 1:
            print(f"step {step:>6,}  loss {loss.item():.4f}", flush=True)


def verdicts(loaded: loader.LoadedModel) -> Evaluation:
    """Evaluate the model of reviews on verdicts about them."""
    task, data = presets.PRESETS["reviews"][:2]
    rows = load_rows(data.test, task)
    return evaluate(task, loaded.tokenizer, rows, lambda encoded: forward.score(loaded, encoded), 32)


def answers(loaded: loader.LoadedModel) -> str:
    """Say how many answers of the likeliest tokens are right, and how many forget to carry."""
    rows = sums.rows("test")
    written = complete(loaded, [f"{row['sum']}=" for row in rows], 4)
    right = sum(text == row["answer"] for text, row in zip(written, rows, strict=True))
    forgetful = sum(text == sums.read(row["sum"]).forgetful for text, row in zip(written, rows, strict=True))
    return f"of {len(rows)} answers {right} are right, {forgetful} as of somebody who forgets to carry"


RECIPES = {
    "tiny": Recipe(reviews.pretraining_text, WORDS, None, 3, 64, 32, 4_000, verdicts),
    "sums": Recipe(
        sums.pretraining_text,
        pre_tokenizers.Sequence(
            [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split(Regex("."), "isolated")]
        ),
        decoders.Fuse(),
        2,
        16,
        128,
        3_000,
        answers,
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=RECIPES, help="which of the embedded models")
    parser.add_argument("folder", type=Path, help="where the model and its tokenizer go")
    given = parser.parse_args()
    recipe: Recipe = RECIPES[given.model]
    documents = list(recipe.text(DOCUMENTS))
    tokenizer = tokenizer_of(recipe, documents)
    model = small_opt(recipe, tokenizer)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(tokenizer)} tokens")
    pretrain(model, batches(recipe.batch, tokenizer, documents), recipe.steps, tokenizer.pad_token_id)
    model.save_pretrained(given.folder)
    tokenizer.save_pretrained(given.folder)
    loaded = make_trainable(model, tokenizer, (), given.folder, torch.device("cpu"), "float32")
    print(recipe.held_out(loaded))


if __name__ == "__main__":
    main()
