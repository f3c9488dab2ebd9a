"""Linear layers whose weight is stored in 8 or 4 bits and expanded for each product.

Only weights are quantised: inputs, products and outputs have the layer's compute dtype. Weights are never
changed in place. They are always quantised from full precision, in whole blocks of rows, so rounding errors
never add up. This module knows nothing of updates.
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
"""Largest magnitude of a stored entry. -128 is left out, so that the range is symmetric."""

BLOCK_ENTRIES = 1 << 20
"""Maximum number of entries of a block of rows that is in higher precision while it is rounded. Three such
blocks in float64 take 24 MiB. Copies of whole matrices would dominate the memory of loading, and fragment the
heap."""


def row_blocks(rows: int, columns: int) -> Iterator[slice]:
    """Yield the rows of a matrix in ascending blocks of at most BLOCK_ENTRIES entries, or of one row."""
    step = max(1, BLOCK_ENTRIES // columns)
    for first in range(0, rows, step):
        yield slice(first, first + step)


class QuantisedLinear(nn.Module):
    """y = x W^T + b with W (out, in) quantised."""

    def __init__(
        self,
        out_features: int,
        in_features: int,
        bias: Tensor | None,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__()
        self.out_features = out_features
        self.in_features = in_features
        self.dtype = dtype
        self.bias = None if bias is None else nn.Parameter(bias.to(dtype), requires_grad=False)
        self._allocate(device)

    def _allocate(self, device: torch.device) -> None:
        """Make room for W on the device."""
        raise NotImplementedError

    def dense(self) -> Tensor:
        """Return W (out, in) in the compute dtype."""
        raise NotImplementedError

    def store(self, first: int, rows: Tensor) -> None:
        """Quantise these rows (n, in) of W, which are of any float dtype, and store them from row `first` on.
        Calls come with ascending rows."""
        raise NotImplementedError

    def product(self, x: Tensor) -> Tensor:
        """Return x W^T. A backward pass expands W again, so that no graph holds all layers expanded."""
        found: Tensor = _Product.apply(x, self)  # type: ignore[no-untyped-call]
        return found

    def forward(self, x: Tensor) -> Tensor:
        if x.requires_grad:
            return self.product(x) if self.bias is None else self.product(x) + self.bias
        return linear(x, self.dense(), self.bias)


class _Product(torch.autograd.Function):
    """x W^T of a quantised layer, differentiable with respect to x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: QuantisedLinear) -> Tensor:
        ctx.layer = layer
        return linear(x, layer.dense())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient @ ctx.layer.dense(), None


class Int8Linear(QuantisedLinear):
    """Linear layer with an int8 for each entry and a float32 scale for each row. The scale makes the row's
    largest magnitude 127."""

    entries: Tensor
    """(out, in) int8."""
    scales: Tensor
    """(out, 1) float32."""

    def _allocate(self, device: torch.device) -> None:
        entries = torch.empty(self.out_features, self.in_features, dtype=torch.int8, device=device)
        self.register_buffer("entries", entries, persistent=False)
        scales = torch.empty(self.out_features, 1, dtype=torch.float32, device=device)
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


class Nf4Linear(QuantisedLinear):
    """Linear layer in the 4-bit normal float of QLoRA (Dettmers et al. 2023), computed by the bitsandbytes
    library."""

    def _allocate(self, device: torch.device) -> None:
        self._device = device
        self._library = bitsandbytes()
        self._entries: Tensor | None = None
        self._state: Any = None
        self._blocks: list[Tensor] = []

    def dense(self) -> Tensor:
        weight: Tensor = self._library.functional.dequantize_4bit(self._entries, self._state)
        return weight.view(self.out_features, self.in_features)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Move the library's tensors as well, which are not buffers of the module."""
        moved: Any = super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self._entries is not None:
            self._entries = fn(self._entries)
            self._state.to(self._entries.device)
        return moved

    def store(self, first: int, rows: Tensor) -> None:
        """Collect rows, and quantise all of them when the last one has come: blocks of 64 entries, which
        share a scale, may extend over several rows."""
        self._blocks.append(rows.to(self._device, self.dtype))
        if first + rows.shape[0] == self.out_features:
            whole = torch.cat(self._blocks).flatten()  # on a CPU the library mistakes rows for blocks
            self._blocks = []
            quantise = self._library.functional.quantize_4bit
            self._entries, self._state = quantise(whole, quant_type="nf4", compress_statistics=True)


KINDS: dict[str, Any] = {"int8": Int8Linear, "nf4": Nf4Linear}
"""Classes of quantised layers, keyed by the name of the `--dtype`."""


def quantise_layers(
    model: Any, kind: str, dtype: torch.dtype, device: torch.device
) -> dict[nn.Module, QuantisedLinear]:
    """Replace all linear layers except the language-model head by quantised ones on `device`.

    Layers are replaced one after another, so that at most one is in memory twice. Returns {old layer: new
    layer}. Raises UserError DEVICE if a library is missing.
    """
    head = model.get_output_embeddings()
    replaced: dict[nn.Module, QuantisedLinear] = {}
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
            old._parameters.clear()  # a remaining reference to the old layer must not keep its memory
    return replaced


def bitsandbytes() -> Any:
    """Return the library for 4 bits, an optional dependency. Raises UserError DEVICE."""
    try:
        import bitsandbytes as library
    except ImportError as error:
        raise UserError(
            Code.DEVICE,
            "--dtype nf4 needs the bitsandbytes library, which is not installed",
            "Install it with `pip install 'sfnode[nf4]'`, or use --dtype int8.",
        ) from error
    return library
