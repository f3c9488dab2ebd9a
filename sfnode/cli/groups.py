"""Groups of commands that are imported when they run, and shell completion."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from difflib import get_close_matches
from importlib import import_module
from typing import Any, NamedTuple

import click
from click.shell_completion import CompletionItem, get_completion_class

from sfnode.errors import Code, UserError

LAB = "sflab"
"""Package with the simulator and the benchmarks, which is not part of the product."""


MEANT = {"train": "join", "start": "join", "stop": "leave", "finish": "leave --finish", "ask": "use"}
"""Existing commands, keyed by words that people may type instead."""

SHELLS = ("bash", "zsh", "fish")

PROGRAM = "sfnode"
VARIABLE = "_SFNODE_COMPLETE"
"""Environment variable with which a shell's completion script requests completions. click derives it from the
program's name."""


# -- a group that imports a command when it is run -----------------------------------------------------


class Lazy(NamedTuple):
    """Description of a command whose module may not be imported yet."""

    where: str
    """Import path of the command: `module:attribute`, or the module alone if the attribute has the command's
    name. Modules of this package are named without the package."""
    help: str
    """Description in one line, for lists of commands."""
    example: str = ""
    """Example at the end of the command's help, without the program and the groups; empty for a group."""


Entry = tuple[str, str] | tuple[str, str, str]
"""Fields of a `Lazy`, as written in a table of commands. The example begins with the command's own name,
without the program and the groups."""


class LazyGroup(click.Group):
    """A group of commands. `entries` maps each heading of the help to the commands under it, keyed by name.
    `path` is the text that users type for the group, without the program's name."""

    def __init__(
        self, *arguments: Any, entries: Mapping[str, Mapping[str, Entry]], path: str = "", **settings: Any
    ) -> None:
        super().__init__(*arguments, **settings)
        self.path = path
        self.headings = {heading: list(under) for heading, under in entries.items()}
        self.entries = {name: Lazy(*one) for under in entries.values() for name, one in under.items()}

    def list_commands(self, context: click.Context) -> list[str]:
        return list(self.entries)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        return self.load(name) if name in self.entries else None

    def load(self, name: str) -> click.Command:
        """Return the command called `name`. Raises UserError EXTRA_MISSING if its package is missing."""
        if name not in self.commands:
            entry = self.entries[name]
            command = _imported(name, entry.where)
            command.short_help = entry.help
            command.epilog = f"Example:  {self.example(name)}" if entry.example else None
            self.add_command(command, name)
        return self.commands[name]

    def example(self, name: str) -> str:
        """Return an example of the command called `name`."""
        return " ".join(filter(None, ("sfnode", self.path, self.entries[name].example)))

    def load_installed(self, names: Iterable[str]) -> Iterator[click.Command]:
        """Yield the commands called `names` whose packages are installed."""
        for name in names:
            with suppress(UserError):
                yield self.load(name)

    def load_all(self) -> dict[str, click.Command]:
        """Return all commands, in the order of the entries."""
        return {name: self.load(name) for name in self.entries}

    def resolve_command(
        self, context: click.Context, words: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if words[0] not in self.entries and not (words[0].startswith("-") or context.resilient_parsing):
            root = context.find_root()
            paths = [f"{root.command_path} {path}" for path in _paths(root.command)]
            paths += [f"{context.command_path} {name}" for name in self.entries]  # the nearest first
            known = {word: f"{root.command_path} {meant}" for word, meant in MEANT.items()}
            known |= {path.rpartition(" ")[2]: path for path in paths}
            close = [f"`{known[one]}`" for one in get_close_matches(words[0], known)]
            hint = f" Did you mean {' or '.join(close)}?" if close else ""
            raise click.UsageError(f"There is no command {words[0]!r}.{hint}", context)
        return super().resolve_command(context, words)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        widest = max(map(len, self.entries))
        for heading, names in self.headings.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(widest), self.entries[name].help) for name in names])

    def shell_complete(self, context: click.Context, incomplete: str) -> list[CompletionItem]:
        found = [
            CompletionItem(name, help=entry.help)
            for name, entry in sorted(self.entries.items())
            if name.startswith(incomplete)
        ]
        return [*found, *click.Command.shell_complete(self, context, incomplete)]


def _paths(group: click.Command) -> Iterator[str]:
    """Yield, for each command of a group and of its installed subgroups, the text that users type for it."""
    assert isinstance(group, LazyGroup)
    for name, entry in group.entries.items():
        yield name
        if entry.example:
            continue
        with suppress(UserError):
            yield from (f"{name} {inner}" for inner in _paths(group.load(name)))


def _imported(name: str, where: str) -> click.Command:
    module, _, attribute = where.partition(":")
    try:
        package = "" if module.startswith(LAB) else f"{__package__}."
        found = import_module(f"{package}{module}")
        command: click.Command = getattr(found, attribute or name.replace("-", "_"))
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != LAB:
            raise
        raise UserError(
            Code.EXTRA_MISSING,
            f"`sfnode {name}` belongs to the lab, the package {LAB}, which is not installed",
            "Install sfnode again, with all of its packages: pip install --force-reinstall sfnode.",
        ) from error
    return command


def inner_commands(group: click.Group) -> Mapping[str, click.Command]:
    """Return the commands of a group, keyed by name. Imports them if necessary."""
    return group.load_all() if isinstance(group, LazyGroup) else group.commands


# -- completion ----------------------------------------------------------------------------------------


@click.command
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that lets SHELL complete commands, options and their values.

    \b
    bash:  sfnode completion bash > ~/.local/share/bash-completion/completions/sfnode
    zsh:   sfnode completion zsh > ~/.zfunc/_sfnode    (with ~/.zfunc in $fpath)
    fish:  sfnode completion fish > ~/.config/fish/completions/sfnode.fish

    Open a new shell then.
    """
    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(context.find_root().command, {}, PROGRAM, VARIABLE)
    click.echo(script.source_template % script.source_vars())
