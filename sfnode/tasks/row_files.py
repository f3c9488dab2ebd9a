"""Reads the rows of a file in any supported format, each with its place. Faults are reported with file and
line.

Nodes must read the same rows from the same file (SPEC T1). A file whose layout can only be guessed is
therefore refused, with the reason. A program that shows the rows to people first may let `layout` guess the
layout. This module knows files. It does not know the meaning of rows.

A row may have values that cannot be part of a prompt, such as objects, dates, NaN, bytes or halves of
surrogate pairs. `problem` finds them.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from decimal import Decimal
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from sfnode.errors import Code, UserError
from sfnode.manifest.sections import HUB
from sfnode.printable import first_line
from sfprotocol.model_listing import MAX_DATA

KINDS: dict[type, str] = {bytes: "bytes that are no text in UTF-8", dict: "an object", list: "a list"}
"""Names, for people, of types whose values cannot be part of a prompt. Other types are called by their names
in Python."""


# -- values --------------------------------------------------------------------------------------------


def problem(value: object, *, nested: bool = False) -> str | None:
    """Return the reason why a value cannot be used in a row; None if it can.

    Usable values are text that can be encoded in UTF-8 (tokenizers need this), booleans, finite numbers, and
    lists of finite numbers. With `nested`, null and lists and objects of usable values are usable, too.
    """
    if isinstance(value, str):
        return _text_problem(value)
    if isinstance(value, int | Decimal):  # Parquet's decimals are all finite
        return None
    if isinstance(value, float):
        return None if math.isfinite(value) else f"is no number: {value}"
    if nested and value is None:
        return None
    if isinstance(value, list) and (nested or (value and all(map(_is_number, value)))):
        return next((wrong for one in value if (wrong := problem(one, nested=nested))), None)
    if nested and isinstance(value, dict):
        return next((wrong for one in value.values() if (wrong := problem(one, nested=True))), None)
    kind = next((KINDS[one] for one in KINDS if isinstance(value, one)), f"a {type(value).__name__}")
    return f"is {kind}, where a text, a number or a boolean is wanted"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _text_problem(text: str) -> str | None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(text[error.start]):04x}"
        return f"has one half of a surrogate pair ({half}), which no tokenizer can encode"
    return None


EXTRA, LIBRARY = "datasets", "pyarrow"
"""Name of the optional extra that reads Parquet files, and name of the library that this extra installs. Most
data sets on the hub are in this format. The library takes 0.1 GB, so it is optional, and is imported only
when needed."""

PARQUET = ".parquet"
"""File name extension of Parquet files."""


def require(*sources: str) -> None:
    """Raise UserError EXTRA_MISSING if one of these sources of rows needs LIBRARY, and LIBRARY is not
    installed."""
    for source in sources:
        if (source.startswith(HUB) or source.lower().endswith(PARQUET)) and find_spec(LIBRARY) is None:
            raise UserError(
                Code.EXTRA_MISSING,
                f"{source} is read with the library `{LIBRARY}`, which is not installed",
                f"Install it beside sfnode: `pip install 'sfnode[{EXTRA}]'`, or so with `uv tool install "
                "--force` or `pipx install --force`. Data in .tsv, .csv and .jsonl files do without.",
            )


Row = dict[str, Any]

SEPARATORS = ",;\t"
"""Characters that may separate the columns of a .csv file. The separator is the first character in this list
that occurs in the header. Spreadsheets write semicolons in countries where a comma is the decimal
separator."""

NO_SEPARATOR = "\x1f"
"""Separator for a table of one column. The texts of the column may contain all usual separators, but not this
one."""

_DECLARED = re.compile(r'\A"?sep=(\\t|[^\w\s"]|\t)"?[,;\t]*\r?\n?', re.IGNORECASE)
"""Pattern for a first line such as `sep=;`, in which Excel declares the separator."""

BATCH = 4096
"""Number of rows of a Parquet file that are converted to Python objects at a time."""

UTF_16 = (b"\xff\xfe", b"\xfe\xff")
"""First bytes of text files in UTF-16. Windows calls this encoding Unicode."""

TABLES = (".csv", ".tsv", ".txt")
"""File name extensions of text files whose first line has the names of the columns."""

SPREADSHEETS = (".xlsx", ".xlsm", ".xls", ".ods", ".numbers")
"""File name extensions of spreadsheets. Another program must export them to a supported format. Most
spreadsheets are zip archives, which begin with ARCHIVE whatever their names."""

LONGEST_HEADER = 1 << 16
"""Maximum length of a table's header in bytes. The names of the columns are looked for in so many bytes at
the beginning of the file."""

ARCHIVE = b"PK\x03\x04"

EXPORT = "Export the table as CSV in UTF-8, and name that file."

_UNDECODED = re.compile("[\udc80-\udcff]")
"""Pattern for bytes that are not UTF-8. Such bytes are decoded to halves of surrogate pairs, which never
occur in valid UTF-8."""

NOT_UTF_8 = "not UTF-8, in which the file has to be saved"

OLDER = "Windows-1252"
"""Encoding of most text files that are not in UTF-8. It is nearly the same as Latin-1."""

_STRANGE = re.compile(r"[a-z][^\x00-\x7fß-öø-ÿœšž’‘´–—…\xa0][a-z]|[À-ÿ]{4}")
"""Pattern for sequences of characters that do not occur in Western European words. They occur if text in
another encoding is decoded as OLDER."""

FORMS = "Name a .tsv, .csv, .jsonl or .parquet file, hf:OWNER/NAME[:CONFIG]:SPLIT, or builtin:reviews:train."

_QUOTED = re.compile(r'"[^"]*+(?:""[^"]*+)*+"(?=[\t\r\n]|\Z)')
"""Pattern for a value of a .tsv file that is enclosed in double quotes. Quotes within the value are
doubled."""


class Placed(NamedTuple):
    """A row with its place. If the row cannot be read, `wrong` is not empty, and the row itself is empty."""

    place: str
    """Place of the row as a user finds it: `train.tsv, line 7`."""
    row: Row
    wrong: str = ""
    """Reason why the row cannot be read; empty if it was read."""


class TextForm(NamedTuple):
    """Layout of a text file. A field is empty if `read` determines the property itself."""

    encoding: str = ""
    separator: str = ""
    """Character that separates the columns of a table."""
    declared: bool = False
    """Whether the first line declares the separator. In that case the second line has the names of the
    columns."""


PLAIN = TextForm()
"""The layout of files that all nodes read in the same way: nothing in it is guessed."""


def read(source: str, layout: TextForm = PLAIN) -> Iterator[Placed]:
    """Yield every row of a file. Raises UserError DATA_NOT_FOUND, EXTRA_MISSING, DATA_MALFORMED."""
    path = Path(source).expanduser()
    reader = _READERS.get(path.suffix.lower())
    if path.is_dir():
        raise UserError(Code.DATA_NOT_FOUND, f"{source} is a folder, and data are in a file", FORMS)
    if path.suffix.lower() in SPREADSHEETS:
        raise UserError(Code.DATA_NOT_FOUND, f"{source} is a spreadsheet, which sfnode does not read", EXPORT)
    if reader is None:
        raise UserError(Code.DATA_NOT_FOUND, f"{source} is not a kind of data that sfnode reads", FORMS)
    if not path.is_file():
        raise UserError(Code.DATA_NOT_FOUND, f"there is no file {source}", FORMS)
    return reader(path, layout)


def numbered(source: str, rows: Iterable[Row | str]) -> Iterator[Placed]:
    """Yield rows with their numbers, from 1, as places. A text in `rows` stands for a row that cannot be
    read, and is the reason. Values that are bytes in UTF-8 become text."""
    for number, row in enumerate(rows, start=1):
        place = f"{source}, row {number}"
        yield Placed(place, {}, row) if isinstance(row, str) else Placed(place, _decoded(row))


def malformed(what: str, fix: str = "Correct the data, or name another source.") -> UserError:
    """Return the error for data that cannot be read."""
    return UserError(Code.DATA_MALFORMED, what, fix)


def _tsv(path: Path, layout: TextForm) -> Iterator[Placed]:
    if layout.separator not in ("", "\t"):
        return _csv(path, layout)
    # In files of the GLUE kind, bare double quotes are text; pandas and spreadsheets put values in quotes.
    text = _text(path, layout)
    first, bare, columns = _quotes(text)
    whole = [column for column in columns if not any(mark in column for mark in "\t\r\n")]
    if bare and any('""' in column[1:-1] for column in whole):
        raise _confused(path, text[:first], "some columns, and are text in others")
    if not bare and len(whole) < len(columns):
        raise _confused(path, text[:first], "columns with tabs or ends of lines in them")
    quoting = csv.QUOTE_MINIMAL if columns and not bare else csv.QUOTE_NONE
    return _table(path, text, delimiter="\t", quoting=quoting)


def _quotes(text: str) -> tuple[int, bool, set[str]]:
    """Return the index of the first double quote, whether some double quotes do not enclose a whole value,
    and the set of values in quotes."""
    first = place = text.find('"')
    bare, columns = False, set()
    while place >= 0:
        found = _QUOTED.match(text, place) if place == 0 or text[place - 1] in "\t\r\n" else None
        if found is None:
            bare = True
        else:
            columns.add(found[0])
        place = text.find('"', found.end() if found else place + 1)
    return first, bare, columns


def _confused(path: Path, before: str, what: str) -> UserError:
    return malformed(
        f"{path}, line {before.count(chr(10)) + 1}: double quotes enclose {what}, which a .tsv cannot say",
        "Save the table as .csv (of pandas: to_csv(FILE, index=False)) or as .jsonl.",
    )


def _csv(path: Path, layout: TextForm) -> Iterator[Placed]:
    text = _text(path, layout)
    delimiter = layout.separator or _separator(io.StringIO(text, newline="").readline())
    return _table(path, text, delimiter=delimiter, quoting=csv.QUOTE_MINIMAL)


def _txt(path: Path, layout: TextForm) -> Iterator[Placed]:
    return (_tsv if layout.separator == "\t" else _csv)(path, layout)


def _separator(header: str) -> str:
    return next((mark for mark in SEPARATORS if mark in header), ",")


def layout(source: str) -> TextForm:
    """Guess the layout of a text file. A field of the result is empty if `read` determines the property
    itself.

    People must see the rows that are read with the result, because its encoding and its separator are
    guesses. Raises UserError as `read`.
    """
    path = Path(source).expanduser()
    if path.suffix.lower() not in (*TABLES, ".json", ".jsonl") or not path.is_file():
        return PLAIN
    data = _data(path)
    found = TextForm("utf-16" if data.startswith(UTF_16) else OLDER if _is_older(data) else "")
    if path.suffix.lower() not in TABLES:
        return found
    first = data[:LONGEST_HEADER].decode(found.encoding or "utf-8-sig", "replace")
    if said := _DECLARED.match(first):
        return found._replace(separator="\t" if said[1] == "\\t" else said[1], declared=True)
    header = re.sub('"[^"]*"', "", first.lstrip("\r\n").splitlines()[0] if first.strip() else "")
    likely = max((*SEPARATORS, "|"), key=header.count)
    usual = _separator(first.splitlines()[0] if first else "") if path.suffix.lower() == ".csv" else ""
    usual = "\t" if path.suffix.lower() == ".tsv" else usual
    if likely not in header:
        return found._replace(separator=NO_SEPARATOR if usual != "\t" else "")
    return found._replace(separator="" if likely == usual else likely)


def dialect(source: str) -> tuple[str, str]:
    """Return a separator and an encoding for a new .csv file, so that the programs that read the .csv file
    `source` can read the new file, too. For other sources, return a comma and UTF-8."""
    path = Path(source).expanduser()
    if path.suffix.lower() != ".csv":
        return ",", "utf-8"
    found = layout(source)
    with path.open("rb") as file:
        header = file.readline().decode("utf-8", "replace")
    marked = found.encoding or header.startswith("\ufeff")
    separator = found.separator.strip(NO_SEPARATOR) or _separator(header)
    return separator, "utf-8-sig" if marked else "utf-8"


def _is_older(data: bytes) -> bool:
    """Return whether a text is likely to be encoded in OLDER, and not in UTF-8 with some damaged lines."""
    if data.isascii() or b"\0" in data:
        return False
    with suppress(UnicodeDecodeError):
        data.decode()
        return False
    with suppress(UnicodeDecodeError):
        some = _UNDECODED.sub("", data.decode("utf-8", "surrogateescape"))
        return some.isascii() and not _STRANGE.search(data.decode(OLDER))
    return False


def _table(path: Path, text: str, *, delimiter: str, quoting: Any) -> Iterator[Placed]:
    """Yield the rows of a table after its header line. All values are strings."""
    csv.field_size_limit(MAX_DATA)  # for the process; by default 128 KiB, and no format has a limit
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, quoting=quoting, strict=True)
    line, undecoded = 1, _UNDECODED.search(text) is not None
    try:
        header = _names(path, next(filter(None, reader), []))
        line = reader.line_num + 1
        for values in reader:
            if values:
                values = _fitted(values, len(header))
                other = len(values) != len(header)
                wrong = f"{_columns(len(values))} where the header has {len(header)}" if other else ""
                if undecoded and any(map(_UNDECODED.search, values)):
                    wrong = NOT_UTF_8 + _in_older(" ".join(values))
                row = {} if wrong else dict(zip(header, values, strict=True))
                yield Placed(f"{path}, line {line}", row, wrong)
            line = reader.line_num + 1
    except csv.Error as error:
        raise malformed(f"{path}, line {line}: {error}") from error


def _names(path: Path, header: list[str]) -> list[str]:
    """Return the names of a table's columns. Each unnamed column gets a name of blanks, of a different length
    for each."""
    if any(map(_UNDECODED.search, header)) or "\0" in "".join(header):
        older = _in_older(" ".join(header))
        raise malformed(f"{path}, line 1: no names of columns in UTF-8{older}", EXPORT)
    names = [name if name.strip() else " " * place for place, name in enumerate(header)]
    if twice := next((name for name in names if names.count(name) > 1), ""):
        raise malformed(f"{path}, line 1: a column name occurs twice: {twice}")
    return names


def _fitted(values: list[str], count: int) -> list[str]:
    """Return the values of a row without empty values after the last of the table's `count` columns.
    Spreadsheets write such empty values."""
    while len(values) > count and not values[-1].strip():
        values.pop()
    return values


def _columns(count: int) -> str:
    return f"{count} column{'s' * (count != 1)}"


def _json(path: Path, layout: TextForm) -> Iterator[Placed]:
    """Yield the objects of a JSON array, or the JSON object on each line. Files of both kinds have the
    extension .json."""
    text = _text(path, layout)
    if not text.lstrip().startswith("["):
        return _jsonl(path, layout)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise malformed(f"{path} is not JSON: {error}") from error
    rows = (row if isinstance(row, dict) else "not a JSON object" for row in found)
    return numbered(str(path), rows)


def _jsonl(path: Path, layout: TextForm) -> Iterator[Placed]:
    """Yield the JSON object on each line. Empty lines are skipped."""
    for number, line in enumerate(_text(path, layout).split("\n"), start=1):
        if line.strip():
            yield _object(f"{path}, line {number}", line)


def _object(place: str, line: str) -> Placed:
    if _UNDECODED.search(line):
        return Placed(place, {}, NOT_UTF_8 + _in_older(line))
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        return Placed(place, {}, f"not JSON: {error}")
    return Placed(place, row) if isinstance(row, dict) else Placed(place, {}, "not a JSON object")


def _parquet(path: Path, _layout: TextForm) -> Iterator[Placed]:
    require(path.name)
    from pyarrow import parquet  # type: ignore[import-untyped]

    try:
        with parquet.ParquetFile(path) as file:
            table = file.read()
    except Exception as error:  # pyarrow's errors share no base class
        raise malformed(f"{path} is not a readable Parquet file: {first_line(error)}") from error
    if len(set(table.column_names)) != len(table.column_names):
        raise malformed(f"{path}: a column name occurs twice")
    yield from numbered(str(path), (row for batch in table.to_batches(BATCH) for row in _rows(batch)))


def _rows(batch: Any) -> list[Row | str]:
    """Return the rows of a batch of a Parquet file. Python cannot represent some rows, such as a row with
    text that is not UTF-8 or with a date after the year 9999. Such a row is replaced with a text that says
    why."""
    try:
        found: list[Row | str] = batch.to_pylist()
    except Exception as error:  # as above
        if len(batch) == 1:
            return [first_line(error)]
        return [row for number in range(len(batch)) for row in _rows(batch.slice(number, 1))]
    return found


def _decoded(value: Any) -> Any:
    """Return a value in which bytes in UTF-8 are decoded to text. In many Parquet files all texts are
    bytes."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value
    if isinstance(value, list):
        return [_decoded(item) for item in value]
    return {key: _decoded(item) for key, item in value.items()} if isinstance(value, dict) else value


