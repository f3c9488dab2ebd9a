"""Writes docs/cli.md from the commands, and docs/json.md from the models of what they print.

    python scripts/reference.py [--check]

With --check nothing is written, and the exit status is 1 if a page is not what it should be.
"""

from __future__ import annotations

import ast
import inspect
import sys
import types
import typing
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

import click
from pydantic import BaseModel

from sfnode.cli.groups import inner_commands
from sfnode.cli.main import cli
from sfnode.doctor.findings import Examination
from sfnode.limits import Limits
from sfnode.publish.run_file import RunFile
from sfnode.schema import history, organising, results, status, views

DOCS = Path(__file__).parents[1] / "docs"

CLI = """# Command line

Written by `make reference` from the commands; do not edit it by hand. Every option is also a variable and a
key of the [configuration file](configuration.md): `--data-dir`, `SFNODE_DATA_DIR`, `data-dir`. One that few
need is a key of `--set` instead of a flag; `--help-all` lists these. See also [JSON output](json.md) and
[errors](errors.md).
"""

SHARED = 2
"""Commands that have an option with the same help, from which on it is described once, at the beginning."""

JSON = """# JSON output

Written by `make reference` from the models; do not edit it by hand.

With `--json` a command prints one object; progress goes to standard error. After an error it is
`{"error": {"code", "name", "what", "fix", "status"}}`: the number of the [error](errors.md) (or `usage`,
`interrupted`), its name, what happened, what to do, the exit status. Within a major version fields are added,
never renamed or removed: ignore those that you do not know.

Digests, keys and ids are lower-case hex; sizes are bytes, times seconds, losses nats, worths 10^-9 nats. A
number that is not finite is `"NaN"`, `"Infinity"` or `"-Infinity"`. `string?` is a string or null. "Since the
start" is since the process started; Oxx and such are rules of the [specification](../protocol/SPEC.md). `GET`
and `POST` are routes of the socket `control.sock` in a data folder ([views](views.md)).
"""

OUTPUTS: dict[str, tuple[str, tuple[type[BaseModel], ...]]] = {
    "list --json": ("For each run `folder`, `run_name`, `run_id`, `state` and `contributed`.", ()),
    "status --json": ("`GET /status`; with `--feeds` also `feeds`.", (results.StatusResult,)),
    "limit --json": (
        "`GET /limits`: [Limits](#limits). `POST /limits` takes those to change; null removes one.",
        (Limits,),
    ),
    "verify --json": ("", (results.VerifyResult,)),
    "log --json": ("", (history.HistoryResult,)),
    "log --why --json": ("", (history.WhyResult,)),
    "log --updates": (
        "A line for each update that counts, by origin, incarnation and step: with the manifest and the base "
        "model, all that a model follows from (R6, R7, U4 to U9, U11).",
        (results.UpdateLine,),
    ),
    "history checkout --json": ("", (history.CheckoutResult,)),
    "leaderboard --json": ("", (history.LeaderboardResult,)),
    "history archive --json": ("`statement.json` of the archive.", (results.ArchiveStatement,)),
    "history import --json": ("", (results.ImportResult,)),
    "eval --json": ("", (results.EvalResult,)),
    "organise try-reward --json": ("", (results.TryRewardResult,)),
    "invite --json": ("`GET /invitation`.", (results.InviteResult,)),
    "organise status --json": ("`GET /organising`.", (organising.OrganiserStatus,)),
    "organise members --json": (
        "Both together; `GET /organising/members?offset=&limit=&find=` and `GET /organising/petitions`.",
        (organising.Members, organising.JoinRequestList),
    ),
    "organise admit --json": (
        "So do all commands that decide something, and `POST /organising/decision`, which takes `decision` "
        "(O2, in hex) and `dry_run`. `organise invite` prints `link`, `invitation` and `uses`.",
        (organising.DecisionResult,),
    ),
    "organise hand-over": (
        "A succession file: what `GET /organising/succession?key=&kept=` gives, and `POST` there takes; "
        "`--to` is `POST /organising/hand-over`, which takes a `key`.",
        (organising.SuccessionFile,),
    ),
    "swarm --json": ("", (results.SwarmResult,)),
    "GET /digest": ("", (status.CoreStatus,)),
    "doctor --json": ("", (Examination,)),
    "lab bench --json": (
        "A ratio is the median, over all turns, of two times of one turn; trust ratios rather than times.",
        (results.BenchResult,),
    ),
    "lab simulate --json": (
        "`network`: for each run `scenario`, `topology`, `seed`, `nodes`, `seconds` (virtual, as all but "
        "`wall`), `command` (which repeats it), `failure`, `settled` and counts. `training`: `cell`, "
        "`results` (a file), `values`.",
        (),
    ),
    "run.json": (
        "What `sfnode publish page` writes beside a page; `join` reads three of its fields (N6).",
        (RunFile,),
    ),
    "GET /views/progress": ("", (views.Progress,)),
    "GET /views/curves": ("Columns of equal length.", (views.Curves,)),
    "GET /views/swarm": ("", (views.Swarm,)),
    "GET /views/about": ("", (views.About,)),
    "GET /views/own": ("", (views.OwnStanding,)),
    "GET /views/samples": ("", (views.Samples,)),
    "GET /views/timeline": ("Parameter: `limit` (1 to 1,000).", (views.Timeline,)),
    "GET /views/feeds": ("Parameters: `offset`, `limit`.", (views.Feeds,)),
    "GET /views/origins": (
        "Parameters: `offset`, `limit`, `find`, the first digits of a key.",
        (views.Origins,),
    ),
    "GET /views/history": ("Parameter: `points`, the most spans of epochs.", (views.History,)),
    "POST /generate": ('Takes `{"prompt": text, "tokens": 1 to 64}`.', (views.Generated,)),
}
"""A sentence about each output, and its models, by its heading; models within them follow by themselves."""


