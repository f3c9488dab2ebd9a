"""Devices of this machine by name, each tried out before anything is loaded onto it; and a model's way off
its device and back, every bit as it was: a pause leaves the device to other programs.
"""

from __future__ import annotations

import torch

from sfnode.engine.subspace import Subspace
from sfnode.errors import Code, UserError
from sfnode.models.loader import LoadedModel


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


class Offloading:
    """The place of one model, and of the bases that belong to it."""

    def __init__(self, loaded: LoadedModel, space: Subspace) -> None:
        self._loaded = loaded
        self._space = space
        self._offloaded = False

    def offload(self) -> None:
        """Move it to main memory, and give the device's memory back to the system."""
        if not self._offloaded:
            self._offloaded = True
            self._move_away()

    def restore(self) -> None:
        """Move it back to its device.

        Raises UserError OUT_OF_MEMORY, and it stays offloaded, if there is no room for it.
        """
        if self._offloaded:
            try:
                self._move(self._loaded.device)
            except torch.OutOfMemoryError as error:
                self._move_away()
                raise _no_room(self._loaded.device) from error
            self._offloaded = False

    def _move_away(self) -> None:
        self._move(torch.device("cpu"))
        _give_back(self._loaded.device)

    def _move(self, device: torch.device) -> None:
        self._loaded.model.to(device)
        self._space.move(device)


def _give_back(device: torch.device) -> None:
    """Return to the system what torch keeps of a device's memory for later."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()


def _no_room(device: torch.device) -> UserError:
    return UserError(
        Code.OUT_OF_MEMORY,
        f"there is no room for the model on {str(device)!r} any more",
        "See what else uses its memory. A node that was to go on after a pause tries again by itself.",
    )
