"""Generation: answers to many prompts at once.

Rows that are generated together share every matrix product with the weights. Prompts go through the model
padded on the right, as in any other forward pass. A common beginning of all prompts, such as instructions,
goes through the model once. The keys and values of the prompts are then shifted so that all rows end in the
same column. The padding is then on the left, which every model family of transformers accepts. When the
answer of a row is finished, the row in the last slot of the cache moves to the free slot, and waiting rows
fill the slots at the end.

Tokens are the likeliest ones, or drawn with counter-based random numbers. The same rows with the same
weights, device and precision therefore get the same tokens. This module knows no updates, no task and no
scores.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import Cache, DynamicLayer

from sfnode.engine import forward
from sfnode.engine.forward import Batch, KeepGoing, Pass, Perturb, always, paused
from sfnode.errors import Code, UserError
from sfnode.models.loader import LoadedModel
from sfnode.models.perturbation import Perturbation
from sfnode.tasks import tokenization
from sfnode.tasks.templates import common_prefix
from sfnode.tasks.tokenizer_calls import decode
from sfprotocol.seeds import U64, token_draws

CACHE_BYTES, CPU_CACHE_BYTES = 1 << 30, 512 << 20
"""Default maximum bytes of the keys and values of all rows that are written together, on an accelerator and
on a CPU. The CPU's limit holds 7,000 tokens of OPT-125M in float32; with more rows together, a token takes no
less time. The limits do not depend on free memory, because rows that are written together affect each other's
rounding."""

REFILL_SHARE = 4
"""Divisor of the number of cache slots: free slots are filled once a quarter of all slots is free. If each
slot were filled at once, all weights would be read for a single prompt. If no slot were filled before the
last row is finished, most slots would stay empty for long."""

DRAW_BITS = 31
"""Bits of a random number, and of a probability as an integer. The product of the two fits into 63 bits."""

STOP_SLACK = 4
"""Number of tokens at the end of an answer that are searched for a stop string, in addition to one token for
each byte of the string. Some tokens decode to nothing, and some tokenizers drop the space at the
beginning."""


class AnswerRequest(NamedTuple):
    """A prompt to answer."""

    prompt: Sequence[int]
    """Token ids, at least one. Prompt and answer together fit the model's positions."""
    key: int = 0
    """Key of the random stream that the answer's tokens are drawn from (`sfprotocol.seeds.token_keys`)."""


class AnswerPlan(NamedTuple):
    """Settings for writing answers."""

    tokens: int
    """Maximum tokens of an answer, at least 1."""
    temperature: float = 0.0
    """Divisor of the logits before a token is drawn. With 0 the likeliest token is always taken."""
    stop: tuple[str, ...] = ()
    """Texts that end an answer, without being part of it."""
    ends: frozenset[int] | None = None
    """Tokens that end an answer, without being part of its text. None: the model's own ends of texts."""
    cache_bytes: int | None = None
    """Maximum size of the keys and values, in bytes. One row is written even if it takes more. None: the
    default."""


class Continuation(NamedTuple):
    """Answer to one prompt."""

    text: str
    """The tokens as text, without special tokens, up to the first stop string."""
    tokens: tuple[int, ...]
    """All tokens, including one that ended the answer."""
    ended: bool
    """Whether an end token or a stop string ended the answer. Otherwise it was cut off at its maximum
    length."""


def generate(
    loaded: LoadedModel,
    rows: Sequence[AnswerRequest],
    plan: AnswerPlan,
    keep_going: KeepGoing = always,
    perturb: Perturb | None = None,
) -> list[Continuation]:
    """Return an answer to each row, in the order given. With `perturb` the weights are perturbed.

    Raises UserError BAD_OPTION for a classifier, and PAUSED if `keep_going`, which is called before each
    token, returns False.
    """
    _check_writes(loaded)
    if not rows:
        return []
    with torch.inference_mode():
        decoder = _Decoder(loaded, rows, plan, perturb)
        while decoder.busy:
            if not keep_going():
                raise paused()
            decoder.advance()
    return [decoder.answers[number] for number in range(len(rows))]


