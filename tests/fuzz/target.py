"""The fuzz targets: one function of a byte string each, driven by atheris where it is installed.

    python tests/fuzz/target.py machine --seconds 60
    python tests/fuzz/target.py machine --play FILE

Without atheris (`pip install -e '.[fuzz]'`) a plain driver mutates the seeds and keeps no coverage: it finds
less, and needs nothing. What fails is kept in .hypothesis/fuzz; --play plays it again.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from random import Random

import click

MAX_LENGTH = 4096
"""Maximum bytes of one input: some hundred events."""

MACHINE_SEEDS = 12
"""Number of random courses from which atheris starts. Each has some hundred events."""

FAILURES = Path(".hypothesis", "fuzz")
"""Folder for inputs that fail. git ignores it."""

Target = Callable[[bytes], None]


def targets() -> dict[str, tuple[Target, Callable[[], list[bytes]]]]:
    """Return the targets with their seeds. Imports are late, so that atheris can instrument them."""
    from tests.fuzz import decoders as fuzz_decoders
    from tests.fuzz.frames import conversation, conversations
    from tests.fuzz.steps import course

    def decoder(name: str) -> tuple[Target, Callable[[], list[bytes]]]:
        return fuzz_decoders.DECODERS[name], lambda: fuzz_decoders.seeds(name)

    def courses() -> list[bytes]:
        return [Random(seed).randbytes(MAX_LENGTH // 2) for seed in range(MACHINE_SEEDS)]

    named = {name: decoder(name) for name in fuzz_decoders.DECODERS}
    return {**named, "frames": (conversation, conversations), "machine": (course, courses)}


def with_atheris(name: str, seconds: int) -> None:
    """Run atheris, which ends the process, with a status other than 0 after a failure."""
    import atheris  # type: ignore[import-untyped,import-not-found,unused-ignore]

    decoders = ["sfprotocol", "sfnode.manifest", "sfnode.store.segment_encoding"]
    with atheris.instrument_imports(include=decoders):
        target, seeds = targets()[name]
    FAILURES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="sfnode-fuzz-") as corpus:
        for number, seed in enumerate(seeds()):
            Path(corpus, str(number)).write_bytes(seed)
        options = [
            f"-max_total_time={seconds}",
            f"-max_len={MAX_LENGTH}",
            f"-artifact_prefix={FAILURES}/{name}-",
        ]
        atheris.Setup([sys.argv[0], *options, corpus], target)
        atheris.Fuzz()


def by_chance(name: str, seconds: int, seed: int) -> int:
    """Mutate seeds for some time, and return the number of tried inputs. End the process at the first
    failure."""
    from tests.fuzz.choices import Choices
    from tests.fuzz.decoders import mutated

    FAILURES.mkdir(parents=True, exist_ok=True)
    target, seeds = targets()[name]
    random, known = Random(seed), seeds()
    end, tried = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        data = mutated(random.choice(known), Choices(random.randbytes(64)))
        if random.random() < 0.5:
            data = random.randbytes(random.randrange(MAX_LENGTH))
        try:
            target(data)
        except Exception:
            traceback.print_exc()
            path = FAILURES / f"{name}-{seed}-{tried}"
            path.write_bytes(data)
            sys.exit(f"play it again with: {sys.executable} {sys.argv[0]} {name} --play {path}")
        tried += 1
    return tried


@click.command()
@click.argument("name")
@click.option("--seconds", type=click.IntRange(1), default=60, show_default=True)
@click.option("--seed", type=int, default=None, help="Of the plain driver; by default the time of day.")
@click.option("--plain", is_flag=True, help="Do without atheris also where it is installed.")
@click.option("--play", type=click.Path(exists=True, dir_okay=False, path_type=Path), default=None)
def main(name: str, seconds: int, seed: int | None, plain: bool, play: Path | None) -> None:
    """Feed NAME (codec, frames, machine, manifest, roster or rows) with bytes for some time."""
    if play:
        targets()[name][0](play.read_bytes())
        click.echo("nothing went wrong")
    elif find_spec("atheris") and not plain:
        with contextlib.suppress(KeyboardInterrupt):
            with_atheris(name, seconds)
    else:
        seed = time.time_ns() % (1 << 32) if seed is None else seed
        click.echo(f"{name}: without atheris, seed {seed}")
        click.echo(f"{name}: {by_chance(name, seconds, seed):,} inputs, and nothing went wrong")


if __name__ == "__main__":
    main()
