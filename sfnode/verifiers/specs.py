"""The kinds of verifiers, as data. The list of kinds is closed, and the key `kind` of a verifier names one of
them. docs/verifiers.md has the rules of each kind.

The meaning of a kind never changes. A later version of sfnode may add kinds. An earlier version refuses
verifiers of a kind that it does not know.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import Field, TypeAdapter, ValidationError, field_validator, model_validator

from sfnode.errors import Code, UserError
from sfnode.printable import read_toml
from sfnode.verifiers import plugins
from sfnode.verifiers.arithmetic import Which
from sfnode.verifiers.schemas import MAX_ANSWER, MAX_LISTED, MAX_NAME, Name, Names, Schema, Table

VERSION = 1
"""Version of the list of kinds."""

MAX_MARKER = 64
"""Maximum length of a marker, in characters. A search for a marker may take as many comparisons for each
character of the answer."""

MAX_DEPTH = 4
"""Maximum nesting depth of verifiers, including the outermost one."""

MAX_COST = 10
"""Maximum cost of a verifier, including the costs of nested verifiers. A cost is an upper bound on the time
to score an answer, in milliseconds."""

MAX_KEYS = 4 * MAX_DEPTH
"""Maximum number of keys that an error shows of the path that leads to a wrong key."""

Share = Annotated[float, Field(ge=0, le=1)]
Tolerance = Annotated[float, Field(ge=0, le=1e9)]
Marker = Annotated[str, Field(max_length=MAX_MARKER)]
GivenMarker = Annotated[str, Field(min_length=1, max_length=MAX_MARKER)]


# -- regular expressions -------------------------------------------------------------------------------

# Regular expressions are matched by RE2, in time linear in the text; a backtracking engine can be made to
# hang. RE2 comes with an optional extra: its wheels for a new release of Python appear months after the
# release, and without a wheel an installation needs a compiler, RE2 and Abseil. Only this module imports it.
MAX_PATTERN = 512
"""Maximum length of a regular expression, in characters."""

MAX_PROGRAM = 128
"""Maximum number of instructions in the program to which RE2 compiles a pattern. Matching takes up to this
many steps for each byte of the text. The program has one copy of the repeated part for each repeat, and a
Unicode class such as \\pL takes over a thousand instructions."""

_MEMORY = 256 * 1024
"""Size of RE2's cache of automaton states, in bytes. A hostile text makes RE2 fill the cache again and again,
and filling a larger cache takes longer."""


def library() -> Any:
    """Return the module `re2`. Raises UserError EXTRA_MISSING if it is not installed."""
    try:
        import re2
    except ImportError as error:
        raise UserError(
            Code.EXTRA_MISSING,
            "regular expressions of verifiers are matched by google-re2, which is not installed",
            "Install it beside sfnode: `pip install 'sfnode[re2]'`, or so with `uv tool install --force` or "
            "`pipx install --force`.",
        ) from error
    return re2


@lru_cache(maxsize=64)
def compiled(pattern: str) -> Any:
    """Return a compiled pattern. Raises ValueError if RE2 refuses the pattern or compiles it to more than
    MAX_PROGRAM instructions. Raises UserError EXTRA_MISSING if RE2 is not installed."""
    re2 = library()
    options = re2.Options()
    options.max_mem, options.never_capture, options.log_errors = _MEMORY, True, False
    try:
        found = re2.compile(pattern.encode(), options)
    except re2.error as error:
        reason = error.args[0]
        text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise ValueError(f"the pattern {pattern!r} cannot be read: {text}") from error
    size = max(found.programsize, found.reverseprogramsize)
    if size > MAX_PROGRAM:
        raise ValueError(
            f"the pattern {pattern!r} takes {size} instructions, and {MAX_PROGRAM} are allowed: shorten "
            "repeats such as {100}, and write [A-Za-z] instead of \\pL"
        )
    return found


def matches(pattern: str, text: str, *, whole: bool) -> bool:
    """Return whether a text matches a pattern. With `whole` the whole text must match, otherwise any part of
    it may. Raises as `compiled`."""
    program, encoded = compiled(pattern), text.encode(errors="replace")
    return (program.fullmatch(encoded) if whole else program.search(encoded)) is not None


class VerifierKind(Table):
    """Base class of the kinds of verifiers. `cost` is the kind's own cost (MAX_COST)."""

    cost: ClassVar[int] = 1


