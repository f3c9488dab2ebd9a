"""Plug-ins: Python functions on this machine that score answers, if the machine's owner permits it.

A manifest names a plug-in by the digest of its source file and by the function's name. A manifest contains no
code. An owner who has the same file permits the plug-in with `--verifier MODULE:FUNCTION`. The file is run
only with this permission, and only if it has the manifest's digest. The bytes that were hashed are the bytes
that are run. The digest does not cover the modules that the file imports. A plug-in has all rights of the
process, and its running time is not bounded. If it raises an exception, or returns no number from 0 to 1, the
answer's score is 0. The first such fault of a plug-in is logged.

A permission holds for the whole process. No other module of the package runs other people's code.

Programs in answers are parsed and never run. For some programs CPython's own parser overflows its stack,
takes long or prints warnings. It is quick and silent here, because comments and the contents of strings are
removed first, and the number of tokens and the nesting are bounded.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from threading import current_thread, main_thread
from traceback import format_exception_only
from types import ModuleType
from typing import Any, NamedTuple

from sfnode.errors import Code, UserError
from sfnode.logging import log

MAX_TOKENS = 1024
"""Maximum number of tokens of a program, not counting line ends."""

MAX_STATEMENT = 256
"""Maximum number of tokens of a logical line. The bound is necessary because each token may nest expressions
one level deeper."""

MAX_NESTING = 16
"""Maximum nesting depth of brackets. The parser's time can grow exponentially with this depth."""

_LITERALS = re.compile(
    r"""
    (?: (?<!\w) (?: [rRuUbBfF] | [bBfF][rR] | [rR][bBfF] ) )? (?P<string>
        \"{3} (?: [^"\\]++ | \\. | \"{1,2}(?!\") )*+ (?: \"{3} | (?P<open>) )
    |   '{3} (?: [^'\\]++ | \\. | '{1,2}(?!') )*+ (?: '{3} | (?P<open2>) )
    |   \" (?: [^"\\\n]++ | \\. )*+ (?: \" | (?P<open3>) )
    |   ' (?: [^'\\\n]++ | \\. )*+ (?: ' | (?P<open4>) ) )
    |   \#[^\n]*
    """,
    re.VERBOSE | re.DOTALL,
)
"""Pattern for a comment, or for a string literal with its prefix. It also matches a string without a closing
quote."""

_TOKENS = re.compile(r"\\\n|\n|[0-9]\w*(?:\.\w*)?|\w+|[^\w\s]", re.ASCII)
_NUMBER = re.compile(
    r"0[xX][0-9a-fA-F_]+|0[oO][0-7_]+|0[bB][01_]+|[0-9][0-9_]*(?:\.[0-9_]*)?(?:[eE][0-9_]*)?[jJ]?"
)
"""Pattern for a number, or for the part of a number before the sign of its exponent."""


# -- source, read and never run ------------------------------------------------------------------------


class Source(NamedTuple):
    """The definitions and imports of a program."""

    functions: dict[str, tuple[str, ...] | None]
    """Names of the parameters of each function at the program's top level, keyed by the function's name. The
    value is None for a function with variadic or keyword-only parameters. Of several functions with the same
    name the last counts."""
    modules: frozenset[str]
    """Top-level packages that the program imports, in any scope; "" for a relative import."""


def parse(text: str) -> Source | None:
    """Return the definitions and imports of the Python program `text`. Return None if it is no program,
    exceeds a bound, or has names that are not ASCII."""
    bare = _without_contents(text.replace("\r\n", "\n").replace("\r", "\n"))
    if bare is None or not bare.isascii() or not _bounded(bare):
        return None
    try:
        tree = ast.parse(bare, feature_version=(3, 11))
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # null bytes, huge integers
        return None
    functions = {one.name: _parameters(one.args) for one in tree.body if isinstance(one, ast.FunctionDef)}
    return Source(functions, frozenset(_modules(tree)))


def _without_contents(text: str) -> str | None:
    """Return a program without comments and with all strings made empty; None if a string has no closing
    quote."""
    pieces: list[str] = []
    place = 0
    for found in _LITERALS.finditer(text):
        if any(found[name] is not None for name in ("open", "open2", "open3", "open4")):
            return None
        # The space separates the quotes of adjacent strings. It follows the string, as one before it would
        # be indentation.
        pieces += text[place : found.start()], "'' " if found["string"] else ""
        place = found.end()
    return "".join((*pieces, text[place:]))


def _bounded(text: str) -> bool:
    """Return whether a program is within the bounds. The contents of its strings have been removed."""
    tokens = line = depth = 0
    for found in _TOKENS.finditer(text):
        token = found[0]
        if token == "\n":
            line = line if depth > 0 else 0
            continue
        tokens, line = tokens + 1, line + 1
        depth += (token in "([{") - (token in ")]}")
        if tokens > MAX_TOKENS or line > MAX_STATEMENT or depth > MAX_NESTING:
            return False
        # Python allows `1if x`, and prints a warning.
        if token[0].isdigit() and not _NUMBER.fullmatch(token):
            return False
    return True


def _parameters(arguments: ast.arguments) -> tuple[str, ...] | None:
    if arguments.vararg or arguments.kwarg or arguments.kwonlyargs:
        return None
    return tuple(one.arg for one in (*arguments.posonlyargs, *arguments.args))


