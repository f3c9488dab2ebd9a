"""Linear layers whose weight is stored in 8 or 4 bits and expanded where it is used.

Weight-only: inputs, products and outputs have the layer's compute dtype. A weight is written anew from full
precision as a whole block of rows, never changed in place, so that rounding never adds up. Knows nothing of
updates.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers.pytorch_utils import Conv1D

from sfnode.errors import Code, UserError

INT8_STEPS = 127
"""The largest magnitude of a stored entry; -128 is left out, so that the range is symmetric."""


BLOCK_ENTRIES = 1 << 20
"""Of a matrix that is held more exactly while it is rounded: three such blocks in float64 take 25 MiB. Copies
of whole matrices would be most of what loading needs, and leave holes in the heap in which nothing fits."""


def row_blocks(rows: int, columns: int) -> Iterator[slice]:
    """The rows of a matrix, in ascending blocks of at most BLOCK_ENTRIES, or of one row."""
    step = max(1, BLOCK_ENTRIES // columns)
    for first in range(0, rows, step):
        yield slice(first, first + step)


class PackedLinear(nn.Module):
    """y = x W^T + b with W (out, in) in packed form."""

    def __init__(self, out_features: int, in_features: int, bias: Tensor | None, dtype: torch.dtype) -> None:
        super().__init__()
        self.out_features = out_features
        self.in_features = in_features
        self.dtype = dtype
        self.bias = None if bias is None else nn.Parameter(bias.to(dtype), requires_grad=False)

    def dense(self) -> Tensor:
        """W (out, in) in the compute dtype."""
        raise NotImplementedError

    def store(self, first: int, rows: Tensor) -> None:
        """Pack rows (n, in) of W, of any float dtype, from row `first` on; blocks come in ascending order."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.dense(), self.bias)


class Int8Linear(PackedLinear):
    """One int8 per entry and one float32 scale per row: the row's largest magnitude is 127 steps."""

    def __init__(
        self,
        out_features: int,
        in_features: int,
        bias: Tensor | None,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__(out_features, in_features, bias, dtype)
        self.entries: Tensor
        self.scales: Tensor
        empty = torch.empty(out_features, in_features, dtype=torch.int8, device=device)
        self.register_buffer("entries", empty, persistent=False)
        scales = torch.empty(out_features, 1, dtype=torch.float32, device=device)
        self.register_buffer("scales", scales, persistent=False)

    def dense(self) -> Tensor:
        return self.entries.to(self.dtype).mul_(self.scales.to(self.dtype))

    def store(self, first: int, rows: Tensor) -> None:
        block = slice(first, first + rows.shape[0])
        exact = rows.to(self.scales.device, torch.float32)
        scale = exact.abs().amax(1, keepdim=True).div_(INT8_STEPS)  # (n, 1)
        scale.masked_fill_(scale == 0, 1.0)  # a row of zeros
        self.scales[block] = scale
        self.entries[block] = exact.div(scale).round_().to(torch.int8)


class Nf4Linear(PackedLinear):
    """The 4-bit normal float of QLoRA (Dettmers et al. 2023), through the bitsandbytes library."""

    def __init__(
        self,
        out_features: int,
        in_features: int,
        bias: Tensor | None,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__(out_features, in_features, bias, dtype)
        self._device = device
        self._library = bitsandbytes()
        self._packed: Tensor | None = None
        self._state: Any = None
        self._blocks: list[Tensor] = []

    def dense(self) -> Tensor:
        weight: Tensor = self._library.functional.dequantize_4bit(self._packed, self._state)
        return weight.view(self.out_features, self.in_features)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """What torch calls to move a module: the library's tensors are no buffers of it."""
        moved: Any = super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self._packed is not None:
            self._packed = fn(self._packed)
            self._state.to(self._packed.device)
        return moved

    def store(self, first: int, rows: Tensor) -> None:
        """Its blocks of 64 entries run on over rows, so rows are collected until the last one is there."""
        self._blocks.append(rows.to(self._device, self.dtype))
        if first + rows.shape[0] == self.out_features:
            whole = torch.cat(self._blocks).flatten()  # on a CPU the library mistakes rows for blocks
            self._blocks = []
            packed = self._library.functional.quantize_4bit(whole, quant_type="nf4", compress_statistics=True)
            self._packed, self._state = packed


KINDS: dict[str, Any] = {"int8": Int8Linear, "nf4": Nf4Linear}
"""By the name of the `--dtype`."""


def pack(model: Any, kind: str, dtype: torch.dtype, device: torch.device) -> dict[nn.Module, PackedLinear]:
    """Put packed layers on `device` in the place of all linear ones but the language-model head.

    One after the other, so that no more than one is there twice. Returns new ones by old ones. Raises
    UserError DEVICE when a library is missing.
    """
    head = model.get_output_embeddings()
    replaced: dict[nn.Module, PackedLinear] = {}
    for name, old in list(model.named_modules()):
        if type(old) in (nn.Linear, Conv1D) and old is not head:
            weight: Any = old.weight.t() if isinstance(old, Conv1D) else old.weight
            bias: Any = old.bias
            new = KINDS[kind](*weight.shape, bias, dtype, device)
            for rows in row_blocks(*weight.shape):
                new.store(rows.start, weight[rows])
            parent, _, attribute = name.rpartition(".")
            setattr(model.get_submodule(parent), attribute, new)
            replaced[old] = new
            old._parameters.clear()  # whoever still holds the old layer must not hold its memory
    return replaced


def bitsandbytes() -> Any:
    """The library for 4 bits, an optional dependency."""
    try:
        import bitsandbytes as library
    except ImportError as error:
        raise UserError(
            Code.DEVICE,
            "--dtype nf4 needs the bitsandbytes library, which is not installed",
            "Install it with `pip install 'sfnode[nf4]'`, or use --dtype int8.",
        ) from error
    return library
