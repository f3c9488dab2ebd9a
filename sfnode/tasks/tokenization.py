"""Tokenises the text of a row, and determines the targets: the tokens that a model must predict.

Candidates and answers are tokenised as in MeZO (large_models/utils.py). Texts for a classification head get
the tokenizer's own special tokens. The tokens of rows are kept in a cache, one for each tokenizer. This
module knows tokenizers; it knows no tensor and no model.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from sfnode.errors import Code, UserError
from sfnode.tasks import chat, prompts, tokenizer_calls
from sfnode.tasks.bounded_cache import BoundedCache
from sfnode.tasks.prompts import Conversation, LabelledTexts, Prompt, RowText
from sfnode.tasks.templates import common_prefix, join

ARRAY_BYTES = 100
"""Bytes that an array takes besides its data (measured)."""

I32 = NDArray[np.int32]


class Example(NamedTuple):
    """One row as token ids."""

    inputs: tuple[I32, ...]
    """The sequences that the model reads."""
    types: tuple[NDArray[np.int8], ...]
    """Arrays, one for each sequence, with the index (0 or 1) of each token's text in a pair of texts. All
    values are 0 if the tokenizer does not return such an index."""
    targets: I32
    """(P, 4): for each of the P targets, the index of its sequence, the column whose output predicts it, its
    token (or class), and the index of its candidate."""
    right: tuple[int, ...]
    """Indices of the correct candidates."""

    @property
    def nbytes(self) -> int:
        """Bytes that all arrays take, including ARRAY_BYTES for each."""
        arrays: tuple[NDArray[Any], ...] = (*self.inputs, *self.types, self.targets)
        return sum(one.nbytes + ARRAY_BYTES for one in arrays)


class _TokenCache(BoundedCache[tuple[RowText, int], Example]):
    """Cache of the rows that one tokenizer has encoded, with a lock."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = Lock()


_caches: WeakKeyDictionary[Any, _TokenCache] = WeakKeyDictionary()
_making = Lock()


def example(tokenizer: Any, words: RowText, max_tokens: int) -> Example:
    """Return a row as token ids, with at most `max_tokens` tokens in each sequence.

    Raises UserError DATA_MALFORMED if a target does not fit into a sequence, and as `tokenizer_calls.encode`.
    """
    cache = _cache_of(tokenizer)
    key = (words, max_tokens)
    found = cache.get(key)
    if found is None:
        with cache.lock:
            found = _tokenise(tokenizer, words, max_tokens)
        cache.put(key, found, found.nbytes + prompts.length(words))
        cache.make_room()
    return found


def alike(found: Example) -> list[int]:
    """Return the indices of candidates of a row that no model can distinguish, because their tokens are
    equal; empty if there are no such candidates."""
    same: dict[bytes, list[int]] = {}
    for candidate in dict.fromkeys(found.targets[:, 3].tolist()):
        tokens = found.targets[found.targets[:, 3] == candidate, :3]
        same.setdefault(tokens.tobytes(), []).append(candidate)
    return next((sorted(several) for several in same.values() if len(several) > 1), [])


def _cache_of(tokenizer: Any) -> _TokenCache:
    with _making:
        return _caches.setdefault(tokenizer, _TokenCache())


def _tokenise(tokenizer: Any, words: RowText, max_tokens: int) -> Example:
    if isinstance(words, LabelledTexts):
        return _labelled(tokenizer, words, max_tokens)
    if isinstance(words, Conversation):
        return _conversation(tokenizer, words, max_tokens)
    return _answered(tokenizer, words, max_tokens)


def _labelled(tokenizer: Any, words: LabelledTexts, max_tokens: int) -> Example:
    """Tokenise a text to classify, as one sequence. Each class is a candidate. The model's single output for
    the sequence predicts the class."""
    ids, types = tokenizer_calls.encode_pair(tokenizer, words.texts, max_tokens)
    targets = [(0, 0, number, number) for number in range(words.classes)]
    plain = _example([ids], targets, (words.right,))
    return plain if types is None else plain._replace(types=(np.array(types, np.int8),))


