"""Devices of this machine by name, each tried out before anything is loaded onto it."""

from __future__ import annotations

import torch

from sfnode.errors import Code, UserError


def usable_device(name: str) -> torch.device:
    """Return the device of that name after trying it out. Raises UserError DEVICE."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).add_(1).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(
            Code.DEVICE,
            f"the device {name!r} cannot be used here: {reason}",
            "Use --device cpu, or install a torch build that supports the device.",
        ) from error
    return device