class Exact(VerifierKind):
    """Verifier: the answer must equal the row's value, character for character."""

    kind: Literal["exact"] = "exact"
    column: Name
    strip: bool = True
    """Whether white space at both ends is ignored."""
    ignore_case: bool = False


class Numeric(VerifierKind):
    """Verifier: the first, last or only number of the answer (`which`) must equal the last number of the
    row's value, within a tolerance."""

    kind: Literal["numeric"] = "numeric"
    column: Name
    which: Which = "last"
    absolute: Tolerance = 0.0
    relative: Tolerance = 0.0
    """Tolerance relative to the row's number. The larger of the two tolerances applies."""


class Regex(VerifierKind):
    """Verifier: the answer must match a regular expression in RE2's syntax. With `whole` the whole answer
    must match, otherwise any part of it may.

    Creating this verifier raises UserError EXTRA_MISSING if RE2 is not installed.
    """

    cost: ClassVar[int] = 4
    kind: Literal["regex"] = "regex"
    pattern: Annotated[str, Field(min_length=1, max_length=MAX_PATTERN)]
    whole: bool = False

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, value: str) -> str:
        compiled(value)
        return value


class Json(VerifierKind):
    """Verifier: the answer must be JSON that satisfies a schema. With a `column` the score of such an answer
    is its agreement with the row's value (`schemas.agreement`). Without a `column` the score is 1."""

    cost: ClassVar[int] = 2
    kind: Literal["json"] = "json"
    satisfies: Schema = Schema()
    column: str = Field(default="", max_length=MAX_NAME)


class Countdown(VerifierKind):
    """Verifier: the answer must be an arithmetic expression of the row's numbers, with the row's target as
    its value."""

    kind: Literal["countdown"] = "countdown"
    numbers: Name
    """Column with the numbers, with any separators between them."""
    target: Name
    uses: Literal["exactly-once", "at-most-once"] = "exactly-once"
    well_formed: Share = 0.0
    """Score of an arithmetic expression with other numbers or another value."""


class CodeVerifier(VerifierKind):
    """Verifier: the answer must be a Python program that defines the `functions` and imports only packages in
    `imports`. The program is never run."""

    cost: ClassVar[int] = 3
    kind: Literal["code"] = "code"
    functions: Annotated[dict[Name, Names], Field(max_length=MAX_LISTED)] = Field(default_factory=dict)
    """Names of each function's parameters, in order, keyed by the function's name."""
    imports: Names = ()
    """Top-level packages that the program may import."""


class Length(VerifierKind):
    """Verifier: the answer's number of characters must be at least `least` and at most `most`."""

    kind: Literal["length"] = "length"
    least: int = Field(default=0, ge=0, le=MAX_ANSWER)
    most: int = Field(default=MAX_ANSWER, ge=0, le=MAX_ANSWER)

    @model_validator(mode="after")
    def _ordered(self) -> Length:
        if self.least > self.most:
            raise ValueError("no text is as long as least and as short as most")
        return self


class Format(VerifierKind):
    """Verifier: the answer must begin with the marker `begins`, then contain the markers in `contains`, and
    end with the marker `ends`. The markers must have this order and must not overlap."""

    kind: Literal["format"] = "format"
    begins: Marker = ""
    contains: Annotated[tuple[GivenMarker, ...], Field(max_length=MAX_LISTED, strict=False)] = ()
    ends: Marker = ""

    @model_validator(mode="after")
    def _not_empty(self) -> Format:
        if not (self.begins or self.contains or self.ends):
            raise ValueError("a format names a marker in begins, contains or ends")
        return self


class Boxed(VerifierKind):
    r"""Verifier: the content of the last balanced \boxed{} of the answer is scored by another verifier."""

    kind: Literal["boxed"] = "boxed"
    then: Verifier


class Extract(VerifierKind):
    """Verifier: the part of the answer between two markers is scored by the verifier `then`."""

    kind: Literal["extract"] = "extract"
    begin: GivenMarker
    end: Marker = ""
    """Closing marker; empty for the end of the answer."""
    which: Literal["last", "first"] = "last"
    then: Verifier


