"""Calls tokenizers with bounds on time and memory. Each tokenizer runs in a separate process.

In this process the tokenizer object of transformers is used only for looking up tokens. This module knows
tokenizers; it knows no row and no task.
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Sequence
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

from sfnode.bounded_process import BoundedProcess
from sfnode.errors import Code, UserError

SECONDS = 20.0
"""Maximum CPU time of a request to a tokenizer's process, in seconds. A slow machine needs half of it for a
text of ten million characters, or for loading the largest tokenizers."""

MEMORY = 2 << 30
"""Maximum memory of a tokenizer's process, in bytes: enough for a text of ten million characters. The largest
tokenizers take a quarter of this memory."""

PROGRAM = "sfnode.tasks.tokenizer_process"

_processes: WeakKeyDictionary[Any, BoundedProcess] = WeakKeyDictionary()
_making = Lock()


def encode(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    """Return the tokens of each text, without the special tokens that tokenizers add at its beginning and
    end.

    Raises UserError MODEL_UNSAFE if the tokenizer exceeds the bound on its time, its memory or the number of
    tokens, and DATA_MALFORMED for a text that the tokenizer refuses.
    """
    ids: list[list[int]] = _ask(tokenizer, [[text] for text in texts])["ids"]
    return ids


def encode_with_places(tokenizer: Any, text: str) -> tuple[list[int], list[tuple[int, int]]]:
    """Return the tokens of a text, as `encode` does, and the positions in the text where each token begins
    and ends."""
    reply = _ask(tokenizer, [[text]], places=True)
    return reply["ids"][0], [(start, end) for start, end in reply["places"][0]]


def encode_pair(tokenizer: Any, texts: Sequence[str], most: int) -> tuple[list[int], list[int] | None]:
    """Return at most `most` tokens of a text or a pair of texts, with the tokenizer's special tokens. Return
    also the index of each token's text in the pair; None if the model does not use these indices.

    Raises UserError as `encode` does.
    """
    whole = [text for number, text in enumerate(texts) if text or not number]  # as transformers does
    reply = _ask(tokenizer, [whole], special=True, most=most)
    told = "token_type_ids" in tokenizer.model_input_names  # BERT's model is, RoBERTa's is not
    return reply["ids"][0], reply["types"][0] if told else None


def decode(tokenizer: Any, tokens: Sequence[Sequence[int]]) -> list[str]:
    """Return the text of each list of tokens, without special tokens. Raises UserError MODEL_UNSAFE."""
    reply = _process_of(tokenizer).ask({"tokens": [list(ids) for ids in tokens]})
    _check(reply, "some tokens")
    texts: list[str] = reply["texts"]
    if not tokenizer.is_fast or type(tokenizer.backend_tokenizer.model).__name__ == "BPE":
        return texts
    if not tokenizer.clean_up_tokenization_spaces:
        return texts
    return [tokenizer.clean_up_tokenization(text) for text in texts]  # as transformers does after decoding


def _ask(
    tokenizer: Any, texts: list[list[str]], *, special: bool = False, most: int = 0, places: bool = False
) -> dict[str, Any]:
    side = tokenizer.truncation_side
    asked = {"texts": texts, "special": special, "most": most, "side": side, "places": places}
    reply = _process_of(tokenizer).ask(asked)
    _check(reply, f"the text that begins with {texts[-1][0][:60]!r}")
    return reply


def _check(reply: dict[str, Any], what: str) -> None:
    if "refused" in reply:
        raise UserError(
            Code.DATA_MALFORMED,
            f"the model's tokenizer cannot read {what}: {reply['refused']}",
            "Leave such rows out of the data.",
        )
    if "broke" in reply:
        raise UserError(
            Code.MODEL_UNSAFE,
            f"the model's tokenizer cannot be used for {what}: {reply['broke']}",
            "Take another model, unless the text is one of millions of characters: then leave it out.",
        )


def _process_of(tokenizer: Any) -> BoundedProcess:
    with _making:
        found = _processes.get(tokenizer)
        if found is None:
            found = _processes[tokenizer] = _make(tokenizer)
    return found


def _make(tokenizer: Any) -> BoundedProcess:
    """Return a new process for a tokenizer. The returned object must not refer to the tokenizer, or neither
    of the two would ever be freed."""
    if tokenizer.is_fast:
        backend, splits = tokenizer.backend_tokenizer, tokenizer.split_special_tokens
        return BoundedProcess(
            PROGRAM, SECONDS, MEMORY, opening=lambda: {"pipeline": backend.to_str(), "splits": splits}
        )
    pickled = base64.b64encode(pickle.dumps(tokenizer)).decode()
    return BoundedProcess(PROGRAM, SECONDS, MEMORY, opening=lambda: {"pickled": pickled})
