"""The program that runs a tokenizer of the library `tokenizers`. It encodes texts as token ids, and decodes
token ids to texts.

A tokenizer is in effect a program that came with a model. It consists of regular expressions and rules that
replace text, one after another. A short rule can turn a certain sentence into gigabytes of text, or search it
for years, and perhaps only the author of the rule knows the sentence. All texts are therefore encoded in a
separate process with bounds (`bounded_process`). The first request to this process contains the tokenizer
that transformers has made. For a tokenizer that is written in Python, the process must import transformers,
and takes ten times the memory. The process unpickles only data that the requesting program has pickled.
"""

from __future__ import annotations

import base64
import pickle
from typing import Any

from tokenizers import Tokenizer

from sfnode.bounded_process import serve

LONGEST = 1 << 22
"""Maximum number of tokens of all texts in a request to encode, and of characters of all texts in a reply to
a request to decode: more than any model reads."""

TOO_LONG = {"broke": f"it makes more than {LONGEST:,} tokens or characters"}

_held: list[Any] = []


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Return the reply to a request. A request is to keep a tokenizer for later requests, to encode `texts`,
    or to decode `tokens`."""
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
    """Encode texts or pairs of texts. With `special` the tokenizer's special tokens are added. From texts
    with more than `most` tokens (0: no limit) the excess is cut off at this `side`. With `places` the
    positions of the tokens in the text are returned, too."""
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
    """Encode texts like `_encoded`, with a tokenizer that is written in Python. Long texts are cut at the
    side that the tokenizer's settings name. No positions are returned."""
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
