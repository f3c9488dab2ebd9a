"""States of texts at a model's cut, computed once for each: nothing below it changes with what is trained.

A text goes through the part below the cut (`cuts`) when it is first asked for. From then on it is rows of
numbers, from which everything is answered: mini-batches, searches, evaluations. They are kept by the
text's tokens, which say all that the model sees of it: row, template, truncation and tokenizer.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from sfnode.models.cuts import ModelCut, Run
from sfnode.tasks.bounded_cache import BoundedCache

DISK = 4 << 30
"""Bytes of states in files, of all models together; folders that were written to longest ago make room."""

LOOK = 256 << 20
"""Bytes that a process writes before it looks at what all have written."""

ROOM = 1 << 30
"""Bytes that stay free on the disk where states are kept, which are no reason to fill it."""


class Text(NamedTuple):
    """A text as a model sees it."""

    key: bytes
    """Hash of its tokens, and of which text of a pair they belong to."""
    tokens: int
    """Number of them."""


class StateFolder:
    """States on this machine's disk, a file for each text, for whoever asks for the same texts later: another
    node here, an evaluation, or this node after a restart. What is lost of it is computed again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._left: int | None = 0
        """Bytes that may be written before it is looked again; None: it is full."""

    def read(self, key: bytes, shape: tuple[int, int]) -> Tensor | None:
        """Return a state, (rows, features) float32, if it is here and whole."""
        with suppress(OSError):
            found = (self._folder / key.hex()).read_bytes()
            if len(found) == 4 * shape[0] * shape[1]:
                return torch.frombuffer(bytearray(found), dtype=torch.float32).view(shape)
        return None

    def write(self, states: Iterable[tuple[bytes, Tensor]]) -> None:
        """Keep as many of these as there is room for."""
        with suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            for key, state in states:
                if not self._has_room(state.nbytes):
                    return
                part = self._folder / f"{key.hex()}.{os.getpid()}"
                part.write_bytes(state.numpy().tobytes())
                part.replace(self._folder / key.hex())

    def _has_room(self, size: int) -> bool:
        """Return whether so many bytes more may be written, and count them."""
        if self._left is not None and self._left < size:
            left = _left_for(self._folder, size)
            self._left = min(left, LOOK) if left >= size else None
        if self._left is None or shutil.disk_usage(self._folder).free < ROOM:
            return False
        self._left -= size
        return True


class KeptStates:
    """The states of texts at a cut of one model."""

    def __init__(self, cut: ModelCut, device: torch.device, dtype: torch.dtype) -> None:
        """`dtype`: that of the layers behind the cut, which are on `device`."""
        self.cut = cut
        self.folder: StateFolder | None = None
        """Place where they are kept beyond the process, if anywhere."""
        self.forwards = 0
        """Texts that went through the part below the cut."""
        self._device, self._dtype = device, dtype
        self._states = BoundedCache[Text, Tensor]()
        """States of each text, (rows, features) float32 on the CPU."""

    def lacking(self, texts: Sequence[Text]) -> dict[Text, int]:
        """Return the texts whose states are not here, each once and with a place of it."""
        for text in texts if self.folder else ():
            state = None if text in self._states else self._read(text)
            if state is not None:
                self._states.put(text, state, state.nbytes)
        return {text: place for place, text in enumerate(texts) if text not in self._states}

    def fill(self, texts: Sequence[Text], run: Run) -> None:
        """Keep the states of these texts, which `run` runs the model on."""
        with torch.inference_mode():
            found = self.cut.states(run).to("cpu", torch.float32)  # (texts, rows of the longest, features)
        with torch.inference_mode(mode=False):  # a gradient may be taken at them
            states = [
                of_text[: self.cut.rows(text.tokens)].clone()
                for text, of_text in zip(texts, found, strict=True)
            ]
        self.forwards += len(texts)
        for text, state in zip(texts, states, strict=True):
            self._states.put(text, state, state.nbytes)
        if self.folder:
            self.folder.write((text.key, state) for text, state in zip(texts, states, strict=True))

    def _read(self, text: Text) -> Tensor | None:
        shape = (self.cut.rows(text.tokens), self.cut.features)
        return self.folder.read(text.key, shape) if self.folder else None

    def of(self, texts: Sequence[Text]) -> Tensor:
        """Return the states of texts that are here, (texts, rows of the longest, features), with zeros for
        the rows that a text lacks, on the device and in the dtype of the layers behind the cut."""
        found = pad_sequence([self._states[text] for text in texts], batch_first=True)
        self._states.make_room()  # only now: a batch may have more than there is room for
        return found.to(self._device, self._dtype)

    def outputs(self, texts: Sequence[Text], begun: int, run: Run) -> Tensor:
        """Return what `run`, which runs the model on texts that are here, without the first `begun` rows of
        each, would return without a cut."""
        return self.cut.outputs(self.of(texts)[:, begun:], run)


def texts_of(tokens: NDArray[np.int64], mask: NDArray[np.int64], types: NDArray[np.int64]) -> list[Text]:
    """Return the texts of a batch by their tokens and the texts of a pair that they belong to; all (texts,
    T), with a mask of 0 on padding, which is on the right."""
    ends = mask.sum(1).tolist()
    seen = ((tokens[row, :end], types[row, :end]) for row, end in enumerate(ends))
    keys = [hashlib.blake2b(b"".join(map(bytes, parts)), digest_size=16).digest() for parts in seen]
    return [Text(*one) for one in zip(keys, ends, strict=True)]


def _left_for(own: Path, size: int) -> int:
    """Return the bytes that are left of DISK beside all folders of states, of which others than `own` make
    room for `size`, if need be."""
    folders = [found for found in own.parent.iterdir() if found.is_dir()]
    sizes = {folder: sum(map(_size, folder.iterdir())) for folder in folders}
    for folder in sorted(folders, key=lambda folder: folder.stat().st_mtime):
        if folder != own and DISK - sum(sizes.values()) < size:
            shutil.rmtree(folder, ignore_errors=True)
            del sizes[folder]
    return DISK - sum(sizes.values())


def _size(file: Path) -> int:
    with suppress(FileNotFoundError):  # another process has just given it its name
        return file.stat().st_size
    return 0