def _conversation(tokenizer: Any, words: Conversation, max_tokens: int) -> Example:
    """Tokenise a conversation as one sequence. If the sequence is too long, its end is cut off."""
    ids, said = chat.tokenise(tokenizer, words)
    targets = [(0, column - 1, ids[column], 0) for column in said if 0 < column < max_tokens]
    if not targets:
        raise _unfit(f"the assistant in the conversation {chat.opening(words.messages)}", max_tokens)
    last = targets[-1][1]  # later tokens predict nothing
    return _example([ids[: last + 1]], targets, (0,))


def _answered(tokenizer: Any, words: Prompt, max_tokens: int) -> Example:
    """Tokenise all candidates. If a candidate without its last token is a prefix of another candidate, the
    two share the sequence of the longer one."""
    inputs: list[list[int]] = []
    targets = []
    whole = enumerate(_sequences(tokenizer, words, max_tokens))
    # The longest sequence comes first, so that a sequence that is the beginning of another one can share it.
    for candidate, (ids, first) in sorted(whole, key=lambda item: -len(item[1][0])):
        fed = ids[:-1]  # the last token predicts nothing
        home = next((n for n, other in enumerate(inputs) if other[: len(fed)] == fed), len(inputs))
        if home == len(inputs):
            inputs.append(fed)
        targets += [(home, column - 1, ids[column], candidate) for column in range(first, len(ids))]
    return _example(inputs, targets, words.right)


def _example(
    inputs: Sequence[Sequence[int]], targets: Sequence[tuple[int, ...]], right: tuple[int, ...]
) -> Example:
    fed = tuple(np.array(ids, np.int32) for ids in inputs)
    types = tuple(np.zeros(len(ids), np.int8) for ids in fed)
    return Example(fed, types, np.array(targets, np.int32), right)


def _sequences(tokenizer: Any, words: Prompt, max_tokens: int) -> list[tuple[list[int], int]]:
    """Return for each answer the token ids of prompt and answer, and the index of the answer's first token.

    Prompt and answer are tokenised together. The answer begins at the first token that differs from the
    tokens of the prompt alone. If a sequence would have more than `max_tokens` tokens, the beginning of the
    prompt is cut off, by the same number of tokens for all answers. If there is no prompt, because the whole
    text is the answer, its end is cut off.
    """
    start = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
    room = max_tokens - len(start)
    texts = [words.prompt.rstrip(" "), *(join(words.prompt, answer) for answer in words.answers)]
    alone, *pieces = tokenizer_calls.encode(tokenizer, texts)
    cut = max(0, max(map(len, pieces)) - room) if words.prompt else 0
    earliest = max(len(start), 1)  # nothing predicts a sequence's first token
    sequences = []
    for piece, answer in zip(pieces, words.answers, strict=True):
        ids = start + piece[cut:][:room]
        departs = common_prefix(piece, alone)
        first = len(start) + departs - cut if words.prompt else earliest
        if not earliest <= first < len(ids):
            raise _unfit(f"the answer {answer[:60]!r}", max_tokens)
        sequences.append((ids, first))
    return sequences


def prompt_ids(tokenizer: Any, prompt: str, room: int) -> list[int]:
    """Return the tokens of a prompt, as in training: after the beginning-of-text token, if the tokenizer has
    one.

    If the result would have more than `room` tokens, including special ones, the beginning of the prompt is
    cut off. The result has at least one token.
    """
    start = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
    (ids,) = tokenizer_calls.encode(tokenizer, [prompt])
    return start + ids[-max(1, room - len(start)) :] or [0]


def _unfit(what: str, max_tokens: int) -> UserError:
    return UserError(
        Code.DATA_MALFORMED,
        f"{what} cannot be predicted within max_tokens = {max_tokens}",
        "Raise max_tokens in the run's task, or leave such rows out of the data.",
    )