def _data(path: Path) -> bytes:
    """Return the content of a file. Raises UserError DATA_NOT_FOUND."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(
            Code.DATA_NOT_FOUND, f"cannot read {path}: {error.strerror}", "Check the permissions of the file."
        ) from error


def _text(path: Path, layout: TextForm) -> str:
    """Return the text of a file, without a byte order mark and without a line that declares the separator.
    Bytes that are not UTF-8 become halves of surrogate pairs (_UNDECODED)."""
    data = _data(path)
    if data.startswith(ARCHIVE):
        raise malformed(f"{path} is a spreadsheet or an archive, and no text", EXPORT)
    if data.startswith(UTF_16) and not layout.encoding:
        raise malformed(f"{path}, line 1: not UTF-8 but UTF-16", EXPORT)
    try:
        strict = layout.encoding, "strict"
        text = data.decode(*strict if layout.encoding else ("utf-8-sig", "surrogateescape"))
    except UnicodeDecodeError as error:
        raise malformed(f"{path} is not whole: {error}", EXPORT) from error
    return _DECLARED.sub("\n", text, count=1) if layout.declared else text


def _in_older(text: str) -> str:
    """Return a hint for an error message: the first word that is not UTF-8, decoded as OLDER. Return an empty
    text if decoding fails."""
    word = next((one for one in text.split() if _UNDECODED.search(one)), "")
    try:
        read = word.encode("utf-8", "surrogateescape").decode(OLDER)
    except UnicodeDecodeError:
        return ""
    return f": as {OLDER} or Latin-1 it reads {read[:30]!r}" if read else ""


_READERS: dict[str, Callable[[Path, TextForm], Iterator[Placed]]] = {
    ".tsv": _tsv,
    ".csv": _csv,
    ".txt": _txt,
    ".json": _json,
    ".jsonl": _jsonl,
    ".parquet": _parquet,
}
