"""The program that runs a tokenizer of the library `tokenizers`: texts in, token numbers out, and back.

A tokenizer is in effect a program that came with a model: rules that replace text, one after another, and
regular expressions. A short rule can turn a sentence into gigabytes, or search it for years, and only its
author may know for which sentence. All texts are therefore encoded in a separate process (`bounded_process`).
Its first request contains the tokenizer that transformers has made. A tokenizer that transformers runs in
Python takes ten times the memory, as the process must import transformers. Only data that the asking program
has pickled are unpickled here.
"""

from __future__ import annotations

import base64
import pickle
from typing import Any

from tokenizers import Tokenizer

from sfnode.bounded_process import serve

LONGEST = 1 << 22
"""Maximum tokens of a request's texts, or characters of a reply's texts: more than any model reads."""

TOO_LONG = {"broke": f"it makes more than {LONGEST:,} tokens or characters"}

_held: list[Any] = []


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Return the result of a request: to hold a tokenizer, to encode `texts` or to decode `tokens`."""
    if "pipeline" in request:
        _held[:] = [Tokenizer.from_str(request["pipeline"])]
        _held[0].no_padding()
        _held[0].encode_special_tokens = request["splits"]
        return {}
    if "pickled" in request:
        _held[:] = [pickle.loads(base64.b64decode(request["pickled"]))]
        return {}
    fast = isinstance(_held[0], Tokenizer)
    if "tokens" in request:
        return (_decoded if fast else _decoded_in_python)(_held[0], request["tokens"])
    return (_encoded if fast else _encoded_in_python)(_held[0], **request)


def _encoded(
    tokenizer: Tokenizer, texts: list[list[str]], special: bool, most: int, side: str, places: bool
) -> dict[str, Any]:
    """Encode texts or pairs of texts. `special`: with special tokens around them. Longer texts are cut to
    `most` tokens (0: no limit) at this `side`. `places`: also return the positions of the tokens in the
    text."""
    if most:
        tokenizer.enable_truncation(most, direction=side)
    else:
        tokenizer.no_truncation()
    whole = [tuple(text) if len(text) > 1 else text[0] for text in texts]
    found = tokenizer.encode_batch(whole, add_special_tokens=special)
    if sum(len(one.ids) for one in found) > LONGEST:
        return TOO_LONG
    return {
        "ids": [one.ids for one in found],
        "types": [one.type_ids for one in found if special],
        "places": [one.offsets for one in found if places],
    }


def _decoded(tokenizer: Tokenizer, tokens: list[list[int]]) -> dict[str, Any]:
    found = tokenizer.decode_batch(tokens, skip_special_tokens=True)
    return TOO_LONG if sum(map(len, found)) > LONGEST else {"texts": found}


def _encoded_in_python(
    tokenizer: Any, texts: list[list[str]], special: bool, most: int, side: str, places: bool
) -> dict[str, Any]:
    """Encode texts as `_encoded`, but cut them at the tokenizer's own side, and return no positions."""
    options = {"truncation": True, "max_length": most} if most else {}
    found = [
        tokenizer(*text, add_special_tokens=special, return_token_type_ids=special, verbose=False, **options)
        for text in texts
    ]
    if sum(len(one.input_ids) for one in found) > LONGEST:
        return TOO_LONG
    return {
        "ids": [one.input_ids for one in found],
        "types": [one.token_type_ids for one in found if special],
    }


def _decoded_in_python(tokenizer: Any, tokens: list[list[int]]) -> dict[str, Any]:
    texts = [tokenizer.decode(some, skip_special_tokens=True) for some in tokens]
    return TOO_LONG if sum(map(len, texts)) > LONGEST else {"texts": texts}


if __name__ == "__main__":
    serve(answer)
