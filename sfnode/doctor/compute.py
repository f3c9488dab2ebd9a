"""Examines whether the model can be computed here: memory, device and driver, fit, and speed.

Imports torch only inside functions, and loads models only to measure them. The memory of a parameter comes
from `resources.memory`, the number of a shape's parameters from `models.shapes`.
"""

from __future__ import annotations

import math
import resource
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

from sfnode.doctor.findings import CheckedCase, CheckFinding, Subject, note, ok, problem, refused
from sfnode.errors import Code, UserError
from sfnode.manifest import Manifest
from sfnode.manifest.sections import BUILTIN
from sfnode.node.equipment import checks, named_files
from sfnode.printable import command, size_text, span
from sfnode.store.data_folder import Layout
from sfnode.tasks.public_files import Places

PROCESS = 512 << 20
"""Memory, in bytes, that a node needs besides its weights, for libraries (docs/reliability.md) and a
mini-batch."""

SCANT = 1 << 30
"""Threshold of free memory, in bytes. Below it the machine's owner will notice that the node runs."""

AT_HAND = 1 << 30
"""Maximum size of the weights, in bytes, up to which steps are measured even if the user did not request it.
Loading such weights takes seconds."""

MEASURED_SECONDS = 3.0
MEASURED_STEPS = 50
"""Maximum duration, in seconds, and maximum number of steps of the speed measurement. It ends at whichever
comes first."""

USUAL, LEAST = 1024, 64
"""Number of descriptors that many systems allow a process, and minimum number for a node. A node with two
links uses 26."""

STORED = 2.0
"""Size, in bytes, of a parameter in the files of most models, which are bfloat16."""

HOME_UPLINK = 1_250_000
"""Assumed upload rate of a home line, in bytes per second (10 Mbit/s), because nothing here can measure
it."""

LONG_WAIT = 600.0
"""Threshold, in seconds. If a newcomer waits longer for the model, that is worth a note."""

NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")
"""File that exists if a driver of Nvidia is loaded, even if torch cannot use that driver."""


Size = tuple[int, bool]
"""Number of parameters of a model, and whether all were counted (True) or only the trained ones (False)."""


def look_at_memory() -> CheckFinding:
    """Examine the machine's free memory, independently of the model."""
    import torch

    from sfnode.resources import memory

    free = memory.free(torch.device("cpu"))
    if free is None:
        return note(
            Subject.MEMORY,
            "this system does not say how much memory is free",
            "Look it up with the system's own tools.",
        )
    what = f"{size_text(free)} of memory are available"
    fix = "Close other programs, or join with --role relay, which needs no model."
    if free < PROCESS:
        return problem(Subject.MEMORY, f"{what}; a node needs {size_text(PROCESS)} besides its model", fix)
    return ok(Subject.MEMORY, what) if free >= SCANT else note(Subject.MEMORY, what, fix)


