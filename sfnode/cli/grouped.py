"""A click command whose help lists its options in groups, each under a heading."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

REST = "Other options"
"""Heading of the options that no group names."""


class GroupedCommand(click.Command):
    """A command with `groups`: flags by the heading under which its help lists them, in this order."""

    def __init__(self, *arguments: Any, groups: Mapping[str, str], **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.groups = {heading: flags.split() for heading, flags in groups.items()}

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        headings = {flag: heading for heading, flags in self.groups.items() for flag in flags}
        rows: dict[str, list[tuple[str, str]]] = {heading: [] for heading in (*self.groups, REST)}
        for parameter in self.get_params(context):
            if row := parameter.get_help_record(context):
                rows[headings.get(parameter.opts[0], REST)].append(row)
        for heading, found in rows.items():
            if found:
                with formatter.section(heading):
                    formatter.write_dl(found)
