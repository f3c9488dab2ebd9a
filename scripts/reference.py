"""Writes docs/cli.md from the commands themselves: every command, option, variable and configuration key.

    python scripts/reference.py [--check]

With --check nothing is written, and the exit status is 1 if the page is not what it should be.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from sfnode.cli.groups import inner_commands
from sfnode.cli.main import cli
from sfnode.cli.options import long_name
from sfnode.defaults import variable

PAGE = Path(__file__).parents[1] / "docs" / "cli.md"

HEAD = """# Command line

Written by `make reference` from the commands themselves; do not edit it by hand. Every option is a flag, an
environment variable and a key of the configuration file ([configuration](configuration.md)): `--data-dir`,
`SFNODE_DATA_DIR` and `data-dir`. An option that few need is a key of `--set` instead of a flag; `--help-all`
lists these. What `--json` prints: [JSON output](json.md). Numbered errors:
[errors](errors.md).

| command | what it does |
|---|---|
"""

KEYS = """## Keys of the configuration file

The file is flat TOML: a key applies to every command that has the option.

| key | environment variable | commands |
|---|---|---|
"""


def page() -> str:
    """The whole page."""
    table = "".join(
        f"| [`sfnode {name}`](#sfnode-{name.replace(' ', '-')}) | {one.get_short_help_str(200)} |\n"
        for name, one in commands()
    )
    sections = "\n".join(section(f"sfnode {name}", command) for name, command in commands())
    keys = "".join(f"{row}\n" for row in key_rows())
    return f"{HEAD}{table}\n{section('sfnode', cli)}\n{sections}\n{KEYS}{keys}"


def commands() -> Iterator[tuple[str, click.Command]]:
    """Yield the commands with their names in the order of the program; those of a group after it."""
    for name, command in cli.load_all().items():
        yield name, command
        if isinstance(command, click.Group):
            yield from ((f"{name} {inner}", one) for inner, one in inner_commands(command).items())


def section(name: str, command: click.Command) -> str:
    """One command: its usage, what its help says, its options."""
    context = click.Context(command, info_name=name)
    usage = " ".join(command.collect_usage_pieces(context))
    text = f"## {name}\n\n```\n{name} {usage}\n```\n\n{prose(command)}\n"
    rows = [option_row(option, context) for option in options(command)]
    if rows:
        text += "\n| option | default | meaning |\n|---|---|---|\n" + "".join(f"{row}\n" for row in rows)
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


def option_row(option: click.Option, context: click.Context) -> str:
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    kind = "" if option.is_flag else f" `{option.make_metavar(context)}`"
    if key := getattr(option, "key", ""):
        names, kind = f"`--set {key}=", "true|false`" if option.is_flag else f"{kind[2:]}"
    return f"| {escaped(names + kind)} | {escaped(default(option))} | {escaped(option.help or '')} |"


def default(option: click.Option) -> str:
    """Return the default as a user would type it; empty where the help says what happens."""
    value: Any = option.default
    if option.is_flag:
        return "on" if value is True else ""
    if not option.show_default or value in (None, ""):
        return ""
    values = value if isinstance(value, list | tuple) else [value]
    return ", ".join(f"`{one}`" for one in values)


def escaped(text: str) -> str:
    return text.replace("|", "\\|")


def key_rows() -> Iterator[str]:
    """All keys by name, each with the commands that read it."""
    users: dict[str, list[str]] = {}
    for name, command in commands():
        for option in options(command):
            users.setdefault(long_name(option.opts), []).append(f"`{name}`")
    for flag, names in sorted(users.items()):
        yield f"| `{flag.removeprefix('--')}` | `{variable(flag)}` | {', '.join(names)} |"


def main(arguments: list[str]) -> int:
    """The exit status."""
    text = page()
    if arguments == ["--check"]:
        return int(not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text)
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
