"""The program that runs a tokenizer which transformers has in Python, as `tokenizer_process` runs the others.

It takes ten times the memory, for transformers. What it unpickles was pickled by the program that asks.
"""

from __future__ import annotations

import base64
import pickle
from typing import Any

from transformers import PreTrainedTokenizerBase

from sfnode.bounded_process import serve
from sfnode.tasks.tokenizer_process import LONGEST, TOO_LONG

_held: list[PreTrainedTokenizerBase] = []


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Return what a request asks for, as `tokenizer_process.answer` does; without the places of tokens."""
    if "pickled" in request:
        _held[:] = [pickle.loads(base64.b64decode(request["pickled"]))]
        return {}
    tokenizer: Any = _held[0]
    if "tokens" in request:
        texts = [tokenizer.decode(tokens, skip_special_tokens=True) for tokens in request["tokens"]]
        return TOO_LONG if sum(map(len, texts)) > LONGEST else {"texts": texts}
    options = {"truncation": True, "max_length": request["most"]} if request["most"] else {}
    special = request["special"]
    found = [
        tokenizer(*text, add_special_tokens=special, return_token_type_ids=special, verbose=False, **options)
        for text in request["texts"]
    ]
    if sum(len(one.input_ids) for one in found) > LONGEST:
        return TOO_LONG
    return {
        "ids": [one.input_ids for one in found],
        "types": [one.token_type_ids for one in found if special],
    }


if __name__ == "__main__":
    serve(answer)
