"""The base model's own weights, read again from the files when they are needed, not from a second copy.

A rebuild starts from them. They are read as they are stored; a file that has changed on disk since it was
loaded is noticed. Knows nothing of updates.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sfnode.errors import Code, UserError
from sfnode.models.files import StoredTensor, stored_tensors
from sfnode.models.targets import Site, view

DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""The float types of the safetensors format by their names there."""


class _InFile(NamedTuple):
    stored: StoredTensor
    checksum: int


class BaseWeights:
    """The base weights of the targets, by number."""

    def __init__(self, sites: Sequence[Site], files: dict[str, StoredTensor], prefix: str) -> None:
        """Remember where each target's weight comes from; the model must hold the base weights now.

        `files`: the stored tensors by name; `prefix`: what names in the files may lack, or have in excess, in
        front of the model's own.
        """
        self._forms = [site.form for site in sites]
        self._origins = [_origin(site, files, prefix) for site in sites]

    def read(self, number: int) -> Tensor:
        """Return W (out, in) of a target, on the CPU, in the stored dtype.

        Raises UserError MODEL_DIGEST when the file has changed, MODEL_NOT_FOUND when it cannot be read.
        """
        origin = self._origins[number]
        parameter = origin if isinstance(origin, Tensor) else _read(origin)
        return view(parameter, self._forms[number])

    @property
    def copied_bytes(self) -> int:
        """Bytes of memory taken by weights that are not in the files under a name of their own."""
        kept = [origin for origin in self._origins if isinstance(origin, Tensor)]
        return sum(tensor.numel() * tensor.element_size() for tensor in kept)


def float_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Return the float tensors in a base model's folder by name. Raises UserError MODEL_*."""
    return {name: stored for name, stored in stored_tensors(folder).items() if stored.dtype in DTYPES}


def _origin(site: Site, files: dict[str, StoredTensor], prefix: str) -> _InFile | Tensor:
    """Return where a target's base weight comes from: a file if the same numbers are there, or else a copy.

    transformers loads some models under other names than they are stored under, or splits and joins tensors;
    only what compares equal is taken to be the same.
    """
    parameter: Tensor = getattr(site.module, site.parameter).data
    name = (
        site.target.name if site.target.name.endswith(f".{site.parameter}") else f"{site.target.name}.weight"
    )
    for candidate in (name, f"{prefix}.{name}", name.removeprefix(f"{prefix}.")):
        stored = files.get(candidate)
        if stored is not None and stored.shape == tuple(parameter.shape):
            raw = _bytes(stored)
            if torch.equal(_tensor(raw, stored).to(parameter.device, parameter.dtype), parameter):
                return _InFile(stored, _checksum(raw))
    return parameter.clone().cpu()


def _read(origin: _InFile) -> Tensor:
    raw = _bytes(origin.stored)
    if _checksum(raw) != origin.checksum:
        raise UserError(
            Code.MODEL_DIGEST,
            f"{origin.stored.file} has changed since the base model was loaded from it",
            "Put the run's own base model back and start the node again.",
        )
    return _tensor(raw, origin.stored)


def _checksum(raw: Tensor) -> int:
    buffer: Any = raw.numpy()
    return zlib.crc32(buffer)


def _bytes(stored: StoredTensor) -> Tensor:
    """Return the raw bytes of a stored tensor; read, not mapped, so that they can be freed after use."""
    raw = torch.empty(stored.size, dtype=torch.uint8)
    buffer: Any = raw.numpy()
    try:
        with stored.file.open("rb") as handle:
            handle.seek(stored.offset)
            complete = handle.readinto(buffer) == stored.size
    except OSError as error:
        raise _gone(stored.file, error.strerror) from error
    if not complete:
        raise _gone(stored.file, "it is shorter than it was")
    return raw


def _tensor(raw: Tensor, stored: StoredTensor) -> Tensor:
    return raw.view(DTYPES[stored.dtype]).view(stored.shape)


def _gone(file: Path, reason: str | None) -> UserError:
    return UserError(
        Code.MODEL_NOT_FOUND,
        f"the base model can no longer be read from {file}: {reason}",
        "Put it back and start the node again.",
    )
