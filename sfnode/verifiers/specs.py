"""The kinds of verifiers, as data: a closed list, in which `kind` names each (docs/verifiers.md has their
rules).

The meaning of a kind never changes. A later version may add kinds; a version that does not know a kind
refuses it.
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
"""Maximum characters of a marker. A search for it takes up to this many comparisons for each character of the
answer."""

MAX_DEPTH = 4
"""Maximum depth of nested verifiers, the outermost included."""

MAX_COST = 10
"""Maximum cost of a verifier, with those within it. A cost is an upper bound on the time to score an answer,
in milliseconds."""

MAX_KEYS = 4 * MAX_DEPTH
"""Maximum number of keys that an error shows of the path to a wrong key."""

Share = Annotated[float, Field(ge=0, le=1)]
Tolerance = Annotated[float, Field(ge=0, le=1e9)]
Marker = Annotated[str, Field(max_length=MAX_MARKER)]
GivenMarker = Annotated[str, Field(min_length=1, max_length=MAX_MARKER)]


# -- regular expressions -------------------------------------------------------------------------------

# Regular expressions are matched by RE2, in time linear in the text; a backtracking engine can be made to
# hang. RE2 comes with an optional extra: its wheels for a new release of Python appear months after the
# release, and without a wheel an installation needs a compiler, RE2 and Abseil. Only this module imports it.
MAX_PATTERN = 512
"""Maximum characters of a pattern."""

MAX_PROGRAM = 128
"""Maximum instructions of RE2's program for a pattern. Each byte of a text costs up to this many steps. The
program has one copy of the repeated part for each repeat, and a Unicode class such as \\pL takes over a
thousand instructions."""

_MEMORY = 256 * 1024
"""Memory for RE2's cache of states, in bytes. A hostile text fills the cache again and again, which takes
longer the larger it is."""


def library() -> Any:
    """Return re2. Raises UserError EXTRA_MISSING."""
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
    """Compile a pattern. Raises ValueError if RE2 refuses it or its program is too long, and UserError
    EXTRA_MISSING."""
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
    """Return whether a text (with `whole`), or a part of it (without), matches a pattern. Raises as
    `compiled` does."""
    program, encoded = compiled(pattern), text.encode(errors="replace")
    return (program.fullmatch(encoded) if whole else program.search(encoded)) is not None


class VerifierKind(Table):
    """A kind of verifier."""

    cost: ClassVar[int] = 1


class Exact(VerifierKind):
    """The answer equals the row's value, character for character."""

    kind: Literal["exact"] = "exact"
    column: Name
    strip: bool = True
    """Whether white space at both ends is ignored."""
    ignore_case: bool = False


class Numeric(VerifierKind):
    """The first, last or only number of the answer (`which`) equals the last number of the row's value,
    within a tolerance."""

    kind: Literal["numeric"] = "numeric"
    column: Name
    which: Which = "last"
    absolute: Tolerance = 0.0
    relative: Tolerance = 0.0
    """Tolerance as a share of the row's number. The larger of `absolute` and this tolerance counts."""


class Regex(VerifierKind):
    """The answer (with `whole`), or a part of it (without), matches a regular expression of RE2's syntax.

    Reading a pattern raises UserError EXTRA_MISSING if RE2 is not installed.
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
    """The answer is JSON that satisfies a schema. With a `column` the score is its agreement with the row's
    value (`schemas.agreement`); without, 1."""

    cost: ClassVar[int] = 2
    kind: Literal["json"] = "json"
    satisfies: Schema = Schema()
    column: str = Field(default="", max_length=MAX_NAME)


class Countdown(VerifierKind):
    """The answer is an arithmetic expression that uses the row's numbers and has the row's target as its
    value."""

    kind: Literal["countdown"] = "countdown"
    numbers: Name
    """Column with the numbers, with any separators between them."""
    target: Name
    uses: Literal["exactly-once", "at-most-once"] = "exactly-once"
    well_formed: Share = 0.0
    """Score of any other expression that can be read."""


class CodeVerifier(VerifierKind):
    """The answer is a Python program that defines the `functions` and imports only the packages in `imports`.
    It is never run."""

    cost: ClassVar[int] = 3
    kind: Literal["code"] = "code"
    functions: Annotated[dict[Name, Names], Field(max_length=MAX_LISTED)] = Field(default_factory=dict)
    """Names of the parameters, in order, keyed by the name of the function."""
    imports: Names = ()
    """Top-level packages that the program may import."""


class Length(VerifierKind):
    """The answer's number of characters lies between the two bounds, both included."""

    kind: Literal["length"] = "length"
    least: int = Field(default=0, ge=0, le=MAX_ANSWER)
    most: int = Field(default=MAX_ANSWER, ge=0, le=MAX_ANSWER)

    @model_validator(mode="after")
    def _ordered(self) -> Length:
        if self.least > self.most:
            raise ValueError("no text is as long as least and as short as most")
        return self


class Format(VerifierKind):
    """The answer `begins` with, `contains` and `ends` with these markers, in this order and without
    overlap."""

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
    r"""The content of the last balanced \boxed{} of the answer is scored by another verifier."""

    kind: Literal["boxed"] = "boxed"
    then: Verifier


class Extract(VerifierKind):
    """The part between two markers of the answer is scored by another verifier."""

    kind: Literal["extract"] = "extract"
    begin: GivenMarker
    end: Marker = ""
    """Closing marker; empty for the end of the answer."""
    which: Literal["last", "first"] = "last"
    then: Verifier


class Term(Table):
    """A weighted verifier of a sum."""

    weight: float = Field(gt=0, le=1)
    verifier: Verifier


class SumVerifier(VerifierKind):
    """The weighted mean of other verifiers' scores."""

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
    """A function of a Python file outside the manifest scores the answer, if permitted (`plugins`).

    Its running time is unknown. This module does not run it.
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
    """Read a verifier from plain data.

    Raises ValueError with the name of the wrong key. Raises UserError EXTRA_MISSING for a regex if RE2 is not
    installed.
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
    """Return the path of a wrong key in the data. pydantic adds the kind of every verifier to the path; it is
    removed. Of a longer path only the first MAX_KEYS keys are returned."""
    keys: list[str] = []
    at_verifier = True
    for part in place:
        if not at_verifier:
            keys.append(str(part))
        at_verifier = part in ("then", "verifier") and not at_verifier and "satisfies" not in keys
    return ".".join(keys if len(keys) <= MAX_KEYS else [*keys[:MAX_KEYS], "..."])


def within(verifier: Verifier) -> tuple[Verifier, ...]:
    """Return the verifiers directly within another one."""
    match verifier:
        case Boxed() | Extract():
            return (verifier.then,)
        case SumVerifier():
            return tuple(term.verifier for term in verifier.terms)
    return ()


def leaves(verifier: Verifier) -> Iterator[Verifier]:
    """Yield the innermost verifiers, which contain no other one, in order."""
    others = within(verifier)
    if not others:
        yield verifier
    for other in others:
        yield from leaves(other)


def _require_bounds(verifier: Verifier) -> None:
    """Raise ValueError if nested verifiers could take too long."""
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
