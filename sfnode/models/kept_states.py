"""Hidden states of texts at a model's cut, computed once for each text, because training changes nothing
below the cut.

A text goes through the part below the cut (`cuts`) when it is first needed. From then on its states serve
mini-batches, searches and evaluations. States are keyed by the text's tokens, because row, template,
truncation and tokenizer affect the model only through the tokens.
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
"""Maximum size of hidden states in files, of all models together, in bytes. To make room, the folders to
which nothing was written for longest are removed."""

LOOK = 256 << 20
"""Bytes that a process writes before it measures the sizes of all folders again."""

ROOM = 1 << 30
"""Minimum number of bytes that must be free on the disk. With less, no hidden states are written to files."""


class Text(NamedTuple):
    """A text as a model sees it."""

    key: bytes
    """Hash of the tokens; for a pair of texts also of the index (0 or 1) of the text that each token belongs
    to."""
    tokens: int
    """Number of its tokens."""


class StateFolder:
    """Hidden states on this machine's disk, a file for each text. Other nodes on this machine, evaluations,
    and this node after a restart read these files, too. Lost states are computed again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._left: int | None = 0
        """Bytes that may be written before the sizes of all folders are measured again; None if there is no
        room."""

    def read(self, key: bytes, shape: tuple[int, int]) -> Tensor | None:
        """Return the hidden states of the text with this key, (rows, features) float32; None if their file is
        missing or broken."""
        with suppress(OSError):
            found = (self._folder / key.hex()).read_bytes()
            if len(found) == 4 * shape[0] * shape[1]:
                return torch.frombuffer(bytearray(found), dtype=torch.float32).view(shape)
        return None

    def write(self, states: Iterable[tuple[bytes, Tensor]]) -> None:
        """Write these hidden states, keyed by text, as long as there is room."""
        with suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            for key, state in states:
                if not self._has_room(state.nbytes):
                    return
                part = self._folder / f"{key.hex()}.{os.getpid()}"
                part.write_bytes(state.numpy().tobytes())
                part.replace(self._folder / key.hex())

    def _has_room(self, size: int) -> bool:
        """Return whether `size` more bytes may be written, and count them."""
        if self._left is not None and self._left < size:
            left = _left_for(self._folder, size)
            self._left = min(left, LOOK) if left >= size else None
        if self._left is None or shutil.disk_usage(self._folder).free < ROOM:
            return False
        self._left -= size
        return True


class KeptStates:
    """The hidden states of texts at a cut of one model."""

    def __init__(self, cut: ModelCut, device: torch.device, dtype: torch.dtype) -> None:
        """`device` and `dtype` are those of the layers after the cut."""
        self.cut = cut
        self.folder: StateFolder | None = None
        """Folder in which hidden states outlast the process; None if they are in memory only."""
        self.forwards = 0
        """Number of texts that went through the part below the cut."""
        self._device, self._dtype = device, dtype
        self._states = BoundedCache[Text, Tensor]()
        """Hidden states of each text, (rows, features) float32 on the CPU."""

    def lacking(self, texts: Sequence[Text]) -> dict[Text, int]:
        """Return the texts whose hidden states must be computed, each with one of its indices in `texts`.
        States that are in the folder alone are read into memory."""
        if folder := self.folder:
            for text in texts:
                shape = self.cut.rows(text.tokens), self.cut.features
                if text not in self._states and (state := folder.read(text.key, shape)) is not None:
                    self._states.put(text, state, state.nbytes)
        return {text: place for place, text in enumerate(texts) if text not in self._states}

    def fill(self, texts: Sequence[Text], run: Run) -> None:
        """Compute and keep the hidden states of these texts; `run` runs the model on them."""
        with torch.inference_mode():
            found = self.cut.states(run).to("cpu", torch.float32)  # (texts, rows of the longest, features)
        with torch.inference_mode(mode=False):  # states may need gradients
            states = [
                of_text[: self.cut.rows(text.tokens)].clone()
                for text, of_text in zip(texts, found, strict=True)
            ]
        self.forwards += len(texts)
        for text, state in zip(texts, states, strict=True):
            self._states.put(text, state, state.nbytes)
        if self.folder:
            self.folder.write((text.key, state) for text, state in zip(texts, states, strict=True))

    def of(self, texts: Sequence[Text]) -> Tensor:
        """Return the kept hidden states of these texts, (texts, rows of the longest, features), padded with
        zeros. They have the device and the dtype of the layers after the cut."""
        found = pad_sequence([self._states[text] for text in texts], batch_first=True)
        self._states.make_room()  # only now: a batch may exceed the room
        return found.to(self._device, self._dtype)

    def outputs(self, texts: Sequence[Text], begun: int, run: Run) -> Tensor:
        """Return the outputs of the whole model for these texts, from their kept hidden states without the
        first `begun` rows. `run` runs the model on the texts without these rows; nothing below the cut is
        computed."""
        return self.cut.outputs(self.of(texts)[:, begun:], run)


def texts_of(tokens: NDArray[np.int64], mask: NDArray[np.int64], types: NDArray[np.int64]) -> list[Text]:
    """Return the texts of a batch. `tokens`, `mask` and `types` are (texts, T) each. `mask` is 0 on padding,
    which is on the right. `types` is the index (0 or 1) of the text that each token belongs to in a pair."""
    ends = mask.sum(1).tolist()
    seen = ((tokens[row, :end], types[row, :end]) for row, end in enumerate(ends))
    keys = [hashlib.blake2b(b"".join(map(bytes, parts)), digest_size=16).digest() for parts in seen]
    return [Text(*one) for one in zip(keys, ends, strict=True)]


def _left_for(own: Path, size: int) -> int:
    """Return DISK minus the sizes of all folders with hidden states, in bytes. Folders other than `own` are
    removed, the oldest first, if that is necessary for `size` more bytes."""
    folders = [found for found in own.parent.iterdir() if found.is_dir()]
    sizes = {folder: sum(map(_size, folder.iterdir())) for folder in folders}
    for folder in sorted(folders, key=lambda folder: folder.stat().st_mtime):
        if folder != own and DISK - sum(sizes.values()) < size:
            shutil.rmtree(folder, ignore_errors=True)
            del sizes[folder]
    return DISK - sum(sizes.values())


def _size(file: Path) -> int:
    with suppress(FileNotFoundError):  # another process has just renamed it
        return file.stat().st_size
    return 0