def complete(
    loaded: LoadedModel, prompts: Sequence[str], tokens: int, stop: tuple[str, ...] = ()
) -> list[str]:
    """Return the likeliest continuation of each text in at most `tokens` tokens, up to one of the texts
    `stop`. Raises as `generate`."""
    _check_writes(loaded)
    asked = [AnswerRequest(prompt_ids(loaded, prompt, tokens)) for prompt in prompts]
    found = generate(loaded, asked, AnswerPlan(tokens, stop=stop))
    return [answer.text for answer in found]


def prompt_ids(loaded: LoadedModel, prompt: str, tokens: int) -> list[int]:
    """Return a prompt's tokens (`tokenization.prompt_ids`), cut so that the model has positions left for an
    answer of `tokens`."""
    return tokenization.prompt_ids(loaded.tokenizer, prompt, positions(loaded) - tokens)


def positions(loaded: LoadedModel) -> int:
    """Return the number of positions of the model; 2^30 if its configuration does not say."""
    text = loaded.model.config.get_text_config(decoder=True)
    return int(getattr(text, "max_position_embeddings", None) or 1 << 30)


def _shared(rows: Sequence[AnswerRequest]) -> int:
    """Return the number of first tokens that all prompts have in common, leaving at least one token of each
    prompt. 0 if reading the common tokens separately does not pay."""
    prompts = [list(row.prompt) for row in rows]
    own = min(map(len, prompts)) - 1
    found = common_prefix(min(prompts)[:own], max(prompts))  # all others lie between them
    return found if len(rows) > 1 and found >= forward.LEAST_SHARED else 0


class _Active:
    """A row whose answer is being written."""

    def __init__(self, number: int, row: AnswerRequest) -> None:
        self.number = number
        self.row = row
        self.tokens: list[int] = []

    @property
    def cached(self) -> int:
        """Number of the row's tokens, of prompt and answer, whose keys and values are in the cache. Those of
        the answer's last token are not there yet."""
        return len(self.row.prompt) + max(0, len(self.tokens) - 1)