def cli_page() -> str:
    """The reference of the command line."""
    found = [(f"sfnode {name}", command) for name, command in commands()]
    uses = Counter(line for _, one in found for line in {option_line(option) for option in options(one)})
    shared = {line for line, count in uses.items() if count >= SHARED}
    known = {key for option in options(dict(found)["sfnode init"]) if (key := getattr(option, "key", ""))}
    forked = options(dict(found)["sfnode history fork"])  # whose keys are described with init
    shared |= {option_line(option) for option in forked if getattr(option, "key", "") in known}
    common = "".join(f"- {line}\n" for line in sorted(shared) if uses[line] >= SHARED)
    sections = "\n".join(section(name, command, shared) for name, command in found)
    return f"{CLI}\n## Options of many commands\n\n{common}\n{section('sfnode', cli, shared)}\n{sections}"


def commands() -> Iterator[tuple[str, click.Command]]:
    """Yield the commands with their names in the order of the program; those of a group after it."""
    for name, command in cli.load_all().items():
        yield from with_inner(name, command)


def with_inner(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    yield name, command
    if isinstance(command, click.Group):
        for inner, one in inner_commands(command).items():
            yield from with_inner(f"{name} {inner}", one)


def section(name: str, command: click.Command, shared: set[str]) -> str:
    """One command: its usage, what its help says, its options."""
    takes = " ".join(command.collect_usage_pieces(click.Context(command))).removeprefix("[OPTIONS]")
    text = f"## {name}\n\n" + (f"`{name}{takes}`\n\n" if takes else "") + f"{prose(command)}\n"
    lines = {option_line(option): option for option in options(command)}
    if own := "".join(f"- {line}\n" for line in lines if line not in shared):
        text += f"\n{own}"
    others = [
        getattr(option, "key", "") or option.opts[0] for line, option in lines.items() if line in shared
    ]
    if told := ", ".join(f"`{one}`" for one in others if one != "--profile"):  # goes with --data-dir
        text += f"\nAlso {told}.\n"
    return text


def prose(command: click.Command) -> str:
    """The help as paragraphs; what click must not wrap stands as it is."""
    paragraphs = inspect.cleandoc(command.help or "").split("\n\n")
    return "\n\n".join(
        "```\n" + part.removeprefix("\b\n") + "\n```" if part.startswith("\b\n") else part
        for part in paragraphs
    )


def options(command: click.Command) -> list[click.Option]:
    return [one for one in command.params if isinstance(one, click.Option) and one.envvar]


def option_line(option: click.Option) -> str:
    names = "`, `".join((*option.opts, *option.secondary_opts))
    kind = "" if option.is_flag else f" {option.make_metavar(click.Context(click.Command('')))}"
    if key := getattr(option, "key", ""):
        names, kind = f"--set {key}=", "true|false" if option.is_flag else kind.strip()
    said = default(option)
    return f"`{names}{kind}`: {option.help or ''}" + (f"  [default: {said}]" if said else "")


def default(option: click.Option) -> str:
    """Return the default as a user would type it; empty where the help says what happens."""
    value: Any = option.default
    if option.is_flag:
        return "on" if value is True else ""
    if not option.show_default or value in (None, ""):
        return ""
    values = value if isinstance(value, list | tuple) else [value]
    return ", ".join(f"{one}" for one in values)


def json_page() -> str:
    """The reference of the JSON output: each model where it first occurs."""
    text, seen = JSON, set[type]()
    for heading, (note, models) in OUTPUTS.items():
        text += f"\n## {heading}\n\n" + (f"{note}\n\n" if note else "")
        new = [
            one for one in dict.fromkeys(one for model in models for one in within(model)) if one not in seen
        ]
        seen.update(new)
        text += "\n".join(model_fields(one, titled=one not in models[:1]) for one in new)
    return text


def within(model: type[BaseModel]) -> list[type[BaseModel]]:
    """The model, and those that its fields have, each once."""
    model.model_rebuild()  # a class further down in its module has been a name until now
    found = [model]
    for field in model.model_fields.values():
        for part in parts(field.annotation):
            if isinstance(part, type) and issubclass(part, BaseModel):
                found += [one for one in within(part) if one not in found]
    return found


def parts(annotation: Any) -> Iterator[Any]:
    """Yield a type and all types within it."""
    yield annotation
    for argument in typing.get_args(annotation):
        yield from parts(argument)


def model_fields(model: type[BaseModel], *, titled: bool) -> str:
    """A line for each field that needs a word, and one with the others."""
    said = explained(model)
    named = {name: f"`{name}` {kind(field.annotation)}" for name, field in model.model_fields.items()}
    text = f"### {model.__name__}\n\n" if titled else ""
    text += "".join(f"- {named[name]}: {said[name]}\n" for name in named if name in said)
    plain = ", ".join(named[name] for name in named if name not in said)
    return text + (f"- {plain}\n" if plain else "")


def explained(model: type[BaseModel]) -> dict[str, str]:
    """Return what is written under each field of a class, its bases included, in one line."""
    found: dict[str, str] = {}
    for one in reversed(model.__mro__):
        if not issubclass(one, BaseModel) or one is BaseModel:
            continue
        (tree,) = ast.parse(inspect.getsource(one)).body
        assert isinstance(tree, ast.ClassDef)
        for before, after in zip(tree.body, tree.body[1:], strict=False):
            match before, after:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    found[name] = one_line(text)
    return found


def one_line(text: str) -> str:
    """A docstring in JSON's words."""
    return " ".join(text.split()).replace("None", "null").removesuffix(".")


def kind(annotation: Any) -> str:
    """A type in JSON's words."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return kind(arguments[0])
    if origin is typing.Literal:
        return " or ".join(f"`{one}`" for one in arguments)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(kind(one) for one in arguments).replace(" or null", "?")
    if origin in (list, tuple):
        return f"list of {kind(arguments[0])}"
    if isinstance(annotation, type) and issubclass(annotation, StrEnum):
        return " or ".join(f"`{one.value}`" for one in annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation.__name__
    names = {
        str: "string",
        datetime: "time",
        int: "integer",
        float: "number",
        bool: "boolean",
        type(None): "null",
    }
    return names.get(annotation, "object")


def main(arguments: Sequence[str]) -> int:
    """The exit status."""
    pages = {DOCS / "cli.md": cli_page(), DOCS / "json.md": json_page()}
    if list(arguments) == ["--check"]:
        return int(any(not page.exists() or page.read_text("utf-8") != text for page, text in pages.items()))
    for page, text in pages.items():
        page.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
