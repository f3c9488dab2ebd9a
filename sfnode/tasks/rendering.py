"""Renders chat templates in a process of their own, which a template can neither hold up nor fill.

Knows templates and variables; it knows no tokenizer and no task.
"""

from __future__ import annotations

from typing import Any

from sfnode.bounded_process import BoundedProcess
from sfnode.errors import Code, UserError

SECONDS = 5.0
"""Processor time of one rendering: thousands of times what templates take, and independent of other load."""

MEMORY = 1 << 30
"""Bytes of memory of this process: the longest conversations take a hundredth."""

PROGRAM = "sfnode.tasks.template_process"

PROCESS = BoundedProcess(PROGRAM, SECONDS, MEMORY)
"""The process for this program's templates."""


class TemplateRefusal(Exception):  # noqa: N818 (an answer, not a fault)
    """The template cannot be read, or refuses the conversation; the text says why."""


def render(template: str, variables: dict[str, Any], process: BoundedProcess = PROCESS) -> str:
    """Return the text that a template makes of variables that JSON knows.

    Raises TemplateRefusal, and UserError MODEL_UNSAFE for a template that breaks a bound on its time, its
    memory or the length of its text.
    """
    reply = process.ask([template, variables])
    if "refused" in reply:
        raise TemplateRefusal(reply["refused"])
    if "broke" in reply:
        raise UserError(
            Code.MODEL_UNSAFE,
            f"the model's chat template cannot be used: {reply['broke']}",
            "Take another model, or put a chat template that you trust into a copy of this one "
            "(chat_template.jinja).",
        )
    return str(reply["text"])
