"""A click group that imports a command when it is run: help and completion need only names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any, NamedTuple

import click
from click.shell_completion import CompletionItem

from sfnode.errors import Code, UserError

LAB = "sflab"
"""Package with the simulator and the benches, which is beside the product."""


class Entry(NamedTuple):
    """A command that has not been imported."""

    where: str
    """`module:attribute`."""
    help: str
    """One line for lists of commands."""


class LazyGroup(click.Group):
    """A group of the commands in `entries`, by name."""

    def __init__(self, *arguments: Any, entries: Mapping[str, Entry], **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._entries = entries

    def list_commands(self, context: click.Context) -> list[str]:
        return sorted(self._entries)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        return self.load(name) if name in self._entries else None

    def load(self, name: str) -> click.Command:
        """Return the command called `name`. Raises UserError EXTRA_MISSING where its package is missing."""
        if name not in self.commands:
            command = _imported(name, self._entries[name].where)
            command.short_help = self._entries[name].help
            self.add_command(command, name)
        return self.commands[name]

    def load_installed(self, names: Iterable[str]) -> Iterator[click.Command]:
        """Yield these commands, without those that are not installed."""
        for name in names:
            with suppress(UserError):
                yield self.load(name)

    def load_all(self) -> dict[str, click.Command]:
        """Return all commands, in the order of the entries."""
        return {name: self.load(name) for name in self._entries}

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, self._entries[name].help) for name in sorted(self._entries)])

    def shell_complete(self, context: click.Context, incomplete: str) -> list[CompletionItem]:
        found = [
            CompletionItem(name, help=entry.help)
            for name, entry in sorted(self._entries.items())
            if name.startswith(incomplete)
        ]
        return [*found, *click.Command.shell_complete(self, context, incomplete)]


def _imported(name: str, where: str) -> click.Command:
    module, _, attribute = where.partition(":")
    try:
        command: click.Command = getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != LAB:
            raise
        raise UserError(
            Code.EXTRA_MISSING,
            f"`sfnode {name}` belongs to the lab, the package {LAB}, which is not installed",
            "Install it: pip install 'sfnode[lab]'.",
        ) from error
    return command


def inner_commands(group: click.Group) -> Mapping[str, click.Command]:
    """Return the commands of a group by name, imported if need be."""
    return group.load_all() if isinstance(group, LazyGroup) else group.commands
