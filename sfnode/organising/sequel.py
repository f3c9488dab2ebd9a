"""The announcement that a run goes on as another one: a text for people, and for nodes that follow.

It is an announcement like any other, a decision of the organiser's: nothing in the run follows from it.
"""

from __future__ import annotations

import re

FORM = "This run goes on as another one; nodes that were started with --follow go there: sfnode join {}"
"""Text of the announcement; the braces stand for the link."""

_FORM = re.compile(re.escape(FORM).replace(r"\{\}", r"(sfnode:[A-Za-z0-9_-]+)"))


def announcement(link: str) -> str:
    """Return what tells members that the run goes on as the one to which a link leads."""
    return FORM.format(link)


def link_in(text: str) -> str | None:
    """Return the link in such an announcement; None for another text."""
    found = _FORM.fullmatch(text)
    return found[1] if found else None