def _modules(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "" if node.level else (node.module or "").partition(".")[0]


MAX_BYTES = 1 << 20
"""Maximum size of a source file, in bytes."""

Function = Callable[[str, Mapping[str, str]], Any]
"""Function of a plug-in. It takes an answer and the columns of the answer's row, all as text, and returns a
number from 0 to 1."""


class Name(NamedTuple):
    """A plug-in as manifests name it."""

    digest: str
    """SHA-256 of the source file, in hex."""
    function: str


_allowed: dict[Name, Function] = {}
_said: set[Name] = set()
"""Plug-ins of which a fault was logged. Further faults of these plug-ins are not logged."""


def is_plugin(source: str) -> bool:
    """Return whether a text has the form MODULE:FUNCTION."""
    module, colon, function = source.partition(":")
    return bool(colon) and function.isidentifier() and all(part.isidentifier() for part in module.split("."))


def allow(source: str, wanted: Sequence[Name] | None = None) -> Name:
    """Permit the function `source`, given as MODULE:FUNCTION, to score answers in this process. Return the
    function's name in manifests.

    If `wanted` is given, the function must be one of these plug-ins, and the file of any other function is
    not run. The module is looked for in the current folder, then on Python's module search path. Raises
    UserError BAD_OPTION, VERIFIER_NOT_ALLOWED.
    """
    module, _, function = source.partition(":")
    path, text = _source(source, module)
    name = Name(hashlib.sha256(text).hexdigest(), function)
    if wanted is not None and name not in wanted:
        others = ", ".join(f"{one.function} of a file with {one.digest}" for one in wanted)
        raise UserError(
            Code.VERIFIER_NOT_ALLOWED,
            f"--verifier: {source} is {function} of {path} with the SHA-256 {name.digest}, and the run's is "
            f"{others}",
            "Get the very file from whoever made the run, and read it before you say yes to it.",
        )
    if name not in _allowed:
        _allowed[name] = _function(source, path, text, name)
    return name


def require(wanted: Sequence[Name]) -> None:
    """Raise UserError VERIFIER_NOT_ALLOWED unless all `wanted` plug-ins were permitted in this process."""
    for name in wanted:
        if name not in _allowed:
            raise UserError(
                Code.VERIFIER_NOT_ALLOWED,
                "answers in this run are scored by a plug-in that this machine has not been told to run: the "
                f"function {name.function} of a Python file with the SHA-256 {name.digest}",
                "Get the file from whoever made the run, read it, and say --verifier MODULE:FUNCTION "
                "(docs/verifiers.md).",
            )


def score(name: Name, answer: str, row: Mapping[str, str]) -> float:
    """Return the score that a permitted plug-in gives an answer; 0 if the plug-in fails. Raises UserError as
    `require`."""
    require([name])
    try:
        found = float(0 + _allowed[name](answer, dict(row)))  # raises for a text
    except BaseException as error:  # other people's code may raise anything
        if _is_from_the_terminal(error):
            raise
        return _failed(name, _said_by(error))
    if not 0 <= found <= 1:  # also for NaN
        return _failed(name, f"it returned {found!r}, and a reward is a number from 0 to 1")
    return found


def _is_from_the_terminal(error: BaseException) -> bool:
    """Return whether Ctrl-C may have raised this error. Ctrl-C raises errors in the main thread only, and
    nodes train in other threads."""
    return isinstance(error, KeyboardInterrupt) and current_thread() is main_thread()


def _said_by(error: BaseException) -> str:
    return format_exception_only(error)[-1].strip()


def _failed(name: Name, why: str) -> float:
    if name not in _said:
        _said.add(name)
        log.warning(
            "the plug-in %s failed, and its answer gets the reward 0 (this is said once): %s",
            name.function,
            why,
        )
    return 0.0


def _source(source: str, module: str) -> tuple[Path, bytes]:
    """Return the path and the bytes of a module's source file, without running it."""
    places: Sequence[str] | None = [os.getcwd(), *sys.path]
    origin = None
    for part in module.split("."):
        found = PathFinder.find_spec(part, places) if places else None
        origin, places = (found.origin, found.submodule_search_locations) if found else (None, None)
    path = Path(origin or "")
    try:
        if path.suffix == ".py" and path.stat().st_size <= MAX_BYTES:
            return path, path.read_bytes()
    except OSError:
        pass
    raise UserError(
        Code.BAD_OPTION,
        f"--verifier: {source}: there is no module {module} with a Python file of at most 1 MiB",
        "Give MODULE:FUNCTION; the file MODULE.py may lie in the current folder.",
    )


def _function(source: str, path: Path, text: bytes, name: Name) -> Function:
    """Run the source file of a plug-in, and return the plug-in's function."""
    module = ModuleType(f"sfnode_plugin_{name.digest[:16]}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # dataclasses and pickle look there
    try:
        exec(compile(text, str(path), "exec", dont_inherit=True), module.__dict__)
        found = getattr(module, name.function, None)
    except BaseException as error:
        if _is_from_the_terminal(error):
            raise
        raise _unusable(source, f"{path} cannot be run: {_said_by(error)}") from error
    if not callable(found):
        raise _unusable(source, f"{path} has no function {name.function}")
    function: Function = found
    return function


def _unusable(source: str, why: str) -> UserError:
    return UserError(
        Code.BAD_OPTION,
        f"--verifier: {source}: {why}",
        "The function takes an answer and a row (docs/verifiers.md).",
    )