class _Decoder:
    """Writes the answers to all rows, as many rows at a time as the cache has slots. Every call of `advance`
    reads prompts in one pass, or writes one token of each row."""

    def __init__(
        self, loaded: LoadedModel, rows: Sequence[AnswerRequest], plan: AnswerPlan, perturb: Perturb | None
    ) -> None:
        self._loaded = replace(loaded, kept=None)  # a text is new at each token
        self._plan = plan
        self._perturb = perturb
        self.answers: dict[int, Continuation] = {}
        """Finished answers, keyed by the number of the row."""
        self._ends = _ends(loaded) if plan.ends is None else plan.ends
        self._inputs = inspect.signature(loaded.model.forward).parameters
        self._waiting = deque(_Active(number, row) for number, row in enumerate(rows))
        self._active: list[_Active] = []
        """Rows in the order of their slots in the cache."""
        columns = max(len(row.prompt) for row in rows) + plan.tokens
        self._vocabulary = loaded.model.config.get_text_config(decoder=True).vocab_size
        most = min(len(rows), max(1, forward.pass_logits(loaded.device) // self._vocabulary))
        kept = forward.kept_of_a_token(loaded)
        if not kept:
            whole = np.full(most, columns)
            most = len(
                forward.groups(whole, loaded.widest, loaded.device, np.full_like(whole, self._vocabulary))[0]
            )
        self._keeps = bool(kept)
        """Whether past tokens are cached. Otherwise texts are read from their beginning for every token."""
        self._shared = _shared(rows) if kept else 0
        """Number of first tokens that all prompts have in common. They are read once."""
        self._beginning: forward.Begun | None = None
        """Keys and values of these common tokens; None until they are read."""
        usual = CPU_CACHE_BYTES if loaded.device.type == "cpu" else CACHE_BYTES
        self._cache = _Cache(kept, most, columns, usual if plan.cache_bytes is None else plan.cache_bytes)
        self._filling = True
        self._step: tuple[Pass, Perturbation | None] | None = None
        """A pass over one token of each row, and its perturbation. None if rows have been added or removed
        since; the next token then needs a new pass."""

    @property
    def busy(self) -> bool:
        """Whether there are rows whose answers are not finished."""
        return bool(self._waiting or self._active)

    def advance(self) -> None:
        """Read some prompts if enough cache slots are free; otherwise write a token of each row."""
        free = self._cache.most - len(self._active)
        if not self._keeps:
            self._active += [self._waiting.popleft() for _ in range(min(free, len(self._waiting)))]
            self._write_anew()
            return
        enough = self._filling or free * REFILL_SHARE >= self._cache.most
        self._filling = bool(self._waiting) and free > 0 and enough
        if self._filling:
            self._read([self._waiting.popleft() for _ in range(min(free, len(self._waiting)))])
        else:
            self._write()

    def _read(self, chosen: list[_Active]) -> None:
        """Read the prompts of some of these rows, as many as one pass can hold. The other rows continue to
        wait."""
        lengths = np.array([len(one.row.prompt) - self._shared for one in chosen])
        outputs = np.full_like(lengths, self._vocabulary)
        group = forward.groups(lengths, self._loaded.widest, self._loaded.device, outputs)[0].tolist()
        reading = [chosen[number] for number in group]  # the longest first
        self._waiting.extendleft(one for one in reversed(chosen) if one not in reading)
        read = self._begun(reading)
        this = _pass(self._loaded, [one.row.prompt[self._shared :] for one in reading])
        with self._loaded.perturber.applying(self._moved(this)):
            logits = forward.logits(self._loaded, this, past_key_values=read)
        self._cache.take(read, [len(one.row.prompt) for one in reading], [one.cached for one in self._active])
        self._active += reading
        self._step = None
        self._add(reading, logits)

    def _begun(self, rows: Sequence[_Active]) -> Any:
        """Return a cache with the common beginning of these rows' prompts."""
        if not self._shared:
            return DynamicCache()
        if self._beginning is None:
            tokens = np.array(rows[0].row.prompt[: self._shared], np.int64)
            self._beginning = forward.begin(self._loaded, tokens, np.zeros(1, np.int64), self._moved)
        return self._beginning.cache(np.zeros(len(rows), np.int64))

    def _write(self) -> None:
        """Write one more token of every row."""
        lengths = np.array([one.cached for one in self._active])
        end = self._cache.make_room(lengths)
        last = [one.tokens[-1:] for one in self._active]
        if self._step is None:
            this = _pass(self._loaded, last)
            self._step = this, self._moved(this)
        this, perturbation = self._step
        this = this._replace(input_ids=self._tensor(np.array(last)))
        given: dict[str, Any] = {"past_key_values": self._cache.layers}
        if (lengths < end).any():
            mask = np.arange(end + 1) >= (end - lengths)[:, None]
            given["attention_mask"] = self._tensor(mask.astype(np.int64))
        if "position_ids" in self._inputs:
            given["position_ids"] = self._tensor(lengths[:, None])
        with self._loaded.perturber.applying(perturbation):
            logits = forward.logits(self._loaded, this, **given)
        self._add(list(self._active), logits)

    def _write_anew(self) -> None:
        """Write one more token of every row without a cache, by reading its whole text."""
        this = _pass(self._loaded, [[*one.row.prompt, *one.tokens] for one in self._active])
        with self._loaded.perturber.applying(self._moved(this)):
            logits = forward.logits(self._loaded, this)
        self._add(list(self._active), logits)

    def _moved(self, this: Pass) -> Perturbation | None:
        """Return the perturbation of a pass."""
        return self._perturb(this) if self._perturb else None

    def _add(self, rows: list[_Active], logits: Tensor) -> None:
        """Add to each of these rows the token that its logits (n, vocab) give; remove the rows that are
        finished."""
        if self._plan.temperature:
            keys = np.array([one.row.key for one in rows], np.uint64)
            draws = token_draws(keys, np.array([len(one.tokens) for one in rows]))
            chosen = drawn(logits, self._plan.temperature, draws)
        else:
            chosen = logits.argmax(-1)
        for one, token in zip(rows, chosen.tolist(), strict=True):
            one.tokens.append(token)
        over = [one for one in rows if one.tokens[-1] in self._ends]
        ended = over + self._stopped([one for one in rows if one not in over])
        done = [one for one in rows if one in ended or len(one.tokens) >= self._plan.tokens]
        texts = self._decoded([one.tokens[:-1] if one in over else one.tokens for one in done])
        for one, text in zip(done, texts, strict=True):
            self._finish(one, text, ended=one in ended)

    def _finish(self, one: _Active, text: str, *, ended: bool) -> None:
        """Store the answer of a row that is finished, and move the last row to the slot that becomes free in
        the cache."""
        cuts = [place for stop in self._plan.stop if (place := text.find(stop)) >= 0]
        self.answers[one.number] = Continuation(text[: min(cuts, default=None)], tuple(one.tokens), ended)
        place = self._active.index(one)
        self._active[place] = self._active[-1]
        self._active.pop()
        self._cache.leave(place)
        self._step = None

    def _stopped(self, rows: list[_Active]) -> list[_Active]:
        """Return the rows whose last token completes a stop string."""
        if not self._plan.stop:
            return []
        tail = max(len(stop.encode()) for stop in self._plan.stop) + STOP_SLACK
        texts = zip(rows, self._decoded([one.tokens[-tail:] for one in rows]), strict=True)
        return [one for one, text in texts if any(stop in text for stop in self._plan.stop)]

    def _decoded(self, tokens: list[list[int]]) -> list[str]:
        return decode(self._loaded.tokenizer, tokens) if tokens else []

    def _tensor(self, values: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(values).to(self._loaded.device, non_blocking=True)


class _Cache:
    """The keys and values of all rows that are being written. All rows end in the same column."""

    def __init__(self, kept: Sequence[Any], rows: int, columns: int, most_bytes: int) -> None:
        """`kept`: the layers of a cache that holds a single token."""
        self._columns = columns
        self.most = min(rows, max(1, most_bytes // max(1, _bytes(kept) * columns)))
        """Maximum number of rows in the cache."""
        self._layers = [_Layer(layer, self.most, columns) for layer in kept]
        self.layers: Any = Cache(layers=list(self._layers))
        """The cache as the model sees it."""

    def take(self, read: Any, lengths: Sequence[int], kept: Sequence[int]) -> None:
        """Add rows from the cache `read` of a pass over their prompts. `lengths`: the numbers of their
        tokens, descending. `kept`: the number of cached tokens of each row that was there before."""
        self._shift(max([*lengths, *kept]))
        first = 0
        for length, same in groupby(lengths):
            last = first + len(list(same))
            for layer, source in zip(self._layers, read.layers, strict=True):
                layer.join(source.keys[first:last, :, :length], source.values[first:last, :, :length])
            first = last

    def make_room(self, kept: NDArray[np.int64]) -> int:
        """Make room for one more column, and return the number of columns in use."""
        if self._layers[0].end == self._columns:
            self._shift(int(kept.max()))
        return self._layers[0].end

    def leave(self, place: int) -> None:
        """Remove the row in slot `place`, and move the last row there."""
        for layer in self._layers:
            layer.leave(place)

    def _shift(self, end: int) -> None:
        for layer in self._layers:
            if layer.end != end:
                layer.shift(end)


class _Layer(DynamicLayer):  # type: ignore[no-untyped-call]
    """Keys and values of one layer, (rows, heads, columns, d) each, in memory that is allocated once.

    transformers' own layer copies everything for every token. Columns before a row's first token hold 0 or
    older values of the same row. Values of other rows are overwritten there, because a NaN among them would
    spread even from a masked column.
    """

    def __init__(self, like: Any, rows: int, columns: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._held: list[Tensor] = [
            part.new_zeros(rows, part.shape[1], columns, part.shape[3]) for part in (like.keys, like.values)
        ]
        self.is_initialized = True
        self._show(0, 0)

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Add columns to all rows; called by the model's own code."""
        end = self.end + key_states.shape[2]
        for held, new in zip(self._held, (key_states, value_states), strict=True):
            held[: self.rows, :, self.end : end] = new
        return self._show(self.rows, end)

    def shift(self, end: int) -> None:
        """Shift all rows so that they end at column `end`. Columns on the left of the longest row may be
        lost."""
        width = min(self.end, end)
        for held in self._held:
            kept = held[: self.rows, :, self.end - width : self.end].clone()
            held[: self.rows, :, end - width : end] = kept
        self._show(self.rows, end)

    def join(self, *new: Tensor) -> None:
        """Add rows of equal length, which is at most the number of columns in use."""
        rows, first = self.rows + new[0].shape[0], self.end - new[0].shape[2]
        for held, added in zip(self._held, new, strict=True):
            held[self.rows : rows, :, :first] = 0
            held[self.rows : rows, :, first : self.end] = added
        self._show(rows, self.end)

    def leave(self, place: int) -> None:
        """Remove the row in slot `place`, and move the last row there."""
        last = self.rows - 1
        for held in self._held if place != last else ():
            held[place, :, : self.end] = held[last, :, : self.end]
        self._show(last, self.end)

    def _show(self, rows: int, end: int) -> tuple[Tensor, Tensor]:
        """Use this many rows and columns from now on, and return their keys and values."""
        self.rows, self.end = rows, end
        keys, values = (held[:rows, :, :end] for held in self._held)
        self.keys, self.values = keys, values
        return keys, values


def drawn(logits: Tensor, temperature: float, draws: U64) -> Tensor:
    """Return a random token for each row of logits (n, vocab), as a tensor (n,). `draws` (n,) are the random
    numbers, of DRAW_BITS bits each.

    Probabilities become integers, whose sums are exact in any order. On devices that compute equal integers,
    a random number gives the same token (SPEC R11). Rows are processed in blocks, since the cumulative sums
    take eight bytes for each logit.
    """
    block = max(1, forward.LOGITS_AT_A_TIME // logits.shape[1])
    parts = zip(torch.split(logits, block), np.split(draws, range(block, len(draws), block)), strict=True)
    return torch.cat([_drawn(part, temperature, own) for part, own in parts])


def _drawn(logits: Tensor, temperature: float, draws: U64) -> Tensor:
    weights = (torch.softmax(logits.float() / temperature, -1) * (1 << DRAW_BITS)).long()
    sums = weights.cumsum(-1)  # (n, vocab)
    picks = torch.from_numpy(draws.astype(np.int64)).to(logits.device)[:, None]
    found = torch.searchsorted(sums, (picks * sums[:, -1:]) >> DRAW_BITS, right=True)[:, 0]
    return found.clamp_(max=logits.shape[1] - 1)  # even if logits are NaN


def _pass(loaded: LoadedModel, sequences: Sequence[Sequence[int]]) -> Pass:
    """Return a pass with one target in each sequence: the token that follows the sequence."""
    lengths = np.array([len(ids) for ids in sequences])
    mask = (np.arange(lengths.max()) < lengths[:, None]).astype(np.int64)
    ids = np.zeros_like(mask)
    ids[mask > 0] = np.concatenate([np.asarray(ids, np.int64) for ids in sequences])
    every = np.arange(len(sequences))
    batch = Batch(ids, mask, np.zeros_like(ids), every, lengths - 1, np.zeros_like(every))
    return forward.take(loaded, batch, every, every)


def token_bytes(loaded: LoadedModel) -> int:
    """Return the bytes of one token's keys and values; 0 for a model that caches something else."""
    with torch.inference_mode():
        return _bytes(forward.kept_of_a_token(loaded))


def _bytes(layers: Sequence[Any]) -> int:
    parts = [part for layer in layers for part in (layer.keys, layer.values)]
    return sum(part.numel() * part.element_size() for part in parts)


def _check_writes(loaded: LoadedModel) -> None:
    if loaded.classifies:
        raise UserError(
            Code.BAD_OPTION,
            "the run's model is a classifier: it writes no text",
            "Measure it with `sfnode eval` instead.",
        )


def _ends(loaded: LoadedModel) -> frozenset[int]:
    """Return the tokens that end a text according to the model's files."""
    own = loaded.model.generation_config.eos_token_id
    found = loaded.tokenizer.eos_token_id if own is None else own
    if found is None:
        return frozenset()
    return frozenset(found if isinstance(found, list | tuple) else [found])
