"""Sources of a verifier that somebody names at `sfnode init`: a ready-made one, a file, or a plug-in.

What a verifier may be is for `sfnode.verifiers` to say.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from sfnode.errors import Code, UserError
from sfnode.verifiers.presets import PRESETS

MAX_BYTES = 64 * 1024
"""Size of a file: a third of what a manifest may have."""


def load(source: str) -> dict[str, Any]:
    """Return the verifier of this name, or in this .toml or .json file, as it is written there; or that of a
    plug-in MODULE:FUNCTION, which may then run in this process.

    Raises UserError BAD_OPTION, and EXTRA_MISSING for a regular expression without RE2.
    """
    from sfnode.verifiers import plugins, specs  # a tenth of a second, which other runs save

    if source.lower() in PRESETS:
        return PRESETS[source.lower()]
    if plugins.is_plugin(source):
        return {"kind": "plugin", **plugins.allow(source)._asdict()}
    file = Path(source).expanduser()
    readers = {".toml": tomllib.loads, ".json": json.loads}
    if file.suffix.lower() not in readers:
        raise _unusable(
            f"--verifier: there is no ready-made verifier {source!r}, and it is no .toml or .json file"
        )
    try:
        if file.stat().st_size > MAX_BYTES:
            raise _unusable(f"--verifier: {source} has more than {MAX_BYTES:,} bytes")
        found = readers[file.suffix.lower()](file.read_text(encoding="utf-8"))
    except OSError as error:
        raise _unusable(f"--verifier: cannot read {source}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # of either format, and of what is no UTF-8
        raise _unusable(f"--verifier: {source} is not {file.suffix[1:].upper()}: {error}") from error
    try:
        specs.read(found)
    except ValueError as error:
        raise _unusable(f"--verifier: {source}: {error}") from error
    return dict(found)


def _unusable(what: str) -> UserError:
    return UserError(
        Code.BAD_OPTION,
        what,
        f"Name {', '.join(PRESETS)}, a file that describes a verifier, or a plug-in MODULE:FUNCTION "
        "(docs/verifiers.md).",
    )
