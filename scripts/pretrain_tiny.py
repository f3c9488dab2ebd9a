"""Makes the embedded model: pretrains a small OPT on the text that sfnode.tasks.synthetic writes.

    python scripts/pretrain_tiny.py sfnode/embedded/tiny

takes a few minutes on two CPU cores. The folder it writes ships with the package; run it again only when the
grammar or the shape of the model changes. It knows nothing of runs, updates or nodes.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor, nn
from transformers import OPTConfig, OPTForCausalLM, PreTrainedTokenizerFast

from sfnode.engine import forward
from sfnode.models.loader import make_trainable
from sfnode.schema.evaluation import Evaluation
from sfnode.tasks import presets, synthetic
from sfnode.tasks.dataset import load_rows
from sfnode.tasks.encoding import evaluate

DOCUMENTS = 120_000
BATCH = 32
STEPS = 4_000
PEAK_RATE = 2e-3
WARMUP_STEPS = 200
WEIGHT_DECAY = 0.05

HIDDEN, LAYERS, HEADS = 64, 3, 4
POSITIONS = 64
PAD, BOS, EOS, UNKNOWN = "<pad>", "<s>", "</s>", "<unk>"


def word_tokenizer(documents: list[str]) -> PreTrainedTokenizerFast:
    """One token per word; `<s>` is put in front, as OPT's own tokenizer does."""
    words = sorted({word for document in documents for word in document.split()})
    vocabulary = {word: index for index, word in enumerate([PAD, BOS, EOS, UNKNOWN, *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, vocabulary[BOS])]
    )
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, pad_token=PAD, bos_token=BOS, eos_token=EOS, unk_token=UNKNOWN
    )


def small_opt(tokenizer: PreTrainedTokenizerFast) -> OPTForCausalLM:
    torch.manual_seed(0)
    return OPTForCausalLM(
        OPTConfig(
            vocab_size=len(tokenizer),
            hidden_size=HIDDEN,
            word_embed_proj_dim=HIDDEN,
            ffn_dim=4 * HIDDEN,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            max_position_embeddings=POSITIONS,
            dropout=0.0,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )
    )


def batches(tokenizer: PreTrainedTokenizerFast, documents: list[str]) -> Iterator[Tensor]:
    """Endless (BATCH, longest) int64 token ids, padded on the right, in a fresh order each time round."""
    encoded = [torch.tensor(ids) for ids in tokenizer([f"{text} {EOS}" for text in documents]).input_ids]
    order = torch.Generator().manual_seed(0)
    while True:
        for chosen in torch.split(torch.randperm(len(encoded), generator=order), BATCH):
            rows = [encoded[index] for index in chosen.tolist()]
            yield nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=tokenizer.pad_token_id)


def language_loss(model: OPTForCausalLM, ids: Tensor, pad: int) -> Tensor:
    """Mean cross-entropy of every next token that is not padding; ids (B, T)."""
    mask = ids != pad
    logits = model(input_ids=ids, attention_mask=mask.long()).logits[:, :-1]  # (B, T-1, vocab)
    return nn.functional.cross_entropy(logits[mask[:, 1:]], ids[:, 1:][mask[:, 1:]])


def rate(step: int) -> float:
    """Linear warm-up, then a cosine down to nothing; a factor of the peak rate."""
    if step < WARMUP_STEPS:
        return (step + 1) / WARMUP_STEPS
    return 0.5 * (1 + math.cos(math.pi * (step - WARMUP_STEPS) / (STEPS - WARMUP_STEPS)))


def pretrain(model: OPTForCausalLM, source: Iterator[Tensor], pad: int) -> None:
    optimiser = torch.optim.AdamW(model.parameters(), PEAK_RATE, betas=(0.9, 0.98), weight_decay=WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, rate)
    for step in range(STEPS):
        loss = language_loss(model, next(source), pad)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        if step % 500 == 0 or step == STEPS - 1:
            print(f"step {step:>6,}  loss {loss.item():.4f}", flush=True)


def held_out(model: nn.Module, tokenizer: PreTrainedTokenizerFast, folder: Path) -> Evaluation:
    """Evaluate the pretrained model, saved in `folder`, on the task that it has not been taught."""
    task, data, _ = presets.default_run()
    loaded = make_trainable(model, tokenizer, (), folder, torch.device("cpu"), "float32")
    rows = load_rows(data.test, task)
    return evaluate(task, tokenizer, rows, lambda encoded: forward.score(loaded, encoded), BATCH)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the model and its tokenizer go")
    folder: Path = parser.parse_args().folder
    documents = list(synthetic.pretraining_text(DOCUMENTS))
    tokenizer = word_tokenizer(documents)
    model = small_opt(tokenizer)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(tokenizer)} words")
    pretrain(model, batches(tokenizer, documents), tokenizer.pad_token_id)
    model.save_pretrained(folder)
    print(held_out(model, tokenizer, folder))
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    main()
