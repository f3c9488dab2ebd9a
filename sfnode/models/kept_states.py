"""States that enter a linear head, computed once for each text: nothing below it changes with the head.

A text goes through the frozen part of the model when it is first asked for. From then on it is a row of
numbers, by which everything is answered: mini-batches, searches, evaluations, audits. Rows are kept by the
text's tokens, which say all that the model sees of it: row, template, truncation and tokenizer.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sfnode.models.targets import Form, PretrainedModel, Site

MEMORY = 512 << 20
"""Bytes of states in memory, of which the oldest make room: 230,000 texts for a model of width 576."""

ROOM = 1 << 30
"""Bytes that stay free on the disk where states are kept: 4 kB for each text are no reason to fill it."""

HEADS = ("score", "classifier", "classifier.out_proj")
"""Names of the layers whose outputs are the logits of transformers' classifiers."""

Run = Callable[[], Tensor]
"""Runs the whole model on the texts that lack a state, and returns its logits."""


class StateFolder:
    """States on this machine's disk, a file for each text, for whoever asks for the same texts later: another
    node here, an evaluation, or this node after a restart. What is lost of it is computed again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, key: bytes, features: int) -> Tensor | None:
        """Return a state, (features,) float32, if it is here and whole."""
        with suppress(OSError):
            found = (self._folder / key.hex()).read_bytes()
            if len(found) == 4 * features:
                return torch.frombuffer(bytearray(found), dtype=torch.float32)
        return None

    def write(self, states: Iterable[tuple[bytes, Tensor]]) -> None:
        """Keep these, unless there is hardly any room."""
        with suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if shutil.disk_usage(self._folder).free < ROOM:
                return
            for key, state in states:
                part = self._folder / f"{key.hex()}.{os.getpid()}"
                part.write_bytes(state.numpy().tobytes())
                part.replace(self._folder / key.hex())


class KeptStates:
    """The states of one model's head, by what the model sees of a text."""

    def __init__(self, head: nn.Module, device: torch.device) -> None:
        self._device = device
        self.folder: StateFolder | None = None
        """Place where they are kept beyond the process, if anywhere."""
        self._head: Any = head
        self._rows: OrderedDict[bytes, Tensor] = OrderedDict()
        self._bytes = 0
        self.forwards = 0
        """Texts that went through the whole model."""

    def lacking(self, keys: Sequence[bytes]) -> list[int]:
        """Return the places of texts whose states are not here."""
        if self.folder:
            for key in keys:
                state = None if key in self._rows else self.folder.read(key, self._head.in_features)
                if state is not None:
                    self._take(key, state)
        return [place for place, key in enumerate(keys) if key not in self._rows]

    def fill(self, keys: Sequence[bytes], run: Run) -> None:
        """Keep the states of these texts, which `run` runs the model on."""
        plain, self._head.forward = self._head.forward, _as_it_is
        try:
            found = run()
        finally:
            self._head.forward = plain
        with torch.inference_mode(mode=False):  # a gradient may be taken at them
            states = found.to("cpu", torch.float32).clone()
        self.forwards += len(keys)
        for key, state in zip(keys, states, strict=True):
            self._take(key, state)
        if self.folder:
            self.folder.write(zip(keys, states, strict=True))

    def _take(self, key: bytes, state: Tensor) -> None:
        self._rows[key] = state
        self._bytes += state.nbytes

    def _make_room(self) -> None:
        """Forget the oldest beyond MEMORY; whoever asked for some has them."""
        while self._bytes > MEMORY:
            _, oldest = self._rows.popitem(last=False)
            self._bytes -= oldest.nbytes

    def of(self, keys: Sequence[bytes]) -> Tensor:
        """Return the states of texts that are here, (texts, features) float32."""
        found = torch.stack([self._rows[key] for key in keys]).to(self._device)
        self._make_room()
        return found

    def logits(self, states: Tensor) -> Tensor:
        """Return the head's outputs, (texts, classes), with whatever perturbation is being applied."""
        found: Tensor = self._head(states)
        return found


def kept_for(model: PretrainedModel, sites: Sequence[Site], device: torch.device) -> KeptStates | None:
    """Return where the states of a model are kept that trains its linear head alone, or None."""
    if model.get_output_embeddings() is not None or len(sites) != 1:
        return None
    (site,) = sites
    is_head = site.target.name.removesuffix(".weight") in HEADS and site.form is Form.LINEAR
    return KeptStates(site.module, device) if is_head else None


def keys_of(tokens: NDArray[np.int64], mask: NDArray[np.int64], types: NDArray[np.int64]) -> list[bytes]:
    """Return what names each text by its tokens and the texts of a pair that they belong to; all (texts, T),
    with a mask of 0 on padding, which is on the right."""
    seen = ((tokens[row, :end], types[row, :end]) for row, end in enumerate(mask.sum(1).tolist()))
    return [hashlib.blake2b(b"".join(map(bytes, parts)), digest_size=16).digest() for parts in seen]


def _as_it_is(hidden: Tensor) -> Tensor:
    return hidden
