"""Options that are rarely needed, as keys of --set, and the class of the commands that have such options.

An option with a `key` is not a flag: users give it as `--set section.key=value`, and only --help-all lists
it. Like every other option it has an environment variable and a key in the configuration file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import copy
from difflib import get_close_matches
from typing import Any

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from sfnode.cli.output import echo
from sfnode.errors import Code, UserError

ALL = "sfnode.help_all"
"""Key in the `meta` of a click context that is set if all options are shown."""

REST, KEYS = "Other options", "Keys of --set KEY=VALUE"
"""Heading of the options that are in no group, and heading of the keys of --set."""


class Option(click.Option):
    """An option. If it has a `key`, users give it with --set instead of a flag."""

    def __init__(self, *arguments: Any, key: str = "", **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.key, self.hidden = key, bool(key)

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        if not self.key:
            super().add_to_parser(parser, ctx)

    def consume_value(self, ctx: click.Context, opts: Mapping[str, Any]) -> tuple[Any, ParameterSource]:
        said = [value for key, _, value in map(_split, opts.get("set", ())) if key == self.key]
        if self.key and said:
            opts = {str(self.name): said if self.multiple else said[-1]}
        return super().consume_value(ctx, opts)

    def get_error_hint(self, ctx: click.Context | None) -> str:
        hint = super().get_error_hint(ctx)
        flags = " / ".join(f"'{flag}'" for flag in self.opts)
        return hint.replace(flags, f"'--set {self.key}'") if self.key else hint

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return the option's flag or key, and its help. With --help-all the environment variable is shown,
        too. Without --help-all, return None for an option with a key."""
        everything = bool(ctx.meta.get(ALL))
        if self.key and not everything:
            return None
        shown = copy(self)
        shown.hidden, shown.show_envvar = False, everything
        if not everything and isinstance(self.type, click.IntRange | click.FloatRange):
            shown.type = click.STRING  # an error states its bounds
        row = click.Option.get_help_record(shown, ctx)
        if row is None or not self.key:
            return row
        value = " true|false" if self.is_flag else row[0].removeprefix(self.opts[0])
        return f"{self.key}{value}", row[1]


def _split(pair: str) -> tuple[str, str, str]:
    key, equals, value = pair.partition("=")
    return key.strip(), equals, value


class Command(click.Command):
    """A command whose help lists its options under headings. It has --set if an option has a key.

    `groups` has the flags of each heading, in the order of the help.
    """

    def __init__(self, *arguments: Any, groups: Mapping[str, str] | None = None, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.groups = {heading: flags.split() for heading, flags in (groups or {}).items()}
        self.keys = {one.key: one for one in self.params if isinstance(one, Option) and one.key}
        self._about_keys = _options(self.keys) if self.keys else []

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        params = super().get_params(ctx)
        return [*params[:-1], *self._about_keys, *params[-1:]]  # the last is --help

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            key = next((key for key, one in self.keys.items() if error.option_name in one.opts), None)
            if key is None:
                raise
            raise click.UsageError(f"{error.option_name} is no flag: say --set {key}=VALUE", ctx) from None

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        headings = {flag: heading for heading, flags in self.groups.items() for flag in flags}
        rest = REST if self.groups else "Options"
        rows: dict[str, list[tuple[str, str]]] = {heading: [] for heading in (*self.groups, rest, KEYS)}
        for parameter in self.get_params(ctx):
            if isinstance(parameter, click.Option) and (row := parameter.get_help_record(ctx)):
                heading = KEYS if getattr(parameter, "key", "") else headings.get(parameter.opts[0], rest)
                rows[heading].append(row)
        for heading, found in rows.items():
            if found:
                with formatter.section(heading):
                    formatter.write_dl(found)


def _options(keys: Mapping[str, Option]) -> list[click.Parameter]:
    """Return the options --set, which accepts these keys, and --help-all."""

    def check(_context: Any, _parameter: Any, pairs: Iterable[str]) -> None:
        for pair in pairs:
            require_key(pair, keys)

    def complete(context: click.Context, _parameter: Any, begun: str) -> list[CompletionItem]:
        key, equals, value = _split(begun)
        if not equals:
            return [CompletionItem(f"{one}=", help=keys[one].help) for one in keys if one.startswith(begun)]
        if key not in keys:
            return []
        found = keys[key].shell_complete(context, value)
        return [CompletionItem(f"{key}={one.value}", one.type, one.help) for one in found]

    def show_all(context: click.Context, _parameter: Any, wanted: bool) -> None:
        if wanted and not context.resilient_parsing:
            context.meta[ALL] = True
            echo(context.get_help())
            context.exit()

    return [
        click.Option(
            ["--set"],
            multiple=True,
            metavar="KEY=VALUE",
            expose_value=False,
            is_eager=True,
            callback=check,
            shell_complete=complete,
            help=f"One of {len(keys)} rarer options, by its key (--help-all). May be repeated.",
        ),
        click.Option(
            ["--help-all"],
            is_flag=True,
            expose_value=False,
            is_eager=True,
            callback=show_all,
            help="Show the keys of --set, too, and every option's environment variable.",
        ),
    ]


def require_key(pair: str, keys: Iterable[str]) -> tuple[str, str]:
    """Return the key and the value of `KEY=VALUE`. Raises UserError BAD_OPTION for any other text."""
    key, equals, value = _split(pair)
    if key not in keys or not equals:
        raise _not_a_key(pair, key, keys)
    return key, value


def _not_a_key(pair: str, key: str, keys: Iterable[str]) -> UserError:
    if key in keys:
        return UserError(Code.BAD_OPTION, f"--set {pair}: this has no value", f"Give it as {key}=VALUE.")
    by_end = {one.rpartition(".")[2]: one for one in keys}
    ends = get_close_matches(key.rpartition(".")[2], by_end)
    close = dict.fromkeys([*get_close_matches(key, keys), *(by_end[end] for end in ends)])
    hint = f"Is it {' or '.join(close)}? " if close else ""
    return UserError(
        Code.BAD_OPTION, f"--set {pair}: there is no key {key!r}", f"{hint}--help-all lists the keys."
    )
