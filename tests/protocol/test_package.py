"""The modules of sfprotocol and the cost of their import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import sfprotocol

HEAVY = ("numpy", "msgpack", "cryptography")
MODULES = sorted(path.stem for path in Path(sfprotocol.__file__).parent.glob("[a-z]*.py"))


def run(code: str) -> str:
    """Return the output of `code` in a fresh interpreter."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout


def test_the_import_loads_no_library() -> None:
    loaded = run(f"import sys, sfprotocol; print([name for name in {HEAVY} if name in sys.modules])")
    assert loaded.strip() == "[]"


def test_each_module_can_be_imported_first() -> None:
    code = (
        "import sys, importlib\n"
        f"for name in {MODULES}:\n"
        "    for loaded in [m for m in sys.modules if m.startswith('sfprotocol')]:\n"
        "        del sys.modules[loaded]\n"
        "    importlib.import_module(f'sfprotocol.{name}')\n"
        "    print(name)\n"
    )
    assert run(code).split() == MODULES
