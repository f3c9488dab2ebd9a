"""Greedy text generation: continues a text with the likeliest token each time. Knows no updates and no
task."""

from __future__ import annotations

from typing import Any

import torch
from transformers import GenerationConfig

from sfnode.errors import Code, UserError
from sfnode.models.loader import LoadedModel
from sfnode.tasks.tokenization import lock_of


def generate(loaded: LoadedModel, prompt: str, tokens: int) -> str:
    """Return what the model, with its present weights, writes after `prompt`: at most `tokens` tokens.

    A prompt that is too long for the model loses its beginning. Raises UserError BAD_OPTION for a classifier.
    """
    if loaded.classifies:
        raise UserError(
            Code.BAD_OPTION,
            "the run's model is a classifier: it writes no text",
            "Measure it with `sfnode eval` instead.",
        )
    ids = _ids(loaded, prompt, tokens)
    given = torch.tensor([ids], device=loaded.device)  # (1, T)
    with torch.no_grad():
        network: Any = loaded.model
        written = network.generate(  # (1, T + at most tokens)
            input_ids=given,
            attention_mask=torch.ones_like(given),
            generation_config=_greedy(loaded, tokens),
        )
    new = written[0, len(ids) :].tolist()
    with lock_of(loaded.tokenizer):
        text: str = loaded.tokenizer.decode(new, skip_special_tokens=True)
    return text


def _greedy(loaded: LoadedModel, tokens: int) -> Any:
    """Return a configuration that takes only the end-of-text tokens from the model's own."""
    own = loaded.model.generation_config
    ends = own.eos_token_id if own.eos_token_id is not None else loaded.tokenizer.eos_token_id
    pad = loaded.tokenizer.pad_token_id
    untyped: Any = GenerationConfig
    return untyped(
        do_sample=False,
        num_beams=1,
        max_new_tokens=tokens,
        eos_token_id=ends,
        pad_token_id=0 if pad is None else pad,
    )


def _ids(loaded: LoadedModel, prompt: str, tokens: int) -> list[int]:
    """Return the prompt's tokens as training encodes texts: after the beginning-of-text token, if any."""
    tokenizer = loaded.tokenizer
    start = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
    with lock_of(tokenizer):
        ids: list[int] = tokenizer(prompt, add_special_tokens=False, verbose=False).input_ids
    text = loaded.model.config.get_text_config(decoder=True)
    longest = int(getattr(text, "max_position_embeddings", None) or 1 << 30)
    room = max(1, longest - tokens - len(start))
    return start + ids[-room:] or [0]
