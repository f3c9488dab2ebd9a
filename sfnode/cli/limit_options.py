"""The options --limit-NAME of `sfnode join`, one for every limit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click
from pydantic import ValidationError

from sfnode.cli.options import option
from sfnode.cli.owner import LIMITS
from sfnode.limits import Limits

F = TypeVar("F", bound=Callable[..., Any])


class LimitValue(click.ParamType):  # type: ignore[type-arg] # generic since click 8.2 only
    """The value of one limit, as `Limits` reads it."""

    def __init__(self, field: str) -> None:
        self.name = field

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        try:
            return getattr(Limits.model_validate({self.name: value}), self.name)
        except ValidationError as error:
            self.fail(reason(error), parameter, context)


def limit_options(function: F) -> F:
    """Add --limit-NAME for every limit; `take_limits` collects their values."""
    function = option("--limit-mains", is_flag=True, help="Compute on mains power only.")(function)
    for field, (metavar, text) in reversed(LIMITS.items()):
        flag = "--limit-" + field.replace("_", "-")
        function = option(flag, type=LimitValue(field), metavar=metavar, help=text)(function)
    return function


def take_limits(fields: dict[str, Any]) -> Limits:
    """Take the values of --threads and of `limit_options` out of a command's parameters."""
    given = {name: fields.pop(f"limit_{name}") for name in (*LIMITS, "mains")}
    given["threads"] = fields.pop("threads") or None
    return Limits().changed(given)


def reason(error: ValidationError) -> str:
    """Return what is wrong with a value, in pydantic's words or ours."""
    return error.errors(include_url=False)[0]["msg"].removeprefix("Value error, ")