class Term(Table):
    """One of the verifiers in a sum, with its weight."""

    weight: float = Field(gt=0, le=1)
    verifier: Verifier


class SumVerifier(VerifierKind):
    """Verifier: the score is the weighted mean of other verifiers' scores."""

    cost: ClassVar[int] = 0
    kind: Literal["sum"] = "sum"
    terms: Annotated[tuple[Term, ...], Field(min_length=1, max_length=MAX_LISTED, strict=False)]

    @model_validator(mode="after")
    def _whole(self) -> SumVerifier:
        total = math.fsum(term.weight for term in self.terms)
        if abs(total - 1) > 1e-9:
            raise ValueError(f"the weights of a sum add up to 1, and not to {total:g}")
        return self


class Plugin(VerifierKind):
    """Verifier: a function in a Python file of this machine scores the answer, if the machine's owner permits
    it (`plugins`).

    The running time of the function is not bounded. This module does not run the function.
    """

    cost: ClassVar[int] = 0
    kind: Literal["plugin"] = "plugin"
    digest: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    """SHA-256 of the file, in hex."""
    function: Annotated[str, Field(pattern="^[A-Za-z_][A-Za-z0-9_]*$", max_length=MAX_NAME)]

    @property
    def name(self) -> plugins.Name:
        return plugins.Name(self.digest, self.function)


Verifier: TypeAlias = Annotated[
    Exact
    | Numeric
    | Regex
    | Json
    | Countdown
    | CodeVerifier
    | Length
    | Format
    | Boxed
    | Extract
    | SumVerifier
    | Plugin,
    Field(discriminator="kind"),
]

for _model in (Boxed, Extract, Term, SumVerifier):
    _model.model_rebuild()

_READER: TypeAdapter[Any] = TypeAdapter(Verifier)


def read(data: Any) -> Verifier:
    """Return the verifier that plain data, such as parsed TOML, describe.

    Raises ValueError, with the path of the wrong key, if the data are no valid verifier. Raises UserError
    EXTRA_MISSING for a regex if RE2 is not installed.
    """
    try:
        found: Verifier = _READER.validate_python(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where, reason = _key(first["loc"]), first["msg"].removeprefix("Value error, ")
        raise ValueError(f"{where}: {reason}" if where else reason) from error
    _require_bounds(found)
    return found


def _key(place: Sequence[int | str]) -> str:
    """Return the path of a wrong key in the data, as text. pydantic adds the kind of every verifier to the
    path `place`; these kinds are removed. Of a long path only the first MAX_KEYS keys are returned."""
    keys: list[str] = []
    at_verifier = True
    for part in place:
        if not at_verifier:
            keys.append(str(part))
        at_verifier = part in ("then", "verifier") and not at_verifier and "satisfies" not in keys
    return ".".join(keys if len(keys) <= MAX_KEYS else [*keys[:MAX_KEYS], "..."])


def within(verifier: Verifier) -> tuple[Verifier, ...]:
    """Return the verifiers one level below a verifier."""
    match verifier:
        case Boxed() | Extract():
            return (verifier.then,)
        case SumVerifier():
            return tuple(term.verifier for term in verifier.terms)
    return ()


def leaves(verifier: Verifier) -> Iterator[Verifier]:
    """Yield the verifiers within a verifier that contain no other verifier, in order."""
    others = within(verifier)
    if not others:
        yield verifier
    for other in others:
        yield from leaves(other)


def _require_bounds(verifier: Verifier) -> None:
    """Raise ValueError if a verifier is nested too deeply, or its cost is too high."""
    if _depth(verifier) > MAX_DEPTH:
        raise ValueError(f"verifiers are nested more than {MAX_DEPTH} deep")
    cost = _cost(verifier)
    if cost > MAX_COST:
        raise ValueError(
            f"scoring could take too long: the costs of all verifiers add up to {cost}, over {MAX_COST}"
        )


def _cost(verifier: Verifier) -> int:
    return verifier.cost + sum(map(_cost, within(verifier)))


def _depth(verifier: Verifier) -> int:
    return 1 + max(map(_depth, within(verifier)), default=0)


PRESETS: dict[str, dict[str, Any]] = read_toml(Path(__file__).with_name("presets.toml").read_text("utf-8"))
"""Ready-made verifiers, keyed by name."""
