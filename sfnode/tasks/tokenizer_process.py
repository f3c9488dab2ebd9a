"""The program that runs a tokenizer of the library `tokenizers`: texts in, token numbers out, and back.

A tokenizer is a program that came with a model: rules that replace text, one after the other, and regular
expressions. A rule of a few characters makes gigabytes of a sentence, or takes years to find that there is
nothing to replace, and which sentence does it may be known only to whoever made the rule. So all texts are
encoded in a process of its own (`bounded_process`), which gets the tokenizer, as transformers has made it, in
its first request. For one that transformers has in Python the process takes ten times the memory, for
transformers. What it unpickles was pickled by the program that asks.
"""

from __future__ import annotations

import base64
import pickle
from typing import Any

from tokenizers import Tokenizer

from sfnode.bounded_process import serve

LONGEST = 1 << 22
"""Tokens of the texts of a request, or characters of those of an answer: more than any model reads."""

TOO_LONG = {"broke": f"it makes more than {LONGEST:,} tokens or characters"}

_held: list[Any] = []


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Return what a request asks for: to hold a tokenizer, to encode `texts` or to decode `tokens`."""
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
    """Encode texts, each one or a pair, with `special` tokens around them, in at most so many tokens (0: any)
    after a cut at this `side`, with the `places` of the tokens in the text."""
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
    """Encode texts as `_encoded` does, at the side that is the tokenizer's own, without the places."""
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
