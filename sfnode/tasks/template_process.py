"""The program that renders chat templates.

A chat template is a program that came with a model. Jinja's sandbox denies it files and the network, but does
not keep it from running for ever or taking all memory. The template therefore runs in a separate process with
bounds (`bounded_process`).
"""

from __future__ import annotations

import json
from datetime import datetime
from functools import lru_cache
from typing import Any

from jinja2 import Template
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import CallBlock, Node
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from sfnode.bounded_process import serve

LONGEST = 1 << 24
"""Maximum length of a rendered conversation, in characters: more than any model reads."""

TEMPLATES = 8
"""Maximum number of compiled templates that are kept. A process uses one or two models, each with one
template."""

TODAY = datetime(2025, 1, 1)
"""Date that templates get as today's date. Some templates write the date into the text, and the text of a row
must not depend on the day."""


class Generation(Extension):
    """Jinja extension for the tag with which some templates mark the assistant's text. The tag has no effect
    on the text."""

    tags = {"generation"}  # noqa: RUF012 (as Jinja declares it)

    def parse(self, parser: Parser) -> Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return CallBlock(self.call_method("written"), [], [], body).set_lineno(line)

    def written(self, caller: Macro) -> str:
        return str(caller())


class PlainNamespace(Namespace):
    """Namespace object of Jinja that refuses attributes whose names begin with an underscore."""

    def __init__(*args: Any, **named: Any) -> None:
        self, *given = args  # a template may name an attribute `self`
        attributes = dict(*given, **named)
        for name in attributes:
            _check_name(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if str(name).startswith("_"):
        raise SecurityError(f"a namespace has no attribute {name}")


def _to_json(value: Any, **options: Any) -> str:
    return json.dumps(value, **{"ensure_ascii": False, **options})


def _raise(message: str) -> None:
    raise TemplateError(message)


ENVIRONMENT = ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
)
"""Jinja environment with the settings of the library transformers, for which chat templates are written."""

ENVIRONMENT.filters["tojson"] = _to_json
ENVIRONMENT.globals |= {
    "raise_exception": _raise,
    "strftime_now": TODAY.strftime,
    "namespace": PlainNamespace,
    "dict": lambda *given, **named: dict(*given, **named),
}


@lru_cache(maxsize=TEMPLATES)
def _compiled(template: str) -> Template:
    return ENVIRONMENT.from_string(template)


def answer(request: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the text that a template renders from variables or, if the text is too long, a message that says
    so."""
    template, variables = request
    text = _compiled(template).render(variables)
    if len(text) > LONGEST:
        return {"broke": f"it writes more than {LONGEST:,} characters"}
    return {"text": text}


if __name__ == "__main__":
    serve(answer)