def look_at_descriptors() -> CheckFinding:
    """Examine how many descriptors, for files and connections, the system allows a node."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    allowed = math.inf if most == resource.RLIM_INFINITY else most  # a node raises its limit to this one
    what = f"a process may have {'any number of' if allowed == math.inf else f'{allowed:,}'} descriptors"
    if allowed >= USUAL:
        return ok(Subject.DESCRIPTORS, what)
    fix = "Raise the limit: `ulimit -Hn 4096` as root, or LimitNOFILE= in a systemd unit."
    if allowed >= LEAST:
        return note(
            Subject.DESCRIPTORS, f"{what}: a node serves {allowed // 4} streams of peers at a time", fix
        )
    return problem(Subject.DESCRIPTORS, f"{what}: a node needs {LEAST}, and waits where none is left", fix)


def look_at_uplink(case: CheckedCase, manifest: Manifest | None) -> list[CheckFinding]:
    """Examine how long a newcomer waits for the model if only this node sends it. If this node gives no
    model, there is no finding."""
    gives = case.role == "trainer" if case.share_model is None else case.share_model
    try:
        size = _size(case, manifest) if manifest and manifest.model.listing and gives else None
    except UserError:
        return []  # look_at_fit says so
    if size is None:
        return []
    stored, limit = int(size[0] * STORED), case.limits.upload_rate
    seconds = stored / (limit or HOME_UPLINK)
    rate = f"upload_rate, {size_text(limit)}/s" if limit else f"{size_text(HOME_UPLINK)}/s, a usual home line"
    what = f"a newcomer gets the model, about {size_text(stored)}, from here in {span(seconds)} at {rate}"
    if seconds <= LONG_WAIT:
        return [ok(Subject.UPLINK, what)]
    fix = "Have several nodes share it, as newcomers ask all; or leave it to them: --set data.share_model=no."
    return [note(Subject.UPLINK, f"{what}; those who come together share that", fix)]


def look_at_devices(names: Sequence[str]) -> list[CheckFinding]:
    """Examine the chosen devices, and whether there are other GPUs."""
    import torch

    found = [look_at_device(name) for name in dict.fromkeys(names)]
    there = torch.cuda.device_count()
    if 0 < len({name for name in names if name.startswith("cuda")}) < there:
        every = ",".join(f"cuda:{number}" for number in range(there))
        found.append(note(Subject.DEVICE, f"there are {there} GPUs", f"Use all with --device {every}."))
    return found


def look_at_device(name: str) -> CheckFinding:
    """Examine a device. If it is a CPU, also look for an unused GPU."""
    import torch

    from sfnode.engine.loading import usable_device

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            device = usable_device(name)
        except UserError as error:
            return problem(Subject.DEVICE, error.what, f"{_driver()}{error.fix}")
        has_cuda = torch.cuda.is_available()
    if device.type == "cuda":
        return ok(Subject.DEVICE, f"{name} is {torch.cuda.get_device_name(device)} and computes")
    if device.type == "cpu" and has_cuda:
        return note(Subject.DEVICE, "there is a GPU that torch can use", "Use it with --device cuda.")
    if device.type == "cpu" and NVIDIA_DRIVER.exists():
        reason, fix = _why_unused(said)
        return note(Subject.DEVICE, f"there is a GPU that torch cannot use: {reason}", fix)
    return ok(Subject.DEVICE, f"{name} computes, with {torch.get_num_threads()} threads")


def _why_unused(said: list[warnings.WarningMessage]) -> tuple[str, str]:
    """Return the reason why torch does not use the GPU, and the fix. Torch is a build without CUDA, or has
    given the reason in a warning."""
    import torch

    cuda = torch.version.cuda
    if cuda is None:
        fix = "Install torch for CUDA (https://pytorch.org/get-started/locally)."
        return f"torch {torch.__version__} is a build for CPUs", fix
    words = [str(warning.message).strip().splitlines()[0] for warning in said]
    fix = f"Update Nvidia's driver to one for CUDA {cuda}, or install a torch for an older one."
    return (words[0] if words else "it does not say why"), fix


def _driver() -> str:
    """Return the first words of a fix, with the version of Nvidia's driver; empty if the version is
    unknown."""
    try:
        return NVIDIA_DRIVER.read_text().splitlines()[0].removeprefix("NVRM version: ").strip() + ". "
    except (OSError, IndexError):
        return ""


def look_at_fit(case: CheckedCase, manifest: Manifest | None) -> list[CheckFinding]:
    """Examine whether the model, once for each replica, fits into the devices' memory. If the model is
    unknown, there is no finding."""
    try:
        size = _size(case, manifest)
    except UserError as error:
        return [refused(Subject.MODEL_FIT, error)]
    if size is None:
        return []
    found = (_fit_on(case, size, device) for device in dict.fromkeys(case.devices))
    return [finding for finding in found if finding]


def _fit_on(case: CheckedCase, size: Size, name: str) -> CheckFinding | None:
    import torch

    from sfnode.models.loader import named_dtype
    from sfnode.resources import memory

    try:
        device = torch.device(name)
        free = memory.free(device)
    except RuntimeError:
        return None  # there is no such device: look_at_device says so
    if free is None:
        return None
    return _fit(size, named_dtype(case.dtype, device), free, name, case.devices.count(name))


def _fit(size: Size, dtype: str, free: int, device: str, replicas: int = 1) -> CheckFinding:
    from sfnode.resources import memory

    parameters, exact = size
    weights = memory.weights(parameters, dtype) * replicas
    least = "" if exact else "at least "
    often = f", {replicas} times," if replicas > 1 else ""
    what = (
        f"the model has {least}{_count(parameters)} parameters and{often} takes "
        f"{least}{size_text(weights)} in {dtype}, and a node {size_text(PROCESS)} besides; {size_text(free)} "
        f"are free on {device}"
    )
    if weights <= free - PROCESS:
        return ok(Subject.MODEL_FIT, what)
    fitting = [fit.dtype for fit in memory.largest(free, PROCESS) if parameters * replicas <= fit.parameters]
    narrower = f"It would fit with --dtype {' or '.join(fitting)}. Otherwise close" if fitting else "Close"
    return problem(
        Subject.MODEL_FIT,
        what,
        f"{narrower} other programs, take another --device, or join with --role relay, which needs no model.",
    )


def _count(parameters: int) -> str:
    return f"{parameters / 1e9:.1f} billion" if parameters >= 1e9 else f"{parameters / 1e6:.1f} million"


def _size(case: CheckedCase, manifest: Manifest | None) -> Size | None:
    """Return the size of the model that `case` names, otherwise of the run's model; None if neither is known.
    Raises UserError MODEL_*."""
    from sfnode.models import model_files, shapes

    named = case.source or (manifest.model.source if manifest else "")
    if named and shapes.is_shape(named):
        return shapes.parameters(shapes.describe(named)), True
    folder = _folder(case, manifest)
    if folder is not None:
        tensors = model_files.stored_tensors(folder).values()
        return sum(math.prod(tensor.shape) for tensor in tensors), True
    if manifest is None:
        return None
    targets = manifest.model.parsed_targets()
    return sum(target.out_features * target.in_features for target in targets), False


def _folder(case: CheckedCase, manifest: Manifest | None) -> Path | None:
    """Return the folder of the model that `case` names, otherwise of the run's model; None if it must be
    downloaded. Raises UserError MODEL_*."""
    from sfnode.models import model_files
    from sfnode.store.named_files import model_of

    source = case.source or (manifest.model.source if manifest else "")
    if source.startswith(BUILTIN):
        return model_files.resolve(source, "", None)
    if not case.source:
        layout = Layout(case.data_dir)
        return model_of(layout, named_files(case, manifest, layout).model) if manifest else None
    if not (folder := model_files.named_folder(source)):
        raise UserError(
            Code.MODEL_NOT_FOUND,
            f"{source} is neither a folder here nor a shape",
            "Download the model first, or name one of its size: --model shape:NAME (shape:? lists them).",
        )
    return model_files.resolve(source, "", folder)


def look_at_speed(case: CheckedCase, manifest: Manifest | None) -> CheckFinding | None:
    """Look for errors that would keep a trainer from starting, and measure the duration of its steps. Returns
    None if no run is known, or if measuring takes long and was not requested."""
    if manifest is None:
        return None
    try:
        return _speed(case, manifest)
    except UserError as error:
        if error.code is Code.DATA_NOT_FOUND and "train" in manifest.data.digests:
            fix = "Join the run; or give rows of your own with --data."
            return note(Subject.SPEED, "no steps were measured: the run's data come from its nodes", fix)
        say = note if error.code is Code.VERIFIER_NOT_ALLOWED else problem  # its node would be a relay
        return say(Subject.SPEED, f"a trainer would not start: {error.what}", error.fix)


def _speed(case: CheckedCase, manifest: Manifest) -> CheckFinding | None:
    """Check model and rows as far as they are stored here, and measure steps. Returns None if measuring takes
    long and was not requested. Raises UserError MODEL_*, DATA_*, DEVICE, VERIFIER_NOT_ALLOWED."""
    from sfnode.models import loader, model_files, shapes

    if shapes.is_shape(case.source):
        if not case.measure:
            return None
        fix = f"Measure it with random ones: {command('sfnode', 'lab', 'bench', '--model', case.source)}"
        return note(Subject.SPEED, "a shape has no weights, so no steps were measured", fix)
    if place := _folder(case, manifest):
        loader.require_match(place, loader.classes(manifest.task))
    layout = Layout(case.data_dir)
    for check in checks(case, manifest, layout):
        check()
    if not (case.measure or (place and model_files.weight_bytes(place) <= AT_HAND)):
        return None
    per_hour = _updates_per_hour(case, manifest, named_files(case, manifest, layout).places(layout))
    return ok(Subject.SPEED, f"about {per_hour:,.0f} updates an hour on {case.device}, if nothing else runs")


def _updates_per_hour(case: CheckedCase, manifest: Manifest, places: Places) -> float:
    """Load model and rows as a node does, measure the duration of steps, and return the updates per hour."""
    from sfnode.engine.trainer import ReplicatedTrainer
    from sfnode.node.training.step_scheduler import batches_of

    devices, together = case.devices, manifest.training.batch_updates
    whole = together * batches_of(len(devices))
    trainer = ReplicatedTrainer.load_on(
        devices,
        manifest.model_copy(update={"training": manifest.training.with_random_bases()}),
        model_override=_folder(case, manifest),
        data_override=case.data,
        places=places,
        batch=together,
        dtype=case.dtype,
    )
    trainer.step(range(whole), 0)  # the first step allocates
    begin, steps = time.perf_counter(), 0
    while steps < MEASURED_STEPS and time.perf_counter() < begin + MEASURED_SECONDS:
        steps += 1
        trainer.step(range(steps * whole, (steps + 1) * whole), 0)
    return 3600 * steps * whole / (time.perf_counter() - begin)
